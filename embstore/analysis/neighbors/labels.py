"""Labels and nearest neighbours: exact k-nearest-neighbour classification of occurrences.

Occurrences as near as the k-th neighbour share its votes, and equal labels share the credit, so that the order of the
store does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.analysis.neighbors.exact import Exclusion, Hits, exact_search
from embstore.analysis.neighbors.space import ArrayVectors, Metric, Space, StoreVectors, Vectors
from embstore.analysis.scan import selected
from embstore.analysis.words import distinct_texts
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


@dataclass(frozen=True, eq=False)
class Task:
    """The test occurrences and their possible neighbours: `queries` and `candidates`, int64 rows, ascending.

    `codes`: the label of each row of the store. `words`: the name and the code of the word of each row. `pool`,
    `query_pool`: a query finds candidates of its own pool only, -1 is no pool. `groups`: int64 [n_rows]; a query does
    not find its own group, -1 is no group. `usual`: float64 [n_queries, 3]: the credit of the most frequent label among
    the possible neighbours, that of a label drawn at random, and how many labels they have. `limit`: int64 [n_queries],
    how many neighbours vote at most.
    """

    store: Store
    layers: tuple[int, ...]
    label: str
    ks: tuple[int, ...]
    split: str
    codes: NDArray[np.int32]
    words: tuple[Any, NDArray[Any]]
    queries: NDArray[np.int64]
    candidates: NDArray[np.int64]
    pool: NDArray[np.int64]
    query_pool: NDArray[np.int64]
    groups: NDArray[np.int64]
    usual: NDArray[np.float64]
    limit: NDArray[np.int64]

    @property
    def true(self) -> NDArray[np.int64]:
        """The label of each query."""
        return self.codes[self.queries].astype(np.int64)


@dataclass(frozen=True, eq=False)
class Votes:
    """The label predicted for each of q queries (-1: it has no neighbour), the nearest row with that label, its score.

    `credit`: 1 if the prediction is right, a share of 1 if equal labels include the right one, or else 0. `winners`:
    int64 [n, 2], each query with each of its equal labels, ascending.
    """

    predicted: NDArray[np.int64]
    nearest: NDArray[np.int64]
    scores: NDArray[np.float64]
    credit: NDArray[np.float64]
    winners: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class KnnLabels(Framed):
    """What `knn_labels` has predicted: `frame` has the scores, `predictions` and `by_word` one layer and one k each.

    Columns of `frame`: `task` (the label column), `layer` (null for the mean of several), `split, k, metric, item,
    value, count, baseline, chance`. The metrics are `accuracy` over the `count` test occurrences, `recall` of each
    label (`item`) over its occurrences, and `macro_recall`, the mean recall of `count` labels. `baseline` is the same
    metric for the most frequent label among the possible neighbours, equals sharing the credit; `chance` is its
    expected value for one of their labels drawn at random. The split train also has `coverage`, the share of `count`
    test occurrences that have a possible neighbour, `word_accuracy` by word, and `macro_f1`, the mean over `count`
    words of the mean F1 of labels.
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
        frames = [
            _score(self._task, votes).with_columns(
                task=pl.lit(self._task.label),
                layer=pl.lit(layer, pl.Int64),
                split=pl.lit(self._task.split),
                k=pl.lit(k, pl.Int64),
            )
            for (layer, k), votes in self._votes.items()
        ]
        return pl.concat(frames).select(list(SCHEMA))

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
        task, votes = self._task, self._one(layers, k)
        mask = votes.predicted >= 0
        index = task.store.index
        names = np.array([*index.labels[task.label].names, ""], object)

        def words(rows: NDArray[np.int64]) -> pl.Series:
            return pl.Series([index.words[int(number)] for number in index.type[rows]], dtype=pl.String)

        return pl.DataFrame(
            {
                "occurrence": task.queries[mask],
                "word": words(task.queries[mask]),
                "label": pl.Series(names[task.true[mask]].tolist(), dtype=pl.String),
                "predicted": pl.Series(names[votes.predicted[mask]].tolist(), dtype=pl.String),
                "nearest": votes.nearest[mask],
                "nearest_word": words(votes.nearest[mask]),
                "score": votes.scores[mask],
                "credit": votes.credit[mask],
            }
        )

    def by_word(self, *, layers: Layer | None = -1, k: int | None = None) -> pl.DataFrame:
        """One row for each word that has possible neighbours: `word, count, n_labels, accuracy, f1, baseline, chance`.

        `n_labels`: of its possible neighbours. `f1`: the mean over the labels of its `count` test occurrences.
        Raises InvalidValueError for another split than train.
        """
        if self._task.split != "train":
            raise InvalidValueError(f"scores by word are for the split train, not for {self._task.split}")
        return _by_word(self._task, self._one(layers, k))


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
    for column in (label, *([] if word is None else [word])):
        if column not in index.labels:
            known = ", ".join(index.labels) or "none"
            raise InvalidValueError(f"there is no label column {column!r}: the store has {known}")
    codes = np.asarray(index.labels[label].codes)
    words = (index.words, index.type) if word is None else (index.labels[word].names, index.labels[word].codes)
    numbers = np.asarray(words[1])

    def labelled(chosen: Selection) -> NDArray[np.int64]:
        rows = np.unique(chosen.rows)
        if not (codes[rows] >= 0).any():
            raise InvalidValueError(f"no selected occurrence of {store.path} is labelled in {label!r}")
        return rows[codes[rows] >= 0]

    candidates = queries = labelled(selection)
    groups = np.full(store.n_rows, -1)
    if train is not None:
        if train.store.path != store.path:
            raise InvalidValueError(f"train occurrences are a selection of {store.path}: give store.select(...)")
        candidates = labelled(train)
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
        texts = distinct_texts(index.text)[index.sentence[queries]]
        groups[queries] = np.unique(np.stack([numbers[queries], texts]), axis=1, return_inverse=True)[1]
    pool, query_pool = np.zeros(len(candidates), np.int64), np.zeros(len(queries), np.int64)
    if split != "leave-one-word-out":
        pool = np.unique(numbers[candidates], return_inverse=True)[1]
        of_word = np.full(int(numbers.max()) + 2, -1)
        of_word[numbers[candidates]] = pool
        query_pool = np.where(numbers[queries] < 0, -1, of_word[numbers[queries]])
    own = groups[candidates]
    most = int((np.bincount(pool)[pool] - np.where(own < 0, 0, np.bincount(own + 1)[own + 1])).max())
    if max(ks) > most:
        raise InvalidValueError(
            f"k {max(ks)} is more than the {most:,} labelled occurrences that can be found: give less"
        )
    counts = _counted(codes, queries, query_pool, groups, candidates, pool)
    limit = counts[:, 3].astype(np.int64) if capped else np.full(len(queries), max(ks))
    return Task(
        store, selection.layers, label, ks, split, codes, words, queries, candidates, pool, query_pool, groups,
        counts[:, :3], limit,
    )  # fmt: skip


