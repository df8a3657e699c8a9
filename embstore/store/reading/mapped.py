"""Rows of one layer in one local file: taken at random through the memory map, read in order through the file.

Where another tool has compressed an array, or laid it out otherwise, its library reads the rows.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embstore.errors import StoreDamagedError
from embstore.store.storage.files import REPAIR_HINT, MappedFile, read_at, reading

PAGE = mmap.PAGESIZE
_NEAR_PAGES = 4
_ADVICE_NBYTES = 2**19  # Linux reads no more for one call than its limits on read-ahead and on one request
MAX_EXPANSION = 100_000  # of a column that a library decompresses

Read = Callable[[int, int, NDArray[Any]], None]


class TakeSource(Protocol):
    """Random access to rows of one layer, counted from the first of a partition or of the whole store."""

    def take(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Copy rows, in any order, into `out`."""
        ...

    def prefetch(self, rows: NDArray[np.int64]) -> None:
        """Start reading the pages of rows from the disk before they are taken."""
        ...


class RowSource(TakeSource, Protocol):
    """Random and sequential access to the rows of one layer in one partition, counted from the partition's first."""

    def view(self, start: int, stop: int) -> NDArray[Any] | None:
        """Return rows from `start` up to `stop`, or fewer, as a read-only view of the file; None without one."""
        ...

    def will_need(self, start: int, stop: int) -> None:
        """Start reading rows `[start, stop)` from the disk; returns at once."""
        ...

    def reading(self) -> AbstractContextManager[Read]:
        """Open the file; gives a function `read(start, stop, out)` for ascending rows."""
        ...


@dataclass(frozen=True)
class Run:
    """Rows from `start` on that are contiguous in the file.

    `rows`: the view of them; None where they are left out and read as the fill value. `offset`: the byte of the first.
    """

    start: int
    stop: int
    rows: NDArray[Any] | None
    offset: int


