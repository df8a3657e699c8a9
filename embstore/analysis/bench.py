"""How fast a store is read and searched here, beside numpy and faiss on the same layer in memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.analysis.neighbors.exact import StoreVectors, exact_search
from embstore.analysis.neighbors.space import Space
from embstore.errors import InvalidValueError
from embstore.store import Store, open_store

GATHERED_ROWS = (50, 1_000, 100_000)
ASKED_QUERIES = (1, 32, 1_000)
REST_S = 0.3


def bench_query(
    store: str | os.PathLike[str], *, layer: int | None = None, repeats: int = 7, seed: int = 0
) -> list[dict[str, Any]]:
    """Time opening, gathering and scanning one layer; one row a read: `read, rows, ms, beside, beside_ms, ratio`.

    `ms` is the median of the repeats, `beside_ms` that of numpy doing the same on the layer in memory (indexing
    for a gather, a copy for a scan), in turn with ours. Everything is warm but the first opening.
    """
    if repeats < 1:
        raise InvalidValueError(f"repeats {repeats} is not allowed: give 1 or more")
    opening = _median_ms(lambda: open_store(store), repeats)
    opened = open_store(store)
    chosen = opened.layers[-1] if layer is None else layer
    held = opened.gather(np.arange(opened.n_rows), chosen)
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = [
        {"read": "open", "rows": opened.n_rows, "ms": opening, "beside": "", "beside_ms": None, "ratio": None}
    ]
    for count in (count for count in GATHERED_ROWS if count <= opened.n_rows):
        wanted = [rng.integers(0, opened.n_rows, count) for _ in range(repeats)]
        ours = [_ms(lambda at=at: opened.gather(at, chosen)) for at in wanted]  # type: ignore[misc]
        theirs = [_ms(lambda at=at: held[at]) for at in wanted]  # type: ignore[misc]
        rows.append(_row("gather", count, median(ours), "numpy x[rows]", median(theirs)))
    copy = np.empty_like(held)
    copies = _median_ms(lambda: np.copyto(copy, held), repeats)
    rows.append(_row("scan", opened.n_rows, _median_ms(lambda: _scan(opened, chosen), repeats), "numpy copy", copies))
    return rows


def bench_neighbors(
    store: str | os.PathLike[str],
    *,
    layer: int | None = None,
    k: int = 10,
    queries: Sequence[int] = ASKED_QUERIES,
    repeats: int = 5,
    threads: int | None = None,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Time exact search by inner product; one row a number of queries: `queries, ms, beside, beside_ms, ratio`.

    `ms` is the median of the repeats. Beside it runs, in turn, a flat index of faiss over a float32 copy of the layer
    in memory, or a product in numpy where faiss is not installed. The queries are rows of the layer.
    """
    if repeats < 1:
        raise InvalidValueError(f"repeats {repeats} is not allowed: give 1 or more")
    if not queries or min(queries) < 1:
        raise InvalidValueError(f"queries {list(queries)} are not allowed: give numbers of 1 or more")
    opened = open_store(store)
    searched = StoreVectors(opened, opened.layers[-1] if layer is None else layer)
    copy = opened.gather(np.arange(opened.n_rows), searched.layer).astype(np.float32)
    beside, search_copy = _peer(copy, k)
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for count in queries:
        asked = copy[rng.integers(0, opened.n_rows, count)]
        ours = partial(exact_search, searched, asked, k=k, space=Space("ip"), threads=threads)
        theirs = partial(search_copy, asked)
        ours(), theirs()
        # Each rests before its turn: the threads of the one before spin on for a while.
        taken = [[_rested_ms(run) for run in (ours, theirs)] for _ in range(repeats)]
        ms, beside_ms = (median(column) for column in zip(*taken, strict=True))
        row = {"queries": count, "rows": opened.n_rows, "ms": ms, "beside": beside, "beside_ms": beside_ms}
        rows.append({**row, "ratio": ms / beside_ms})
    return rows


def _peer(copy: NDArray[np.float32], k: int) -> tuple[str, Callable[[NDArray[np.float32]], object]]:
    try:
        import faiss
    except ImportError:
        return "numpy x @ q, argpartition", lambda asked: np.argpartition(-(asked @ copy.T), min(k, len(copy)) - 1)
    index = faiss.IndexFlatIP(copy.shape[1])
    index.add(copy)
    return "faiss IndexFlatIP", lambda asked: index.search(asked, k)


def _rested_ms(action: Callable[[], object]) -> float:
    time.sleep(REST_S)
    return _ms(action)


def _row(read: str, rows: int, ms: float, beside: str, beside_ms: float) -> dict[str, Any]:
    return {"read": read, "rows": rows, "ms": ms, "beside": beside, "beside_ms": beside_ms, "ratio": ms / beside_ms}


def _scan(store: Store, layer: int) -> None:
    for _first, _vectors in store.scan(layer):
        pass


def _ms(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return 1e3 * (time.perf_counter() - start)


def _median_ms(action: Callable[[], object], repeats: int) -> float:
    return median(_ms(action) for _ in range(repeats))
