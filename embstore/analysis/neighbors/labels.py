"""Labels and nearest neighbours: exact k-nearest-neighbour classification of occurrences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.analysis.neighbors.exact import Exclusion, Hits, exact_search
from embstore.analysis.neighbors.hubness import QUERY_CHUNK
from embstore.analysis.neighbors.space import MAX_SEED, ArrayVectors, Block, Space, Stored, StoreVectors, space_of
from embstore.analysis.scan import Counter, layer_of, selected
from embstore.analysis.words import distinct_texts
from embstore.arguments import checked
from embstore.errors import InvalidValueError, check_choice, check_whole
from embstore.progress import Progress, reporting
from embstore.store import Selection, Store

Split = Literal["words", "leave-one-word-out", "within-word", "train"]
Classifier = Literal["knn", "centroid"]
MOST_FREQUENT = "most-frequent"
SPARE = 8  # neighbours beyond k that are fetched to see whether they are as near
MAX_HITS = 2**22  # of a search
TIE = 1e-12
BATCH_ROWS = 2**15  # occurrences gathered at a time, of words that are searched one by one
SCHEMA = {
    "task": pl.String,
    "layer": pl.Int64,
    "split": pl.String,
    "k": pl.Int64,
    "space": pl.String,
    "metric": pl.String,
    "item": pl.String,
    "value": pl.Float64,
    "count": pl.Int64,
    "baseline": pl.Float64,
    "seed": pl.Int64,
}


@checked
def knn_scores(
    data: Store | Selection,
    *,
    label: str,
    layers: int | str | Sequence[int] | None = None,
    k: int = 1,
    split: str | None = None,
    train_words: Iterable[str] | None = None,
    test_words: Iterable[str] | None = None,
    train: Selection | None = None,
    word: str | None = None,
    classifier: str = "knn",
    backoff: str | None = None,
    metric: str = "cosine",
    centered: bool = False,
    n_components: int = 0,
    sample: int | None = None,
    seed: int = 0,
    device: str = "auto",
    progress: Progress = None,
) -> pl.DataFrame:
    """Measure how well the k nearest labelled occurrences predict the label of an occurrence, by layer and label.

    The most frequent label of the k neighbours is predicted; of equally frequent labels, that of the nearest one.
    Occurrences that are as near as the k-th neighbour, as equal vectors are, share its votes, and labels that are equal
    in everything share the credit, so that the result does not depend on the order of the store.
    `split` defines the test occurrences and their possible neighbours:
    `words`: occurrences of `test_words`, and those of `train_words` (by default all other words); the default if words
    are given. `leave-one-word-out`: all occurrences, and those of all other words; the default otherwise.
    `within-word`: occurrences of words with two or more labels, and those of the same word in other sentences.
    `train`: all occurrences of `data`, and those of the same word in the selection `train`, as in word-sense
    disambiguation; the default if it is given. `word`: a label column that says which word it is, such as a lemma.

    `classifier`: "knn", or for the splits words and train "centroid", the label whose mean vector is nearest. `backoff`
    answers where there is no possible neighbour: the name of a label column, or "most-frequent" for that of all train.

    Columns: `task` (the label column), `layer, split, k, space, metric, item, value, count, baseline, seed`. The
    metrics are `accuracy` over the `count` test occurrences, `recall` of each label (`item`) over its occurrences, and
    `macro_recall`, the mean recall of `count` labels. `baseline` is the same metric for the most frequent label among
    the possible neighbours. The split train also has `coverage`, the share of `count` test occurrences that have a
    possible neighbour, `word_accuracy` by word, and `macro_f1`, the mean over `count` words of the mean F1 of labels.

    `centered`, `n_components`: subtract the mean and remove principal components, learned from the whole selection.
    `sample`: only this many test occurrences, drawn with `seed`. `progress` counts test occurrences times layers.

    Raises InvalidValueError (unknown column, split or layer; word lists that overlap or do not occur; k of 0 or above
    the number of possible neighbours), MissingRowsError, NonFiniteError.
    """
    wanted = _Wanted(label, k, split, train_words, test_words, train, word, classifier, backoff, sample, seed)
    task = _task_of(data, layers, wanted)
    frames, total = [], len(task.queries) * len(task.selection.layers)
    with reporting(progress, total=total, unit="occurrences", label="knn") as report:
        count = Counter(report)
        for layer in task.selection.layers:
            space = space_of(task.selection, layer, metric=metric, centered=centered, n_components=n_components)
            found = _predict(task, layer, k, space, device, count.add)
            columns = {"task": label, "layer": layer, "split": task.split, "k": k, "space": space.name, "seed": seed}
            frames.append(_score(task, found, columns))
    return pl.concat(frames)


@checked
def knn_predictions(
    data: Store | Selection,
    *,
    label: str,
    layer: int | str = -1,
    k: int = 1,
    split: str | None = None,
    train_words: Iterable[str] | None = None,
    test_words: Iterable[str] | None = None,
    train: Selection | None = None,
    word: str | None = None,
    classifier: str = "knn",
    backoff: str | None = None,
    metric: str = "cosine",
    centered: bool = False,
    n_components: int = 0,
    sample: int | None = None,
    seed: int = 0,
    device: str = "auto",
    progress: Progress = None,
) -> pl.DataFrame:
    """Predict the label of each test occurrence from its nearest labelled occurrences in one layer.

    The options are those of `knn_scores`. One row per occurrence: `occurrence, word, label, predicted, nearest,
    nearest_word, score`; `nearest` is the row of the nearest neighbour with the predicted label (the lowest of equally
    near ones; for centroids the first of the label), `score` its score in the metric; all null where the prediction is
    the back-off. Of labels that are equal in everything, `predicted` is the first.
    """
    number = layer_of(data, layer)
    wanted = _Wanted(label, k, split, train_words, test_words, train, word, classifier, backoff, sample, seed)
    task = _task_of(data, number, wanted)
    space = space_of(task.selection, number, metric=metric, centered=centered, n_components=n_components)
    with reporting(progress, total=len(task.queries), unit="occurrences", label="knn") as report:
        found = _predict(task, number, k, space, device, Counter(report).add)
    mask = found.predicted >= 0
    index = task.selection.store.index
    names = np.array([*index.labels[label].names, ""], object)

    def words(rows: NDArray[np.int64]) -> list[str | None]:
        return [None if row < 0 else index.words[int(index.type[row])] for row in rows.tolist()]

    return pl.DataFrame(
        {
            "occurrence": task.queries[mask],
            "word": words(task.queries[mask]),
            "label": names[task.codes[task.queries[mask]]].tolist(),
            "predicted": names[found.predicted[mask]].tolist(),
            "nearest": [None if row < 0 else row for row in found.nearest[mask].tolist()],
            "nearest_word": words(found.nearest[mask]),
            "score": pl.Series(found.scores[mask]).fill_nan(None),
        },
        schema_overrides=dict.fromkeys(("word", "label", "predicted", "nearest_word"), pl.String)
        | {"nearest": pl.Int64, "score": pl.Float64},
    )


@dataclass(frozen=True)
class _Wanted:
    """The arguments of `knn_scores` that define a task."""

    label: str
    k: int
    split: str | None
    train_words: Iterable[str] | None
    test_words: Iterable[str] | None
    train: Selection | None
    word: str | None
    classifier: str
    backoff: str | None
    sample: int | None
    seed: int

    def checked_split(self) -> str:
        """Return the split; raises InvalidValueError for arguments that do not go together."""
        has_words = self.train_words is not None or self.test_words is not None
        split = self.split or ("train" if self.train is not None else "words" if has_words else "leave-one-word-out")
        check_whole("k", self.k, 1)
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
        if split != "train" and (self.word is not None or self.backoff is not None):
            raise InvalidValueError(f"word and backoff are for the split train, not for {split}: leave them out")
        if self.classifier == "centroid" and (self.k != 1 or split not in ("words", "train")):
            raise InvalidValueError("centroids are for the splits words and train with k 1: give these, or knn")
        if self.sample is not None:
            check_whole("sample", self.sample, 1)
        check_whole("seed", self.seed, 0, MAX_SEED)
        return split


@dataclass(frozen=True, eq=False)
class _Task:
    """The test occurrences and their possible neighbours: `queries` and `candidates`, int64 rows, ascending.

    `codes`: int32 [n_rows], the label of each row of the store. `pool`: int64 [n_candidates], and `query_pool`
    [n_queries]; a query finds candidates of its own pool only. `groups`: int64 [n_rows]; a query does not find its own
    group, -1 is no group. `usual`: int64 [n_queries], the most frequent label among the possible neighbours, the first
    in the column of equals, -1 if there are none. `backoff`: int64 [n_queries], the label predicted then, -1 for none.
    """

    selection: Selection
    split: str
    classifier: str
    codes: NDArray[np.int32]
    queries: NDArray[np.int64]
    candidates: NDArray[np.int64]
    pool: NDArray[np.int64]
    query_pool: NDArray[np.int64]
    groups: NDArray[np.int64]
    usual: NDArray[np.int64]
    backoff: NDArray[np.int64]


def _task_of(data: Store | Selection, layers: int | str | Sequence[int] | None, wanted: _Wanted) -> _Task:
    """Build the task that `knn_scores` describes; raises InvalidValueError."""
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
        queries = candidates = (
            rows if split == "leave-one-word-out" else _ambiguous(index.type, rows, codes, wanted.label)
        )
    words = index.type if wanted.word is None else _codes(store, wanted.word)
    pool, group = _pools(store, split, candidates, wanted.label, words)
    query_pool = pool if queries is candidates else _pool_of(queries, candidates, pool, split, words)
    own = np.where(group < 0, 0, np.bincount(group + 1)[group + 1])
    most = int((np.bincount(pool)[pool] - own).max())
    if wanted.k > most:
        raise InvalidValueError(
            f"k {wanted.k} is more than the {most:,} labelled occurrences that can be found: give less"
        )
    groups = np.full(store.n_rows, -1)
    groups[candidates] = group
    usual = _usual(codes[candidates], pool, group, len(index.labels[wanted.label].names))
    if queries is not candidates:
        _, first = np.unique(pool, return_index=True)
        usual = np.where(query_pool < 0, -1, usual[first][query_pool])
    backoff = _backoff(wanted, store, codes, queries, candidates)
    if wanted.sample is not None and wanted.sample < len(queries):
        drawn = np.sort(np.random.default_rng(wanted.seed).choice(len(queries), wanted.sample, replace=False))
        queries, query_pool, usual, backoff = (each[drawn] for each in (queries, query_pool, usual, backoff))
    return _Task(
        selection, split, wanted.classifier, codes, queries, candidates, pool, query_pool, groups, usual, backoff
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
    wanted: _Wanted, selection: Selection, test: NDArray[np.int64], codes: NDArray[np.int32]
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
    wanted: _Wanted, store: Store, codes: NDArray[np.int32], queries: NDArray[np.int64], candidates: NDArray[np.int64]
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
    found = (store.type_of(word) for word in words)
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


def _usual(
    codes: NDArray[np.int32], pool: NDArray[np.int64], group: NDArray[np.int64], n_labels: int
) -> NDArray[np.int64]:
    """The most frequent label in the pool of each candidate without its own group, int64 [n_candidates]."""
    out = np.empty(len(codes), np.int64)
    for members in groups_of(pool):
        counts = np.bincount(codes[members], minlength=n_labels)
        for part in groups_of(group[members]):
            together = members[part]
            own = 0 if group[together[0]] < 0 else np.bincount(codes[together], minlength=n_labels)
            out[together] = (counts - own).argmax()
    return out


def groups_of(numbers: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The positions of each number, ascending; lowest number first."""
    order = np.argsort(numbers, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)


