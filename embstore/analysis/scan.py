"""Mergeable reducers over the vectors of a store: any number of statistics in one pass over each layer.

A layer is cut into parts by its size alone. Threads, or the workers of an executor, reduce one part each, and the
states are merged in the order of the parts, so that the result does not depend on who did which part.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from threading import Lock
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.devices import choose_device, thread_count, torch_threads
from embstore.errors import ExecutorError, InvalidValueError, NonFiniteError
from embstore.executors import iter_results
from embstore.progress import Progress, reporting
from embstore.store import Selection, Store
from embstore.store.layout import resolve_layer

PRECISIONS = {"float32": torch.float32, "float64": torch.float64}
BLOCK_NBYTES = 4 * 2**20  # of float32: the block of a thread stays in its cache
PART_NBYTES = 64 * 2**20  # of float32
MIN_PARTS, MAX_PARTS = 2, 256

State = TypeVar("State")
StoreIdentity = tuple[bytes, str, int]
Spans = list[tuple[int, int]]
Statistics = dict[int, dict[str, Any]]


@dataclass(frozen=True)
class Scope:
    """What a reducer knows before the first block: the store, the layer and the number of occurrences to come.

    `dtype` and `device` are those of `Batch.vectors`.
    """

    store: Store
    layer: int
    n_rows: int
    dtype: torch.dtype
    device: torch.device

    @property
    def hidden_size(self) -> int:
        return self.store.hidden_size


class Batch:
    """Consecutive occurrences of one layer, valid until the next batch is read.

    `rows`: int64 [n], their rows in the store. `start`: the position of the first one in the selection. `stored`: the
    vectors as they were read, a NumPy array [n, hidden_size] that may hold values that are not finite.
    """

    def __init__(
        self,
        store: Store,
        layer: int,
        start: int,
        rows: NDArray[np.int64],
        stored: NDArray[Any],
        buffer: torch.Tensor,
    ) -> None:
        self.store = store
        self.layer = layer
        self.start = start
        self.rows = rows
        self.stored = stored
        self._buffer = buffer

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def positions(self) -> slice:
        """The positions of these occurrences in the selection."""
        return slice(self.start, self.start + len(self.rows))

    @property
    def vectors(self) -> torch.Tensor:
        """The vectors in the requested precision, [n, hidden_size]; raises NonFiniteError."""
        return self._checked[0]

    @property
    def norms(self) -> torch.Tensor:
        """The Euclidean lengths of the vectors, [n]."""
        return self._checked[1]

    @cached_property
    def _checked(self) -> tuple[torch.Tensor, torch.Tensor]:
        vectors = self._buffer[: len(self.rows)].copy_(torch.from_numpy(self.stored))
        norms = torch.linalg.vector_norm(vectors, dim=1)
        if not bool(torch.isfinite(norms.sum())):
            invalid = torch.nonzero(~torch.isfinite(vectors).all(dim=1))
            if len(invalid):
                raise NonFiniteError(
                    f"layer {self.layer}, row {int(self.rows[int(invalid[0])])} holds a value that is not finite: "
                    "run embstore verify, or leave that row out"
                )
            raise too_long(self.layer)
        return vectors, norms

    def require_finite(self) -> None:
        """Raise NonFiniteError if a value is not finite, or a vector too long for the precision."""
        _ = self._checked

    @cached_property
    def inverse_norms(self) -> torch.Tensor:
        """The factor that scales each vector to unit length, [n]; 0 for a zero vector."""
        return torch.where(self.norms > 0, 1 / self.norms, 0)


def too_long(layer: int) -> NonFiniteError:
    """The error for vectors whose squares overflow float32."""
    return NonFiniteError(f"layer {layer} holds vectors too long for float32: choose precision float64")


class Reducer(Protocol[State]):
    """A statistic over occurrences that is computed block by block: implement these four methods for your own.

    States of parts of a selection are merged in any order. `update` and `merge` may modify the states they are given.
    Reducers and states that are used with an executor must be picklable.
    """

    def init(self, scope: Scope, /) -> State: ...
    def update(self, state: State, batch: Batch, /) -> State: ...
    def merge(self, state: State, other: State, /) -> State: ...
    def finish(self, state: State, scope: Scope, /) -> Any: ...


class Reduction:
    """The steps of `reduce` one by one, for callers that distribute the parts of a selection themselves.

    `run` returns the states of the occurrences `[start, stop)` of the selection at one layer, `merge` joins the states
    of two parts, and `finish` turns the merged states of a layer into results.
    """

    def __init__(
        self,
        selection: Selection,
        reducers: Mapping[str, Reducer[Any]],
        *,
        precision: str = "float32",
        device: str = "auto",
        block_rows: int | None = None,
    ) -> None:
        if precision not in PRECISIONS:
            raise InvalidValueError(f"unknown precision {precision!r}; allowed are {', '.join(PRECISIONS)}")
        if block_rows is not None and block_rows < 1:
            raise InvalidValueError(f"block_rows {block_rows} is not allowed: give 1 or more")
        self.selection = selection
        self.reducers = dict(reducers)
        self.dtype = PRECISIONS[precision]
        self.device = choose_device(device)
        self.block_rows = block_rows or max(1, BLOCK_NBYTES // (4 * selection.store.hidden_size))

    def run(
        self, layer: int, start: int, stop: int, *, progress: Callable[[int], object] | None = None
    ) -> dict[str, Any]:
        """Reduce one part of a layer: {name: state}. `progress` is called with the number of rows of each block."""
        rows = self.selection.rows[start:stop]
        return _run(self.scope(layer), self.reducers, rows, start, self.block_rows, progress)

    def merge(self, states: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
        """Join the states of two parts of a layer."""
        return {name: reducer.merge(states[name], others[name]) for name, reducer in self.reducers.items()}

    def finish(self, layer: int, states: Mapping[str, Any]) -> dict[str, Any]:
        """Turn the merged states of a layer into results: {name: result}."""
        scope = self.scope(layer)
        return {name: reducer.finish(states[name], scope) for name, reducer in self.reducers.items()}

    def scope(self, layer: int) -> Scope:
        """The scope that the reducers are given for a layer."""
        return Scope(self.selection.store, layer, len(self.selection.rows), self.dtype, self.device)


def _run(
    scope: Scope,
    reducers: Mapping[str, Reducer[Any]],
    rows: NDArray[np.int64],
    start: int,
    block_rows: int,
    progress: Callable[[int], object] | None = None,
) -> dict[str, Any]:
    """Reduce the rows of one part, the first of which has the position `start` in the selection."""
    states = {name: reducer.init(scope) for name, reducer in reducers.items()}
    buffer = torch.empty(block_rows, scope.hidden_size, dtype=scope.dtype, device=scope.device)
    for block in rows_of(scope.store, rows, scope.layer).iter_blocks(block_rows=block_rows):
        batch = Batch(scope.store, scope.layer, start, block.rows, block.vectors, buffer)
        for name, reducer in reducers.items():
            states[name] = reducer.update(states[name], batch)
        start += len(batch)
        if progress is not None:
            progress(len(batch))
    return states


def _run_on_worker(
    identity: StoreIdentity,
    layer: int,
    n_rows: int,
    dtype: torch.dtype,
    device: str,
    reducers: Mapping[str, Reducer[Any]],
    *part: Any,
) -> dict[str, Any]:
    """Reduce one part in a worker process; the states come back on the CPU."""
    scope = Scope(open_on_worker(*identity), layer, n_rows, dtype, choose_device(device))
    with torch_threads(1):
        states = _run(scope, reducers, *part)
    return {name: _on_cpu(state) for name, state in states.items()}


def _on_cpu(value: Any) -> Any:
    """The state of a reducer with all its tensors on the CPU."""
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


def identity_of(store: Store) -> StoreIdentity:
    """What a worker needs to open the same store: the pickled store, its fingerprint and its number of rows."""
    return pickle.dumps(store), store.metadata.fingerprint, store.n_committed_rows


@lru_cache(maxsize=2)
def open_on_worker(pickled: bytes, fingerprint: str, n_committed_rows: int) -> Store:
    """Open a store once in each worker process; raises ExecutorError if its path leads to a different store there."""
    store: Store = pickle.loads(pickled)
    if store.metadata.fingerprint != fingerprint:
        raise ExecutorError(
            f"{store.path} is a different store on the worker: give a path to the same store on every machine"
        )
    return store


def reduce(
    data: Store | Selection,
    reducers: Mapping[str, Reducer[Any]],
    *,
    layers: int | str | Sequence[int] | None = None,
    precision: str = "float32",
    device: str = "auto",
    threads: int | None = None,
    block_rows: int | None = None,
    parts: int | None = None,
    executor: Executor | None = None,
    progress: Progress = None,
) -> Statistics:
    """Compute several statistics over the vectors of a store in one pass over each layer: {layer: {name: result}}.

    `precision`: float32 or float64, the dtype of the vectors that reducers are given. `parts`: the maximum number of
    parts of a layer (by default one for every 64 MiB of float32, between 2 and 256); the rounding of sums depends on
    `parts` and `block_rows` alone. `threads`: how many parts are reduced at a time (default: one per core; each has
    states of its own). `executor`: reduce the parts in the workers of a `concurrent.futures.Executor` instead.
    `progress(done, total)` counts occurrences times layers.

    Raises InvalidValueError for an empty selection or a layer that is not stored, MissingRowsError for rows that are
    not yet written, NonFiniteError for values that are not finite, ExecutorError if workers are lost.
    """
    selection = selected(data, layers)
    local = "cpu" if executor is not None else device
    reduction = Reduction(selection, reducers, precision=precision, device=local, block_rows=block_rows)
    spans = part_spans(len(selection.rows), reduction.block_rows, selection.store.hidden_size, parts)
    total = len(selection.rows) * len(selection.layers)
    with reporting(progress, total=total, unit="rows", label="reduce") as report:
        count = Counter(report)
        return reduce_parts(reduction, spans, threads=threads, executor=executor, device=device, advance=count.add)


def reduce_parts(
    reduction: Reduction,
    spans: Spans,
    *,
    threads: int | None,
    executor: Executor | None,
    device: str,
    advance: Callable[[int], object],
    max_pending: int | None = None,
) -> Statistics:
    """Reduce the parts `spans` of every layer in threads or by an executor, and merge their states in order.

    `advance` is called with the number of rows of each block (of each part with an executor). `max_pending`: how many
    results of an executor may wait to be merged, by default two for each worker.
    """
    selection = reduction.selection
    parts = [(layer, *span) for layer in selection.layers for span in spans]
    if executor is None:
        n_threads = min(thread_count(threads), len(parts))
        with thread_pool(n_threads, "embstore-scan") as pool:
            calls = (partial(reduction.run, *part, progress=advance) for part in parts)
            return _merged(reduction, spans, iter_results(pool, calls, in_flight=n_threads + 1))
    identity = identity_of(selection.store)

    def remote_calls() -> Iterator[Callable[[], dict[str, Any]]]:
        for layer, start, stop in parts:
            work = identity, layer, len(selection.rows), reduction.dtype, device, reduction.reducers
            yield partial(_run_on_worker, *work, selection.rows[start:stop], start, reduction.block_rows)

    def reported() -> Iterator[dict[str, Any]]:
        results = iter_results(executor, remote_calls(), in_flight=max_pending)
        for (_, start, stop), states in zip(parts, results, strict=True):
            advance(stop - start)
            yield states

    return _merged(reduction, spans, reported())


def _merged(reduction: Reduction, spans: Spans, found: Iterator[dict[str, Any]]) -> Statistics:
    """Merge the states of the parts of each layer, which arrive in order."""
    results = {}
    with torch_threads(1):
        for layer in reduction.selection.layers:
            states = next(found)
            for _ in spans[1:]:
                states = reduction.merge(states, next(found))
            results[layer] = reduction.finish(layer, states)
            del states
    return results


def part_spans(n_rows: int, block_rows: int, hidden_size: int, parts: int | None) -> Spans:
    """Cut `n_rows` occurrences into parts of whole blocks; the same parts for any number of threads and workers."""
    if parts is not None and parts < 1:
        raise InvalidValueError(f"parts {parts} is not allowed: give 1 or more")
    n_parts = min(max(4 * n_rows * hidden_size // PART_NBYTES, MIN_PARTS), MAX_PARTS)
    n_parts = n_parts if parts is None else min(n_parts, parts)
    n_blocks = -(-n_rows // block_rows)
    edges = [min(n_blocks * part // n_parts * block_rows, n_rows) for part in range(n_parts + 1)]
    return [(start, stop) for start, stop in pairwise(edges) if start < stop]


@contextmanager
def thread_pool(n_threads: int, name: str) -> Iterator[ThreadPoolExecutor]:
    """A pool of threads in which torch computes with one thread each; the setting of this thread is restored."""
    with (
        torch_threads(torch.get_num_threads()),  # restores it, as the threads of the pool change it for new ones
        ThreadPoolExecutor(n_threads, name, partial(torch.set_num_threads, 1)) as pool,
    ):
        yield pool


class Counter:
    """Adds up the work that several threads have done and reports the sum."""

    def __init__(self, report: Callable[[int], object]) -> None:
        self._report = report
        self._lock = Lock()
        self.done = 0

    def add(self, amount: int) -> None:
        with self._lock:
            self.done += amount
            self._report(self.done)


def selected(data: Store | Selection, layers: int | str | Sequence[int] | None = None) -> Selection:
    """A selection of `data` at some layers (-1 and "last": the last one); raises InvalidValueError if it is empty."""
    if isinstance(data, Store):
        selection = data.select(layers=layers)
    elif layers is None:
        selection = data
    else:
        selection = rows_of(data.store, data.rows, layers)
    if not len(selection.rows):
        raise InvalidValueError(f"no occurrence of {selection.store.path} is selected: choose other conditions")
    return selection


def rows_of(store: Store, rows: NDArray[np.int64], layers: int | str | Sequence[int]) -> Selection:
    """The selection of these rows, in their order, at one or several layers."""
    return Selection(store, layers=layers, rows=rows)


def layer_of(data: Store | Selection, layer: int | str) -> int:
    """The number of a stored layer; -1 and "last" are the last layer of `data`. Raises InvalidValueError."""
    from_end = isinstance(layer, str) or layer < 0
    return resolve_layer(layer, data.layers if from_end or isinstance(data, Store) else data.store.layers)
