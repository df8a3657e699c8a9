"""Holding what is about to be copied against the checksums that were committed with it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from embstore.errors import StoreDamagedError
from embstore.store.arrays import payload_specs
from embstore.store.backend import Reader
from embstore.store.metadata import Metadata
from embstore.store.storage.files import MEND, crc32c, crc32c_of_file, reading
from embstore.store.storage.location import ObjectPath


def require_whole_index(reader: Reader) -> None:
    """Raise StoreDamagedError where a column of the index is not what was written."""
    for name, array in reader.arrays.items():
        if crc32c(reader.column(name)) != array.crc32c:
            raise StoreDamagedError(f"{name} of {reader.path} is not what was written: {MEND}")


def require_whole_partition(reader: Reader, partition: int, expected: int) -> None:
    """Raise StoreDamagedError where the CRC32C of a partition's bytes is not the one `expected`, that committed.

    A partition whose arrays another tool has stored anew has no checksum any more, and passes.
    """
    found = _found_crc32c(reader, reader.path, partition)
    if found is not None and found != expected:
        raise StoreDamagedError(f"the rows of partition {partition} of {reader.path} were changed: {MEND}")


def _found_crc32c(reader: Reader, path: Path | ObjectPath, partition: int) -> int | None:
    if isinstance(path, ObjectPath):
        from embstore.store.zarr.object_reader import RemoteStore

        assert isinstance(reader, RemoteStore)
        return reader.crc32c(partition)
    inspect = _zarr_crc32c if path.is_dir() else _hdf5_crc32c
    with reading(path, f" of partition {partition}"):
        return inspect(path, reader.metadata, reader, partition)


def _zarr_crc32c(path: Path, metadata: Metadata, reader: Reader, partition: int) -> int | None:
    from embstore.store.zarr.format import NODE, array_node, shard_file

    crc = 0
    for spec in payload_specs(metadata):
        if (path / spec.path / NODE).read_bytes() != array_node(spec):
            return None
        crc, _ = crc32c_of_file(path / shard_file(spec, partition), crc)
    return crc


def _hdf5_crc32c(path: Path, metadata: Metadata, reader: Reader, partition: int) -> int | None:
    from embstore.store.hdf5.offsets import payload_crc32c
    from embstore.store.hdf5.reader import HDF5Reader

    assert isinstance(reader, HDF5Reader)
    specs = payload_specs(metadata)
    if any((reader.places.chunks.get(spec.path, np.array([-1])) < 0).any() for spec in specs):
        return None
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return payload_crc32c(descriptor, reader.places, specs, metadata.layout, partition)[0]
    finally:
        os.close(descriptor)
