"""Making stores and filling them: partitions in any order, each committed once it is on disk or in the bucket."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import EmbstoreError, InvalidValueError, MissingRowsError
from embstore.store.arrays import check_center, check_columns, frozen_arrays
from embstore.store.backend import is_hdf5, lay_out, open_writer, require_place
from embstore.store.check.consistency import index_faults
from embstore.store.check.partition_check import check_partition
from embstore.store.index import Index, rows_by_type
from embstore.store.layout import Layout
from embstore.store.metadata import Metadata, check_metadata
from embstore.store.storage.files import fsync_folder, remove, storing
from embstore.store.storage.location import ObjectPath, place_of
from embstore.store.storage.lock import StoreLock, new_path
from embstore.store.storage.objects import Objects
from embstore.store.zarr.shard_writer import Record, place_staged


def create_store(
    path: str | os.PathLike[str] | ObjectPath,
    *,
    metadata: Metadata,
    index: Index,
    center: NDArray[np.float32] | None = None,
) -> None:
    """Lay out a store without rows: all or nothing, so what stands at `path` is always a whole store.

    `center`: float32 [layer, feature], for int8 only. Raises InvalidValueError for a path that exists or has
    another suffix than .zarr or .h5, and for an index that does not fit the metadata; StorageError where the
    disk is full. In a bucket the same call goes on with what an interrupted one left.
    """
    path = place_of(path)
    require_place(path)
    if isinstance(path, ObjectPath):
        _lay_out(path, path, metadata=metadata, index=index, center=center, scratch=Path(tempfile.gettempdir()))
        return
    with StoreLock(path):
        if os.path.lexists(path):
            raise InvalidValueError(f"{path} exists already: choose another path, or remove it first")
        build(path, metadata=metadata, index=index, center=center)
        with storing(path):
            os.rename(new_path(path), path)
            fsync_folder(path.parent)


def build(path: Path, *, metadata: Metadata, index: Index, center: NDArray[np.float32] | None) -> None:
    """Lay out a store at `new_path(path)`; nothing is left there where that fails. The lock must be held."""
    new = new_path(path)
    try:
        _lay_out(path, new, metadata=metadata, index=index, center=center, scratch=path.parent)
    except BaseException:
        remove(new)
        raise


def _lay_out(
    path: Path | ObjectPath,
    new: Path | ObjectPath,
    *,
    metadata: Metadata,
    index: Index,
    center: NDArray[np.float32] | None,
    scratch: Path,
) -> None:
    """Lay out at `new` what is to stand at `path`."""
    with frozen_of(path, metadata, index, center, scratch=scratch) as frozen:
        lay_out(new, metadata, frozen, hdf5=is_hdf5(path))


@contextmanager
def frozen_of(
    path: Path | ObjectPath,
    metadata: Metadata,
    index: Index,
    center: NDArray[np.float32] | None,
    *,
    scratch: Path,
) -> Iterator[dict[str, NDArray[Any]]]:
    """Give the arrays of a lay-out that never change; `scratch`: a folder for what does not fit into memory.

    Raises InvalidValueError for what no store can be laid out from.
    """
    check_metadata(metadata)
    check_center(metadata, center)
    check_columns(index.labels)
    for fault in index_faults(index, metadata.n_rows):
        raise InvalidValueError(f"the index is not consistent: {fault}")
    with storing(path), rows_by_type(index.type, len(index.words), scratch) as words:
        yield frozen_arrays(metadata, index, words, center)


def remove_store(path: Path | ObjectPath, *, filled: bool = False) -> None:
    """Remove a store that this process has begun, all of it or so that what is left is none; under its lock, if any.

    In a bucket it stays where a shard stands and it was not `filled` by this process: another one writes it too.
    """
    if isinstance(path, ObjectPath):
        objects = Objects.at(path)
        if not filled and objects.names("hidden_states/c"):
            return
        objects.delete("zarr.json")
        for name in objects.names():
            objects.delete(name)
    elif os.path.lexists(path):
        os.rename(path, new_path(path))
        remove(new_path(path))


class StoreWriter:
    """Writes the partitions of a laid-out store, under its lock; a context manager.

    Raises StoreBusyError where another process writes the store. What a killed writer left is removed. In a bucket
    there is no lock, and several may write: of each partition the first one's rows stay.
    """

    def __init__(self, path: str | os.PathLike[str] | ObjectPath) -> None:
        self.path = place_of(path)
        self._mutex = threading.Lock()
        self._lock: StoreLock | None = None
        if isinstance(self.path, ObjectPath):
            require_place(self.path)
        else:
            if not self.path.parent.is_dir():
                open_writer(self.path)
            self._lock = StoreLock(self.path)
            self._lock.__enter__()
        try:
            with storing(self.path):
                self._backend = open_writer(self.path)
        except BaseException:
            if self._lock is not None:
                self._lock.release()
            raise
        self._open = True
        self.metadata = self._backend.metadata
        self._written: NDArray[np.bool_] | None = None  # what is committed, read once: none is taken back by others

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
        rows = check_partition(self.metadata, partition, arrays)
        with self._mutex, storing(self.path):
            if self._is_missing(partition):
                crc = self._backend.write(partition, arrays)
                self._record(partition, np.array([rows, crc], np.uint64))

    def commit(self, partition: int, record: Record) -> None:
        """Commit a partition that a `PartitionWriter`, here or on another machine, has written; it gave `record`.

        Raises InvalidValueError for a record that cannot be the partition's, or a committed partition.
        """
        start, stop = self.metadata.layout.span(partition)
        if record.rows != stop - start or not 0 <= record.crc32c < 2**32:
            raise InvalidValueError(f"{record} is none of partition {partition}, which has {stop - start} rows")
        with self._mutex, storing(self.path):
            if self._is_missing(partition):
                if record.staged and isinstance(self.path, Path):
                    place_staged(self.path, self.metadata, partition, record.staged)
                self._record(partition, np.array([record.rows, record.crc32c], np.uint64))

    def _is_missing(self, partition: int) -> bool:
        """Whether a partition is to be committed; in a bucket another writer may have done so meanwhile."""
        self._check_open()
        if self._written is None:
            self._written = committed(self._backend.commits(), self.metadata.layout)
        if self._written[partition] and self._lock is not None:
            raise InvalidValueError(f"partition {partition} is committed already: discard it first")
        return not self._written[partition]

    def _record(self, partition: int, record: NDArray[np.uint64]) -> None:
        assert self._written is not None
        self._backend.commit(partition, record)
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
            if self._open:
                self._open = False
                self._backend.close()
                if self._lock is not None:
                    self._lock.release()

    def _check_open(self) -> None:
        if not self._open:
            raise EmbstoreError(f"the writer of {self.path} is closed")


def committed(records: NDArray[np.uint64], layout: Layout) -> NDArray[np.bool_]:
    """Tell which records [partition, 2] are whole: as many rows as the partition has, and a CRC32C."""
    rows = np.full(layout.n_partitions, layout.partition_rows, np.uint64)
    start, stop = layout.span(layout.n_partitions - 1)
    rows[-1] = stop - start
    whole: NDArray[np.bool_] = (records[:, 0] == rows) & (records[:, 1] < 2**32)
    return whole
