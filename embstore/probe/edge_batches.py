"""The stream that edge probes learn from: the rows that the spans of some sentences need, all layers, read ahead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import NonFiniteError
from embstore.probe.edge_tasks import EdgeSplit
from embstore.probe.training import VERIFY
from embstore.store import Store

READ_AHEAD = 2


@dataclass(frozen=True, eq=False)
class SpanColumns:
    """Where the first (or second) spans of a batch stand among its vectors.

    `used` int64 [m]: the vectors within these spans, ascending; None where that is all of them. `places` int64
    [entries]: the vectors of one span after the other, as places in `used`; `target` int64 [entries]: whose they are;
    `first` int64 [targets]: where each span begins among them. `single`: every span is one vector.
    """

    used: torch.Tensor | None
    places: torch.Tensor
    target: torch.Tensor
    first: torch.Tensor
    single: bool


@dataclass(frozen=True, eq=False)
class EdgeBatch:
    """Some targets: `vectors` float32 [layer, n, width], `spans` one or two, `gold` float32 [targets, labels].

    `targets`: their places in the split.
    """

    targets: NDArray[np.int64]
    vectors: torch.Tensor
    spans: tuple[SpanColumns, ...]
    gold: torch.Tensor

    def __len__(self) -> int:
        return len(self.gold)


@dataclass(frozen=True, eq=False)
class _Read:
    """A batch as it was read: `room` holds its vectors."""

    targets: NDArray[np.int64]
    rows: NDArray[np.int64]
    vectors: NDArray[Any]
    spans: tuple[_Span, ...]


class _Span(NamedTuple):
    """A kind of span in numpy; see SpanColumns."""

    used: NDArray[np.int64]
    places: NDArray[np.int64]
    target: NDArray[np.int64]
    first: NDArray[np.int64]


def batch_sentences(order: NDArray[np.int64], batch_size: int) -> list[NDArray[np.int64]]:
    """Sentences in their order, so many a batch; within a batch they ascend, as their rows then do."""
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
    """Yield the batches of some sentences of a split, each good until the next is asked for.

    `batch_size`: sentences. A thread reads ahead; no more than READ_AHEAD + 1 batches are held. Raises
    MissingRowsError, NonFiniteError.
    """
    batches = batch_sentences(order, batch_size)
    rooms = [np.empty(0, store.vector_dtype) for _ in range(READ_AHEAD + 1)]

    def read(number: int) -> _Read:
        targets = _targets(split, batches[number])
        rows, spans = _columns([each[targets] for each in split.spans])
        shape = (len(layers), len(rows), store.hidden_size)
        place, size = number % len(rooms), int(np.prod(shape))
        if len(rooms[place]) < size:
            rooms[place] = np.empty(size, store.vector_dtype)
        vectors = rooms[place][:size].reshape(shape)
        store.gather_layers(rows, layers, out=vectors)
        return _Read(targets, rows, vectors, spans)

    with ThreadPoolExecutor(1, "embstore-edges") as reader:
        waiting = [reader.submit(read, number) for number in range(min(READ_AHEAD, len(batches)))]
        try:
            for number in range(len(batches)):
                held = waiting.pop(0).result()
                batch = _placed(held, split, device)
                _require_finite(batch.vectors, held.rows, layers, store)
                if number + READ_AHEAD < len(batches):
                    waiting.append(reader.submit(read, number + READ_AHEAD))
                yield batch
        finally:
            for future in waiting:
                future.cancel()


def _targets(split: EdgeSplit, sentences: NDArray[np.int64]) -> NDArray[np.int64]:
    return _ranges(split.first[sentences], split.first[sentences + 1])


def _ranges(start: NDArray[np.int64], stop: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers of all ranges, one after the other."""
    sizes = stop - start
    ends = np.cumsum(sizes)
    places = np.arange(int(ends[-1]) if len(ends) else 0)
    return np.asarray(places + np.repeat(start - ends + sizes, sizes))


def _columns(spans: Sequence[NDArray[np.int64]]) -> tuple[NDArray[np.int64], tuple[_Span, ...]]:
    """The distinct rows of spans, and where each kind of span stands among them."""
    flat = [_ranges(span[:, 0], span[:, 1]) for span in spans]
    own = [np.unique(each) for each in flat]
    rows = own[0] if len(own) == 1 else np.union1d(own[0], own[1])
    found = []
    for span, entries, held in zip(spans, flat, own, strict=True):
        sizes = span[:, 1] - span[:, 0]
        target = np.repeat(np.arange(len(span)), sizes)
        found.append(
            _Span(np.searchsorted(rows, held), np.searchsorted(held, entries), target, np.cumsum(sizes) - sizes)
        )
    return rows, tuple(found)


def _placed(held: _Read, split: EdgeSplit, device: torch.device) -> EdgeBatch:
    spans = tuple(
        SpanColumns(
            None if len(span.used) == len(held.rows) else torch.from_numpy(span.used).to(device),
            torch.from_numpy(span.places).to(device),
            torch.from_numpy(span.target).to(device),
            torch.from_numpy(span.first).to(device),
            len(span.places) == len(span.first),
        )
        for span in held.spans
    )
    vectors = torch.from_numpy(held.vectors).to(device).to(torch.float32, copy=True)
    gold = torch.from_numpy(split.gold[held.targets]).to(device).float()
    return EdgeBatch(held.targets, vectors, spans, gold)


def _require_finite(vectors: torch.Tensor, rows: NDArray[np.int64], layers: Sequence[int], store: Store) -> None:
    if bool(torch.isfinite(vectors.sum())):
        return
    wrong = torch.nonzero(~torch.isfinite(vectors).all(2))
    if len(wrong):
        layer, place = wrong[0].tolist()
        raise NonFiniteError(
            f"layer {layers[layer]}, row {int(rows[place])} of {store.path} holds a value that is not finite: {VERIFY}"
        )
