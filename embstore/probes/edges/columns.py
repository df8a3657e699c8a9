"""Where the spans of targets stand among the rows that are read for them: once a split, then batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from embstore.probes.edges import plan_kernels as kernels
from embstore.probes.edges.tasks import EdgeSplit


@dataclass(frozen=True, eq=False)
class Spans:
    """Distinct spans of some rows, and whose they are; all int64.

    `places` [entries]: the rows of one span after the other, as places among those read. `begin` [spans + 1]: where
    each span begins among the entries. `of` [targets]: the span of each target.
    """

    places: NDArray[np.int64]
    begin: NDArray[np.int64]
    of: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """What some sentences need: `targets`, their places in the split, `rows` of the store, and `spans`, one a kind."""

    targets: NDArray[np.int64]
    rows: NDArray[np.int64]
    spans: tuple[Spans, ...]


@dataclass(frozen=True, eq=False)
class SplitPlan:
    """The rows and spans of every sentence of a split, each distinct within its sentence.

    `rows` and `first_row` [sentences + 1]: the rows of one sentence after the other. `kinds`: the spans, whose places
    count from the first row of their sentence, `of` from its first span; with them `first` [sentences + 1], the
    spans of each sentence.
    """

    first_target: NDArray[np.int64]
    rows: NDArray[np.int64]
    first_row: NDArray[np.int64]
    kinds: tuple[tuple[Spans, NDArray[np.int64]], ...]

    @classmethod
    def of(cls, split: EdgeSplit) -> SplitPlan:
        """The plan of a split, kept for as long as the split is."""
        if split not in _plans:
            _plans[split] = _planned(split)
        return _plans[split]

    def batch(self, sentences: NDArray[np.int64]) -> BatchPlan:
        """The plan of some sentences, one after the other."""
        targets = np.empty(kernels.count_all(sentences, self.first_target), np.int64)
        rows = np.empty(kernels.count_all(sentences, self.first_row), np.int64)
        kernels.put_rows(sentences, self.first_target, self.first_row, self.rows, targets, rows)
        return BatchPlan(
            targets, rows, tuple(self._spans(sentences, kind, first, targets) for kind, first in self.kinds)
        )

    def _spans(
        self, sentences: NDArray[np.int64], kind: Spans, first: NDArray[np.int64], targets: NDArray[np.int64]
    ) -> Spans:
        places = np.empty(kernels.count_entries(sentences, first, kind.begin), np.int64)
        begin = np.empty(kernels.count_all(sentences, first) + 1, np.int64)
        of = np.empty_like(targets)
        columns = (kind.places, kind.begin, kind.of, places, begin, of)
        kernels.put_spans(sentences, self.first_target, self.first_row, first, *columns)
        return Spans(places, begin, of)

    def row_counts(self, batches: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
        """How many rows each batch of sentences needs, int64 [batches]."""
        counts = np.diff(self.first_row)
        return np.array([counts[sentences].sum() for sentences in batches], np.int64)

    def largest(self, sentences: int) -> LargestBatch:
        """The most that any batch of so many sentences can need."""
        most = [_most(np.diff(first), sentences) for _, first in self.kinds]
        entries = [_most(np.diff(kind.begin[first]), sentences) for kind, first in self.kinds]
        return LargestBatch(
            _most(np.diff(self.first_row), sentences),
            sum(most),
            sum(entries),
            _most(np.diff(self.first_target), sentences),
            len(self.rows),
        )


@dataclass(frozen=True)
class LargestBatch:
    """Sizes of a batch: its rows, its distinct spans and their entries (of both kinds), its targets.

    `all_rows`: the rows of all batches.
    """

    rows: int
    spans: int
    entries: int
    targets: int
    all_rows: int

    def __or__(self, other: LargestBatch) -> LargestBatch:
        """The larger of each."""
        return LargestBatch(
            max(self.rows, other.rows),
            max(self.spans, other.spans),
            max(self.entries, other.entries),
            max(self.targets, other.targets),
            max(self.all_rows, other.all_rows),
        )


_plans: WeakKeyDictionary[EdgeSplit, SplitPlan] = WeakKeyDictionary()


def ranges(start: NDArray[np.int64], stop: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers of all ranges, one after the other."""
    sizes = stop - start
    ends = np.cumsum(sizes)
    places = np.arange(int(ends[-1]) if len(ends) else 0)
    return np.asarray(places + np.repeat(start - ends + sizes, sizes))


def _planned(split: EdgeSplit) -> SplitPlan:
    counts = np.diff(split.first)
    sentence = np.repeat(np.arange(split.sentences), counts)
    highest = 1 + max((int(span.max()) for span in split.spans if len(span)), default=0)
    entries = [ranges(span[:, 0], span[:, 1]) for span in split.spans]
    sizes = [span[:, 1] - span[:, 0] for span in split.spans]
    owners = [np.repeat(sentence, size) * highest for size in sizes]
    keys = np.unique(np.concatenate([owner + each for owner, each in zip(owners, entries, strict=True)]))
    first_row = np.searchsorted(keys, np.arange(split.sentences + 1) * highest)
    kinds = tuple(_distinct(span, sentence, split, keys, first_row, highest) for span in split.spans)
    return SplitPlan(split.first, keys % highest, first_row, kinds)


def _distinct(
    span: NDArray[np.int64],
    sentence: NDArray[np.int64],
    split: EdgeSplit,
    keys: NDArray[np.int64],
    first_row: NDArray[np.int64],
    highest: int,
) -> tuple[Spans, NDArray[np.int64]]:
    """The distinct spans of each sentence, in the order of their first targets, and the first of each sentence."""
    columns = np.column_stack([sentence, span])
    _, earliest, inverse = np.unique(columns, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(earliest, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    chosen = earliest[order]
    held, owner = span[chosen], sentence[chosen]
    first = np.searchsorted(owner, np.arange(split.sentences + 1))
    sizes = held[:, 1] - held[:, 0]
    rows = ranges(held[:, 0], held[:, 1])
    places = np.searchsorted(keys, np.repeat(owner, sizes) * highest + rows) - np.repeat(first_row[owner], sizes)
    begin = np.concatenate([[0], np.cumsum(sizes)])
    of = rank[inverse.reshape(-1)] - first[sentence]
    return Spans(places, begin, of), first


def _most(counts: NDArray[np.int64], sentences: int) -> int:
    """The sum of the largest counts."""
    count = min(sentences, len(counts))
    return int(np.partition(counts, len(counts) - count)[len(counts) - count :].sum()) if count else 0
