"""The byte addresses of the arrays in an HDF5 file, as the library reports them, and which bytes ever change."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from embstore.errors import StoreDamagedError
from embstore.store.arrays import COMMITS, ArraySpec, commits_spec, frozen_specs, payload_specs
from embstore.store.layout import Layout
from embstore.store.metadata import Metadata, StoredArray
from embstore.store.storage.files import REPAIR_HINT, Bytes, crc32c_of_spans, read_at

CHECKSUM = "checksum"
MAX_CHUNK_NBYTES = 2**27  # of a chunk that the library would read whole; ours have a few MiB
MAX_TABLE = 2**20  # chunks of an array of which only some are in the file


@dataclass(frozen=True)
class Addresses:
    """The addresses of the arrays of a file.

    `spans`: contiguous array -> its bytes `[start, stop)`. `chunks`: chunked array -> int64 [layer, chunk], -1 where
    a chunk is not allocated. An array in neither mapping cannot be mapped: another tool has compressed it or stored
    it otherwise.
    """

    spans: Mapping[str, tuple[int, int]]
    chunks: Mapping[str, NDArray[np.int64]]
    chunk_nbytes: Mapping[str, int]
    chunk_rows: Mapping[str, int]


def checksum_spec() -> ArraySpec:
    """Return the spec of the checksum over everything that never changes."""
    return ArraySpec(CHECKSUM, (), np.dtype("<u4"), (), 0, (), (), {})


def find_addresses(file: h5py.File, metadata: Metadata, arrays: Mapping[str, StoredArray]) -> Addresses:
    """Return the addresses that the HDF5 library reports. Raises StoreDamagedError for a missing or changed array."""
    spans: dict[str, tuple[int, int]] = {}
    chunks: dict[str, NDArray[np.int64]] = {}
    chunk_rows: dict[str, int] = {}
    chunk_nbytes: dict[str, int] = {}
    for spec in [*frozen_specs(arrays), commits_spec(metadata.n_partitions), checksum_spec()]:
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
            or _is_sparse(dataset, spec.shape[0] * -(-spec.shape[1] // shape[1]))
        ):
            continue
        chunks[spec.path] = _chunk_offsets(dataset, spec.shape, shape[1])
        chunk_rows[spec.path] = shape[1]
        chunk_nbytes[spec.path] = math.prod(shape) * spec.dtype.itemsize
    return Addresses(spans, chunks, chunk_nbytes, chunk_rows)


def get_dataset(file: h5py.File, spec: ArraySpec) -> h5py.Dataset:
    """Return an array of the file itself.

    Raises StoreDamagedError where it does not match its spec, and before anything is opened that a link, an external
    or a virtual dataset names in another file.
    """
    item: Any = file
    for name in spec.path.split("/"):
        link = item.get(name, getlink=True) if isinstance(item, h5py.Group) else None
        if isinstance(link, h5py.ExternalLink | h5py.SoftLink):
            raise StoreDamagedError(f"{spec.path} of {file.filename} is a link, which no store has: {REPAIR_HINT}")
        item = None if link is None else item.get(name)
    if not isinstance(item, h5py.Dataset) or item.shape != spec.shape or item.dtype != spec.dtype:
        raise StoreDamagedError(f"{spec.path} of {file.filename} is missing or was changed: {REPAIR_HINT}")
    if item.external or item.is_virtual:
        raise StoreDamagedError(f"{spec.path} of {file.filename} is stored in another file: {REPAIR_HINT}")
    if item.chunks is not None and math.prod(item.chunks) * spec.dtype.itemsize > MAX_CHUNK_NBYTES:
        raise StoreDamagedError(f"{spec.path} of {file.filename} has chunks of {list(item.chunks)}: {REPAIR_HINT}")
    return item


def _is_sparse(dataset: h5py.Dataset, n_chunks: int) -> bool:
    """Return whether a table of all chunks would be large although most of them are not in the file."""
    return n_chunks > MAX_TABLE and int(dataset.id.get_num_chunks()) < n_chunks // 2


def _chunk_offsets(dataset: h5py.Dataset, shape: tuple[int, ...], rows: int) -> NDArray[np.int64]:
    offsets = np.full((shape[0], -(-shape[1] // rows)), -1, np.int64)

    def note(chunk: Any) -> None:
        offsets[chunk.chunk_offset[0], chunk.chunk_offset[1] // rows] = chunk.byte_offset

    dataset.id.chunk_iter(note)
    return offsets


def changing_spans(addresses: Addresses) -> NDArray[np.int64]:
    """Return the spans [n, (start, stop)] that change after creation: chunks, commits, and the checksum."""
    parts = [np.array([addresses.spans[COMMITS], addresses.spans[CHECKSUM]], np.int64)]
    for name, offsets in addresses.chunks.items():
        starts = offsets[offsets >= 0]
        parts.append(np.stack([starts, starts + addresses.chunk_nbytes[name]], axis=1))
    spans = np.concatenate(parts)
    return spans[np.argsort(spans[:, 0], kind="stable")]


def frozen_spans(addresses: Addresses, size: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of a file of `size` bytes that never change after creation, in order."""
    changing = np.minimum(changing_spans(addresses), size)  # a damaged address may lie anywhere
    starts = np.concatenate([[0], np.maximum.accumulate(changing[:, 1])])
    stops = np.concatenate([changing[:, 0], [size]])
    for number in np.flatnonzero(starts < stops).tolist():
        yield int(starts[number]), int(stops[number])


