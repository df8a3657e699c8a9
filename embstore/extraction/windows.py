"""What the model is given: contexts, runs of whole words that own some; and windows, the words around each target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from embstore.extraction.options import ExtractionOptions
from embstore.models.encoder import Spans, Tokenized, indptr, ragged_indices

_Numbers = NDArray[np.int64]
CUT_TOGETHER = 2**12  # contexts that are cut at a time
DEFAULT_SHARE = 4  # where min_left is not given, a quarter of a block overlaps


@dataclass(frozen=True)
class Overlap:
    """How much of a document a block repeats of the one before: at least `words` words and `subwords` subwords.

    `both_sides`: the words that a block owns also have that much to their right, as bidirectional models need, as far
    as a block then still owns half of what it could.
    """

    words: int = 0
    subwords: int = 0
    both_sides: bool = False

    @classmethod
    def of(cls, options: ExtractionOptions, *, limit: int, causal: bool) -> Overlap:
        """Return the overlap of blocks of `limit` subwords; it has all words of the context window."""
        words = max(options.min_left or 0, options.context_window or 0)
        if options.min_left is not None or options.is_blocks:
            return cls(words, both_sides=not causal)
        return cls(words, limit // (DEFAULT_SHARE if causal else 2 * DEFAULT_SHARE), both_sides=not causal)


@dataclass(frozen=True)
class Units:
    """What contexts are cut from: the words, phrases or sentences of a corpus, none of which is ever divided.

    `subwords`, `words`: int64 [n + 1], how many there are before each unit. `documents`: int64 [documents + 1], where
    each document begins.
    """

    subwords: _Numbers
    words: _Numbers
    documents: _Numbers


def cut_documents(units: Units, limit: int, overlap: Overlap) -> Iterator[_Numbers]:
    """Cut every document into contexts of at most `limit` subwords; yields int64 [n, 3], in the order of the corpus.

    A context has the units `[start, stop)` and owns those from the third number on, up to those of the next context;
    a document that fits is one context. The block that follows another begins as late as leaves the first unit that
    it owns the words and subwords of `overlap` on its left, or as many as fit. A unit longer than the limit is in no
    context, and the units after it have none of those before it.
    """
    for first in range(0, len(units.documents) - 1, CUT_TOGETHER):
        bounds = units.documents[first : first + CUT_TOGETHER + 1]
        whole = np.stack([bounds[:-1], bounds[1:], bounds[:-1]], axis=1)
        begin = 0
        for document in np.flatnonzero(np.diff(units.subwords[bounds]) > limit).tolist():
            yield whole[begin:document]
            blocks = _blocks(units, int(bounds[document]), int(bounds[document + 1]), limit, overlap)
            while some := list(islice(blocks, CUT_TOGETHER)):
                yield np.array(some, np.int64)
            begin = document + 1
        yield whole[begin:]


def _blocks(units: Units, first: int, last: int, limit: int, overlap: Overlap) -> Iterator[tuple[int, int, int]]:
    subwords, words = units.subwords, units.words

    def before(unit: int) -> int:
        """Return the last unit that is the overlap's words and subwords before another."""
        by_words = np.searchsorted(words, words[unit] - overlap.words, "right")
        by_subwords = np.searchsorted(subwords, subwords[unit] - overlap.subwords, "right")
        return int(min(by_words, by_subwords)) - 1

    owned = first
    while owned < last:
        if subwords[owned + 1] - subwords[owned] > limit:
            owned += 1
            continue
        fits = int(np.searchsorted(subwords, subwords[owned + 1] - limit))
        start = max(first, fits, before(owned))
        stop = min(last, int(np.searchsorted(subwords, subwords[start] + limit, "right")) - 1)
        following = stop
        if overlap.both_sides and stop < last and subwords[stop + 1] - subwords[stop] <= limit:
            following = max(before(stop), owned + (stop - owned + 1) // 2)
        yield start, stop, owned
        owned = following


@dataclass(frozen=True)
class Targets:
    """What each row is pooled from: subwords `[start, stop)` of its sentence, counted from the sentence's first.

    `words_from`, `words_to`: the words that it consists of, counted over all sentences.
    """

    sentence: _Numbers
    start: _Numbers
    stop: _Numbers
    words_from: _Numbers
    words_to: _Numbers

    def __getitem__(self, rows: slice) -> Targets:
        return Targets(
            self.sentence[rows], self.start[rows], self.stop[rows], self.words_from[rows], self.words_to[rows]
        )


@dataclass(frozen=True)
class Fan:
    """Which rows of a passage get the vector of a span; several if windows are equal."""

    _rows: _Numbers
    _indptr: _Numbers

    @classmethod
    def of(cls, span_of_row: _Numbers, n_spans: int) -> Fan:
        rows = np.argsort(span_of_row, kind="stable")
        return cls(rows, np.searchsorted(span_of_row[rows], np.arange(n_spans + 1)))

    def rows_of(self, spans: _Numbers) -> tuple[_Numbers, _Numbers]:
        """Return for each row of some spans the index of its span in `spans`, and the row."""
        counts = self._indptr[spans + 1] - self._indptr[spans]
        return np.repeat(np.arange(len(spans)), counts), self._rows[ragged_indices(self._indptr[spans], counts)]


def cut_windows(tokenized: Tokenized, targets: Targets, width: int, *, causal: bool) -> tuple[Tokenized, Spans, Fan]:
    """Cut the window of every target; returns the distinct ones as sentences, and the spans in them.

    Windows are equal if they have the same subwords, split into words alike. For a `causal` model the words right of
    a target do not matter: windows that begin at one place become one, which ends with the last target.
    """
    base = tokenized.word_indptr[tokenized.sentence_indptr[targets.sentence]]
    start, stop = base + targets.start, base + targets.stop
    first, last = (tokenized.sentence_indptr[targets.sentence + side] for side in (0, 1))
    begin = tokenized.word_indptr[np.maximum(first, targets.words_from - width)]
    end = tokenized.word_indptr[targets.words_to if causal else np.minimum(last, targets.words_to + width)]
    if causal:
        begins, place = np.unique(begin, return_inverse=True)
        ends = np.zeros(len(begins), np.int64)
        np.maximum.at(ends, place, end)
    else:
        size = len(tokenized.ids) + 1
        places, place = np.unique(begin * size + end, return_inverse=True)
        begins, ends = places // size, places % size
    distinct, same = _equal_runs(tokenized, begins, ends)
    window = same[place]
    longest = int((ends - begins).max(initial=0)) + 1
    from_start, from_stop = start - begins[place], stop - begins[place]
    keys, span = np.unique((window * longest + from_start) * longest + from_stop, return_inverse=True)
    spans = Spans(keys // longest**2, keys // longest % longest, keys % longest)
    return _as_sentences(tokenized, begins[distinct], ends[distinct]), spans, Fan.of(span, len(keys))


def _equal_runs(tokenized: Tokenized, begins: _Numbers, ends: _Numbers) -> tuple[_Numbers, _Numbers]:
    """Find equal runs of subwords: the first of each kind, ascending, and for every run which of these it equals."""
    content = 2 * tokenized.ids.astype(np.int64)
    content[tokenized.word_indptr[:-1][np.diff(tokenized.word_indptr) > 0]] += 1  # where words begin
    first: dict[bytes, int] = {}
    runs = enumerate(zip(begins.tolist(), ends.tolist(), strict=True))
    like = [first.setdefault(content[begin:end].tobytes(), number) for number, (begin, end) in runs]
    return np.unique(np.array(like, np.int64), return_inverse=True)


def _as_sentences(tokenized: Tokenized, begins: _Numbers, ends: _Numbers) -> Tokenized:
    """Copy runs of subwords, each of whole words, as sentences of their own."""
    first = np.searchsorted(tokenized.word_indptr, begins, "right") - 1
    last = np.searchsorted(tokenized.word_indptr, ends, "left")
    return copy_words(tokenized, first, last)


def copy_words(tokenized: Tokenized, first: _Numbers, last: _Numbers) -> Tokenized:
    """Copy runs of words `[first, last)` as sentences of their own."""
    words, bounds = ragged_indices(first, last - first), tokenized.word_indptr
    subwords = ragged_indices(bounds[first], bounds[last] - bounds[first])
    return Tokenized(
        ids=tokenized.ids[subwords],
        word_indptr=indptr(bounds[words + 1] - bounds[words]),
        sentence_indptr=indptr(last - first),
        types=None if tokenized.types is None else tokenized.types[subwords],
    )


def select_sentences(tokenized: Tokenized, chosen: _Numbers) -> Tokenized:
    """Copy some sentences that have subwords."""
    base = tokenized.word_indptr[tokenized.sentence_indptr]
    return _as_sentences(tokenized, base[chosen], base[chosen + 1])
