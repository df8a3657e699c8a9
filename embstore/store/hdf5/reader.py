"""Reading an HDF5 store: the file is mapped at the addresses that the HDF5 library names."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from embstore.errors import EmbstoreError, StoreDamagedError, StoreFormatError
from embstore.store.arrays import COMMIT_DTYPE, COMMITS, ArraySpec, frozen_spec, payload_specs
from embstore.store.hdf5.format import read_attribute
from embstore.store.hdf5.offsets import Places, find_places, get_dataset, place_rows
from embstore.store.metadata import Metadata, StoredArray, parse
from embstore.store.reading.mapped import ChunkedRows, MappedRows, Read, RowSource, TakeSource, runs_of_chunks
from embstore.store.storage.files import MEND, map_file, reading


class HDF5Reader:
    """The arrays of an HDF5 store; the library is asked for addresses once, at opening."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata, self.arrays, self.places = read_places(path)
        self._specs = {spec.path: spec for spec in payload_specs(self.metadata)}
        with reading(path):
            mapped = map_file(path)
            scattered = map_file(path, advice=mmap.MADV_RANDOM)
        if mapped is None or scattered is None:
            raise StoreDamagedError(f"{path} is empty: {MEND}")
        self._scattered = scattered
        self._bytes = np.frombuffer(mapped, np.uint8)
        self._sources: dict[tuple[str, int, int], RowSource] = {}
        self._layers: dict[tuple[str, int], TakeSource | None] = {}
        self._check_a_row()

    def commits(self) -> NDArray[np.uint64]:
        start, stop = self._span(COMMITS)
        with reading(self.path), open(self.path, "rb") as file:
            records = os.pread(file.fileno(), stop - start, start)
        if len(records) < stop - start:
            raise StoreDamagedError(f"{self.path} is cut short: {MEND}")
        return np.frombuffer(records, COMMIT_DTYPE).reshape(-1, 2).copy()

    def settled(self) -> bool:
        """Whether the writer has ended: here nothing is left to do once all is committed."""
        return True

    def forget(self) -> None:
        """Nothing changes its place in the file."""

    def column(self, name: str) -> NDArray[Any]:
        """Map a frozen array, read-only."""
        spec = frozen_spec(name, self.arrays[name].shape)
        if name not in self.places.spans:
            return self._column_by_h5py(spec)
        start, stop = self._span(name)
        return self._bytes[start:stop].view(spec.dtype).reshape(spec.shape)

    def layer(self, array: str, layer: int) -> TakeSource | None:
        """Return the rows of all partitions at once, where every chunk stands on a row of the file."""
        key = (array, layer)
        if key not in self._layers:
            self._layers[key] = self._whole_layer(self._specs[array], layer)
        return self._layers[key]

    def _whole_layer(self, spec: ArraySpec, layer: int) -> TakeSource | None:
        if spec.path not in self.places.chunks:
            return None
        offsets = self.places.chunks[spec.path][layer]
        row_nbytes = self.places.chunk_nbytes[spec.path] // self.places.chunk_rows[spec.path]
        ends = offsets.max() + self.places.chunk_nbytes[spec.path]
        if (offsets < 0).any() or (offsets % row_nbytes).any() or ends > len(self._bytes):
            return None
        count = len(self._bytes) // row_nbytes
        rows = np.frombuffer(self._scattered, np.uint8, count * row_nbytes).view(spec.dtype)
        return ChunkedRows(
            self._scattered,
            rows.reshape(count, *spec.shape[2:]),
            offsets // row_nbytes,
            self.places.chunk_rows[spec.path],
        )

    def rows(self, array: str, layer: int, partition: int) -> RowSource:
        """Return the rows of stored layer number `layer` (counted from 0) of a committed partition."""
        key = (array, layer, partition)
        source = self._sources.get(key)
        if source is None:
            source = self._sources[key] = self._open_rows(self._specs[array], layer, partition)
        return source

    def _open_rows(self, spec: ArraySpec, layer: int, partition: int) -> RowSource:
        start, stop = self.metadata.layout.span(partition)
        if spec.path not in self.places.chunks:
            return HDF5Rows(self.path, spec.path, layer, start)
        offsets, chunk_rows = place_rows(self.places, spec, layer, start, stop)
        runs = runs_of_chunks(
            np.frombuffer(self._scattered, np.uint8),
            offsets,
            chunk_rows=chunk_rows,
            n_rows=stop - start,
            dtype=spec.dtype,
            row_shape=spec.shape[2:],
            fill=spec.fill,
        )
        return MappedRows(str(self.path), self._scattered, runs)

    def _span(self, name: str) -> tuple[int, int]:
        start, stop = self.places.spans[name]
        if stop > len(self._bytes):
            raise StoreDamagedError(f"{self.path} is cut short: {MEND}")
        return start, stop

    def _column_by_h5py(self, spec: ArraySpec) -> NDArray[Any]:
        with open_file(self.path) as file:
            return np.asarray(get_dataset(file, spec)[...])

    def _check_a_row(self) -> None:
        """Hold one committed row, as mapped, against the HDF5 library's reading of it."""
        written = np.flatnonzero(self.commits()[:, 0] <= self.metadata.n_rows)
        if not len(written) or "hidden_states" not in self.places.chunks:
            return
        spec = self._specs["hidden_states"]
        start, _ = self.metadata.layout.span(int(written[0]))
        row = np.empty((1, *spec.shape[2:]), spec.dtype)
        self.rows("hidden_states", 0, int(written[0])).take(np.zeros(1, np.int64), row)
        with open_file(self.path) as file:
            expected = get_dataset(file, spec)[0, start]
        if row.tobytes() != expected.tobytes():
            raise StoreDamagedError(f"{self.path} has its chunks elsewhere than the HDF5 library says: {MEND}")


