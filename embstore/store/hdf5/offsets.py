"""Where everything stands in an HDF5 file, as the library names it, and what of it ever changes."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from embstore.errors import StoreDamagedError
from embstore.store.arrays import COMMITS, ArraySpec, commits_spec, frozen_specs, payload_specs
from embstore.store.layout import Layout
from embstore.store.metadata import Metadata, StoredArray
from embstore.store.storage.files import MEND, Bytes, crc32c

CHECKSUM = "checksum"
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


def checksum_spec() -> ArraySpec:
    return ArraySpec(CHECKSUM, (1,), np.dtype("<u4"), ("checksum",), 0, (1,), (1,), {})


def find_places(file: h5py.File, metadata: Metadata, arrays: Mapping[str, StoredArray]) -> Places:
    """Ask the HDF5 library where everything stands. Raises StoreDamagedError for a missing or odd array."""
    spans: dict[str, tuple[int, int]] = {}
    chunks: dict[str, NDArray[np.int64]] = {}
    chunk_rows: dict[str, int] = {}
    chunk_nbytes: dict[str, int] = {}
    for spec in [*frozen_specs(arrays), commits_spec(metadata.layout.n_partitions, folded=True), checksum_spec()]:
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
    changing = np.minimum(changing_spans(places), size)  # a damaged address may lie anywhere
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


def place_rows(places: Places, spec: ArraySpec, layer: int, start: int, stop: int) -> tuple[NDArray[np.int64], int]:
    """Return the chunk offsets of rows `[start, stop)` of one layer as if they began a chunk, and a chunk's rows.

    Where the partition begins inside a chunk (chunks of another tool, or an odd partition size), rows are
    counted a common divisor at a time.
    """
    chunk_rows = places.chunk_rows[spec.path]
    offsets = places.chunks[spec.path][layer]
    step = int(np.gcd(chunk_rows, start)) if start % chunk_rows else chunk_rows
    firsts = np.arange(start, stop, step)
    row_nbytes = places.chunk_nbytes[spec.path] // chunk_rows
    base = offsets[firsts // chunk_rows]
    return np.where(base < 0, -1, base + firsts % chunk_rows * row_nbytes), step


def row_spans(places: Places, spec: ArraySpec, layer: int, start: int, stop: int) -> list[tuple[int, int]]:
    """Return the bytes of the file that hold rows `[start, stop)` of a layer, in order."""
    offsets, step = place_rows(places, spec, layer, start, stop)
    row_nbytes = places.chunk_nbytes[spec.path] // places.chunk_rows[spec.path]
    return [
        (offset, offset + (min(first + step, stop) - first) * row_nbytes)
        for first, offset in zip(range(start, stop, step), offsets.tolist(), strict=True)
    ]


def padding_spans(places: Places, spec: ArraySpec) -> list[tuple[int, int]]:
    """Return the bytes of each layer's last chunk that stand past the last row; they are zeros."""
    extra = -spec.shape[1] % places.chunk_rows[spec.path]
    row_nbytes = places.chunk_nbytes[spec.path] // places.chunk_rows[spec.path]
    stops = (places.chunks[spec.path][:, -1] + places.chunk_nbytes[spec.path]).tolist()
    return [(stop - extra * row_nbytes, stop) for stop in stops] if extra else []


def payload_crc32c(
    descriptor: int, places: Places, specs: Sequence[ArraySpec], layout: Layout, partition: int
) -> tuple[int, int]:
    """Return the CRC32C of a partition's bytes in C order, and how many they are."""
    crc = nbytes = 0
    for spec in specs:
        for layer in range(spec.shape[0]):
            for start, stop in row_spans(places, spec, layer, *layout.span(partition)):
                crc = crc32c(read_span(descriptor, start, stop), crc)
                nbytes += stop - start
    return crc, nbytes


def read_span(descriptor: int, start: int, stop: int) -> Bytes:
    """Read bytes `[start, stop)` of the file; what lies beyond its end, or nowhere, is left out."""
    data = np.empty(max(stop - start, 0), np.uint8)
    done = 0
    while start >= 0 and done < len(data):
        count = os.preadv(descriptor, [data[done:].data], start + done)
        if count == 0:
            break
        done += count
    return data[:done]
