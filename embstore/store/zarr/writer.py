"""Writing a Zarr store on any storage: its columns and metadata, its shards, and the commit records in place."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidValueError, StorageError
from embstore.store.arrays import (
    COMMIT_DTYPE,
    COMMITS,
    Records,
    committed,
    frozen_spec,
    no_records,
    payload_specs,
    stored_arrays,
)
from embstore.store.metadata import Metadata
from embstore.store.storage.base import Parts, Storage
from embstore.store.storage.files import crc32c, write_file
from embstore.store.storage.location import exists_already
from embstore.store.virtual.fingerprints import fingerprints
from embstore.store.virtual.recomputed import crc_of, fingerprint_bytes, virtual_chunks
from embstore.store.zarr.format import (
    COMMITS_CHUNK,
    NODE,
    all_nodes,
    column_key,
    column_parts,
    shard_key,
    shard_parts,
    shard_shape,
)
from embstore.store.zarr.reader import ZarrReader, read_records

COMMIT_SECONDS = 5.0  # a bucket's commits object is rewritten at most this often


def static_objects(metadata: Metadata, frozen: Mapping[str, NDArray[Any]]) -> dict[str, Parts]:
    """Return everything in a store that never changes, by key, the root's zarr.json last."""
    objects: dict[str, Parts] = {}
    for name, array in frozen.items():
        spec = frozen_spec(name, frozen)
        if array.size:
            objects[column_key(spec)] = column_parts(spec, array)
    for key, node in all_nodes(metadata, stored_arrays(frozen)).items():
        objects[key] = [node]
    return objects


def create_local(path: Path, metadata: Metadata, frozen: Mapping[str, NDArray[Any]]) -> None:
    """Create a store without rows in the new folder `path`, which is not durable yet."""
    objects = static_objects(metadata, frozen)
    objects |= {COMMITS_CHUNK: [no_records(metadata.n_partitions)], **virtual_chunks(metadata)}
    for key, parts in objects.items():
        (path / key).parent.mkdir(parents=True, exist_ok=True)
        write_file(path / key, parts)


def create_remote(storage: Storage, metadata: Metadata, frozen: Mapping[str, NDArray[Any]]) -> None:
    """Create a store without rows, the root last, so that there is a store only when it is complete."""
    if storage.size(NODE) is not None:
        raise exists_already(storage.path)
    objects = static_objects(metadata, frozen)
    root = objects.pop(NODE)
    first = f"{COMMITS}/{NODE}"
    _create(storage, first, objects.pop(first))
    if storage.put_new(first, [b"a second object of this name"]):
        raise StorageError(
            f"cannot write {storage.path}: its server overwrites objects that should only be created (it does not "
            "know If-None-Match); write the store to a disk and copy it from there"
        )
    objects[COMMITS_CHUNK] = [no_records(metadata.n_partitions)]
    for key, parts in objects.items():
        _create(storage, key, parts)
    if not storage.put_new(NODE, root) and not storage.holds(NODE, root):
        raise exists_already(storage.path)


def _create(storage: Storage, key: str, parts: Parts) -> None:
    if not storage.put_new(key, parts) and not storage.holds(key, parts):
        if storage.size(NODE) is not None:
            raise exists_already(storage.path)
        raise InvalidValueError(
            f"{storage.url(key)} belongs to another store whose creation was interrupted: remove what is below "
            f"{storage.path}, or choose another address"
        )


