"""Verifying that a store is still, byte for byte, what was written.

A Zarr store is checked here, on any storage: every key is regenerated and compared, or checked by its CRC32C.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.config import settings
from embstore.errors import EmbstoreError, StoreDamagedError, StoreFormatError, StoreNotFoundError
from embstore.progress import reporting
from embstore.store.arrays import (
    COMMIT_DTYPE,
    FINGERPRINTS,
    ArraySpec,
    Records,
    frozen_specs,
    no_records,
    payload_specs,
    record_crc32c,
    virtual_specs,
)
from embstore.store.backend import Reader, is_file, no_store, open_reader, zarr_storage
from embstore.store.check.findings import Checks, Fault, VerifyReport
from embstore.store.labels.files import LabelFiles
from embstore.store.metadata import Metadata, StoredArray, parse
from embstore.store.opening import Location, members_at
from embstore.store.storage.base import KeyNotFoundError, Storage
from embstore.store.storage.files import Bytes, MappedFile, crc32c, new_column
from embstore.store.storage.location import ObjectPath, parse_location
from embstore.store.zarr.format import (
    APPENDED,
    COMMITS_CHUNK,
    INDEXES,
    LABELS,
    NODE,
    TEMPORARY,
    all_nodes,
    column_end,
    column_key,
    shard_key,
    shard_shape,
)
from embstore.store.zarr.reader import root_attribute


def verify(path: Location | Sequence[Location]) -> VerifyReport:
    """Read every byte of a store and compare it with its checksums; damage is reported, never raised.

    Parameters
    ----------
    path : path, URL or sequence of them
        As of `embstore.open`; several stores are verified one after the other, and their partitions numbered on.

    Returns
    -------
    VerifyReport
        Its `ok` says whether nothing is damaged, its `faults` what is.

    Raises
    ------
    StoreNotFoundError
        Where nothing exists.
    StorageError
        Where the server of a URL does not answer.

    Examples
    --------
    >>> assert es.verify("demo.zarr").ok
    """
    paths = members_at(path)
    name = parse_location(path) if isinstance(path, str | os.PathLike | ObjectPath) else paths[0]
    if paths == [name]:
        return verify_one(name)
    faults: list[Fault] = []
    missing: list[int] = []
    n_partitions, nbytes = 0, 0
    for member in paths:
        report = verify_one(member)
        for fault in report.faults:
            number = None if fault.partition is None else n_partitions + fault.partition
            faults.append(Fault(f"{member}/{fault.part}", number, fault.what))
        missing += [n_partitions + number for number in report.missing]
        n_partitions, nbytes = n_partitions + report.n_partitions, nbytes + report.checked_nbytes
    return VerifyReport(name, tuple(faults), tuple(missing), n_partitions, nbytes)


def verify_one(path: Path | ObjectPath) -> VerifyReport:
    """Verify one store, without what was appended to it; see `verify`."""
    with reporting(settings().progress, unit="bytes", label="verify") as report:
        checks = ZarrChecks(path, report)
        try:
            if isinstance(path, Path) and is_file(path):
                from embstore.store.check.verify_hdf5 import verify_hdf5

                verify_hdf5(path, checks)
            else:
                checks.run()
            for part, what, nbytes in LabelFiles(open_reader(path)).faults() if not checks.faults else ():
                checks.checked(nbytes)
                if what:
                    checks.fault(part, what)
        except StoreNotFoundError:
            raise
        except (EmbstoreError, OSError) as error:
            if isinstance(path, ObjectPath) and not isinstance(error, StoreDamagedError):
                raise
            checks.fault("store", str(error))
            checks.n_partitions = 0
    return checks.verify_report()


def key_sizes(storage: Storage) -> dict[str, int]:
    """Return the size of every key of a store but those of search indexes and appended stores, which are checked apart.

    Where the server does not list its files, they are those that the metadata name and that exist.
    """
    if storage.can_list:
        others = tuple(f"{folder}/" for folder in (INDEXES, LABELS, APPENDED))
        return {key: size for key, size in storage.sizes().items() if not key.startswith(others)}
    try:
        keys = sorted(expected_keys(*parse(root_attribute(storage.get(NODE), storage), path=str(storage.path))))
    except (StoreDamagedError, StoreFormatError):
        keys = [NODE]
    futures = [storage.submit(lambda key=key: storage.size(key)) for key in keys]  # type: ignore[misc]
    sizes = {key: future.result() for key, future in zip(keys, futures, strict=True)}
    return {key: size for key, size in sizes.items() if size is not None}


def expected_keys(metadata: Metadata, arrays: dict[str, StoredArray]) -> set[str]:
    """Return the keys of a finished store."""
    keys = set(all_nodes(metadata, arrays)) | {COMMITS_CHUNK}
    keys |= {column_key(spec) for spec in frozen_specs(arrays) if 0 not in spec.shape}
    partitions = range(metadata.layout.n_partitions)
    keys |= {column_key(spec) for spec in virtual_specs(metadata)}
    return keys | {shard_key(spec, partition) for spec in payload_specs(metadata) for partition in partitions}


class ZarrChecks(Checks):
    """The checks of one Zarr store."""

    storage: Storage
    sizes: dict[str, int]  # of the keys that exist

    def run(self) -> None:
        storage = self.storage = zarr_storage(self.path)
        if isinstance(self.path, ObjectPath) and storage.get_or_none(NODE) is None:
            raise no_store(self.path)
        sizes = self.sizes = key_sizes(storage)
        self.total_nbytes = sum(sizes.values())
        root, attribute = self.get(NODE), None
        with suppress(StoreDamagedError, StoreFormatError):  # reported below
            attribute = root_attribute(root, storage)
        parsed = self.attribute(attribute)
        if parsed is None:
            return
        metadata, arrays = parsed
        reader = open_reader(self.path) if metadata.virtual else None
        for key, node in all_nodes(metadata, arrays).items():
            stored = root if key == NODE else self.get(key)
            if stored not in (None, node):
                self.fault(key, "was changed")
        columns = {spec.path: self.column(spec, arrays[spec.path].crc32c) for spec in frozen_specs(arrays)}
        self.index(columns, metadata)
        records = self.read_records(metadata)
        for partition in self.records(records, metadata.layout, COMMITS_CHUNK) if len(records) else ():
            if reader is not None:
                self.virtual(reader, partition, records[partition])
            else:
                self.partition(metadata, partition, records[partition])
        begun = (f"{TEMPORARY}/", f"{FINGERPRINTS}/")
        for key in sorted(set(sizes) - expected_keys(metadata, arrays)):
            if not key.startswith(begun):  # what a killed writer left is not a fault
                self.fault(key, "does not belong to the store")

    def get(self, key: str) -> bytes | None:
        """Return a small object, None with a fault where it cannot be read."""
        data: bytes | None = self.read(key, self.storage.get, key)
        if data is not None:
            self.checked(len(data))
        return data

    def read(self, key: str, read: Callable[..., Any], *arguments: Any, partition: int | None = None) -> Any:
        """Return what `read` returns; None with a fault where the key is missing, damaged or cannot be read."""
        what = "is missing"
        if key in self.sizes:
            try:
                return read(*arguments)
            except (KeyNotFoundError, StoreDamagedError) as error:
                what = str(error) if isinstance(error, StoreDamagedError) else what
            except EmbstoreError as error:
                if not isinstance(error.__cause__, OSError):
                    raise  # a server that does not answer says nothing about the store
                what = f"cannot be read: {error.__cause__.strerror}"
        self.fault(key, what, partition=partition)
        return None

    def has_size(self, key: str, nbytes: int, partition: int | None = None) -> bool:
        """Report a key of another size; one that is missing is reported where it is read."""
        size = self.sizes.get(key, nbytes)
        if size != nbytes:
            self.fault(key, f"has {size} bytes, not {nbytes}", partition=partition)
        return size == nbytes

    def column(self, spec: ArraySpec, expected: int) -> NDArray[Any] | None:
        """Check an array that is written once and return it, None where it is damaged."""
        if 0 in spec.shape:
            return np.empty(spec.shape, spec.dtype)
        key, end = column_key(spec), column_end(spec)
        nbytes = int(np.prod(spec.shape)) * spec.dtype.itemsize
        size = nbytes + len(end)
        whole = None
        if self.has_size(key, size):
            whole = self.read(key, _mapped_column if self.storage.is_in_place else _spooled, self.storage, key, size)
        if whole is None:
            return None
        data, crc = whole
        self.checked(size)
        if crc != crc32c(end, expected) or data[nbytes:].tobytes() != end:
            self.fault(key, "was changed: its checksum differs")
            return None
        column: NDArray[Any] = data[:nbytes].view(spec.dtype).reshape(spec.shape)
        return column

    def read_records(self, metadata: Metadata) -> Records:
        """Return the commit records [partition, 2]; none, with a fault for each partition, where they are not whole."""
        records = no_records(metadata.n_partitions)
        data = self.get(COMMITS_CHUNK) if COMMITS_CHUNK in self.sizes else None
        if data is None or len(data) != records.nbytes:
            for partition in range(metadata.n_partitions):
                self.fault(COMMITS_CHUNK, "is missing or cut short", partition=partition)
            return no_records(0)
        return np.frombuffer(data, COMMIT_DTYPE).reshape(-1, 2)

    def partition(self, metadata: Metadata, partition: int, record: Records) -> None:
        """Check the shards of a committed partition: size and index by the layout, bytes by the commit record.

        The checksum of a shard does not depend on its index, which ends with a checksum of its own.
        """
        specs, (start, stop) = payload_specs(metadata, partition), metadata.layout.span(partition)
        crc: int | None = 0
        for spec in specs:
            key, shape = shard_key(spec, partition), shard_shape(spec, stop - start)
            nbytes, begin = shape.nbytes, shape.nbytes - shape.end_nbytes
            tail = extended = None
            if self.has_size(key, nbytes, partition):
                tail = self.read(key, self.storage.get_range, key, begin, nbytes, partition=partition)
            if tail is not None and tail.tobytes() != shape.end:
                self.fault(key, "its index was changed", partition=partition)
            elif tail is not None:
                extended = self.read(key, self.storage.crc32c, key, nbytes, crc or 0, partition=partition)
            if extended is not None:
                self.checked(nbytes)
            crc = None if crc is None else extended
        if crc not in (None, record_crc32c(record)):
            what = "its bytes do not match the commit record"
            self.fault(shard_key(specs[0], partition), what, partition=partition)

    def virtual(self, reader: Reader, partition: int, record: Records) -> None:
        """Check a partition of a virtual store, which is computed again unless it is complete."""
        part, what = f"partition {partition}", "its bytes do not match the commit record"
        try:
            crc = reader.partition_crc32c(partition)
            self.checked(0)
        except StoreDamagedError as error:
            crc, what = -1, str(error)
        if crc not in (None, record_crc32c(record)):
            self.fault(part, what, partition=partition)


def _mapped_column(storage: Storage, key: str, size: int) -> tuple[Bytes, int]:
    """Return the bytes of a local file, mapped, and their CRC32C; they are read through the file first."""
    crc = storage.crc32c(key, size)
    return MappedFile(Path(str(storage.path), key)).bytes, crc


def _spooled(storage: Storage, key: str, size: int) -> tuple[Bytes, int]:
    """Return the bytes of an object, in a temporary file where they are many, and their CRC32C."""
    data, crc, filled = new_column(size, np.uint8), 0, 0
    for part in storage.iter_parts(key, size):
        data[filled : filled + len(part)] = part
        crc, filled = crc32c(part, crc), filled + len(part)
    return data, crc
