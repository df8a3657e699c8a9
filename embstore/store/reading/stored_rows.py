"""Rows of one layer as they are stored, undecoded: read in order where they are dense, from the map elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.store.backend import Reader
from embstore.store.layout import Layout
from embstore.store.reading.scan import Cursor

DENSE = 0.1


class StoredRows:
    """Reads ascending, distinct, committed rows of one array and layer, none beyond `most`; a context manager.

    Pieces of a few MiB are best: where the rows of a piece are dense, all that lies between them is read too.
    """

    def __init__(self, reader: Reader, layout: Layout, array: str, place: int, most: int | None = None) -> None:
        self._reader = reader
        self._size = layout.partition_rows
        self._array = array
        self._place = place
        self._cursor = Cursor(reader, layout, array, place, most)

    def __enter__(self) -> StoredRows:
        return self

    def __exit__(self, *exception: object) -> None:
        self._cursor.__exit__()

    def read(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Read rows into `out` [n, ...], which has the stored dtype and is contiguous."""
        first, last = int(rows[0]), int(rows[-1]) + 1
        if last - first == len(rows):
            self._cursor.read(first, last, out)
        elif len(rows) > DENSE * (last - first):
            between = np.empty((last - first, *out.shape[1:]), out.dtype)
            self._cursor.read(first, last, between)
            between.take(rows - first, 0, out, "clip")
        else:
            self._take(rows, out)

    def _take(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        partitions = rows // self._size
        starts = np.flatnonzero(np.diff(partitions, prepend=-1)).tolist()
        for start, stop in zip(starts, [*starts[1:], len(rows)], strict=True):
            partition = int(partitions[start])
            source = self._reader.rows(self._array, self._place, partition)
            local = rows[start:stop] - partition * self._size
            source.prefetch(local)
            source.take(local, out[start:stop])
