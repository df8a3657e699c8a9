"""Reading an HDF5 store: the file is mapped at the addresses that the HDF5 library reports."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from embstore.errors import EmbstoreError, StoreDamagedError, StoreFormatError
from embstore.store.arrays import (
    COMMIT_DTYPE,
    COMMITS,
    ArraySpec,
    Records,
    commits_spec,
    frozen_spec,
    frozen_specs,
    payload_specs,
)
from embstore.store.layout import Layout
from embstore.store.metadata import Metadata, StoredArray, parse
from embstore.store.reading.mapped import MappedLayer
from embstore.store.storage.files import REPAIR_HINT, Bytes, MappedFile, crc32c_of_spans, opened, read_at, reading

CHECKSUM = "checksum"
MAX_CHUNK_ROWS = 1024  # fewer chunks to list at opening, and a few MiB each


@dataclass(frozen=True)
class Addresses:
    """Where the arrays of a file are.

    `spans`: array that is written once -> its bytes `[start, stop)`. `chunks`: other array -> the byte of each chunk,
    int64 [layer, chunk].
    """

    spans: Mapping[str, tuple[int, int]]
    chunks: Mapping[str, NDArray[np.int64]]


def chunk_rows(spec: ArraySpec) -> int:
    """Return the rows of a chunk of an array that is written a partition at a time, which begins with a chunk."""
    return min(math.gcd(spec.shard[1], MAX_CHUNK_ROWS), spec.shape[1])


def checksum_spec() -> ArraySpec:
    """Return the spec of the checksum over everything that never changes."""
    return ArraySpec(CHECKSUM, (), np.dtype("<u4"), (), 0, (), (), {})


def find_addresses(file: h5py.File, metadata: Metadata, arrays: Mapping[str, StoredArray]) -> Addresses:
    """Return the addresses that the HDF5 library reports."""
    spans: dict[str, tuple[int, int]] = {}
    chunks: dict[str, NDArray[np.int64]] = {}
    for spec in [*frozen_specs(arrays), commits_spec(metadata.n_partitions), checksum_spec()]:
        offset = get_dataset(file, spec).id.get_offset()
        nbytes = math.prod(spec.shape) * spec.dtype.itemsize
        if nbytes and offset is None:
            raise _rewritten(file, spec)
        spans[spec.path] = (offset, offset + nbytes) if nbytes else (0, 0)
    for spec in payload_specs(metadata):
        dataset, rows = get_dataset(file, spec), chunk_rows(spec)
        shape = (spec.shape[0], -(-spec.shape[1] // rows))
        same = dataset.chunks == (1, rows, *spec.shape[2:]) and not dataset.id.get_create_plist().get_nfilters()
        if not same or math.prod(shape) * rows * spec.row_nbytes > file.id.get_filesize():  # before a table is made
            raise _rewritten(file, spec)
        offsets = chunks[spec.path] = np.full(shape, -1, np.int64)

        def note(chunk: Any, offsets: NDArray[np.int64] = offsets, rows: int = rows) -> None:
            offsets[chunk.chunk_offset[0], chunk.chunk_offset[1] // rows] = chunk.byte_offset

        dataset.id.chunk_iter(note)
        if (offsets < 0).any():
            raise _rewritten(file, spec)
    return Addresses(spans, chunks)


def _rewritten(file: h5py.File, spec: ArraySpec) -> StoreDamagedError:
    return StoreDamagedError(
        f"{spec.path} of {file.filename} was changed, or another tool has rewritten it: {REPAIR_HINT}"
    )


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
    return item


def changing_spans(addresses: Addresses, metadata: Metadata) -> NDArray[np.int64]:
    """Return the spans [n, (start, stop)] that change after creation: chunks, commits, and the checksum."""
    parts = [np.array([addresses.spans[COMMITS], addresses.spans[CHECKSUM]], np.int64)]
    for spec in payload_specs(metadata):
        starts = addresses.chunks[spec.path].reshape(-1)
        parts.append(np.stack([starts, starts + chunk_rows(spec) * spec.row_nbytes], axis=1))
    spans = np.concatenate(parts)
    return spans[np.argsort(spans[:, 0], kind="stable")]


def frozen_spans(addresses: Addresses, metadata: Metadata, size: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of a file of `size` bytes that never change after creation, in order."""
    changing = np.minimum(changing_spans(addresses, metadata), size)  # a damaged address may lie anywhere
    starts = np.concatenate([[0], np.maximum.accumulate(changing[:, 1])])
    stops = np.concatenate([changing[:, 0], [size]])
    for number in np.flatnonzero(starts < stops).tolist():
        yield int(starts[number]), int(stops[number])


def frozen_crc32c(descriptor: int, addresses: Addresses, metadata: Metadata) -> int:
    """Return the CRC32C of everything that never changes: HDF5's own structures, the metadata, the index."""
    return crc32c_of_spans(descriptor, frozen_spans(addresses, metadata, os.fstat(descriptor).st_size))[0]


