"""One partition of a store, from the index alone: its sentences, their subwords, the spans of its rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embstore.errors import StoreDamagedError
from embstore.models.encoder import Encoder, Spans, Tokenized
from embstore.store.index import Index, Strings

WINDOW_NBYTES = 2**20  # text tokenised and batched at a time


@dataclass(frozen=True)
class Window:
    """Some consecutive sentences of a partition, ready for the encoder; span i belongs to row `first_row + i`."""

    first_row: int
    first_sentence: int
    tokenized: Tokenized
    spans: Spans


class PartitionReader:
    """Turns rows of an index back into sentences and spans.

    Everything depends on the index, the encoder and `limit` (subwords, specials not counted) alone, so that any
    process that has the store and the model makes the same batches.
    """

    def __init__(self, index: Index, *, unit: str, limit: int) -> None:
        self._index = index
        self._unit = unit
        self._limit = limit
        self._widths = _word_counts(index.words) if unit == "word" else None

    def windows(self, start: int, stop: int, encoder: Encoder) -> Iterator[Window]:
        """Yield the rows `[start, stop)` window by window."""
        index = self._index
        origin, last = int(index.sentence[start]), int(index.sentence[stop - 1]) + 1
        offsets = index.texts.offsets[origin : last + 1]
        first = origin
        while first < last:
            reach = int(offsets[first - origin]) + WINDOW_NBYTES
            end = max(first + 1, origin + int(np.searchsorted(offsets, reach, "right")) - 1)
            yield self._window(first, end, start, stop, encoder)
            first = end

    def _window(self, first: int, last: int, start: int, stop: int, encoder: Encoder) -> Window:
        index = self._index
        rows = slice(int(index.indptr[first]), int(index.indptr[last]))
        words = [text.split(" ") for text in index.texts.slice(first, last)]
        tokenized = encoder.tokenize(words)
        sentence = np.asarray(index.sentence[rows]) - first
        begin, end = self._subword_spans(rows, sentence, tokenized)
        self._check(rows, first, begin, end)
        own = slice(max(start - rows.start, 0), min(stop, rows.stop) - rows.start)
        spans = Spans(sentence[own], begin[own], end[own])
        return Window(rows.start + own.start, first, truncated(tokenized, self._limit), spans)

    def _subword_spans(
        self, rows: slice, sentence: NDArray[np.int64], tokenized: Tokenized
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        index = self._index
        word = tokenized.sentence_indptr[sentence] + index.position[rows]
        base = tokenized.word_indptr[tokenized.sentence_indptr[sentence]]
        begin = tokenized.word_indptr[word] - base
        if self._widths is not None:
            return begin, tokenized.word_indptr[word + self._widths[index.type[rows]]] - base
        begin += _places_in_runs(sentence, index.position[rows])
        return begin, begin + 1

    def _check(self, rows: slice, first: int, begin: NDArray[np.int64], end: NDArray[np.int64]) -> None:
        """The tokenizer must make of the stored text what it made of the corpus."""
        wrong = np.flatnonzero((end - begin != self._index.subwords[rows]) | (end > self._limit))
        if len(wrong):
            row = rows.start + int(wrong[0])
            raise StoreDamagedError(
                f"row {row} (sentence {int(self._index.sentence[row])}) has "
                f"{int(end[wrong[0]] - begin[wrong[0]])} subwords, the index says {int(self._index.subwords[row])}: "
                "the index is damaged or the tokenizer has changed; run embstore verify"
            )


def _word_counts(forms: Strings) -> NDArray[np.int64]:
    """How many words each form has: its inner spaces and one."""
    spaces = np.zeros(len(forms.data) + 1, np.int64)
    np.cumsum(forms.data == ord(" "), out=spaces[1:])
    counts: NDArray[np.int64] = spaces[forms.offsets[1:]] - spaces[forms.offsets[:-1]] + 1
    return counts


def _places_in_runs(sentence: NDArray[np.int64], position: NDArray[np.int32]) -> NDArray[np.int64]:
    """The place of each row among the rows of its word: 0, 1, ... within a run of equal (sentence, position)."""
    places = np.arange(len(sentence), dtype=np.int64)
    begins = np.ones(len(sentence), bool)
    begins[1:] = (np.diff(sentence) != 0) | (np.diff(position) != 0)
    run = np.cumsum(begins) - 1
    places -= places[begins][run]
    return places


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
