"""Mergeable reducers over the vectors of a store: any number of figures in one pass over each layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.devices import choose_device
from embstore.errors import InvalidValueError, NonFiniteError
from embstore.store import Selection, Store

PRECISIONS = {"float32": torch.float32, "float64": torch.float64}
BLOCK_NBYTES = 4 * 2**20  # of float32: a thread's block and what is made of it stay in its cache

State = TypeVar("State")


@dataclass(frozen=True)
class Scope:
    """What a reducer may know before the first block: the selection, and the layer it is about to see."""

    selection: Selection
    layer: int
    dtype: torch.dtype
    device: torch.device

    @property
    def hidden_size(self) -> int:
        return self.selection.store.hidden_size


class Batch:
    """Some vectors of one layer, good until the next ones come.

    `vectors`: [n, hidden_size] in the precision asked for, made when first asked for. `stored`: the same as they were
    read, numpy, perhaps not finite. `rows`: int64 [n], their rows of the store. `start`: which of the selection's
    occurrences the first one is.
    """

    def __init__(
        self, layer: int, start: int, rows: NDArray[np.int64], stored: NDArray[Any], room: torch.Tensor
    ) -> None:
        self.layer = layer
        self.start = start
        self.rows = rows
        self.stored = stored
        self._room = room

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def places(self) -> slice:
        """Which of the selection's occurrences these are."""
        return slice(self.start, self.start + len(self.rows))

    @property
    def vectors(self) -> torch.Tensor:
        return self._measured[0]

    @property
    def norms(self) -> torch.Tensor:
        """The vectors' Euclidean lengths, [n]."""
        return self._measured[1]

    @cached_property
    def _measured(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The vectors and their lengths; raises NonFiniteError for a value that is not finite."""
        vectors = self._room[: len(self.rows)].copy_(torch.from_numpy(self.stored))
        norms = torch.linalg.vector_norm(vectors, dim=1)
        if not bool(torch.isfinite(norms.sum())):
            _refuse_non_finite(self.layer, self.rows, vectors)
        return vectors, norms

    def require_finite(self) -> None:
        """Raise NonFiniteError where `stored` has a value that is not finite, or too long a vector for float32."""
        assert self._measured

    @cached_property
    def unit_scale(self) -> torch.Tensor:
        """What makes each vector one of unit length, [n]; 0 for a zero vector, which so is similar to none."""
        return torch.where(self.norms > 0, 1 / self.norms, 0)


class Reducer(Protocol[State]):
    """A figure over occurrences, made block by block.

    States of parts of a selection merge in any order; `update` and `merge` may change the state they are given.
    """

    def init(self, scope: Scope, /) -> State: ...
    def update(self, state: State, batch: Batch, /) -> State: ...
    def merge(self, state: State, other: State, /) -> State: ...
    def finish(self, state: State, scope: Scope, /) -> Any: ...


class Reduction:
    """Reducers over a selection, part by part: what `reduce` does, for those who spread the parts themselves.

    `run` gives the states of the occurrences `[start, stop)` of the selection at one layer, `merge` joins the
    states of two parts, `finish` makes the figures of a layer.
    """

    def __init__(
        self,
        selection: Selection,
        reducers: Mapping[str, Reducer[Any]],
        *,
        precision: str = "float32",
        device: str = "cpu",
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
        self,
        layer: int,
        start: int,
        stop: int,
        *,
        rows: NDArray[np.int64] | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> dict[str, Any]:
        """`rows`: those of the occurrences, where they are at hand."""
        scope = self.scope(layer)
        states = {name: reducer.init(scope) for name, reducer in self.reducers.items()}
        for batch in self._batches(layer, start, self.selection.rows[start:stop] if rows is None else rows):
            for name, reducer in self.reducers.items():
                states[name] = reducer.update(states[name], batch)
            if progress is not None:
                progress(len(batch))
        return states

    def merge(self, states: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
        return {name: reducer.merge(states[name], others[name]) for name, reducer in self.reducers.items()}

    def finish(self, layer: int, states: Mapping[str, Any]) -> dict[str, Any]:
        scope = self.scope(layer)
        return {name: reducer.finish(states[name], scope) for name, reducer in self.reducers.items()}

    def scope(self, layer: int) -> Scope:
        """What the reducers are told of a layer."""
        return Scope(self.selection, layer, self.dtype, self.device)

    def _batches(self, layer: int, start: int, rows: NDArray[np.int64]) -> Iterator[Batch]:
        part = Selection(self.selection.store, layers=(layer,), rows=rows)
        room = torch.empty(self.block_rows, part.store.hidden_size, dtype=self.dtype, device=self.device)
        place = start
        for block in part.iter_blocks(block_rows=self.block_rows):
            yield Batch(layer, place, block.rows, block.vectors, room)
            place += len(block.rows)


def _refuse_non_finite(layer: int, rows: NDArray[np.int64], vectors: torch.Tensor) -> None:
    """Raise NonFiniteError for vectors of which a sum of lengths is not finite."""
    wrong = torch.nonzero(~torch.isfinite(vectors).all(dim=1))
    if len(wrong):
        row = int(rows[int(wrong[0])])
        raise NonFiniteError(
            f"layer {layer}, row {row} holds a value that is not finite: run embstore verify, or leave it out"
        )
    raise NonFiniteError(f"layer {layer} holds vectors too long for float32: choose the precision float64")


def selected(source: Store | Selection, layers: int | Sequence[int] | None) -> Selection:
    """A selection of `source` at some layers; raises InvalidValueError where it is empty or has no such layer."""
    if isinstance(source, Store):
        selection = source.select(layers=layers)
    elif layers is None:
        selection = source
    else:
        chosen = source.store.select(layers=layers).layers
        selection = Selection(source.store, layers=chosen, rows=source.rows)
    if not len(selection.rows):
        raise InvalidValueError(f"no occurrence is selected of {selection.store.path}: choose other conditions")
    return selection
