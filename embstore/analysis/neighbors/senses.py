"""Word senses without labels: clusters of the occurrences of a word, and maps of them in two dimensions."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.analysis.neighbors.find import mark_words
from embstore.analysis.neighbors.markers import contexts, distinct_contexts, marker_words
from embstore.analysis.neighbors.space import Seed, space_of
from embstore.analysis.scan import gather_finite
from embstore.arguments import Count, Positive, Range, as_matrix, checked
from embstore.errors import InvalidValueError, MissingPackageError
from embstore.progress import Report
from embstore.store import Selection, Store
from embstore.store.framed import Framed
from embstore.store.layout import RESIDUAL, Layers, one_layer
from embstore.vectors.linalg import unit_rows

MAX_CLUSTERS = 8
N_RESTARTS = 10  # of k-means; one ends in a local optimum for a few words in a hundred
DRAWS, P_VALUE = 19, 0.05  # sets of vectors without clusters, the fewest that reach this p
NULL_ROWS, NULL_RESTARTS = 300, 3  # of such a set: more rows change its silhouettes little
TIE = 1e-9  # silhouettes that differ by less are equal up to rounding
MIN_MAPPED = 4
MANY, EPOCHS = 10_000, 200  # of UMAP: for more vectors than these, as it chooses itself


@dataclass(frozen=True, eq=False)
class Clusters(Framed):
    """The clusters of the occurrences of a word in a layer, numbered from 1, the largest first.

    `occurrences`: one row per occurrence, by cluster and rank: `word, layer, cluster, rank,
    score, silhouette, occurrence, sentence, position, label, text, marked`. `score` is the cosine with the center of
    the cluster, `rank` 1 the nearest to it, `text` the sentence, and `marked` the sentence with the word in brackets.
    `frame`: one row per cluster: `word, layer, cluster, count, share, silhouette, label, n_labelled, purity`; `label`
    is the most frequent label of its `n_labelled` labelled occurrences, and `purity` its share of them.
    `tried`: the silhouette for each number of clusters that was tried: `n_clusters, silhouette`.
    `vectors`: float64 [n, hidden_size] as they were compared, in the order of `occurrences`.
    `silhouette`: the mean over the occurrences in clusters, None for fewer than two clusters; `null` and `p` say how
    high it is of vectors without clusters, and `caveats` what it does not show.
    `store`: where the occurrences are; `min_size`: of the clusters.
    """

    word: str
    layer: int
    occurrences: pl.DataFrame
    frame: pl.DataFrame
    tried: pl.DataFrame
    vectors: NDArray[np.float64]
    silhouette: float | None
    store: Store
    min_size: int

    @cached_property
    def _null(self) -> NDArray[np.float64]:
        """The highest silhouettes of vectors without clusters, clustered as those of the word."""
        random, n_kept = np.random.default_rng(0), min(len(self.vectors), NULL_ROWS)
        mean, tried = self.vectors.mean(0), self.tried.drop_nulls("silhouette")["n_clusters"].to_list()
        deviations, highest = ((self.vectors - mean) / np.sqrt(len(self.vectors) - 1)).astype(np.float32), []
        for _ in range(DRAWS if tried else 0):
            drawn = random.standard_normal((n_kept, len(deviations)), np.float32) @ deviations + mean
            unit, values = unit_rows(drawn), [0.0]
            for number in tried:
                clusters = kmeans(unit, number, seed=0, restarts=NULL_RESTARTS)
                if np.bincount(clusters).min() >= self.min_size:
                    values.append(_mean(silhouettes(unit, clusters)) or 0.0)
            highest.append(max(values))
        return np.array(highest)

    @property
    def null(self) -> float | None:
        """The mean of the highest silhouettes of 19 sets of vectors without clusters; None for one cluster.

        Each is of as many vectors (300 at most) as the word has, drawn from one normal distribution with their mean and
        covariance, and clustered into each number of clusters that was tried (as in SigClust; Liu et al. 2008).
        """
        return None if self.silhouette is None else float(self._null.mean())

    @property
    def p(self) -> float | None:
        """(1 + b) / 20, where b of the 19 silhouettes of `null` are as high as that of the word."""
        if self.silhouette is None:
            return None
        return (1 + int((self._null >= self.silhouette).sum())) / (1 + DRAWS)

    @property
    def caveats(self) -> list[str]:
        """What speaks against reading the clusters as senses, a sentence each."""
        said = []
        if self.layer == 0 and self.store.source.layout.site == RESIDUAL:
            said.append("layer 0 is the word and its position, without its sentence: clusters there are no senses")
        if self.p is not None and self.p > P_VALUE:
            reached = f"reach a silhouette of {self.null:.2f} on average (p {self.p:.2f})"
            said.append(f"vectors without clusters {reached}: that of the word is no evidence of clusters")
        if self.silhouette is None and len(self.tried) > 1:
            wanted = f"{self.min_size} occurrences or more in each and a silhouette above 0"
            said.append(f"no clustering into up to {len(self.tried)} clusters has {wanted}")
        return said

    @checked
    def nearest(self, count: Count) -> pl.DataFrame:
        """The `count` occurrences of each cluster nearest to its center."""
        return self.occurrences.filter(pl.col("rank") <= count)

    @checked
    def markers(self, count: Positive = 8) -> list[list[str]]:
        """The words that mark the contexts of each cluster, five words on each side: none of a single cluster.

        Those that the cluster has significantly more of than the others, in the order of class-based tf-idf
        (Grootendorst 2022); equal contexts count once.
        """
        own, every = self.word.casefold(), contexts(self.store, self.occurrences["occurrence"])
        words = [tuple(word for word in words if word != own) for words in every]
        return marker_words(words, (self.occurrences["cluster"] - 1).to_list(), len(self.frame), count=count)

    @property
    def purity(self) -> float | None:
        """The share of the labelled occurrences in clusters that have the most frequent label of their cluster."""
        known = self.frame.drop_nulls("purity")
        if known.is_empty():
            return None
        return float(np.average(known["purity"].to_numpy(), weights=known["n_labelled"].to_numpy()))

    @property
    def baseline(self) -> float | None:
        """The purity of a single cluster: the share of the most frequent label."""
        labels = self.occurrences["label"].drop_nulls()
        return None if labels.is_empty() else float(labels.value_counts()["count"].to_numpy().max() / len(labels))

    def _written(self) -> pl.DataFrame:
        return self.occurrences

    def __repr__(self) -> str:
        silhouette = "" if self.silhouette is None else f", silhouette {self.silhouette:.2f}"
        return (
            f"<Clusters of {self.word!r} in layer {self.layer}: {len(self.occurrences):,} occurrences, "
            f"{len(self.frame)} cluster{'s' * (len(self.frame) != 1)}{silhouette}>"
        )


@checked
def senses(
    data: Store | Selection,
    word: str,
    *,
    layers: Layers = -1,
    n_clusters: Positive | None = None,
    min_size: Annotated[int, Range(2)] = 5,
    centered: bool = False,
    label: str | None = None,
    sample: Annotated[int, Range(2)] | None = None,
    distinct: bool = False,
    seed: Seed = 0,
) -> Clusters:
    """Find the senses of a word: cluster its occurrences by the cosine of their vectors in a layer, by k-means.

    Needs scikit-learn (the extra `clusters`).

    Parameters
    ----------
    data : Store or Selection
        Where the word occurs.
    word : str
    layers : int or str
        One layer.
    n_clusters : int, optional
        Fewer if fewer vectors are distinct. By default the number from 2 to 8 with the highest mean silhouette (cosine
        distance; Rousseeuw 1987) among those whose clusters all have `min_size` occurrences or more; one if there is no
        such number, or no silhouette above 0.
    min_size : int
        Occurrences of the smallest cluster.
    centered : bool
        Subtract the mean of everything that `data` selects in the layer.
    label : str, optional
        The column that clusters are compared with.
    sample : int, optional
        At most this many occurrences, drawn with `seed`, which also initializes k-means.
    distinct : bool
        Of equal contexts of five words on each side, one occurrence, so that repeated sentences are no cluster.

    Returns
    -------
    Clusters

    Raises
    ------
    InvalidValueError
        For an unknown word, label or layer, a single occurrence, and more clusters than occurrences.
    MissingPackageError, MissingRowsError, NonFiniteError

    Examples
    --------
    >>> clusters = es.senses(store, "bank", n_clusters=2)
    >>> clusters.nearest(3).select("cluster", "marked")
    """
    store = data if isinstance(data, Store) else data.store
    number = one_layer(layers, data.layers if layers in (-1, "last") else store.layers)
    if label is not None and label not in store.index.labels:
        known = ", ".join(store.index.labels) or "none"
        raise InvalidValueError(f"there is no label column {label!r}: the store has {known}")
    selection = store.select(words=word, layers=number)
    if isinstance(data, Selection):
        some = np.intersect1d(selection.rows, data.rows)
        if not len(some):
            raise InvalidValueError(f"no occurrence of {word!r} is in this selection of {store.path}: choose others")
        selection = Selection(store, rows=some, layers=selection.layers)
    rows, random = np.unique(selection.rows), np.random.default_rng(seed)
    if distinct:
        rows = distinct_contexts(store, rows, sample, random)
    elif sample is not None and sample < len(rows):
        rows = np.sort(random.choice(rows, sample, replace=False))
    if len(rows) < 2:
        raise InvalidValueError(f"{word!r} has one occurrence: clusters need two or more")
    if n_clusters is not None and n_clusters > len(rows):
        raise InvalidValueError(
            f"{n_clusters} clusters are more than the {len(rows)} occurrences of {word!r}: give fewer"
        )
    vectors = space_of(data, number, centered=centered).transform(gather_finite(store, rows, number))
    unit = unit_rows(vectors)
    tried: dict[int, float | None] = {}
    if n_clusters is None:
        found, tried = _best_kmeans(unit, min_size, seed)
    else:
        found = kmeans(unit, n_clusters, seed=seed)
    found = _largest_first(found)
    center = np.array([unit_rows(unit[found == cluster].mean(0)) for cluster in range(int(found.max()) + 1)])
    scores, values = np.einsum("ij,ij->i", unit, center[found]), silhouettes(unit, found)
    order = np.lexsort((rows, -scores, found))
    listed = store.select(rows=rows[order]).table()
    table = listed.select(
        pl.Series("cluster", found[order] + 1),
        pl.Series("score", scores[order]).fill_nan(None),
        pl.Series("silhouette", values[order]).fill_nan(None),
        "occurrence",
        "sentence",
        "position",
        (pl.lit(None) if label is None else pl.col(label)).cast(pl.String).alias("label"),
        "text",
        pl.Series("marked", mark_words(store, rows[order])),
    )
    table = table.select("cluster", pl.int_range(1, pl.len() + 1).over("cluster").alias("rank"), pl.exclude("cluster"))
    key = pl.lit(word).alias("word"), pl.lit(number).alias("layer")
    tried = tried or {int(found.max()) + 1: _mean(values)}
    schema = {"n_clusters": pl.Int64, "silhouette": pl.Float64}
    return Clusters(
        word=word,
        layer=number,
        occurrences=table.select(*key, pl.all()),
        frame=_cluster_table(table).select(*key, pl.all()),
        tried=pl.DataFrame(list(tried.items()), schema=schema, orient="row"),
        vectors=vectors[order],
        silhouette=_mean(values),
        store=store,
        min_size=min_size if n_clusters is None else 1,
    )


def silhouettes(unit: NDArray[np.float64], clusters: NDArray[np.int64]) -> NDArray[np.float64]:
    """The exact silhouette of each unit vector [n, feature] by cosine distance, without forming pairs; float64 [n].

    (b - a) / max(a, b), with a the mean distance to the others of its cluster and b that to the nearest other cluster;
    0 for a cluster of one; NaN if there are fewer than two clusters.
    """
    n_clusters = int(clusters.max(initial=-1)) + 1
    if n_clusters < 2:
        return np.full(len(unit), np.nan)
    is_member = clusters[:, None] == np.arange(n_clusters)
    sizes = is_member.sum(0)
    sums = unit @ (is_member.T.astype(np.float64) @ unit).T
    n_others = np.maximum(sizes[clusters] - 1, 1)
    a = 1 - (sums[is_member] - np.square(unit).sum(1)) / n_others
    b = np.where(is_member, np.inf, 1 - sums / sizes).min(1)
    larger = np.maximum(a, b)
    value = np.divide(b - a, larger, out=np.zeros_like(a), where=larger > TIE)
    return np.where(sizes[clusters] == 1, 0.0, value)


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


def kmeans(unit: NDArray[np.float64], n_clusters: int, *, seed: int, restarts: int = N_RESTARTS) -> NDArray[np.int64]:
    """Return the cluster of each unit vector, int64 [n]; there are fewer clusters if fewer vectors are distinct."""
    try:
        from sklearn.cluster import KMeans
    except ImportError as error:
        raise MissingPackageError('senses needs scikit-learn: pip install "embstore[clusters]"') from error
    with warnings.catch_warnings(action="ignore"):  # ConvergenceWarning of equal vectors
        model = KMeans(n_clusters, n_init=restarts, random_state=seed)
        return np.unique(model.fit_predict(unit), return_inverse=True)[1].astype(np.int64)


def _largest_first(clusters: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number clusters by size, equal ones by their first member."""
    first, counts = np.unique(clusters, return_index=True, return_counts=True)[1:]
    return np.argsort(np.lexsort((first, -counts)))[clusters]


def _cluster_table(occurrences: pl.DataFrame) -> pl.DataFrame:
    """One row per cluster; of equally frequent labels the first is named."""
    label = pl.col("label").drop_nulls()
    return occurrences.group_by("cluster", maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("count"),
        (pl.len() / len(occurrences)).alias("share"),
        pl.col("silhouette").mean(),
        label.mode().sort().first().alias("label"),
        label.len().cast(pl.Int64).alias("n_labelled"),
        (label.unique_counts().max() / label.len()).alias("purity"),
    )


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
