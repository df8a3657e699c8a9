"""Rows of a Zarr store that is not mapped: ranged requests, one for each run of near rows, many at the same time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import pairwise
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore.errors import StoreDamagedError
from embstore.store.arrays import ArraySpec
from embstore.store.layout import Layout
from embstore.store.storage.base import KeyNotFoundError, Storage, Version, run_now, wait_all
from embstore.store.storage.files import REPAIR_HINT, Bytes
from embstore.store.zarr.format import shard_key, shard_shape

GAP_NBYTES = 128 * 2**10  # reading that much in between costs less than another request
RUN_NBYTES = 4 * 2**20  # longer runs are split, so that their parts are requested at the same time
MAX_SHARDS = 2**16  # whose versions are remembered, about 200 bytes each
WINDOW_NBYTES = 8 * 2**20  # of a scan, as long as the parts of other reads
MAX_WINDOWS_AHEAD = 4  # 40 MiB in flight keep a network of 10 Gbit/s busy at 30 ms


class Part(NamedTuple):
    """Rows of one partition (-1: of a whole layer), `local` counted from its first row."""

    partition: int
    first: int
    last: int
    local: NDArray[np.int64]


def parts_of(rows: NDArray[np.int64], partitions: NDArray[np.integer], partition_rows: int) -> list[Part]:
    """Group rows, of which each run has one partition."""
    edges = ((partitions[1:] != partitions[:-1]).nonzero()[0] + 1).tolist()
    parts = []
    for first, last in zip([0, *edges], [*edges, len(rows)], strict=True):
        partition = int(partitions[first])
        parts.append(Part(partition, first, last, rows[first:last] - partition * partition_rows))
    return parts


class Shard(NamedTuple):
    """A shard of the layout's size and index, and its version."""

    key: str
    version: Version
    layer_nbytes: int


