"""What a backend offers whose rows come from a server: everything that one question needs, asked for at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


class Part(NamedTuple):
    """Rows of one partition, or of a whole layer (-1): `local` counts from its first.

    They stand at `[first, last)` of those asked for.
    """

    partition: int
    first: int
    last: int
    local: NDArray[np.int64]


class Ahead(Protocol):
    """Reads ascending rows of one array and layer, and begins to read what follows."""

    def read(self, start: int, stop: int, out: NDArray[Any]) -> None:
        """Read committed rows `[start, stop)` of the store into `out`."""
        ...

    def close(self) -> None:
        """Give up what was begun."""
        ...


@runtime_checkable
class FarRows(Protocol):
    """The part of a reader that takes rows of several layers and partitions in one go."""

    def begin(self, array: str, places: Sequence[int], parts: Sequence[Part], out: NDArray[Any]) -> list[Future[None]]:
        """Begin to read rows of layers (counted from 0) into `out` [layer, row, ...]; whole when all have ended."""
        ...

    def ahead(self, array: str, place: int, stop: int) -> Ahead:
        """Return what reads rows of a layer in order, at most up to row `stop`."""
        ...


@runtime_checkable
class FarColumns(Protocol):
    """The part of a reader that brings several frozen arrays in one go."""

    def fetch_columns(self, names: Iterable[str]) -> None:
        """Fetch frozen arrays at the same time, so that `column` has them at hand."""
        ...


def end_all(begun: Sequence[Future[Any]]) -> None:
    """Wait until all have ended; where one fails, give up those not yet begun and raise what it raised."""
    try:
        wait(begun, return_when=FIRST_EXCEPTION)
    finally:  # an interrupt must not leave thousands of requests to be made before the process may end
        for each in begun:
            each.cancel()
    wait(begun)
    for each in begun:
        if not each.cancelled():
            each.result()
