"""Queries in steps: each runs in this process, or as tasks on an executor, with the same result to the bit."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.analysis.word_batches import Computing, word_groups
from embstore.analysis.words import WordRows
from embstore.errors import ExecutorError
from embstore.executors import iter_results
from embstore.store import Store

T = TypeVar("T")
Result = TypeVar("Result", covariant=True)


class Task(Protocol):
    """A picklable unit of work on an open store, run by any worker; its result is pickled too.

    `n_rows`: how many occurrences it reads.
    """

    @property
    def n_rows(self) -> int: ...
    def run(self, store: Store, /) -> Any: ...


class Step(Protocol[Result]):
    """A part of a query that does not depend on the results of other parts."""

    def run(self, progress: Callable[[int], object]) -> Result:
        """Do the whole step in this process."""
        ...

    def tasks(self) -> Iterator[Task]:
        """Yield the tasks of the step."""
        ...

    def combine(self, results: Iterator[Any], /) -> Result:
        """Make the result of the step from the results of its tasks, which come in the order of the tasks."""
        ...


def results_of(
    steps: Sequence[Step[T]], store: Store, *, executor: Executor | None, progress: Callable[[int], object]
) -> Iterator[T]:
    """Yield the result of each step; with an executor the tasks of all steps are submitted one after another.

    `progress`: called with the number of occurrences done, over all steps. Raises the errors of the steps, and
    ExecutorError if workers are lost.
    """
    done = 0

    def advance(base: int, n_rows: int) -> None:
        nonlocal done
        done = base + n_rows
        progress(done)

    if executor is None:
        for step in steps:
            yield step.run(partial(advance, done))
        return
    identity = (pickle.dumps(store), store.metadata.recipe_sha256, store.n_committed_rows)
    sizes: list[int] = []

    def calls() -> Iterator[Callable[[], Any]]:
        for task in chain.from_iterable(step.tasks() for step in steps):
            sizes.append(task.n_rows)
            yield partial(_run_task, identity, task)

    def counted() -> Iterator[Any]:
        for number, result in enumerate(iter_results(executor, calls())):
            advance(done, sizes[number])
            yield result

    results = counted()
    for step in steps:
        yield step.combine(results)
    for _ in results:  # lets the last progress be reported
        pass


def _run_task(identity: tuple[bytes, str, int], task: Task) -> Any:
    return task.run(_open_once(*identity))


@lru_cache(maxsize=2)
def _open_once(pickled: bytes, fingerprint: str, n_committed_rows: int) -> Store:
    """Open the store of a query once in each worker; raises ExecutorError if the path leads to another store."""
    store: Store = pickle.loads(pickled)
    if store.metadata.recipe_sha256 != fingerprint:
        raise ExecutorError(
            f"{store.path} is another store on the worker than on this machine: give a path that leads to the same "
            "store on every machine"
        )
    return store


class WordFunction(Protocol):
    """A value for each word of a layer, [words, ...]; with one thread the same for some words as for all."""

    def __call__(
        self, store: Store, layer: int, words: WordRows, computing: Computing, progress: Callable[[int], object], /
    ) -> NDArray[Any]: ...


@dataclass(frozen=True)
class WordTask:
    """Some words of a layer with all their rows, so that no worker needs the index of the store."""

    layer: int
    words: WordRows
    function: WordFunction
    precision: str
    device: str
    memory: int

    @property
    def n_rows(self) -> int:
        return len(self.words.rows)

    def run(self, store: Store) -> NDArray[Any]:
        computing = Computing.of(self.precision, self.device, self.memory, threads=1)
        with one_thread():
            return self.function(store, self.layer, self.words, computing, lambda done: None)


class WordsStep:
    """The step of a query that computes a value for each word of a layer, [words, ...] in the order of `words`.

    `memory`: bytes that each worker may use. `local`: whether it runs in this process, on the device.
    """

    def __init__(
        self,
        store: Store,
        layer: int,
        words: WordRows,
        function: WordFunction,
        *,
        precision: str,
        device: str,
        memory: int | None,
        local: bool = True,
    ) -> None:
        self._store = store
        self._layer = layer
        self._words = words
        self._function = function
        self._device = device
        self._precision = precision
        self._computing = Computing.of(precision, device if local else "cpu", memory)
        self._groups = [] if local else word_groups(store, words, self._computing)

    def run(self, progress: Callable[[int], object]) -> NDArray[Any]:
        return self._function(self._store, self._layer, self._words, self._computing, progress)

    def tasks(self) -> Iterator[WordTask]:
        for places in self._groups:
            own = self._words.some(places)
            yield WordTask(self._layer, own, self._function, self._precision, self._device, self._computing.memory)

    def combine(self, results: Iterator[Any], /) -> NDArray[Any]:
        out: NDArray[Any] | None = None
        for places in self._groups:
            values = next(results)
            if out is None:
                out = np.empty((len(self._words.types), *values.shape[1:]), values.dtype)
            out[places] = values
        assert out is not None
        return out


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread inside the block, so that sums are rounded in the same way everywhere."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)  # threads made later take what was set last
