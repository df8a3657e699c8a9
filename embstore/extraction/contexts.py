"""Contexts: which runs of whole words the model is given, and which words each run owns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from embstore.extraction.options import ExtractionOptions, Window

_Numbers = NDArray[np.int64]
BLOCK = 2**12  # contexts that are cut at a time
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
    def of(cls, options: ExtractionOptions, windows: tuple[Window, ...], *, limit: int, causal: bool) -> Overlap:
        """Return the overlap of blocks of `limit` subwords; it has all words of the context `windows`."""
        words = max([options.min_left or 0, *(window for window in windows if window is not None)])
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
    for first in range(0, len(units.documents) - 1, BLOCK):
        bounds = units.documents[first : first + BLOCK + 1]
        whole = np.stack([bounds[:-1], bounds[1:], bounds[:-1]], axis=1)
        begin = 0
        for document in np.flatnonzero(np.diff(units.subwords[bounds]) > limit).tolist():
            yield whole[begin:document]
            blocks = _blocks(units, int(bounds[document]), int(bounds[document + 1]), limit, overlap)
            while some := list(islice(blocks, BLOCK)):
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
