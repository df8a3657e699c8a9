"""The bench of reading: a row a read, positive times, and the reads it says it makes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore as es
from embstore.errors import InvalidValueError
from embstore.store import Store
from tests.store_making import make_store


@pytest.mark.parametrize("suffix", ["zarr", "h5"])
def test_a_row_for_each_read_that_the_store_is_large_enough_for(tmp_path: Path, suffix: str) -> None:
    made = make_store(tmp_path / f"store.{suffix}", sentences=300)
    assert made.store.n_rows > 1000
    rows = es.analysis.bench_query(made.store, repeats=2)
    assert [(row["read"], row["n_rows"]) for row in rows] == [
        ("open", made.store.n_rows),
        ("gather", 50),
        ("gather", 1000),
        ("scan", made.store.n_rows),
    ]
    assert all(row["ms"] > 0 for row in rows)
    for row in rows[1:]:
        assert row["ratio"] == pytest.approx(row["ms"] / row["peer_ms"])


def test_it_reads_the_layer_asked_for_and_rows_that_the_seed_fixes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_store(tmp_path / "store.zarr")
    asked: list[tuple[int, list[int]]] = []
    gather = Store.gather

    def watched(self: Store, rows: np.ndarray, layer: int, **options: object) -> np.ndarray:
        asked.append((layer, np.asarray(rows).tolist()))
        return gather(self, rows, layer, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "gather", watched)
    runs = []
    for seed in (0, 0, 1):
        asked.clear()
        es.analysis.bench_query(made.store, layer=2, repeats=3, seed=seed)
        assert {layer for layer, _ in asked} == {2}
        runs.append([rows for _, rows in asked if len(rows) == 50])
    assert len(runs[0]) == 3
    assert runs[0] == runs[1] != runs[2]
    asked.clear()
    es.analysis.bench_query(made.store, repeats=1)
    assert {layer for layer, _ in asked} == {made.store.layers[-1]}, "the last layer by default"


def test_search_is_compared_with_faiss_or_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_store(tmp_path / "store.zarr", sentences=60)
    monkeypatch.setattr("embstore.analysis.bench.REST_SECONDS", 0.0)
    for peer in ("faiss IndexFlatIP", "numpy x @ q, argpartition"):
        rows = es.analysis.bench_neighbors(made.store, layer=made.store.layers[0], k=3, queries=[1, 20], repeats=2)
        assert [(row["queries"], row["n_rows"], row["peer"]) for row in rows] == [
            (1, made.store.n_rows, peer),
            (20, made.store.n_rows, peer),
        ]
        assert all(row["ratio"] == pytest.approx(row["ms"] / row["peer_ms"]) for row in rows)
        monkeypatch.setitem(sys.modules, "faiss", None)


@pytest.mark.parametrize("options", [{"queries": [0]}, {"queries": []}, {"repeats": 0}, {"layer": 9}, {"k": 0}])
def test_bad_options_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    made = make_store(tmp_path / "store.zarr", sentences=5)
    benches = (es.analysis.bench_query, es.analysis.bench_neighbors)
    for bench in benches if options.keys() <= {"repeats", "layer"} else benches[1:]:
        with pytest.raises(InvalidValueError, match=r"not allowed|is not stored"):
            bench(made.store, **options)
