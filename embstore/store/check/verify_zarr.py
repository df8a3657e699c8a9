"""Verifying a Zarr store on any storage: every key is regenerated and compared, or checked by its CRC32C."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import EmbstoreError, StoreDamagedError, StoreFormatError
from embstore.store.arrays import (
    COMMIT_DTYPE,
    ArraySpec,
    Records,
    committed,
    frozen_spec,
    no_records,
    payload_specs,
    record_crc32c,
)
from embstore.store.check.common import check_attribute, check_index, check_records
from embstore.store.check.report import Findings
from embstore.store.layout import Layout
from embstore.store.metadata import Metadata, StoredArray, parse
from embstore.store.storage.base import KeyNotFoundError, Storage
from embstore.store.storage.files import crc32c
from embstore.store.zarr.format import COMMITS_CHUNK, INDEXES, NODE, TEMPORARY, all_nodes, column_key, shard_key
from embstore.store.zarr.reader import root_attribute
from embstore.store.zarr.shards import column_end, shard_end


def verify_zarr(storage: Storage, findings: Findings) -> int:
    """Verify a Zarr store; returns the number of its partitions, 0 where that cannot be known."""
    sizes = key_sizes(storage)
    findings.total_nbytes = sum(sizes.values())
    checks = _Checks(storage, sizes, findings)
    root = checks.get(NODE)
    attribute = None
    with suppress(StoreDamagedError, StoreFormatError):  # reported below
        attribute = root_attribute(root, storage)
    parsed = check_attribute(attribute, storage.path, findings)
    if parsed is None:
        return 0
    metadata, arrays = parsed
    for key, node in all_nodes(metadata, arrays).items():
        found = root if key == NODE else checks.get(key)
        if found is not None and found != node:
            findings.fault(key, "was changed")
    columns = {name: checks.column(frozen_spec(name, array.shape), array.crc32c) for name, array in arrays.items()}
    complete = {name: column for name, column in columns.items() if column is not None}
    if len(complete) == len(arrays):
        check_index(complete, metadata, findings)
    checks.partitions(payload_specs(metadata), metadata.layout, checks.records(metadata.layout))
    for key in sorted(set(sizes) - expected_keys(metadata, arrays)):
        if not key.startswith(f"{TEMPORARY}/"):  # what a killed writer left is not a fault
            findings.fault(key, "does not belong to the store")
    return metadata.layout.n_partitions


def key_sizes(storage: Storage) -> dict[str, int]:
    """Return the size of every key of a store but those of search indexes, which have checksums of their own.

    Where the server does not list its files, they are those that the metadata name and that exist.
    """
    if storage.can_list:
        return {key: size for key, size in storage.sizes().items() if not key.startswith(f"{INDEXES}/")}
    try:
        keys = sorted(expected_keys(*parse(root_attribute(storage.get(NODE), storage), path=str(storage.path))))
    except (StoreDamagedError, StoreFormatError):
        keys = [NODE]
    futures = [storage.submit(lambda key=key: storage.size(key)) for key in keys]  # type: ignore[misc]
    found = {key: future.result() for key, future in zip(keys, futures, strict=True)}
    return {key: size for key, size in found.items() if size is not None}


def expected_keys(metadata: Metadata, arrays: dict[str, StoredArray]) -> set[str]:
    """Return the keys of a finished store."""
    keys = set(all_nodes(metadata, arrays)) | {COMMITS_CHUNK}
    keys |= {column_key(frozen_spec(name, array.shape)) for name, array in arrays.items() if 0 not in array.shape}
    partitions = range(metadata.layout.n_partitions)
    return keys | {shard_key(spec, partition) for spec in payload_specs(metadata) for partition in partitions}


class _Checks:
    """The checks of one store; `sizes` are the keys that exist."""

    def __init__(self, storage: Storage, sizes: dict[str, int], findings: Findings) -> None:
        self._storage = storage
        self._sizes = sizes
        self._findings = findings

    def get(self, key: str) -> bytes | None:
        """Return a small object, None with a fault where it cannot be read."""
        data: bytes | None = self._reading(key, lambda: self._storage.get(key))
        if data is not None:
            self._findings.checked(len(data))
        return data

    def _reading(self, key: str, read: Callable[[], Any], partition: int | None = None) -> Any:
        """Return what `read` returns; None with a fault where the key is missing, damaged or cannot be read."""
        what = "is missing"
        if key in self._sizes:
            try:
                return read()
            except (KeyNotFoundError, StoreDamagedError) as error:
                what = str(error) if isinstance(error, StoreDamagedError) else what
            except EmbstoreError as error:
                if not isinstance(error.__cause__, OSError):
                    raise  # a server that does not answer says nothing about the store
                what = f"cannot be read: {error.__cause__.strerror}"
        self._findings.fault(key, what, partition=partition)
        return None

    def column(self, spec: ArraySpec, expected: int) -> NDArray[Any] | None:
        """Check an array that is written once and return it, None where it is damaged."""
        if 0 in spec.shape:
            return np.empty(spec.shape, spec.dtype)
        key, end = column_key(spec), column_end(spec)
        nbytes = int(np.prod(spec.shape)) * spec.dtype.itemsize
        size = self._sizes.get(key, nbytes + len(end))
        if size != nbytes + len(end):
            self._findings.fault(key, f"has {size} bytes, not {nbytes + len(end)}")
            return None
        data = self._reading(key, lambda: self._storage.read(key, size))
        if data is None:
            return None
        self._findings.checked(size)
        if crc32c(data[:nbytes]) != expected or data[nbytes:].tobytes() != end:
            self._findings.fault(key, "was changed: its checksum differs")
            return None
        column: NDArray[Any] = data[:nbytes].view(spec.dtype).reshape(spec.shape)
        return column

    def records(self, layout: Layout) -> Records:
        """Check and return the commit records [partition, 2]."""
        records = no_records(layout.n_partitions)
        data = self.get(COMMITS_CHUNK) if COMMITS_CHUNK in self._sizes else None
        if data is None or len(data) != records.nbytes:
            for partition in range(layout.n_partitions):
                self._findings.fault(COMMITS_CHUNK, "is missing or cut short", partition=partition)
            return records
        records = np.frombuffer(data, COMMIT_DTYPE).reshape(-1, 2)
        check_records(records, layout, COMMITS_CHUNK, self._findings)
        return records

    def partitions(self, specs: list[ArraySpec], layout: Layout, records: Records) -> None:
        """Check the shards of every committed partition: size and index by the layout, bytes by the commit record."""
        for partition in np.flatnonzero(committed(records, layout)).tolist():
            start, stop = layout.span(partition)
            faults = list(self._shard_faults(specs, partition, stop - start))
            crc: int | None = 0
            for spec in [] if any(what == "is missing" for _, what in faults) else specs:
                key = shard_key(spec, partition)
                size, before = self._sizes[key], crc
                crc = self._reading(key, lambda: self._storage.crc32c(key, size, before or 0), partition)  # noqa: B023
                if crc is None:
                    break
                self._findings.checked(size)
            if crc is not None and not faults and crc != record_crc32c(records[partition]):
                faults = [(shard_key(specs[0], partition), "its bytes do not match the commit record")]
            for key, what in faults:
                self._findings.fault(key, what, partition=partition)

    def _shard_faults(self, specs: list[ArraySpec], partition: int, n_rows: int) -> Iterator[tuple[str, str]]:
        """Compare the size and the index of a partition's shards with what the layout requires."""
        for spec in specs:
            key = shard_key(spec, partition)
            nbytes, end = shard_end(spec, n_rows)
            if key not in self._sizes:
                yield key, "is missing"
            elif self._sizes[key] != nbytes:
                yield key, f"has {self._sizes[key]} bytes, not {nbytes}"
            else:
                found = self._reading(key, lambda: self._storage.get_range(key, nbytes - len(end), nbytes), partition)  # noqa: B023
                if found is not None and found.tobytes() != end:
                    yield key, "its index was changed"
