"""Counts of nearest neighbours against loops over all pairs, and their baselines against the binomial itself."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from embstore.analysis.neighbors.hubness import hubness, k_occurrences, skewness
from embstore.analysis.neighbors.space import ArrayVectors, Space
from embstore.errors import InvalidValueError
from embstore.vectors import WordVectors
from tests.store_making import Made, make_store


@pytest.fixture(scope="module", params=["zarr", "h5"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_store(tmp_path_factory.mktemp("hubness") / f"store.{request.param}", sentences=32)


def score(one: np.ndarray, other: np.ndarray, metric: str) -> float:
    """More is nearer."""
    if metric == "l2":
        return -math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(one, other, strict=True)))
    product = math.fsum(a * b for a, b in zip(one, other, strict=True))
    if metric == "ip":
        return product
    lengths = math.sqrt(math.fsum(a * a for a in one)) * math.sqrt(math.fsum(b * b for b in other))
    return product / lengths if lengths else 0.0


def counts_by_hand(vectors: np.ndarray, queries: list[int], k: int, metric: str) -> list[int]:
    held = vectors.astype(np.float64).tolist()
    times = [0] * len(held)
    for query in queries:
        others = [row for row in range(len(held)) if row != query]
        others.sort(key=lambda row: (-score(held[query], held[row], metric), row))
        for row in others[:k]:
            times[row] += 1
    return times


def awkward(seed: int, count: int = 70) -> np.ndarray:
    """Vectors of all lengths about a common mean, with equal ones and zeros among them."""
    rng = np.random.default_rng(seed)
    vectors = (rng.normal(size=(count, 5)) + np.array([3, 0, 0, 0, 0])) * 2.0 ** rng.integers(-4, 5, (count, 1))
    vectors[10:16] = vectors[10]
    vectors[20:23] = 2 * vectors[20]
    vectors[30:32] = 0
    return vectors.astype(np.float32)


@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
@pytest.mark.parametrize("k", [1, 4, 69])
def test_counts_are_those_of_all_pairs(metric: str, k: int) -> None:
    vectors = awkward(k)
    found = k_occurrences(ArrayVectors(vectors), np.arange(70), k=k, space=Space(metric))
    assert found.tolist() == counts_by_hand(vectors, list(range(70)), k, metric)


def test_counts_of_some_queries_among_some_rows() -> None:
    vectors = awkward(7)
    rows = np.arange(5, 65)
    queries = np.array([6, 11, 12, 31, 40])
    found = k_occurrences(ArrayVectors(vectors), queries, k=3, rows=rows)
    expected = counts_by_hand(vectors[rows], [int(query) - 5 for query in queries], 3, "cosine")
    assert found.tolist() == expected
    assert found.sum() == 15


def moments_by_hand(times: list[int]) -> float:
    mean = math.fsum(times) / len(times)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in times) / len(times))
    return math.fsum((value - mean) ** 3 for value in times) / len(times) / spread**3


def listed(frame: pl.DataFrame, metric: str, layer: int | None) -> list[dict[str, object]]:
    part = frame.filter(pl.col("metric") == metric)
    return part.filter(pl.col("layer").is_null() if layer is None else pl.col("layer") == layer).to_dicts()


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.quick(2)
def test_figures_of_each_layer(center: bool, made: Made) -> None:
    frame = hubness(made.store, k=5, centered=center, top=3)
    assert frame["space"].unique().to_list() == ["cosine, centered" if center else "cosine"]
    for place, layer in enumerate(made.store.layers):
        vectors = made.vectors[place].astype(np.float64)
        vectors = vectors - vectors.mean(0) if center else vectors
        times = counts_by_hand(vectors, list(range(len(vectors))), 5, "cosine")
        [skewed], [lonely] = listed(frame, "k_skewness", layer), listed(frame, "antihubs", layer)
        assert (skewed["count"], skewed["value"]) == (len(times), pytest.approx(moments_by_hand(times)))
        assert lonely["value"] == pytest.approx(times.count(0) / len(times))
        hubs = listed(frame, "k_occurrence", layer)
        greatest = sorted(range(len(times)), key=lambda row: (-times[row], row))[:3]
        assert [(row["occurrence"], row["value"]) for row in hubs] == [(row, times[row]) for row in greatest]
        assert [row["item"] for row in hubs] == [made.table[row]["word"] for row in greatest]


def test_baselines_are_those_of_the_binomial(made: Made) -> None:
    frame = hubness(made.store, layers=2, k=4, top=1)
    [skewed], [lonely] = listed(frame, "k_skewness", 2), listed(frame, "antihubs", 2)
    n = len(made.table)
    p = 4 / (n - 1)
    chances = [math.comb(n - 1, times) * p**times * (1 - p) ** (n - 1 - times) for times in range(n)]
    mean = math.fsum(times * chance for times, chance in enumerate(chances))
    spread = math.fsum((times - mean) ** 2 * chance for times, chance in enumerate(chances))
    third = math.fsum((times - mean) ** 3 * chance for times, chance in enumerate(chances))
    assert mean == pytest.approx(4)
    assert skewed["baseline"] == pytest.approx(third / spread**1.5)
    assert lonely["baseline"] == pytest.approx(chances[0])
    assert skewed["adjusted"] == pytest.approx(skewed["value"] - skewed["baseline"])  # type: ignore[operator]
    [hub] = listed(frame, "k_occurrence", 2)
    assert (hub["count"], hub["baseline"]) == (n - 1, pytest.approx(4))


def test_vectors_drawn_at_random_are_near_the_baseline() -> None:
    """In two dimensions there are no hubs: skewness is that of noise."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(600, 2)).astype(np.float32)
    frame = hubness(WordVectors(tuple(f"w{n}" for n in range(600)), vectors), metric="l2", k=8, top=0)
    [skewed] = listed(frame, "k_skewness", None)
    assert abs(skewed["adjusted"]) < 0.7  # type: ignore[arg-type]
    many = rng.normal(size=(600, 200)).astype(np.float32)
    [curse] = listed(
        hubness(WordVectors(tuple(f"w{n}" for n in range(600)), many), metric="l2", k=8), "k_skewness", None
    )
    assert curse["adjusted"] > 2  # type: ignore[operator]


