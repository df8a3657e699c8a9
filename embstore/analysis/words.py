"""Which words of a store or selection qualify, and the rows of each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.errors import InvalidValueError
from embstore.store import Selection, Store, Strings

_TEXT_NBYTES = 2**26


@dataclass(frozen=True)
class WordRows:
    """The occurrences of words: those of word `i` are `rows[indptr[i]:indptr[i + 1]]`, ascending; int64 both.

    `types`: int64 [words], rows of the store's `index.words`. An occurrence that a selection names twice counts once.
    """

    types: NDArray[np.int64]
    indptr: NDArray[np.int64]
    rows: NDArray[np.int64]

    @property
    def counts(self) -> NDArray[np.int64]:
        return np.diff(self.indptr)

    def of(self, place: int) -> NDArray[np.int64]:
        return self.rows[self.indptr[place] : self.indptr[place + 1]]

    def some(self, places: NDArray[np.int64]) -> WordRows:
        """These words alone, in the order of `places`."""
        counts = self.counts[places]
        indptr = np.append(0, np.cumsum(counts))
        own = np.arange(int(indptr[-1])) + np.repeat(self.indptr[places] - indptr[:-1], counts)
        return WordRows(self.types[places], indptr, self.rows[own])


def all_types(source: Store | Selection) -> NDArray[np.int64]:
    """The types that have an occurrence, ascending; int64 [n]."""
    store, rows = _store_and_rows(source)
    types = store.index.type if rows is None else store.index.type[rows]
    return np.flatnonzero(np.bincount(types, minlength=len(store.index.words)))


def distinct_contexts(source: Store | Selection) -> NDArray[np.int64]:
    """In how many different sentences each type of the store occurs; int64 [types], 0 for one that is not selected.

    Sentences of the same words are one. Counts what a selection holds, whether it is written yet or not.
    """
    store, rows = _store_and_rows(source)
    index = store.index
    texts = distinct_texts(index.texts)
    rows = np.arange(store.n_rows) if rows is None else rows
    key = index.type[rows].astype(np.int64)
    key *= int(texts.max(initial=0)) + 1
    key += texts[index.sentence[rows]]
    key.sort()
    first = np.append(True, key[1:] != key[:-1])[: len(key)]
    return np.bincount(key[first] // (int(texts.max(initial=0)) + 1), minlength=len(index.words))


def distinct_texts(texts: Strings) -> NDArray[np.int64]:
    """Number texts so that equal ones, and only these, have the same number; int64 [n].

    Texts of one length are compared as bytes, all at once.
    """
    starts = np.asarray(texts.offsets[:-1])
    lengths = np.diff(texts.offsets)
    order = np.argsort(lengths, kind="stable")
    edges = np.flatnonzero(np.diff(lengths[order], prepend=-1))
    numbers = np.empty(len(lengths), np.int64)
    known = 0
    for first, last in zip(edges.tolist(), [*edges[1:].tolist(), len(order)], strict=True):
        members = order[first:last]
        length = int(lengths[members[0]])
        if len(members) == 1 or not length:
            numbers[members] = known
            known += 1
            continue
        found = _distinct_strings(texts.data, starts[members], length)
        numbers[members] = found + known
        known += int(found.max()) + 1
    return numbers


def _distinct_strings(data: NDArray[np.uint8], starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    together = np.empty((len(starts), length), np.uint8)
    step = max(1, _TEXT_NBYTES // (8 * length))
    for start in range(0, len(starts), step):
        part = starts[start : start + step]
        together[start : start + step] = data[part[:, None] + np.arange(length)]
    return np.unique(together.view(f"S{length}").ravel(), return_inverse=True)[1].astype(np.int64)


def eligible_types(
    source: Store | Selection, min_contexts: int = 5, max_contexts: int | None = None
) -> NDArray[np.int64]:
    """The types that occur in so many different sentences, ascending; int64 [n]."""
    if min_contexts < 1:
        raise InvalidValueError(f"min_contexts {min_contexts} is not allowed: give 1 or more")
    if max_contexts is not None and max_contexts < min_contexts:
        raise InvalidValueError(f"max_contexts {max_contexts} is less than min_contexts {min_contexts}: no word has so")
    contexts = distinct_contexts(source)
    wanted = contexts >= min_contexts
    if max_contexts is not None:
        wanted &= contexts <= max_contexts
    return np.flatnonzero(wanted)


def rows_of_words(source: Store | Selection, types: ArrayLike) -> WordRows:
    """Group the occurrences of a store or selection by word, for distinct types in any order.

    Raises InvalidValueError for no type, one that the store lacks, one given twice and one without an occurrence.
    """
    store, rows = _store_and_rows(source)
    chosen = _checked_types(store, types)
    places = np.full(len(store.index.words), -1, np.int32)
    places[chosen] = np.arange(len(chosen), dtype=np.int32)
    found = places[store.index.type if rows is None else store.index.type[rows]]
    order = np.argsort(found, kind="stable")
    indptr = np.searchsorted(found[order], np.arange(len(chosen) + 1))
    lacking = np.flatnonzero(np.diff(indptr) == 0)
    if len(lacking):
        word = store.index.words[int(chosen[lacking[0]])]
        raise InvalidValueError(f"the word {word!r} has no occurrence that is selected of {store.path}: leave it out")
    grouped = order[indptr[0] :]
    return WordRows(chosen, indptr - indptr[0], grouped if rows is None else rows[grouped])


def _store_and_rows(source: Store | Selection) -> tuple[Store, NDArray[np.int64] | None]:
    """The store, and the rows chosen of it, ascending and each once; None for all."""
    if isinstance(source, Store):
        return source, None
    rows = source.rows
    if len(rows) > 1 and not bool((rows[1:] > rows[:-1]).all()):
        rows = np.unique(rows)
    return source.store, rows


def _checked_types(store: Store, types: ArrayLike) -> NDArray[np.int64]:
    chosen = np.asarray(types)
    if not chosen.size:
        raise InvalidValueError(f"no word of {store.path} is chosen: ask for fewer contexts or other words")
    if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
        raise InvalidValueError(f"types must be a list of integers, not {chosen.dtype} of {chosen.ndim} dimensions")
    known = len(store.index.words)
    wrong = chosen[(chosen < 0) | (chosen >= known)]
    if len(wrong):
        raise InvalidValueError(f"there is no type {int(wrong[0])}: the store has {known}")
    if len(np.unique(chosen)) < len(chosen):
        raise InvalidValueError("a type is given twice: give each once")
    return chosen.astype(np.int64)
