"""Senses that nobody labelled: the clusters of a word's occurrences, each with the sentences nearest its centre."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.analysis.neighbors.occurrences import marked
from embstore.analysis.neighbors.space import space_of, unit_rows
from embstore.errors import InvalidValueError, MissingPackageError, NonFiniteError
from embstore.store import Selection, Store
from embstore.vectors.kmeans import spherical_kmeans

Method = Literal["kmeans", "hdbscan"]
MOST_CLUSTERS = 8
TIE = 1e-9  # silhouettes that differ by less are equal but for rounding


@dataclass(frozen=True, eq=False)
class Clusters:
    """The clusters of a word's occurrences in a layer, numbered from 0, the largest first; -1: in none of them.

    `occurrences`: a row an occurrence, by cluster and rank, those in no cluster last: `word, layer, cluster, rank,
    score, silhouette, occurrence, sentence, position, label, text, marked`. `score` is the cosine with the cluster's
    centre, rank 1 the nearest to it; `text` the sentence, `marked` the same with the word in brackets.
    `summary`: a row a cluster: `word, layer, cluster, count, share, silhouette, label, labelled, purity`; `label` is
    the most frequent one of its `labelled` occurrences and `purity` its share of them.
    `tried`: the silhouette of each number of clusters that was tried: `clusters, silhouette`.
    `vectors`: float64 [n, hidden_size], as they were compared, in the order of `occurrences`.
    `silhouette`: the mean over the occurrences in clusters, None for fewer than two clusters.
    """

    word: str
    layer: int
    method: str
    occurrences: pl.DataFrame
    summary: pl.DataFrame
    tried: pl.DataFrame
    vectors: NDArray[np.float64]
    silhouette: float | None

    def nearest(self, count: int) -> pl.DataFrame:
        """The `count` occurrences of each cluster nearest its centre."""
        return self.occurrences.filter((pl.col("cluster") >= 0) & (pl.col("rank") <= count))

    @property
    def purity(self) -> float | None:
        """The share of the labelled occurrences in clusters that have the label of most of their cluster."""
        return _mean_by(self.summary.filter(pl.col("cluster") >= 0), "purity", "labelled")

    @property
    def baseline(self) -> float | None:
        """The purity of one cluster of all: the share of the most frequent label."""
        labels = self.occurrences.filter(pl.col("cluster") >= 0)["label"].drop_nulls()
        return None if labels.is_empty() else float(labels.value_counts()["count"].to_numpy().max() / len(labels))


def cluster_occurrences(
    source: Store | Selection,
    word: str,
    *,
    layer: int,
    method: str = "kmeans",
    clusters: int | None = None,
    min_size: int = 5,
    center: bool = False,
    components: int = 0,
    label: str | None = None,
    sample: int | None = None,
    seed: int = 0,
) -> Clusters:
    """Cluster a word's occurrences by the cosine of their vectors in a layer.

    `kmeans`: spherical k-means into `clusters` parts; without a number, into the 2 to 8 parts, all of `min_size`
    occurrences or more, whose mean silhouette (cosine distance; Rousseeuw 1987) is the greatest, or one where no number
    of parts has such or a silhouette above 0. `hdbscan`: clusters of `min_size` or more that are denser than what is
    around them, of unit vectors; needs scikit-learn (the extra `clusters`) and leaves occurrences out.
    `center`, `components`: the layer's mean, and so many of its principal components, are taken from the vectors first,
    learnt from all that is selected. `label`: the column that clusters are held against. `sample`: of so many
    occurrences at most, drawn with the `seed`, which k-means begins from too.

    Raises InvalidValueError (an unknown word, method, label or layer, one occurrence, more clusters than occurrences),
    MissingPackageError, MissingRowsError, NonFiniteError.
    """
    selection = _selected(source, word, layer)
    _check(method, clusters, min_size, sample, label, selection.store)
    rows = _sampled(selection.rows, sample, seed)
    _check_count(word, len(rows), method, clusters, min_size)
    stored = selection.store.gather(rows, layer)
    if not np.isfinite(stored).all():
        row = int(rows[~np.isfinite(stored).all(1)][0])
        raise NonFiniteError(f"layer {layer}, row {row} holds a value that is not finite: run embstore verify")
    placed = space_of(source, layer, center=center, components=components).place(stored)
    unit = unit_rows(placed)
    tried: dict[int, float | None] = {}
    if method == "hdbscan":
        found = _hdbscan(unit, min_size)
    elif clusters is None:
        found, tried = _best_kmeans(unit, min_size, seed)
    else:
        found = spherical_kmeans(unit, clusters, seed=seed)
    found = _largest_first(found)
    scores, values = _scores(unit, found), silhouettes(unit, found)
    order = np.lexsort((rows, -scores, np.where(found < 0, len(rows), found)))
    table = _occurrences(selection.store, rows[order], found[order], scores[order], values[order], label)
    tried = tried or {int(found.max()) + 1: _mean(values)}
    whose = pl.lit(word).alias("word"), pl.lit(layer).alias("layer")
    return Clusters(
        word=word,
        layer=layer,
        method=method,
        occurrences=table.select(*whose, pl.all()),
        summary=_summary(table).select(*whose, pl.all()),
        tried=pl.DataFrame(list(tried.items()), schema={"clusters": pl.Int64, "silhouette": pl.Float64}, orient="row"),
        vectors=placed[order],
        silhouette=_mean(values),
    )


def silhouettes(unit: NDArray[np.float64], clusters: NDArray[np.int64]) -> NDArray[np.float64]:
    """The silhouette of each unit vector [n, features] by cosine distance, exact, without all pairs; float64 [n].

    (b - a) / max(a, b), `a` the mean distance to the others of its cluster, `b` that to the nearest other cluster; 0
    for a cluster of one; nan for those in no cluster (-1), and for all where there are fewer than two clusters.
    """
    out = np.full(len(unit), np.nan)
    count = int(clusters.max(initial=-1)) + 1
    if count < 2:
        return out
    inside = np.flatnonzero(clusters >= 0)
    own, vectors = clusters[inside], unit[inside]
    member = own[:, None] == np.arange(count)
    sizes = member.sum(0)
    sums = vectors @ (member.T.astype(np.float64) @ vectors).T
    itself = np.square(vectors).sum(1)
    others = np.maximum(sizes[own] - 1, 1)
    a = 1 - (sums[member] - itself) / others
    b = np.where(member, np.inf, 1 - sums / sizes).min(1)
    most = np.maximum(a, b)
    value = np.divide(b - a, most, out=np.zeros_like(a), where=most > TIE)
    out[inside] = np.where(sizes[own] == 1, 0.0, value)
    return out


def _selected(source: Store | Selection, word: str, layer: int) -> Selection:
    store = source if isinstance(source, Store) else source.store
    chosen = store.select(words=word, layers=layer)
    if isinstance(source, Store):
        return chosen
    rows = np.intersect1d(chosen.rows, source.rows)
    if not len(rows):
        raise InvalidValueError(f"no occurrence of {word!r} is among those selected of {store.path}: choose others")
    return Selection(store, layers=chosen.layers, rows=rows)


def _check(
    method: str, clusters: int | None, min_size: int, sample: int | None, label: str | None, store: Store
) -> None:
    if method not in get_args(Method):
        raise InvalidValueError(f"unknown method {method!r}; allowed are {', '.join(get_args(Method))}")
    if method == "hdbscan" and clusters is not None:
        raise InvalidValueError(f"clusters {clusters} is for kmeans: hdbscan finds their number, give min_size")
    if clusters is not None and clusters < 1:
        raise InvalidValueError(f"clusters {clusters} is not allowed: give 1 or more")
    if min_size < 2:
        raise InvalidValueError(f"min_size {min_size} is not allowed: give 2 or more")
    if sample is not None and sample < 2:
        raise InvalidValueError(f"sample {sample} is not allowed: give 2 or more")
    if label is not None and label not in store.index.labels:
        known = ", ".join(store.index.labels) or "none"
        raise InvalidValueError(f"there is no label column {label!r}: the store has {known}")


def _check_count(word: str, count: int, method: str, clusters: int | None, min_size: int) -> None:
    if count < 2:
        raise InvalidValueError(f"{word!r} has one occurrence: two or more are needed to make clusters of")
    if clusters is not None and clusters > count:
        raise InvalidValueError(f"clusters {clusters} is more than the {count} occurrences of {word!r}: ask for fewer")
    if method == "hdbscan" and min_size > count:
        raise InvalidValueError(f"min_size {min_size} is more than the {count} occurrences of {word!r}: give less")


def _sampled(rows: NDArray[np.int64], sample: int | None, seed: int) -> NDArray[np.int64]:
    rows = np.unique(rows)
    if sample is None or sample >= len(rows):
        return rows
    return np.sort(np.random.default_rng(seed).choice(rows, sample, replace=False))


def _best_kmeans(
    unit: NDArray[np.float64], min_size: int, seed: int
) -> tuple[NDArray[np.int64], dict[int, float | None]]:
    """The division of the greatest silhouette, the fewest of equals, and the silhouette of each number tried."""
    best, greatest = np.zeros(len(unit), np.int64), TIE
    tried: dict[int, float | None] = {1: None}
    for count in range(2, min(MOST_CLUSTERS, len(unit) // min_size) + 1):
        found = spherical_kmeans(unit, count, seed=seed)
        tried[count] = value = float(silhouettes(unit, found).mean())
        if np.bincount(found).min() >= min_size and value > greatest + TIE:
            best, greatest = found, value
    return best, tried


def _hdbscan(unit: NDArray[np.float64], min_size: int) -> NDArray[np.int64]:
    try:
        from sklearn.cluster import HDBSCAN
    except ImportError as error:
        raise MissingPackageError('hdbscan needs scikit-learn: pip install "embstore[clusters]"') from error
    found: Any = HDBSCAN(min_cluster_size=min_size, copy=True).fit_predict(unit)
    return np.asarray(found, np.int64)


def _largest_first(clusters: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number clusters by size, equal ones by their first member; -1 stays."""
    names, first, sizes = np.unique(clusters, return_index=True, return_counts=True)
    order = np.lexsort((first, -sizes))
    order = order[names[order] >= 0]
    numbers = np.full(int(names.max(initial=-1)) + 2, -1)
    numbers[names[order]] = np.arange(len(order))
    return numbers[clusters]


