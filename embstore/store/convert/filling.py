"""From rows that are at hand already to a finished store: begun, or gone on with where an earlier call ended."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import EmbstoreError, InvalidValueError, StorageError
from embstore.store.backend import Reader, open_reader, require_place, stands
from embstore.store.index import Index
from embstore.store.metadata import Metadata, StoredArray
from embstore.store.storage.files import crc32c, storing
from embstore.store.storage.location import ObjectPath
from embstore.store.store import Store, open_store
from embstore.store.writer import StoreWriter, create_store, remove_store

Progress = Callable[[int, int], object]
ArraysOf = Callable[[int], Mapping[str, NDArray[Any]]]

_DERIVED = {"layer", "type/indptr", "type/occurrences"}


def fill_store(
    path: Path | ObjectPath,
    *,
    metadata: Metadata,
    index: Index,
    center: NDArray[np.float32] | None,
    arrays_of: ArraysOf,
    progress: Progress | None,
) -> Store:
    """Write every partition that is not committed yet, each as `arrays_of` gives it, and finish the store.

    `progress` is called with (rows written, rows in all). A store that this call has begun and whose rows turn
    out not to be storable is removed; one whose writing was interrupted, or for which the disk was too small, is
    gone on with by the same call. Raises InvalidValueError where something else stands at `path`.
    """
    begun = _begin(path, metadata=metadata, index=index, center=center)
    with StoreWriter(path) as writer:
        try:
            _write(writer, arrays_of, progress)
        except Exception as error:
            if begun and not isinstance(error, StorageError):
                remove_store(path, filled=True)
            raise
        writer.finish()
    return open_store(path)


def _write(writer: StoreWriter, arrays_of: ArraysOf, progress: Progress | None) -> None:
    layout = writer.metadata.layout
    missing = writer.missing()
    done = layout.n_rows - sum(stop - start for start, stop in map(layout.span, missing))
    for partition in missing:
        if progress is not None:
            progress(done, layout.n_rows)
        writer.write(partition, arrays_of(partition))
        start, stop = layout.span(partition)
        done += stop - start
    if progress is not None:
        progress(done, layout.n_rows)


def require_free_path(path: Path | ObjectPath) -> None:
    """Raise InvalidValueError at once where no store can be written at `path`, or a finished one stands there."""
    require_place(path)
    if stands(path) and _unfinished(path) is None:
        raise _taken(path)


def _begin(path: Path | ObjectPath, *, metadata: Metadata, index: Index, center: NDArray[np.float32] | None) -> bool:
    """Lay the store out; False where an unfinished one of the same rows stands there already."""
    if not stands(path):
        if isinstance(path, Path):
            _require_space(path, metadata, index)
        create_store(path, metadata=metadata, index=index, center=center)
        return True
    reader = _unfinished(path)
    if reader is None or reader.metadata.recipe != metadata.recipe or not _same_arrays(reader, index, center):
        raise _taken(path)
    return False


def _taken(path: Path | ObjectPath) -> InvalidValueError:
    return InvalidValueError(f"{path} exists already: choose another path, or remove it first")


def _unfinished(path: Path | ObjectPath) -> Reader | None:
    try:
        reader = open_reader(path)
        return None if Store(reader).finished else reader
    except EmbstoreError:
        return None


def _same_arrays(reader: Reader, index: Index, center: NDArray[np.float32] | None) -> bool:
    """Whether the store was laid out with this index and centre; what follows from them is not compared."""
    arrays = index.arrays()
    if center is not None:
        arrays["center"] = center
    if set(arrays) != set(reader.arrays) - _DERIVED:
        return False
    return all(reader.arrays[name] == StoredArray(array.shape, crc32c(array)) for name, array in arrays.items())


def _require_space(path: Path, metadata: Metadata, index: Index) -> None:
    layout = metadata.layout
    by_word = 8 * (len(index.words) + 1 + layout.n_rows)
    needed = layout.n_rows * layout.row_nbytes + sum(array.nbytes for array in index.arrays().values()) + by_word
    with storing(path):
        free = shutil.disk_usage(path.absolute().parent).free
    if needed > free:
        raise StorageError(
            f"{path} needs {needed / 2**20:,.1f} MiB, but {path.absolute().parent} has {free / 2**20:,.1f} MiB free: "
            "choose fewer layers or words, a smaller dtype, or another folder"
        )