def _predict(task: Task, layers: tuple[int, ...], space: Space, advance: Callable[[int], object]) -> list[Votes]:
    """Return the votes for each k, from one search; `layers`: one, or those whose mean is compared."""
    n_queries, none = len(task.queries), np.full(len(task.queries), -1)
    whole = [Votes(none.copy(), none.copy(), np.full(n_queries, np.nan), np.zeros(n_queries), none) for _ in task.ks]
    winners: list[list[NDArray[np.int64]]] = [[np.empty((0, 2), np.int64)] for _ in task.ks]
    for numbers, hits in _search(task, layers, space):
        for k, votes, pairs in zip(task.ks, whole, winners, strict=True):
            limit = np.minimum(k, task.limit[numbers])
            voted = _vote(hits, task.codes, limit, task.true[numbers], ascending=space.ascending)
            for name in ("predicted", "nearest", "scores", "credit"):
                getattr(votes, name)[numbers] = getattr(voted, name)
            pairs.append(np.stack([numbers[voted.winners[:, 0]], voted.winners[:, 1]], 1))
        advance(len(numbers))
    return [
        Votes(votes.predicted, votes.nearest, votes.scores, votes.credit, np.concatenate(pairs))
        for votes, pairs in zip(whole, winners, strict=True)
    ]


