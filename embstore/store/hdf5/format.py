"""Creating an HDF5 store: the file's structure is complete before the first row and never changes."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from embstore.store.arrays import (
    COMMITS,
    ArraySpec,
    commits_spec,
    frozen_specs,
    no_records,
    payload_specs,
    stored_arrays,
)
from embstore.store.hdf5.addresses import CHECKSUM, checksum_spec, find_addresses, frozen_crc32c
from embstore.store.metadata import Metadata, canonical, document
from embstore.store.storage.files import opened, write_at

PAGE_NBYTES = 4096
MAX_CHUNK_ROWS = 1024
MAX_HEADER_NBYTES = 60_000


def create(path: Path, metadata: Metadata, frozen: Mapping[str, NDArray[Any]]) -> None:
    """Create a store without rows in the new file `path`, durable when this returns."""
    arrays = stored_arrays(frozen)
    vectors = payload_specs(metadata)[0]
    with _new_file(path, vectors) as file:
        _write_attribute(file, canonical(document(metadata, arrays)))
        for spec in frozen_specs(arrays):
            _create(file, spec)
        _create(file, commits_spec(metadata.layout.n_partitions))
        _create(file, checksum_spec())
        for spec in payload_specs(metadata):
            _create(file, spec, chunks=hdf5_chunk(spec))
        addresses = find_addresses(file, metadata, arrays)
    with opened(path, os.O_RDWR) as descriptor:
        for name, array in frozen.items():
            write_at(descriptor, array, addresses.spans[name][0])
        write_at(descriptor, no_records(metadata.layout.n_partitions), addresses.spans[COMMITS][0])
        checksum = frozen_crc32c(descriptor, addresses)
        write_at(descriptor, checksum.to_bytes(4, "little"), addresses.spans[CHECKSUM][0])
        os.fsync(descriptor)


@contextmanager
def _new_file(path: Path, vectors: ArraySpec) -> Iterator[h5py.File]:
    """Create a file through the library; where the disk is full, only a second close frees its space."""
    row_nbytes = vectors.shape[2] * vectors.dtype.itemsize
    file = h5py.File(
        path,
        "x",
        libver=("earliest", "v110"),
        alignment_threshold=hdf5_chunk(vectors)[1] * row_nbytes,
        alignment_interval=math.lcm(PAGE_NBYTES, row_nbytes),
        locking=False,
    )
    try:
        yield file
        file.close()
    except RuntimeError as error:  # raised by the library where the system fails as a file is closed
        raise OSError(str(error)) from error
    finally:
        for _ in range(2):
            with suppress(Exception):
                file.close()


def hdf5_chunk(spec: ArraySpec) -> tuple[int, ...]:
    """Return the chunk shape of an array that is written a partition at a time."""
    rows = min(spec.shard[1], MAX_CHUNK_ROWS, spec.shape[1])
    return (1, rows, *spec.shape[2:])


def _create(file: h5py.File, spec: ArraySpec, *, chunks: tuple[int, ...] | None = None) -> None:
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if chunks:
        creation.set_chunk(chunks)
    else:
        creation.set_layout(h5py.h5d.CONTIGUOUS)
    creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    creation.set_fill_value(np.array(spec.fill, spec.dtype))
    creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    creation.set_obj_track_times(False)
    parent, _, name = spec.path.rpartition("/")
    group = file.require_group(parent) if parent else file
    space = h5py.h5s.create_simple(spec.shape)
    kind = h5py.h5t.py_create(spec.dtype)
    dataset = h5py.Dataset(h5py.h5d.create(group.id, name.encode(), kind, space, creation))
    for axis, label in enumerate(spec.dims):
        dataset.dims[axis].label = label
    for key, value in spec.attributes.items():
        dataset.attrs[key] = value


def _write_attribute(file: h5py.File, text: bytes) -> None:
    """Store the metadata in the root's header: the library can loop forever over a damaged heap of long strings."""
    kind = h5py.string_dtype("utf-8", len(text) if len(text) <= MAX_HEADER_NBYTES else None)
    file.attrs.create("embstore", text, dtype=kind)


def read_attribute(file: h5py.File) -> Any:
    """Return the attribute "embstore", parsed from JSON; None where there is none."""
    text = file.attrs.get("embstore")
    return json.loads(text) if isinstance(text, str | bytes) else None
