"""Hubness: vectors that are among the nearest neighbours of very many others, and vectors that are never found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.analysis.neighbors.exact import Exclusion, exact_search
from embstore.analysis.neighbors.space import MAX_SEED, ArrayVectors, Space, StoreVectors, Vectors, space_of
from embstore.analysis.scan import selected
from embstore.arguments import checked
from embstore.errors import InvalidValueError, check_whole
from embstore.progress import Counter, Progress, reporting
from embstore.store import Selection, Store
from embstore.store.layout import Layers
from embstore.vectors import WordVectors

QUERY_CHUNK = 2**14
SCHEMA = {
    "layer": pl.Int64,
    "space": pl.String,
    "metric": pl.String,
    "item": pl.String,
    "occurrence": pl.Int64,
    "value": pl.Float64,
    "count": pl.Int64,
    "baseline": pl.Float64,
    "adjusted": pl.Float64,
    "seed": pl.Int64,
}


@checked
def hubness(
    data: Store | Selection | WordVectors,
    *,
    layers: Layers = None,
    k: int = 10,
    metric: str = "cosine",
    centered: bool = False,
    n_components: int = 0,
    sample: int | None = None,
    seed: int = 0,
    top: int = 10,
    device: str = "auto",
    progress: Progress = None,
) -> pl.DataFrame:
    """Measure how unevenly vectors appear in the nearest-neighbour lists of others, by layer.

    N_k is the number of other vectors that have a vector among their k nearest. Columns: `layer, space, metric, item,
    occurrence, value, count, baseline, adjusted, seed`. The metrics `k_skewness` (Radovanovic et al. 2010, eq. 1: the
    third standardized moment of N_k) and `antihubs` (the share of vectors with N_k = 0) describe the `count` vectors of
    a layer; `k_occurrence` is the N_k of each of the `top` hubs, with its word (`item`), its row (`occurrence`) and
    the number of queries that could find it (`count`). `baseline` is the value for randomly drawn neighbours (binomial
    N_k), `adjusted` the difference; both are null if N_k does not vary. `space` is, for example, "cosine, centered".

    `data`: occurrences of a store, or static vectors (`layer` and `occurrence` are then null). `centered` subtracts the
    mean of these vectors, `n_components` also removes principal components. `sample`: only this many vectors, drawn
    with `seed`, are queries; N_k then has the noise of lower counts, as has the baseline. `progress(done, total)`
    counts queries times layers.

    Raises InvalidValueError (k of 0 or above the number of others, a layer that is not stored), MissingRowsError,
    NonFiniteError.
    """
    for name, value, least in (("k", k, 1), ("sample", sample, 1), ("top", top, 0)):
        if value is not None:
            check_whole(name, value, least)
    check_whole("seed", seed, 0, MAX_SEED)
    sources: list[tuple[int | None, Vectors, Any]]
    if isinstance(data, WordVectors):
        if layers is not None:
            raise InvalidValueError("static vectors have no layers: leave layers out")
        sources = [(None, ArrayVectors(data.vectors), data.vectors)]
        rows = np.arange(len(data))
    else:
        selection = selected(data, layers)
        sources = [(layer, StoreVectors(selection.store, layer), selection) for layer in selection.layers]
        rows = np.unique(selection.rows)
    if k >= len(rows):
        raise InvalidValueError(f"k {k} is more than the {len(rows) - 1} others that a vector has: give less")
    queries = rows
    if sample is not None and sample < len(rows):
        queries = np.sort(np.random.default_rng(seed).choice(rows, sample, replace=False))
    frames = []
    with reporting(progress, total=len(queries) * len(sources), unit="queries", label="hubness") as report:
        count = Counter(report)
        for layer, vectors, source in sources:
            space = space_of(source, layer, metric=metric, centered=centered, n_components=n_components)
            counts = k_occurrences(vectors, queries, k=k, space=space, rows=rows, device=device, progress=count.add)
            values = _values(data, layer, rows, counts, queries, k, top)
            frames.append(pl.DataFrame([(layer, space.name, *row, seed) for row in values], SCHEMA, orient="row"))
    return pl.concat(frames)


def k_occurrences(
    vectors: Vectors,
    queries: NDArray[np.int64],
    *,
    k: int,
    space: Space | None = None,
    rows: NDArray[np.int64] | None = None,
    device: str = "auto",
    progress: Callable[[int], object] | None = None,
) -> NDArray[np.int64]:
    """N_k: for how many of the `queries` (rows of the vectors) each of `rows` is among the k nearest others; int64 [n].

    `rows`: ascending, all by default. `progress` is called with the number of queries of each chunk.
    """
    rows = np.arange(vectors.count) if rows is None else rows
    own = np.arange(vectors.count)
    counts = np.zeros(vectors.count, np.int64)
    for start in range(0, len(queries), QUERY_CHUNK):
        part = queries[start : start + QUERY_CHUNK]
        exclude = [Exclusion(own, part)]
        found = exact_search(vectors, vectors.gather(part), k=k, space=space, rows=rows, exclude=exclude, device=device)
        counts += np.bincount(found.rows[found.rows >= 0], minlength=len(counts))
        if progress is not None:
            progress(len(part))
    return counts[rows]


def skewness(counts: NDArray[np.int64]) -> float | None:
    """The third standardized moment of counts, None if they do not vary."""
    deviations = counts - counts.mean()
    variance = float(np.square(deviations).mean())
    return float((deviations**3).mean() / variance**1.5) if variance > 0 else None


def _values(
    data: Store | Selection | WordVectors,
    layer: int | None,
    rows: NDArray[np.int64],
    counts: NDArray[np.int64],
    queries: NDArray[np.int64],
    k: int,
    top: int,
) -> Iterator[tuple[str, str, int | None, float | None, int, float | None, float | None]]:
    """Yield the columns metric to adjusted of a layer, `counts` being the N_k of its `rows`."""
    n_vectors = len(counts)
    chance = k / (n_vectors - 1)
    trials = len(queries) * (n_vectors - 1) / n_vectors  # per vector, without itself; the average if queries are drawn
    variance = trials * chance * (1 - chance)
    skewed = skewness(counts)
    if skewed is None or variance <= 0:
        yield "k_skewness", "", None, skewed, n_vectors, None, None
    else:
        baseline = (1 - 2 * chance) / variance**0.5
        yield "k_skewness", "", None, skewed, n_vectors, baseline, skewed - baseline
    share, baseline = float((counts == 0).mean()), (1 - chance) ** trials
    yield "antihubs", "", None, share, n_vectors, baseline, share - baseline
    is_query = np.isin(rows, queries)
    for number in np.argsort(-counts, kind="stable")[:top].tolist():
        row, n_possible = int(rows[number]), len(queries) - int(is_query[number])
        found, baseline = float(counts[number]), n_possible * chance
        occurrence = None if layer is None else row
        yield "k_occurrence", _word(data, row), occurrence, found, n_possible, baseline, found - baseline


def _word(data: Store | Selection | WordVectors, row: int) -> str:
    if isinstance(data, WordVectors):
        return data.words[row]
    index = (data if isinstance(data, Store) else data.store).index
    return index.words[int(index.type[row])]
