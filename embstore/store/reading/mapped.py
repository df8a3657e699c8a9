"""Rows of one layer in local files, through memory maps: taken at random, or read in order and requested ahead."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import StoreDamagedError
from embstore.kernels import gather_rows, take_rows, will_need
from embstore.store.arrays import ArraySpec
from embstore.store.storage.files import REPAIR_HINT, MappedFile

_BATCH_NBYTES = 32 * 2**20  # of rows that are read from the disk at a time
_COLD_NANOSECONDS_A_ROW = 25_000  # longer than any row takes that is in memory


def request(file: MappedFile, start: int, stop: int) -> None:
    """Start reading bytes `[start, stop)` of a file from the disk; returns at once."""
    start, stop = max(start, 0), min(stop, file.nbytes)
    if start < stop:
        will_need(np.array([file.address + start], np.uint64), stop - start)


class MappedLayer:
    """One layer of an array, whose rows are counted over all partitions, in chunks of `chunk_rows` rows."""

    def __init__(self, spec: ArraySpec, chunk_rows: int) -> None:
        self.files: dict[int, MappedFile] = {}
        self._dtype, self._shape = spec.dtype, (-1, *spec.shape[2:])
        self._n_rows = spec.shape[1]
        self._chunk_rows = chunk_rows
        self._row_nbytes = spec.row_nbytes
        self._batch_rows = max(1, _BATCH_NBYTES // self._row_nbytes)
        self._offsets = np.zeros(-(-self._n_rows // chunk_rows), np.int64)
        self._stops = np.zeros(len(self._offsets), np.int64)  # of the chunks that follow one without a gap
        self._bases = np.zeros(len(self._offsets), np.uint64)  # addresses of chunks, 0 for one that cannot be read

    def place(self, first: int, file: MappedFile, offsets: NDArray[np.int64]) -> None:
        """Set at which byte of a file the chunks from number `first` on begin."""
        part, chunks = slice(first, first + len(offsets)), np.arange(first, first + len(offsets))
        apart = np.flatnonzero(np.diff(offsets) != self._chunk_rows * self._row_nbytes)
        runs = np.append(first + apart + 1, first + len(offsets))
        self._stops[part] = runs[runs.searchsorted(chunks, "right")]
        starts = chunks * self._chunk_rows
        nbytes = np.minimum(self._n_rows - starts, self._chunk_rows) * self._row_nbytes
        inside = (offsets >= 0) & (offsets <= file.nbytes - nbytes)
        self._offsets[part] = offsets
        self._bases[part] = np.where(inside, offsets.view(np.uint64) + np.uint64(file.address), np.uint64(0))

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
        if gather_rows(*layer, rows, out, _COLD_NANOSECONDS_A_ROW) < len(rows):
            self._wait_for(rows, out)

    def _wait_for(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Request rows from the disk, and copy them."""
        chunks, inside = np.divmod(rows, self._chunk_rows)
        inside *= self._row_nbytes
        addresses = self._bases[chunks]
        addresses = (addresses + inside.view(np.uint64))[addresses != 0]
        addresses.sort()
        will_need(addresses, self._row_nbytes)
        if gather_rows(self._bases, self._chunk_rows, self._row_nbytes, rows, out, 0) < len(rows):
            raise StoreDamagedError(f"a chunk lies beyond the end of its file: {REPAIR_HINT}")

    def copied(self, rows: NDArray[np.int64], *which: Any) -> bool:
        """Copy rows as `take` does, unless `kernels.take_rows` leaves them to it; returns whether they were copied."""
        place = self.files, self._bases, self._chunk_rows, self._row_nbytes, _COLD_NANOSECONDS_A_ROW
        n_copied = take_rows(*place, rows, *which) if len(rows) <= self._batch_rows else -1
        if 0 <= n_copied < len(rows):
            self._wait_for(rows, which[-2])
        return n_copied >= 0

    def view(self, file: MappedFile, start: int, stop: int) -> NDArray[Any]:
        """Return rows of one partition from `start` up to `stop`, or fewer, as a read-only view of its file."""
        file.require_whole()
        first, last = self._span(file, start, stop)
        return file.bytes[first:last].view(self._dtype).reshape(self._shape)

    def will_need(self, file: MappedFile, start: int, stop: int) -> None:
        """Start reading rows `[start, stop)` of one partition from the disk; returns at once."""
        while start < stop:
            first, last = self._span(file, start, stop)
            request(file, first, last)
            start += (last - first) // self._row_nbytes

    def _span(self, file: MappedFile, start: int, stop: int) -> tuple[int, int]:
        """Return the bytes of a file that hold rows from `start` on, as far as chunks follow each other."""
        chunk = start // self._chunk_rows
        stop = min(stop, int(self._stops[chunk]) * self._chunk_rows)
        first = int(self._offsets[chunk]) + start % self._chunk_rows * self._row_nbytes
        last = first + (stop - start) * self._row_nbytes
        if first < 0 or last > file.nbytes:
            raise StoreDamagedError(f"a chunk at byte {first} lies beyond the end of {file.path}: {REPAIR_HINT}")
        return first, last
