"""Encoders without context: word vectors, drawn vectors, a model's subwords, and bags of any of these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import InvalidValueError, ModelError, WordVectorsError
from embstore.models.encoder import ModelInfo, Pooled, Pooling, Spans, StageTimes, Tokenized
from embstore.models.loading import choose_device, choose_dtype, load, use_threads
from embstore.models.plain import pooled as pooled_by_hand
from embstore.models.pooling import check_pooling
from embstore.models.selfcheck import TOLERANCE, word_spans
from embstore.models.static_names import Missing, StaticName
from embstore.models.static_rows import StaticRows, SubwordRows, WordRows
from embstore.models.stopwatch import Stopwatch, stopwatch
from embstore.models.tokens import PROBES, indptr, ragged_indices
from embstore.models.work import Passed, Work, collected, to_host
from embstore.wordvectors import WordVectors
from embstore.wordvectors.drawn import DrawnVectors
from embstore.wordvectors.lookup import VectorTable, held_table
from embstore.wordvectors.tables import open_vector_table

BATCHING = "packed"
BATCH_SUBWORDS = {"cpu": 4096, "cuda": 65536}

_Indices = NDArray[np.int64]


class ContextFreeEncoder:
    """An `Encoder` whose subwords have one vector each, whatever stands around them; it has layer 0 alone.

    A span has the pooled vectors of its subwords. With `bag` every span of a sentence has the mean over all
    subwords of the sentence that have a vector. A span without any gets NaN; see `lacking`.
    """

    def __init__(self, rows: StaticRows, *, name: str, bag: bool = False) -> None:
        self._static = rows
        self._bag = bag
        self._times = StageTimes()
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
    def num_specials(self) -> int:
        return 0

    @property
    def default_batch_subwords(self) -> int:
        """Return how many subwords make a good batch on the encoder's device."""
        return BATCH_SUBWORDS.get(self.device.type, 4096)

    @property
    def times(self) -> StageTimes:
        return self._times

    def use_batching(self, batching: str) -> None:
        """Take a batching without a check; there is only "packed", rows one after the other."""
        if batching != BATCHING:
            raise InvalidValueError(f"unknown batching {batching!r} of {self.info.name!r}; allowed is {BATCHING}")

    def tokenize(self, sentences: Sequence[Sequence[str]]) -> Tokenized:
        """Split every word into its subwords; in tables of words each word is one."""
        started = perf_counter()
        tokenized = self._static.tokenize(sentences)
        self._times.tokenize += perf_counter() - started
        return tokenized

    def piece(self, index: int) -> str:
        """Return the spelling of a subword, or the word of a table."""
        return self._static.piece(index)

    def lacking(self, tokenized: Tokenized, spans: Spans) -> NDArray[np.bool_]:
        """Say of each span whether it has no vector, as words that are dropped have not.

        A phrase that the table has as one lacks nothing; in a bag a span needs a word of its own that has a vector.
        """
        starts, lengths = _runs(tokenized, spans)
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
        return self._encode(tokenized, spans, pooling, batch_subwords)

    def self_check(self, tokenized: Tokenized, *, layers: Sequence[int], pooling: Pooling) -> float:
        """Hold the vectors against those of a plain loop over spans and words.

        Returns the largest difference, relative to the largest value. Raises ModelError where it is above 2e-5
        (5e-3 in half precision).
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
            apart = np.abs(vectors - expected[pooled.rows])[known[pooled.rows]].max(initial=0)
            worst = max(worst, float(apart) / scale) if same else float("inf")
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

    def _encode(self, tokenized: Tokenized, spans: Spans, pooling: Pooling, size: int) -> Iterator[Pooled]:
        clock = stopwatch(self.device)
        lookup = self._bags if self._bag else self._words
        passes = (lookup(tokenized, spans, part, pooling, clock) for part in self._parts(tokenized, spans, size))
        return collected(passes, clock, self._times, ahead=self.device.type == "cuda")

    def _parts(self, tokenized: Tokenized, spans: Spans, size: int) -> Iterator[slice]:
        """Cut the spans where about `size` subwords are full: those of the spans, in a bag those of sentences."""
        if self._bag:
            first = np.flatnonzero(np.diff(spans.sentence, prepend=-1))  # the first span of each sentence
            bounds = tokenized.word_indptr[tokenized.sentence_indptr]
            ends = np.cumsum(np.diff(bounds)[spans.sentence[first]])
            begins = np.append(first, len(spans.sentence))
        else:
            ends = np.cumsum(spans.stop - spans.start)
            begins = np.arange(len(ends) + 1)
        at, before = 0, 0
        while at < len(ends):
            end = max(at + 1, int(np.searchsorted(ends, before + size, side="right")))
            yield slice(int(begins[at]), int(begins[end]))
            at, before = end, int(ends[end - 1])

    @torch.inference_mode()
    def _words(self, tokenized: Tokenized, spans: Spans, part: slice, pooling: Pooling, clock: Stopwatch) -> Passed:
        begun = clock.mark()
        starts, lengths = _runs(tokenized, Spans(spans.sentence[part], spans.start[part], spans.stop[part]))
        ids = tokenized.ids
        several = np.flatnonzero(lengths > 1)
        if not len(several):
            index = self._static.rows(ids[starts])
            return self._passed(index, None, None, np.arange(part.start, part.stop), pooling, clock, begun)
        phrases = self._static.phrases(ids, starts[several], lengths[several])
        joined, split = several[phrases >= 0], several[phrases < 0]
        members = ragged_indices(starts[split], lengths[split])
        rows = self._static.rows(np.concatenate([ids[starts], phrases[phrases >= 0], ids[members]]))
        index, of_phrases, of_members = np.split(rows, np.cumsum([len(starts), len(joined)]))
        index[joined] = of_phrases
        bags = of_members, lengths[split]
        single = np.ones(len(starts), np.bool_)
        single[split] = False
        order = np.concatenate([np.flatnonzero(single), split]) + part.start
        return self._passed(index[single], *bags, order, pooling, clock, begun)

    @torch.inference_mode()
    def _bags(self, tokenized: Tokenized, spans: Spans, part: slice, pooling: Pooling, clock: Stopwatch) -> Passed:
        begun = clock.mark()
        chosen = Spans(spans.sentence[part], spans.start[part], spans.stop[part])
        sentences, of_span = np.unique(chosen.sentence, return_inverse=True)
        bounds = tokenized.word_indptr[tokenized.sentence_indptr]
        lengths = np.diff(bounds)[sentences]
        members = self._static.rows(tokenized.ids[ragged_indices(bounds[sentences], lengths)])
        index, offsets, empty = self._bag_tensors(members, lengths)
        made = clock.mark()
        means = torch.nn.functional.embedding_bag(index, self._static.matrix, offsets, mode="mean")
        means[empty] = torch.nan
        vectors = means[torch.from_numpy(of_span).to(self.device)]
        lacking = torch.from_numpy(np.flatnonzero(self.lacking(tokenized, chosen))).to(self.device)
        vectors[lacking] = torch.nan
        ran = clock.mark()
        rows = np.arange(part.start, part.stop)
        return Passed(Pooled(rows, to_host(vectors[None])), begun, made, ran, clock.mark(), [])

    def _passed(
        self,
        single: _Indices,
        members: _Indices | None,
        lengths: _Indices | None,
        order: _Indices,
        pooling: Pooling,
        clock: Stopwatch,
        begun: object,
    ) -> Passed:
        """Gather the rows of spans of one subword, then pool those of several."""
        matrix = self._static.matrix
        index = torch.from_numpy(np.maximum(single, 0)).to(self.device)
        unknown = torch.from_numpy(np.flatnonzero(single < 0)).to(self.device)
        made = clock.mark()
        out = torch.empty(1, len(order), matrix.shape[1], dtype=matrix.dtype, device=self.device)
        torch.index_select(matrix, 0, index, out=out[0, : len(single)])
        if len(unknown):
            out[0, unknown] = torch.nan
        if members is not None and lengths is not None and len(lengths):
            out[0, len(single) :] = self._pool(members, lengths, pooling)
        ran = clock.mark()
        return Passed(Pooled(order, to_host(out)), begun, made, ran, clock.mark(), [])

    def _pool(self, members: _Indices, lengths: _Indices, pooling: Pooling) -> torch.Tensor:
        """Pool runs of rows, those that are -1 left out."""
        matrix = self._static.matrix
        index, offsets, empty = self._bag_tensors(members, lengths)
        if pooling in ("first", "last"):
            if not len(index):
                return matrix.new_full((len(lengths), matrix.shape[1]), torch.nan)
            ends = torch.cat([offsets[1:], offsets.new_tensor([len(index)])]) - 1
            place = offsets if pooling == "first" else ends
            vectors = matrix[index[place.clamp(0, len(index) - 1)]]
        else:
            vectors = torch.nn.functional.embedding_bag(index, matrix, offsets, mode=pooling)
        vectors[empty] = torch.nan
        return vectors

    def _bag_tensors(self, members: _Indices, lengths: _Indices) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the rows in bags without -1, where each bag begins, and which bags are empty."""
        kept = members >= 0
        if not kept.all():
            counts = indptr(kept.astype(np.int64))
            ends = np.cumsum(lengths)
            lengths = counts[ends] - counts[ends - lengths]
            members = members[kept]
        offsets = np.cumsum(lengths) - lengths
        empty = np.flatnonzero(lengths == 0)
        index, starts, none = (torch.from_numpy(array).to(self.device) for array in (members, offsets, empty))
        return index, starts, none

    def _plain(self, tokenized: Tokenized, spans: Spans, pooling: Pooling) -> NDArray[np.float32]:
        """Return the vectors of spans [spans, hidden_size], one after the other; NaN where there is none."""
        vectors = np.full((len(spans.sentence), self.info.hidden_size), np.nan, np.float32)
        bounds = tokenized.word_indptr[tokenized.sentence_indptr].tolist()
        for row, (sentence, start, stop) in enumerate(zip(spans.sentence, spans.start, spans.stop, strict=True)):
            base, end = bounds[sentence], bounds[sentence + 1]
            own = tokenized.ids[base + start : base + stop].tolist()
            found = [vector for vector in self._static.plain(own) if vector is not None]
            if self._bag and any(self._static.plain([number])[0] is not None for number in own):
                every = [self._static.plain([number])[0] for number in tokenized.ids[base:end].tolist()]
                vectors[row] = np.mean([vector for vector in every if vector is not None], 0)
            elif found and not self._bag:
                vectors[row] = pooled_by_hand(torch.from_numpy(np.array(found)), pooling)
        return vectors


