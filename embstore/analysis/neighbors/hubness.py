"""Hubs: vectors that are among the nearest of very many others, and those that are among the nearest of none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.analysis.neighbors.exact import ArrayVectors, Exclusion, StoreVectors, Vectors, exact_search
from embstore.analysis.neighbors.occurrences import array_space
from embstore.analysis.neighbors.space import Space, space_of
from embstore.analysis.scan import selected
from embstore.errors import InvalidValueError
from embstore.store import Selection, Store
from embstore.vectors import WordVectors

QUERIES_AT_ONCE = 2**14
SCHEMA = {
    "metric": pl.String,
    "layer": pl.Int64,
    "space": pl.String,
    "item": pl.String,
    "occurrence": pl.Int64,
    "count": pl.Int64,
    "value": pl.Float64,
    "baseline": pl.Float64,
    "adjusted": pl.Float64,
}


@dataclass(frozen=True, eq=False)
class _Searched:
    """Vectors of one layer or table: `rows` int64 [n] of them, ascending, in a space, and what to call each."""

    vectors: Vectors
    rows: NDArray[np.int64]
    space: Space
    layer: int | None


def hubness(
    source: Store | Selection | WordVectors,
    *,
    layers: int | Sequence[int] | None = None,
    k: int = 10,
    metric: str = "cosine",
    center: bool = False,
    components: int = 0,
    sample: int | None = None,
    seed: int = 0,
    top: int = 10,
    device: str = "cpu",
    progress: Callable[[int], object] | None = None,
) -> pl.DataFrame:
    """How unevenly vectors are the neighbours of others: N_k of each, how often it is among the k nearest of another.

    One row a figure, layer by layer: `metric, layer, space, item, occurrence, count, value, baseline, adjusted`.
    `k_skewness` (Radovanovic et al. 2010, eq. 1: the third standardised moment of N_k) and `antihubs` (the share of
    vectors whose N_k is 0) are of a layer's `count` vectors; `k_occurrence` is the N_k of each of the `top` hubs, its
    `count` the queries that could have had it, `item` its word and `occurrence` its row of the store. `baseline` is
    what neighbours drawn by lot would give (N_k binomial), `adjusted` the difference. Both are null for N_k that do not
    vary. `space` says what was compared: "cosine", "cosine, centered", "cosine, 2 components out".

    `source`: occurrences of a store, or static vectors (`layer` and `occurrence` are null then). `center` and
    `components` take the mean, and so many principal components too, of these vectors. `sample`: as many of them, drawn
    with the `seed`, ask for neighbours among all; N_k has the noise of fewer counts then, as the baseline says.
    `progress`: is told how many queries of how many layers are done, of `layers * min(sample, n)`.

    Raises InvalidValueError (k of 0 or beyond the others, a layer not stored), MissingRowsError, NonFiniteError.
    """
    _check(k, sample, top)
    frames = []
    done = 0

    def advance(queries: int) -> None:
        nonlocal done
        done += queries
        if progress is not None:
            progress(done)

    for searched in _each(source, layers, metric, center, components):
        count = len(searched.rows)
        if k >= count:
            raise InvalidValueError(f"k {k} is more than the {count - 1} others that a vector has: give less")
        queries = searched.rows
        if sample is not None and sample < count:
            queries = np.sort(np.random.default_rng(seed).choice(queries, sample, replace=False))
        times = k_occurrences(searched.vectors, queries, k=k, space=searched.space, rows=searched.rows, device=device,
                              progress=advance)  # fmt: skip
        frames.append(_table(source, searched, times, queries, k, top))
    return pl.concat(frames)


def k_occurrences(
    vectors: Vectors,
    queries: NDArray[np.int64],
    *,
    k: int,
    space: Space | None = None,
    rows: NDArray[np.int64] | None = None,
    device: str = "cpu",
    progress: Callable[[int], object] | None = None,
) -> NDArray[np.int64]:
    """N_k: for how many of the `queries` (rows of the vectors) each of `rows` is among the k nearest others; int64 [n].

    `rows`: ascending, all by default. `progress`: is told how many queries more are done.
    """
    rows = np.arange(vectors.count) if rows is None else rows
    itself = np.arange(vectors.count)
    times = np.zeros(vectors.count, np.int64)
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        part = queries[start : start + QUERIES_AT_ONCE]
        found = exact_search(
            vectors, vectors.gather(part), k=k, space=space, rows=rows, exclude=[Exclusion(itself, part)], device=device
        )
        times += np.bincount(found.rows[found.rows >= 0], minlength=len(times))
        if progress is not None:
            progress(len(part))
    return times[rows]


def skewness(times: NDArray[np.int64]) -> float | None:
    """The third standardised moment of counts, None where they do not vary."""
    apart = times - times.mean()
    spread = float(np.square(apart).mean())
    return float((apart**3).mean() / spread**1.5) if spread > 0 else None


def _check(k: int, sample: int | None, top: int) -> None:
    if k < 1:
        raise InvalidValueError(f"k {k} is not allowed: give 1 or more")
    if sample is not None and sample < 1:
        raise InvalidValueError(f"sample {sample} is not allowed: give 1 or more")
    if top < 0:
        raise InvalidValueError(f"top {top} is not allowed: give 0 or more")


def _each(
    source: Store | Selection | WordVectors,
    layers: int | Sequence[int] | None,
    metric: str,
    center: bool,
    components: int,
) -> list[_Searched]:
    if isinstance(source, WordVectors):
        if layers is not None:
            raise InvalidValueError("static vectors have no layers: leave layers out")
        space = array_space(source.vectors, metric=metric, center=center, components=components)
        return [_Searched(ArrayVectors(source.vectors), np.arange(len(source)), space, None)]
    selection = selected(source, layers)
    rows = np.unique(selection.rows)
    return [
        _Searched(
            StoreVectors(selection.store, layer),
            rows,
            space_of(selection, layer, metric=metric, center=center, components=components),
            layer,
        )
        for layer in selection.layers
    ]


def _table(
    source: Store | Selection | WordVectors,
    searched: _Searched,
    times: NDArray[np.int64],
    queries: NDArray[np.int64],
    k: int,
    top: int,
) -> pl.DataFrame:
    count = len(times)
    by_lot = k / (count - 1)
    trials = len(queries) * (count - 1) / count  # of each vector, itself left out; on average where some are drawn
    spread = trials * by_lot * (1 - by_lot)
    skewed = skewness(times)
    chance = (1 - 2 * by_lot) / spread**0.5 if spread > 0 and skewed is not None else None
    rows: list[tuple[str, str, int | None, int, float | None, float | None]] = [
        ("k_skewness", "", None, count, skewed, chance),
        ("antihubs", "", None, count, float((times == 0).mean()), (1 - by_lot) ** trials),
    ]
    asked = np.isin(searched.rows, queries)
    for place in np.argsort(-times, kind="stable")[:top].tolist():
        row = int(searched.rows[place])
        item = source.words[row] if isinstance(source, WordVectors) else _word(source, row)
        could = len(queries) - int(asked[place])
        rows.append(
            (
                "k_occurrence",
                item,
                None if searched.layer is None else row,
                could,
                float(times[place]),
                could * by_lot,
            )
        )
    space = space_name(searched.space)
    told = [
        (metric, searched.layer, space, item, row, of, value, baseline, _less(value, baseline))
        for metric, item, row, of, value, baseline in rows
    ]
    return pl.DataFrame(told, schema=SCHEMA, orient="row")


def _word(source: Store | Selection, row: int) -> str:
    index = (source if isinstance(source, Store) else source.store).index
    return index.words[int(index.type[row])]


def space_name(space: Space) -> str:
    """A space in words: "cosine", "cosine, centered", "cosine, 2 components out"."""
    if space.components is not None:
        components = len(space.components)
        return f"{space.metric}, {components} component{'s' if components > 1 else ''} out"
    return space.metric if space.mean is None else f"{space.metric}, centered"


def _less(value: float | None, baseline: float | None) -> float | None:
    return None if value is None or baseline is None else value - baseline
