"""Who is asked and who may answer: the splits of nearest-neighbour labelling."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from embstore.analysis.scan import selected
from embstore.analysis.words import distinct_texts
from embstore.errors import InvalidValueError
from embstore.store import Selection, Store

Split = Literal["words", "leave-one-word-out", "within-word"]


@dataclass(frozen=True, eq=False)
class Asking:
    """Which labelled occurrences are asked and which may answer: `queries`, `candidates`, int64 rows, ascending.

    `codes`: int32 [rows of the store], the label of each. `pool`: int64 [candidates]; only candidates of a query's own
    pool may answer it. `left`: int64 [rows of the store]; none of a query's own group may, -1 for no group. `usual`:
    int64 [queries], the most frequent label of those that may answer, the first in the column of equals.
    """

    selection: Selection
    split: str
    codes: NDArray[np.int32]
    queries: NDArray[np.int64]
    candidates: NDArray[np.int64]
    pool: NDArray[np.int64]
    left: NDArray[np.int64]
    usual: NDArray[np.int64]

    @property
    def one_pool(self) -> bool:
        return self.split != "within-word"


def asking_of(
    source: Store | Selection,
    label: str,
    layers: int | Sequence[int] | None,
    k: int,
    split: str | None,
    train_words: Iterable[str] | None,
    test_words: Iterable[str] | None,
    sample: int | None,
    seed: int,
) -> Asking:
    """Find what `knn_labels` says that it asks; raises InvalidValueError."""
    given = train_words is not None or test_words is not None
    split = split or ("words" if given else "leave-one-word-out")
    _check(k, split, given, test_words is not None, sample)
    selection = selected(source, layers)
    index = selection.store.index
    if label not in index.labels:
        known = ", ".join(index.labels) or "none"
        raise InvalidValueError(f"there is no label column {label!r}: the store has {known}")
    codes = np.asarray(index.labels[label].codes)
    rows = np.unique(selection.rows)
    rows = rows[codes[rows] >= 0]
    if not len(rows):
        raise InvalidValueError(f"no occurrence selected of {selection.store.path} is labelled in {label!r}")
    if split == "words":
        queries, candidates = _by_words(selection.store, rows, train_words, test_words)
    else:
        queries = candidates = rows if split == "leave-one-word-out" else _ambiguous(index.type, rows, codes, label)
    pool, groups = _pools(selection.store, split, candidates, label)
    _check_enough(k, pool, groups)
    left = np.full(selection.store.n_rows, -1)
    left[candidates] = groups
    usual = _usual(codes[candidates], pool, groups, len(index.labels[label].names))
    usual = np.full(len(queries), usual[0]) if split == "words" else usual
    if sample is not None and sample < len(queries):
        places = np.sort(np.random.default_rng(seed).choice(len(queries), sample, replace=False))
        queries, usual = queries[places], usual[places]
    return Asking(selection, split, codes, queries, candidates, pool, left, usual)


def groups_of(numbers: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The places of each number, ascending, the least number first."""
    order = np.argsort(numbers, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)


def _check(k: int, split: str, given: bool, test: bool, sample: int | None) -> None:
    if k < 1:
        raise InvalidValueError(f"k {k} is not allowed: give 1 or more")
    if split not in get_args(Split):
        raise InvalidValueError(f"unknown split {split!r}; allowed are {', '.join(get_args(Split))}")
    if given and split != "words":
        raise InvalidValueError(f"lists of words are for the split words, not for {split}: leave them out")
    if split == "words" and not test:
        raise InvalidValueError("the split words needs to know which words are asked: give test_words")
    if sample is not None and sample < 1:
        raise InvalidValueError(f"sample {sample} is not allowed: give 1 or more")


def _check_enough(k: int, pool: NDArray[np.int64], groups: NDArray[np.int64]) -> None:
    own = np.where(groups < 0, 0, np.bincount(groups + 1)[groups + 1])
    most = int((np.bincount(pool)[pool] - own).max())
    if k > most:
        raise InvalidValueError(f"k {k} is more than the {most:,} labelled occurrences that may answer: give less")


def _by_words(
    store: Store, rows: NDArray[np.int64], train_words: Iterable[str] | None, test_words: Iterable[str] | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The labelled occurrences of the test words and of the train words."""
    test = set(test_words or ())
    train = None if train_words is None else set(train_words)
    if both := sorted(test & (train or set())):
        raise InvalidValueError(
            f"{both[0]!r} is a train and a test word ({len(both):,} such): a word is either learnt from or asked"
        )
    types = store.index.type[rows]
    asked = np.isin(types, _types(store, test))
    learnt = ~asked if train is None else np.isin(types, _types(store, train))
    for name, held in (("test", asked), ("train", learnt)):
        if not held.any():
            raise InvalidValueError(f"no {name} word has a labelled occurrence in {store.path}: give other words")
    return rows[asked], rows[learnt]


def _types(store: Store, words: set[str]) -> list[int]:
    found = (store.type_of(word) for word in words)
    return [number for number in found if number is not None]


def _ambiguous(
    types: NDArray[np.int32], rows: NDArray[np.int64], codes: NDArray[np.int32], label: str
) -> NDArray[np.int64]:
    """The labelled rows of words of two or more labels."""
    pairs = np.unique(np.stack([types[rows], codes[rows]]), axis=1)
    words, labels = np.unique(pairs[0], return_counts=True)
    held = np.isin(types[rows], words[labels >= 2])
    if not held.any():
        raise InvalidValueError(f"no word selected has two labels in {label!r}: choose another column or split")
    return rows[held]


def _pools(
    store: Store, split: str, candidates: NDArray[np.int64], label: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The pool of each candidate, and the group in it that is left out together."""
    index = store.index
    one = np.zeros(len(candidates), np.int64)
    if split == "words":
        return one, np.full(len(candidates), -1)
    words = np.unique(index.type[candidates], return_inverse=True)[1]
    if split == "leave-one-word-out":
        if not words.any():
            raise InvalidValueError(f"only one word is labelled in {label!r}: no other word is left to ask")
        return one, words
    texts = distinct_texts(index.texts)[index.sentence[candidates]]
    return words, np.unique(np.stack([words, texts]), axis=1, return_inverse=True)[1]


def _usual(
    codes: NDArray[np.int32], pool: NDArray[np.int64], groups: NDArray[np.int64], labels: int
) -> NDArray[np.int64]:
    """The most frequent label of each candidate's pool without its own group, int64 [candidates]."""
    out = np.empty(len(codes), np.int64)
    for members in groups_of(pool):
        counts = np.bincount(codes[members], minlength=labels)
        for places in groups_of(groups[members]):
            together = members[places]
            own = 0 if groups[together[0]] < 0 else np.bincount(codes[together], minlength=labels)
            out[together] = (counts - own).argmax()
    return out
