"""The targets of a split of edge probing as rows of a store, and their batches, read ahead by a thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import NonFiniteError
from embstore.probes.reading import READ_AHEAD, VERIFY, read_ahead
from embstore.store import Store

GROUP_NBYTES = 2**22  # small batches are read this many bytes at a time: handing one over takes as long as a gather


@dataclass(frozen=True, eq=False)
class EdgeSplit:
    """The targets of one split, sentence after sentence.

    `first` int64 [sentences + 1]: the first target of each sentence. `spans`: half-open row ranges int64 [targets, 2],
    one array or two. `gold` bool [targets, labels]. `unknown` int64 [targets]: the number of labels that train does
    not have.
    """

    name: str
    first: NDArray[np.int64]
    spans: tuple[NDArray[np.int64], ...]
    gold: NDArray[np.bool_]
    unknown: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.gold)

    @property
    def n_sentences(self) -> int:
        return len(self.first) - 1

    @cached_property
    def plan(self) -> SplitPlan:
        """The rows and spans of each sentence, computed once."""
        return _planned(self)

    def part(self, sentences: NDArray[np.int64]) -> EdgeSplit:
        """Return some of the sentences, in the order of this split; a sentence may be given more than once."""
        chosen = np.sort(sentences)
        targets = ranges(self.first[chosen], self.first[chosen + 1])
        first = np.concatenate([[0], np.cumsum(np.diff(self.first)[chosen])])
        spans = tuple(span[targets] for span in self.spans)
        return EdgeSplit(self.name, first, spans, self.gold[targets], self.unknown[targets])


@dataclass(frozen=True, eq=False)
class Spans:
    """Distinct spans of some rows, and the span of each target; all int64.

    `places` [entries]: the positions of the rows of one span after the other. `begin` [spans + 1]: the first entry of
    each span. `of` [targets]: the span of each target.
    """

    places: NDArray[np.int64]
    begin: NDArray[np.int64]
    of: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """What a batch reads: `targets`, their numbers in the split, `rows` of the store, and `spans`, one per kind."""

    targets: NDArray[np.int64]
    rows: NDArray[np.int64]
    spans: tuple[Spans, ...]


@dataclass(frozen=True)
class LargestBatch:
    """The sizes of a batch: rows, distinct spans and their entries (of both kinds), targets.

    `all_rows`: the rows of all batches together.
    """

    rows: int = 0
    spans: int = 0
    entries: int = 0
    targets: int = 0
    all_rows: int = 0

    def __or__(self, other: LargestBatch) -> LargestBatch:
        """Return the larger of each size."""
        return LargestBatch(*(max(getattr(self, each.name), getattr(other, each.name)) for each in fields(self)))


@dataclass(frozen=True, eq=False)
class SplitPlan:
    """The rows and spans of every sentence of a split, each distinct within its sentence.

    `rows` and `first_row` [sentences + 1]: the rows of one sentence after the other. `kinds`: the spans, whose places
    count from the first row of their sentence and `of` from its first span, each with `first` [sentences + 1], the
    first span of each sentence.
    """

    first_target: NDArray[np.int64]
    rows: NDArray[np.int64]
    first_row: NDArray[np.int64]
    kinds: tuple[tuple[Spans, NDArray[np.int64]], ...]

    def batch(self, sentences: NDArray[np.int64]) -> BatchPlan:
        """Return the plan of some sentences, one after the other."""
        after = sentences + 1
        n_targets = self.first_target[after] - self.first_target[sentences]
        n_rows = self.first_row[after] - self.first_row[sentences]
        targets = ranges(self.first_target[sentences], self.first_target[after])
        rows = self.rows[ranges(self.first_row[sentences], self.first_row[after])]
        spans = []
        for kind, first in self.kinds:
            start, stop = first[sentences], first[after]
            entry, last_entry = kind.begin[start], kind.begin[stop]
            numbers = ranges(start, stop)
            places = kind.places[ranges(entry, last_entry)] + np.repeat(_starts(n_rows), last_entry - entry)
            begin = np.concatenate([[0], np.cumsum(kind.begin[numbers + 1] - kind.begin[numbers])])
            spans.append(Spans(places, begin, kind.of[targets] + np.repeat(_starts(stop - start), n_targets)))
        return BatchPlan(targets, rows, tuple(spans))

    def row_counts(self, batches: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
        """Return the number of rows that each batch of sentences reads, int64 [batches]."""
        counts = np.diff(self.first_row)
        return np.array([counts[sentences].sum() for sentences in batches], np.int64)

    def largest(self, n_sentences: int) -> LargestBatch:
        """Return upper bounds for the sizes of any batch of this many sentences."""
        return LargestBatch(
            _most(np.diff(self.first_row), n_sentences),
            sum(_most(np.diff(first), n_sentences) for _, first in self.kinds),
            sum(_most(np.diff(kind.begin[first]), n_sentences) for kind, first in self.kinds),
            _most(np.diff(self.first_target), n_sentences),
            len(self.rows),
        )


def ranges(start: NDArray[np.int64], stop: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers of all ranges [start, stop), one range after the other."""
    sizes = stop - start
    return np.arange(int(sizes.sum())) + np.repeat(start - _starts(sizes), sizes)


