"""Writing partitions without the store's lock: workers write, and who holds the lock commits what they report.

On a disk a worker's shards get names of their own, and the commit renames them: so nothing that a worker writes when
it is thought lost, or after the coordinator has ended, can come in the place of what is committed.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from embstore.errors import StorageError
from embstore.store.arrays import ArraySpec, payload_specs
from embstore.store.backend import standing_kind
from embstore.store.check.partition_check import check_partition
from embstore.store.metadata import Metadata
from embstore.store.storage.files import fsync_folder, storing, write_file
from embstore.store.storage.location import ObjectPath, place_of
from embstore.store.storage.lock import StoreLock
from embstore.store.zarr.format import TEMPORARY, shard_file
from embstore.store.zarr.reader import ZarrReader
from embstore.store.zarr.writer import make_folders, shard_pieces

MARK_SECONDS = 5.0  # how long a network disk may take to show what another machine has written


@dataclass(frozen=True)
class Record:
    """What a worker has written of a partition; `staged`: where on a disk its shards wait for the commit."""

    rows: int
    crc32c: int
    staged: str = ""


class Shards(Protocol):
    """What writes the shards of partitions in their place; see HDF5Writer and ObjectShards."""

    metadata: Metadata

    def write(self, partition: int, arrays: Mapping[str, NDArray[Any]]) -> int: ...


class StagedShards:
    """Writes shards of a Zarr store on a disk under names of their own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata = ZarrReader(path).metadata
        self._specs = payload_specs(self.metadata)

    def write(self, partition: int, arrays: Mapping[str, NDArray[Any]], staged: str) -> int:
        """Write the shards of a partition, lasting, and return the CRC32C of their bytes, one after the other."""
        crc = 0
        (self.path / TEMPORARY).mkdir(exist_ok=True)
        for spec in self._specs:
            crc = write_file(
                _staged_file(self.path, spec, partition, staged), shard_pieces(spec, arrays[spec.path]), crc=crc
            )
        return crc


def place_staged(path: Path, metadata: Metadata, partition: int, staged: str) -> None:
    """Give the staged shards of a partition the names that they have in the store, lasting."""
    for spec in payload_specs(metadata):
        target = path / shard_file(spec, partition)
        make_folders(path, target.parent)
        os.replace(_staged_file(path, spec, partition, staged), target)
        fsync_folder(target.parent)


def _staged_file(path: Path, spec: ArraySpec, partition: int, staged: str) -> Path:
    return path / TEMPORARY / f"{shard_file(spec, partition).replace('/', '_')}.{staged}"


def place_mark(path: Path | ObjectPath) -> str:
    """Write a new secret into the lock file of a store, whose lock is held; "" in a bucket, which has but one place."""
    if isinstance(path, ObjectPath):
        return ""
    mark = uuid.uuid4().hex
    with storing(path):
        StoreLock(path).file.write_text(mark)
    return mark


def sees_mark(path: Path | ObjectPath, mark: str) -> bool:
    """Tell whether what stands at `path` here is the store that the mark was made for, and not one of its name."""
    if isinstance(path, ObjectPath):
        return True
    patience = time.monotonic() + MARK_SECONDS
    while True:
        try:
            if StoreLock(path).file.read_text() == mark:
                return True
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise StorageError(f"cannot read {StoreLock(path).file}: {error.strerror}") from error
        if time.monotonic() > patience:
            return False
        time.sleep(0.2)


class PartitionWriter:
    """Writes partitions of the store at `path` and returns their commit records; it may be used from many threads.

    Nothing is locked, tidied or committed, and any number of writers may write at a time.
    """

    def __init__(self, path: str | os.PathLike[str] | ObjectPath) -> None:
        self.path = place_of(path)
        self._shards: Shards | None = None
        self._staged: StagedShards | None = None
        with storing(self.path):
            if isinstance(self.path, ObjectPath):
                from embstore.store.zarr.object_shards import ObjectShards

                self._shards = ObjectShards(self.path)
            elif standing_kind(self.path) == "folder":
                self._staged = StagedShards(self.path)
            else:
                from embstore.store.hdf5.writer import HDF5Writer

                self._shards = HDF5Writer(self.path)
        shards = self._shards or self._staged
        assert shards is not None
        self.metadata = shards.metadata

    def write(self, partition: int, arrays: Mapping[str, NDArray[Any]]) -> Record:
        """Write a partition, lasting, and return its record, which `StoreWriter.commit` takes.

        `arrays` as of `StoreWriter.write`. Raises InvalidValueError for other arrays, StorageError where the disk is
        full.
        """
        rows = check_partition(self.metadata, partition, arrays)
        with storing(self.path):
            if self._shards is not None:
                return Record(rows, self._shards.write(partition, arrays))
            assert self._staged is not None
            staged = uuid.uuid4().hex
            return Record(rows, self._staged.write(partition, arrays, staged), staged)