class ZarrWriter:
    """The parts of a Zarr store that change: shards and commit records.

    Any number of processes may call `write`; `recover` and the methods below it are for the one process that commits.
    On a disk each record is written in place at once. A bucket's object is rewritten every few seconds and by `flush`.
    """

    def __init__(self, storage: Storage, metadata: Metadata | None = None) -> None:
        if metadata is None:
            metadata = ZarrReader(storage).metadata
        self.metadata = metadata
        self._storage = storage
        self._is_changed = False  # whether some records are only in memory
        self._flushed = time.monotonic()

    def write(self, partition: int, arrays: Mapping[str, NDArray[Any]]) -> int:
        """Create the shards of a partition, durably, and return the CRC32C of their bytes, one after the other.

        A shard is created once. One that exists, from an earlier run or another worker, is checked and kept, and the
        CRC32C is that of its bytes; one that cannot be a shard of this partition is replaced.
        """
        specs, crc = payload_specs(self.metadata, partition), 0
        if self.metadata.virtual:  # of the shards that it does not have
            self.thin(partition, arrays)
            return crc_of([shard_parts(spec, arrays[spec.path]) for spec in specs])
        for spec in specs:
            parts = shard_parts(spec, arrays[spec.path])
            key = shard_key(spec, partition)
            shape = shard_shape(spec, arrays[spec.path].shape[1])
            if not self._storage.put_new(key, parts):
                if shape.fault(self._storage, key) is None:
                    crc = self._storage.crc32c(key, shape.nbytes, crc)
                    continue
                self._storage.delete(key)  # a folder may be in its place
                self._storage.put(key, parts)
            for part in parts:
                crc = crc32c(part, crc)
        return crc

    def thin(self, partition: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Store the fingerprints of a partition, then remove its shards."""
        specs = payload_specs(self.metadata, partition)
        start, _, key = fingerprint_bytes(self.metadata, partition)
        self._storage.write_at(key, fingerprints(specs[0], arrays).tobytes(), start)
        self.remove_shards([partition])

    def is_intact(self, partition: int, crc: int) -> bool:
        """Return whether a committed partition has the shards that it must have; `crc`: of them."""
        stored, (start, stop) = 0, self.metadata.layout.span(partition)
        for spec in payload_specs(self.metadata, partition):
            key, shape = shard_key(spec, partition), shard_shape(spec, stop - start)
            if shape.fault(self._storage, key):
                return self.metadata.virtual and self._storage.size(key) != shape.nbytes  # it is computed again
            stored = self._storage.crc32c(key, shape.nbytes, stored)
        return stored == crc

    def recover(self) -> None:
        """Begin committing: remove what interrupted writes left; in a bucket, shards without a record are kept.

        They are checked and committed when their partition is written again.
        """
        self._storage.finish()
        if self._storage.is_in_place:
            self.remove_shards(np.flatnonzero(~committed(self._records, self.metadata.layout)).tolist())

    @cached_property
    def _records(self) -> Records:
        return read_records(self._storage, self.metadata.n_partitions)

    def commits(self) -> Records:
        """Return the commit records [partition, 2], with those not yet written to a bucket."""
        return self._records.copy()

    def commit(self, partition: int, record: Records) -> None:
        """Record that a partition is written."""
        self._set([partition], record)

    def discard(self, partitions: Iterable[int]) -> None:
        """Remove partitions: first their records, durably, then their shards."""
        numbers = list(partitions)
        self._set(numbers, no_records(1)[0])
        self.flush()
        self.remove_shards(numbers)

    def _set(self, partitions: list[int], record: Records) -> None:
        """Set the records of partitions, durably on a disk."""
        self._records[partitions] = record
        if self._storage.is_in_place and self._storage.size(COMMITS_CHUNK) == self._records.nbytes:
            for number in partitions:
                self._storage.write_at(COMMITS_CHUNK, record.astype(COMMIT_DTYPE).tobytes(), number * record.nbytes)
            return
        self._is_changed = True
        if self._storage.is_in_place or time.monotonic() - self._flushed > COMMIT_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the records that are only in memory."""
        if self._is_changed:
            self._storage.put(COMMITS_CHUNK, [self._records.astype(COMMIT_DTYPE)])
            self._is_changed, self._flushed = False, time.monotonic()

    def finish(self) -> None:
        """End writing: write all records, and remove what is temporary."""
        self.flush()
        self._storage.finish()

    def close(self) -> None:
        """Nothing is held open."""

    def remove_shards(self, partitions: Iterable[int]) -> None:
        """Remove the shards of partitions, whatever their records say."""
        for partition in partitions:
            for spec in payload_specs(self.metadata, partition):
                key = shard_key(spec, partition)
                if not self._storage.is_in_place or self._storage.size(key) is not None:
                    self._storage.delete(key)