def row_spans(addresses: Addresses, spec: ArraySpec, layer: int, start: int, stop: int) -> list[tuple[int, int]]:
    """Return the spans of the file that hold rows `[start, stop)` of a partition and layer, in order, one a chunk."""
    rows = chunk_rows(spec)
    offsets = addresses.chunks[spec.path][layer, start // rows : -(-stop // rows)].tolist()
    firsts = range(start, stop, rows)
    return [
        (offset, offset + (min(first + rows, stop) - first) * spec.row_nbytes)
        for first, offset in zip(firsts, offsets, strict=True)
    ]


def padding_spans(addresses: Addresses, spec: ArraySpec) -> list[tuple[int, int]]:
    """Return the spans of each layer's last chunk that lie beyond the last row; they hold zeros."""
    rows = chunk_rows(spec)
    extra = -spec.shape[1] % rows * spec.row_nbytes
    stops = (addresses.chunks[spec.path][:, -1] + rows * spec.row_nbytes).tolist()
    return [(stop - extra, stop) for stop in stops] if extra else []


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


class HDF5Reader:
    """The arrays of an HDF5 store. The library is used once, at opening, for the metadata and the addresses."""

    remote: None = None
    max_mapped = sys.maxsize  # partitions of which `layer` is called at a time

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata, self.arrays, self.addresses = read_addresses(path)
        self._file = MappedFile(path)
        self._specs = {spec.path: spec for spec in payload_specs(self.metadata)}
        self._scattered = MappedFile(path, random=True, is_held=True)
        self.mapped_layers: dict[tuple[str, int], MappedLayer] = {}

    def commits(self) -> Records:
        """Read the commit records [partition, 2]."""
        with self._file.reopened() as descriptor:
            records = read_span(descriptor, *self._span(COMMITS))
        if len(records) < self.metadata.n_partitions * 2 * COMMIT_DTYPE.itemsize:
            raise StoreDamagedError(f"{self.path} is cut short: {REPAIR_HINT}")
        return records.view(COMMIT_DTYPE).reshape(-1, 2)

    def is_tidy(self) -> bool:
        """Return whether no interrupted write has left anything behind: here always."""
        return True

    def forget(self) -> None:
        """Does nothing: rows never move in the file."""

    def release_columns(self) -> None:
        """Does nothing: all columns are in the one file."""

    def require_current(self, *, columns: bool) -> None:
        """Raise StoreDamagedError where the mapped file has become shorter; it stays readable where it is replaced."""
        self._file.require_whole()

    def fetch_columns(self, names: Iterable[str]) -> None:
        """Does nothing: all columns are mapped."""

    def column(self, name: str) -> NDArray[Any]:
        """Return an array that is written once, mapped read-only."""
        spec = frozen_spec(name, self.arrays)
        start, stop = self._span(name)
        return self._file.bytes[start:stop].view(spec.dtype).reshape(spec.shape)

    def layer(self, array: str, position: int, partitions: Sequence[int]) -> tuple[MappedLayer, list[MappedFile]]:
        """Return a layer (by its position) for access to rows of some partitions, and the file."""
        layer = self.mapped_layers.get((array, position))
        if layer is None:
            spec = self._specs[array]
            layer = self.mapped_layers[array, position] = MappedLayer(spec, chunk_rows(spec))
            layer.place(0, self._scattered, self.addresses.chunks[array][position])
            layer.files = dict.fromkeys(range(self.metadata.layout.n_partitions), self._scattered)
        return layer, [self._scattered]

    def will_need(self, array: str, position: int, partition: int, start: int, stop: int) -> None:
        """Start reading rows of a layer, counted from the first of a partition, from the disk; returns at once."""
        layer, [file] = self.layer(array, position, [partition])
        first = self.metadata.layout.span(partition)[0]
        layer.will_need(file, first + start, first + stop)

    def partition_crc32c(self, partition: int) -> int:
        """Return the CRC32C of a partition's rows."""
        specs = payload_specs(self.metadata, partition)
        with self._file.reopened() as descriptor:
            return payload_crc32c(descriptor, self.addresses, specs, self.metadata.layout, partition)[0]

    def _span(self, name: str) -> tuple[int, int]:
        start, stop = self.addresses.spans[name]
        if stop > len(self._file.bytes):
            raise StoreDamagedError(f"{self.path} is cut short: {REPAIR_HINT}")
        return start, stop


@contextmanager
def open_file(path: Path) -> Iterator[h5py.File]:
    """Open a file for reading, without HDF5's own lock: nothing is ever written through the library."""
    with reading(path), opened(path):
        pass
    try:
        with h5py.File(path, "r", locking=False, rdcc_nbytes=0) as file:
            yield file
    except EmbstoreError:
        raise
    except Exception as error:
        if not h5py.is_hdf5(path):
            raise StoreFormatError(f"{path} is not an HDF5 file: give another path (NAME.zarr, NAME.h5)") from error
        what = (str(error).splitlines() or [type(error).__name__])[0]
        raise StoreDamagedError(f"the HDF5 library cannot read {path} ({what}): {REPAIR_HINT}") from error


def read_attribute(file: h5py.File) -> Any:
    """Return the attribute "embstore", whose parts are joined, parsed from JSON; None where there is none."""
    parts: list[str] = []
    while (name := attribute_name(len(parts))) in file.attrs:
        kind = file.attrs.get_id(name).get_type()
        if not isinstance(kind, h5py.h5t.TypeStringID) or kind.is_variable_str():
            raise StoreDamagedError(
                f"the attribute {name} of {file.filename} is not a string of fixed length, as embstore writes it: "
                "write it again as numpy.bytes_, or run `embstore extract --repair`"
            )
        parts.append(bytes(file.attrs[name]).decode())
    return json.loads("".join(parts)) if parts else None


def attribute_name(number: int) -> str:
    """Return the name of a part of the metadata, which a header holds only in parts where they are long."""
    return f"embstore.{number}" if number else "embstore"


def read_metadata(path: Path) -> tuple[Metadata, dict[str, StoredArray]]:
    """Read the metadata of a store and the description of its arrays."""
    with open_file(path) as file:
        return parse(read_attribute(file), path=str(path))


def read_addresses(path: Path) -> tuple[Metadata, dict[str, StoredArray], Addresses]:
    """Read the metadata of a store and the addresses of its arrays."""
    with open_file(path) as file:
        metadata, arrays = parse(read_attribute(file), path=str(path))
        return metadata, arrays, find_addresses(file, metadata, arrays)