def test_a_sample_asks_among_all(made: Made) -> None:
    frame = hubness(made.store, layers=2, k=4, sample=30, seed=5, top=len(made.table))
    again = hubness(made.store, layers=2, k=4, sample=30, seed=5, top=len(made.table))
    assert frame.equals(again)
    counts = pl.Series([row["value"] for row in listed(frame, "k_occurrence", 2)])
    assert len(counts) == len(made.table)
    assert counts.sum() == 30 * 4
    queries = np.sort(np.random.default_rng(5).choice(len(made.table), 30, replace=False)).tolist()
    expected = counts_by_hand(made.vectors[1], queries, 4, "cosine")
    assert {row["occurrence"]: row["value"] for row in listed(frame, "k_occurrence", 2)} == dict(enumerate(expected))
    could = {row["occurrence"]: row["count"] for row in listed(frame, "k_occurrence", 2)}
    assert all(could[row] == 30 - (row in queries) for row in range(len(made.table)))


def test_of_a_selection_only_its_occurrences(made: Made) -> None:
    chosen = made.store.select(words=["bank", "suit"], layers=5)
    frame = hubness(chosen, k=3, centered=True, n_components=1, top=100)
    rows = chosen.rows
    vectors = made.vectors[2][rows].astype(np.float64)
    centered = vectors - vectors.mean(0)
    top = np.linalg.svd(centered)[2][:1]
    times = counts_by_hand(centered - centered @ top.T @ top, list(range(len(rows))), 3, "cosine")
    assert frame["space"].unique().to_list() == ["cosine, 1 component out"]
    found = {row["occurrence"]: row["value"] for row in listed(frame, "k_occurrence", 5)}
    assert found == dict(zip(rows.tolist(), times, strict=True))


def test_static_vectors_have_words_for_items() -> None:
    vectors = awkward(3)
    words = tuple(f"word{n}" for n in range(70))
    frame = hubness(WordVectors(words, vectors), k=6, centered=True, n_components=2, top=70)
    centered = vectors.astype(np.float64) - vectors.astype(np.float64).mean(0)
    top = np.linalg.svd(centered)[2][:2]
    times = counts_by_hand(centered - centered @ top.T @ top, list(range(70)), 6, "cosine")
    assert {row["item"]: row["value"] for row in listed(frame, "k_occurrence", None)} == dict(
        zip(words, times, strict=True)
    )
    assert frame["occurrence"].null_count() == frame["layer"].null_count() == len(frame)


def test_counts_that_do_not_vary_have_no_skewness() -> None:
    assert skewness(np.array([3, 3, 3])) is None
    frame = hubness(WordVectors(("a", "b", "c"), np.eye(3, dtype=np.float32)), k=2)
    [skewed] = listed(frame, "k_skewness", None)
    assert (skewed["value"], skewed["baseline"], skewed["adjusted"]) == (None, None, None)
    [lonely] = listed(frame, "antihubs", None)
    assert (lonely["value"], lonely["baseline"]) == (0, 0)


def test_progress_counts_queries_of_layers(made: Made) -> None:
    heard: list[tuple[int, int | None]] = []
    hubness(made.store, k=2, layers=[0, 5], sample=10, progress=lambda *step: heard.append(step))
    assert heard == [(10, 20), (20, 20)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k 0 is not allowed"),
        ({"k": 5000}, "k 5000 is more than the [0-9]+ others"),
        ({"sample": 0}, "sample 0 is not allowed"),
        ({"top": -1}, "top -1 is not allowed"),
        ({"metric": "manhattan"}, "unknown metric 'manhattan'"),
        ({"layers": 3}, "layer 3 is not stored"),
        ({"n_components": 6}, "n_components 6 is not allowed"),
    ],
)
def test_bad_input_is_one_line(options: dict[str, object], message: str, made: Made) -> None:
    with pytest.raises(InvalidValueError, match=message):
        hubness(made.store, **options)  # type: ignore[arg-type]


def test_static_vectors_have_no_layers() -> None:
    with pytest.raises(InvalidValueError, match="have no layers"):
        hubness(WordVectors(("a", "b"), np.eye(2, dtype=np.float32)), k=1, layers=0)


def test_a_store_of_one_row(tmp_path: Path) -> None:
    from tests.analysis.word_store import write_senses

    with pytest.raises(InvalidValueError, match="k 1 is more than the 0 others"):
        hubness(write_senses(tmp_path / "store.zarr", [("bank", None, [1.0, 0.0])]), k=1)