@dataclass(frozen=True, eq=False)
class _Predictions:
    """The label predicted for each query (-1: it has no neighbour), the nearest row with that label, and its score.

    `credit`: 1 if the prediction is right, a share of 1 if equal labels include the right one, or else 0.
    """

    predicted: NDArray[np.int64]
    nearest: NDArray[np.int64]
    scores: NDArray[np.float64]
    credit: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _Distinct:
    """Candidates with equal vectors in one group, taken as one: `rows` int64 [n], ascending.

    `counts`: int64 [n], how many candidates each one is. Their labels are `codes[indptr[i]:indptr[i + 1]]`, each on
    `n_labelled` of them, of which `first` is the lowest row.
    """

    rows: NDArray[np.int64]
    counts: NDArray[np.int64]
    indptr: NDArray[np.int64]
    codes: NDArray[np.int64]
    n_labelled: NDArray[np.int64]
    first: NDArray[np.int64]

    @classmethod
    def of(cls, blocks: Iterable[Block], task: _Task, rows: NDArray[np.int64]) -> _Distinct:
        hashes = [hash(vector.tobytes()) for _, vectors in blocks for vector in vectors]
        keys = np.stack([np.array(hashes, np.int64), task.groups[rows]])
        _, first, numbers = np.unique(keys, axis=1, return_index=True, return_inverse=True)
        order = np.argsort(first)  # the lowest row of each is ascending
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        numbers = rank[numbers.reshape(-1)]
        n_codes = int(task.codes.max()) + 1
        pairs, place, n_labelled = np.unique(
            numbers * n_codes + task.codes[rows], return_index=True, return_counts=True
        )
        indptr = np.searchsorted(pairs // n_codes, np.arange(len(order) + 1))
        counts = np.bincount(numbers)
        return cls(rows[first[order]], counts, indptr, pairs % n_codes, n_labelled, rows[place])


def _predict(
    task: _Task, layer: int, k: int, space: Space, device: str, advance: Callable[[int], object]
) -> _Predictions:
    n_queries = len(task.queries)
    none = np.full(n_queries, -1)
    found = _Predictions(none.copy(), none.copy(), np.full(n_queries, np.nan), np.zeros(n_queries))
    search = _search_by_word if task.split in ("within-word", "train") else _search_all
    if task.classifier == "centroid":
        search = _search_centroids
    for numbers, hits, distinct in search(task, layer, k, space, device):
        true = task.codes[task.queries[numbers]].astype(np.int64)
        voted = _vote(hits, distinct, k, true, ascending=space.ascending)
        for whole, part in zip(vars(found).values(), vars(voted).values(), strict=True):
            whole[numbers] = part
        advance(len(numbers))
    alone = found.predicted < 0
    found.predicted[alone] = task.backoff[alone]
    found.credit[alone] = task.backoff[alone] == task.codes[task.queries[alone]]
    return found


Found = Iterator[tuple[NDArray[np.int64], Hits, _Distinct]]


def _search_all(task: _Task, layer: int, k: int, space: Space, device: str) -> Found:
    """Yield numbers of queries, their neighbours among all candidates, and the distinct candidates."""
    vectors = StoreVectors(task.selection.store, layer)
    distinct = _Distinct.of(vectors.blocks(task.candidates, BATCH_ROWS), task, task.candidates)

    def search(numbers: NDArray[np.int64], n_fetched: int) -> Hits:
        rows = task.queries[numbers]
        options: dict[str, Any] = {"space": space, "rows": distinct.rows, "device": device}
        exclude = [Exclusion(task.groups, task.groups[rows])]
        return exact_search(vectors, vectors.gather(rows), k=n_fetched, exclude=exclude, **options)

    for start in range(0, len(task.queries), QUERY_CHUNK):
        numbers = np.arange(start, min(start + QUERY_CHUNK, len(task.queries)))
        for part, hits in _with_ties(search, numbers, k, len(distinct.rows)):
            yield part, hits, distinct


def _search_by_word(task: _Task, layer: int, k: int, space: Space, device: str) -> Found:
    """Yield numbers of queries, their neighbours in their own pool, which is small, and the distinct candidates."""
    store, asked = task.selection.store, _asked(task)
    found = [task.candidates[members] for members in groups_of(task.pool)]
    pools = [np.union1d(rows, task.queries[numbers]) for rows, numbers in zip(found, asked, strict=True)]
    batch = np.cumsum([len(rows) for rows in pools]) // BATCH_ROWS
    for number in np.unique(batch).tolist():
        places_of = range(*np.searchsorted(batch, [number, number + 1]))
        vectors = store.gather(np.concatenate([pools[place] for place in places_of]), layer)
        edges = np.cumsum([len(pools[place]) for place in places_of])[:-1]
        for place, own in zip(places_of, np.split(vectors, edges), strict=True):
            rows = pools[place]
            distinct = _Distinct.of([(found[place], own[np.isin(rows, found[place])])], task, found[place])
            places, groups = np.searchsorted(rows, distinct.rows), task.groups[rows]

            def search(
                chosen: NDArray[np.int64],
                n_fetched: int,
                rows: NDArray[np.int64] = rows,
                own: Stored = own,
                places: NDArray[np.int64] = places,
                groups: NDArray[np.int64] = groups,
            ) -> Hits:
                options: dict[str, Any] = {"space": space, "rows": places, "device": device, "threads": 1}
                exclude = [Exclusion(groups, groups[chosen])]
                hits = exact_search(ArrayVectors(own), own[chosen], k=n_fetched, exclude=exclude, **options)
                return Hits(np.where(hits.rows < 0, -1, rows[hits.rows]), hits.scores)

            numbers = np.searchsorted(rows, task.queries[asked[place]])
            for chosen, hits in _with_ties(search, numbers, k, len(places)):
                yield np.searchsorted(task.queries, rows[chosen]), hits, distinct


def _asked(task: _Task) -> list[NDArray[np.int64]]:
    """The numbers of the queries of each pool."""
    order = np.argsort(task.query_pool, kind="stable")
    ends = np.searchsorted(task.query_pool[order], np.arange(int(task.pool.max()) + 2))
    return [order[start:stop] for start, stop in pairwise(ends.tolist())]


def _search_centroids(task: _Task, layer: int, k: int, space: Space, device: str) -> Found:
    """Yield numbers of queries and the mean vectors of the labels in their pool, nearest first; the mean is a row."""
    vectors, n_codes = StoreVectors(task.selection.store, layer), int(task.codes.max()) + 1
    keys, first, number, counts = np.unique(
        task.pool * n_codes + task.codes[task.candidates], return_index=True, return_inverse=True, return_counts=True
    )
    sums = np.zeros((len(keys), task.selection.store.hidden_size))
    for rows, block in vectors.blocks(task.candidates, BATCH_ROWS):
        np.add.at(sums, number[np.searchsorted(task.candidates, rows)], block)
    means = (sums / counts[:, None]).astype(np.float32)
    for pool, asked in enumerate(_asked(task)):
        own = slice(*np.searchsorted(keys, [pool * n_codes, (pool + 1) * n_codes]))
        places, ones = np.arange(own.stop - own.start), np.ones(own.stop - own.start, np.int64)
        labels, lowest = keys[own] % n_codes, task.candidates[first[own]]
        distinct = _Distinct(places, ones, np.arange(len(places) + 1), labels, ones, lowest)
        for start in range(0, len(asked), QUERY_CHUNK):
            numbers = asked[start : start + QUERY_CHUNK]
            given = vectors.gather(task.queries[numbers]).astype(np.float32)
            yield numbers, exact_search(ArrayVectors(means[own]), given, k=len(places), space=space), distinct


def _with_ties(
    search: Callable[[NDArray[np.int64], int], Hits], queries: NDArray[np.int64], k: int, n_candidates: int
) -> Iterator[tuple[NDArray[np.int64], Hits]]:
    """Yield queries and their k nearest with all that are as near as the k-th, searched for further where needed."""
    n_fetched = min(k + SPARE, n_candidates)
    while len(queries):
        pending = []
        step = max(1, MAX_HITS // n_fetched)
        for start in range(0, len(queries), step):
            part = queries[start : start + step]
            hits = search(part, n_fetched)
            kth, last = hits.scores[:, min(k, n_fetched) - 1], hits.scores[:, -1]
            whole = (np.abs(last - kth) > _tolerance(kth)) | np.isnan(last) | (n_fetched == n_candidates)
            yield part[whole], Hits(hits.rows[whole], hits.scores[whole])
            pending.append(part[~whole])
        queries = np.concatenate(pending)
        n_fetched = min(4 * n_fetched, n_candidates)


def _tolerance(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """How much scores of equal vectors can differ by rounding."""
    return np.asarray(TIE * np.maximum(1, np.abs(scores)))


def _vote(hits: Hits, distinct: _Distinct, k: int, true: NDArray[np.int64], *, ascending: bool) -> _Predictions:
    """Predict the labels of queries [q] from their neighbours [q, n]; those as near as the k-th share its votes."""
    n_queries, n_codes = len(hits.rows), int(max(distinct.codes.max(), true.max(initial=0))) + 1
    is_hit = hits.rows >= 0
    own = np.where(is_hit, np.searchsorted(distinct.rows, hits.rows), 0)
    distance = np.where(is_hit, hits.scores if ascending else -hits.scores, np.inf)
    counts = np.where(is_hit, distinct.counts[own], 0)
    kth_place = (np.cumsum(counts, 1) < k).sum(1).clip(max=distance.shape[1] - 1)
    kth = distance[np.arange(n_queries), np.minimum(kth_place, np.maximum(is_hit.sum(1) - 1, 0))][:, None]
    nearer = distance < kth - _tolerance(kth)
    tied = ~nearer & (distance <= kth + _tolerance(kth)) & is_hit
    n_nearer, n_tied = (counts * nearer).sum(1, keepdims=True), (counts * tied).sum(1, keepdims=True)
    share = np.minimum(k - n_nearer, n_tied) / np.maximum(n_tied, 1)
    weight = np.where(nearer, 1.0, np.where(tied, share, 0.0))
    query, place = np.nonzero(weight > 0)
    width = np.diff(distinct.indptr)[own[query, place]]
    query, place = np.repeat(query, width), np.repeat(place, width)
    offset = np.arange(len(query)) - np.repeat(np.cumsum(width) - width, width)
    label = distinct.indptr[own[query, place]] + offset
    code = distinct.codes[label]
    votes, least = np.zeros((n_queries, n_codes)), np.full((n_queries, n_codes), np.inf)
    np.add.at(votes, (query, code), weight[query, place] * distinct.n_labelled[label])
    np.minimum.at(least, (query, code), distance[query, place])
    best = votes >= votes.max(1, keepdims=True) - 1e-9
    least = np.where(best & (votes > 0), least, np.inf)
    nearest = least.min(1, keepdims=True)
    wins = np.isfinite(least) & (least <= nearest + _tolerance(nearest))
    has_any = wins.any(1)
    predicted = np.where(has_any, wins.argmax(1), -1)
    row = np.full(n_queries, np.iinfo(np.int64).max)
    mine = (code == predicted[query]) & (distance[query, place] <= least[query, predicted[query]] + TIE)
    np.minimum.at(row, query[mine], distinct.first[label[mine]])
    score = np.where(has_any, least[np.arange(n_queries), predicted] * (1 if ascending else -1), np.nan)
    right = wins[np.arange(n_queries), true]
    return _Predictions(predicted, np.where(has_any, row, -1), score, right / np.maximum(wins.sum(1), 1))


def _score(task: _Task, found: _Predictions, columns: dict[str, object]) -> pl.DataFrame:
    mask = found.predicted >= 0
    names = task.selection.store.index.labels[str(columns["task"])].names
    true = task.codes[task.queries[mask]]
    counts = np.bincount(true, minlength=len(names))
    n_right, n_right_usual = (
        np.bincount(true, weights=credit, minlength=len(names))
        for credit in (found.credit[mask], task.usual[mask] == true)
    )
    recall, usual_recall = n_right / np.maximum(counts, 1), n_right_usual / np.maximum(counts, 1)
    known = np.flatnonzero(counts)
    total = int(counts.sum())
    rows = []
    if total:
        rows.append(("accuracy", "", n_right.sum() / total, total, n_right_usual.sum() / total))
        rows.append(("macro_recall", "", recall[known].mean(), len(known), usual_recall[known].mean()))
    rows += [("recall", names[code], recall[code], int(counts[code]), usual_recall[code]) for code in known.tolist()]
    if task.split == "train":
        rows += _by_word(task, found)
    names_of_values = ("metric", "item", "value", "count", "baseline")
    return pl.DataFrame([columns | dict(zip(names_of_values, row, strict=True)) for row in rows], schema=SCHEMA)


def _by_word(task: _Task, found: _Predictions) -> Iterator[tuple[str, str, float, int, float | None]]:
    """Yield the metrics of the split train: of each word, and their mean; words are pools, and those of no pool one."""
    index, true, n_words = task.selection.store.index, task.codes[task.queries], 0
    yield "coverage", "", float((task.query_pool >= 0).mean()), len(task.queries), None
    scores = []
    for members in groups_of(task.query_pool):
        said, gold = found.predicted[members], true[members]
        if (said < 0).all():
            continue
        right = found.credit[members]
        usual = float((task.usual[members] == gold).mean())
        word = index.words[int(index.type[task.queries[members[0]]])]
        known = int(task.query_pool[members[0]]) >= 0
        if known:
            yield "word_accuracy", word, float(right.mean()), len(members), usual
            n_words += 1
            labels = np.unique(gold)
            pairs = [((said == each) & (gold == each), (said == each), (gold == each)) for each in labels.tolist()]
            scores.append(np.mean([2 * both.sum() / (one.sum() + other.sum()) for both, one, other in pairs]))
    if scores:
        yield "macro_f1", "", float(np.mean(scores)), n_words, None


@dataclass(frozen=True)
class LabelledOccurrences:
    """The labelled occurrences of a word: `vectors` [layer, n, hidden_size], `labels` and `rows` of each."""

    word: str
    layers: tuple[int, ...]
    vectors: NDArray[np.float32]
    labels: list[str]
    rows: NDArray[np.int64]

    def __repr__(self) -> str:
        return f"<LabelledOccurrences of {self.word!r}: {len(self.rows):,} occurrences, layers {list(self.layers)}>"


@checked
def labelled_occurrences(data: Store, word: str, *, label: str) -> LabelledOccurrences:
    """Read the labelled occurrences of a word, for figures; raises InvalidValueError if there are none."""
    selection = data.select(words=word, where=pl.col(label).is_not_null())
    if not len(selection.rows):
        raise InvalidValueError(f"{word!r} has no occurrence labelled in {label!r}: choose another word or column")
    return LabelledOccurrences(
        word=word,
        layers=selection.layers,
        vectors=selection.vectors(dtype="float32"),
        labels=selection.table()[label].cast(pl.String).to_list(),
        rows=selection.rows,
    )
