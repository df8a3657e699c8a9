"""The targets of one split of an edge probing task as rows of a store, and the plan of its batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


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
