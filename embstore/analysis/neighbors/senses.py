"""Word senses without labels: clusters of the occurrences of a word, and maps of them in two dimensions."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.analysis.neighbors.find import mark_words
from embstore.analysis.neighbors.markers import contexts, distinct_contexts, marker_words
from embstore.analysis.neighbors.space import MAX_SEED, space_of
from embstore.analysis.scan import layer_of
from embstore.arguments import as_matrix, checked
from embstore.errors import (
    InvalidValueError,
    MissingPackageError,
    NonFiniteError,
    check_choice,
    check_whole,
)
from embstore.progress import Report
from embstore.store import Selection, Store
from embstore.store.framed import Framed
from embstore.store.layout import Layer
from embstore.vectors.linalg import unit_rows

Method = Literal["kmeans", "hdbscan"]
MAX_CLUSTERS = 8
N_RESTARTS = 10  # of k-means; one ends in a local optimum for a few words in a hundred
TIE = 1e-9  # silhouettes that differ by less are equal up to rounding
MIN_MAPPED = 4
MANY, EPOCHS = 10_000, 200  # of UMAP: for more vectors than these, as it chooses itself


@dataclass(frozen=True, eq=False)
class Clusters(Framed):
    """The clusters of the occurrences of a word in a layer, numbered from 0, the largest first; -1 is no cluster.

    `occurrences`: one row per occurrence, by cluster and rank, those in no cluster last: `word, layer, cluster, rank,
    score, silhouette, occurrence, sentence, position, label, text, marked`. `score` is the cosine with the center of
    the cluster, `rank` 1 the nearest to it, `text` the sentence, and `marked` the sentence with the word in brackets.
    `frame`: one row per cluster: `word, layer, cluster, count, share, silhouette, label, n_labelled, purity`; `label`
    is the most frequent label of its `n_labelled` labelled occurrences, and `purity` its share of them.
    `tried`: the silhouette for each number of clusters that was tried: `n_clusters, silhouette`.
    `vectors`: float64 [n, hidden_size] as they were compared, in the order of `occurrences`.
    `silhouette`: the mean over the occurrences in clusters, None for fewer than two clusters.
    `store`: where the occurrences are.
    """

    word: str
    layer: int
    method: str
    occurrences: pl.DataFrame
    frame: pl.DataFrame
    tried: pl.DataFrame
    vectors: NDArray[np.float64]
    silhouette: float | None
    store: Store

    def nearest(self, count: int) -> pl.DataFrame:
        """The `count` occurrences of each cluster nearest to its center."""
        return self.occurrences.filter((pl.col("cluster") >= 0) & (pl.col("rank") <= count))

    def markers(self, count: int = 8) -> list[list[str]]:
        """The words that mark the contexts of each cluster, five words on each side: none of a single cluster.

        Those that the cluster has significantly more of than the others, in the order of class-based tf-idf
        (Grootendorst 2022); equal contexts count once.
        """
        inside = self.occurrences.filter(pl.col("cluster") >= 0)
        words = list(contexts(self.store, inside["occurrence"]))
        return marker_words(words, inside["cluster"].to_list(), inside["cluster"].n_unique(), count=count)

    @property
    def purity(self) -> float | None:
        """The share of the labelled occurrences in clusters that have the most frequent label of their cluster."""
        known = self.frame.filter((pl.col("cluster") >= 0) & pl.col("purity").is_not_null())
        if known.is_empty():
            return None
        return float(np.average(known["purity"].to_numpy(), weights=known["n_labelled"].to_numpy()))

    @property
    def baseline(self) -> float | None:
        """The purity of a single cluster: the share of the most frequent label."""
        labels = self.occurrences.filter(pl.col("cluster") >= 0)["label"].drop_nulls()
        return None if labels.is_empty() else float(labels.value_counts()["count"].to_numpy().max() / len(labels))

    def _written(self) -> pl.DataFrame:
        return self.occurrences

    def __repr__(self) -> str:
        silhouette = "" if self.silhouette is None else f", silhouette {self.silhouette:.2f}"
        n_clusters = int((self.frame["cluster"] >= 0).sum())
        return (
            f"<Clusters of {self.word!r} in layer {self.layer}: {len(self.occurrences):,} occurrences, "
            f"{n_clusters} cluster{'' if n_clusters == 1 else 's'} ({self.method}){silhouette}>"
        )


@checked
def senses(
    data: Store | Selection,
    word: str,
    *,
    layer: Layer = -1,
    method: str = "kmeans",
    n_clusters: int | None = None,
    min_size: int = 5,
    centered: bool = False,
    n_components: int = 0,
    label: str | None = None,
    sample: int | None = None,
    distinct: bool = False,
    seed: int = 0,
) -> Clusters:
    """Find the senses of a word: cluster its occurrences by the cosine of their vectors in a layer.

    `kmeans`: k-means of unit vectors with `n_clusters` clusters, fewer if fewer are distinct; needs scikit-learn (the
    extra `clusters`), as all of this. By default, their number is the one from 2 to 8 with the
    highest mean silhouette (cosine distance; Rousseeuw 1987) among those whose clusters all have `min_size` occurrences
    or more; it is one if there is no such number, or no silhouette above 0. `hdbscan`: dense clusters of `min_size` or
    more unit vectors, which leaves occurrences out.
    `centered`, `n_components`: subtract the mean of the layer and remove its first principal components, learned from
    everything that `data` selects. `label`: the column that clusters are compared with. `sample`: at most this many
    occurrences, drawn with `seed`, which also initializes k-means. `distinct`: of equal contexts of five words on each
    side, one occurrence, so that repeated sentences are no cluster.

    Example::

        clusters = es.senses(store, "bank", n_clusters=2)
        clusters.nearest(3).select("cluster", "marked")

    Raises InvalidValueError (unknown word, method, label or layer; a single occurrence; more clusters than
    occurrences), MissingPackageError, MissingRowsError, NonFiniteError.
    """
    check_whole("seed", seed, 0, MAX_SEED)
    number = layer_of(data, layer)
    selection = _occurrences_of(data, word, number)
    _check(method, n_clusters, min_size, sample, label, selection.store)
    rows, random = np.unique(selection.rows), np.random.default_rng(seed)
    if distinct:
        rows = distinct_contexts(selection.store, rows, sample, random)
    elif sample is not None and sample < len(rows):
        rows = np.sort(random.choice(rows, sample, replace=False))
    _check_count(word, len(rows), method, n_clusters, min_size)
    stored = selection.store.vectors(rows, layers=number)[0]
    if not np.isfinite(stored).all():
        row = int(rows[~np.isfinite(stored).all(1)][0])
        raise NonFiniteError(f"layer {number}, row {row} holds a value that is not finite: run embstore verify")
    vectors = space_of(data, number, centered=centered, n_components=n_components).transform(stored)
    unit = unit_rows(vectors)
    tried: dict[int, float | None] = {}
    if method == "hdbscan":
        found = _hdbscan(unit, min_size)
    elif n_clusters is None:
        found, tried = _best_kmeans(unit, min_size, seed)
    else:
        found = kmeans(unit, n_clusters, seed=seed)
    return _clusters(selection, word, method, rows, vectors, _largest_first(found), tried, label)


@checked
def sense_support(clusters: Clusters, *, draws: int = 19, seed: int = 0) -> float:
    """The p-value of a clustering of `senses`: how often vectors without clusters are clustered as well, by silhouette.

    As many vectors are drawn from one normal distribution with the mean and the covariance of the word's vectors, and
    clustered into each number of clusters that was tried, `draws` times; (1 + b) / (1 + draws), where b counts those
    whose highest silhouette is as high (as in SigClust; Liu et al. 2008). 1 for fewer than two clusters.

    Raises InvalidValueError for draws of 0.
    """
    check_whole("draws", draws, 1)
    check_whole("seed", seed, 0, MAX_SEED)
    tried = clusters.tried.drop_nulls("silhouette")["n_clusters"].to_list()
    if clusters.silhouette is None or not tried:
        return 1.0
    inside = clusters.occurrences["cluster"].to_numpy() >= 0
    vectors, random, n_higher = clusters.vectors[inside], np.random.default_rng(seed), 0
    mean, count = vectors.mean(0), len(vectors)
    for _ in range(draws):
        unit = unit_rows(mean + random.standard_normal((count, count)) @ (vectors - mean) / np.sqrt(count - 1))
        values = (silhouettes(unit, kmeans(unit, number, seed=seed)).mean() for number in tried)
        n_higher += max(values) >= clusters.silhouette
    return (1 + n_higher) / (1 + draws)


def _clusters(
    selection: Selection,
    word: str,
    method: str,
    rows: NDArray[np.int64],
    vectors: NDArray[np.float64],
    found: NDArray[np.int64],
    tried: dict[int, float | None],
    label: str | None,
) -> Clusters:
    """Describe clusters of the occurrences `rows`, numbered by `found`."""
    unit, (number,) = unit_rows(vectors), selection.layers
    scores, values = _center_scores(unit, found), silhouettes(unit, found)
    order = np.lexsort((rows, -scores, np.where(found < 0, len(rows), found)))
    table = _occurrence_table(selection.store, rows[order], found[order], scores[order], values[order], label)
    tried = tried or {int(found.max()) + 1: _mean(values)}
    key = pl.lit(word).alias("word"), pl.lit(number).alias("layer")
    schema = {"n_clusters": pl.Int64, "silhouette": pl.Float64}
    return Clusters(
        word=word,
        layer=number,
        method=method,
        occurrences=table.select(*key, pl.all()),
        frame=_cluster_table(table).select(*key, pl.all()),
        tried=pl.DataFrame(list(tried.items()), schema=schema, orient="row"),
        vectors=vectors[order],
        silhouette=_mean(values),
        store=selection.store,
    )


def silhouettes(unit: NDArray[np.float64], clusters: NDArray[np.int64]) -> NDArray[np.float64]:
    """The exact silhouette of each unit vector [n, feature] by cosine distance, without forming pairs; float64 [n].

    (b - a) / max(a, b), with a the mean distance to the others of its cluster and b that to the nearest other cluster;
    0 for a cluster of one; NaN for vectors in no cluster (-1), and for all if there are fewer than two clusters.
    """
    out = np.full(len(unit), np.nan)
    n_clusters = int(clusters.max(initial=-1)) + 1
    if n_clusters < 2:
        return out
    inside = np.flatnonzero(clusters >= 0)
    own, vectors = clusters[inside], unit[inside]
    is_member = own[:, None] == np.arange(n_clusters)
    sizes = is_member.sum(0)
    sums = vectors @ (is_member.T.astype(np.float64) @ vectors).T
    squares = np.square(vectors).sum(1)
    n_others = np.maximum(sizes[own] - 1, 1)
    a = 1 - (sums[is_member] - squares) / n_others
    b = np.where(is_member, np.inf, 1 - sums / sizes).min(1)
    larger = np.maximum(a, b)
    value = np.divide(b - a, larger, out=np.zeros_like(a), where=larger > TIE)
    out[inside] = np.where(sizes[own] == 1, 0.0, value)
    return out


def _occurrences_of(data: Store | Selection, word: str, layer: int) -> Selection:
    store = data if isinstance(data, Store) else data.store
    chosen = store.select(words=word, layers=layer)
    if isinstance(data, Store):
        return chosen
    rows = np.intersect1d(chosen.rows, data.rows)
    if not len(rows):
        raise InvalidValueError(f"no occurrence of {word!r} is in this selection of {store.path}: choose others")
    return Selection(store, rows=rows, layers=chosen.layers)


def _check(
    method: str, n_clusters: int | None, min_size: int, sample: int | None, label: str | None, store: Store
) -> None:
    check_choice("method", method, get_args(Method))
    if method == "hdbscan" and n_clusters is not None:
        raise InvalidValueError("the number of clusters is for kmeans: hdbscan finds it by itself, give min_size")
    for name, value, least in (("n_clusters", n_clusters, 1), ("min_size", min_size, 2), ("sample", sample, 2)):
        if value is not None:
            check_whole(name, value, least)
    if label is not None and label not in store.index.labels:
        known = ", ".join(store.index.labels) or "none"
        raise InvalidValueError(f"there is no label column {label!r}: the store has {known}")


def _check_count(word: str, count: int, method: str, n_clusters: int | None, min_size: int) -> None:
    if count < 2:
        raise InvalidValueError(f"{word!r} has one occurrence: clusters need two or more")
    if n_clusters is not None and n_clusters > count:
        raise InvalidValueError(f"{n_clusters} clusters are more than the {count} occurrences of {word!r}: give fewer")
    if method == "hdbscan" and min_size > count:
        raise InvalidValueError(f"min_size {min_size} is more than the {count} occurrences of {word!r}: give less")


def _best_kmeans(
    unit: NDArray[np.float64], min_size: int, seed: int
) -> tuple[NDArray[np.int64], dict[int, float | None]]:
    """The clustering with the highest silhouette, the fewest clusters of equals; and the silhouette of each number."""
    best, highest = np.zeros(len(unit), np.int64), TIE
    tried: dict[int, float | None] = {1: None}
    for n_clusters in range(2, min(MAX_CLUSTERS, len(unit) // min_size) + 1):
        found = kmeans(unit, n_clusters, seed=seed)
        tried[n_clusters] = value = _mean(silhouettes(unit, found))
        if np.bincount(found).min() >= min_size and value is not None and value > highest + TIE:
            best, highest = found, value
    return best, tried


def kmeans(unit: NDArray[np.float64], n_clusters: int, *, seed: int) -> NDArray[np.int64]:
    """Return the cluster of each unit vector, int64 [n]; there are fewer clusters if fewer vectors are distinct."""
    with warnings.catch_warnings(action="ignore"):  # ConvergenceWarning of equal vectors
        model = _sklearn_cluster().KMeans(n_clusters, n_init=N_RESTARTS, random_state=seed)
        return np.unique(model.fit_predict(unit), return_inverse=True)[1].astype(np.int64)


def _hdbscan(unit: NDArray[np.float64], min_size: int) -> NDArray[np.int64]:
    return np.asarray(_sklearn_cluster().HDBSCAN(min_cluster_size=min_size, copy=True).fit_predict(unit), np.int64)


def _sklearn_cluster() -> Any:
    try:
        import sklearn.cluster
    except ImportError as error:
        raise MissingPackageError('senses needs scikit-learn: pip install "embstore[clusters]"') from error
    return sklearn.cluster


def _largest_first(clusters: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number clusters by size, equal ones by their first member; -1 is unchanged."""
    names, first, sizes = np.unique(clusters, return_index=True, return_counts=True)
    order = np.lexsort((first, -sizes))
    order = order[names[order] >= 0]
    numbers = np.full(int(names.max(initial=-1)) + 2, -1)
    numbers[names[order]] = np.arange(len(order))
    return numbers[clusters]


