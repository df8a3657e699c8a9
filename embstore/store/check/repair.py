"""Repairing a store whose metadata, index or structure is damaged, keeping every partition that is intact."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embstore.errors import EmbstoreError, StoreDamagedError, StoreFormatError, StoreMismatchError
from embstore.store.arrays import COMMITS, committed, frozen_spec, record_crc32c, stored_arrays
from embstore.store.backend import Writer, is_file, is_hdf5, no_store, require_writable, zarr_storage
from embstore.store.check.verify import expected_keys, key_sizes
from embstore.store.index import Index
from embstore.store.metadata import Metadata, parse
from embstore.store.opening import LIST
from embstore.store.storage.base import Parts, Storage
from embstore.store.storage.files import MappedFile, as_bytes, storing
from embstore.store.storage.location import ObjectPath, parse_location
from embstore.store.storage.lock import StoreLock
from embstore.store.virtual.recomputed import virtual_chunks
from embstore.store.writer import built, frozen_of
from embstore.store.zarr.format import APPENDED_NODE, COMMITS_CHUNK, NODE, column_key, column_parts, group_node
from embstore.store.zarr.reader import root_attribute
from embstore.store.zarr.writer import ZarrWriter, static_objects


def repair_layout(
    path: str | os.PathLike[str] | ObjectPath,
    *,
    metadata: Metadata,
    index: Index,
    center: NDArray[np.float32] | None = None,
) -> list[int]:
    """Repair everything in a store but its rows; returns the partitions that must be written again.

    Partitions whose bytes match their commit record are kept. Write the others with a StoreWriter, whose `finish` is
    needed in any case. A Zarr store is repaired file by file, an HDF5 file is replaced by a new one; an interrupted
    repair is resumed by the next. int8 codes are kept only where the stored center equals `center` bit for bit.

    Raises StoreNotFoundError, StoreBusyError, and StoreMismatchError where the metadata are readable and were made
    by another plan; where they are not, and the fingerprint next to the vectors is not the plan's,
    StoreDamagedError or StoreFormatError.
    """
    path = parse_location(path)
    is_hdf5(path)  # raises for another suffix
    if isinstance(path, ObjectPath):
        require_writable(path)
        return _repair_zarr(path, metadata, index, center)
    with StoreLock(path), storing(path):
        if is_file(path):
            return _repair_hdf5(path, metadata, index, center)
        return _repair_zarr(path, metadata, index, center)


def _repair_zarr(
    path: Path | ObjectPath, planned: Metadata, index: Index, center: NDArray[np.float32] | None
) -> list[int]:
    """Put in place what is missing or differs, and discard partitions that are not intact, before anything else."""
    storage = zarr_storage(path)
    if isinstance(path, ObjectPath) and not storage.sizes():
        raise no_store(path)
    try:
        metadata = parse(root_attribute(storage.get_or_none(NODE), storage), path=str(path))[0]
    except (StoreDamagedError, StoreFormatError) as error:
        node = storage.get_or_none(f"{planned.layout.vectors}/{NODE}")
        if node is None or planned.fingerprint.encode() not in node:
            raise _unknown(path, error) from error
        metadata = planned
    _require_same(path, metadata, planned)
    writer = ZarrWriter(storage, metadata)
    try:
        with frozen_of(path, metadata, index, center) as frozen:
            objects = static_objects(metadata, frozen)
            if storage.size(LIST) is not None:
                objects[APPENDED_NODE] = [group_node({})]
            for key in set(key_sizes(storage)) - expected_keys(metadata, stored_arrays(frozen)):
                storage.delete(key)
            records = f"{COMMITS}/{NODE}"
            _put_in_place(storage, {records: objects.pop(records)})
            spec = None if center is None else frozen_spec("center", {"center": center})
            if spec is not None and not storage.holds(column_key(spec), column_parts(spec, frozen["center"])):
                storage.delete(COMMITS_CHUNK)  # the codes are relative to another center
            missing = _damaged(writer)
            for key, parts in virtual_chunks(metadata).items():
                if storage.size(key) != sum(map(len, map(as_bytes, parts))):
                    missing = list(range(metadata.n_partitions))  # whose fingerprints are written again with their rows
                    storage.delete(key)  # a folder may be in its place
                    storage.put(key, parts)
            writer.discard(missing)
            _put_in_place(storage, objects)
    finally:
        storage.finish()
    if isinstance(path, Path):
        for folder, _, _ in os.walk(path, topdown=False):
            with suppress(OSError):  # not empty
                os.rmdir(folder)
    return missing


def _put_in_place(storage: Storage, objects: Mapping[str, Parts]) -> None:
    for key, parts in objects.items():
        if not storage.holds(key, parts):
            if storage.size(key) is None:  # a folder may be in its place
                storage.delete(key)
            storage.put(key, parts)


def _damaged(writer: Writer) -> list[int]:
    """Return the partitions that are not committed, or whose rows do not match their commit record."""
    records = writer.commits()
    intact = committed(records, writer.metadata.layout)
    for partition in np.flatnonzero(intact).tolist():
        intact[partition] = writer.is_intact(partition, record_crc32c(records[partition]))
    return np.flatnonzero(~intact).tolist()


def _repair_hdf5(path: Path, planned: Metadata, index: Index, center: NDArray[np.float32] | None) -> list[int]:
    """Create the file again under another name, copy the rows and their records, and discard what is not intact."""
    from embstore.store.hdf5.reader import read_metadata
    from embstore.store.hdf5.writer import HDF5Writer, copy_rows

    try:
        metadata = read_metadata(path)[0]
    except EmbstoreError as error:
        if not path.stat().st_size or MappedFile(path).map.find(planned.fingerprint.encode()) < 0:
            raise _unknown(path, error) from error
        metadata = planned
    _require_same(path, metadata, planned)
    with built(path, metadata=metadata, index=index, center=center) as new:
        copy_rows(path, new, center)
        writer = HDF5Writer(new)
        try:
            missing = _damaged(writer)
            writer.erase(missing)
        finally:
            writer.close()
    return missing


def _unknown(path: Path | ObjectPath, error: EmbstoreError) -> EmbstoreError:
    """Return the error for metadata that are lost where no digest next to the vectors identifies the plan."""
    if isinstance(error, StoreFormatError):
        return error
    return StoreDamagedError(
        f"the metadata of {path} cannot be read, and nothing else in it shows that this plan made it: give the "
        "options it was made with, or remove it first"
    )


def _require_same(path: Path | ObjectPath, stored: Metadata, planned: Metadata) -> None:
    then, now = stored.provenance, planned.provenance
    for key in sorted(then):
        if then[key] != now[key]:
            raise StoreMismatchError(f"{path} was made with another {key} than this plan: give the same options again")