def _starts(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where each of some consecutive parts begins."""
    return np.asarray(np.cumsum(sizes) - sizes)


def _planned(split: EdgeSplit) -> SplitPlan:
    sentence = np.repeat(np.arange(split.n_sentences), np.diff(split.first))
    highest = 1 + max((int(span.max()) for span in split.spans if len(span)), default=0)
    owners = [np.repeat(sentence, span[:, 1] - span[:, 0]) * highest for span in split.spans]
    entries = [ranges(span[:, 0], span[:, 1]) for span in split.spans]
    keys = np.unique(np.concatenate([owner + each for owner, each in zip(owners, entries, strict=True)]))
    first_row = np.searchsorted(keys, np.arange(split.n_sentences + 1) * highest)
    kinds = tuple(_distinct(span, sentence, split.n_sentences, keys, first_row, highest) for span in split.spans)
    return SplitPlan(split.first, keys % highest, first_row, kinds)


def _distinct(
    span: NDArray[np.int64],
    sentence: NDArray[np.int64],
    n_sentences: int,
    keys: NDArray[np.int64],
    first_row: NDArray[np.int64],
    highest: int,
) -> tuple[Spans, NDArray[np.int64]]:
    """Return the distinct spans of each sentence in the order of their first targets, and the first of each."""
    columns = np.column_stack([sentence, span])
    _, earliest, inverse = np.unique(columns, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(earliest, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    chosen = earliest[order]
    distinct, owner = span[chosen], sentence[chosen]
    first = np.searchsorted(owner, np.arange(n_sentences + 1))
    sizes = distinct[:, 1] - distinct[:, 0]
    rows = ranges(distinct[:, 0], distinct[:, 1])
    places = np.searchsorted(keys, np.repeat(owner, sizes) * highest + rows) - np.repeat(first_row[owner], sizes)
    begin = np.concatenate([[0], np.cumsum(sizes)])
    return Spans(places, begin, rank[inverse.reshape(-1)] - first[sentence]), first


def _most(counts: NDArray[np.int64], n: int) -> int:
    """Return the sum of the n largest counts."""
    count = min(n, len(counts))
    return int(np.partition(counts, len(counts) - count)[len(counts) - count :].sum()) if count else 0


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
    """Raise NonFiniteError for vectors with NaN or infinity; these remain in a sum of wider numbers."""
    if vectors.dtype == torch.float16:  # by their exponents: four times faster than a sum
        finite = int((vectors.numpy().view(np.uint16) & 0x7C00).max(initial=0)) < 0x7C00
    else:
        finite = bool(torch.isfinite(vectors.sum(dtype=torch.float32 if vectors.itemsize < 4 else torch.float64)))
    if finite:
        return
    layer, place = torch.nonzero(~torch.isfinite(vectors).all(2))[0].tolist()
    raise NonFiniteError(
        f"layer {layers[layer]}, row {int(rows[place])} of {store.path} contains NaN or infinity: {VERIFY}"
    )
