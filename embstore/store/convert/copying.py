"""Reading the partitions of a copy out of its source, in pieces, so that memory does not grow with the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.store.backend import Reader
from embstore.store.convert.conversion import PartitionBuffer, decode, require_storable, sample_of
from embstore.store.metadata import Metadata
from embstore.store.reading.stored_rows import StoredRows
from embstore.store.storage.checksums import require_whole_index, require_whole_partition
from embstore.store.store import Store
from embstore.store.vectors import STORAGE_DTYPE

PIECE_NBYTES = 2 * 2**20

Rows = NDArray[np.int64]


class Copy:
    """Reads the partitions of a copy out of its source; `rows` None for all of them, `places` the layers' places."""

    def __init__(
        self,
        reader: Reader,
        source: Store,
        metadata: Metadata,
        places: list[int],
        rows: Rows | None,
        *,
        check: bool,
    ) -> None:
        self._source = source
        self._reader = reader
        self._layout = metadata.layout
        self._places = places
        self._rows = rows
        self._records = reader.commits()
        self._checked: set[int] | None = set() if check else None
        if check:
            require_whole_index(reader)
        self.center = self._center()
        self._buffer: PartitionBuffer | None = None

    def arrays(self, partition: int) -> dict[str, NDArray[Any]]:
        """The arrays of a partition of the copy; they are overwritten by the next."""
        if self._buffer is None:
            self._buffer = PartitionBuffer(self._layout, center=self.center)
        start, stop = self._layout.span(partition)
        self._check(start, stop)
        for place in range(len(self._places)):
            if self._layout.dtype == self._source.dtype:
                self._copy(self._buffer, place, start, stop)
            else:
                self._convert(self._buffer, place, start, stop)
        return self._buffer.arrays(stop - start)

    def _copy(self, buffer: PartitionBuffer, place: int, start: int, stop: int) -> None:
        for array in ["hidden_states", "scale"] if self._layout.dtype == "int8" else ["hidden_states"]:
            with self._stored(array, place, stop) as stored:
                for first, rows in self._pieces(start, stop):
                    stored.read(rows, buffer.stored(array, place, first - start, first - start + len(rows)))

    def _convert(self, buffer: PartitionBuffer, place: int, start: int, stop: int) -> None:
        center = self._source.center
        with self._stored("hidden_states", place, stop) as stored, self._stored("scale", place, stop) as scales:
            for first, rows in self._pieces(start, stop):
                numbers = np.empty((len(rows), self._layout.hidden_size), STORAGE_DTYPE[self._source.dtype])
                stored.read(rows, numbers)
                scale = None
                if center is not None:
                    scale = np.empty(len(rows), np.float32)
                    scales.read(rows, scale)
                values = decode(
                    numbers,
                    dtype=self._source.dtype,
                    scale=scale,
                    center=None if center is None else center[self._places[place]],
                )
                buffer.put(place, first - start, values, where=self._namer(rows))

    def _namer(self, rows: Rows) -> Callable[[int], str]:
        return lambda number: f"row {rows[number]} of {self._source.path}"

    def _stored(self, array: str, place: int, stop: int) -> StoredRows:
        most = stop if self._rows is None else int(self._rows[stop - 1]) + 1
        return StoredRows(self._reader, self._source.layout, array, self._places[place], most)

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, Rows]]:
        """Rows `[start, stop)` of the copy in pieces: (first, the rows of the source)."""
        size = max(256, PIECE_NBYTES // (self._layout.hidden_size * 4))
        for first in range(start, stop, size):
            last = min(first + size, stop)
            yield first, np.arange(first, last) if self._rows is None else self._rows[first:last]

    def _check(self, start: int, stop: int) -> None:
        if self._checked is None:
            return
        size = self._source.layout.partition_rows
        if self._rows is None:
            partitions = range(start // size, -(-stop // size))
        else:
            partitions = np.unique(self._rows[start:stop] // size).tolist()
        for partition in partitions:
            if partition not in self._checked:
                require_whole_partition(self._reader, partition, int(self._records[partition, 1]))
                self._checked.add(partition)

    def _center(self) -> NDArray[np.float32] | None:
        """The centre of an int8 copy: the source's own, else the mean of a sample of the rows."""
        if self._layout.dtype != "int8":
            return None
        if self._source.center is not None:
            return self._source.center[self._places]
        sample = sample_of(self._layout.n_rows)
        rows = sample if self._rows is None else self._rows[sample]
        means = []
        for layer in self._layout.layers:
            vectors = self._source.gather(rows, layer)
            require_storable(vectors, dtype="int8", layer=layer, where=self._namer(rows))
            means.append(vectors.mean(0, dtype=np.float64))
        return np.array(means, np.float32)
