"""A layer from first row to last through two buffers that are used in turn."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.store.backend import Reader
from embstore.store.layout import Layout
from embstore.store.reading.mapped import Read
from embstore.store.vectors import (
    SCALE_DTYPE,
    STORAGE_DTYPE,
    VALUE_DTYPE,
    dequantize,
    float32_of_bfloat16,
)
from embstore.store.zarr.remote_rows import Ahead, FarRows

BLOCK_NBYTES = 2 * 2**20


class Turns:
    """Two buffers given out in turn; one that is still held elsewhere is left to its holder and replaced."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._buffers = [np.empty(shape, dtype) for _ in range(2)]
        self._unheld = sys.getrefcount(self._buffers[0])
        self._turn = 0

    def next(self, rows: int) -> NDArray[Any]:
        """The first `rows` rows of the buffer whose turn it is."""
        self._turn ^= 1
        if sys.getrefcount(self._buffers[self._turn]) > self._unheld:
            self._buffers[self._turn] = np.empty_like(self._buffers[self._turn])
        return self._buffers[self._turn][:rows]


class Cursor:
    """Reads ascending rows of one array and layer, across partitions, each file opened once; none beyond `most`."""

    def __init__(self, reader: Reader, layout: Layout, array: str, place: int, most: int | None = None) -> None:
        self._reader = reader
        self._layout = layout
        self._array = array
        self._place = place
        self._partition = -1
        self._files = ExitStack()
        self._read_rows: Read | None = None
        self._far = reader if isinstance(reader, FarRows) else None
        self._ahead: Ahead | None = None
        self._most = layout.n_rows if most is None else most

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *exception: object) -> None:
        self._files.close()
        if self._ahead is not None:
            self._ahead.close()

    def read(self, start: int, stop: int, out: NDArray[Any]) -> None:
        """Read committed rows `[start, stop)` into `out`."""
        if self._far is not None:
            if self._ahead is None:
                self._ahead = self._far.ahead(self._array, self._place, self._most)
            self._ahead.read(start, stop, out)
            return
        size = self._layout.partition_rows
        for partition in range(start // size, -(-stop // size)):
            if partition != self._partition:
                self._files.close()
                source = self._reader.rows(self._array, self._place, partition)
                self._read_rows = self._files.enter_context(source.reading())
                self._partition = partition
            first = max(start, partition * size)
            last = min(stop, (partition + 1) * size)
            assert self._read_rows is not None
            self._read_rows(first - partition * size, last - partition * size, out[first - start : last - start])


def scan_blocks(
    reader: Reader,
    layout: Layout,
    committed: NDArray[np.bool_],
    center: NDArray[np.float32] | None,
    place: int,
    start: int,
    stop: int,
    block_rows: int | None,
    nan: bool,
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield (first row, vectors) over rows `[start, stop)`; those not committed are NaN or left out."""
    value = VALUE_DTYPE[layout.dtype]
    row_nbytes = layout.hidden_size * value.itemsize
    block_rows = min(block_rows or max(BLOCK_NBYTES // row_nbytes, 1), max(stop - start, 1))
    turns = Turns((block_rows, layout.hidden_size), value)
    with Decoder(reader, layout, center, place, block_rows, stop) as decoder:
        for first, last, written in _spans(layout, committed, start, stop):
            if not written and not nan:
                continue
            for row in range(first, last, block_rows):
                end = min(row + block_rows, last)
                if written:
                    yield row, decoder.read(row, end, turns)
                else:
                    yield row, _missing(turns, end - row)


def _missing(turns: Turns, rows: int) -> NDArray[Any]:
    out = turns.next(rows)
    out.fill(np.nan)
    return out


class Decoder:
    """Reads blocks of one layer and turns what is stored into values."""

    def __init__(
        self,
        reader: Reader,
        layout: Layout,
        center: NDArray[np.float32] | None,
        place: int,
        block_rows: int,
        most: int | None = None,
    ) -> None:
        self._dtype = layout.dtype
        self._center = None if center is None else center[place]
        self._vectors = Cursor(reader, layout, "hidden_states", place, most)
        self._scales = Cursor(reader, layout, "scale", place, most)
        direct = layout.dtype in ("float32", "float16")
        self._codes = np.empty((0 if direct else block_rows, layout.hidden_size), STORAGE_DTYPE[layout.dtype])
        self._scale = np.empty(0 if direct else block_rows, SCALE_DTYPE)

    def __enter__(self) -> Decoder:
        return self

    def __exit__(self, *exception: object) -> None:
        self._vectors.__exit__()
        self._scales.__exit__()

    def read(self, start: int, stop: int, turns: Turns) -> NDArray[Any]:
        """The values of committed rows `[start, stop)`, in the buffer whose turn it is."""
        out = turns.next(stop - start)
        if not len(self._codes):
            self._vectors.read(start, stop, out)
            return out
        codes = self._codes[: stop - start]
        self._vectors.read(start, stop, codes)
        if self._center is None:
            return float32_of_bfloat16(codes, out)
        scale = self._scale[: stop - start]
        self._scales.read(start, stop, scale)
        return dequantize(codes, scale, self._center, out)


def _spans(layout: Layout, committed: NDArray[np.bool_], start: int, stop: int) -> Iterator[tuple[int, int, bool]]:
    """Give the runs (first row, last row, whether committed) that rows `[start, stop)` fall into."""
    size = layout.partition_rows
    first = start // size
    flags = committed[first : -(-stop // size)]
    edges = np.flatnonzero(np.diff(flags)) + 1
    bounds = [0, *edges.tolist(), len(flags)]
    for left, right in pairwise(bounds):
        if left < right:
            yield max((first + left) * size, start), min((first + right) * size, stop), bool(flags[left])
