"""The parts of a layer that reducers take side by side: the same ones, and merged in the same order, wherever done."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.analysis.scan import Reducer, Reduction, Scope
from embstore.analysis.steps import one_thread
from embstore.errors import InvalidValueError
from embstore.store import Selection, Store

PART_NBYTES = 64 * 2**20  # of float32
FEWEST, MOST = 2, 256

Figures = dict[int, dict[str, Any]]


@runtime_checkable
class Divisible(Protocol):
    """A reducer that can be made for some of the occurrences alone, so that less has to be sent for them."""

    def of_part(self, scope: Scope, start: int, stop: int, /) -> Reducer[Any]: ...


@dataclass(frozen=True)
class PartOfLayer:
    """Reducers over the occurrences `[start, stop)` of a selection at one layer; gives their states.

    `held`: their rows, or the first of rows that follow each other. `selected`: the rows of the whole selection, None
    for all, as far as the reducers ask for them.
    """

    layer: int
    start: int
    stop: int
    held: NDArray[np.int64] | int
    selected: NDArray[np.int64] | None
    reducers: Mapping[str, Reducer[Any]]
    precision: str
    device: str
    block_rows: int

    @property
    def rows(self) -> int:
        return self.stop - self.start

    def do(self, store: Store) -> dict[str, Any]:
        held = self.held if isinstance(self.held, np.ndarray) else np.arange(self.held, self.held + self.rows)
        reduction = Reduction(
            Selection(store, layers=(self.layer,), filters=(), start=self.selected),
            self.reducers,
            precision=self.precision,
            device=self.device,
            block_rows=self.block_rows,
        )
        with one_thread():
            states = reduction.run(self.layer, self.start, self.stop, rows=held)
        return states if reduction.device.type == "cpu" else {name: _on_cpu(state) for name, state in states.items()}


class LayerParts:
    """The step of a query that runs reducers over a selection; {layer: {name: result}}. The options are `reduce`'s.

    `most_threads`: for whose states there is memory. `local`: whether it is done here, on the device; else only
    merging is.
    """

    def __init__(
        self,
        selection: Selection,
        reducers: Mapping[str, Reducer[Any]],
        *,
        precision: str = "float32",
        device: str = "cpu",
        threads: int | None = None,
        block_rows: int | None = None,
        parts: int | None = None,
        most_threads: int = sys.maxsize,
        local: bool = True,
    ) -> None:
        self.selection = selection
        self._precision = precision
        self._device = device
        self._reduction = Reduction(
            selection, reducers, precision=precision, device=device if local else "cpu", block_rows=block_rows
        )
        self._threads = min(_checked_threads(threads, self._reduction.device), most_threads)
        self._edges = part_edges(len(selection.rows), self._reduction.block_rows, selection.store.hidden_size, parts)

    @property
    def count(self) -> int:
        return len(self._edges) * len(self.selection.layers)

    def here(self, progress: Callable[[int], object]) -> Figures:
        """Reduce the parts in threads of this process."""
        done = 0

        def advance(rows: int) -> None:
            nonlocal done
            done += rows
            progress(done)

        pieces = [(layer, *edges) for layer in self.selection.layers for edges in self._edges]
        threads = min(self._threads, len(pieces))
        cpu = self._reduction.device.type == "cpu"
        begin = partial(torch.set_num_threads, 1 if cpu else torch.get_num_threads())
        with ThreadPoolExecutor(threads, "embstore-scan", begin) as pool:
            tasks = (partial(self._reduction.run, *piece, progress=advance) for piece in pieces)
            return self.taken(in_order(pool, tasks, threads))

    def tasks(self) -> Iterator[PartOfLayer]:
        count = len(self.selection.rows)
        for layer in self.selection.layers:
            scope = self._reduction.scope(layer)
            whole = _of_part(self._reduction.reducers, scope, 0, count)
            sent = all(isinstance(reducer, Divisible) for reducer in whole.values())
            for start, stop in self._edges:
                rows = self.selection.rows[start:stop]
                yield PartOfLayer(
                    layer,
                    start,
                    stop,
                    int(rows[0]) if bool((np.diff(rows) == 1).all()) else rows,
                    None if sent or count == self.selection.store.n_rows else self.selection.rows,
                    _of_part(whole, scope, start, stop),
                    self._precision,
                    self._device,
                    self._reduction.block_rows,
                )

    def taken(self, found: Iterator[Any], /) -> Figures:
        """Merge the states of each layer's parts, which come in order."""
        results = {}
        with one_thread():
            for layer in self.selection.layers:
                states = next(found)
                for _ in self._edges[1:]:
                    states = self._reduction.merge(states, next(found))
                results[layer] = self._reduction.finish(layer, states)
                del states
        return results


def part_edges(count: int, block_rows: int, hidden_size: int, parts: int | None) -> list[tuple[int, int]]:
    """Cut `count` occurrences into parts of whole blocks, the same ones whoever works on them."""
    if parts is not None and parts < 1:
        raise InvalidValueError(f"parts {parts} is not allowed: give 1 or more")
    wanted = min(max(4 * count * hidden_size // PART_NBYTES, FEWEST), MOST)
    wanted = wanted if parts is None else min(wanted, parts)
    blocks = -(-count // block_rows)
    edges = [min(blocks * part // wanted * block_rows, count) for part in range(wanted + 1)]
    return [(start, stop) for start, stop in pairwise(edges) if start < stop]


def in_order(pool: ThreadPoolExecutor, tasks: Iterator[Callable[[], Any]], threads: int) -> Iterator[Any]:
    """Yield what tasks give in their order; as many are worked on as threads, and one more waits or is done."""
    futures: deque[Future[Any]] = deque()
    try:
        for task in tasks:
            futures.append(pool.submit(task))
            if len(futures) > threads:
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()
    finally:
        for future in futures:
            future.cancel()


def _checked_threads(threads: int | None, device: torch.device) -> int:
    if threads is not None and threads < 1:
        raise InvalidValueError(f"threads is {threads}; it must be 1 or more")
    return threads or (torch.get_num_threads() if device.type == "cpu" else 1)


def _of_part(reducers: Mapping[str, Reducer[Any]], scope: Scope, start: int, stop: int) -> dict[str, Reducer[Any]]:
    return {
        name: reducer.of_part(scope, start, stop) if isinstance(reducer, Divisible) else reducer
        for name, reducer in reducers.items()
    }


def _on_cpu(value: Any) -> Any:
    """A reducer's state with all its tensors where every machine has them."""
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {name: _on_cpu(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_on_cpu(part) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            object.__setattr__(value, each.name, _on_cpu(getattr(value, each.name)))
    return value
