"""What the model is given: contexts, runs of subwords that own some; and windows, the words around each target."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from embstore.extraction.options import ExtractionOptions
from embstore.models.encoder import Indices, Spans, Tokenized

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
class Places:
    """Where the words of a text begin and end: the subwords `[first, last)` of each, int64 [n_words].

    A word without a subword is at the end of the word before.
    """

    first: Indices
    last: Indices

    def start_of(self, subword: int) -> int:
        """Return where the word that is before and behind the start of a subword begins, else the subword itself."""
        word = int(np.searchsorted(self.first, subword)) - 1
        return int(self.first[word]) if word >= 0 and self.last[word] > subword else subword

    def before(self, subword: int, n_words: int) -> int:
        """Return where the word begins that is some words before the one at a subword."""
        word = int(np.searchsorted(self.first, subword, "right")) - 1
        return int(self.first[max(0, word - n_words)]) if word >= 0 else subword


def cut_texts(bounds: Indices, limit: int, overlap: Overlap, words: Callable[[int], Places]) -> Iterator[Indices]:
    """Cut texts into contexts of at most `limit` subwords; yields int64 [n, 3], in the order of the corpus.

    `bounds`: int64 [texts + 1], the subwords of each text. `words`: the words of a text that is longer than the limit.
    A context has the subwords `[start, stop)` and owns those from the third number on, up to those of the next context;
    a text that fits is one context. The block that follows another begins as late as leaves the first subword that it
    owns the words and subwords of `overlap` on its left, or as many as fit. Where blocks overlap, a word is owned by
    one that has all of it.
    """
    for first in range(0, len(bounds) - 1, CUT_TOGETHER):
        some = bounds[first : first + CUT_TOGETHER + 1]
        whole = np.stack([some[:-1], some[1:], some[:-1]], axis=1)
        begin = 0
        for text in np.flatnonzero(np.diff(some) > limit).tolist():
            yield whole[begin:text]
            blocks = _blocks(int(some[text]), int(some[text + 1]), limit, overlap, words(first + text))
            while part := list(islice(blocks, CUT_TOGETHER)):
                yield np.array(part, np.int64)
            begin = text + 1
        yield whole[begin:]


def _blocks(first: int, last: int, limit: int, overlap: Overlap, words: Places) -> Iterator[tuple[int, int, int]]:
    def before(subword: int) -> int:
        """Return the subword that is the overlap's words and subwords before another."""
        by_words = words.before(subword, overlap.words) if overlap.words else subword
        return min(by_words, subword - overlap.subwords)

    overlaps, owned = bool(overlap.words or overlap.subwords), first
    while owned < last:
        start = max(first, owned + 1 - limit, before(owned))
        stop = min(last, start + limit)
        following = stop
        if stop < last and overlap.both_sides:
            following = max(before(stop), owned + (stop - owned + 1) // 2)
        if stop < last and overlaps:
            following = max(owned + 1, words.start_of(following))
        yield start, stop, owned
        owned = following


@dataclass(frozen=True)
class Targets:
    """What each row is pooled from: subwords `[start, stop)` of its context, counted from the context's first.

    `context`: counted in the passage. `words_from`, `words_to`: the words that it consists of, counted as in `Places`.
    """

    context: Indices
    start: Indices
    stop: Indices
    words_from: Indices
    words_to: Indices


def cut_windows(
    tokenized: Tokenized, targets: Targets, width: int, words: Places, begins: Indices, *, causal: bool
) -> tuple[Tokenized, Spans, tuple[Indices, Indices]]:
    """Cut the window of every target; returns the distinct ones as texts, the spans in them, and the rows by span.

    `words`: their subwords are counted as those of `begins` are, int64 [contexts], where each context begins. A window
    has the subwords from its first word to its last one, and is of one context. Windows are equal if they have the same
    subwords. For a `causal` model the words right of a target do not matter: windows that begin at one place become
    one, which ends with the last target.
    """
    base, lengths = begins[targets.context], np.diff(tokenized.bounds)[targets.context]
    first = np.searchsorted(words.first, base)
    last = np.searchsorted(words.last, base + lengths, "right")
    left = np.maximum(first, targets.words_from - width)
    right = targets.words_to if causal else np.minimum(last, targets.words_to + width)
    offset = tokenized.bounds[targets.context] - base
    start, stop = (tokenized.bounds[targets.context] + each for each in (targets.start, targets.stop))
    begin = np.minimum(start, words.first[left] + offset)
    end = np.minimum(np.maximum(stop, words.last[right - 1] + offset), tokenized.bounds[targets.context + 1])
    if causal:
        begins, place = np.unique(begin, return_inverse=True)
        ends = np.zeros(len(begins), np.int64)
        np.maximum.at(ends, place, end)
    else:
        size = len(tokenized.ids) + 1
        places, place = np.unique(begin * size + end, return_inverse=True)
        begins, ends = places // size, places % size
    number_of: dict[bytes, int] = {}  # of the first window with these subwords
    runs = enumerate(zip(begins.tolist(), ends.tolist(), strict=True))
    firsts = [number_of.setdefault(tokenized.ids[one:other].tobytes(), number) for number, (one, other) in runs]
    distinct, same = np.unique(np.array(firsts, np.int64), return_inverse=True)
    window = same[place]
    longest = int((ends - begins).max(initial=0)) + 1
    from_start, from_stop = start - begins[place], stop - begins[place]
    keys, span = np.unique((window * longest + from_start) * longest + from_stop, return_inverse=True)
    spans = Spans(keys // longest**2, keys // longest % longest, keys % longest)
    rows = np.argsort(span, kind="stable")
    bounds = np.searchsorted(span[rows], np.arange(len(keys) + 1))
    return tokenized.runs(begins[distinct], ends[distinct]), spans, (rows, bounds)
