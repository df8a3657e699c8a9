"""The recall and the speed of an index compared with exact search."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embstore.analysis.neighbors.exact import Exclusion, Hits, exact_search
from embstore.analysis.neighbors.index import LayerIndex
from embstore.analysis.neighbors.space import MAX_SEED
from embstore.arguments import checked
from embstore.errors import InvalidValueError, check_whole

if TYPE_CHECKING:
    import polars as pl

EFFORTS = (0.25, 0.5, 1, 2, 4)  # of the default effort of an index
_EQUAL = 1e-12  # scores that differ by less are equal up to rounding


@checked
def measure_recall(
    index: LayerIndex,
    *,
    k: int = 10,
    n_queries: int = 1000,
    seed: int = 0,
    nprobe: Sequence[int] | None = None,
    ef: Sequence[int] | None = None,
    threads: int | None = None,
) -> pl.DataFrame:
    """Compare an index with exact search over the same vectors: `setting, recall, queries_per_second, k`.

    The queries are `n_queries` occurrences drawn with `seed`, which do not find themselves. `recall` is the mean share
    of the k nearest that are found; a row as near as the k-th counts. `nprobe`, `ef`: the settings to try (by default a
    quarter of the index's own to four times it). The last row is exact search.

    Raises InvalidValueError for settings that the index has not, and for a store of a single row.
    """
    import polars as pl

    check_whole("k", k, 1)
    check_whole("n_queries", n_queries, 1)
    check_whole("seed", seed, 0, MAX_SEED)
    data = index.store
    if data.n_rows < 2:
        raise InvalidValueError(f"{data.path} has a single row: there is nothing to find")
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.choice(data.n_rows, min(n_queries, data.n_rows), replace=False)).astype(np.int64)
    drawn = data.vectors(rows, layers=index.layer)[0]
    options: dict[str, Any] = {"k": min(k, data.n_rows - 1), "threads": threads}
    options["exclude"] = (Exclusion(np.arange(data.n_rows), rows),)
    exact_search(index.vectors, drawn[:1], k=1, space=index.space, device="cpu")  # maps the files
    began = time.perf_counter()
    exact = exact_search(index.vectors, drawn, space=index.space, device="cpu", **options)
    exact_seconds = time.perf_counter() - began
    found = []
    for setting in _settings(index, nprobe, ef):
        index.search(drawn[:1], k=1, **setting)
        began = time.perf_counter()
        hits = index.search(drawn, **options, **setting)
        seconds = time.perf_counter() - began
        name = ", ".join(f"{option}={value}" for option, value in setting.items()) or index.kind
        found.append((name, recall_of(hits, exact, ascending=index.space.ascending), len(rows) / seconds))
    found.append(("exact search", 1.0, len(rows) / exact_seconds))
    columns = ["setting", "recall", "queries_per_second", "k"]
    return pl.DataFrame([(*row, options["k"]) for row in found], schema=columns, orient="row")


def recall_of(hits: Hits, exact: Hits, *, ascending: bool) -> float:
    """The mean share of the exact hits that were found, or replaced by rows no farther than the last of them."""
    is_hit = exact.rows >= 0
    worst = np.where(is_hit, exact.scores, -np.inf if ascending else np.inf)
    limit = worst.max(1) if ascending else worst.min(1)
    margin = _EQUAL * np.maximum(1, np.abs(limit))
    near = hits.scores <= (limit + margin)[:, None] if ascending else hits.scores >= (limit - margin)[:, None]
    n_found: NDArray[np.int64] = np.minimum((near & (hits.rows >= 0)).sum(1), is_hit.sum(1))
    return float((n_found / is_hit.sum(1)).mean())


def _settings(index: LayerIndex, nprobe: Sequence[int] | None, ef: Sequence[int] | None) -> list[dict[str, Any]]:
    """The settings of the index to measure."""
    own = index.info.parameters
    if nprobe is not None or ef is not None:
        settings = [{"nprobe": value} for value in nprobe or ()] + [{"ef": value} for value in ef or ()]
        if not settings:
            raise InvalidValueError("no setting is given: give one value of nprobe or ef, or leave them out")
        return settings
    option = "nprobe" if "nprobe" in own else "ef" if "ef" in own else ""
    if not option:
        return [{}]
    most = own.get("nlist", 2**20)
    values = sorted({min(most, max(1, round(own[option] * effort))) for effort in EFFORTS})
    return [{option: value} for value in values]
