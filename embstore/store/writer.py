"""Making stores and filling them: one writer, partitions in any order, each committed once it is on disk."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import EmbstoreError, InvalidValueError, MissingRowsError
from embstore.store.arrays import check_center, check_columns, frozen_arrays, payload_specs
from embstore.store.backend import is_hdf5, lay_out, open_writer
from embstore.store.consistency import index_faults
from embstore.store.files import fsync_folder, remove, storing
from embstore.store.index import Index
from embstore.store.layout import Layout
from embstore.store.lock import StoreLock, new_path
from embstore.store.metadata import Metadata, check_metadata
from embstore.store.occurrences import rows_of_types
from embstore.store.vectors import INT8_FILL


def create_store(
    path: str | os.PathLike[str],
    *,
    metadata: Metadata,
    index: Index,
    center: NDArray[np.float32] | None = None,
) -> None:
    """Lay out a store without rows: all or nothing, so what stands at `path` is always a whole store.

    `center`: float32 [layer, feature], for int8 only. Raises InvalidValueError for a path that exists or has
    another suffix than .zarr or .h5, and for an index that does not fit the metadata; StorageError where the
    disk is full.
    """
    path = Path(path)
    is_hdf5(path)
    if not path.parent.is_dir():
        raise InvalidValueError(f"cannot make {path}: there is no folder {path.parent}")
    with StoreLock(path):
        if os.path.lexists(path):
            raise InvalidValueError(f"{path} exists already: choose another path, or remove it first")
        build(path, metadata=metadata, index=index, center=center)
        with storing(path):
            os.rename(new_path(path), path)
            fsync_folder(path.parent)


def build(path: Path, *, metadata: Metadata, index: Index, center: NDArray[np.float32] | None) -> None:
    """Lay out a store at `new_path(path)`; nothing is left there where that fails. The lock must be held."""
    check_metadata(metadata)
    check_center(metadata, center)
    check_columns(index.labels)
    for fault in index_faults(index, metadata.rows):
        raise InvalidValueError(f"the index is not consistent: {fault}")
    new = new_path(path)
    try:
        with storing(path), rows_of_types(index.type, len(index.words), path.parent) as words:
            frozen = frozen_arrays(metadata, index, words, center)
            lay_out(new, metadata, frozen, hdf5=is_hdf5(path))
    except BaseException:
        remove(new)
        raise


class StoreWriter:
    """Writes the partitions of a laid-out store, under its lock; a context manager.

    Raises StoreBusyError where another process writes the store. What a killed writer left is removed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.parent.is_dir():
            open_writer(self.path)
        self._lock = StoreLock(self.path)
        self._mutex = threading.Lock()
        self._lock.__enter__()
        try:
            with storing(self.path):
                self._backend = open_writer(self.path)
        except BaseException:
            self._lock.release()
            raise
        self.metadata = self._backend.metadata
        self._written: NDArray[np.bool_] | None = None  # what is committed, read once: none is taken back by others
        self._specs = {spec.path: spec for spec in payload_specs(self.metadata)}

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def missing(self) -> list[int]:
        """The partitions that are not committed, ascending."""
        with self._mutex, storing(self.path):
            self._written = committed(self._backend.commits(), self.metadata.layout)
            return np.flatnonzero(~self._written).tolist()

    def write(self, partition: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write a partition and commit it; both are on disk when this returns. May be called from any thread.

        `arrays`: "hidden_states" [layer, n, feature] in the storage dtype (bfloat16 as its uint16 bits), n the rows
        of the partition; for int8 also "scale" float32 [layer, n]. Raises InvalidValueError for other arrays or
        a committed partition, StorageError where the disk is full: then nothing is committed.
        """
        layout = self.metadata.layout
        if not 0 <= partition < layout.partitions:
            raise InvalidValueError(f"there is no partition {partition}: the store has {layout.partitions}")
        start, stop = layout.span(partition)
        self._check(partition, stop - start, arrays)
        with self._mutex, storing(self.path):
            self._check_open()
            if self._written is None:
                self._written = committed(self._backend.commits(), layout)
            if self._written[partition]:
                raise InvalidValueError(f"partition {partition} is committed already: discard it first")
            crc = self._backend.write(partition, arrays)
            self._backend.commit(partition, np.array([stop - start, crc], np.uint64))
            self._written[partition] = True

    def discard(self, partitions: Iterable[int]) -> None:
        """Count partitions as not written, so that they are written again."""
        with self._mutex, storing(self.path):
            self._check_open()
            self._written = None
            self._backend.discard(partitions)

    def finish(self) -> None:
        """Fold the commits and release the lock; a killed call is completed by the next. The writer is closed.

        Raises MissingRowsError where a partition is not committed.
        """
        missing = self.missing()
        if missing:
            raise MissingRowsError(f"{self.path} lacks {len(missing)} partitions, the first is {missing[0]}")
        with self._mutex, storing(self.path):
            self._check_open()
            self._backend.fold()
        self.close()

    def close(self) -> None:
        """Release the lock; a second call does nothing."""
        with self._mutex:
            if self._lock.held:
                self._backend.close()
                self._lock.release()

    def _check_open(self) -> None:
        if not self._lock.held:
            raise EmbstoreError(f"the writer of {self.path} is closed")

    def _check(self, partition: int, rows: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        if set(arrays) != set(self._specs):
            raise InvalidValueError(f"a partition holds {sorted(self._specs)}, not {sorted(arrays)}")
        for name, spec in self._specs.items():
            shape = (spec.shape[0], rows, *spec.shape[2:])
            if arrays[name].shape != shape or arrays[name].dtype != spec.dtype:
                raise InvalidValueError(
                    f"{name} of partition {partition} must be {spec.dtype} {shape}, "
                    f"not {arrays[name].dtype} {arrays[name].shape}"
                )
        if self.metadata.dtype == "int8" and (arrays["hidden_states"] == INT8_FILL).any():
            raise InvalidValueError(f"the int8 code {INT8_FILL} means not written and cannot be stored")


def committed(records: NDArray[np.uint64], layout: Layout) -> NDArray[np.bool_]:
    """Tell which records [partition, 2] are whole: as many rows as the partition has, and a CRC32C."""
    rows = np.full(layout.partitions, layout.partition_rows, np.uint64)
    start, stop = layout.span(layout.partitions - 1)
    rows[-1] = stop - start
    whole: NDArray[np.bool_] = (records[:, 0] == rows) & (records[:, 1] < 2**32)
    return whole