def _runs(tokenized: Tokenized, spans: Spans) -> tuple[_Indices, _Indices]:
    """Return where the subwords of spans begin in `ids`, and how many they are."""
    base = tokenized.word_indptr[tokenized.sentence_indptr[spans.sentence]]
    return base + spans.start, spans.stop - spans.start


def word_vector_encoder(
    vectors: WordVectors | VectorTable | str | Path,
    *,
    name: str | None = None,
    missing: Missing = "random",
    seed: int = 0,
    bag: bool = False,
    device: str = "auto",
    compute_dtype: str = "auto",
    threads: int | None = None,
) -> ContextFreeEncoder:
    """Make an encoder of word vectors: of a file of any kind, or of vectors in memory.

    `missing`: words that have no vector are drawn from N(0, I), seeded by `seed` and the word ("random"), or get no
    row ("drop"). `bag`: every word gets the mean over the words of its sentence. A word is looked up as it is
    spelled, then lower-cased; a phrase as one entry, its words joined by "_" or a space, else its words are pooled.

    Raises WordVectorsError for a file that cannot be read, ModelError for a device that is not there.
    """
    if missing not in ("random", "drop"):
        raise InvalidValueError(f"missing {missing!r} is not allowed: choose random or drop")
    if isinstance(vectors, WordVectors):
        table: VectorTable = held_table(vectors, sha256=vectors.sha256())
    else:
        table = vectors if isinstance(vectors, VectorTable) else open_vector_table(vectors)
    chosen = choose_device(device)
    use_threads(threads)
    dtype = torch.float32 if compute_dtype == "auto" else choose_dtype(compute_dtype, chosen)
    rows = WordRows(table, missing=missing, seed=seed, device=chosen, dtype=dtype)
    return ContextFreeEncoder(rows, name=name or _name(vectors), bag=bag)