def _center_scores(unit: NDArray[np.float64], clusters: NDArray[np.int64]) -> NDArray[np.float64]:
    """The cosine of each unit vector with the mean of its cluster; NaN without a cluster."""
    out = np.full(len(unit), np.nan)
    for number in range(int(clusters.max(initial=-1)) + 1):
        members = clusters == number
        out[members] = unit[members] @ unit_rows(unit[members].mean(0))
    return out


def _occurrence_table(
    store: Store,
    rows: NDArray[np.int64],
    clusters: NDArray[np.int64],
    scores: NDArray[np.float64],
    values: NDArray[np.float64],
    label: str | None,
) -> pl.DataFrame:
    found = store.select(rows=rows).table()
    labels = pl.Series("label", [None] * len(rows), pl.String) if label is None else found[label].cast(pl.String)
    table = found.select(
        pl.Series("cluster", clusters),
        pl.Series("score", scores).fill_nan(None),
        pl.Series("silhouette", values).fill_nan(None),
        "occurrence",
        "sentence",
        "position",
        labels.alias("label"),
        "text",
        pl.Series("marked", mark_words(store, rows)),
    )
    rank = pl.int_range(1, pl.len() + 1).over("cluster")
    return table.select("cluster", pl.when(pl.col("cluster") >= 0).then(rank).alias("rank"), pl.exclude("cluster"))


