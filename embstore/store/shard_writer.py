"""Writing partitions without the store's lock: workers write, and who holds the lock commits what they report."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embstore.errors import StorageError
from embstore.store.arrays import payload_specs
from embstore.store.backend import standing_kind
from embstore.store.files import fsync_folder, storing, write_file
from embstore.store.lock import StoreLock
from embstore.store.metadata import Metadata
from embstore.store.object_path import ObjectPath, place_of
from embstore.store.partition_check import check_partition
from embstore.store.zarr_format import TEMPORARY, shard_file
from embstore.store.zarr_reader import ZarrReader
from embstore.store.zarr_writer import shard_pieces

MARK_SECONDS = 5.0  # how long a network disk may take to show what another machine has written


class Shards(Protocol):
    """What writes the shards of partitions; see ZarrShards, HDF5Writer and ObjectShards."""

    metadata: Metadata

    def write(self, partition: int, arrays: Mapping[str, NDArray[Any]]) -> int: ...


def open_shard_writer(path: str | os.PathLike[str] | ObjectPath) -> Shards:
    """Open a laid-out store to write shards: nothing is locked, tidied or committed; any number at a time may."""
    place = place_of(path)
    if isinstance(place, ObjectPath):
        from embstore.store.object_shards import ObjectShards

        return ObjectShards(place)
    if standing_kind(place) == "folder":
        return ZarrShards(place)
    from embstore.store.hdf5_writer import HDF5Writer

    return HDF5Writer(place)


class ZarrShards:
    """Writes shards into a Zarr store on a disk, each under a temporary name of its own and then renamed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata = ZarrReader(path).metadata
        self._specs = payload_specs(self.metadata)

    def write(self, partition: int, arrays: Mapping[str, NDArray[Any]]) -> int:
        """Write the shards of a partition, lasting, and return the CRC32C of their bytes, one after the other."""
        crc = 0
        for spec in self._specs:
            name = shard_file(spec, partition)
            temporary = self.path / TEMPORARY / f"{name.replace('/', '_')}.{uuid.uuid4().hex}"
            temporary.parent.mkdir(exist_ok=True)
            crc = write_file(temporary, shard_pieces(spec, arrays[spec.path]), crc=crc)
            self._rename(temporary, self.path / name)
        return crc

    def _rename(self, temporary: Path, target: Path) -> None:
        try:
            new = _make_folders(self.path, target.parent)
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        for folder in (target.parent, *(made.parent for made in new)):
            fsync_folder(folder)


def _make_folders(root: Path, folder: Path) -> list[Path]:
    """Make a folder below `root`, which is not made; returns those that were not there."""
    if folder == root or folder.is_dir():
        return []
    new = _make_folders(root, folder.parent)
    folder.mkdir(exist_ok=True)
    return [*new, folder]


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
    """Writes partitions of the store at `path` and returns their commit records; it may be used from many threads."""

    def __init__(self, path: str | os.PathLike[str] | ObjectPath) -> None:
        self.path = place_of(path)
        with storing(self.path):
            self._shards = open_shard_writer(self.path)
        self.metadata = self._shards.metadata

    def write(self, partition: int, arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.uint64]:
        """Write a partition, lasting, and return its record (rows, CRC32C), which is yet to be committed.

        `arrays` as of `StoreWriter.write`. Raises InvalidValueError for other arrays, StorageError where the disk is
        full.
        """
        rows = check_partition(self.metadata, partition, arrays)
        with storing(self.path):
            return np.array([rows, self._shards.write(partition, arrays)], np.uint64)
