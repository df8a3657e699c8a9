"""Verifying that a store is still, byte for byte, what was written."""

from __future__ import annotations

import os
from pathlib import Path

from embstore.errors import EmbstoreError, StoreDamagedError, StoreNotFoundError
from embstore.progress import Progress, reporting
from embstore.store.arrays import Records, record_crc32c
from embstore.store.backend import Reader, is_file, no_store, zarr_storage
from embstore.store.check.report import Findings, VerifyReport
from embstore.store.storage.files import REPAIR_HINT, crc32c
from embstore.store.storage.location import ObjectPath, parse_location
from embstore.store.zarr.format import NODE


def verify(path: str | os.PathLike[str] | ObjectPath, *, progress: Progress = None) -> VerifyReport:
    """Read every byte of a store and compare it with its checksums; damage is reported, never raised.

    `progress`: a function of (bytes checked, total bytes), or False for no bar. Raises StoreNotFoundError where nothing
    exists, StorageError where the server of a URL does not answer.
    """
    path = parse_location(path)
    with reporting(progress, unit="bytes", label="verify") as report:
        findings = Findings(report)
        try:
            n_partitions = _verify(path, findings)
        except StoreNotFoundError:
            raise
        except (EmbstoreError, OSError) as error:
            if isinstance(path, ObjectPath) and not isinstance(error, StoreDamagedError):
                raise
            findings.fault("store", str(error))
            n_partitions = 0
    return findings.report(path, n_partitions)


def _verify(path: Path | ObjectPath, findings: Findings) -> int:
    if isinstance(path, Path) and is_file(path):
        from embstore.store.check.verify_hdf5 import verify_hdf5

        return verify_hdf5(path, findings)
    from embstore.store.check.verify_zarr import verify_zarr

    storage = zarr_storage(path)
    if isinstance(path, ObjectPath) and storage.get_or_none(NODE) is None:
        raise no_store(path)
    return verify_zarr(storage, findings)


def require_intact_index(reader: Reader) -> None:
    """Raise StoreDamagedError where a column of the index was changed."""
    for name, array in reader.arrays.items():
        if crc32c(reader.column(name)) != array.crc32c:
            raise StoreDamagedError(f"{name} of {reader.path} was changed: {REPAIR_HINT}")


def require_intact_partition(reader: Reader, partition: int, records: Records) -> None:
    """Raise StoreDamagedError where a partition's bytes do not match its commit record [partition, 2].

    A partition whose arrays another tool has rewritten has no checksum, and passes.
    """
    found = reader.partition_crc32c(partition)
    if found is not None and found != record_crc32c(records[partition]):
        raise StoreDamagedError(f"the rows of partition {partition} of {reader.path} were changed: {REPAIR_HINT}")