class MappedRows:
    """A RowSource over a mapped file; usually all its rows are one run."""

    def __init__(self, file: MappedFile, runs: Sequence[Run], fill: int | float) -> None:
        self._file = file
        self._runs = runs
        self._fill = fill
        self._starts = np.array([run.start for run in runs], np.int64)
        self._whole = runs[0].rows if len(runs) == 1 else None

    def take(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        self._file.require_whole()
        if self._whole is not None:
            self._whole.take(rows, 0, out, "clip")
            return
        runs = self._starts.searchsorted(rows, "right") - 1
        if (runs[1:] < runs[:-1]).any():
            order = runs.astype(np.uint16 if len(self._runs) <= 2**16 else np.int64).argsort(kind="stable")
            self._take_grouped(rows[order], runs[order], taken := np.empty_like(out))
            out[order] = taken
        else:
            self._take_grouped(rows, runs, out)

    def _take_grouped(self, rows: NDArray[np.int64], runs: NDArray[np.int64], out: NDArray[Any]) -> None:
        edges = ((runs[1:] != runs[:-1]).nonzero()[0] + 1).tolist()
        for first, last in zip([0, *edges], [*edges, len(rows)], strict=True):
            if first == last:
                continue
            run = self._runs[runs[first]]
            if run.rows is None:
                out[first:last] = self._fill
            else:
                run.rows.take(rows[first:last] - run.start, 0, out[first:last], "clip")

    def prefetch(self, rows: NDArray[np.int64]) -> None:
        rows = np.sort(rows)
        bounds = [*rows.searchsorted(self._starts).tolist(), len(rows)]
        for run, (first, last) in zip(self._runs, pairwise(bounds), strict=True):
            if first < last and run.rows is not None:
                _will_need(self._file.map, run.offset, rows[first:last] - run.start, run.rows[0].nbytes)

    def view(self, start: int, stop: int) -> NDArray[Any] | None:
        run = self._runs[int(self._starts.searchsorted(start, "right")) - 1]
        if run.rows is None:
            return None
        self._file.require_whole()
        return run.rows[start - run.start : stop - run.start]

    def will_need(self, start: int, stop: int) -> None:
        if not hasattr(mmap, "MADV_WILLNEED"):  # Windows
            return
        first, last = self._starts.searchsorted((start, stop - 1), "right") - 1
        for run in self._runs[first : last + 1]:
            if run.rows is not None:
                row_nbytes = run.rows[0].nbytes
                begin = run.offset + max(start - run.start, 0) * row_nbytes
                end = run.offset + (min(stop, run.stop) - run.start) * row_nbytes
                for offset in range(begin - begin % PAGE, end, _ADVICE_NBYTES):
                    self._file.map.madvise(mmap.MADV_WILLNEED, offset, min(_ADVICE_NBYTES, end - offset))

    @contextmanager
    def reading(self) -> Iterator[Read]:
        with self._file.reopened() as descriptor:
            if hasattr(os, "posix_fadvise"):  # Linux; other systems detect sequential reads themselves
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            yield lambda start, stop, out: self._read(descriptor, start, stop, out)

    def _read(self, descriptor: int, start: int, stop: int, out: NDArray[Any]) -> None:
        row = start
        number = int(np.searchsorted(self._starts, start, side="right")) - 1
        while row < stop:
            run = self._runs[number]
            end = min(stop, run.stop)
            target = out[row - start : end - start]
            if run.rows is None:
                target[...] = self._fill
            else:
                flat = target.reshape(-1).view(np.uint8)
                with reading(self._file.path):
                    count = read_at(descriptor, flat, run.offset + (row - run.start) * run.rows[0].nbytes)
                if count < len(flat):
                    raise StoreDamagedError(f"{self._file.path} is cut short: {REPAIR_HINT}")
            row = end
            number += 1


class ChunkedRows:
    """A TakeSource over a whole layer in one file, in which every chunk begins at a multiple of the size of a row.

    `rows`: the file seen as rows. `firsts` int64 [chunk]: the position of each chunk's first row among them.
    """

    def __init__(self, file: MappedFile, rows: NDArray[Any], firsts: NDArray[np.int64], chunk_rows: int) -> None:
        self._file = file
        self._rows = rows
        self._shifts = firsts - np.arange(len(firsts)) * chunk_rows
        self._chunk_rows = chunk_rows

    def take(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        self._file.require_whole()
        self._rows.take(self._positions(rows), 0, out, "clip")

    def prefetch(self, rows: NDArray[np.int64]) -> None:
        _will_need(self._file.map, 0, np.sort(self._positions(rows)), self._rows[0].nbytes)

    def _positions(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._shifts.take(rows // self._chunk_rows, mode="clip") + rows


class LibraryRows:
    """A RowSource through the zarr or HDF5 library, for an array that cannot be mapped.

    `open_array`: opens the array in a context. `start`: the partition's first row.
    """

    def __init__(self, open_array: Callable[[], AbstractContextManager[Any]], layer: int, start: int) -> None:
        self._open_array = open_array
        self._layer = layer
        self._start = start

    def take(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        distinct, inverse = np.unique(rows, return_inverse=True)
        with self._open_array() as array:
            out[...] = np.asarray(array[self._layer, distinct + self._start])[inverse]

    def prefetch(self, rows: NDArray[np.int64]) -> None:
        """Does nothing: the library reads what it needs."""

    def view(self, start: int, stop: int) -> None:
        """Return None: the file has no such rows."""

    def will_need(self, start: int, stop: int) -> None:
        """Does nothing: the library reads what it needs."""

    @contextmanager
    def reading(self) -> Iterator[Read]:
        with self._open_array() as array:

            def read(start: int, stop: int, out: NDArray[Any]) -> None:
                out[...] = array[self._layer, self._start + start : self._start + stop]

            yield read


def _will_need(mapped: mmap.mmap, offset: int, rows: NDArray[np.int64], row_nbytes: int) -> None:
    """Advise the kernel to read the pages of ascending rows, those near each other in one call."""
    if not hasattr(mmap, "MADV_WILLNEED"):  # Windows
        return
    first = (offset + rows * row_nbytes) // PAGE
    last = (offset + (rows + 1) * row_nbytes - 1) // PAGE + 1
    gaps = np.flatnonzero(first[1:] > last[:-1] + _NEAR_PAGES)
    starts = first[np.concatenate([[0], gaps + 1])] * PAGE
    stops = np.minimum(last[np.concatenate([gaps, [len(rows) - 1]])] * PAGE, len(mapped))
    for start, nbytes in zip(starts.tolist(), (stops - starts).tolist(), strict=True):
        mapped.madvise(mmap.MADV_WILLNEED, start, nbytes)


def runs_of_chunks(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    *,
    chunk_rows: int,
    n_rows: int,
    dtype: np.dtype[Any],
    row_shape: tuple[int, ...],
) -> list[Run]:
    """Join the chunks of one layer that follow each other in a file into runs that cover the first `n_rows` rows.

    `offsets` int64 [chunk]: the byte at which each chunk begins in `data`, -1 for one that is left out. Raises
    StoreDamagedError for a chunk beyond the end of the file.
    """
    row_nbytes = dtype.itemsize * math.prod(row_shape)
    offsets = offsets[: -(-n_rows // chunk_rows)]
    follows = (np.diff(offsets) == chunk_rows * row_nbytes) & (offsets[:-1] >= 0)
    follows |= (offsets[1:] < 0) & (offsets[:-1] < 0)
    firsts = np.concatenate([[0], np.flatnonzero(~follows) + 1]).tolist()
    runs = []
    for first, last in zip(firsts, [*firsts[1:], len(offsets)], strict=True):
        start, stop = first * chunk_rows, min(last * chunk_rows, n_rows)
        offset = int(offsets[first])
        rows = None
        if offset >= 0:
            nbytes = (stop - start) * row_nbytes
            if offset + nbytes > len(data):
                raise StoreDamagedError(f"a chunk at byte {offset} lies beyond the end of its file")
            rows = data[offset : offset + nbytes].view(dtype).reshape(stop - start, *row_shape)
        runs.append(Run(start, stop, rows, offset))
    return runs