def _search(task: Task, layers: tuple[int, ...], space: Space) -> Iterator[tuple[NDArray[np.int64], Hits]]:
    """Yield numbers of queries of a pool and their k nearest, with all that are as near as the k-th."""
    options: dict[str, Any] = {"space": space, "device": settings().device, "threads": settings().threads}
    k, pools = max(task.ks), groups_of(task.pool)
    for pending in groups_of(task.query_pool):
        if task.query_pool[pending[0]] < 0:
            continue
        candidates = task.candidates[pools[task.query_pool[pending[0]]]]
        if task.split == "leave-one-word-out":
            vectors: Vectors = StoreVectors(task.store, layers[0])
            rows = np.arange(task.store.n_rows)
        else:
            rows = np.union1d(candidates, task.queries[pending])
            parts = [StoreVectors(task.store, layer).gather(rows) for layer in layers]
            vectors = ArrayVectors(parts[0] if len(parts) == 1 else np.mean(parts, 0, np.float64).astype(np.float32))
        places, groups, n_fetched = (
            np.searchsorted(rows, candidates),
            task.groups[rows],
            min(k + SPARE, len(candidates)),
        )
        while len(pending):
            step, again = min(QUERIES, max(1, MAX_HITS // n_fetched)), []
            for start in range(0, len(pending), step):
                numbers = pending[start : start + step]
                chosen = np.searchsorted(rows, task.queries[numbers])
                exclude = [Exclusion(groups, groups[chosen])]
                hits = exact_search(
                    vectors, vectors.gather(chosen), k=n_fetched, rows=places, exclude=exclude, **options
                )
                kth, last = hits.scores[:, min(k, n_fetched) - 1], hits.scores[:, -1]
                whole = (np.abs(last - kth) > _tolerance(kth)) | np.isnan(last) | (n_fetched == len(candidates))
                if whole.any():
                    yield numbers[whole], Hits(np.where(hits.rows < 0, -1, rows[hits.rows])[whole], hits.scores[whole])
                again.append(numbers[~whole])
            pending = np.concatenate(again)
            n_fetched = min(4 * n_fetched, len(candidates))


def _tolerance(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """How much scores of equal vectors can differ by rounding."""
    return np.asarray(TIE * np.maximum(1, np.abs(scores)))


def _vote(
    hits: Hits, codes: NDArray[np.int32], k: NDArray[np.int64], true: NDArray[np.int64], *, ascending: bool
) -> Votes:
    """Predict the labels of queries [q] from their neighbours [q, n], of which `k` [q] vote; `true` [q] is right."""
    n_queries, is_hit, every, k = len(hits.rows), hits.rows >= 0, np.arange(len(hits.rows)), k[:, None]
    known, labels = np.unique(np.where(is_hit, codes[hits.rows], true[:, None]), return_inverse=True)
    labels = labels.reshape(hits.rows.shape)
    distance = np.where(is_hit, hits.scores if ascending else -hits.scores, np.inf)
    place = np.minimum(k[:, 0], np.maximum(is_hit.sum(1), 1)) - 1
    kth = distance[every, np.maximum(place, 0)][:, None]
    with np.errstate(invalid="ignore"):  # infinite where there is no neighbour
        nearer = distance < kth - _tolerance(kth)
        tied = ~nearer & (distance <= kth + _tolerance(kth)) & is_hit
    n_nearer, n_tied = nearer.sum(1, keepdims=True), tied.sum(1, keepdims=True)
    share = np.minimum(k - n_nearer, n_tied) / np.maximum(n_tied, 1)
    weight = np.where(nearer, 1.0, np.where(tied, share, 0.0))
    query, place = np.nonzero(weight > 0)
    code = labels[query, place]
    votes, least = np.zeros((n_queries, len(known))), np.full((n_queries, len(known)), np.inf)
    np.add.at(votes, (query, code), weight[query, place])
    np.minimum.at(least, (query, code), distance[query, place])
    best = votes >= votes.max(1, keepdims=True) - 1e-9
    least = np.where(best & (votes > 0), least, np.inf)
    nearest = least.min(1, keepdims=True)
    wins = np.isfinite(least) & (least <= nearest + _tolerance(nearest))
    has_any = wins.any(1)
    predicted = np.where(has_any, wins.argmax(1), -1)
    row = np.full(n_queries, np.iinfo(np.int64).max)
    mine = (code == predicted[query]) & (distance[query, place] <= least[query, predicted[query]] + TIE)
    np.minimum.at(row, query[mine], hits.rows[query[mine], place[mine]])
    score = np.where(has_any, least[every, predicted] * (1 if ascending else -1), np.nan)
    place_of_true = np.minimum(np.searchsorted(known, true), len(known) - 1)
    credit = wins[every, place_of_true] * (known[place_of_true] == true) / np.maximum(wins.sum(1), 1)
    winners = np.argwhere(wins)
    winners[:, 1] = known[winners[:, 1]]
    return Votes(np.where(has_any, known[predicted], -1), np.where(has_any, row, -1), score, credit, winners)


def _score(task: Task, votes: Votes) -> pl.DataFrame:
    """The scores of one layer and k: `metric, item, value, count, baseline, chance`."""
    mask = votes.predicted >= 0
    names = task.store.index.labels[task.label].names
    true = task.true[mask]
    counts = np.bincount(true, minlength=len(names))
    credits = (votes.credit[mask], task.usual[mask, 0], task.usual[mask, 1])
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
        words = _by_word(task, votes)
        rows.append(("coverage", "", len(task.queries), float((task.query_pool >= 0).mean()), None, None))
        if len(words):
            rows.append(("macro_f1", "", len(words), float(words["f1"].mean()), None, None))  # type: ignore[arg-type]
    shown = {name: SCHEMA[name] for name in ("metric", "item", "count", "value", "baseline", "chance")}
    frame = pl.DataFrame(rows, schema=shown, orient="row")
    if words is None:
        return frame
    accuracy = words.select(pl.lit("word_accuracy").alias("metric"), item="word", count="count", value="accuracy")
    return pl.concat([frame, accuracy.with_columns(words["baseline", "chance"]).select(list(shown))])


def _by_word(task: Task, votes: Votes) -> pl.DataFrame:
    """The scores of each word that has a pool, see `KnnLabels.by_word`."""
    names, words = task.words
    n_codes, is_known = int(task.codes.max()) + 1, task.query_pool >= 0
    pools, first, place = np.unique(task.query_pool[is_known], return_index=True, return_inverse=True)
    number = np.full(len(task.queries), -1)
    number[is_known] = place
    gold, occurs = number[is_known] * n_codes + task.true[is_known], np.bincount(place, minlength=len(pools))
    query, code = votes.winners.T
    said, share = number[query] * n_codes + code, 1 / np.bincount(query, minlength=len(number))[query]
    # As scikit-learn does, of all labels that a word has or is predicted to have
    keys, key = np.unique(np.concatenate([gold, said]), return_inverse=True)
    key, said_key = np.split(key, [len(gold)])
    n_right = np.bincount(key, weights=votes.credit[is_known], minlength=len(keys))
    n_both = np.bincount(key, minlength=len(keys)) + np.bincount(said_key, weights=share, minlength=len(keys))
    f1 = 2 * n_right / n_both
    own = keys // n_codes

    def mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.bincount(place, weights=values[is_known], minlength=len(pools)) / occurs)

    rows = task.queries[is_known][first]
    return pl.DataFrame(
        {
            "word": [names[int(each)] for each in words[rows]],
            "count": occurs,
            "n_labels": task.usual[is_known][first, 2].astype(np.int64),
            "accuracy": mean(votes.credit),
            "f1": np.bincount(own, weights=f1, minlength=len(pools)) / np.bincount(own, minlength=len(pools)),
            "baseline": mean(task.usual[:, 0]),
            "chance": mean(task.usual[:, 1]),
        },
        schema_overrides={"word": pl.String},
    )


def _counted(
    codes: NDArray[np.int32],
    queries: NDArray[np.int64],
    query_pool: NDArray[np.int64],
    groups: NDArray[np.int64],
    candidates: NDArray[np.int64],
    pool: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Of each query the credit of its usual label and of a random one, n of labels and of the rarest: [query, 4]."""
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
