"""Laying out an HDF5 store once and for all, and finding where everything stands in the file."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from embstore.errors import StoreDamagedError
from embstore.store.arrays import (
    COMMITS,
    ArraySpec,
    commits_spec,
    frozen_specs,
    payload_specs,
    stored_arrays,
)
from embstore.store.files import MEND, crc32c, write_all
from embstore.store.metadata import Metadata, StoredArray, canonical, document

CHECKSUM = "checksum"
ALIGNMENT = 4096
MOST_CHUNK_ROWS = 1024
_PIECE_NBYTES = 16 * 2**20


@dataclass(frozen=True)
class Places:
    """Where the arrays of a file stand: bytes `[start, stop)` of each contiguous one, the chunks of the others.

    `chunks`: array -> int64 [layer, chunk], -1 where a chunk is not allocated. An array in neither mapping
    cannot be mapped (another tool has compressed it or stored it otherwise).
    """

    spans: Mapping[str, tuple[int, int]]
    chunks: Mapping[str, NDArray[np.int64]]
    chunk_nbytes: Mapping[str, int]
    chunk_rows: Mapping[str, int]


def lay_out(path: Path, metadata: Metadata, frozen: Mapping[str, NDArray[Any]]) -> None:
    """Write a whole store without rows into the new file `path`, lasting once this returns."""
    arrays = stored_arrays(frozen)
    version = ("earliest", "v110")
    with h5py.File(
        path, "x", libver=version, alignment_threshold=ALIGNMENT, alignment_interval=ALIGNMENT, locking=False
    ) as file:
        file.attrs["embstore"] = canonical(document(metadata, arrays)).decode()
        for spec in frozen_specs(arrays):
            _create(file, spec)
        _create(file, commits_spec(metadata.layout.partitions, folded=True))
        _create(file, _checksum_spec())
        for spec in payload_specs(metadata):
            _create(file, spec, chunks=hdf5_chunk(spec))
        places = find_places(file, metadata, arrays)
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        for name, array in frozen.items():
            write_all(descriptor, array, places.spans[name][0])
        start, stop = places.spans[COMMITS]
        write_all(descriptor, b"\xff" * (stop - start), start)
        checksum = frozen_crc32c(descriptor, places)
        write_all(descriptor, checksum.to_bytes(4, "little"), places.spans[CHECKSUM][0])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def hdf5_chunk(spec: ArraySpec) -> tuple[int, ...]:
    """Return the chunk shape of an array that is written a partition at a time."""
    rows = min(spec.shard[1], MOST_CHUNK_ROWS, spec.shape[1])
    return (1, rows, *spec.shape[2:])


def _checksum_spec() -> ArraySpec:
    return ArraySpec(CHECKSUM, (1,), np.dtype("<u4"), ("checksum",), 0, (1,), (1,), {})


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


def read_attribute(file: h5py.File) -> Any:
    """Return the attribute "embstore" as JSON, None where there is none."""
    text = file.attrs.get("embstore")
    return json.loads(text) if isinstance(text, str | bytes) else None


def find_places(file: h5py.File, metadata: Metadata, arrays: Mapping[str, StoredArray]) -> Places:
    """Ask the HDF5 library where everything stands. Raises StoreDamagedError for a missing or odd array."""
    spans: dict[str, tuple[int, int]] = {}
    chunks: dict[str, NDArray[np.int64]] = {}
    chunk_rows: dict[str, int] = {}
    chunk_nbytes: dict[str, int] = {}
    for spec in [*frozen_specs(arrays), commits_spec(metadata.layout.partitions, folded=True), _checksum_spec()]:
        dataset = get_dataset(file, spec)
        offset = dataset.id.get_offset()
        if 0 in spec.shape:
            spans[spec.path] = (0, 0)
        elif offset is not None:
            spans[spec.path] = (offset, offset + math.prod(spec.shape) * spec.dtype.itemsize)
    for spec in payload_specs(metadata):
        dataset = get_dataset(file, spec)
        shape = dataset.chunks
        if (
            shape is None
            or shape[0] != 1
            or shape[2:] != spec.shape[2:]
            or dataset.id.get_create_plist().get_nfilters()
        ):
            continue
        chunks[spec.path] = _chunk_offsets(dataset, spec.shape, shape[1])
        chunk_rows[spec.path] = shape[1]
        chunk_nbytes[spec.path] = math.prod(shape) * spec.dtype.itemsize
    return Places(spans, chunks, chunk_nbytes, chunk_rows)


def get_dataset(file: h5py.File, spec: ArraySpec) -> h5py.Dataset:
    """Return an array that is as its spec says."""
    found = file.get(spec.path)
    if not isinstance(found, h5py.Dataset) or found.shape != spec.shape or found.dtype != spec.dtype:
        raise StoreDamagedError(f"{spec.path} of {file.filename} is missing or not what was written: {MEND}")
    return found


def _chunk_offsets(dataset: h5py.Dataset, shape: tuple[int, ...], rows: int) -> NDArray[np.int64]:
    offsets = np.full((shape[0], -(-shape[1] // rows)), -1, np.int64)

    def note(chunk: Any) -> None:
        offsets[chunk.chunk_offset[0], chunk.chunk_offset[1] // rows] = chunk.byte_offset

    dataset.id.chunk_iter(note)
    return offsets


def changing_spans(places: Places) -> NDArray[np.int64]:
    """Return the bytes [n, (start, stop)] that change after the layout: chunks, commits, and the checksum."""
    parts = [np.array([places.spans[COMMITS], places.spans[CHECKSUM]], np.int64)]
    for name, offsets in places.chunks.items():
        starts = offsets[offsets >= 0]
        parts.append(np.stack([starts, starts + places.chunk_nbytes[name]], axis=1))
    spans = np.concatenate(parts)
    return spans[np.argsort(spans[:, 0], kind="stable")]


def frozen_spans(places: Places, size: int) -> Iterator[tuple[int, int]]:
    """Give the bytes of a file of `size` that never change after the layout, in order."""
    changing = changing_spans(places)
    starts = np.concatenate([[0], np.maximum.accumulate(changing[:, 1])])
    stops = np.concatenate([changing[:, 0], [size]])
    for place in np.flatnonzero(starts < stops).tolist():
        yield int(starts[place]), int(stops[place])


def frozen_crc32c(descriptor: int, places: Places) -> int:
    """Return the CRC32C of all that never changes: HDF5's own structures, the metadata, the index."""
    crc = 0
    for start, stop in frozen_spans(places, os.fstat(descriptor).st_size):
        for offset in range(start, stop, _PIECE_NBYTES):
            piece = os.pread(descriptor, min(stop - offset, _PIECE_NBYTES), offset)
            crc = crc32c(piece, crc)
    return crc