def frozen_crc32c(descriptor: int, addresses: Addresses) -> int:
    """Return the CRC32C of everything that never changes: HDF5's own structures, the metadata, the index."""
    return crc32c_of_spans(descriptor, frozen_spans(addresses, os.fstat(descriptor).st_size))[0]


def row_offsets(
    addresses: Addresses, spec: ArraySpec, layer: int, start: int, stop: int
) -> tuple[NDArray[np.int64], int]:
    """Return the offsets of rows `[start, stop)` of one layer, one for every `step` rows, and `step`.

    A step is a chunk, or a common divisor where the partition begins inside a chunk (chunks of another tool, or an
    unusual partition size). An offset of a chunk that is not allocated is -1.
    """
    chunk_rows = addresses.chunk_rows[spec.path]
    offsets = addresses.chunks[spec.path][layer]
    step = int(np.gcd(chunk_rows, start)) if start % chunk_rows else chunk_rows
    firsts = np.arange(start, stop, step)
    row_nbytes = addresses.chunk_nbytes[spec.path] // chunk_rows
    base = offsets[firsts // chunk_rows]
    return np.where(base < 0, -1, base + firsts % chunk_rows * row_nbytes), step


def row_spans(addresses: Addresses, spec: ArraySpec, layer: int, start: int, stop: int) -> list[tuple[int, int]]:
    """Return the spans of the file that hold rows `[start, stop)` of a layer, in order."""
    offsets, step = row_offsets(addresses, spec, layer, start, stop)
    row_nbytes = addresses.chunk_nbytes[spec.path] // addresses.chunk_rows[spec.path]
    return [
        (offset, offset + (min(first + step, stop) - first) * row_nbytes)
        for first, offset in zip(range(start, stop, step), offsets.tolist(), strict=True)
    ]


def padding_spans(addresses: Addresses, spec: ArraySpec) -> list[tuple[int, int]]:
    """Return the spans of each layer's last chunk that lie beyond the last row; they hold zeros."""
    extra = -spec.shape[1] % addresses.chunk_rows[spec.path]
    row_nbytes = addresses.chunk_nbytes[spec.path] // addresses.chunk_rows[spec.path]
    stops = (addresses.chunks[spec.path][:, -1] + addresses.chunk_nbytes[spec.path]).tolist()
    return [(stop - extra * row_nbytes, stop) for stop in stops] if extra else []


def payload_crc32c(
    descriptor: int, addresses: Addresses, specs: Sequence[ArraySpec], layout: Layout, partition: int
) -> tuple[int, int]:
    """Return the CRC32C of a partition's bytes in C order, and their number."""
    layers = [(spec, layer) for spec in specs for layer in range(spec.shape[0])]
    spans = (row_spans(addresses, spec, layer, *layout.span(partition)) for spec, layer in layers)
    return crc32c_of_spans(descriptor, chain.from_iterable(spans))


def read_span(descriptor: int, start: int, stop: int) -> Bytes:
    """Read bytes `[start, stop)` of the file; what lies beyond its end, or before its beginning, is left out."""
    data = np.empty(max(stop - start, 0) if start >= 0 else 0, np.uint8)
    return data[: read_at(descriptor, data, start)]