class RemoteRows:
    """Reads rows of all arrays, layers and partitions of a store by ranged requests, and no more than is requested.

    Rows no further apart than 128 KiB are read by one request, with what lies between them.
    `require_same`: raises where another store has taken the place of this one; it is called whenever shards are opened.
    """

    def __init__(
        self, storage: Storage, layout: Layout, specs: Mapping[str, ArraySpec], *, require_same: Callable[[], None]
    ) -> None:
        self.storage = storage
        self.layout = layout
        self.specs = specs
        self._require_same = require_same
        self._shards: dict[tuple[str, int], Shard] = {}
        self._mutex = Lock()

    def forget(self) -> None:
        """Drop the versions of shards, since a writer may have replaced them."""
        with self._mutex:
            self._shards.clear()

    def begin(
        self, array: str, positions: Sequence[int], parts: Sequence[Part], out: NDArray[Any]
    ) -> list[Future[None]]:
        """Start reading rows of layers (by position) into `out` [layer, row, ...], complete when all futures are."""
        if not out.size:
            return []
        shards = self._open(array, [part.partition for part in parts])
        row_nbytes = self.specs[array].row_nbytes
        target = out.reshape(len(positions) * out.shape[1], -1).view(np.uint8)
        futures = []
        for part, shard in zip(parts, shards, strict=True):
            into = np.arange(len(positions))[:, None] * out.shape[1] + np.arange(part.first, part.last)
            starts = np.asarray(positions)[:, None] * shard.layer_nbytes + part.local * row_nbytes
            starts, into = starts.reshape(-1), into.reshape(-1)
            order = starts.argsort(kind="stable")
            starts, into = starts[order], into[order]
            for first, last in runs_of(starts, row_nbytes, GAP_NBYTES):
                run = starts[first:last], into[first:last]
                futures.append(self.storage.submit(partial(self._read_run, shard, *run, row_nbytes, target)))
        return futures

    def read_rows(self, array: str, position: int, partition: int, start: int, stop: int) -> Bytes:
        """Return rows `[start, stop)` of a partition by one request."""
        shard = self._open(array, [partition], submit=run_now)[0]
        row_nbytes, layer = self.specs[array].row_nbytes, position * shard.layer_nbytes
        return self._get(shard, layer + start * row_nbytes, layer + stop * row_nbytes)

    def _read_run(
        self, shard: Shard, starts: NDArray[np.int64], into: NDArray[np.int64], row_nbytes: int, target: Bytes
    ) -> None:
        begin = int(starts[0])
        body = self._get(shard, begin, int(starts[-1]) + row_nbytes).reshape(-1, row_nbytes)
        target[into] = body[(starts - begin) // row_nbytes]

    def _get(self, shard: Shard, start: int, stop: int) -> Bytes:
        try:
            return self.storage.get_range(shard.key, start, stop, shard.version)
        except KeyNotFoundError:
            gone = f"{self.storage.url(shard.key)} was removed since it was opened: open the store again"
            raise StoreDamagedError(gone) from None

    def _open(
        self, array: str, partitions: Sequence[int], submit: Callable[[Callable[[], Any]], Future[Any]] | None = None
    ) -> list[Shard]:
        """Return the shards of partitions; the indexes of those not yet known are read by `submit`."""
        submit = submit or self.storage.submit
        with self._mutex:
            known = {partition: self._shards.get((array, partition)) for partition in partitions}
        unknown = [partition for partition, shard in known.items() if shard is None]
        if unknown:
            futures = [submit(partial(self._read_index, array, partition)) for partition in unknown]
            same = submit(self._require_same)
            try:
                wait_all(futures)
            except StoreDamagedError:
                self._require_same()
                raise
            same.result()
            known.update(zip(unknown, (future.result() for future in futures), strict=True))
        return [shard for partition in partitions if (shard := known[partition]) is not None]

    def _read_index(self, array: str, partition: int) -> Shard:
        spec, key = self.specs[array], shard_key(self.specs[array], partition)
        start, stop = self.layout.span(partition)
        shape = shard_shape(spec, stop - start)
        try:
            end, size, version = self.storage.tail(key, shape.end_nbytes)
        except KeyNotFoundError:
            missing = f"{self.storage.url(key)} of partition {partition} is missing: {REPAIR_HINT}"
            raise StoreDamagedError(missing) from None
        if size != shape.nbytes or end.tobytes() != shape.end:
            raise StoreDamagedError(f"the size or index of {self.storage.url(key)} was changed: {REPAIR_HINT}")
        shard = Shard(key, version, shape.layer_nbytes)
        with self._mutex:
            if len(self._shards) >= MAX_SHARDS:
                self._shards.clear()
            self._shards[array, partition] = shard
        return shard


def runs_of(starts: NDArray[np.int64], row_nbytes: int, gap_nbytes: int) -> list[tuple[int, int]]:
    """Split ascending offsets of rows into runs `[first, last)`, each worth one request: small gaps, limited length."""
    if not len(starts):
        return []
    breaks = np.flatnonzero(np.diff(starts) > row_nbytes + gap_nbytes) + 1
    runs = []
    for first, last in pairwise([0, *breaks.tolist(), len(starts)]):
        while first < last:
            limit = starts[first] + max(RUN_NBYTES - row_nbytes, 0) + 1
            end = first + int(np.searchsorted(starts[first:last], limit))
            runs.append((first, end))
            first = end
    return runs


class ReadAhead:
    """Reads ascending rows of one layer in windows of 8 MiB, across partitions.

    One window is requested at first, and one more ahead for each that was used, up to four, so that little is read
    in vain where reading ends early.
    """

    def __init__(self, rows: RemoteRows, array: str, position: int, stop: int) -> None:
        self._rows, self._array, self._position, self._stop = rows, array, position, stop
        self._row_nbytes = rows.specs[array].row_nbytes
        self._window_rows = max(1, WINDOW_NBYTES // self._row_nbytes)
        self._windows: deque[tuple[int, int, Future[Bytes]]] = deque()  # rows [start, stop) that are requested
        self._n_ahead = 0

    def read(self, start: int, stop: int, out: NDArray[Any]) -> None:
        """Read committed rows `[start, stop)` of the store into `out`."""
        target = out.reshape(len(out), -1).view(np.uint8)
        row = start
        while row < stop:
            first, end, body = self._window_at(row, stop)
            last = min(end, stop)
            target[row - start : last - start] = body.result().reshape(-1, self._row_nbytes)[row - first : last - first]
            row = last

    def close(self) -> None:
        """Cancel what has been requested."""
        for _, _, body in self._windows:
            body.cancel()
        self._windows.clear()

    def _window_at(self, row: int, stop: int) -> tuple[int, int, Future[Bytes]]:
        """Return the window that holds a row, after requesting the ones ahead of it."""
        while self._windows and self._windows[0][1] <= row:
            self._windows.popleft()
            self._n_ahead = min(self._n_ahead + 1, MAX_WINDOWS_AHEAD)
        if self._windows and row < self._windows[0][0]:
            self.close()
        start, limit = self._windows[-1][1] if self._windows else row, max(stop, self._stop)
        while start < limit and len(self._windows) <= self._n_ahead:
            size = self._rows.layout.partition_rows
            partition, inside = divmod(start, size)
            end = min(start + self._window_rows, (partition + 1) * size, limit)
            window = partial(self._rows.read_rows, self._array, self._position, partition, inside, inside + end - start)
            self._windows.append((start, end, self._rows.storage.submit(window)))
            start = end
        return self._windows[0]
