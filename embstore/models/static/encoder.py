"""Encoders without context: word vectors, drawn vectors, a model's subwords, and bags of any of these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import InvalidValueError, ModelError
from embstore.models.encoder import Encoder, ModelInfo, Pooled, Pooling, Spans, StageTimes, Tokenized
from embstore.models.pooling import check_pooling
from embstore.models.static.bags import Asked, Bags
from embstore.models.static.rows import StaticRows
from embstore.models.transformer.plain import pooled as pooled_by_hand
from embstore.models.transformer.selfcheck import TOLERANCE, word_spans
from embstore.models.transformer.stopwatch import Stopwatch, stopwatch
from embstore.models.transformer.tokens import PROBES, indptr, ragged_indices
from embstore.models.transformer.transfer import HostCopies
from embstore.models.transformer.work import Passed, Work, collected

BATCHING = "packed"
BATCH_SUBWORDS = {"cpu": 4096, "cuda": 65536}

_Indices = NDArray[np.int64]


class ContextFreeEncoder(Encoder):
    """An `Encoder` whose subwords have one vector each, whatever stands around them; it has layer 0 alone.

    A span has the pooled vectors of its subwords. With `bag` every span of a sentence has the mean over all
    subwords of the sentence that have a vector. A span without any gets NaN; see `without_vector`.
    """

    def __init__(self, rows: StaticRows, *, name: str, bag: bool = False) -> None:
        self._static = rows
        self._bag = bag
        self.times = StageTimes()
        self._copies = HostCopies(rows.matrix.device)
        self._info = ModelInfo(
            name=name,
            architecture=f"BagOfContext({rows.architecture})" if bag else rows.architecture,
            revision=rows.revision,
            weights_sha256=rows.weights_sha256,
            tokenizer_sha256=rows.tokenizer_sha256,
            num_hidden_layers=0,
            hidden_size=int(rows.matrix.shape[1]),
            max_subwords=None,
            final_norm=False,
        )

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def device(self) -> torch.device:
        return self._static.matrix.device

    @property
    def compute_dtype(self) -> str:
        return str(self._static.matrix.dtype).removeprefix("torch.")

    @property
    def batching(self) -> str:
        return BATCHING

    @property
    def n_specials(self) -> int:
        return 0

    @property
    def default_batch_subwords(self) -> int:
        """Return how many subwords make a good batch on the encoder's device."""
        return BATCH_SUBWORDS.get(self.device.type, 4096)

    def use_batching(self, batching: str) -> None:
        """Take a batching without a check; there is only "packed", rows one after the other."""
        if batching != BATCHING:
            raise InvalidValueError(f"unknown batching {batching!r} of {self.info.name!r}; allowed is {BATCHING}")

    def tokenize(self, sentences: Sequence[Sequence[str]]) -> Tokenized:
        """Split every word into its subwords; in tables of words each word is one."""
        started = perf_counter()
        tokenized = self._static.tokenize(sentences)
        self.times.tokenize += perf_counter() - started
        return tokenized

    def subword_text(self, index: int) -> str:
        """Return the spelling of a subword, or the word of a table."""
        return self._static.piece(index)

    def without_vector(self, tokenized: Tokenized, spans: Spans) -> NDArray[np.bool_]:
        """Say of each span whether it has no vector, as words that are dropped have not.

        A phrase that the table has as one lacks nothing; in a bag a span needs a word of its own that has a vector.
        """
        base = tokenized.word_indptr[tokenized.sentence_indptr[spans.sentence]]
        starts, lengths = base + spans.start, spans.stop - spans.start
        lacks = self._static.lacking(tokenized.ids)
        counts = indptr((~lacks).astype(np.int64))
        empty: NDArray[np.bool_] = counts[starts + lengths] == counts[starts]
        if not self._bag and empty.any():
            doubtful = np.flatnonzero(empty & (lengths > 1))
            empty[doubtful] = self._static.phrases(tokenized.ids, starts[doubtful], lengths[doubtful]) < 0
        return empty

    def encode(
        self, tokenized: Tokenized, spans: Spans, *, layers: Sequence[int], pooling: Pooling, batch_subwords: int
    ) -> Iterator[Pooled]:
        """Look up the vectors of all spans, each once.

        Raises InvalidValueError for a layer other than 0, and for a span that is empty or reaches beyond its
        sentence.
        """
        self._check_layers(layers)
        pooling = check_pooling(pooling)
        if batch_subwords < 1:
            raise InvalidValueError(f"batch_subwords is {batch_subwords}; it must be 1 or more")
        Work.of(tokenized, spans, None)  # refuses spans that make no sense
        asked = Asked.of(tokenized, spans, self.without_vector(tokenized, spans) if self._bag else None)
        return self._encode(asked, pooling, batch_subwords)

    def self_check(self, tokenized: Tokenized, *, layers: Sequence[int], pooling: Pooling, **_: Any) -> float:
        """Hold the vectors against those of a plain loop over spans and words.

        Returns the largest difference, relative to the largest value. Raises ModelError where it is above 2e-5
        (5e-3 in float16, 4e-2 in bfloat16).
        """
        self._check_layers(layers)
        if not len(tokenized.ids):
            tokenized = self.tokenize(PROBES)
        spans = word_spans(tokenized, None)
        expected = self._plain(tokenized, spans, check_pooling(pooling))
        known: NDArray[np.bool_] = ~np.isnan(expected[:, 0])
        worst, scale = 0.0, float(np.abs(expected[known]).max(initial=0)) or 1.0
        for pooled in self.encode(tokenized, spans, layers=(0,), pooling=pooling, batch_subwords=64):
            vectors = pooled.vectors[0].float().numpy()
            same = np.array_equal(~np.isnan(vectors[:, 0]), known[pooled.rows])
            apart = float(np.abs(vectors - expected[pooled.rows])[known[pooled.rows]].max(initial=0)) / scale
            worst = max(worst, apart) if same and np.isfinite(apart) else float("inf")
        if not worst <= TOLERANCE[self.compute_dtype]:
            raise ModelError(
                f"batches of {self.info.name!r} do not reproduce its plain lookups: the relative difference is "
                f"{worst:.1e}, {TOLERANCE[self.compute_dtype]:.0e} is allowed"
            )
        return worst

    def projected_nbytes(self, *, layers: Sequence[int], batch_subwords: int) -> int:
        """Estimate the memory of the vectors read so far and of one batch."""
        matrix = self._static.matrix
        return matrix.element_size() * (matrix.numel() + 3 * batch_subwords * self.info.hidden_size)

    def _check_layers(self, layers: Sequence[int]) -> None:
        if list(layers) != [0]:
            raise InvalidValueError(f"the layers {list(layers)} are not allowed; {self.info.name!r} has layer 0 alone")

    def _encode(self, asked: Asked, pooling: Pooling, size: int) -> Iterator[Pooled]:
        clock = stopwatch(self.device)
        parts = asked.by_sentences(size) if self._bag else asked.by_spans(size)
        passes = (
            self._bags(asked, part, clock) if self._bag else self._words(asked, part, pooling, clock) for part in parts
        )
        return collected(passes, clock, self.times, ahead=int(self.device.type == "cuda"))

    @torch.inference_mode()
    def _words(self, asked: Asked, part: slice, pooling: Pooling, clock: Stopwatch) -> Passed:
        begun = clock.mark()
        ids, starts, lengths = asked.ids, asked.starts[part], asked.lengths[part]
        rows = np.arange(part.start, part.stop)
        several = np.flatnonzero(lengths > 1)
        if not len(several):
            return self._passed(self._static.rows(ids[starts]), None, rows, pooling, clock, begun)
        phrases = self._static.phrases(ids, starts[several], lengths[several])
        joined, split = several[phrases >= 0], several[phrases < 0]
        first = ids[starts]
        first[joined] = phrases[phrases >= 0]
        single = np.ones(len(starts), np.bool_)
        single[split] = False
        members = ids[ragged_indices(starts[split], lengths[split])]
        found = self._static.rows(np.concatenate([first[single], members]))
        alone, together = np.split(found, [int(single.sum())])
        order = np.concatenate([rows[single], rows[split]])
        return self._passed(alone, (together, lengths[split]), order, pooling, clock, begun)

    @torch.inference_mode()
    def _bags(self, asked: Asked, part: slice, clock: Stopwatch) -> Passed:
        begun = clock.mark()
        sentence = asked.sentence[part]
        new = np.diff(sentence, prepend=-1) != 0
        starts, stops = asked.bounds[sentence[new]], asked.bounds[sentence[new] + 1]
        members = self._static.rows(asked.ids[ragged_indices(starts, stops - starts)])
        bag = Bags.of(members, stops - starts, self.device)
        of_span = torch.from_numpy(np.cumsum(new) - 1).to(self.device)
        lacking = torch.from_numpy(np.flatnonzero(asked.lacking[part])).to(self.device)
        made = clock.mark()
        vectors = bag.pooled(self._static.matrix, "mean").index_select(0, of_span)
        vectors[lacking] = torch.nan
        ran = clock.mark()
        return Passed(
            np.arange(part.start, part.stop), self._copies.begin((vectors[None],), clock), begun, made, ran, []
        )

    def _passed(
        self,
        alone: _Indices,
        together: tuple[_Indices, _Indices] | None,
        order: _Indices,
        pooling: Pooling,
        clock: Stopwatch,
        begun: object,
    ) -> Passed:
        """Gather the rows of spans of one subword, then pool those of several: their rows, and how many each has."""
        matrix = self._static.matrix
        index = torch.from_numpy(np.maximum(alone, 0)).to(self.device)
        unknown = torch.from_numpy(np.flatnonzero(alone < 0)).to(self.device)
        bags = None if together is None else Bags.of(*together, self.device)
        made = clock.mark()
        out = torch.empty(1, len(order), matrix.shape[1], dtype=matrix.dtype, device=self.device)
        torch.index_select(matrix, 0, index, out=out[0, : len(alone)])
        if len(unknown):
            out[0, unknown] = torch.nan
        if bags is not None:
            out[0, len(alone) :] = bags.pooled(matrix, pooling)
        ran = clock.mark()
        return Passed(order, self._copies.begin((out,), clock), begun, made, ran, [])

    def _plain(self, tokenized: Tokenized, spans: Spans, pooling: Pooling) -> NDArray[np.float32]:
        """Return the vectors of spans [spans, hidden_size], one after the other; NaN where there is none."""
        vectors = np.full((len(spans.sentence), self.info.hidden_size), np.nan, np.float32)
        bounds = tokenized.word_indptr[tokenized.sentence_indptr].tolist()
        numbers = np.unique(tokenized.ids).tolist()
        single = dict(zip(numbers, self._static.plain(numbers), strict=True))
        means: dict[int, NDArray[np.float32]] = {}
        for row, (sentence, start, stop) in enumerate(
            zip(spans.sentence.tolist(), spans.start.tolist(), spans.stop.tolist(), strict=True)
        ):
            base, end = bounds[sentence], bounds[sentence + 1]
            own = tokenized.ids[base + start : base + stop].tolist()
            if not self._bag:
                phrase = self._static.plain_phrase(own) if len(own) > 1 else None
                looked = [single[number] for number in own] if phrase is None else [phrase]
                if found := [vector for vector in looked if vector is not None]:
                    vectors[row] = pooled_by_hand(torch.from_numpy(np.array(found)), pooling)
            elif any(single[number] is not None for number in own):
                if sentence not in means:
                    every = [single[number] for number in tokenized.ids[base:end].tolist()]
                    means[sentence] = np.mean([vector for vector in every if vector is not None], 0)
                vectors[row] = means[sentence]
        return vectors
