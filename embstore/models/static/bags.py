"""Which spans one call of a context-free encoder asks for, and bags of rows that are pooled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.models.encoder import Pooling, Spans, Tokenized
from embstore.models.transformer.tokens import indptr

_Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Asked:
    """The spans of one call: where each begins among the ids, how many it has, and whether it lacks a vector.

    `bounds`: int64 [sentences + 1], where sentences begin and end among the ids.
    """

    ids: NDArray[np.int32]
    bounds: _Indices
    sentence: _Indices
    starts: _Indices
    lengths: _Indices
    lacking: NDArray[np.bool_]

    @classmethod
    def of(cls, tokenized: Tokenized, spans: Spans, lacking: NDArray[np.bool_] | None) -> Asked:
        bounds = tokenized.word_indptr[tokenized.sentence_indptr]
        lengths = spans.stop - spans.start
        none = np.zeros(len(lengths), np.bool_) if lacking is None else lacking
        return cls(tokenized.ids, bounds, spans.sentence, bounds[spans.sentence] + spans.start, lengths, none)

    def by_spans(self, size: int) -> Iterator[slice]:
        """Cut the spans where they have about `size` subwords."""
        return _parts(np.cumsum(self.lengths), np.arange(len(self.lengths) + 1), size)

    def by_sentences(self, size: int) -> Iterator[slice]:
        """Cut the spans between sentences, where these have about `size` subwords."""
        first = np.flatnonzero(np.diff(self.sentence, prepend=-1))
        lengths = np.diff(self.bounds)[self.sentence[first]]
        return _parts(np.cumsum(lengths), np.append(first, len(self.sentence)), size)


def _parts(ends: _Indices, begins: _Indices, size: int) -> Iterator[slice]:
    at, before = 0, 0
    while at < len(ends):
        stop = max(at + 1, int(np.searchsorted(ends, before + size, side="right")))
        yield slice(int(begins[at]), int(begins[stop]))
        at, before = stop, int(ends[stop - 1])


@dataclass(frozen=True)
class Bags:
    """Rows to be pooled: `index` int64, in bags that begin at `offsets`; `empty` says which bags have none."""

    index: torch.Tensor
    offsets: torch.Tensor
    empty: torch.Tensor

    @classmethod
    def of(cls, members: _Indices, lengths: _Indices, device: torch.device) -> Bags:
        """Put runs of rows into bags, leaving out those that are -1."""
        kept = members >= 0
        if not kept.all():
            before = indptr(kept.astype(np.int64))
            ends = np.cumsum(lengths)
            lengths = before[ends] - before[ends - lengths]
            members = members[kept]
        offsets = np.cumsum(lengths) - lengths
        arrays = members, offsets, np.flatnonzero(lengths == 0)
        return cls(*(torch.from_numpy(array).to(device) for array in arrays))

    def pooled(self, matrix: torch.Tensor, pooling: Pooling) -> torch.Tensor:
        """Return a vector a bag, NaN where it is empty: [bags, dimensions]."""
        if not len(self.index):
            return matrix.new_full((len(self.offsets), matrix.shape[1]), torch.nan)
        if pooling in ("first", "last"):
            ends = torch.cat([self.offsets[1:], self.offsets.new_tensor([len(self.index)])]) - 1
            place = self.offsets if pooling == "first" else ends
            vectors = matrix[self.index[place.clamp(0, len(self.index) - 1)]]
        else:
            vectors = torch.nn.functional.embedding_bag(self.index, matrix, self.offsets, mode=pooling)
        vectors[self.empty] = torch.nan
        return vectors
