"""Creating stores and filling them: partitions in any order, each committed once it is on disk or in the bucket."""

from __future__ import annotations

import os
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import EmbstoreError, InvalidValueError, MissingRowsError
from embstore.store.arrays import check_center, check_columns, commit_record, committed, frozen_arrays, payload_specs
from embstore.store.backend import create, is_hdf5, open_writer, require_writable, zarr_storage
from embstore.store.check.consistency import index_faults
from embstore.store.index import Index, rows_by_type
from embstore.store.metadata import Metadata, check_metadata
from embstore.store.storage.files import remove, replacing, storing
from embstore.store.storage.location import ObjectPath, exists_already, parse_location
from embstore.store.storage.lock import StoreLock, new_path
from embstore.store.vectors import INT8_FILL
from embstore.store.zarr.format import NODE

MARK_SECONDS = 5.0  # how long a network disk may take to show what another machine has written


def create_store(
    path: str | os.PathLike[str] | ObjectPath,
    *,
    metadata: Metadata,
    index: Index,
    center: NDArray[np.float32] | None = None,
) -> None:
    """Create a store without rows, all or nothing, so that whatever exists at `path` is a complete store.

    `center`: float32 [layer, feature], for int8 only. In a bucket the same call resumes what an interrupted one left.
    Raises InvalidValueError for a path that exists or has another suffix, and for an index that does not fit.
    """
    path = parse_location(path)
    require_writable(path)
    if metadata.virtual and (isinstance(path, ObjectPath) or is_hdf5(path)):
        raise InvalidValueError(f"{path} cannot be virtual: only a .zarr on a disk can")
    if isinstance(path, ObjectPath):
        with frozen_of(path, metadata, index, center) as frozen:
            create(path, metadata, frozen, hdf5=False)
        return
    with StoreLock(path):
        if os.path.lexists(path):
            raise exists_already(path)
        with built(path, metadata=metadata, index=index, center=center):
            pass


@contextmanager
def built(path: Path, *, metadata: Metadata, index: Index, center: NDArray[np.float32] | None) -> Iterator[Path]:
    """Create a store without rows and yield its temporary path; after the block it becomes `path`, durably."""
    with replacing(path, partial=new_path(path)) as new:
        with frozen_of(path, metadata, index, center) as frozen:
            create(new, metadata, frozen, hdf5=is_hdf5(path))
        yield new


