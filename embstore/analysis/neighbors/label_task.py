"""Which occurrences have their labels predicted, and from which others: the splits of `knn_labels`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from embstore.analysis.neighbors.space import MAX_SEED
from embstore.analysis.scan import selected
from embstore.analysis.words import distinct_texts
from embstore.errors import InvalidValueError, check_choice, check_whole
from embstore.store import Selection, Store
from embstore.store.layout import Layers

Split = Literal["words", "leave-one-word-out", "within-word", "train"]
Classifier = Literal["knn", "centroid"]
MOST_FREQUENT = "most-frequent"


@dataclass(frozen=True)
class Wanted:
    """The arguments of `knn_labels` that define a task."""

    label: str
    ks: tuple[int, ...]
    split: str | None
    train_words: Iterable[str] | None
    test_words: Iterable[str] | None
    train: Selection | None
    word: str | None
    classifier: str
    backoff: str | None
    capped: bool
    averaged: bool
    is_space_learned: bool
    sample: int | None
    seed: int

    def checked_split(self) -> str:
        """Return the split; raises InvalidValueError for arguments that do not go together."""
        has_words = self.train_words is not None or self.test_words is not None
        split = self.split or ("train" if self.train is not None else "words" if has_words else "leave-one-word-out")
        if not self.ks:
            raise InvalidValueError("k is empty: give one number or more")
        for k in self.ks:
            check_whole("k", k, 1)
        check_choice("split", split, get_args(Split))
        check_choice("classifier", self.classifier, get_args(Classifier))
        if has_words and split != "words":
            raise InvalidValueError(f"lists of words are for the split words, not for {split}: leave them out")
        if split == "words" and self.test_words is None:
            raise InvalidValueError("the split words needs a list of test words: give one")
        if (split == "train") != (self.train is not None):
            raise InvalidValueError(
                f"train occurrences are for the split train, which needs them; the split is {split}"
            )
        if split != "train" and (self.word is not None or self.backoff is not None or self.capped):
            raise InvalidValueError(f"word, backoff and capped are for the split train, not {split}: leave them out")
        if self.averaged and self.is_space_learned:
            raise InvalidValueError("averaged layers are compared as they are: leave centered and n_components out")
        if self.averaged and split not in ("within-word", "train"):
            raise InvalidValueError(f"averaged is for the splits within-word and train, not {split}: leave it out")
        if self.classifier == "centroid" and (self.ks != (1,) or split not in ("words", "train")):
            raise InvalidValueError("centroids are for the splits words and train with k 1: give these, or knn")
        if self.sample is not None:
            check_whole("sample", self.sample, 1)
        check_whole("seed", self.seed, 0, MAX_SEED)
        return split


@dataclass(frozen=True, eq=False)
class Task:
    """The test occurrences and their possible neighbours: `queries` and `candidates`, int64 rows, ascending.

    `codes`: int32 [n_rows], the label of each row of the store. `words`: Strings and int [n_rows], the name and the
    code of the word of each row. `pool`: int64 [n_candidates], and `query_pool` [n_queries]; a query finds candidates
    of its own pool only, -1 is no pool. `groups`: int64 [n_rows]; a query does not find its own group, -1 is no group.
    `usual`: float64 [n_queries, 3]: the credit of the most frequent label among the possible neighbours, that of a
    label drawn at random, and how many labels they have. `backoff`: int64 [n_queries], the label predicted if there are
    none, -1 for none. `limit`: int64 [n_queries], how many neighbours vote at most.
    """

    selection: Selection
    wanted: Wanted
    split: str
    codes: NDArray[np.int32]
    words: tuple[Any, NDArray[Any]]
    queries: NDArray[np.int64]
    candidates: NDArray[np.int64]
    pool: NDArray[np.int64]
    query_pool: NDArray[np.int64]
    groups: NDArray[np.int64]
    usual: NDArray[np.float64]
    backoff: NDArray[np.int64]
    limit: NDArray[np.int64]

    @property
    def true(self) -> NDArray[np.int64]:
        """The label of each query."""
        return self.codes[self.queries].astype(np.int64)


def task_of(data: Store | Selection, layers: Layers, wanted: Wanted) -> Task:
    """Build the task that `knn_labels` describes; raises InvalidValueError."""
    split = wanted.checked_split()
    selection = selected(data, layers)
    store, index = selection.store, selection.store.index
    codes = _codes(store, wanted.label)
    rows = _labelled(selection, codes, wanted.label)
    if split == "words":
        queries, candidates = _by_words(store, rows, wanted.train_words, wanted.test_words)
    elif split == "train":
        queries, candidates = rows, _train_rows(wanted, selection, rows, codes)
    else:
        queries = rows if split == "leave-one-word-out" else _ambiguous(index.type, rows, codes, wanted.label)
        candidates = queries
    words: tuple[Any, NDArray[Any]] = index.words, index.type
    if wanted.word is not None:
        word_codes = _codes(store, wanted.word)
        words = index.labels[wanted.word].names, word_codes
    pool, group = _pools(store, split, candidates, wanted.label, words[1])
    query_pool = pool if queries is candidates else _pool_of(queries, candidates, pool, split, words[1])
    n_own = np.where(group < 0, 0, np.bincount(group + 1)[group + 1])
    most = int((np.bincount(pool)[pool] - n_own).max())
    if max(wanted.ks) > most:
        raise InvalidValueError(
            f"k {max(wanted.ks)} is more than the {most:,} labelled occurrences that can be found: give less"
        )
    groups = np.full(store.n_rows, -1)
    groups[candidates] = group
    backoff = _backoff(wanted, store, codes, queries, candidates)
    if wanted.sample is not None and wanted.sample < len(queries):
        drawn = np.sort(np.random.default_rng(wanted.seed).choice(len(queries), wanted.sample, replace=False))
        queries, query_pool, backoff = (each[drawn] for each in (queries, query_pool, backoff))
    counted = _counted(codes, queries, query_pool, groups, candidates, pool)
    limit = counted[:, 3].astype(np.int64) if wanted.capped else np.full(len(queries), max(wanted.ks))
    return Task(
        selection=selection,
        wanted=wanted,
        split=split,
        codes=codes,
        words=words,
        queries=queries,
        candidates=candidates,
        pool=pool,
        query_pool=query_pool,
        groups=groups,
        usual=counted[:, :3],
        backoff=backoff,
        limit=limit,
    )


def _codes(store: Store, label: str) -> NDArray[np.int32]:
    """The label of each row of the store in a column."""
    if label not in store.index.labels:
        known = ", ".join(store.index.labels) or "none"
        raise InvalidValueError(f"there is no label column {label!r}: the store has {known}")
    return np.asarray(store.index.labels[label].codes)


def _labelled(selection: Selection, codes: NDArray[np.int32], label: str) -> NDArray[np.int64]:
    """The labelled rows of a selection, ascending."""
    rows = np.unique(selection.rows)
    rows = rows[codes[rows] >= 0]
    if not len(rows):
        raise InvalidValueError(f"no selected occurrence of {selection.store.path} is labelled in {label!r}")
    return rows


def _train_rows(
    wanted: Wanted, selection: Selection, test: NDArray[np.int64], codes: NDArray[np.int32]
) -> NDArray[np.int64]:
    train = wanted.train
    if not isinstance(train, Selection) or train.store.path != selection.store.path:
        raise InvalidValueError(f"train occurrences are a selection of {selection.store.path}: give store.select(...)")
    rows = _labelled(train, codes, wanted.label)
    both = np.intersect1d(rows, test)
    if len(both):
        raise InvalidValueError(
            f"{len(both):,} occurrences are in train and test, such as row {both[0]}: separate them"
        )
    return rows


def _pool_of(
    queries: NDArray[np.int64], candidates: NDArray[np.int64], pool: NDArray[np.int64], split: str, words: NDArray[Any]
) -> NDArray[np.int64]:
    """The pool of each query, -1 where no candidate is of its word."""
    if split == "words":
        return np.zeros(len(queries), np.int64)
    of_word = np.full(int(words.max()) + 2, -1)
    of_word[words[candidates]] = pool
    return np.where(words[queries] < 0, -1, of_word[words[queries]])


def _backoff(
    wanted: Wanted, store: Store, codes: NDArray[np.int32], queries: NDArray[np.int64], candidates: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The label that is predicted without any neighbour; one that is no label of the column is never right."""
    if wanted.backoff is None:
        return np.full(len(queries), -1)
    if wanted.backoff == MOST_FREQUENT:
        return np.full(len(queries), np.bincount(codes[candidates]).argmax())
    own = _codes(store, wanted.backoff)[queries]
    names = list(store.index.labels[wanted.label].names)
    place = {name: number for number, name in enumerate(names)}
    known = np.array([place.get(name, len(names)) for name in store.index.labels[wanted.backoff].names], np.int64)
    return np.where(own < 0, len(names), known[own])


