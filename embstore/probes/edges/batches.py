"""Batches of edge probes: the rows that the spans of some sentences need, of all layers, read ahead by a thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import NonFiniteError
from embstore.probes.edges.splits import BatchPlan, EdgeSplit, Spans
from embstore.probes.reading import READ_AHEAD, VERIFY, read_ahead
from embstore.store import Store

GROUP_NBYTES = 2**22  # small batches are read this many bytes at a time: handing one over takes as long as a gather


@dataclass(frozen=True, eq=False)
class SpanColumns:
    """Where the first (or second) spans of a batch are among its vectors; see `Spans`.

    `places` int64 [entries]: the vectors of one distinct span after the other; `begin` int64 [spans + 1]. `of` int64
    [targets]: the span of each target, None if target i has span i. `single`: every span is one vector. `in_order`:
    and span i is vector i.
    """

    places: torch.Tensor
    begin: torch.Tensor
    of: torch.Tensor | None
    single: bool
    in_order: bool

    @classmethod
    def at(cls, spans: Spans, n_rows: int, device: torch.device) -> SpanColumns:
        count = len(spans.begin) - 1
        numbers = np.arange(count)
        own = np.array_equal(spans.of, numbers)
        return cls(
            torch.from_numpy(spans.places).to(device),
            torch.from_numpy(spans.begin).to(device),
            None if own else torch.from_numpy(spans.of).to(device),
            len(spans.places) == count,
            count == n_rows and np.array_equal(spans.places, numbers),
        )

    @property
    def n_spans(self) -> int:
        return len(self.begin) - 1

    def by_target(self, pooled: torch.Tensor) -> torch.Tensor:
        """Return the values [..., spans, width] of the span of each target, [..., targets, width]."""
        return pooled if self.of is None else pooled.index_select(-2, self.of)


@dataclass(frozen=True, eq=False)
class EdgeBatch:
    """Some targets with their vectors: `stored` [layer, n, width] in the dtype of the store (float32 on a GPU).

    `targets`: their numbers in the split. `spans`: one or two. `gold` float32 [targets, labels].
    """

    targets: NDArray[np.int64]
    stored: torch.Tensor
    spans: tuple[SpanColumns, ...]
    gold: torch.Tensor

    def __len__(self) -> int:
        return len(self.gold)

    @cached_property
    def vectors(self) -> torch.Tensor:
        """The vectors as float32, [layer, n, width]."""
        return self.stored.float()


def batch_sentences(order: NDArray[np.int64], batch_size: int) -> list[NDArray[np.int64]]:
    """Cut an order of sentences into batches; within a batch they ascend, as their rows then do."""
    return [np.sort(order[start : start + batch_size]) for start in range(0, len(order), batch_size)]


def iter_batches(
    store: Store,
    split: EdgeSplit,
    order: NDArray[np.int64],
    layers: Sequence[int],
    *,
    batch_size: int,
    device: torch.device,
) -> Iterator[EdgeBatch]:
    """Yield the batches of some sentences of a split; each is valid until the next.

    `batch_size`: sentences. At most READ_AHEAD + 1 batches are in memory, or as many times GROUP_NBYTES of smaller
    ones. Raises MissingRowsError, NonFiniteError for vectors that are not finite.
    """
    batches = batch_sentences(order, batch_size)
    sizes = split.plan.row_counts(batches) * len(layers) * store.hidden_size
    groups = _groups(sizes, GROUP_NBYTES // store.vector_dtype.itemsize)
    size = max((int(sizes[group].sum()) for group in groups), default=0)
    dtype = torch.from_numpy(np.empty(0, store.vector_dtype)).dtype
    buffers = [torch.empty(size, dtype=dtype, pin_memory=device.type == "cuda") for _ in range(READ_AHEAD + 1)]

    def read(number: int) -> list[tuple[BatchPlan, torch.Tensor, NDArray[np.float32]]]:
        buffer, found = buffers[number % len(buffers)], []
        for sentences in batches[groups[number]]:
            plan = split.plan.batch(sentences)
            shape = (len(layers), len(plan.rows), store.hidden_size)
            vectors, buffer = buffer[: prod(shape)].view(shape), buffer[prod(shape) :]
            store.gather_layers(plan.rows, layers, out=vectors.numpy())
            _require_finite(vectors, plan.rows, layers, store)
            found.append((plan, vectors, split.gold[plan.targets].astype(np.float32)))
        return found

    for group in read_ahead(read, len(groups)):
        for plan, vectors, gold in group:
            spans = tuple(SpanColumns.at(each, len(plan.rows), device) for each in plan.spans)
            stored = vectors if device.type == "cpu" else vectors.to(device).float()
            yield EdgeBatch(plan.targets, stored, spans, torch.from_numpy(gold).to(device))


def _groups(sizes: NDArray[np.int64], most: int) -> list[slice]:
    """Join consecutive batches of at most `most` numbers together; a larger batch is a group of its own."""
    ends = np.cumsum(sizes)
    groups, start = [], 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + most, side="right")))
        groups.append(slice(start, stop))
        start = stop
    return groups


def _require_finite(vectors: torch.Tensor, rows: NDArray[np.int64], layers: Sequence[int], store: Store) -> None:
    """Raise NonFiniteError for vectors with NaN or infinity: these remain in a sum of wider numbers."""
    wider = torch.float32 if vectors.itemsize < 4 else torch.float64
    if bool(torch.isfinite(vectors.sum(dtype=wider))):
        return
    layer, place = torch.nonzero(~torch.isfinite(vectors).all(2))[0].tolist()
    raise NonFiniteError(
        f"layer {layers[layer]}, row {int(rows[place])} of {store.path} contains NaN or infinity: {VERIFY}"
    )
