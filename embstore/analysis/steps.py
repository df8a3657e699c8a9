"""A query as steps: each done here, or cut into tasks that an executor does anywhere, to the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Protocol, TypeVar

import torch

from embstore.analysis.spread import Task, spread
from embstore.executor import Executor
from embstore.store import Store

T = TypeVar("T")
Made = TypeVar("Made", covariant=True)


class Step(Protocol[Made]):
    """A part of a query whose result other parts need not wait for.

    `count`: how many tasks it has. `taken` makes the result of what they gave, which comes in their order.
    """

    @property
    def count(self) -> int: ...
    def here(self, progress: Callable[[int], object]) -> Made: ...
    def tasks(self) -> Iterator[Task]: ...
    def taken(self, found: Iterator[object], /) -> Made: ...


def results_of(
    steps: Sequence[Step[T]],
    store: Store,
    *,
    executor: Executor | None,
    memory: int,
    progress: Callable[[int], object],
) -> Iterator[T]:
    """Yield the result of each step; with an executor all their tasks are one run of it.

    `memory`: bytes that results may take which wait for their turn; more of them go to a file. `progress`: is told how
    many occurrences are done, over all steps. Raises what the steps do, ClusterError.
    """
    if executor is None:
        done = 0

        def advance(base: int, rows: int) -> None:
            nonlocal done
            done = base + rows
            progress(done)

        for step in steps:
            yield step.here(partial(advance, done))
        return
    tasks = chain.from_iterable(step.tasks() for step in steps)
    count = sum(step.count for step in steps)
    found = spread(store, tasks, executor, count=count, memory=memory, progress=progress)
    for step in steps:
        yield step.taken(found)
    for _ in found:  # lets the executor end
        pass


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread inside the block, so that sums are made in the same order everywhere."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)  # threads made later take what was set last
