"""Labels and nearest neighbours: exact k-nearest-neighbour classification of occurrences.

Occurrences as near as the k-th neighbour share its votes, and equal labels share the credit, so that the order of the
store does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.analysis.neighbors.exact import Exclusion, Hits, exact_search
from embstore.analysis.neighbors.space import ArrayVectors, Metric, Space, StoreVectors, Vectors
from embstore.analysis.scan import labelled, selected
from embstore.arguments import Positive, checked
from embstore.config import settings
from embstore.errors import InvalidValueError, check_whole
from embstore.progress import Counter, reporting
from embstore.store import Selection, Store
from embstore.store.framed import Framed
from embstore.store.layout import Layer, Layers, resolve_layer

Split = Literal["leave-one-word-out", "within-word", "train"]
QUERIES = 2**14  # searched at a time: their hits take little memory, and the layer is read few times
SPARE = 8  # neighbours beyond k that are fetched to see whether they are as near
MAX_HITS = 2**22  # of a search
TIE = 1e-12  # scores of equal vectors differ by less
CREDITS = ("value", "baseline", "chance")
SCHEMA = {
    "task": pl.String,
    "layer": pl.Int64,
    "split": pl.String,
    "k": pl.Int64,
    "metric": pl.String,
    "item": pl.String,
    "value": pl.Float64,
    "count": pl.Int64,
    "baseline": pl.Float64,
    "chance": pl.Float64,
}


@checked
def knn_labels(
    data: Store | Selection,
    label: str,
    *,
    k: Positive | Sequence[int] = 1,
    layers: Layers = None,
    split: Split | None = None,
    train: Selection | None = None,
    word: str | None = None,
    capped: bool = False,
    averaged: bool = False,
    metric: Metric = "cosine",
) -> KnnLabels:
    """Measure how well the k nearest labelled occurrences predict the label of an occurrence, by layer and label.

    The most frequent label of the k neighbours is predicted; of equally frequent labels, that of the nearest one.

    Parameters
    ----------
    data : Store or Selection
        The occurrences whose labels are predicted.
    label : str
        The label column.
    k : int or list of int
        Several are answered by one search.
    layers : int, str or list, optional
        All by default.
    split : str, optional
        What may be a neighbour: "leave-one-word-out", all occurrences of other words (the default); "within-word",
        those of the same word in other sentences, of words with two or more labels; "train", those of the same word
        in `train`, as in word-sense disambiguation (the default if `train` is given).
    train : Selection, optional
        Occurrences of the same store that are not among the others.
    word : str, optional
        A label column that says which word an occurrence is of, such as a lemma.
    capped : bool
        For train, no more neighbours vote than the rarest train label of the word has occurrences, as in Wiedemann et
        al. 2019.
    averaged : bool
        Compare the means over the layers; not for leave-one-word-out.
    metric : str
        "cosine", "ip" or "l2".

    Returns
    -------
    KnnLabels

    Raises
    ------
    InvalidValueError
        For an unknown column, and a k above the number of possible neighbours.
    MissingRowsError, NonFiniteError
    """
    ks = (k,) if isinstance(k, int) else tuple(check_whole("k", each, 1) for each in k)
    split = split or ("train" if train is not None else "leave-one-word-out")
    if not ks or (split == "train") != (train is not None):
        raise InvalidValueError("k is empty: give one or more" if not ks else f"give train occurrences, or not {split}")
    if (averaged and split == "leave-one-word-out") or (capped and split != "train"):
        raise InvalidValueError(f"averaged and capped are for word-sense disambiguation, not for {split}")
    task = _task_of(selected(data, layers), label, ks, split, train, word, capped)
    groups = {None: task.layers} if averaged else {layer: (layer,) for layer in task.layers}
    votes: dict[tuple[int | None, int], Votes] = {}
    n_queries = len(task.queries) * len(groups)
    with reporting(settings().progress, total=n_queries, unit="occurrences", label="knn") as report:
        count = Counter(report)
        for layer, together in groups.items():
            for each, one in zip(ks, _predict(task, together, Space(metric), count.add), strict=True):
                votes[layer, each] = one
    return KnnLabels(task, votes)


class Votes(NamedTuple):
    """What is predicted: `queries`, one row for each that has a neighbour, and `winners`, one for each equal label.

    Both have the number of the `query` and the code `predicted`; `queries` also the `nearest` row with that label, its
    `score`, and the `value`: 1 if the prediction is right, a share of 1 if equal labels include the right one, else 0.
    """

    queries: pl.DataFrame
    winners: pl.DataFrame


@dataclass(frozen=True, eq=False)
class Task:
    """The rows of the test occurrences, `queries`, and `pools`: numbers of queries, and the rows they may find.

    `codes`: the label of each row of the store. `words`: the names of the words and the code of each row. `groups`:
    int64 [n_rows]; a query does not find its own group, -1 is no group. `usual`: float64 [n_queries, 2]: the credit of
    the most frequent label among the possible neighbours, and that of a label drawn at random. `limit`: how many
    neighbours of each query vote at most.
    """

    store: Store
    layers: tuple[int, ...]
    label: str
    ks: tuple[int, ...]
    split: str
    codes: NDArray[np.int32]
    words: tuple[Any, NDArray[Any]]
    queries: NDArray[np.int64]
    pools: list[tuple[NDArray[np.int64], NDArray[np.int64]]]
    groups: NDArray[np.int64]
    usual: NDArray[np.float64]
    limit: NDArray[np.int64]

    def answers(self, votes: Votes) -> pl.DataFrame:
        """The queries of votes with their `label` and `word` (codes), `baseline` and `chance`."""
        numbers = votes.queries["query"].to_numpy()
        rows, usual = self.queries[numbers], self.usual[numbers]
        return votes.queries.with_columns(
            pl.Series("label", self.codes[rows], pl.Int64),
            pl.Series("word", self.words[1][rows], pl.Int64),
            pl.Series("baseline", usual[:, 0]),
            pl.Series("chance", usual[:, 1]),
        )


@dataclass(frozen=True, eq=False)
class KnnLabels(Framed):
    """What `knn_labels` has predicted: `frame` has the scores, `predictions` and `by_word` one layer and one k each.

    Columns of `frame`: `task` (the label column), `layer` (null for the mean of several), `split, k, metric, item,
    value, count, baseline, chance`. The metrics are `accuracy` over the `count` test occurrences, `recall` of each
    label (`item`) over its occurrences, and `macro_recall`, the mean recall of `count` labels. `baseline` is the same
    metric for the most frequent label among the possible neighbours, equals sharing the credit; `chance` is its
    expected value for one of their labels drawn at random. The split train also has `coverage`, the share of `count`
    test occurrences that have a possible neighbour.
    """

    _task: Task
    _votes: Mapping[tuple[int | None, int], Votes]

    def __repr__(self) -> str:
        layers, ks = ([*dict.fromkeys(each)] for each in zip(*self._votes, strict=True))
        occurrences = f"{len(self._task.queries):,} occurrences, {self._task.split}"
        return f"<KnnLabels of {self._task.label}: {occurrences}, layers {layers}, k {ks}>"

    @property
    def frame(self) -> pl.DataFrame:
        """The scores of every layer and k."""
        task = self._task
        names = pl.Series(list(task.store.index.labels[task.label].names), dtype=pl.String)
        means, frames = pl.col(CREDITS).mean(), []
        for (layer, k), votes in self._votes.items():
            answers = task.answers(votes)
            recall = answers.group_by("label").agg(means, count=pl.len()).sort("label")
            parts = [
                answers.select(means, count=pl.len(), metric=pl.lit("accuracy")),
                recall.select(means, count=pl.len(), metric=pl.lit("macro_recall")),
                recall.with_columns(metric=pl.lit("recall"), item=names.gather(recall["label"])),
            ]
            if task.split == "train":
                share = len(answers) / len(task.queries)
                parts.append(pl.DataFrame({"metric": "coverage", "value": share, "count": len(task.queries)}))
            frames.append(
                pl.concat(parts, how="diagonal_relaxed").with_columns(
                    pl.col("item").fill_null(""), task=pl.lit(task.label), layer=layer, split=pl.lit(task.split), k=k
                )
            )
        columns = [pl.col(name).cast(kind) for name, kind in SCHEMA.items()]
        return pl.concat([frame.select(columns) for frame in frames]).filter(pl.col("count") > 0)

    def _one(self, layers: Layer | None, k: int | None) -> Votes:
        numbers = [layer for layer, _ in self._votes if layer is not None]
        chosen = resolve_layer(layers, numbers) if numbers and layers is not None else None
        return self._votes[chosen, self._task.ks[0] if k is None else k]

    def predictions(self, *, layers: Layer | None = -1, k: int | None = None) -> pl.DataFrame:
        """One row for each predicted occurrence in a layer, by default the last, and for a k, by default the first.

        Columns `occurrence, word, label, predicted, nearest, nearest_word, score, credit`; `nearest` is the row of the
        nearest neighbour with the predicted label (the lowest of equally near ones), `score` its score in the metric.
        Of labels that are equal in everything, `predicted` is the first, and `credit` is shared.
        """
        task, index = self._task, self._task.store.index
        answers = task.answers(self._one(layers, k))
        names = pl.Series(list(index.labels[task.label].names), dtype=pl.String)
        rows = pl.Series("occurrence", task.queries[answers["query"].to_numpy()])

        def words(rows: pl.Series) -> pl.Series:
            return pl.Series([index.words[number] for number in index.type[rows.to_numpy()].tolist()], dtype=pl.String)

        return answers.select(
            rows,
            words(rows).alias("word"),
            names.gather(answers["label"]).alias("label"),
            names.gather(answers["predicted"]).alias("predicted"),
            "nearest",
            words(answers["nearest"]).alias("nearest_word"),
            "score",
            credit="value",
        )

    def by_word(self, *, layers: Layer | None = -1, k: int | None = None) -> pl.DataFrame:
        """One row for each word that has predicted occurrences: `word, count, accuracy, f1, baseline, chance`.

        `f1`: the mean over the labels of its `count` test occurrences and those predicted for them.
        """
        votes = self._one(layers, k)
        answers = self._task.answers(votes)
        scores = answers.group_by("word").agg(pl.col(CREDITS).mean(), count=pl.len())
        said = votes.winners.join(answers.select("query", "word"), on="query", maintain_order="left")
        said = said.select("word", label="predicted", value=0.0, n=1 / pl.len().over("query"))
        both = pl.concat([answers.select("word", "label", "value", n=1.0), said])
        # As scikit-learn does, of all labels that a word has or is predicted to have
        labels = both.group_by("word", "label", maintain_order=True).agg(pl.col("value", "n").sum())
        f1 = labels.group_by("word", maintain_order=True).agg(f1=(2 * pl.col("value") / pl.col("n")).mean())
        table, names = scores.join(f1, on="word").sort("word"), self._task.words[0]
        words = pl.Series("word", [names[code] if code >= 0 else None for code in table["word"]], pl.String)
        count = pl.col("count").cast(pl.Int64)
        return table.select(words, count, pl.col("value").alias("accuracy"), "f1", "baseline", "chance")


def _task_of(
    selection: Selection,
    label: str,
    ks: tuple[int, ...],
    split: str,
    train: Selection | None,
    word: str | None,
    capped: bool,
) -> Task:
    store, index = selection.store, selection.store.index
    queries, column = labelled(selection, label)
    candidates, codes = queries, np.asarray(column.codes)
    names, numbers = index.words, np.asarray(index.type)
    if word is not None:
        column = labelled(selection, word)[1]
        names, numbers = column.names, np.asarray(column.codes)
    groups = np.full(store.n_rows, -1)
    if train is not None:
        if train.store.path != store.path:
            raise InvalidValueError(f"train occurrences are a selection of {store.path}: give store.select(...)")
        candidates, _ = labelled(train, label)
        if len(both := np.intersect1d(candidates, queries)):
            raise InvalidValueError(
                f"{len(both):,} occurrences are in train and test, such as row {both[0]}: separate them"
            )
    elif split == "leave-one-word-out":
        groups[queries] = numbers[queries]
        if len(np.unique(numbers[queries])) < 2:
            raise InvalidValueError(f"only one word is labelled in {label!r}: there is no other word to compare with")
    else:
        pairs = np.unique(np.stack([numbers[queries], codes[queries]]), axis=1)
        kinds, n_labels = np.unique(pairs[0], return_counts=True)
        candidates = queries = queries[np.isin(numbers[queries], kinds[n_labels >= 2])]
        if not len(queries):
            raise InvalidValueError(f"no selected word has two labels in {label!r}: choose another column or split")
        groups[queries] = index.text.distinct[index.sentence[queries]]
    if split == "leave-one-word-out":
        pools = [(np.arange(len(queries)), candidates)]
    else:
        found = {int(numbers[rows[0]]): rows for rows in map(candidates.__getitem__, groups_of(numbers[candidates]))}
        asked = {int(numbers[queries[some[0]]]): some for some in groups_of(numbers[queries])}
        pools = [(some, found[number]) for number, some in asked.items() if number >= 0 and number in found]
    counts = _counted(codes, queries, groups, pools)
    most = int(counts[:, 3].max()) if train is None else max(map(len, found.values()))
    if max(ks) > most:
        raise InvalidValueError(
            f"k {max(ks)} is more than the {most:,} labelled occurrences that can be found: give less"
        )
    limit = counts[:, 2].astype(np.int64) if capped else np.full(len(queries), max(ks))
    words = names, numbers
    return Task(
        store, selection.layers, label, ks, split, codes, words, queries, pools, groups, counts[:, :2], limit
    )  # fmt: skip


def _predict(task: Task, layers: tuple[int, ...], space: Space, advance: Callable[[int], object]) -> list[Votes]:
    """Return the votes for each k, from one search; `layers`: one, or those whose mean is compared."""
    whole, real = np.empty(0, np.int64), np.empty(0)
    none: tuple[NDArray[Any], ...] = (whole, whole, whole, real, real, whole, whole)
    parts = [[none] for _ in task.ks]
    for numbers, hits, levels in _search(task, layers, space):
        advance(len(numbers))
        if (some := hits.rows[:, 0] >= 0).any():
            numbers, hits, levels = numbers[some], Hits(hits.rows[some], hits.scores[some]), levels[some]
            for k, part in zip(task.ks, parts, strict=True):
                part.append(_vote(task, numbers, hits, levels, np.minimum(k, task.limit[numbers])))
    votes = []
    for part in parts:
        *queries, query, predicted = map(np.concatenate, zip(*part, strict=True))
        frame = pl.DataFrame(dict(zip(("query", "predicted", "nearest", "score", "value"), queries, strict=True)))
        votes.append(Votes(frame.sort("query"), pl.DataFrame({"query": query, "predicted": predicted})))
    return votes


def _search(
    task: Task, layers: tuple[int, ...], space: Space
) -> Iterator[tuple[NDArray[np.int64], Hits, NDArray[np.int64]]]:
    """Yield numbers of queries of a pool, their k nearest, with all that are as near as the k-th, and their levels.

    Equally near hits have the same level, and nearer ones a lower one.
    """
    k = max(task.ks)
    for pending, candidates in task.pools:
        if task.split == "leave-one-word-out":
            vectors: Vectors = StoreVectors(task.store, layers[0])
            rows = np.arange(task.store.n_rows)
        else:
            rows = np.union1d(candidates, task.queries[pending])
            parts = [StoreVectors(task.store, layer).gather(rows) for layer in layers]
            vectors = ArrayVectors(parts[0] if len(parts) == 1 else np.mean(parts, 0, np.float64).astype(np.float32))
        places, groups, most = np.searchsorted(rows, candidates), task.groups[rows], len(candidates)
        n_fetched = min(k + SPARE, most)
        while len(pending):
            step, again = min(QUERIES, max(1, MAX_HITS // n_fetched)), []
            for start in range(0, len(pending), step):
                numbers = pending[start : start + step]
                chosen = np.searchsorted(rows, task.queries[numbers])
                asked, exclude = vectors.gather(chosen), [Exclusion(groups, groups[chosen])]
                hits = exact_search(vectors, asked, k=n_fetched, rows=places, exclude=exclude, space=space)
                gaps = np.abs(np.diff(hits.scores)) > TIE * np.maximum(1, np.abs(hits.scores[:, 1:]))
                levels = np.pad(gaps.cumsum(1), ((0, 0), (1, 0)))
                whole = (levels[:, min(k, n_fetched) - 1] < levels[:, -1]) | (hits.rows[:, -1] < 0)
                whole |= n_fetched == most
                found = np.where(hits.rows < 0, -1, rows[hits.rows])
                yield numbers[whole], Hits(found[whole], hits.scores[whole]), levels[whole]
                again.append(numbers[~whole])
            pending, n_fetched = np.concatenate(again), min(4 * n_fetched, most)


def _vote(
    task: Task, numbers: NDArray[np.int64], hits: Hits, levels: NDArray[np.int64], k: NDArray[np.int64]
) -> tuple[NDArray[Any], ...]:
    """Predict labels from neighbours [q, n], of which `k` [q] vote: the columns of `Votes`, those of queries first."""
    is_hit, none = hits.rows >= 0, levels.max() + 1
    k = np.minimum(k, is_hit.sum(1))
    kth = np.take_along_axis(levels, k[:, None] - 1, 1)
    nearer, tied = levels < kth, (levels == kth) & is_hit
    share = (k - nearer.sum(1)) / tied.sum(1)
    weight = np.where(nearer, 1.0, tied * share[:, None])
    query, place = np.nonzero(weight)
    row, level = hits.rows[query, place], levels[query, place]
    names, label = np.unique(task.codes[row], return_inverse=True)
    votes, nearest = np.zeros((len(numbers), len(names))), np.full((len(numbers), len(names)), none)
    np.add.at(votes, (query, label), weight[query, place])
    np.minimum.at(nearest, (query, label), level)
    nearest[votes < votes.max(1, keepdims=True) - 1e-9] = none
    wins = nearest == nearest.min(1, keepdims=True)
    predicted = wins.argmax(1)
    own = np.flatnonzero((label == predicted[query]) & (level == nearest[query, label]))
    first = np.unique(query[own], return_index=True)[1]
    scores = hits.scores[query[own], place[own]][first]
    value = (wins & (names == task.codes[task.queries[numbers]][:, None])).sum(1) / wins.sum(1)
    winner, code = np.nonzero(wins)
    answers = numbers, names[predicted].astype(np.int64), np.minimum.reduceat(row[own], first), scores, value
    return *answers, numbers[winner], names[code].astype(np.int64)


def _counted(
    codes: NDArray[np.int32],
    queries: NDArray[np.int64],
    groups: NDArray[np.int64],
    pools: list[tuple[NDArray[np.int64], NDArray[np.int64]]],
) -> NDArray[np.float64]:
    """Of each query the credit of its usual label and of a random one, n of the rarest and of all labels: [q, 4]."""
    out = np.zeros((len(queries), 4))
    for asked, candidates in pools:
        known, labels = np.unique(codes[candidates], return_inverse=True)
        whole, own = np.bincount(labels), codes[queries[asked]]
        place = np.minimum(np.searchsorted(known, own), len(known) - 1)
        for part in groups_of(groups[queries[asked]]):
            # The occurrences of a group are candidates themselves
            is_group = groups[queries[asked[part[0]]]] >= 0
            counts = whole - np.bincount(place[part], minlength=len(known)) * is_group
            mine = counts[place[part]] * (known[place[part]] == own[part])
            if counts.any():
                out[asked[part], 0] = (mine == counts.max()) / (counts == counts.max()).sum()
                out[asked[part], 1] = (mine > 0) / (counts > 0).sum()
                out[asked[part], 2:] = counts[counts > 0].min(), counts.sum()
    return out


def groups_of(numbers: NDArray[Any]) -> list[NDArray[np.int64]]:
    """The positions of each number, ascending; lowest number first."""
    order = np.argsort(numbers, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)


@dataclass(frozen=True)
class LabelledOccurrences:
    """Labelled occurrences, of a word or of several: `vectors` [layer, n, hidden_size], `labels` and `rows` of each."""

    word: str
    layers: tuple[int, ...]
    vectors: NDArray[np.float32]
    labels: list[str]
    rows: NDArray[np.int64]

    def __repr__(self) -> str:
        return f"<LabelledOccurrences of {self.word!r}: {len(self.rows):,} occurrences, layers {list(self.layers)}>"


@checked
def labelled_occurrences(data: Store | Selection, word: str | None = None, *, label: str) -> LabelledOccurrences:
    """Read the labelled occurrences of a word, or all those of a selection, for figures.

    `label`: a label column or a field of documents. Raises InvalidValueError if there are none.
    """
    rows = data.rows if isinstance(data, Selection) else None
    store = data.store if isinstance(data, Selection) else data
    some = store.select(words=word, rows=rows, where=f'"{label}" IS NOT NULL', layers=list(data.layers))
    if not len(some.rows):
        what = "no occurrence is" if word is None else f"{word!r} has no occurrence"
        raise InvalidValueError(f"{what} labelled in {label!r}: choose another word or column")
    return LabelledOccurrences(
        word=word or label,
        layers=some.layers,
        vectors=some.vectors(dtype="float32"),
        labels=some.table(columns=[label])[label].cast(pl.String).to_list(),
        rows=some.rows,
    )