def _by_words(
    store: Store, rows: NDArray[np.int64], train_words: Iterable[str] | None, test_words: Iterable[str] | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The labelled occurrences of the test words and of the train words."""
    test = set(() if test_words is None else test_words)
    train = None if train_words is None else set(train_words)
    if both := sorted(test & (train or set())):
        raise InvalidValueError(
            f"{both[0]!r} is both a train and a test word ({len(both):,} such words): put each in one list"
        )
    types = store.index.type[rows]
    masks = {"test": np.isin(types, _types_of(store, test))}
    masks["train"] = ~masks["test"] if train is None else np.isin(types, _types_of(store, train))
    for name, mask in masks.items():
        if not mask.any():
            raise InvalidValueError(f"no {name} word has a labelled occurrence in {store.path}: give other words")
    return rows[masks["test"]], rows[masks["train"]]


def _types_of(store: Store, words: set[str]) -> list[int]:
    found = (store.index.type_of(word) for word in words)
    return [number for number in found if number is not None]


def _ambiguous(
    types: NDArray[np.int32], rows: NDArray[np.int64], codes: NDArray[np.int32], label: str
) -> NDArray[np.int64]:
    """The labelled rows of words with two or more labels."""
    pairs = np.unique(np.stack([types[rows], codes[rows]]), axis=1)
    words, n_labels = np.unique(pairs[0], return_counts=True)
    mask = np.isin(types[rows], words[n_labels >= 2])
    if not mask.any():
        raise InvalidValueError(f"no selected word has two labels in {label!r}: choose another column or split")
    return rows[mask]


def _pools(
    store: Store, split: str, candidates: NDArray[np.int64], label: str, column: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The pool of each candidate, and the group in it that is excluded together; `column`: the word of each row."""
    index = store.index
    one = np.zeros(len(candidates), np.int64)
    if split == "words":
        return one, np.full(len(candidates), -1)
    words = np.unique(column[candidates], return_inverse=True)[1]
    if split == "train":
        return words, np.full(len(candidates), -1)
    if split == "leave-one-word-out":
        if not words.any():
            raise InvalidValueError(f"only one word is labelled in {label!r}: there is no other word to compare with")
        return one, words
    texts = distinct_texts(index.texts)[index.sentence[candidates]]
    return words, np.unique(np.stack([words, texts]), axis=1, return_inverse=True)[1]


def _counted(
    codes: NDArray[np.int32],
    queries: NDArray[np.int64],
    query_pool: NDArray[np.int64],
    groups: NDArray[np.int64],
    candidates: NDArray[np.int64],
    pool: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Count the labels among the possible neighbours of each query, float64 [n_queries, 4].

    The credit of the most frequent label, that of a label at random, the number of labels, the count of the rarest.
    """
    out = np.zeros((len(queries), 4))
    n_labels, members = int(codes.max()) + 1, groups_of(pool)
    for asked in groups_of(query_pool):
        if query_pool[asked[0]] < 0:
            continue
        others = candidates[members[query_pool[asked[0]]]]
        whole = np.bincount(codes[others], minlength=n_labels)
        for part in groups_of(groups[queries[asked]]):
            together, group = asked[part], groups[queries[asked[part[0]]]]
            own = 0 if group < 0 else np.bincount(codes[others[groups[others] == group]], minlength=n_labels)
            counts = whole - own
            known, mine = counts > 0, counts[codes[queries[together]]]
            if known.any():
                best = counts.max()
                out[together, 0] = (mine == best) / (counts == best).sum()
                out[together, 1:3] = np.stack([(mine > 0) / known.sum(), np.full(len(mine), known.sum())], 1)
                out[together, 3] = counts[known].min()
    return out


def groups_of(numbers: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The positions of each number, ascending; lowest number first."""
    order = np.argsort(numbers, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)
