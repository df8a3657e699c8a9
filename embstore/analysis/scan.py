"""Mergeable reducers over the vectors of a store: any number of statistics in one pass over each layer.

A layer is cut into parts by its size alone. Threads reduce one part each, and the states are merged in the order of
the parts, so that the result does not depend on who did which part.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.arguments import checked
from embstore.config import settings
from embstore.devices import choose_device, thread_count, torch_threads
from embstore.errors import InvalidValueError, NonFiniteError, quoted
from embstore.executors import iter_results
from embstore.progress import Progress, reporting
from embstore.store import Selection, Store
from embstore.store.index import Labels
from embstore.store.layout import Layers, one_layer
from embstore.store.vectors import all_finite

Precision = Literal["float32", "float64"]
PRECISIONS = {"float32": torch.float32, "float64": torch.float64}
BLOCK_NBYTES = 4 * 2**20  # of float32: the block of a thread stays in its cache
PART_NBYTES = 64 * 2**20  # of float32
MIN_PARTS, MAX_PARTS = 2, 256  # two, so that every test merges; with more, merging takes longer than reading

State = TypeVar("State")
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


@dataclass(eq=False)
class Batch:
    """Consecutive occurrences of one layer, valid until the next batch is read.

    `rows`: int64 [n], their rows in the store. `start`: the position of the first one in the selection. `stored`: the
    vectors as they were read, a NumPy array [n, hidden_size] that may be read-only and may hold values that are not
    finite.
    """

    store: Store
    layer: int
    start: int
    rows: NDArray[np.int64]
    stored: NDArray[Any]
    _buffer: torch.Tensor

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
        stored = self.stored if self.stored.flags.writeable else self.stored.copy()  # or torch warns
        vectors = self._buffer[: len(self.rows)].copy_(torch.from_numpy(stored))
        norms = torch.linalg.vector_norm(vectors, dim=1)
        if not bool(torch.isfinite(norms.sum())):
            invalid = torch.nonzero(~torch.isfinite(vectors).all(dim=1))
            if len(invalid):
                raise NonFiniteError(
                    f"layer {self.layer}, row {int(self.rows[int(invalid[0])])} holds a value that is not finite: "
                    "run embstore verify, or leave that row out"
                )
            raise beyond_float32(self.layer)
        return vectors, norms

    @cached_property
    def inverse_norms(self) -> torch.Tensor:
        """The factor that scales each vector to unit length, [n]; 0 for a zero vector."""
        return torch.where(self.norms > 0, 1 / self.norms, 0)


def gather_finite(store: Store, rows: NDArray[np.int64], layers: int | Sequence[int]) -> NDArray[Any]:
    """The vectors of some rows of a layer, [n, hidden_size] in the dtype of the store; of several [layer, n, ...].

    Raises MissingRowsError, NonFiniteError.
    """
    vectors: NDArray[Any] = store.vectors(rows, layers=layers)
    if not all_finite(vectors):
        place, row = np.argwhere(~np.isfinite(vectors.reshape(-1, *vectors.shape[-2:])).all(2))[0]
        layer, word = np.atleast_1d(layers)[place], store.index.words[int(store.index.type[rows[row]])]
        raise NonFiniteError(
            f"layer {layer}, row {rows[row]} of {store.path}, {quoted(word)}, holds a value that is not finite: "
            "run embstore verify, or leave that row out"
        )
    return vectors


def beyond_float32(layer: int) -> NonFiniteError:
    """The error for vectors whose squares overflow float32 or vanish in it."""
    return NonFiniteError(f"layer {layer} holds vectors too long or too short for float32: choose precision float64")


class Reducer(Protocol[State]):
    """A statistic over occurrences that is computed block by block: implement these four methods for your own.

    `init` makes a state, `update` adds a block of occurrences to one, `merge` joins two, and `finish` turns the state
    of a layer into its result. States of parts of a selection are merged in any order. `update` and `merge` may modify
    the states they are given, and return the one that counts::

        class Norms:
            def init(self, scope):
                return 0.0

            def update(self, state, batch):
                return state + float(batch.norms.sum())

            def merge(self, state, other):
                return state + other

            def finish(self, state, scope):
                return state / scope.n_rows

        es.reduce(store, {"mean norm": Norms()}, layers=-1)
    """

    def init(self, scope: Scope, /) -> State: ...
    def update(self, state: State, batch: Batch, /) -> State: ...
    def merge(self, state: State, other: State, /) -> State: ...
    def finish(self, state: State, scope: Scope, /) -> Any: ...


def _reduce_rows(
    scope: Scope, reducers: Mapping[str, Reducer[Any]], rows: NDArray[np.int64] | slice, start: int, size: int
) -> dict[str, Any]:
    """Reduce rows in blocks of `size`; the first of them has the position `start` in the selection."""
    states = {name: reducer.init(scope) for name, reducer in reducers.items()}
    selection = Selection(scope.store, layers=scope.layer, rows=rows)
    buffer = torch.empty(min(size, len(selection)), scope.hidden_size, dtype=scope.dtype, device=scope.device)
    for block in selection.scan(block_rows=size, copy=False):
        batch = Batch(scope.store, scope.layer, start, block.rows, block.vectors, buffer)
        for name, reducer in reducers.items():
            states[name] = reducer.update(states[name], batch)
        start += len(batch)
    return states


def in_threads(calls: Iterable[Callable[[], Any]], *, threads: int, in_flight: int | None = None) -> Generator[Any]:
    """Yield what each call returns, in the order of the calls, in threads in which torch computes with one thread each.

    `in_flight`: how many calls may run or have results that were not yielded yet, by default `threads` + 1.
    """
    with (
        torch_threads(torch.get_num_threads()),  # restores it, as the threads of the pool change it for new ones
        ThreadPoolExecutor(threads, "embstore-scan", partial(torch.set_num_threads, 1)) as pool,
    ):
        yield from iter_results(pool, calls, in_flight=in_flight or threads + 1)


@checked
def reduce(
    data: Store | Selection, reducers: Mapping[str, Any], *, layers: Layers = None, precision: Precision = "float32"
) -> Statistics:
    """Compute several statistics over the vectors of a store in one pass over each layer: {layer: {name: result}}.

    Parameters
    ----------
    data : Store or Selection
        The occurrences.
    reducers : mapping of str to Reducer
        What is computed, by name.
    layers : int or sequence of int, optional
        By default all of `data`.
    precision : {"float32", "float64"}
        Of the vectors that reducers are given.

    Raises
    ------
    InvalidValueError
        For an empty selection, a layer that is not stored, an object that is no reducer.
    MissingRowsError, NonFiniteError
        For rows that are not written yet or not finite.
    """
    for name, reducer in reducers.items():
        for method in ("init", "update", "merge", "finish"):
            if isinstance(reducer, type) or not callable(getattr(reducer, method, None)):
                raise InvalidValueError(f"the reducer {name!r} is {quoted(reducer)}, an object without {method}()")
    return scan(data, reducers, layers=layers, precision=precision, progress=settings().progress)


def scan(
    data: Store | Selection,
    reducers: Mapping[str, Reducer[Any]],
    *,
    layers: Layers = None,
    precision: Precision = "float32",
    device: str | None = None,
    threads: int | None = None,
    block_rows: int | None = None,
    parts: int | None = None,
    max_states: int | None = None,
    progress: Progress = False,
) -> Statistics:
    """`reduce` with its limits: the rounding of sums depends on `parts` and `block_rows`.

    `device`, `threads`: those of `es.config` by default.
    `parts`: of a layer at most, by default one for every 64 MiB of float32, between 2 and 256. `max_states`: how many
    states of each reducer may exist at a time (at least 2), for reducers with large ones.
    """
    selection = selected(data, layers)
    n_rows, hidden_size = len(selection), selection.store.hidden_size
    block_rows = block_rows or max(1, BLOCK_NBYTES // (4 * hidden_size))
    where = choose_device(device or settings().device, float64=True)
    scopes = [Scope(selection.store, layer, n_rows, PRECISIONS[precision], where) for layer in selection.layers]
    spans = part_spans(n_rows, block_rows, hidden_size, parts)
    in_flight = None if max_states is None else max_states - 1  # the others are merged into one
    n_calls, threads = len(spans) * len(selection.layers), thread_count(threads or settings().threads)
    n_threads = min(threads, n_calls, in_flight or MAX_PARTS)
    calls = (
        partial(_reduce_rows, scope, reducers, selection.rows_at(start, stop), start, block_rows)
        for scope in scopes
        for start, stop in spans
    )
    results, done = {}, 0
    with (
        reporting(progress, total=n_rows * len(selection.layers), unit="rows", label="reduce") as report,
        torch_threads(1),
        closing(in_threads(calls, threads=n_threads, in_flight=in_flight)) as found,
    ):
        for scope in scopes:
            states: dict[str, Any] = {}
            for start, stop in spans:
                others = next(found)
                states = {
                    name: reducer.merge(states[name], others[name]) if states else others[name]
                    for name, reducer in reducers.items()
                }
                done += stop - start
                report(done)
            results[scope.layer] = {name: reducer.finish(states[name], scope) for name, reducer in reducers.items()}
    return results


def part_spans(n_rows: int, block_rows: int, hidden_size: int, parts: int | None) -> list[tuple[int, int]]:
    """Cut `n_rows` occurrences into parts of whole blocks; the same parts for any number of threads and workers."""
    n_parts = min(max(4 * n_rows * hidden_size // PART_NBYTES, MIN_PARTS), MAX_PARTS)
    n_parts = n_parts if parts is None else min(n_parts, parts)
    n_blocks = -(-n_rows // block_rows)
    edges = [min(n_blocks * part // n_parts * block_rows, n_rows) for part in range(n_parts + 1)]
    return [(start, stop) for start, stop in pairwise(edges) if start < stop]


def selected(data: Store | Selection, layers: Layers = None) -> Selection:
    """A selection of `data` at some layers (-1 and "last": the last one); raises InvalidValueError if it is empty."""
    if isinstance(data, Store):
        selection = data.select(layers=layers)
    elif layers is None:
        selection = data
    else:
        selection = Selection(data.store, rows=data.rows_at(0, len(data)), layers=layers)
    if not len(selection):
        raise InvalidValueError(f"no occurrence of {selection.store.path} is selected: choose other conditions")
    return selection


def labelled(selection: Selection, label: str) -> tuple[NDArray[np.int64], Labels]:
    """Return the selected rows that have a label, ascending, and the label column; raises InvalidValueError."""
    store, columns = selection.store, selection.store.index.labels
    if label not in columns:
        known = ", ".join(columns) or "none"
        raise InvalidValueError(f"there is no label column {label!r}: the store has {known}")
    rows = np.unique(selection.rows)
    rows = rows[np.asarray(columns[label].codes[rows]) >= 0]
    if not len(rows):
        raise InvalidValueError(f"no selected occurrence of {store.path} is labelled in {label!r}")
    return rows, columns[label]


def layer_of(data: Store | Selection, layers: Layers) -> int:
    """The number of the one stored layer that `layers` names; -1 and "last" are the last one of `data`.

    Raises InvalidValueError for several layers and for one that is not stored.
    """
    from_end = isinstance(layers, str) or (isinstance(layers, int) and layers < 0)
    return one_layer(layers, data.layers if from_end or isinstance(data, Store) else data.store.layers)
