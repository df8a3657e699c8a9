"""Fill a new store from rows that are at hand: create or resume it, encode partitions, write those that are missing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import EmbstoreError, NonFiniteError, StorageError
from embstore.progress import Progress, reporting
from embstore.store.backend import Reader, exists, open_reader, require_writable
from embstore.store.index import Index
from embstore.store.layout import Layout
from embstore.store.metadata import Metadata, StoredArray
from embstore.store.opening import open_store
from embstore.store.source import FileSource
from embstore.store.storage.files import crc32c, storing
from embstore.store.storage.location import ObjectPath, exists_already
from embstore.store.store import Store
from embstore.store.vectors import SCALE_DTYPE, STORAGE_DTYPE, all_finite, bfloat16_bits, quantize
from embstore.store.writer import StoreWriter, create_store, remove_store

LARGEST = {
    "float32": float(np.finfo(np.float32).max),
    "float16": 65504.0,
    "bfloat16": float(np.array([0x7F7F0000], np.uint32).view(np.float32)[0]),
    "int8": float(np.finfo(np.float32).max),
}
CENTER_ROWS = 4096

_DERIVED = {"layer", "types/indptr", "types/occurrences"}


def fill_store(
    path: Path | ObjectPath,
    *,
    metadata: Metadata,
    index: Index,
    center: NDArray[np.float32] | None,
    fill: Callable[[PartitionBuffer, int, int], None],
    progress: Progress = None,
    label: str = "",
) -> Store:
    """Create a store, or resume an interrupted one with the same contents, and write what is missing.

    `fill(buffer, start, stop)`: puts rows `[start, stop)` of the site `buffer.layout`, a partition, into the buffer
    from its row 0 on. `progress`: see `embstore.progress`; counts rows. If the rows of a store that this call created
    cannot be stored, it is removed.

    Raises InvalidValueError where anything else exists at `path`, StorageError for a disk that is too small.
    """
    created = _create_or_resume(path, metadata=metadata, index=index, center=center)
    layout, buffer = metadata.layout, PartitionBuffer(metadata.layout, center=center)
    total = layout.n_rows * len(metadata.layouts)
    with StoreWriter(path) as writer, reporting(progress, total=total, unit="rows", label=label) as report:
        try:
            missing = writer.missing()
            done = total - sum(stop - start for start, stop in map(layout.span, missing))
            for partition in missing:
                report(done)
                site = metadata.layouts[partition // layout.n_partitions]
                if buffer.layout != site:
                    buffer = PartitionBuffer(site, center=None)
                start, stop = layout.span(partition)
                fill(buffer, start, stop)
                writer.write(partition, buffer.arrays(stop - start))
                done += stop - start
            report(done)
        except Exception as error:
            if created and not isinstance(error, StorageError):
                if isinstance(path, ObjectPath):  # or its records would be written after it is removed
                    with suppress(EmbstoreError):
                        writer.close()
                remove_store(path)
            raise
        writer.finish()
    return open_store(path)


def require_free_path(path: Path | ObjectPath) -> None:
    """Raise InvalidValueError where no store can be made at `path`: no folder, or a finished store or another file."""
    require_writable(path)
    if exists(path) and _unfinished(path) is None:
        raise exists_already(path)


def _create_or_resume(
    path: Path | ObjectPath, *, metadata: Metadata, index: Index, center: NDArray[np.float32] | None
) -> bool:
    """Create the store; return False where an unfinished one with the same contents exists."""
    if not exists(path):
        if isinstance(path, Path):
            _require_space(path, metadata, index)
        create_store(path, metadata=metadata, index=index, center=center)
        return True
    reader = _unfinished(path)
    if reader is None or reader.metadata.provenance != metadata.provenance:
        raise exists_already(path)
    arrays = index.arrays()
    if center is not None:
        arrays["center"] = center
    same = set(arrays) == set(reader.arrays) - _DERIVED and all(
        reader.arrays[name] == StoredArray(array.shape, crc32c(array)) for name, array in arrays.items()
    )
    if not same:
        raise exists_already(path)
    return False


def _unfinished(path: Path | ObjectPath) -> Reader | None:
    try:
        reader = open_reader(path)
        return None if FileSource(reader).finished else reader
    except EmbstoreError:
        return None


def _require_space(path: Path, metadata: Metadata, index: Index) -> None:
    layout = metadata.layout
    by_type = 8 * (len(index.words) + 1 + layout.n_rows)
    needed = layout.n_rows * metadata.row_nbytes + sum(array.nbytes for array in index.arrays().values()) + by_type
    with storing(path):
        free = shutil.disk_usage(path.absolute().parent).free
    if needed > free:
        raise StorageError(
            f"{path} needs {needed / 2**20:,.1f} MiB, but {path.absolute().parent} has {free / 2**20:,.1f} MiB free: "
            "choose fewer layers or words, a smaller dtype, or another folder"
        )


def require_storable(values: NDArray[Any], *, dtype: str, layers: Sequence[int], where: Callable[[int], str]) -> None:
    """Raise NonFiniteError for a value that is not finite or too large for the dtype.

    `values`: floats [layer, n, feature]. `layers` and `where(row)`, for a row of `values`, name the value in the error.
    """
    largest = LARGEST[dtype]
    if values.dtype in (np.float16, np.float32) and float(np.finfo(values.dtype).max) <= largest:
        if all_finite(np.ascontiguousarray(values)):  # numpy compares float16 slowly
            return
    elif not values.size or (-largest <= float(values.min()) and float(values.max()) <= largest):
        return
    layer, row, feature = np.argwhere(~(np.abs(values.astype(np.float64)) <= largest))[0].tolist()
    value = float(values[layer, row, feature])
    name = f"layer {layers[layer]}, {where(row)}"
    if not np.isfinite(value):
        raise NonFiniteError(f"{name}: {value} is not finite and cannot be stored")
    wider = {"float16": "choose float32 or bfloat16", "bfloat16": "choose float32"}.get(dtype, "no dtype can hold it")
    raise NonFiniteError(f"{name}: {value:,.6g} is beyond {dtype}'s {largest:,.6g}: {wider}")


class PartitionBuffer:
    """The arrays of one partition in memory, filled layer by layer and reused for the next partition.

    `center`: float32 [layer, feature], for int8 only. A `layer` is a position among the stored layers.
    """

    def __init__(self, layout: Layout, *, center: NDArray[np.float32] | None) -> None:
        self.layout = layout
        self._center = center
        shape = (len(layout.layers), min(layout.partition_rows, layout.n_rows), layout.hidden_size)
        self._arrays = {layout.vectors: np.empty(shape, STORAGE_DTYPE[layout.dtype])}
        if layout.dtype == "int8":
            self._arrays["scale"] = np.empty(shape[:2], SCALE_DTYPE)

    def stored(self, array: str, layer: int, start: int, stop: int) -> NDArray[Any]:
        """Return the view of rows `[start, stop)` of one layer, to copy numbers into as they are stored."""
        return self._arrays[array][layer, start:stop]

    def put(self, layer: int, start: int, values: NDArray[Any], *, where: Callable[[int], str]) -> None:
        """Encode values [layer, n, feature], of layers from `layer` on, into the rows from `start` on.

        Raises NonFiniteError.
        """
        some, stop = slice(layer, layer + len(values)), start + values.shape[1]
        require_storable(values, dtype=self.layout.dtype, layers=self.layout.layers[some], where=where)
        target = self._arrays[self.layout.vectors][some, start:stop]
        if self.layout.dtype == "bfloat16":
            target[...] = bfloat16_bits(values.astype(np.float32, copy=False))
        elif self._center is None:
            target[...] = values
        else:
            encoded = quantize(values.astype(np.float32, copy=False), self._center[some])
            target[...] = encoded["hidden_states"]
            self._arrays["scale"][some, start:stop] = encoded["scale"]

    def arrays(self, n_rows: int) -> dict[str, NDArray[Any]]:
        """Return the first rows as `StoreWriter.write` takes them."""
        return {name: array[:, :n_rows] for name, array in self._arrays.items()}


def sample_rows(n_rows: int) -> NDArray[np.int64]:
    """Return up to 4,096 evenly spread rows, from which the center of an int8 store is computed; int64 [n]."""
    return np.unique(np.linspace(0, n_rows - 1, min(n_rows, CENTER_ROWS)).astype(np.int64))
