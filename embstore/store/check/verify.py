"""Verifying that a store is still, byte for byte, what was written.

A Zarr store is checked here, on any storage: every key is regenerated and compared, or checked by its CRC32C.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.config import settings
from embstore.errors import EmbstoreError, StoreDamagedError, StoreFormatError, StoreNotFoundError
from embstore.progress import Report, reporting
from embstore.store.arrays import (
    COMMIT_DTYPE,
    COMMITS,
    FINGERPRINTS,
    NOT_WRITTEN,
    ArraySpec,
    Records,
    committed,
    frozen_spec,
    frozen_specs,
    no_records,
    payload_specs,
    record_crc32c,
    virtual_specs,
)
from embstore.store.backend import is_file, open_reader, zarr_storage
from embstore.store.check.consistency import column_faults
from embstore.store.labels.files import LabelFiles
from embstore.store.layout import Layout
from embstore.store.metadata import Metadata, StoredArray, parse
from embstore.store.opening import LIST, Location, member_reader, members_at
from embstore.store.storage.base import KeyNotFoundError, Storage
from embstore.store.storage.files import MappedFile, crc32c, crc32c_of_spans, new_column, opened
from embstore.store.storage.location import ObjectPath, parse_location
from embstore.store.zarr.format import (
    APPENDED,
    APPENDED_NODE,
    COMMITS_CHUNK,
    INDEXES,
    LABELS,
    NODE,
    PARTS,
    TEMPORARY,
    ShardShape,
    all_nodes,
    column_end,
    column_key,
    group_node,
    shard_key,
    shard_shape,
)
from embstore.store.zarr.reader import ZarrReader, no_root, root_attribute


@dataclass(frozen=True)
class Fault:
    """One file or array (`part`) that differs from what was written, and the partition it belongs to, if any."""

    part: str
    partition: int | None
    what: str

    def __str__(self) -> str:
        where = "" if self.partition is None else f" (partition {self.partition})"
        return f"{self.part}{where}: {self.what}"

    @property
    def is_of_cache(self) -> bool:
        """Whether a file of the cache was damaged, and is removed; the store itself is whole."""
        return self.part.startswith("cache ")


@dataclass(frozen=True)
class VerifyReport:
    """The outcome of `verify`: what is damaged, and the partitions that are not written yet."""

    path: Path | ObjectPath
    faults: tuple[Fault, ...]
    missing: tuple[int, ...]
    n_partitions: int
    checked_nbytes: int

    def __repr__(self) -> str:
        n_faults, n = len(self.faults), self.n_partitions
        state = "ok" if self.ok else f"{n_faults} fault{'' if n_faults == 1 else 's'}"
        missing = f", {len(self.missing)} not written" if self.missing else ""
        return f"<VerifyReport of {self.path}: {state}, {n:,} partition{'' if n == 1 else 's'}{missing}>"

    @property
    def ok(self) -> bool:
        """Whether nothing that was written is damaged."""
        return not self.faults

    @property
    def damaged_partitions(self) -> list[int]:
        """The partitions with a fault of the store, ascending."""
        faults = [fault for fault in self.faults if not fault.is_of_cache]
        return sorted({fault.partition for fault in faults if fault.partition is not None})


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
    name = parse_location(path) if isinstance(path, str | os.PathLike | ObjectPath) else None
    try:
        paths = members_at(path)
    except StoreDamagedError as error:
        name = name or Path(", ".join(map(str, path)))  # type: ignore[arg-type]
        return VerifyReport(name, (Fault(APPENDED, None, str(error)),), (), 0, 0)
    name = name or paths[0][0]
    if len(paths) == 1 and paths[0][0] == name:
        return verify_one(name)
    faults: list[Fault] = []
    missing: list[int] = []
    n_partitions, nbytes = 0, 0
    for member, fingerprint in paths:
        try:
            report = verify_one(member)
        except StoreNotFoundError:
            if fingerprint is None:
                raise
            report = VerifyReport(member, (), (), 0, 0)
        try:
            if report.ok:
                member_reader(member, fingerprint)
        except StoreDamagedError as error:
            faults.append(Fault(f"{member}/store", None, str(error)))
        for fault in report.faults:
            number = None if fault.partition is None else n_partitions + fault.partition
            part = fault.part if fault.is_of_cache else f"{member}/{fault.part}"
            faults.append(Fault(part, number, fault.what))
        missing += [n_partitions + number for number in report.missing]
        n_partitions, nbytes = n_partitions + report.n_partitions, nbytes + report.checked_nbytes
    return VerifyReport(name, tuple(faults), tuple(missing), n_partitions, nbytes)


def verify_one(path: Path | ObjectPath) -> VerifyReport:
    """Verify one store, without what was appended to it; see `verify`."""
    with reporting(settings().progress, unit="bytes", label="verify") as report:
        checks = ZarrChecks(path, report)
        try:
            if isinstance(path, Path) and is_file(path):
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
            is_denied = isinstance(error.__cause__, PermissionError)  # which nobody repairs by extracting again
            if is_denied or (isinstance(path, ObjectPath) and not isinstance(error, StoreDamagedError)):
                raise
            checks.fault("store", str(error))
            checks.n_partitions = 0
    faults, missing = tuple(checks.faults), tuple(checks.missing)
    return VerifyReport(checks.path, faults, missing, checks.n_partitions, checks.checked_nbytes)


def key_sizes(storage: Storage) -> dict[str, int]:
    """Return the size of every key of a store but those of indexes, labels and appended stores."""
    if storage.can_list:
        others = tuple(f"{folder}/" for folder in (INDEXES, LABELS, PARTS, APPENDED))
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


class Checks:
    """The checks of one store at `path`: its faults, and how many bytes have been compared."""

    def __init__(self, path: Path | ObjectPath, report: Report) -> None:
        self.path = path
        self.faults: list[Fault] = []
        self.missing: list[int] = []
        self.n_partitions = 0  # until the metadata are read
        self.checked_nbytes = self.total_nbytes = 0
        self._report = report

    def fault(self, part: str, what: str, *, partition: int | None = None) -> None:
        self.faults.append(Fault(part, partition, what))

    def checked(self, nbytes: int) -> None:
        self.checked_nbytes += nbytes
        self._report(self.checked_nbytes, max(self.total_nbytes, self.checked_nbytes))

    def attribute(self, fields: Any) -> tuple[Metadata, dict[str, StoredArray]] | None:
        """Parse the attribute "embstore" and compare it with its schema; None, with faults, where it is invalid."""
        try:
            metadata, arrays = parse(fields, path=str(self.path))
            wrong = schema_faults(fields)
        except EmbstoreError as error:
            wrong = [str(error)]
        for what in wrong:
            self.fault("metadata", what)
        if wrong:
            return None
        self.n_partitions = metadata.n_partitions
        return metadata, arrays

    def index(self, columns: Mapping[str, NDArray[Any] | None], metadata: Metadata) -> None:
        """Check that the columns of the index are consistent with each other, where all have their checksums."""
        complete = {name: column for name, column in columns.items() if column is not None}
        for what in column_faults(complete, metadata) if len(complete) == len(columns) else ():
            self.fault("index", what)

    def records(self, records: Records, layout: Layout, part: str) -> list[int]:
        """Return the partitions that are committed by the records [partition, 2]; note the others."""
        complete = committed(records, layout)
        for partition in np.flatnonzero(~complete).tolist():
            start, stop = layout.span(partition)
            n_rows, checksum = records[partition].tolist()
            if n_rows == checksum == NOT_WRITTEN:
                self.missing.append(partition)
            else:
                what = f"the commit record {n_rows:x} {checksum:x} is invalid; the partition has {stop - start} rows"
                self.fault(part, what, partition=partition)
        return np.flatnonzero(complete).tolist()


def schema_faults(fields: Any) -> list[str]:
    """Validate the attribute "embstore" against schemas/store.schema.json; returns one line per fault."""
    import jsonschema

    text = resources.files("embstore.schemas").joinpath("store.schema.json").read_text("utf-8")
    validator = jsonschema.Draft202012Validator(json.loads(text))
    return [f"{error.json_path}: {error.message}"[:300] for error in validator.iter_errors(fields)]


class ZarrChecks(Checks):
    """The checks of one Zarr store."""

    storage: Storage
    sizes: dict[str, int]  # of the keys that exist

    def run(self) -> None:
        storage = self.storage = zarr_storage(self.path)
        if (isinstance(self.path, ObjectPath) or self.path.suffix != ".zarr") and storage.get_or_none(NODE) is None:
            raise no_root(storage)
        sizes = self.sizes = key_sizes(storage)
        self.total_nbytes = sum(sizes.values())
        root, attribute = self.read(NODE, None, storage.get), None
        with suppress(StoreDamagedError, StoreFormatError):  # reported below
            attribute = root_attribute(root, storage)
        parsed = self.attribute(attribute)
        if parsed is None:
            return
        metadata, arrays = parsed
        for key, node in all_nodes(metadata, arrays).items():
            stored = root if key == NODE else self.read(key, None, storage.get)
            if stored not in (None, node):
                self.fault(key, "was changed")
        if storage.size(LIST) is not None and not storage.holds(APPENDED_NODE, [group_node({})]):
            self.fault(APPENDED_NODE, "is missing or was changed")
        columns = {spec.path: self.column(spec, arrays[spec.path].crc32c) for spec in frozen_specs(arrays)}
        self.index(columns, metadata)
        whole = True
        for spec in virtual_specs(metadata):
            key, nbytes = column_key(spec), math.prod(spec.shape) * spec.dtype.itemsize
            whole = self.read(key, nbytes, storage.size) is not None
        records = no_records(metadata.n_partitions)
        data = self.read(COMMITS_CHUNK, None, storage.get) if COMMITS_CHUNK in sizes else None
        if data is None or len(data) != records.nbytes:
            for partition in range(metadata.n_partitions):
                self.fault(COMMITS_CHUNK, "is missing or cut short", partition=partition)
        else:
            records = np.frombuffer(data, COMMIT_DTYPE).reshape(-1, 2)
            reader = ZarrReader(storage) if metadata.virtual else None
            for partition in self.records(records, metadata.layout, COMMITS_CHUNK):
                part, what = f"partition {partition}", "its bytes do not match the commit record"
                if reader is None or reader.recomputed is None:
                    part = shard_key(payload_specs(metadata, partition)[0], partition)
                    crc = self.shards(metadata, partition)
                else:
                    for file in reader.recomputed.damaged_files(partition):
                        gone = "it was damaged and is removed; its rows are computed again when they are read"
                        self.fault(f"cache {file}", gone, partition=partition)
                    try:
                        crc = reader.partition_crc32c(partition)
                        is_computed = whole and reader.expected_again(partition) is not None
                        if is_computed and not reader.recomputed.has_fingerprints(partition):
                            self.fault(FINGERPRINTS, "they are not those of its rows", partition=partition)
                    except StoreDamagedError as error:
                        crc, what = -1, str(error)
                if crc not in (None, record_crc32c(records[partition])):
                    self.fault(part, what, partition=partition)
        begun = (f"{TEMPORARY}/", f"{FINGERPRINTS}/")
        for key in sorted(set(sizes) - expected_keys(metadata, arrays)):
            if not key.startswith(begun):  # what a killed writer left is not a fault
                self.fault(key, "does not belong to the store")

    def read(self, key: str, nbytes: int | None, work: Callable[[str], Any], partition: int | None = None) -> Any:
        """Return what reading a key of `nbytes` bytes returns; None with a fault where it is missing or damaged."""
        size, what = self.sizes.get(key), "is missing"
        if nbytes is not None and size not in (None, nbytes):
            what = f"has {size} bytes, not {nbytes}"
        elif size is not None:
            try:
                value = work(key)
                self.checked(size)
                return value
            except KeyNotFoundError:
                pass
            except StoreDamagedError as error:
                what = str(error)
            except EmbstoreError as error:
                if not isinstance(error.__cause__, OSError) or isinstance(error.__cause__, PermissionError):
                    raise  # a server that does not answer, or a right, says nothing about the store
                what = f"cannot be read: {error.__cause__.strerror}"
        self.fault(key, what, partition=partition)
        return None

    def column(self, spec: ArraySpec, expected: int) -> NDArray[Any] | None:
        """Check an array that is written once and return it, None where it is damaged."""
        if 0 in spec.shape:
            return np.empty(spec.shape, spec.dtype)
        key, end = column_key(spec), column_end(spec)
        nbytes = int(np.prod(spec.shape)) * spec.dtype.itemsize
        size = nbytes + len(end)

        def whole(key: str) -> tuple[NDArray[Any], int]:
            """Return the bytes, mapped or in a temporary file where they are many, and their CRC32C."""
            if self.storage.is_in_place:
                crc = self.storage.crc32c(key, size)  # through the file first: a map cannot report errors
                return MappedFile(Path(str(self.path), key)).bytes, crc
            data, crc, filled = new_column(size, np.uint8), 0, 0
            for part in self.storage.iter_parts(key, size):
                data[filled : filled + len(part)] = part
                crc, filled = crc32c(part, crc), filled + len(part)
            return data, crc

        data, crc = self.read(key, size, whole) or (None, 0)
        if data is None:
            return None
        if crc != crc32c(end, expected) or data[nbytes:].tobytes() != end:
            self.fault(key, "was changed: its checksum differs")
            return None
        column: NDArray[Any] = data[:nbytes].view(spec.dtype).reshape(spec.shape)
        return column

    def shards(self, metadata: Metadata, partition: int) -> int | None:
        """Return the CRC32C of the shards of a committed partition, None with a fault where one is not whole."""
        start, stop = metadata.layout.span(partition)
        crc: int | None = 0
        for spec in payload_specs(metadata, partition):
            shape = shard_shape(spec, stop - start)

            def whole(key: str, shape: ShardShape = shape, crc: int = crc or 0) -> int:
                if shape.fault(self.storage, key):
                    raise StoreDamagedError("its index was changed")
                return self.storage.crc32c(key, shape.nbytes, crc)

            extended = self.read(shard_key(spec, partition), shape.nbytes, whole, partition)
            crc = None if crc is None else extended
        return crc


def verify_hdf5(path: Path, checks: Checks) -> None:
    """Check an HDF5 file: one CRC32C over everything that never changes, one per partition over its rows."""
    from embstore.store.hdf5 import reader as hdf5  # h5py is imported only for HDF5 stores

    checks.total_nbytes = path.stat().st_size
    try:
        with hdf5.open_file(path) as file:
            parsed = checks.attribute(hdf5.read_attribute(file))
            if parsed is None:
                return
            metadata, arrays = parsed
            addresses = hdf5.find_addresses(file, metadata, arrays)
    except EmbstoreError as error:
        if isinstance(error.__cause__, PermissionError):
            raise
        checks.n_partitions = 0
        checks.fault("HDF5 structure", str(error))
        return
    layout, specs = metadata.layout, payload_specs(metadata)
    with opened(path) as descriptor:
        mapped = MappedFile(path)

        def column(name: str) -> NDArray[Any] | None:
            """Check an array that is written once, through the file: a map cannot report errors."""
            start, stop = addresses.spans[name]
            crc, nbytes = crc32c_of_spans(descriptor, [(start, stop)])
            dtype, shape = frozen_spec(name, arrays).dtype, arrays[name].shape
            if crc != arrays[name].crc32c or nbytes != math.prod(shape) * dtype.itemsize:
                checks.fault(name, "was changed: its checksum differs")
                return None
            return mapped.bytes[start:stop].view(dtype).reshape(shape)

        columns = {name: column(name) for name in arrays}
        stored = hdf5.read_span(descriptor, *addresses.spans[hdf5.CHECKSUM])
        same = stored.tobytes() == hdf5.frozen_crc32c(descriptor, addresses, metadata).to_bytes(4, "little")
        frozen = hdf5.frozen_spans(addresses, metadata, os.fstat(descriptor).st_size)
        checks.checked(sum(stop - start for start, stop in frozen) + 4)
        if not same and not checks.faults:
            checks.fault("HDF5 structure", "was changed: its checksum differs")
        records = no_records(metadata.n_partitions)
        data = hdf5.read_span(descriptor, *addresses.spans[COMMITS])
        if len(data) == records.nbytes:
            records = data.view(records.dtype).reshape(records.shape)
        checks.checked(len(data))
        for partition in checks.records(records, layout, COMMITS):
            of_partition = payload_specs(metadata, partition)
            crc, nbytes = hdf5.payload_crc32c(descriptor, addresses, of_partition, layout, partition)
            checks.checked(nbytes)
            if crc != record_crc32c(records[partition]):
                names = " and ".join(spec.path for spec in of_partition)
                checks.fault(names, "its bytes do not match the commit record", partition=partition)
        for spec in specs:
            spans = hdf5.padding_spans(addresses, spec)
            checks.checked(sum(stop - start for start, stop in spans))
            if any(hdf5.read_span(descriptor, *span).any() for span in spans):
                last = spec.first + layout.n_partitions - 1
                checks.fault(spec.path, "holds bytes beyond its last row", partition=last)
        checks.index(columns, metadata)