def _cluster_table(occurrences: pl.DataFrame) -> pl.DataFrame:
    rows = []
    for (number,), part in occurrences.group_by("cluster", maintain_order=True):
        labels = part["label"].drop_nulls()
        counts = labels.value_counts().sort(["count", "label"], descending=[True, False])
        label, purity = (None, None) if counts.is_empty() else (counts["label"][0], counts["count"][0] / len(labels))
        share = len(part) / len(occurrences)
        rows.append((number, len(part), share, part["silhouette"].mean(), label, len(labels), purity))
    schema = {
        "cluster": pl.Int64,
        "count": pl.Int64,
        "share": pl.Float64,
        "silhouette": pl.Float64,
        "label": pl.String,
        "n_labelled": pl.Int64,
        "purity": pl.Float64,
    }
    return pl.DataFrame(rows, schema=schema, orient="row")


def _mean(values: NDArray[np.float64]) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


@checked
def umap_plane(
    vectors: NDArray[Any],
    *,
    seed: int = 0,
    n_neighbors: int = 15,
    start: NDArray[Any] | None = None,
    report: Report | None = None,
) -> NDArray[np.float64]:
    """Map vectors [n, feature] to two dimensions by UMAP (McInnes et al. 2018) of their cosines; float64 [n, 2].

    Unlike with principal components, axes and distances have no meaning, only who is near whom. `start`: coordinates
    [n, 2] to begin with. `report(done, total)` counts epochs. Needs umap-learn (the extra `umap`). Raises
    InvalidValueError for fewer than four vectors, MissingPackageError.
    """
    vectors = as_matrix("vectors", vectors)
    if len(vectors) < MIN_MAPPED:
        raise InvalidValueError(
            f"UMAP of {len(vectors)} vectors is not possible: give {MIN_MAPPED} or more, or choose pca"
        )
    try:
        from umap import UMAP
    except ImportError as error:
        raise MissingPackageError('a UMAP map needs umap-learn: pip install "embstore[umap]", or choose pca') from error
    begin = "random" if len(vectors) < 12 else "spectral"  # the spectral start needs more vectors than dimensions
    epochs = EPOCHS if len(vectors) > MANY else 500
    layout = UMAP(
        n_neighbors=min(n_neighbors, len(vectors) - 1),
        random_state=seed % 2**32,
        n_jobs=1,
        n_epochs=epochs,
        init=begin if start is None else np.asarray(start, np.float32),
        tqdm_kwds={"disable": report is None, "file": _Epochs(report, epochs), "bar_format": "{n} ", "mininterval": 0},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(layout.fit_transform(unit_rows(np.asarray(vectors, np.float32))), np.float64)


@dataclass(frozen=True)
class _Epochs:
    """The file that UMAP's progress bar is written to: passes on the number of epochs that are done."""

    report: Report | None
    total: int

    def write(self, text: str) -> None:
        if self.report is not None and text.strip().isdecimal():
            self.report(int(text), self.total)

    def flush(self) -> None:
        pass
