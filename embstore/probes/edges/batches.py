"""The targets of a split of edge probing as rows of a store, and their batches, read ahead by a thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.analysis.scan import gather_finite
from embstore.store import Store
from embstore.store.reading.ahead import read_ahead
from embstore.store.text import ragged_indices


@dataclass(frozen=True, eq=False)
class EdgeSplit:
    """The targets of one split, sentence after sentence.

    `first` int64 [sentences + 1]: the first target of each sentence, which has one or more. `spans`: half-open row
    ranges int64 [targets, 2], one array or two. `gold` bool [targets, labels]. `unknown` int64 [targets]: the number of
    labels that train does not have.
    """

    first: NDArray[np.int64]
    spans: tuple[NDArray[np.int64], ...]
    gold: NDArray[np.bool_]
    unknown: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.gold)

    @property
    def n_sentences(self) -> int:
        return len(self.first) - 1

    def part(self, sentences: NDArray[np.int64]) -> EdgeSplit:
        """Return some of the sentences, in the order of this split; a sentence may be given more than once."""
        chosen = np.sort(sentences)
        sizes = np.diff(self.first)[chosen]
        targets, first = ragged_indices(self.first[chosen], sizes), np.concatenate([[0], np.cumsum(sizes)])
        return EdgeSplit(first, tuple(span[targets] for span in self.spans), self.gold[targets], self.unknown[targets])


@dataclass(frozen=True, eq=False)
class SpanColumns:
    """Where the first (or second) spans of a batch are among its vectors; spans that targets share are there once.

    `places` int64 [entries]: the vectors of one distinct span after the other, in the order of the rows. `begin` int64
    [spans + 1]: the first entry of each span. `of` int64 [targets]: the span of each target, None if target i has span
    i. `single`: every span is one vector.
    """

    places: torch.Tensor
    begin: torch.Tensor
    of: torch.Tensor | None
    single: bool

    @classmethod
    def among(cls, spans: NDArray[np.int64], rows: NDArray[np.int64], device: torch.device) -> SpanColumns:
        """Return where spans [targets, 2] are among ascending `rows`."""
        start, stop = np.searchsorted(rows, spans[:, 0]), np.searchsorted(rows, spans[:, 1] - 1) + 1
        keys, of = np.unique(start * (len(rows) + 1) + stop, return_inverse=True)
        start, stop = np.divmod(keys, len(rows) + 1)
        begin = np.concatenate([[0], np.cumsum(stop - start)])
        own = None if np.array_equal(of, np.arange(len(keys))) else torch.from_numpy(of).to(device)
        places = torch.from_numpy(ragged_indices(start, stop - start)).to(device)
        return cls(places, torch.from_numpy(begin).to(device), own, len(places) == len(keys))

    @property
    def n_spans(self) -> int:
        return len(self.begin) - 1

    def by_target(self, pooled: torch.Tensor) -> torch.Tensor:
        """Return the values [..., spans, width] of the span of each target, [..., targets, width]."""
        return pooled if self.of is None else pooled.index_select(-2, self.of)

    def single_vectors(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return the vector of each span, if every span is one; all of them are taken as they are."""
        return vectors if self.n_spans == vectors.shape[1] else vectors.index_select(1, self.places)


@dataclass(frozen=True, eq=False)
class EdgeBatch:
    """Some targets with their vectors, float32 [layer, n, width].

    `targets`: their numbers in the split. `spans`: one or two. `gold` float32 [targets, labels].
    """

    targets: NDArray[np.int64]
    vectors: torch.Tensor
    spans: tuple[SpanColumns, ...]
    gold: torch.Tensor

    def __len__(self) -> int:
        return len(self.gold)


def iter_batches(
    store: Store,
    split: EdgeSplit,
    order: NDArray[np.int64],
    layers: Sequence[int],
    *,
    batch_size: int,
    device: torch.device,
) -> Iterator[EdgeBatch]:
    """Yield the batches of some sentences of a split, `batch_size` at a time; within a batch they ascend.

    Raises MissingRowsError, NonFiniteError for vectors that are not finite.
    """
    batches = [np.sort(order[start : start + batch_size]) for start in range(0, len(order), batch_size)]

    def read(number: int, _: int) -> tuple[NDArray[np.int64], NDArray[np.int64], torch.Tensor]:
        sentences = batches[number]
        targets = ragged_indices(split.first[sentences], split.first[sentences + 1] - split.first[sentences])
        spans = np.concatenate([span[targets] for span in split.spans])
        rows = np.unique(ragged_indices(spans[:, 0], spans[:, 1] - spans[:, 0]))
        return targets, rows, torch.from_numpy(gather_finite(store, rows, layers))

    for targets, rows, stored in read_ahead(read, len(batches)):
        spans = tuple(SpanColumns.among(span[targets], rows, device) for span in split.spans)
        gold = torch.from_numpy(split.gold[targets].astype(np.float32)).to(device)
        yield EdgeBatch(targets, stored.to(device).float(), spans, gold)