def _scores(unit: NDArray[np.float64], clusters: NDArray[np.int64]) -> NDArray[np.float64]:
    """The cosine of each unit vector with the mean of its cluster's; nan in none."""
    out = np.full(len(unit), np.nan)
    for number in range(int(clusters.max(initial=-1)) + 1):
        members = clusters == number
        out[members] = unit[members] @ unit_rows(unit[members].mean(0))
    return out


def _occurrences(
    store: Store,
    rows: NDArray[np.int64],
    clusters: NDArray[np.int64],
    scores: NDArray[np.float64],
    values: NDArray[np.float64],
    label: str | None,
) -> pl.DataFrame:
    contexts = store.select(rows=rows).table()
    labels = pl.Series("label", [None] * len(rows), pl.String) if label is None else contexts[label].cast(pl.String)
    table = contexts.select(
        pl.Series("cluster", clusters),
        pl.Series("score", scores).fill_nan(None),
        pl.Series("silhouette", values).fill_nan(None),
        "occurrence",
        "sentence",
        "position",
        labels.alias("label"),
        "text",
        pl.Series("marked", marked(contexts)),
    )
    rank = pl.int_range(1, pl.len() + 1).over("cluster")
    return table.select("cluster", pl.when(pl.col("cluster") >= 0).then(rank).alias("rank"), pl.exclude("cluster"))


def _summary(occurrences: pl.DataFrame) -> pl.DataFrame:
    rows = []
    for (number,), part in occurrences.group_by("cluster", maintain_order=True):
        labels = part["label"].drop_nulls()
        counts = labels.value_counts().sort(["count", "label"], descending=[True, False])
        named = not counts.is_empty()
        rows.append(
            (
                number,
                len(part),
                len(part) / len(occurrences),
                part["silhouette"].mean(),
                counts["label"][0] if named else None,
                len(labels),
                counts["count"][0] / len(labels) if named else None,
            )
        )
    schema = {
        "cluster": pl.Int64,
        "count": pl.Int64,
        "share": pl.Float64,
        "silhouette": pl.Float64,
        "label": pl.String,
        "labelled": pl.Int64,
        "purity": pl.Float64,
    }
    return pl.DataFrame(rows, schema=schema, orient="row")


def _mean(values: NDArray[np.float64]) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def _mean_by(table: pl.DataFrame, value: str, weight: str) -> float | None:
    known = table.filter(pl.col(value).is_not_null())
    if known.is_empty():
        return None
    return float(np.average(known[value].to_numpy(), weights=known[weight].to_numpy()))
