"""The targets of a split of edge probing as rows of a store, and their batches, read ahead by a thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import NonFiniteError
from embstore.probes.training import READ_AHEAD, VERIFY
from embstore.store import Store
from embstore.store.reading.ahead import read_ahead
from embstore.store.vectors import VALUE_DTYPE, all_finite

GROUP_NBYTES = 2**21  # small batches are read this many bytes at a time, which takes fewer calls


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
    """Distinct spans of the rows of each part, in the order of their first targets; all int64.

    `places` [entries]: the positions, counted from the first row of their part, of the rows of one span after the
    other. `begin` [spans + 1]: the first entry of each span. `of` [targets]: the span of each target, counted from the
    first one of its part. `first` [parts + 1]: the first span of each part.
    """

    places: NDArray[np.int64]
    begin: NDArray[np.int64]
    of: NDArray[np.int64]
    first: NDArray[np.int64]


class LargestBatch(NamedTuple):
    """The sizes of a batch: rows, distinct spans and their entries (of both kinds), targets.

    `all_rows`: the rows of all batches together.
    """

    rows: int
    spans: int
    entries: int
    targets: int
    all_rows: int


@dataclass(frozen=True, eq=False)
class SplitPlan:
    """What each part of a split reads: a part is a sentence, or a batch of them.

    `targets`: their numbers in the split, and `rows` of the store, distinct within a sentence, of one part after the
    other; `first_target` and `first_row` [parts + 1]: the first ones of each part. `spans`: one per kind.
    """

    targets: NDArray[np.int64]
    first_target: NDArray[np.int64]
    rows: NDArray[np.int64]
    first_row: NDArray[np.int64]
    spans: tuple[Spans, ...]

    def batch(self, sentences: NDArray[np.int64]) -> SplitPlan:
        """Return the plan of some sentences, one after the other, as one part."""
        return self.batches([sentences])

    def batches(self, batches: Sequence[NDArray[np.int64]]) -> SplitPlan:
        """Return the plan of batches of sentences, each with one or more, of a plan whose parts are sentences."""
        sizes = np.array([len(sentences) for sentences in batches])
        sentences, first = np.concatenate(batches), np.concatenate([[0], np.cumsum(sizes)])
        after = sentences + 1

        def within(counts: NDArray[np.int64]) -> NDArray[np.int64]:
            """Return where each sentence begins in its batch."""
            starts = _starts(counts)
            return np.asarray(starts - np.repeat(starts[first[:-1]], sizes))

        def firsts(counts: NDArray[np.int64]) -> NDArray[np.int64]:
            """Return where each batch begins."""
            return np.asarray(np.concatenate([[0], np.cumsum(counts)])[first])

        n_targets = self.first_target[after] - self.first_target[sentences]
        n_rows = self.first_row[after] - self.first_row[sentences]
        targets = ranges(self.first_target[sentences], self.first_target[after])
        rows = self.rows[ranges(self.first_row[sentences], self.first_row[after])]
        spans = []
        for kind in self.spans:
            start, stop = kind.first[sentences], kind.first[after]
            entry, last_entry = kind.begin[start], kind.begin[stop]
            numbers = ranges(start, stop)
            places = kind.places[ranges(entry, last_entry)] + np.repeat(within(n_rows), last_entry - entry)
            begin = np.concatenate([[0], np.cumsum(kind.begin[numbers + 1] - kind.begin[numbers])])
            of = kind.of[targets] + np.repeat(within(stop - start), n_targets)
            spans.append(Spans(places, begin, of, firsts(stop - start)))
        return SplitPlan(self.targets[targets], firsts(n_targets), rows, firsts(n_rows), tuple(spans))

    def largest(self, n_sentences: int) -> LargestBatch:
        """Return upper bounds for the sizes of any batch of this many sentences."""
        return LargestBatch(
            _most(np.diff(self.first_row), n_sentences),
            sum(_most(np.diff(kind.first), n_sentences) for kind in self.spans),
            sum(_most(np.diff(kind.begin[kind.first]), n_sentences) for kind in self.spans),
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
    spans = tuple(_distinct(span, sentence, split.n_sentences, keys, first_row, highest) for span in split.spans)
    return SplitPlan(np.arange(len(split)), split.first, keys % highest, first_row, spans)


def _distinct(
    span: NDArray[np.int64],
    sentence: NDArray[np.int64],
    n_sentences: int,
    keys: NDArray[np.int64],
    first_row: NDArray[np.int64],
    highest: int,
) -> Spans:
    """Return the distinct spans of each sentence."""
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
    return Spans(places, begin, rank[inverse.reshape(-1)] - first[sentence], first)


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

    @property
    def n_spans(self) -> int:
        return len(self.begin) - 1

    def by_target(self, pooled: torch.Tensor) -> torch.Tensor:
        """Return the values [..., spans, width] of the span of each target, [..., targets, width]."""
        return pooled if self.of is None else pooled.index_select(-2, self.of)


class PlannedColumns:
    """The SpanColumns of every part of a plan, of one kind; what can be is computed once for all parts."""

    def __init__(self, plan: SplitPlan, kind: int, device: torch.device) -> None:
        spans = plan.spans[kind]
        entry = spans.begin[spans.first]
        n_spans, n_entries = np.diff(spans.first), np.diff(entry)
        others = np.concatenate([[0], np.cumsum(spans.places != ranges(np.zeros_like(n_entries), n_entries))])
        single = n_spans == n_entries
        in_order = single & (n_spans == np.diff(plan.first_row)) & (np.diff(others[entry]) == 0)
        own = n_spans == np.diff(plan.first_target)  # each target has its span, in the same order
        self._spans, self._device = spans, device
        self._flags = list(zip(own.tolist(), single.tolist(), in_order.tolist(), strict=True))
        self._first, self._entry, self._target = spans.first.tolist(), entry.tolist(), plan.first_target.tolist()

    def __getitem__(self, part: int) -> SpanColumns:
        first, entry = self._first[part], self._entry[part]
        own, single, in_order = self._flags[part]
        return SpanColumns(
            self._tensor(self._spans.places[entry : self._entry[part + 1]]),
            self._tensor(self._spans.begin[first : self._first[part + 1] + 1] - entry),
            None if own else self._tensor(self._spans.of[self._target[part] : self._target[part + 1]]),
            single,
            in_order,
        )

    def _tensor(self, values: NDArray[np.int64]) -> torch.Tensor:
        tensor = torch.from_numpy(values)
        return tensor if self._device.type == "cpu" else tensor.to(self._device)


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
    if not len(order):
        return
    plan = split.plan.batches(batch_sentences(order, batch_size))
    sizes = np.diff(plan.first_row) * len(layers) * store.hidden_size
    groups = _groups(sizes, GROUP_NBYTES // VALUE_DTYPE[store.dtype].itemsize)
    size = max(int(sizes[group].sum()) for group in groups)
    dtype = torch.from_numpy(np.empty(0, VALUE_DTYPE[store.dtype])).dtype
    buffers = [torch.empty(size, dtype=dtype, pin_memory=device.type == "cuda") for _ in range(READ_AHEAD + 1)]
    first_row, first_target = plan.first_row.tolist(), plan.first_target.tolist()
    columns = [PlannedColumns(plan, kind, device) for kind in range(len(plan.spans))]

    def read(number: int, buffer: int) -> tuple[torch.Tensor, torch.Tensor]:
        group = groups[number]
        rows = plan.rows[first_row[group.start] : first_row[group.stop]]
        targets = plan.targets[first_target[group.start] : first_target[group.stop]]
        shape = (len(layers), len(rows), store.hidden_size)
        vectors = buffers[buffer][: prod(shape)].view(shape)
        store.vectors(rows, layers=layers, out=vectors.numpy())
        _require_finite(vectors, rows, layers, store)
        return vectors, torch.from_numpy(split.gold[targets].astype(np.float32))

    for group, (vectors, gold) in zip(groups, read_ahead(read, len(groups), n_ahead=READ_AHEAD), strict=True):
        if device.type != "cpu":
            vectors, gold = vectors.to(device).float(), gold.to(device)
        row, target = first_row[group.start], first_target[group.start]
        for number in range(group.start, group.stop):
            start, stop = first_target[number], first_target[number + 1]
            stored = vectors[:, first_row[number] - row : first_row[number + 1] - row]
            spans = tuple(kind[number] for kind in columns)
            yield EdgeBatch(plan.targets[start:stop], stored, spans, gold[start - target : stop - target])


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
    """Raise NonFiniteError for vectors with NaN or infinity."""
    if all_finite(vectors.numpy()):
        return
    layer, place = torch.nonzero(~torch.isfinite(vectors).all(2))[0].tolist()
    raise NonFiniteError(
        f"layer {layers[layer]}, row {int(rows[place])} of {store.path} contains NaN or infinity: {VERIFY}"
    )
