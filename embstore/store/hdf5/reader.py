"""Reading an HDF5 store: the file is mapped at the addresses that the HDF5 library reports."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
from numpy.typing import NDArray

from embstore.errors import EmbstoreError, StoreDamagedError, StoreFormatError
from embstore.store.arrays import COMMIT_DTYPE, COMMITS, Records, frozen_spec, payload_specs
from embstore.store.hdf5.addresses import (
    Addresses,
    chunk_rows,
    find_addresses,
    payload_crc32c,
    read_span,
)
from embstore.store.metadata import Metadata, StoredArray, parse
from embstore.store.reading.mapped import MappedLayer
from embstore.store.storage.files import REPAIR_HINT, MappedFile, opened, reading


class HDF5Reader:
    """The arrays of an HDF5 store. The library is used once, at opening, for the metadata and the addresses."""

    remote: None = None
    max_mapped = sys.maxsize  # partitions of which `layer` is called at a time

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata, self.arrays, self.addresses = read_addresses(path)
        self._file = MappedFile(path)
        self._specs = {spec.path: spec for spec in payload_specs(self.metadata)}
        self._scattered = MappedFile(path, random=True)
        self.appended = None  # a file has no parts
        self._layers: dict[tuple[str, int], MappedLayer] = {}

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
        layer = self._layers.get((array, position))
        if layer is None:
            spec = self._specs[array]
            layer = self._layers[array, position] = MappedLayer(spec, chunk_rows(spec))
            layer.place(0, self._scattered, self.addresses.chunks[array][position])
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
    """Open a file for reading, without HDF5's own lock: nothing is ever written through the library.

    Any error of the library, inside the context too, is raised as StoreDamagedError.
    """
    with reading(path), opened(path):
        pass
    try:
        with h5py.File(path, "r", locking=False, rdcc_nbytes=0) as file:
            yield file
    except EmbstoreError:
        raise
    except Exception as error:
        if not h5py.is_hdf5(path):
            advice = "give the path of a store (NAME.zarr, NAME.h5); to write one here, remove the file first"
            raise StoreFormatError(f"{path} is not an HDF5 file: {advice}") from error
        what = (str(error).splitlines() or [type(error).__name__])[0]
        raise StoreDamagedError(f"the HDF5 library cannot read {path} ({what}): {REPAIR_HINT}") from error


def read_attribute(file: h5py.File) -> Any:
    """Return the attribute "embstore", whose parts are joined, parsed from JSON; None where there is none.

    Raises StoreDamagedError for strings of variable length: the library may look for them without end.
    """
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
