"""Encoders without context: word vectors, random vectors, a model's subwords, and bags of any of these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.models.batched import BatchedEncoder
from embstore.models.encoder import ModelInfo, Pooling, Spans, Tokenized, indptr, ragged_indices
from embstore.models.running import RunningBatch, SpanWork
from embstore.models.static.shorthand import public_name
from embstore.models.static.tables import StaticTable

BATCH_SUBWORDS = {"cpu": 4096, "cuda": 65536}

_Indices = NDArray[np.int64]


class StaticEncoder(BatchedEncoder):
    """An encoder whose subwords have one vector each, in any sentence; it has only layer 0.

    A span has the pooled vectors of its subwords. With `bag` every span of a sentence has the mean over all subwords of
    the sentence that have a vector. A span without any gets NaN; see `without_vector`. `table`: the vectors.
    """

    n_specials = 0
    check_batch_subwords = 64

    def __init__(self, table: StaticTable, *, name: str, bag: bool = False) -> None:
        super().__init__(name, table.matrix.device, table.matrix.dtype)
        self.table = table
        self.bag = bag
        self.info = ModelInfo(
            name=public_name(name),
            architecture=f"BagOfContext({table.architecture})" if bag else table.architecture,
            revision=table.revision,
            weights_sha256=table.weights_sha256,
            tokenizer_sha256=table.tokenizer_sha256,
            num_hidden_layers=0,
            hidden_size=int(table.matrix.shape[1]),
            max_subwords=None,
            final_norm=False,
        )

    @property
    def default_batch_subwords(self) -> int:
        """Return a good batch size for the device, in subwords."""
        return BATCH_SUBWORDS.get(self.device.type, 4096)

    def subword_text(self, index: int) -> str:
        """Return the spelling of a subword, or the word of a table."""
        return self.table.text(index)

    def without_vector(self, tokenized: Tokenized, spans: Spans) -> NDArray[np.bool_]:
        """Return which spans have no vector: those without any word in the table.

        A phrase that is an entry of the table has a vector. In a bag a span needs a word of its own that has one.
        """
        starts = tokenized.sentence_bounds[spans.sentence] + spans.start
        lengths = spans.stop - spans.start
        counts = indptr((~self.table.without_vector(tokenized.ids)).astype(np.int64))
        empty: NDArray[np.bool_] = counts[starts + lengths] == counts[starts]
        if not self.bag and empty.any():
            several = np.flatnonzero(empty & (lengths > 1))
            empty[several] = self.table.phrases(tokenized.ids, starts[several], lengths[several]) < 0
        return empty

    def plain_states(
        self, tokenized: Tokenized, sentence: int, attention_window: int | None, site: str
    ) -> Mapping[int, torch.Tensor]:
        """Return the vectors of a sentence's subwords, each looked up for itself: one layer [n_subwords, hidden_size].

        In a bag each is the sum of the vectors of all subwords that have one, divided by their number.
        """
        first, last = tokenized.sentence_bounds[sentence : sentence + 2]
        found = [self.table.plain_vector(number) for number in tokenized.ids[first:last].tolist()]
        none = torch.full((self.info.hidden_size,), torch.nan)
        vectors = [none if vector is None else vector for vector in found]
        if self.bag:
            known = [vector for vector in found if vector is not None]
            vectors = [sum(known, torch.zeros_like(none)) / len(known) if known else none] * len(found)
        return {0: torch.stack(vectors)}

    def projected_nbytes(self, *, n_features: int, batch_subwords: int) -> int:
        """Estimate the memory of the vectors read so far and of one batch."""
        matrix = self.table.matrix
        return matrix.element_size() * (matrix.numel() + 3 * batch_subwords * self.info.hidden_size)

    def _tokenize(self, sentences: Sequence[Sequence[str]]) -> Tokenized:
        return self.table.tokenize(sentences)

    def _running(self, work: SpanWork) -> Iterator[RunningBatch]:
        tokenized, spans = work.tokenized, work.spans
        if self.bag:
            empty = self.without_vector(tokenized, spans)
            parts = _parts(work.lengths, np.append(work.first_span, len(spans.sentence)), work.batch_subwords)
            return (self._run_bags(work, empty, part) for part in parts)
        lengths = spans.stop - spans.start
        starts = tokenized.sentence_bounds[spans.sentence] + spans.start
        parts = _parts(lengths, np.arange(len(lengths) + 1), work.batch_subwords)
        return (self._run_words(work, starts, lengths, part) for part in parts)

    @torch.inference_mode()
    def _run_words(self, work: SpanWork, starts: _Indices, lengths: _Indices, part: slice) -> RunningBatch:
        """Look up spans of one subword, then pool those of several."""
        clock, ids = work.clock, work.tokenized.ids
        began = clock.mark()
        spans, starts, lengths = np.arange(part.start, part.stop), starts[part], lengths[part]
        several = np.flatnonzero(lengths > 1)
        phrases = self.table.phrases(ids, starts[several], lengths[several])
        joined, split = several[phrases >= 0], several[phrases < 0]
        first = ids[starts]
        first[joined] = phrases[phrases >= 0]
        single = np.ones(len(starts), np.bool_)
        single[split] = False
        n_single = int(single.sum())
        members = ids[ragged_indices(starts[split], lengths[split])]
        found = self.table.rows(np.concatenate([first[single], members]))
        matrix = self.table.matrix
        index = torch.from_numpy(np.maximum(found[:n_single], 0)).to(self.device)
        unknown = torch.from_numpy(np.flatnonzero(found[:n_single] < 0)).to(self.device)
        prepared = clock.mark()
        out = torch.empty(1, len(spans), matrix.shape[1], dtype=matrix.dtype, device=self.device)
        torch.index_select(matrix, 0, index, out=out[0, :n_single])
        out[0, unknown] = torch.nan
        if len(split):
            out[0, n_single:] = _pooled(matrix, found[n_single:], lengths[split], work.pooling)
        ran = clock.mark()
        order = np.concatenate([spans[single], spans[split]])
        return RunningBatch(order, self._copy(work, (out,), ran), began, prepared, ran)

    @torch.inference_mode()
    def _run_bags(self, work: SpanWork, empty: NDArray[np.bool_], part: slice) -> RunningBatch:
        """Pool whole sentences and give every span the vector of its sentence."""
        clock, tokenized = work.clock, work.tokenized
        began = clock.mark()
        bounds, sentence = tokenized.sentence_bounds, work.spans.sentence[part]
        new = np.diff(sentence, prepend=-1) != 0
        starts, lengths = bounds[sentence[new]], np.diff(bounds)[sentence[new]]
        members = self.table.rows(tokenized.ids[ragged_indices(starts, lengths)])
        of_span = torch.from_numpy(np.cumsum(new) - 1).to(self.device)
        unknown = torch.from_numpy(np.flatnonzero(empty[part])).to(self.device)
        prepared = clock.mark()
        vectors = _pooled(self.table.matrix, members, lengths, "mean").index_select(0, of_span)
        vectors[unknown] = torch.nan
        ran = clock.mark()
        copy = self._copy(work, (vectors[None],), ran)
        return RunningBatch(np.arange(part.start, part.stop), copy, began, prepared, ran)


def _parts(lengths: _Indices, begins: _Indices, size: int) -> Iterator[slice]:
    """Yield slices of spans with about `size` subwords; `begins`: the first span of each unit, and the end."""
    ends = np.cumsum(lengths)
    start, before = 0, 0
    while start < len(ends):
        stop = max(start + 1, int(np.searchsorted(ends, before + size, side="right")))
        yield slice(int(begins[start]), int(begins[stop]))
        start, before = stop, int(ends[stop - 1])


def _pooled(matrix: torch.Tensor, members: _Indices, lengths: _Indices, pooling: Pooling) -> torch.Tensor:
    """Pool consecutive runs of rows of `matrix`, without those that are -1: [n_runs, n_dimensions], NaN if empty."""
    known = members >= 0
    if not known.all():
        before, ends = indptr(known.astype(np.int64)), np.cumsum(lengths)
        lengths = before[ends] - before[ends - lengths]
        members = members[known]
    if not len(members):
        return matrix.new_full((len(lengths), matrix.shape[1]), torch.nan)
    starts = np.cumsum(lengths) - lengths
    empty = torch.from_numpy(np.flatnonzero(lengths == 0)).to(matrix.device)
    if pooling in ("first", "last"):
        chosen = starts if pooling == "first" else starts + lengths - 1
        vectors = matrix[torch.from_numpy(members[chosen.clip(0, len(members) - 1)]).to(matrix.device)]
    else:
        index, offsets = (torch.from_numpy(array).to(matrix.device) for array in (members, starts))
        vectors = torch.nn.functional.embedding_bag(index, matrix, offsets, mode=pooling)
    vectors[empty] = torch.nan
    return vectors
