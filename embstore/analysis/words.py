"""Which words of a store or selection qualify for an analysis, and the rows of each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.errors import InvalidValueError
from embstore.store import Selection, Store, Strings

_TEXT_NBYTES = 2**26


@dataclass(frozen=True)
class WordRows:
    """The occurrences of some words: those of word `i` are `rows[indptr[i]:indptr[i + 1]]`, ascending; both int64.

    `types`: int64 [n_words], positions in the store's `index.words`. An occurrence that a selection names twice counts
    once.
    """

    types: NDArray[np.int64]
    indptr: NDArray[np.int64]
    rows: NDArray[np.int64]

    @property
    def counts(self) -> NDArray[np.int64]:
        """The number of occurrences of each word, int64 [n_words]."""
        return np.diff(self.indptr)

    def of(self, number: int) -> NDArray[np.int64]:
        """The rows of one word."""
        return self.rows[self.indptr[number] : self.indptr[number + 1]]

    def some(self, numbers: NDArray[np.int64]) -> WordRows:
        """The words with these numbers alone, in the order of `numbers`."""
        counts = self.counts[numbers]
        indptr = np.append(0, np.cumsum(counts))
        own = np.arange(int(indptr[-1])) + np.repeat(self.indptr[numbers] - indptr[:-1], counts)
        return WordRows(self.types[numbers], indptr, self.rows[own])


def all_types(data: Store | Selection) -> NDArray[np.int64]:
    """The types that have an occurrence, ascending; int64 [n]."""
    store, rows = _store_and_rows(data)
    types = store.index.type if rows is None else store.index.type[rows]
    return np.flatnonzero(np.bincount(types, minlength=len(store.index.words)))


def distinct_contexts(data: Store | Selection) -> NDArray[np.int64]:
    """Count the different sentences that each type occurs in; int64 [n_types], 0 for a type that is not selected.

    Sentences with the same words count once. Rows count whether they are written yet or not.
    """
    store, rows = _store_and_rows(data)
    index = store.index
    texts = distinct_texts(index.texts)
    rows = np.arange(store.n_rows) if rows is None else rows
    key = index.type[rows].astype(np.int64)
    key *= int(texts.max(initial=0)) + 1
    key += texts[index.sentence[rows]]
    key.sort()
    first = np.append(True, key[1:] != key[:-1])[: len(key)]
    return np.bincount(key[first] // (int(texts.max(initial=0)) + 1), minlength=len(index.words))


def eligible_types(
    data: Store | Selection, min_contexts: int = 5, max_contexts: int | None = None
) -> NDArray[np.int64]:
    """The types that occur in `min_contexts` to `max_contexts` different sentences, ascending; int64 [n]."""
    if min_contexts < 1:
        raise InvalidValueError(f"min_contexts {min_contexts} is not allowed: give 1 or more")
    if max_contexts is not None and max_contexts < min_contexts:
        raise InvalidValueError(f"max_contexts {max_contexts} is less than min_contexts {min_contexts}: no word fits")
    contexts = distinct_contexts(data)
    mask = contexts >= min_contexts
    if max_contexts is not None:
        mask &= contexts <= max_contexts
    return np.flatnonzero(mask)


def distinct_texts(texts: Strings) -> NDArray[np.int64]:
    """Number texts so that equal texts, and no others, have the same number; int64 [n].

    Texts of one length are compared as bytes, all at once.
    """
    starts = np.asarray(texts.offsets[:-1])
    lengths = np.diff(texts.offsets)
    order = np.argsort(lengths, kind="stable")
    edges = np.flatnonzero(np.diff(lengths[order], prepend=-1))
    numbers = np.empty(len(lengths), np.int64)
    n_known = 0
    for first, last in zip(edges.tolist(), [*edges[1:].tolist(), len(order)], strict=True):
        members = order[first:last]
        length = int(lengths[members[0]])
        if len(members) == 1 or not length:
            numbers[members] = n_known
            n_known += 1
            continue
        together = np.empty((len(members), length), np.uint8)
        step = max(1, _TEXT_NBYTES // (8 * length))
        for start in range(0, len(members), step):
            part = starts[members[start : start + step]]
            together[start : start + step] = texts.data[part[:, None] + np.arange(length)]
        found = np.unique(together.view(f"S{length}").ravel(), return_inverse=True)[1].astype(np.int64)
        numbers[members] = found + n_known
        n_known += int(found.max()) + 1
    return numbers


def rows_of_words(data: Store | Selection, types: ArrayLike) -> WordRows:
    """Group the occurrences of a store or selection by word, for distinct types in any order.

    Raises InvalidValueError for an empty list, an unknown type, one given twice and one without an occurrence.
    """
    store, rows = _store_and_rows(data)
    chosen = _checked_types(store, types)
    numbers = np.full(len(store.index.words), -1, np.int32)
    numbers[chosen] = np.arange(len(chosen), dtype=np.int32)
    found = numbers[store.index.type if rows is None else store.index.type[rows]]
    order = np.argsort(found, kind="stable")
    indptr = np.searchsorted(found[order], np.arange(len(chosen) + 1))
    empty = np.flatnonzero(np.diff(indptr) == 0)
    if len(empty):
        word = store.index.words[int(chosen[empty[0]])]
        raise InvalidValueError(f"the word {word!r} has no selected occurrence in {store.path}: leave it out")
    grouped = order[indptr[0] :]
    return WordRows(chosen, indptr - indptr[0], grouped if rows is None else rows[grouped])


def _store_and_rows(data: Store | Selection) -> tuple[Store, NDArray[np.int64] | None]:
    """The store and the selected rows, ascending and each once; None for all rows."""
    if isinstance(data, Store):
        return data, None
    rows = data.rows
    if len(rows) > 1 and not bool((rows[1:] > rows[:-1]).all()):
        rows = np.unique(rows)
    return data.store, rows


def _checked_types(store: Store, types: ArrayLike) -> NDArray[np.int64]:
    chosen = np.asarray(types)
    if not chosen.size:
        raise InvalidValueError(f"no word of {store.path} is chosen: allow fewer contexts, or choose other words")
    if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
        raise InvalidValueError(f"types must be a list of integers, not {chosen.dtype} of {chosen.ndim} dimensions")
    n_known = len(store.index.words)
    invalid = chosen[(chosen < 0) | (chosen >= n_known)]
    if len(invalid):
        raise InvalidValueError(f"there is no type {int(invalid[0])}: the store has {n_known}")
    if len(np.unique(chosen)) < len(chosen):
        raise InvalidValueError("a type is given twice: give each once")
    return chosen.astype(np.int64)
