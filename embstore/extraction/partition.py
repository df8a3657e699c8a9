"""One partition of a store, from the index alone: its sentences, their subwords, the spans of its rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embstore.errors import StoreDamagedError
from embstore.extraction.windows import Context, Fan, Targets, cut_windows
from embstore.models.encoder import Encoder, Spans, Tokenized
from embstore.store.index import Index, Strings

PASSAGE_NBYTES = 2**20  # text tokenised and batched at a time, in batches of up to so many subwords:
PASSAGE_BATCH = 8192
PASSAGE_WORDS = 2**20  # words of all windows cut from a passage, no more than about
BATCHES_OF_A_LENGTH = 128  # a passage is as many batches long, so that windows of one length fill some


@dataclass(frozen=True)
class Passage:
    """Some consecutive sentences of a partition, ready for the encoder, and the rows that their vectors belong to.

    `sentence_of_row`: int64 [rows], its sentence in the store. `fans`: for each store that is written which of its
    rows, counted from `first_row`, has which span; None where span i belongs to row i.
    """

    first_row: int
    sentence_of_row: NDArray[np.int64]
    tokenized: Tokenized
    spans: Spans
    fans: tuple[Fan, ...] | None = None

    @property
    def rows(self) -> int:
        return len(self.sentence_of_row)

    def rows_of(self, store: int, spans: NDArray[np.int64]) -> tuple[NDArray[np.int64] | None, NDArray[np.int64]]:
        """Return the rows of a store that have some spans, and the place of each one's span (None: one row each)."""
        return (None, spans) if self.fans is None else self.fans[store].rows_of(spans)

    def row_of(self, span: int) -> int:
        """The first row that has a span."""
        if self.fans is None:
            return span
        rows = [fan.rows_of(np.array([span]))[1] for fan in self.fans]
        return int(min(int(some[0]) for some in rows if len(some)))


class PartitionReader:
    """Turns rows of an index back into sentences and spans.

    Everything depends on the index, the encoder and `limit` (subwords, specials not counted) alone, so that any
    process that has the store and the model makes the same batches. `contexts`: the context windows wanted, one a
    store, the whole sentence where it is (None,); `batch_subwords` decides how much text a passage has. Where the
    index is a part of another, its first row and sentence are the other's `first_row` and `first_sentence`.
    """

    def __init__(
        self,
        index: Index,
        *,
        unit: str,
        limit: int,
        contexts: tuple[Context, ...] = (None,),
        causal: bool = False,
        batch_subwords: int = 0,
        first_row: int = 0,
        first_sentence: int = 0,
    ) -> None:
        self._index = index
        self._first_row = first_row
        self._first_sentence = first_sentence
        self._contexts = contexts
        self._causal = causal
        self._most_words = passage_words(batch_subwords)
        self._most_nbytes = passage_nbytes(batch_subwords)
        self._unit = unit
        self._limit = limit
        self._widths = _word_counts(index.words) if unit == "word" else None

    def passages(self, start: int, stop: int, encoder: Encoder) -> Iterator[Passage]:
        """Yield the rows `[start, stop)` passage by passage."""
        index = self._index
        origin, last = int(index.sentence[start]), int(index.sentence[stop - 1]) + 1
        offsets = index.texts.offsets[origin : last + 1]
        words = self._words_by_then(origin, last)
        first = origin
        while first < last:
            reach = int(offsets[first - origin]) + self._most_nbytes
            end = origin + int(np.searchsorted(offsets, reach, "right")) - 1
            if words is not None:
                most = int(words[first - origin]) + self._most_words
                end = min(end, origin + int(np.searchsorted(words, most, "right")) - 1)
            end = max(first + 1, end)
            yield self._passage(first, end, start, stop, encoder)
            first = end

    def _words_by_then(self, first: int, last: int) -> NDArray[np.int64] | None:
        """How many words the windows of sentences have at most, added up; None where none are cut."""
        if not self._windowed:
            return None
        rows = np.diff(self._index.indptr[first : last + 1])
        longest = np.diff(self._index.texts.offsets[first : last + 1]) // 2 + 1
        words = np.zeros(last - first + 1, np.int64)
        for context in self._contexts:
            if context is not None:
                words[1:] += rows * np.minimum(2 * context + 1, longest)
        return np.cumsum(words)

    @property
    def _windowed(self) -> bool:
        return self._contexts != (None,)

    def _passage(self, first: int, last: int, start: int, stop: int, encoder: Encoder) -> Passage:
        index = self._index
        rows = slice(int(index.indptr[first]), int(index.indptr[last]))
        words = [text.split(" ") for text in index.texts.slice(first, last)]
        tokenized = encoder.tokenize(words)
        sentence = np.asarray(index.sentence[rows]) - first
        targets = self._targets(rows, sentence, tokenized)
        self._check(rows, targets.start, targets.stop)
        own = slice(max(start - rows.start, 0), min(stop, rows.stop) - rows.start)
        targets, cut = targets[own], truncated(tokenized, self._limit)
        first_row = self._first_row + rows.start + own.start
        sentence_of_row = targets.sentence + first + self._first_sentence
        if not self._windowed:
            spans = Spans(targets.sentence, targets.start, targets.stop)
            return Passage(first_row, sentence_of_row, cut, spans)
        made = cut_windows(cut, targets, self._contexts, causal=self._causal)
        return Passage(first_row, sentence_of_row, made.tokenized, made.spans, made.fans)

    def _targets(self, rows: slice, sentence: NDArray[np.int64], tokenized: Tokenized) -> Targets:
        index = self._index
        word = tokenized.sentence_indptr[sentence] + index.position[rows]
        base = tokenized.word_indptr[tokenized.sentence_indptr[sentence]]
        begin = tokenized.word_indptr[word] - base
        if self._widths is not None:
            after = word + self._widths[index.type[rows]]
            return Targets(sentence, begin, tokenized.word_indptr[after] - base, word, after)
        places, counts = _places_in_runs(sentence, index.position[rows])
        after = np.searchsorted(tokenized.word_indptr, base + begin + counts, "left")
        return Targets(sentence, begin + places, begin + places + 1, word, after)

    def _check(self, rows: slice, begin: NDArray[np.int64], end: NDArray[np.int64]) -> None:
        """The tokenizer must make of the stored text what it made of the corpus."""
        wrong = np.flatnonzero((end - begin != self._index.subwords[rows]) | (end > self._limit))
        if len(wrong):
            row = rows.start + int(wrong[0])
            sentence = int(self._index.sentence[row])
            raise StoreDamagedError(
                f"row {self._first_row + row} (sentence {self._first_sentence + sentence}) has "
                f"{int(end[wrong[0]] - begin[wrong[0]])} subwords, the index says {int(self._index.subwords[row])}: "
                "the index is damaged or the tokenizer has changed; run embstore verify"
            )


