"""Executors that do to pieces all that one may: in any order, in threads, twice, pickled on their way, or lost."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from embstore.executor import Executor, Job, Outcome


class Scattered(Executor):
    """Does pieces in an order drawn with `seed`, `threads` at a time; every third is done twice, as after a loss.

    `order`: the places of the pieces in the order in which they are done and given back, drawn where it is not given.
    `done`: how many there were.
    """

    def __init__(self, seed: int = 0, *, threads: int = 2, order: list[int] | None = None) -> None:
        self._rng = np.random.default_rng(seed)
        self._threads = threads
        self._order = order
        self.done = 0

    @property
    def workers(self) -> int:
        return self._threads

    def run(self, job: Job[Any, Any], pieces: Iterable[Any]) -> Iterator[Outcome[Any, Any]]:
        every = list(pieces)
        order = self._rng.permutation(len(every)).tolist() if self._order is None else self._order
        work = pickle.loads(pickle.dumps(job)).begin()
        with ThreadPoolExecutor(self._threads) as pool:
            for place, result in zip(
                order, pool.map(lambda place: _done(work, every[place], place), order), strict=True
            ):
                self.done += 1
                yield Outcome(every[place], result, attempts=1 + (place % 3 == 0))


def _done(work: Any, piece: Any, place: int) -> Any:
    packed = pickle.dumps(piece)
    if place % 3 == 0:
        work(pickle.loads(packed))
    return work(pickle.loads(packed))


class Failing(Executor):
    """Does pieces in their order, of which those at `places` fail with `error` as often as they are tried."""

    def __init__(self, error: Exception, places: tuple[int, ...]) -> None:
        self._error = error
        self._places = places
        self.begun = 0

    @property
    def workers(self) -> int:
        return 1

    def run(self, job: Job[Any, Any], pieces: Iterable[Any]) -> Iterator[Outcome[Any, Any]]:
        work = job.begin()
        for place, piece in enumerate(pieces):
            self.begun += 1
            if place in self._places:
                yield Outcome(piece, error=self._error, attempts=3)
            else:
                yield Outcome(piece, work(piece))


class Losing(Executor):
    """Gives nothing back of the last piece."""

    @property
    def workers(self) -> int:
        return 1

    def run(self, job: Job[Any, Any], pieces: Iterable[Any]) -> Iterator[Outcome[Any, Any]]:
        work = job.begin()
        for piece in list(pieces)[:-1]:
            yield Outcome(piece, work(piece))
