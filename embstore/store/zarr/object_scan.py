"""A layer from first row to last by large requests, the next ones begun before they are needed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore.store.storage.files import Bytes

WINDOW_NBYTES = 8 * 2**20
MOST_AHEAD = 4


BeginRows = Callable[[int, int, int], "Future[Bytes]"]


class Window(NamedTuple):
    """Rows `[start, stop)` of the store that are on their way."""

    start: int
    stop: int
    body: Future[Bytes]


class ReadAhead:
    """Reads ascending rows of one array and layer in windows of 8 MiB.

    One window is asked for at first, and one more ahead for each that was used, up to four; so little that nobody
    needs is read where reading ends early.
    """

    def __init__(self, begin: BeginRows, partition_rows: int, row_nbytes: int, stop: int) -> None:
        self._begin = begin  # rows of a partition, from its first, as bytes
        self._size = partition_rows
        self._row_nbytes = row_nbytes
        self._rows = max(1, WINDOW_NBYTES // row_nbytes)
        self._stop = stop
        self._windows: deque[Window] = deque()
        self._ahead = 0

    def read(self, start: int, stop: int, out: NDArray[Any]) -> None:
        """Read committed rows `[start, stop)` of the store into `out`."""
        target = out.reshape(len(out), -1).view(np.uint8)
        row = start
        while row < stop:
            window = self._window_of(row, stop)
            last = min(window.stop, stop)
            body = window.body.result().reshape(-1, self._row_nbytes)
            target[row - start : last - start] = body[row - window.start : last - window.start]
            row = last

    def close(self) -> None:
        """Give up the windows that were begun."""
        for window in self._windows:
            window.body.cancel()
        self._windows.clear()

    def _window_of(self, row: int, stop: int) -> Window:
        while self._windows and self._windows[0].stop <= row:
            self._windows.popleft()
            self._ahead = min(self._ahead + 1, MOST_AHEAD)
        if self._windows and row < self._windows[0].start:
            self.close()
        following = self._windows[-1].stop if self._windows else row
        for first, last in self._cut(following, max(stop, self._stop)):
            if len(self._windows) > self._ahead:
                break
            partition, inside = divmod(first, self._size)
            self._windows.append(Window(first, last, self._begin(partition, inside, inside + last - first)))
        return self._windows[0]

    def _cut(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        while start < stop:
            end = min(start + self._rows, (start // self._size + 1) * self._size, stop)
            yield start, end
            start = end
