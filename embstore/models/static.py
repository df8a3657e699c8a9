"""Encoders without context: word vectors, random vectors, a model's subwords, and bags of any of these."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import ModelError
from embstore.models.batched import BatchedEncoder
from embstore.models.checkpoint import Loaded
from embstore.models.elmo.words import WordNumbers
from embstore.models.encoder import ModelInfo, Pooling, Spans, Tokenized, indptr, ragged_indices
from embstore.models.names import public_name
from embstore.models.running import RunningBatch, SpanWork
from embstore.models.transformer.tokens import SubwordTokenizer
from embstore.vectors.word_vectors import PHRASE_JOINS, RandomVectors, VectorTable

Missing = Literal["random", "drop"]
BATCH_SUBWORDS = {"cpu": 4096, "cuda": 65536}  # lookups that fill a core's cache, and a GPU
NO_ROW = -1
FIRST_ROWS = 1024  # of a matrix, which doubles when it is full

_Ids = NDArray[np.int32]
_Indices = NDArray[np.int64]
T = TypeVar("T", np.int64, np.int8)


class StaticTable(ABC):
    """Words or subwords with one vector each, independent of the sentence.

    `matrix`: the vectors [n_rows, n_dimensions] on the device. The other attributes are those of `ModelInfo`.
    """

    matrix: torch.Tensor
    architecture: str
    revision: str | None = None
    weights_sha256: str
    tokenizer_sha256: str

    @abstractmethod
    def tokenize(self, sentences: Sequence[Sequence[str]]) -> Tokenized: ...

    @abstractmethod
    def text(self, index: int) -> str:
        """Return the spelling of an id."""

    @abstractmethod
    def rows(self, ids: _Ids) -> _Indices:
        """Return the rows of ids, reading vectors into `matrix` if necessary; -1 for an id without a vector."""

    @abstractmethod
    def plain_vector(self, index: int) -> torch.Tensor | None:
        """Return the vector of one id, float32, read for itself without `rows`; None if it has none."""

    def without_vector(self, ids: _Ids) -> NDArray[np.bool_]:
        """Return which ids have no vector, without reading any."""
        return np.zeros(len(ids), np.bool_)

    def phrases(self, ids: _Ids, starts: _Indices, lengths: _Indices) -> _Ids:
        """Return the id of each run of ids that is one entry of the table, -1 for the others: int32 [n_runs]."""
        return np.full(len(starts), NO_ROW, np.int32)


class WordTable(StaticTable):
    """Words, each one subword; the vectors of those that occur are read once and stored on the device.

    Words without an entry get random vectors from N(0, I), seeded by `seed` and the word, or no vector.
    """

    def __init__(
        self, table: VectorTable, *, missing: Missing, seed: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._table = table
        self._random = RandomVectors(table.dimensions, seed=seed) if missing == "random" else None
        self._numbers = WordNumbers()
        self._row_of: _Indices = np.empty(0, np.int64)
        self._known: NDArray[np.int8] = np.empty(0, np.int8)
        self._phrases: dict[tuple[int, ...], int] = {}
        self._n_rows = 0
        self.matrix = torch.empty(FIRST_ROWS, table.dimensions, dtype=dtype, device=device)
        self.weights_sha256 = table.sha256
        rules: dict[str, object] = {
            "subword": "word",
            "lookup": ["exact", "lower"],
            "phrases": PHRASE_JOINS,
            "missing": missing,
        }
        if isinstance(table, RandomVectors):
            self.architecture = f"RandomVectors(seed={table.seed})"
        elif missing == "random":
            self.architecture = f"WordVectors(missing=random, seed={seed})"
            rules["seed"] = seed
        else:
            self.architecture = "WordVectors(missing=drop)"
        self.tokenizer_sha256 = hashlib.sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()

    def tokenize(self, sentences: Sequence[Sequence[str]]) -> Tokenized:
        return self._numbers.tokenize(sentences)

    def text(self, index: int) -> str:
        return self._numbers.word(index)

    def rows(self, ids: _Ids) -> _Indices:
        self._row_of = _grown(self._row_of, ids, -2)
        unread = self._row_of[ids] == -2
        if unread.any():
            self._read(np.unique(ids[unread]))
        return self._row_of[ids]

    def plain_vector(self, index: int) -> torch.Tensor | None:
        word = self._numbers.word(index)
        table = self._table if self._table.has(word) else self._random
        return None if table is None else torch.from_numpy(table.vectors_of([word])[0])

    def without_vector(self, ids: _Ids) -> NDArray[np.bool_]:
        if self._random is not None:
            return np.zeros(len(ids), np.bool_)
        self._known = _grown(self._known, ids, -1)
        for number in np.unique(ids[self._known[ids] < 0]).tolist():
            self._known[number] = self._table.has(self._numbers.word(number))
        mask: NDArray[np.bool_] = self._known[ids] == 0
        return mask

    def phrases(self, ids: _Ids, starts: _Indices, lengths: _Indices) -> _Ids:
        """Return the ids of phrases that have an entry, their words joined by "_" or a space."""
        numbers = np.empty(len(starts), np.int32)
        for index, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
            run = tuple(ids[start : start + length].tolist())
            if run not in self._phrases:
                entry = self._table.phrase([self._numbers.word(number) for number in run])
                self._phrases[run] = NO_ROW if entry is None else int(self._numbers.tokenize([[entry]]).ids[0])
            numbers[index] = self._phrases[run]
        return numbers

    def _read(self, ids: _Ids) -> None:
        """Read the vectors of new words; raises ModelError for a vector that the dtype cannot represent."""
        words = [self._numbers.word(number) for number in ids.tolist()]
        known = np.fromiter(map(self._table.has, words), np.bool_, len(words))
        for table, mask in ((self._table, known), (self._random, ~known)):
            if table is None:
                self._row_of[ids[mask]] = NO_ROW
            elif mask.any():
                chosen = [words[index] for index in np.flatnonzero(mask).tolist()]
                vectors = torch.from_numpy(table.vectors_of(chosen)).to(self.matrix.dtype)
                if not bool(torch.isfinite(vectors).all()):
                    word = chosen[int(torch.isfinite(vectors).all(1).int().argmin())]
                    dtype = str(vectors.dtype).removeprefix("torch.")
                    raise ModelError(f"the vector of {word!r} has numbers beyond {dtype}: compute in float32")
                start = self._append(vectors)
                self._row_of[ids[mask]] = np.arange(start, start + len(chosen))

    def _append(self, vectors: torch.Tensor) -> int:
        """Add rows to `matrix`, which doubles when full; return the first of them."""
        start, stop = self._n_rows, self._n_rows + len(vectors)
        if stop > len(self.matrix):
            larger = self.matrix.new_empty(max(2 * len(self.matrix), stop), self.matrix.shape[1])
            larger[:start] = self.matrix[:start]
            self.matrix = larger
        self.matrix[start:stop] = vectors.to(self.matrix.device)
        self._n_rows = stop
        return start


class SubwordTable(StaticTable):
    """The input embeddings of a model, as its tokenizer splits words; the rest of the model is freed."""

    def __init__(self, loaded: Loaded) -> None:
        weight = getattr(loaded.model.get_input_embeddings(), "weight", None)
        if not isinstance(weight, torch.Tensor) or weight.ndim != 2:
            raise ModelError(f"the model {loaded.name!r} has no table of subwords: it computes words in another way")
        self.matrix = weight.detach().clone()
        self._tokenizer = SubwordTokenizer(loaded.tokenizer, vocabulary=len(self.matrix))
        self.architecture = f"SubwordTable({type(loaded.model).__name__})"
        self.revision = loaded.revision
        self.weights_sha256 = loaded.weights_sha256
        self.tokenizer_sha256 = self._tokenizer.sha256()

    def tokenize(self, sentences: Sequence[Sequence[str]]) -> Tokenized:
        return self._tokenizer.tokenize(sentences)

    def text(self, index: int) -> str:
        return self._tokenizer.subword_text(index)

    def rows(self, ids: _Ids) -> _Indices:
        return ids.astype(np.int64)

    def plain_vector(self, index: int) -> torch.Tensor:
        return self.matrix[index].float().cpu()


class StaticEncoder(BatchedEncoder):
    """An encoder whose subwords have one vector each, in any sentence; it has only layer 0.

    A span has the pooled vectors of its subwords. With `bag` every span of a sentence has the mean over all subwords of
    the sentence that have a vector. A span without any gets NaN; see `without_vector`. `table`: the vectors. `source`:
    the name by which another process loads it; empty if no name says how it was made.
    """

    n_specials = 0
    check_batch_subwords = 64  # so that the few sentences of the check are several batches

    def __init__(self, table: StaticTable, *, name: str, source: str = "", bag: bool = False) -> None:
        super().__init__(source, table.matrix.device, table.matrix.dtype)
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
        return BATCH_SUBWORDS.get(self.device.type, 4096)

    def subword_text(self, index: int) -> str:
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
        vectors = [self.table.plain_vector(number) for number in tokenized.ids[first:last].tolist()]
        none = torch.full((self.info.hidden_size,), torch.nan)
        if self.bag:
            known = [vector for vector in vectors if vector is not None]
            vectors = [sum(known, torch.zeros_like(none)) / len(known) if known else none] * len(vectors)
        return {0: torch.stack([none if vector is None else vector for vector in vectors])}

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
        rows = self.table.rows(np.concatenate([first[single], members]))
        matrix = self.table.matrix
        index = torch.from_numpy(np.maximum(rows[:n_single], 0)).to(self.device)
        unknown = torch.from_numpy(np.flatnonzero(rows[:n_single] < 0)).to(self.device)
        prepared = clock.mark()
        out = torch.empty(1, len(spans), matrix.shape[1], dtype=matrix.dtype, device=self.device)
        torch.index_select(matrix, 0, index, out=out[0, :n_single])
        out[0, unknown] = torch.nan
        if len(split):
            out[0, n_single:] = _pooled(matrix, rows[n_single:], lengths[split], work.pooling)
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


def _grown(array: NDArray[T], ids: _Ids, fill: int) -> NDArray[T]:
    needed = int(ids.max(initial=-1)) + 1
    if needed <= len(array):
        return array
    return np.concatenate([array, np.full(max(needed, 2 * len(array)) - len(array), fill, array.dtype)])


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
