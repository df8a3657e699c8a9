"""Reducers over a store: a layer is cut into parts, which run in threads or on an executor and are merged in order."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.analysis.scan import Reducer, Reduction, Scope, selected
from embstore.analysis.steps import one_thread, results_of
from embstore.errors import InvalidValueError
from embstore.executors import iter_results
from embstore.store import Selection, Store

PART_NBYTES = 64 * 2**20  # of float32
FEWEST, MOST = 2, 256

Figures = dict[int, dict[str, Any]]


@runtime_checkable
class Divisible(Protocol):
    """A reducer that can be restricted to some of the occurrences, so that less is sent to a worker."""

    def of_part(self, scope: Scope, start: int, stop: int, /) -> Reducer[Any]: ...


@dataclass(frozen=True)
class PartOfLayer:
    """A task that runs reducers over the occurrences `[start, stop)` of a selection at one layer; returns their states.

    `rows`: the rows of these occurrences, or the first of consecutive rows. `selected`: the rows of the whole
    selection if a reducer may need them, None for all rows.
    """

    layer: int
    start: int
    stop: int
    rows: NDArray[np.int64] | int
    selected: NDArray[np.int64] | None
    reducers: Mapping[str, Reducer[Any]]
    precision: str
    device: str
    block_rows: int

    @property
    def n_rows(self) -> int:
        return self.stop - self.start

    def run(self, store: Store) -> dict[str, Any]:
        rows = self.rows if isinstance(self.rows, np.ndarray) else np.arange(self.rows, self.rows + self.n_rows)
        reduction = Reduction(
            Selection(store, layers=(self.layer,), rows=self.selected),
            self.reducers,
            precision=self.precision,
            device=self.device,
            block_rows=self.block_rows,
        )
        with one_thread():
            states = reduction.run(self.layer, self.start, self.stop, rows=rows)
        return states if reduction.device.type == "cpu" else {name: _on_cpu(state) for name, state in states.items()}


class LayerParts:
    """The step of a query that runs reducers over a selection; {layer: {name: result}}. The options are `reduce`'s.

    `max_threads`: how many threads the memory has space for the states of. `local`: whether the parts run in this
    process, on the device; otherwise only the merging does.
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
        max_threads: int = sys.maxsize,
        local: bool = True,
    ) -> None:
        self.selection = selection
        self._precision = precision
        self._device = device
        self._reduction = Reduction(
            selection, reducers, precision=precision, device=device if local else "cpu", block_rows=block_rows
        )
        self._threads = min(_checked_threads(threads, self._reduction.device), max_threads)
        self._edges = part_edges(len(selection.rows), self._reduction.block_rows, selection.store.hidden_size, parts)

    def run(self, progress: Callable[[int], object]) -> Figures:
        """Reduce the parts in threads of this process."""
        done = 0

        def advance(rows: int) -> None:
            nonlocal done
            done += rows
            progress(done)

        parts = [(layer, *edges) for layer in self.selection.layers for edges in self._edges]
        threads = min(self._threads, len(parts))
        cpu = self._reduction.device.type == "cpu"
        begin = partial(torch.set_num_threads, 1 if cpu else torch.get_num_threads())
        with ThreadPoolExecutor(threads, "embstore-scan", begin) as pool:
            calls = (partial(self._reduction.run, *part, progress=advance) for part in parts)
            return self.combine(iter_results(pool, calls, in_flight=threads + 1))

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

    def combine(self, results: Iterator[Any], /) -> Figures:
        """Merge the states of each layer's parts, which come in order."""
        figures = {}
        with one_thread():
            for layer in self.selection.layers:
                states = next(results)
                for _ in self._edges[1:]:
                    states = self._reduction.merge(states, next(results))
                figures[layer] = self._reduction.finish(layer, states)
                del states
        return figures


def reduce(
    source: Store | Selection,
    reducers: Mapping[str, Reducer[Any]],
    *,
    layers: int | Sequence[int] | None = None,
    precision: str = "float32",
    device: str = "cpu",
    threads: int | None = None,
    block_rows: int | None = None,
    parts: int | None = None,
    executor: Executor | None = None,
    progress: Callable[[int], object] | None = None,
) -> dict[int, dict[str, Any]]:
    """Compute any number of figures in one pass over each layer of a store or a selection: {layer: {name: result}}.

    Parameters
    ----------
    reducers:
        The figures by name; see `Reducer`. With an executor they and their states are pickled.
    precision:
        What the vectors are computed in: float32 or float64.
    device:
        cpu, cuda or auto.
    threads:
        How many parts are reduced at a time, each with states of its own; by default one a core.
    parts:
        The largest number of parts that a layer is cut into; by default one for each 64 MiB of float32, 2 to 256. The
        parts, merged in order, and `block_rows` alone decide how sums are rounded.
    executor:
        Any `concurrent.futures.Executor` to run the parts on, each with one thread; by default threads of this
        process. The results are the same to the bit.
    progress:
        Called with the number of occurrences done, of `len(layers) * n` in all.

    Raises
    ------
    InvalidValueError
        For an empty selection or a layer that is not stored.
    MissingRowsError
        For rows that are not written yet.
    NonFiniteError
        For values that are not finite.
    ExecutorError
        If a worker is lost.
    """
    step = LayerParts(
        selected(source, layers),
        reducers,
        precision=precision,
        device=device,
        threads=threads,
        block_rows=block_rows,
        parts=parts,
        local=executor is None,
    )
    (figures,) = results_of([step], step.selection.store, executor=executor, progress=progress or (lambda done: None))
    return figures


def part_edges(count: int, block_rows: int, hidden_size: int, parts: int | None) -> list[tuple[int, int]]:
    """Cut `count` occurrences into parts of whole blocks, which depend on the arguments alone."""
    if parts is not None and parts < 1:
        raise InvalidValueError(f"parts {parts} is not allowed: give 1 or more")
    wanted = min(max(4 * count * hidden_size // PART_NBYTES, FEWEST), MOST)
    wanted = wanted if parts is None else min(wanted, parts)
    blocks = -(-count // block_rows)
    edges = [min(blocks * part // wanted * block_rows, count) for part in range(wanted + 1)]
    return [(start, stop) for start, stop in pairwise(edges) if start < stop]


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