@contextmanager
def frozen_of(
    path: Path | ObjectPath, metadata: Metadata, index: Index, center: NDArray[np.float32] | None
) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield the arrays of a store that never change after its creation, by name."""
    check_metadata(metadata)
    check_center(metadata, center)
    check_columns(index.labels)
    if {name: field.kind for name, field in index.fields.items()} != metadata.fields:
        raise InvalidValueError("the fields of the metadata are not those of the index, with their kinds")
    for fault in index_faults(index, metadata.n_rows):
        raise InvalidValueError(f"the index is not consistent: {fault}")
    scratch = path.parent if isinstance(path, Path) else Path(tempfile.gettempdir())  # for what exceeds memory
    with storing(path), rows_by_type(index.type, len(index.words), scratch) as words:
        yield frozen_arrays(metadata, index, words, center)


def remove_store(path: Path | ObjectPath) -> None:
    """Remove a store; what remains after an interruption is not a store, and the next writer there removes it."""
    if isinstance(path, ObjectPath):
        storage = zarr_storage(path)
        storage.delete(NODE)
        for key in storage.sizes():
            storage.delete(key)
    elif os.path.lexists(path):
        with storing(path):
            os.rename(path, new_path(path))
            remove(new_path(path))


@dataclass(frozen=True)
class Record:
    """What PartitionWriter returns and `StoreWriter.commit` takes: the rows of a partition and their CRC32C."""

    n_rows: int
    crc32c: int


class PartitionWriter:
    """Writes partitions of the store at `path` without committing them: what the workers of an executor use.

    Rows are on disk or in the bucket when `write` returns, and count once the process that holds the StoreWriter
    commits the record. Takes no lock and may be used from many threads; any number of processes, on any machine, may
    write at a time. Of two that write one partition of a Zarr store, the first shard is kept, and both return its
    record. A context manager.
    """

    def __init__(self, path: str | os.PathLike[str] | ObjectPath) -> None:
        self.path = parse_location(path)
        with storing(self.path):
            self._backend = open_writer(self.path)
        self.metadata = self._backend.metadata

    def __enter__(self) -> PartitionWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self._backend.close()

    def write(self, partition: int, arrays: Mapping[str, NDArray[Any]]) -> Record:
        """Write a partition, durably, and return its record for `StoreWriter.commit`."""
        n_rows = check_partition(self.metadata, partition, arrays)
        with storing(self.path):
            return Record(n_rows, self._backend.write(partition, arrays))


def place_mark(path: Path | ObjectPath) -> str:
    """Write a new secret into the lock file of a store, whose lock is held; "" for a bucket, which all see."""
    if isinstance(path, ObjectPath):
        return ""
    mark = uuid.uuid4().hex
    with storing(path):
        StoreLock(path).file.write_text(mark)
    return mark


def sees_mark(path: Path | ObjectPath, mark: str) -> bool:
    """Return whether `path` is, on this machine, the store for which `place_mark` made the mark."""
    deadline = time.monotonic() + MARK_SECONDS
    while isinstance(path, Path):
        with suppress(OSError):
            if StoreLock(path).file.read_text() == mark:
                return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


class StoreWriter:
    """Writes and commits the partitions of a store; a context manager. The one process that commits.

    Raises StoreBusyError where another process holds the lock of a store on a disk. A bucket has no lock: let only
    one process commit. What an interrupted writer left is removed; in a bucket a shard stays until its partition is
    written again.
    """

    def __init__(self, path: str | os.PathLike[str] | ObjectPath) -> None:
        self.path = parse_location(path)
        self._mutex = threading.Lock()
        self._lock: StoreLock | None = None
        if isinstance(self.path, ObjectPath):
            require_writable(self.path)
        else:
            if not os.path.isdir(self.path.parent):
                open_writer(self.path)  # raises
            self._lock = StoreLock(self.path)
            self._lock.__enter__()
        try:
            with storing(self.path):
                self._backend = open_writer(self.path)
                self._backend.recover()
                self.metadata = self._backend.metadata
                self._committed = committed(self._backend.commits(), self.metadata.layout)
        except BaseException:
            if self._lock is not None:
                self._lock.release()
            raise
        self._is_open = True

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        with nullcontext() if error is None else suppress(EmbstoreError):  # the first error says more
            self.close()

    def missing(self) -> list[int]:
        """Return the partitions that are not committed, ascending."""
        with self._mutex:
            return np.flatnonzero(~self._committed).tolist()

    def write(self, partition: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write a partition and commit it; both are durable when this returns. May be called from any thread.

        In a bucket the record follows within seconds. `arrays`: "hidden_states", or the
        site of the partition, [layer, n, feature] in the storage dtype (bfloat16 as its uint16 bits), n the rows of the
        partition; for int8 also "scale" float32 [layer, n]. Raises InvalidValueError for other arrays or a committed
        partition, StorageError where the disk is full: then nothing is committed.
        """
        n_rows = check_partition(self.metadata, partition, arrays)
        with self._mutex:
            self._require_missing(partition)
        with storing(self.path):
            record = Record(n_rows, self._backend.write(partition, arrays))
        self.commit(partition, record)

    def commit(self, partition: int, record: Record) -> None:
        """Commit a partition that a PartitionWriter, here or on another machine, has written."""
        start, stop = self.metadata.layout.span(partition)
        if record.n_rows != stop - start or not 0 <= record.crc32c < 2**32:
            raise InvalidValueError(
                f"invalid record of partition {partition}: it has {record.n_rows} rows, expected {stop - start}"
            )
        with self._mutex, storing(self.path):
            self._require_missing(partition)
            self._commit(partition, record)

    def discard(self, partitions: Iterable[int]) -> None:
        """Remove partitions, so that they are written again."""
        numbers = list(partitions)
        with self._mutex, storing(self.path):
            self._require_open()
            self._committed[numbers] = False
            self._backend.discard(numbers)

    def finish(self) -> None:
        """Finish the store, remove what is temporary and release the lock. The writer is closed."""
        missing = self.missing()
        if missing:
            raise MissingRowsError(f"{self.path} has {len(missing)} uncommitted partitions, the first is {missing[0]}")
        with self._mutex, storing(self.path):
            self._require_open()
            self._backend.finish()
        self.close()

    def close(self) -> None:
        """Write what is only in memory and release the lock; a second call does nothing."""
        with self._mutex:
            if self._is_open:
                self._is_open = False
                try:
                    with storing(self.path):
                        self._backend.flush()
                finally:
                    with storing(self.path):
                        self._backend.close()
                        if self._lock is not None:
                            self._lock.release()

    def _commit(self, partition: int, record: Record) -> None:
        self._backend.commit(partition, commit_record(record.n_rows, record.crc32c))
        self._committed[partition] = True

    def _require_missing(self, partition: int) -> None:
        self._require_open()
        if self._committed[partition]:
            raise InvalidValueError(f"partition {partition} is committed already: discard it first")

    def _require_open(self) -> None:
        if not self._is_open:
            raise EmbstoreError(f"the writer of {self.path} is closed")


def check_partition(metadata: Metadata, partition: int, arrays: Mapping[str, NDArray[Any]]) -> int:
    """Return the number of rows of a partition; raise InvalidValueError where the arrays are not its own."""
    if not 0 <= partition < metadata.n_partitions:
        raise InvalidValueError(f"there is no partition {partition}: the store has {metadata.n_partitions}")
    start, stop = metadata.layout.span(partition)
    specs = {spec.path: spec for spec in payload_specs(metadata, partition)}
    if set(arrays) != set(specs):
        raise InvalidValueError(f"a partition holds {sorted(specs)}, not {sorted(arrays)}")
    for name, spec in specs.items():
        shape = (spec.shape[0], stop - start, *spec.shape[2:])
        if arrays[name].shape != shape or arrays[name].dtype != spec.dtype:
            raise InvalidValueError(
                f"{name} of partition {partition} must be {spec.dtype} {shape}, "
                f"not {arrays[name].dtype} {arrays[name].shape}"
            )
    if metadata.dtype == "int8" and (arrays["hidden_states"] == INT8_FILL).any():
        raise InvalidValueError(f"the int8 code {INT8_FILL} means not written and cannot be stored")
    return stop - start