class HDF5Rows:
    """A RowSource through h5py, for an array that cannot be mapped; `start` is the partition's first row."""

    def __init__(self, path: Path, name: str, layer: int, start: int) -> None:
        self._path = path
        self._name = name
        self._layer = layer
        self._start = start

    def take(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        distinct, places = np.unique(rows, return_inverse=True)
        with open_file(self._path) as file:
            found = np.asarray(file[self._name][self._layer, distinct + self._start])
        out[...] = found[places]

    def prefetch(self, rows: NDArray[np.int64]) -> None:
        pass

    @contextmanager
    def reading(self) -> Iterator[Read]:
        with open_file(self._path) as file:
            dataset = file[self._name]

            def read(start: int, stop: int, out: NDArray[Any]) -> None:
                out[...] = dataset[self._layer, self._start + start : self._start + stop]

            yield read


@contextmanager
def open_file(path: Path) -> Iterator[h5py.File]:
    """Open for reading, without HDF5's own lock: nothing is ever written through the library.

    Whatever the library makes of a damaged file, inside the context too, is a StoreDamagedError.
    """
    with reading(path), open(path, "rb"):
        pass
    try:
        with h5py.File(path, "r", locking=False, rdcc_nbytes=0) as file:
            yield file
    except EmbstoreError:
        raise
    except Exception as error:
        if not h5py.is_hdf5(path):
            raise StoreFormatError(f"{path} is not an HDF5 file") from error
        what = (str(error).splitlines() or [type(error).__name__])[0]
        raise StoreDamagedError(f"the HDF5 library cannot read {path} ({what}): {MEND}") from error


def read_metadata(path: Path) -> tuple[Metadata, dict[str, StoredArray]]:
    """Read the metadata of a store and which arrays it has."""
    with open_file(path) as file:
        return parse(read_attribute(file), path=str(path))


def read_places(path: Path) -> tuple[Metadata, dict[str, StoredArray], Places]:
    """Read the metadata of a store and where its arrays stand."""
    with open_file(path) as file:
        metadata, arrays = parse(read_attribute(file), path=str(path))
        return metadata, arrays, find_places(file, metadata, arrays)
