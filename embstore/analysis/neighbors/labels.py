"""Labels and nearest neighbours: exact k-nearest-neighbour classification of occurrences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
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

Split = Literal["words", "leave-one-word-out", "within-word"]
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

    Columns: `task` (the label column), `layer, split, k, space, metric, item, value, count, baseline, seed`. The
    metrics are `accuracy` over the `count` test occurrences, `recall` of each label (`item`) over its occurrences, and
    `macro_recall`, the mean recall of `count` labels. `baseline` is the same metric for the most frequent label among
    the possible neighbours. Occurrences without any possible neighbour do not count.

    `centered`, `n_components`: subtract the mean and remove principal components, learned from the whole selection.
    `sample`: only this many test occurrences, drawn with `seed`. `progress(done, total)` counts test occurrences times
    layers.

    Raises InvalidValueError (unknown column, split or layer; word lists that overlap or do not occur; k of 0 or above
    the number of possible neighbours), MissingRowsError, NonFiniteError.
    """
    task = _task_of(data, label, layers, k, split, train_words, test_words, sample, seed)
    total = len(task.queries) * len(task.selection.layers)
    frames = []
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
    near ones), `score` its score in the metric. Of labels that are equal in everything, `predicted` is the first.
    """
    number = layer_of(data, layer)
    task = _task_of(data, label, number, k, split, train_words, test_words, sample, seed)
    space = space_of(task.selection, number, metric=metric, centered=centered, n_components=n_components)
    with reporting(progress, total=len(task.queries), unit="occurrences", label="knn") as report:
        found = _predict(task, number, k, space, device, Counter(report).add)
    mask = found.predicted >= 0
    index = task.selection.store.index
    names = np.array([*index.labels[label].names, ""], object)

    def words(rows: NDArray[np.int64]) -> list[str]:
        return [index.words[number] for number in index.type[rows].tolist()]

    return pl.DataFrame(
        {
            "occurrence": task.queries[mask],
            "word": words(task.queries[mask]),
            "label": names[task.codes[task.queries[mask]]].tolist(),
            "predicted": names[found.predicted[mask]].tolist(),
            "nearest": found.nearest[mask],
            "nearest_word": words(found.nearest[mask]),
            "score": found.scores[mask],
        },
        schema_overrides=dict.fromkeys(("word", "label", "predicted", "nearest_word"), pl.String),
    )


@dataclass(frozen=True, eq=False)
class _Task:
    """The test occurrences and their possible neighbours: `queries` and `candidates`, int64 rows, ascending.

    `codes`: int32 [n_rows], the label of each row of the store. `pool`: int64 [n_candidates]; a query finds candidates
    of its own pool only. `groups`: int64 [n_rows]; a query does not find its own group, -1 is no group. `usual`: int64
    [n_queries], the most frequent label among the possible neighbours, the first in the column of equals.
    """

    selection: Selection
    split: str
    codes: NDArray[np.int32]
    queries: NDArray[np.int64]
    candidates: NDArray[np.int64]
    pool: NDArray[np.int64]
    groups: NDArray[np.int64]
    usual: NDArray[np.int64]


def _task_of(
    data: Store | Selection,
    label: str,
    layers: int | str | Sequence[int] | None,
    k: int,
    split: str | None,
    train_words: Iterable[str] | None,
    test_words: Iterable[str] | None,
    sample: int | None,
    seed: int,
) -> _Task:
    """Build the task that `knn_scores` describes; raises InvalidValueError."""
    has_words = train_words is not None or test_words is not None
    split = split or ("words" if has_words else "leave-one-word-out")
    _check(k, split, has_words, test_words is not None, sample)
    check_whole("seed", seed, 0, MAX_SEED)
    selection = selected(data, layers)
    store, index = selection.store, selection.store.index
    if label not in index.labels:
        known = ", ".join(index.labels) or "none"
        raise InvalidValueError(f"there is no label column {label!r}: the store has {known}")
    codes = np.asarray(index.labels[label].codes)
    rows = np.unique(selection.rows)
    rows = rows[codes[rows] >= 0]
    if not len(rows):
        raise InvalidValueError(f"no selected occurrence of {store.path} is labelled in {label!r}")
    if split == "words":
        queries, candidates = _by_words(store, rows, train_words, test_words)
    else:
        queries = candidates = rows if split == "leave-one-word-out" else _ambiguous(index.type, rows, codes, label)
    pool, group = _pools(store, split, candidates, label)
    own = np.where(group < 0, 0, np.bincount(group + 1)[group + 1])
    most = int((np.bincount(pool)[pool] - own).max())
    if k > most:
        raise InvalidValueError(f"k {k} is more than the {most:,} labelled occurrences that can be found: give less")
    groups = np.full(store.n_rows, -1)
    groups[candidates] = group
    usual = _usual(codes[candidates], pool, group, len(index.labels[label].names))
    usual = np.full(len(queries), usual[0]) if split == "words" else usual
    if sample is not None and sample < len(queries):
        drawn = np.sort(np.random.default_rng(seed).choice(len(queries), sample, replace=False))
        queries, usual = queries[drawn], usual[drawn]
    return _Task(selection, split, codes, queries, candidates, pool, groups, usual)


def _check(k: int, split: str, has_words: bool, has_test: bool, sample: int | None) -> None:
    check_whole("k", k, 1)
    check_choice("split", split, get_args(Split))
    if has_words and split != "words":
        raise InvalidValueError(f"lists of words are for the split words, not for {split}: leave them out")
    if split == "words" and not has_test:
        raise InvalidValueError("the split words needs a list of test words: give one")
    if sample is not None:
        check_whole("sample", sample, 1)


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
    store: Store, split: str, candidates: NDArray[np.int64], label: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The pool of each candidate, and the group in it that is excluded together."""
    index = store.index
    one = np.zeros(len(candidates), np.int64)
    if split == "words":
        return one, np.full(len(candidates), -1)
    words = np.unique(index.type[candidates], return_inverse=True)[1]
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
    search = _search_by_word if task.split == "within-word" else _search_all
    for numbers, hits, distinct in search(task, layer, k, space, device):
        true = task.codes[task.queries[numbers]].astype(np.int64)
        voted = _vote(hits, distinct, k, true, ascending=space.ascending)
        for whole, part in zip(vars(found).values(), vars(voted).values(), strict=True):
            whole[numbers] = part
        advance(len(numbers))
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
    store = task.selection.store
    is_query = np.zeros(store.n_rows, bool)
    is_query[task.queries] = True
    pools = [task.candidates[members] for members in groups_of(task.pool)]
    batch = np.cumsum([len(rows) for rows in pools]) // BATCH_ROWS
    for number in np.unique(batch).tolist():
        together = pools[np.searchsorted(batch, number) : np.searchsorted(batch, number, "right")]
        vectors = store.gather(np.concatenate(together), layer)
        edges = np.cumsum([len(rows) for rows in together])[:-1]
        for rows, own in zip(together, np.split(vectors, edges), strict=True):
            distinct = _Distinct.of([(rows, own)], task, rows)
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

            for chosen, hits in _with_ties(search, np.flatnonzero(is_query[rows]), k, len(places)):
                yield np.searchsorted(task.queries, rows[chosen]), hits, distinct


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
    names_of_values = ("metric", "item", "value", "count", "baseline")
    return pl.DataFrame([columns | dict(zip(names_of_values, row, strict=True)) for row in rows], schema=SCHEMA)


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
