"""How fast a store is read here, beside numpy on the same layer in memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from embstore.errors import InvalidValueError
from embstore.store import Store, open_store

GATHERED_ROWS = (50, 1_000, 100_000)


def bench_query(
    store: str | Path, *, layer: int | None = None, repeats: int = 7, seed: int = 0
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
    held = opened.gather(np.arange(opened.rows), chosen)
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = [
        {"read": "open", "rows": opened.rows, "ms": opening, "beside": "", "beside_ms": None, "ratio": None}
    ]
    for count in (count for count in GATHERED_ROWS if count <= opened.rows):
        wanted = [rng.integers(0, opened.rows, count) for _ in range(repeats)]
        ours = [_ms(lambda at=at: opened.gather(at, chosen)) for at in wanted]  # type: ignore[misc]
        theirs = [_ms(lambda at=at: held[at]) for at in wanted]  # type: ignore[misc]
        rows.append(_row("gather", count, median(ours), "numpy x[rows]", median(theirs)))
    copy = np.empty_like(held)
    copies = _median_ms(lambda: np.copyto(copy, held), repeats)
    rows.append(_row("scan", opened.rows, _median_ms(lambda: _scan(opened, chosen), repeats), "numpy copy", copies))
    return rows


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