def _word_counts(forms: Strings) -> NDArray[np.int64]:
    """How many words each form has: its inner spaces and one."""
    spaces = np.zeros(len(forms.data) + 1, np.int64)
    np.cumsum(forms.data == ord(" "), out=spaces[1:])
    counts: NDArray[np.int64] = spaces[forms.offsets[1:]] - spaces[forms.offsets[:-1]] + 1
    return counts


def _places_in_runs(
    sentence: NDArray[np.int64], position: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The place of each row among the rows of its word, equal in sentence and position, and how many they are."""
    places = np.arange(len(sentence), dtype=np.int64)
    begins = np.ones(len(sentence), bool)
    begins[1:] = (np.diff(sentence) != 0) | (np.diff(position) != 0)
    run = np.cumsum(begins) - 1
    places -= places[begins][run]
    return places, np.bincount(run)[run]


def passage_words(batch_subwords: int) -> int:
    """How many words the windows of a passage have at most, but for a sentence that alone has more."""
    return max(PASSAGE_WORDS, BATCHES_OF_A_LENGTH * batch_subwords)


def passage_nbytes(batch_subwords: int) -> int:
    """How much text a passage has: enough for many batches, since a device idles between two passages."""
    return PASSAGE_NBYTES * max(1, batch_subwords // PASSAGE_BATCH)


def truncated(tokenized: Tokenized, limit: int) -> Tokenized:
    """Cut every sentence to its first `limit` subwords; words beyond are left with none."""
    base = tokenized.word_indptr[tokenized.sentence_indptr]
    lengths = np.diff(base)
    if not len(lengths) or int(lengths.max()) <= limit:
        return tokenized
    words = np.diff(tokenized.sentence_indptr)
    start = np.repeat(base[:-1], words)
    inner = np.minimum(tokenized.word_indptr[1:] - start, limit)
    kept = np.minimum(lengths, limit)
    before = np.zeros(len(kept) + 1, np.int64)
    np.cumsum(kept, out=before[1:])
    word_indptr = np.append(np.int64(0), inner + np.repeat(before[:-1], words))
    place = np.arange(len(tokenized.ids), dtype=np.int64) - np.repeat(base[:-1], lengths)
    return Tokenized(tokenized.ids[place < limit], word_indptr, tokenized.sentence_indptr)