def _name(vectors: WordVectors | VectorTable | str | Path) -> str:
    return str(vectors) if isinstance(vectors, str | Path) else "word vectors"


def load_context_free(
    named: StaticName, *, name: str, device: str, compute_dtype: str, revision: str | None, threads: int | None
) -> ContextFreeEncoder:
    """Load an encoder without context; see `embstore.models.load_encoder`."""
    if named.kind == "subwords":
        chosen = choose_device(device)
        use_threads(threads)
        dtype = torch.float32 if compute_dtype == "auto" else choose_dtype(compute_dtype, chosen)
        loaded = load(named.target, device=chosen, dtype=dtype, revision=revision)
        return ContextFreeEncoder(SubwordRows(loaded), name=name, bag=named.bag)
    if revision is not None:
        raise InvalidValueError(f"revision {revision!r} is of models of the hub; {name!r} is none")
    try:
        table = (
            DrawnVectors(int(named.target), seed=named.seed)
            if named.kind == "random"
            else open_vector_table(named.target)
        )
    except WordVectorsError as error:
        if not named.plain:
            raise
        raise ModelError(
            f"the model {named.target!r} is a file; give the folder of a model, or a file of word vectors: {error}"
        ) from error
    return word_vector_encoder(
        table,
        name=name,
        missing=named.missing,
        seed=named.seed,
        bag=named.bag,
        device=device,
        compute_dtype=compute_dtype,
        threads=threads,
    )
