"""Rows of one layer in one local file: taken at random through the memory map, read in order through the file."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from io import FileIO
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embstore.errors import StoreDamagedError

PAGE = mmap.PAGESIZE
_NEAR_PAGES = 4

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

    def reading(self) -> AbstractContextManager[Read]:
        """Open the file; gives a function `read(start, stop, out)` for ascending rows."""
        ...


@dataclass(frozen=True)
class Run:
    """Rows from `start` on that are contiguous; `offset` is the byte of the first in the file, -1 for rows of fill."""

    start: int
    rows: NDArray[Any]
    offset: int


class MappedRows:
    """A RowSource over a mapped file; usually all its rows are one run."""

    def __init__(self, path: str, mapped: mmap.mmap, runs: Sequence[Run]) -> None:
        self._path = path
        self._mapped = mapped
        self._runs = runs
        self._starts = np.array([run.start for run in runs], np.int64)
        self._whole = runs[0].rows if len(runs) == 1 else None

    def take(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
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
            run = self._runs[runs[first]]
            run.rows.take(rows[first:last] - run.start, 0, out[first:last], "clip")

    def prefetch(self, rows: NDArray[np.int64]) -> None:
        rows = np.sort(rows)
        bounds = [*rows.searchsorted(self._starts).tolist(), len(rows)]
        for run, (first, last) in zip(self._runs, pairwise(bounds), strict=True):
            if first < last and run.offset >= 0:
                _will_need(self._mapped, run.offset, rows[first:last] - run.start, run.rows[0].nbytes)

    @contextmanager
    def reading(self) -> Iterator[Read]:
        with open(self._path, "rb", buffering=0) as file:
            if hasattr(os, "posix_fadvise"):  # Linux; other systems detect sequential reads themselves
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            yield lambda start, stop, out: self._read(file, start, stop, out)

    def _read(self, file: FileIO, start: int, stop: int, out: NDArray[Any]) -> None:
        row = start
        number = int(np.searchsorted(self._starts, start, side="right")) - 1
        while row < stop:
            run = self._runs[number]
            count = min(stop, run.start + len(run.rows)) - row
            target = out[row - start : row - start + count]
            inside = row - run.start
            if run.offset < 0:
                target[...] = run.rows[inside : inside + count]
            else:
                file.seek(run.offset + inside * run.rows[0].nbytes)
                _fill(file, target.reshape(-1).view(np.uint8), self._path)
            row += count
            number += 1


class ChunkedRows:
    """A TakeSource over a whole layer in one file, in which every chunk begins at a multiple of the size of a row.

    `rows`: the file seen as rows. `firsts` int64 [chunk]: the position of each chunk's first row among them.
    """

    def __init__(self, mapped: mmap.mmap, rows: NDArray[Any], firsts: NDArray[np.int64], chunk_rows: int) -> None:
        self._mapped = mapped
        self._rows = rows
        self._shifts = firsts - np.arange(len(firsts)) * chunk_rows
        self._chunk_rows = chunk_rows

    def take(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        self._rows.take(self._positions(rows), 0, out, "clip")

    def prefetch(self, rows: NDArray[np.int64]) -> None:
        _will_need(self._mapped, 0, np.sort(self._positions(rows)), self._rows[0].nbytes)

    def _positions(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._shifts.take(rows // self._chunk_rows, mode="clip") + rows


def _fill(file: FileIO, target: NDArray[np.uint8], path: str) -> None:
    done = 0
    while done < len(target):
        count = file.readinto(target[done:].data)
        if not count:
            raise StoreDamagedError(f"{path} is truncated: run `embstore verify` on the store")
        done += count


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
    fill: int | float,
) -> list[Run]:
    """Join the chunks of one layer that follow each other in a file into runs that cover the first `n_rows` rows.

    `offsets` int64 [chunk]: the byte at which each chunk begins in `data`, -1 for one that is left out and reads as
    the fill value. Raises StoreDamagedError for a chunk beyond the end of the file.
    """
    row_nbytes = dtype.itemsize * int(np.prod(row_shape, dtype=np.int64))
    offsets = offsets[: -(-n_rows // chunk_rows)]
    follows = (np.diff(offsets) == chunk_rows * row_nbytes) & (offsets[:-1] >= 0)
    firsts = np.concatenate([[0], np.flatnonzero(~follows) + 1]).tolist()
    runs = []
    for first, last in zip(firsts, [*firsts[1:], len(offsets)], strict=True):
        start = first * chunk_rows
        count = min(last * chunk_rows, n_rows) - start
        offset = int(offsets[first])
        if offset < 0:
            view = np.full((count, *row_shape), fill, dtype)
        else:
            flat = data[offset : offset + count * row_nbytes]
            if len(flat) < count * row_nbytes:
                raise StoreDamagedError(f"a chunk at byte {offset} lies beyond the end of its file")
            view = flat.view(dtype).reshape(count, *row_shape)
        runs.append(Run(start, view, offset))
    return runs
