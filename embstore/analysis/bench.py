"""The speed of reading and searching a store on this machine, compared with NumPy and faiss on arrays in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embstore.analysis.neighbors.exact import Exclusion, Hits, exact_search
from embstore.analysis.neighbors.index import LayerIndex
from embstore.analysis.neighbors.space import Space, StoreVectors
from embstore.analysis.scan import require_store
from embstore.errors import InvalidValueError, check_whole, quoted
from embstore.store import Store, open_store

if TYPE_CHECKING:
    import polars as pl

GATHERED_ROWS = (50, 1_000, 100_000)
N_QUERIES = (1, 32, 1_000)
REST_SECONDS = 0.3
MAX_REPEATS, MAX_QUERIES = 10_000, 10**7
EFFORTS = (0.25, 0.5, 1, 2, 4)  # of the default effort of an index
_EQUAL = 1e-12  # scores that differ by less are equal up to rounding


def bench_query(data: Store, *, layer: int | str = -1, repeats: int = 7, seed: int = 0) -> list[dict[str, Any]]:
    """Time opening, gathering and scanning one layer; one row per operation: `read, n_rows, ms, peer, peer_ms, ratio`.

    `ms` is the median of the repeats, `peer_ms` that of NumPy doing the same on the layer in memory (indexing for a
    gather, a copy for a scan). All but the first opening is in the page cache.
    """
    require_store(data)
    check_whole("repeats", repeats, 1, MAX_REPEATS)
    check_whole("seed", seed, 0)
    vectors = StoreVectors(data, layer)
    opening = median(_ms(lambda: open_store(data.path)) for _ in range(repeats))
    copy = np.array(data.gather(np.arange(data.n_rows), vectors.layer))
    rng = np.random.default_rng(seed)
    rows = [{"read": "open", "n_rows": data.n_rows, "ms": opening, "peer": "", "peer_ms": None, "ratio": None}]
    for n_rows in (n_rows for n_rows in GATHERED_ROWS if n_rows <= data.n_rows):
        drawn = [rng.integers(0, data.n_rows, n_rows) for _ in range(repeats)]
        ours = median(_ms(partial(vectors.gather, part)) for part in drawn)
        theirs = median(_ms(partial(copy.__getitem__, part)) for part in drawn)
        rows.append(_row("gather", n_rows, ours, "numpy x[rows]", theirs))
    target = np.empty_like(copy)
    theirs = median(_ms(lambda: np.copyto(target, copy)) for _ in range(repeats))
    ours = median(_ms(lambda: [None for _ in data.scan(vectors.layer)]) for _ in range(repeats))
    return [*rows, _row("scan", data.n_rows, ours, "numpy copy", theirs)]


def bench_neighbors(
    data: Store,
    *,
    layer: int | str = -1,
    k: int = 10,
    queries: Sequence[int] = N_QUERIES,
    repeats: int = 5,
    threads: int | None = None,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Time exact search by inner product; one row per number of queries: `queries, n_rows, ms, peer, peer_ms, ratio`.

    `ms` is the median of the repeats. The peer is a flat index of faiss over a float32 copy of the layer in memory, or
    a product in NumPy if faiss is not installed; both run in turn. The queries are rows of the layer.
    """
    require_store(data)
    check_whole("repeats", repeats, 1, MAX_REPEATS)
    check_whole("k", k, 1, data.n_rows)
    check_whole("seed", seed, 0)
    if not isinstance(queries, Sequence) or not len(queries):
        raise InvalidValueError(f"queries {quoted(queries)} are not allowed: give one number or more")
    for n_queries in queries:
        check_whole("queries", n_queries, 1, MAX_QUERIES)
    vectors = StoreVectors(data, layer)
    copy = data.gather(np.arange(data.n_rows), vectors.layer).astype(np.float32)
    peer, search_copy = _peer(copy, k)
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for n_queries in queries:
        drawn = copy[rng.integers(0, data.n_rows, n_queries)]
        ours = partial(exact_search, vectors, drawn, k=k, space=Space("ip"), device="cpu", threads=threads)
        theirs = partial(search_copy, drawn)
        ours(), theirs()
        taken = []
        for _ in range(repeats):
            for run in (ours, theirs):
                time.sleep(REST_SECONDS)  # threads of the previous library keep spinning for a while
                taken.append(_ms(run))
        ms, peer_ms = median(taken[::2]), median(taken[1::2])
        row = {"queries": n_queries, "n_rows": data.n_rows, "ms": ms, "peer": peer, "peer_ms": peer_ms}
        rows.append({**row, "ratio": ms / peer_ms})
    return rows


def _peer(copy: NDArray[np.float32], k: int) -> tuple[str, Callable[[NDArray[np.float32]], object]]:
    try:
        import faiss
    except ImportError:
        return "numpy x @ q, argpartition", lambda queries: np.argpartition(-(queries @ copy.T), min(k, len(copy)) - 1)
    index = faiss.IndexFlatIP(copy.shape[1])
    index.add(copy)
    return "faiss IndexFlatIP", lambda queries: index.search(queries, k)


def _row(read: str, n_rows: int, ms: float, peer: str, peer_ms: float) -> dict[str, Any]:
    return {"read": read, "n_rows": n_rows, "ms": ms, "peer": peer, "peer_ms": peer_ms, "ratio": ms / peer_ms}


def _ms(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return 1e3 * (time.perf_counter() - start)


def measure_recall(
    data: Store,
    index: LayerIndex,
    *,
    k: int = 10,
    queries: int = 1000,
    seed: int = 0,
    nprobe: Sequence[int] | None = None,
    ef: Sequence[int] | None = None,
    threads: int | None = None,
) -> pl.DataFrame:
    """Compare an index with exact search over the same vectors: `setting, recall, queries_per_second, k`.

    The queries are occurrences drawn with `seed`, which do not find themselves. `recall` is the mean share of the k
    nearest that are found; a row as near as the k-th counts. `nprobe`, `ef`: the settings to try (by default a quarter
    of the index's own to four times it). The last row is exact search. Raises InvalidValueError.
    """
    import polars as pl

    if k < 1 or queries < 1:
        raise InvalidValueError(f"k {k} and queries {queries} must be 1 or more each")
    if data.n_rows < 2:
        raise InvalidValueError(f"{data.path} has a single row: there is nothing to find")
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.choice(data.n_rows, min(queries, data.n_rows), replace=False)).astype(np.int64)
    drawn = data.gather(rows, index.layer)
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
