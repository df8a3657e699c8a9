"""Hubness: vectors that are among the nearest neighbours of very many others, and vectors that are never found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.analysis.neighbors.exact import Exclusion, exact_search
from embstore.analysis.neighbors.space import ArrayVectors, Space, StoreVectors, Vectors, space_of
from embstore.analysis.scan import Counter, selected
from embstore.errors import InvalidValueError
from embstore.progress import Progress, reporting
from embstore.store import Selection, Store
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


@dataclass(frozen=True, eq=False)
class _Layer:
    """The vectors of one layer, or of a table of word vectors: their `rows` int64 [n], ascending, and the space."""

    vectors: Vectors
    rows: NDArray[np.int64]
    space: Space
    layer: int | None


def hubness(
    data: Store | Selection | WordVectors,
    *,
    layers: int | str | Sequence[int] | None = None,
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
        if value is not None and value < least:
            raise InvalidValueError(f"{name} {value} is not allowed: give {least} or more")
    is_table = isinstance(data, WordVectors)
    n_layers = 1 if isinstance(data, WordVectors) else len(selected(data, layers).layers)
    n_vectors = len(data) if isinstance(data, WordVectors) else len(np.unique(selected(data, layers).rows))
    if is_table and layers is not None:
        raise InvalidValueError("static vectors have no layers: leave layers out")
    if k >= n_vectors:
        raise InvalidValueError(f"k {k} is more than the {n_vectors - 1} others that a vector has: give less")
    n_queries = n_vectors if sample is None else min(sample, n_vectors)
    frames = []
    with reporting(progress, total=n_queries * n_layers, unit="queries", label="hubness") as report:
        count = Counter(report)
        for each in _iter_layers(data, layers, metric, centered, n_components):
            queries = each.rows
            if n_queries < n_vectors:
                queries = np.sort(np.random.default_rng(seed).choice(queries, n_queries, replace=False))
            counts = k_occurrences(
                each.vectors, queries, k=k, space=each.space, rows=each.rows, device=device, progress=count.add
            )
            frames.append(_table(data, each, counts, queries, k, top, seed))
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


def _iter_layers(
    data: Store | Selection | WordVectors,
    layers: int | str | Sequence[int] | None,
    metric: str,
    centered: bool,
    n_components: int,
) -> Iterator[_Layer]:
    if isinstance(data, WordVectors):
        space = space_of(data.vectors, metric=metric, centered=centered, n_components=n_components)
        yield _Layer(ArrayVectors(data.vectors), np.arange(len(data)), space, None)
        return
    selection = selected(data, layers)
    rows = np.unique(selection.rows)
    for layer in selection.layers:
        space = space_of(selection, layer, metric=metric, centered=centered, n_components=n_components)
        yield _Layer(StoreVectors(selection.store, layer), rows, space, layer)


def _table(
    data: Store | Selection | WordVectors,
    each: _Layer,
    counts: NDArray[np.int64],
    queries: NDArray[np.int64],
    k: int,
    top: int,
    seed: int,
) -> pl.DataFrame:
    n_vectors = len(counts)
    chance = k / (n_vectors - 1)
    trials = len(queries) * (n_vectors - 1) / n_vectors  # per vector, without itself; the average if queries are drawn
    variance = trials * chance * (1 - chance)
    skewed = skewness(counts)
    random_skewness = (1 - 2 * chance) / variance**0.5 if variance > 0 and skewed is not None else None
    rows: list[tuple[str, str, int | None, float | None, int, float | None]] = [
        ("k_skewness", "", None, skewed, n_vectors, random_skewness),
        ("antihubs", "", None, float((counts == 0).mean()), n_vectors, (1 - chance) ** trials),
    ]
    is_query = np.isin(each.rows, queries)
    for number in np.argsort(-counts, kind="stable")[:top].tolist():
        row = int(each.rows[number])
        n_possible = len(queries) - int(is_query[number])
        occurrence = None if each.layer is None else row
        rows.append(
            ("k_occurrence", _word(data, row), occurrence, float(counts[number]), n_possible, n_possible * chance)
        )
    frame = [
        (
            each.layer,
            each.space.name,
            *row,
            None if row[3] is None or row[5] is None else row[3] - row[5],
            seed,
        )
        for row in rows
    ]
    return pl.DataFrame(frame, schema=SCHEMA, orient="row")


def _word(data: Store | Selection | WordVectors, row: int) -> str:
    if isinstance(data, WordVectors):
        return data.words[row]
    index = (data if isinstance(data, Store) else data.store).index
    return index.words[int(index.type[row])]
