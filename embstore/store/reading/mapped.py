"""Rows of one layer in local files, through memory maps: taken at random, or read in order and requested ahead.

Where another tool has compressed an array, or laid it out otherwise, its library reads the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embstore.errors import StoreDamagedError
from embstore.kernels import gather_rows, will_need
from embstore.store.arrays import ArraySpec
from embstore.store.storage.files import REPAIR_HINT, MappedFile, crc32c

_BLOCK_NBYTES = 2**24

MAX_EXPANSION = 100_000  # of a column that a library decompresses

_BATCH_NBYTES = 32 * 2**20  # of rows that are read from the disk at a time
_COLD_NANOSECONDS_A_ROW = 25_000
_REPEATED = 2**63  # of an address: every row of the chunk is the one there


def request(file: MappedFile, start: int, stop: int) -> None:
    """Start reading bytes `[start, stop)` of a file from the disk; returns at once."""
    start, stop = max(start, 0), min(stop, file.nbytes)
    if start < stop:
        will_need(np.array([file.address + start], np.uint64), stop - start, file.is_own)


class RowSource(Protocol):
    """Sequential access to the rows of one layer in one partition, counted from the partition's first."""

    def view(self, start: int, stop: int) -> NDArray[Any] | None:
        """Return rows from `start` up to `stop`, or fewer, as a read-only view of the file; None without one."""
        ...

    def read(self, start: int, stop: int, out: NDArray[Any]) -> None:
        """Copy rows `[start, stop)` into `out`."""
        ...

    def will_need(self, start: int, stop: int) -> None:
        """Start reading rows `[start, stop)` from the disk; returns at once."""
        ...


class MappedLayer:
    """One layer of all partitions as the addresses of its chunks in memory: random access to all its rows.

    `files`: those in which partitions are.
    """

    def __init__(self, spec: ArraySpec, chunk_rows: int) -> None:
        self.files: dict[int, MappedFile] = {}
        self._n_rows = spec.shape[1]
        self._chunk_rows = chunk_rows
        self._fill = np.full(spec.shape[2:], spec.fill, spec.dtype)
        self._row_nbytes = self._fill.nbytes
        self._batch_rows = max(1, _BATCH_NBYTES // self._row_nbytes)
        self._bases = np.zeros(-(-self._n_rows // chunk_rows), np.uint64)

    def place(self, first: int, file: MappedFile, offsets: NDArray[np.int64]) -> None:
        """Set at which byte of a file chunks from number `first` on begin, -1 for one that is left out."""
        part = self._bases[first : first + len(offsets)]
        offsets = offsets[: len(part)]
        starts = np.arange(first, first + len(part)) * self._chunk_rows
        nbytes = np.minimum(self._n_rows - starts, self._chunk_rows) * self._row_nbytes
        addresses = np.where(offsets > file.nbytes - nbytes, 0, offsets.view(np.uint64) + file.address)
        part[...] = np.where(offsets < 0, self._fill.ctypes.data | _REPEATED, addresses)

    def take(self, rows: NDArray[np.int64], files: Iterable[MappedFile], out: NDArray[Any]) -> None:
        """Copy rows, in any order, into `out`, which is C-contiguous. `files`: those of the rows.

        Where the first rows have to wait for the disk, all are requested from it first. Raises StoreDamagedError where
        a file has become shorter.
        """
        for file in files:
            if file.size() < file.nbytes:  # a call less for each file
                file.require_whole()
        step = self._batch_rows
        if len(rows) > step:
            for start in range(0, len(rows), step):
                self.take(rows[start : start + step], (), out[start : start + step])
            return
        layer = self._bases, self._chunk_rows, self._row_nbytes
        n_copied = gather_rows(*layer, rows, out, _COLD_NANOSECONDS_A_ROW)
        if n_copied < len(rows):
            chunks, inside = np.divmod(rows, self._chunk_rows)
            inside *= self._row_nbytes
            addresses = self._bases[chunks]
            addresses = (addresses + inside.view(np.uint64))[(addresses != 0) & (addresses < _REPEATED)]
            addresses.sort()
            will_need(addresses, self._row_nbytes)
            n_copied = gather_rows(*layer, rows, out, 0)
        if n_copied < len(rows):
            raise StoreDamagedError(f"a chunk lies beyond the end of its file: {REPAIR_HINT}")


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

    def view(self, start: int, stop: int) -> NDArray[Any] | None:
        run = self._runs[int(self._starts.searchsorted(start, "right")) - 1]
        if run.rows is None:
            return None
        self._file.require_whole()
        return run.rows[start - run.start : stop - run.start]

    def will_need(self, start: int, stop: int) -> None:
        first, last = self._starts.searchsorted((start, stop - 1), "right") - 1
        for run in self._runs[first : last + 1]:
            if run.rows is not None:
                row_nbytes = run.rows[:1].nbytes
                first_byte = run.offset + max(start - run.start, 0) * row_nbytes
                request(self._file, first_byte, run.offset + (min(stop, run.stop) - run.start) * row_nbytes)

    def read(self, start: int, stop: int, out: NDArray[Any]) -> None:
        first, last = self._starts.searchsorted((start, stop - 1), "right") - 1
        for run in self._runs[first : last + 1]:
            low, high = max(start, run.start), min(stop, run.stop)
            if run.rows is None:
                out[low - start : high - start] = self._fill
                continue
            rows = run.rows[low - run.start : high - run.start]
            first_byte = run.offset + (low - run.start) * run.rows[:1].nbytes
            self._file.bring_in(first_byte, first_byte + rows.nbytes)
            out[low - start : high - start] = rows


class LibraryRows:
    """A RowSource through the zarr or HDF5 library, for an array that cannot be mapped.

    `open_array`: opens the array in a context. `start`: the partition's first row.
    """

    def __init__(self, open_array: Callable[[], AbstractContextManager[Any]], layer: int, start: int) -> None:
        self._open_array = open_array
        self._layer = layer
        self._start = start

    def take(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Copy rows, in any order, into `out`."""
        distinct, inverse = np.unique(rows, return_inverse=True)
        with self._open_array() as array:
            out[...] = np.asarray(array[self._layer, distinct + self._start])[inverse]

    def view(self, start: int, stop: int) -> None:
        """Return None: the file has no such rows."""

    def read(self, start: int, stop: int, out: NDArray[Any]) -> None:
        with self._open_array() as array:  # each time, so that any error of the library is raised as ours
            out[...] = array[self._layer, self._start + start : self._start + stop]

    def will_need(self, start: int, stop: int) -> None:
        """Does nothing: the library reads what it needs."""


def crc32c_of_rows(source: RowSource, n_rows: int, spec: ArraySpec, crc: int) -> int:
    """Extend a CRC32C by all rows of one layer of a partition, as they are read."""
    at_once = max(1, _BLOCK_NBYTES // (spec.dtype.itemsize * math.prod(spec.shape[2:])))
    for start in range(0, n_rows, at_once):
        stop = min(start + at_once, n_rows)
        rows = np.empty((stop - start, *spec.shape[2:]), spec.dtype)
        source.read(start, stop, rows)
        crc = crc32c(rows, crc)
    return crc


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
