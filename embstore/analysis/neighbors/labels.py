"""Labels and nearest neighbours: exact k-nearest-neighbour classification of occurrences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.analysis.neighbors.exact import Exclusion, Hits, exact_search
from embstore.analysis.neighbors.hubness import QUERY_CHUNK
from embstore.analysis.neighbors.label_task import Task, Wanted, groups_of, task_of
from embstore.analysis.neighbors.space import ArrayVectors, Space, Stored, StoreVectors, space_of
from embstore.analysis.neighbors.voting import Distinct, Predictions, search_with_ties, vote
from embstore.arguments import checked
from embstore.errors import InvalidValueError
from embstore.progress import Counter, Progress, reporting
from embstore.store import Selection, Store
from embstore.store.framed import Framed
from embstore.store.layout import Layer, Layers, resolve_layer

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
    "chance": pl.Float64,
    "seed": pl.Int64,
}


@checked
def knn_labels(
    data: Store | Selection,
    *,
    label: str,
    layers: Layers = None,
    k: int | Sequence[int] = 1,
    split: str | None = None,
    train_words: Iterable[str] | None = None,
    test_words: Iterable[str] | None = None,
    train: Selection | None = None,
    word: str | None = None,
    classifier: str = "knn",
    backoff: str | None = None,
    capped: bool = False,
    averaged: bool = False,
    metric: str = "cosine",
    centered: bool = False,
    n_components: int = 0,
    sample: int | None = None,
    seed: int = 0,
    device: str = "auto",
    progress: Progress = None,
) -> KnnLabels:
    """Measure how well the k nearest labelled occurrences predict the label of an occurrence, by layer and label.

    The most frequent label of the k neighbours is predicted; of equally frequent labels, that of the nearest one.
    Occurrences that are as near as the k-th neighbour, as equal vectors are, share its votes, and labels that are equal
    in everything share the credit: the order of the store does not matter. Several `k` are answered by one search.

    `split` defines the test occurrences and their possible neighbours:
    `words`: occurrences of `test_words`, and those of `train_words` (by default all other words); the default if words
    are given. `leave-one-word-out`: all occurrences, and those of all other words; the default otherwise.
    `within-word`: occurrences of words with two or more labels, and those of the same word in other sentences.
    `train`: all occurrences of `data`, and those of the same word in the selection `train`, as in word-sense
    disambiguation; the default if it is given. `word`: a label column that says which word it is, such as a lemma.

    `classifier`: "knn", or for the splits words and train "centroid", the label whose mean vector is nearest. `backoff`
    answers where there is no possible neighbour: the name of a label column, or "most-frequent" for that of all train.
    `capped`: for the split train, no more neighbours vote than the rarest train label of the word has occurrences, as
    in Wiedemann et al. 2019. `averaged`: compare the means over the layers, for the splits train and within-word.

    `centered`, `n_components`: subtract the mean and remove principal components, learned from the whole selection.
    `sample`: only this many test occurrences, drawn with `seed`. `progress` counts test occurrences times layers.

    Raises InvalidValueError (unknown column, split or layer; word lists that overlap or do not occur; k of 0 or above
    the number of possible neighbours; options that do not go together), MissingRowsError, NonFiniteError.
    """
    ks = (k,) if isinstance(k, int) else tuple(k)
    train_options = (train, word, classifier, backoff, capped, averaged, centered or n_components > 0)
    task = task_of(data, layers, Wanted(label, ks, split, train_words, test_words, *train_options, sample, seed))
    found: dict[tuple[int | None, int], Predictions] = {}
    space = Space(metric)
    groups = {None: task.selection.layers} if averaged else {layer: (layer,) for layer in task.selection.layers}
    with reporting(progress, total=len(task.queries) * len(groups), unit="occurrences", label="knn") as report:
        count = Counter(report)
        for layer, together in groups.items():
            space = space_of(task.selection, together[0], metric=metric, centered=centered, n_components=n_components)
            predicted = _predict(task, together, space, device, count.add)
            found |= {(layer, each): one for each, one in zip(ks, predicted, strict=True)}
    return KnnLabels(task, found, space.name)


@dataclass(frozen=True, eq=False)
class KnnLabels(Framed):
    """What `knn_labels` has predicted: `frame` has the scores, `predictions` and `by_word` one layer and one k each.

    Columns of `frame`: `task` (the label column), `layer` (null for the mean of several), `split, k, space, metric,
    item, value, count, baseline, chance, seed`. The metrics are `accuracy` over the `count` test occurrences, `recall`
    of each label (`item`) over its occurrences, and `macro_recall`, the mean recall of `count` labels. `baseline` is
    the same metric for the most frequent label among the possible neighbours, equals sharing the credit; `chance` is
    its expected value for one of their labels drawn at random. The split train also has `coverage`, the share of
    `count` test occurrences that have a possible neighbour, `word_accuracy` by word, and `macro_f1`, the mean over
    `count` words of the mean F1 of labels.
    """

    _task: Task
    _found: Mapping[tuple[int | None, int], Predictions]
    _space: str

    def __repr__(self) -> str:
        layers, ks = ([*dict.fromkeys(each)] for each in zip(*self._found, strict=True))
        occurrences = f"{len(self._task.queries):,} occurrences, {self._task.split}"
        return f"<KnnLabels of {self._task.wanted.label}: {occurrences}, layers {layers}, k {ks}>"

    @property
    def frame(self) -> pl.DataFrame:
        """The scores of every layer and k."""
        frames = [
            _score(self._task, found).with_columns(
                task=pl.lit(self._task.wanted.label),
                layer=pl.lit(layer, pl.Int64),
                split=pl.lit(self._task.split),
                k=pl.lit(k, pl.Int64),
                space=pl.lit(self._space),
                seed=pl.lit(self._task.wanted.seed, pl.Int64),
            )
            for (layer, k), found in self._found.items()
        ]
        return pl.concat(frames).select(list(SCHEMA))

    def _one(self, layer: Layer | None, k: int | None) -> Predictions:
        layers = [each for each, _ in self._found]
        numbers = [each for each in layers if each is not None]
        chosen = resolve_layer(layer, numbers) if numbers and layer is not None else None
        return self._found[chosen, next(each for _, each in self._found) if k is None else k]

    def predictions(self, *, layer: Layer | None = -1, k: int | None = None) -> pl.DataFrame:
        """One row for each predicted occurrence in a layer, by default the last, and for a k, by default the first.

        Columns `occurrence, word, label, predicted, nearest, nearest_word, score, credit`; `nearest` is the row of the
        nearest neighbour with the predicted label (the lowest of equally near ones; for centroids the first of the
        label), `score` its score in the metric; all null where the prediction is the back-off. Of labels that are equal
        in everything, `predicted` is the first, and `credit` is shared.
        """
        task, found = self._task, self._one(layer, k)
        mask = found.predicted >= 0
        index = task.selection.store.index
        names = np.array([*index.labels[task.wanted.label].names, ""], object)

        def words(rows: NDArray[np.int64]) -> list[str | None]:
            return [None if row < 0 else index.words[int(index.type[row])] for row in rows.tolist()]

        return pl.DataFrame(
            {
                "occurrence": task.queries[mask],
                "word": words(task.queries[mask]),
                "label": names[task.true[mask]].tolist(),
                "predicted": names[found.predicted[mask]].tolist(),
                "nearest": [None if row < 0 else row for row in found.nearest[mask].tolist()],
                "nearest_word": words(found.nearest[mask]),
                "score": pl.Series(found.scores[mask]).fill_nan(None),
                "credit": found.credit[mask],
            },
            schema_overrides=dict.fromkeys(("word", "label", "predicted", "nearest_word"), pl.String)
            | {"nearest": pl.Int64, "score": pl.Float64},
        )

    def by_word(self, *, layer: Layer | None = -1, k: int | None = None) -> pl.DataFrame:
        """One row for each word that has possible neighbours: `word, count, n_labels, accuracy, f1, baseline, chance`.

        `n_labels`: of its possible neighbours. `f1`: the mean over the labels of its `count` test occurrences. For the
        split train. Raises InvalidValueError for another one.
        """
        if self._task.split != "train":
            raise InvalidValueError(f"scores by word are for the split train, not for {self._task.split}")
        return _by_word(self._task, self._one(layer, k))


def _predict(
    task: Task, layers: tuple[int, ...], space: Space, device: str, advance: Callable[[int], object]
) -> list[Predictions]:
    """Return the predictions for each k, from one search; `layers`: one, or those whose mean is compared."""
    n_queries, true = len(task.queries), task.true
    none = np.full(n_queries, -1)
    found = [
        Predictions(none.copy(), none.copy(), np.full(n_queries, np.nan), np.zeros(n_queries), np.empty((0, 2), int))
        for _ in task.wanted.ks
    ]
    winners: list[list[NDArray[np.int64]]] = [[] for _ in task.wanted.ks]
    search = _search_by_word if task.split in ("within-word", "train") else _search_all
    if task.wanted.classifier == "centroid":
        search = _search_centroids
    for numbers, hits, distinct in search(task, layers, space, device):
        for k, whole, pairs in zip(task.wanted.ks, found, winners, strict=True):
            limit = np.minimum(k, task.limit[numbers])
            voted = vote(hits, distinct, limit, true[numbers], ascending=space.ascending)
            for name in ("predicted", "nearest", "scores", "credit"):
                getattr(whole, name)[numbers] = getattr(voted, name)
            pairs.append(np.stack([numbers[voted.winners[:, 0]], voted.winners[:, 1]], 1))
        advance(len(numbers))
    for whole in found:
        alone = whole.predicted < 0
        whole.predicted[alone] = task.backoff[alone]
        whole.credit[alone] = task.backoff[alone] == true[alone]
    return [
        replace(whole, winners=np.concatenate([whole.winners, *pairs]))
        for whole, pairs in zip(found, winners, strict=True)
    ]


Found = Iterator[tuple[NDArray[np.int64], Hits, Distinct]]


def _gathered(store: Store, rows: NDArray[np.int64], layers: tuple[int, ...]) -> Stored:
    """The vectors of rows in a layer, or their means over several."""
    if len(layers) == 1:
        return store.vectors(rows, layers=layers[0])[0]
    mean = sum(store.vectors(rows, layers=layer)[0].astype(np.float64) for layer in layers) / len(layers)
    return np.asarray(mean, np.float32)


def _search_all(task: Task, layers: tuple[int, ...], space: Space, device: str) -> Found:
    """Yield numbers of queries, their neighbours among all candidates, and the distinct candidates."""
    vectors = StoreVectors(task.selection.store, layers[0])
    blocks = vectors.blocks(task.candidates, BATCH_ROWS)
    distinct = Distinct.of(blocks, task.candidates, task.codes, task.groups)

    def search(numbers: NDArray[np.int64], n_fetched: int) -> Hits:
        rows = task.queries[numbers]
        options: dict[str, Any] = {"space": space, "rows": distinct.rows, "device": device}
        exclude = [Exclusion(task.groups, task.groups[rows])]
        return exact_search(vectors, vectors.gather(rows), k=n_fetched, exclude=exclude, **options)

    for start in range(0, len(task.queries), QUERY_CHUNK):
        numbers = np.arange(start, min(start + QUERY_CHUNK, len(task.queries)))
        for part, hits in search_with_ties(search, numbers, max(task.wanted.ks), len(distinct.rows)):
            yield part, hits, distinct


def _search_by_word(task: Task, layers: tuple[int, ...], space: Space, device: str) -> Found:
    """Yield numbers of queries, their neighbours in their own pool, which is small, and the distinct candidates."""
    asked = _asked(task)
    found = [task.candidates[members] for members in groups_of(task.pool)]
    pools = [np.union1d(rows, task.queries[numbers]) for rows, numbers in zip(found, asked, strict=True)]
    batch = np.cumsum([len(rows) for rows in pools]) // BATCH_ROWS
    for number in np.unique(batch).tolist():
        places_of = range(*np.searchsorted(batch, [number, number + 1]))
        vectors = _gathered(task.selection.store, np.concatenate([pools[place] for place in places_of]), layers)
        edges = np.cumsum([len(pools[place]) for place in places_of])[:-1]
        for place, own in zip(places_of, np.split(vectors, edges), strict=True):
            if len(asked[place]):
                yield from _search_pool(task, found[place], pools[place], own, asked[place], space, device)


def _search_pool(
    task: Task,
    candidates: NDArray[np.int64],
    rows: NDArray[np.int64],
    vectors: NDArray[Any],
    asked: NDArray[np.int64],
    space: Space,
    device: str,
) -> Found:
    """Search one word: `rows` are its candidates and its queries, with their vectors; `asked` numbers its queries."""
    is_candidate = np.isin(rows, candidates)
    distinct = Distinct.of([(candidates, vectors[is_candidate])], candidates, task.codes, task.groups)
    places, groups = np.searchsorted(rows, distinct.rows), task.groups[rows]

    def search(numbers: NDArray[np.int64], n_fetched: int) -> Hits:
        chosen = np.searchsorted(rows, task.queries[numbers])
        options: dict[str, Any] = {"space": space, "rows": places, "device": device, "threads": 1}
        exclude = [Exclusion(groups, groups[chosen])]
        hits = exact_search(ArrayVectors(vectors), vectors[chosen], k=n_fetched, exclude=exclude, **options)
        return Hits(np.where(hits.rows < 0, -1, rows[hits.rows]), hits.scores)

    for numbers, hits in search_with_ties(search, asked, max(task.wanted.ks), len(places)):
        yield numbers, hits, distinct


def _asked(task: Task) -> list[NDArray[np.int64]]:
    """The numbers of the queries of each pool."""
    order = np.argsort(task.query_pool, kind="stable")
    ends = np.searchsorted(task.query_pool[order], np.arange(int(task.pool.max()) + 2))
    return [order[start:stop] for start, stop in pairwise(ends.tolist())]


def _search_centroids(task: Task, layers: tuple[int, ...], space: Space, device: str) -> Found:
    """Yield numbers of queries and the mean vectors of the labels in their pool, nearest first; the mean is a row."""
    store, n_codes = task.selection.store, int(task.codes.max()) + 1
    keys, first, number, counts = np.unique(
        task.pool * n_codes + task.codes[task.candidates], return_index=True, return_inverse=True, return_counts=True
    )
    sums = np.zeros((len(keys), store.hidden_size))
    for start in range(0, len(number), BATCH_ROWS):
        part = slice(start, start + BATCH_ROWS)
        np.add.at(sums, number[part], _gathered(store, task.candidates[part], layers))
    means = (sums / counts[:, None]).astype(np.float32)
    for pool, asked in enumerate(_asked(task)):
        own = slice(*np.searchsorted(keys, [pool * n_codes, (pool + 1) * n_codes]))
        places, ones = np.arange(own.stop - own.start), np.ones(own.stop - own.start, np.int64)
        labels, lowest = keys[own] % n_codes, task.candidates[first[own]]
        distinct = Distinct(places, ones, np.arange(len(places) + 1), labels, ones, lowest)
        for start in range(0, len(asked), QUERY_CHUNK):
            numbers = asked[start : start + QUERY_CHUNK]
            given = _gathered(store, task.queries[numbers], layers).astype(np.float32)
            yield numbers, exact_search(ArrayVectors(means[own]), given, k=len(places), space=space), distinct


def _score(task: Task, found: Predictions) -> pl.DataFrame:
    """The scores of one layer and k: `metric, item, value, count, baseline, chance`."""
    mask = found.predicted >= 0
    names = task.selection.store.index.labels[task.wanted.label].names
    true = task.true[mask]
    counts = np.bincount(true, minlength=len(names))
    credits = (found.credit[mask], task.usual[mask, 0], task.usual[mask, 1])
    right = np.stack([np.bincount(true, weights=each, minlength=len(names)) for each in credits])
    known, total = np.flatnonzero(counts), int(counts.sum())
    recall = right[:, known] / counts[known]
    rows: list[tuple[Any, ...]] = []
    if total:
        rows.append(("accuracy", "", total, *(right.sum(1) / total)))
        rows.append(("macro_recall", "", len(known), *recall.mean(1)))
    rows += [("recall", names[code], int(counts[code]), *recall[:, n]) for n, code in enumerate(known.tolist())]
    words = None
    if task.split == "train":
        words = _by_word(task, found)
        rows.append(("coverage", "", len(task.queries), float((task.query_pool >= 0).mean()), None, None))
        if len(words):
            rows.append(("macro_f1", "", len(words), float(words["f1"].mean()), None, None))  # type: ignore[arg-type]
    shown = {name: SCHEMA[name] for name in ("metric", "item", "count", "value", "baseline", "chance")}
    frame = pl.DataFrame(rows, schema=shown, orient="row")
    if words is None:
        return frame
    accuracy = words.select(pl.lit("word_accuracy").alias("metric"), item="word", count="count", value="accuracy")
    return pl.concat([frame, accuracy.with_columns(words["baseline", "chance"]).select(list(shown))])


def _by_word(task: Task, found: Predictions) -> pl.DataFrame:
    """The scores of each word that has a pool, see `KnnLabels.by_word`."""
    names, words = task.words
    n_codes, is_known = int(task.codes.max()) + 1, task.query_pool >= 0
    pools, first, place = np.unique(task.query_pool[is_known], return_index=True, return_inverse=True)
    number = np.full(len(task.queries), -1)
    number[is_known] = place
    gold, occurs = number[is_known] * n_codes + task.true[is_known], np.bincount(place, minlength=len(pools))
    keys, key = np.unique(gold, return_inverse=True)
    n_right = np.bincount(key, weights=found.credit[is_known], minlength=len(keys))
    query, code = found.winners.T
    share = 1 / np.bincount(query, minlength=len(number))[query]
    said = number[query] * n_codes + code
    spot = np.minimum(np.searchsorted(keys, said), max(len(keys) - 1, 0))
    is_gold = keys[spot] == said if len(keys) else np.zeros(len(said), bool)
    n_said = np.bincount(spot[is_gold], weights=share[is_gold], minlength=len(keys))
    f1 = 2 * n_right / (n_said + np.bincount(key, minlength=len(keys)))
    own = keys // n_codes

    def mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.bincount(place, weights=values[is_known], minlength=len(pools)) / occurs)

    rows = task.queries[is_known][first]
    return pl.DataFrame(
        {
            "word": [names[int(each)] for each in words[rows]],
            "count": occurs,
            "n_labels": task.usual[is_known][first, 2].astype(np.int64),
            "accuracy": mean(found.credit),
            "f1": np.bincount(own, weights=f1, minlength=len(pools)) / np.bincount(own, minlength=len(pools)),
            "baseline": mean(task.usual[:, 0]),
            "chance": mean(task.usual[:, 1]),
        },
        schema_overrides={"word": pl.String},
    )


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
    selection = data.select(words=word, where=f'"{label}" IS NOT NULL')
    if not len(selection.rows):
        raise InvalidValueError(f"{word!r} has no occurrence labelled in {label!r}: choose another word or column")
    return LabelledOccurrences(
        word=word,
        layers=selection.layers,
        vectors=selection.vectors(dtype="float32"),
        labels=selection.table()[label].cast(pl.String).to_list(),
        rows=selection.rows,
    )
