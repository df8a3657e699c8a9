"""The index of some rows of a store: words and sentences counted anew over those that have a row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embstore.store.index import Index, Labels, Strings


def subset_of(index: Index, rows: NDArray[np.int64]) -> Index:
    """Return the index of `rows` (ascending, each once), in memory.

    Words, sentences and their numbers in the corpus (`source`) stay in their order; label columns keep all their
    names.
    """
    types = index.type[rows]
    sentences = index.sentence[rows]
    words = np.flatnonzero(np.bincount(types, minlength=len(index.words)))
    texts = np.unique(sentences)
    return Index(
        type=_renumbered(types, words, len(index.words)).astype(np.int32),
        sentence=np.searchsorted(texts, sentences).astype(np.int64),
        position=index.position[rows],
        subwords=index.subwords[rows],
        words=_strings(index.words, words),
        texts=_strings(index.texts, texts),
        indptr=np.append(np.searchsorted(sentences, texts), len(rows)).astype(np.int64),
        source=index.source[texts],
        labels={name: Labels(labels.codes[rows], labels.names) for name, labels in index.labels.items()},
    )


def _renumbered(values: NDArray[np.int32], used: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    anew = np.empty(count, np.int64)
    anew[used] = np.arange(len(used))
    return anew[values]


def _strings(strings: Strings, chosen: NDArray[np.int64]) -> Strings:
    """Some of the strings, in ascending order; those that follow each other are copied in one piece."""
    starts, stops = strings.offsets[chosen], strings.offsets[chosen + 1]
    offsets = np.zeros(len(chosen) + 1, np.int64)
    np.cumsum(stops - starts, out=offsets[1:])
    data = np.empty(offsets[-1], np.uint8)
    firsts = np.flatnonzero(np.diff(chosen, prepend=-2) != 1)
    lasts = np.append(firsts[1:], len(chosen))
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
        data[offsets[first] : offsets[last]] = strings.data[starts[first] : stops[last - 1]]
    return Strings(offsets, data)
