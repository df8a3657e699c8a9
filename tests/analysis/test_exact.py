"""Exact search equals brute force in float64: any metric, ties, filters, both backends, either way of computing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import embstore as es
from embstore.analysis.neighbors import exact
from embstore.analysis.neighbors.exact import Exclusion, Hits, Search, _gpu_candidates, exact_search
from embstore.analysis.neighbors.space import METRICS, ArrayVectors, Space, StoreVectors, space_of
from embstore.errors import InvalidValueError, NonFiniteError
from embstore.vectors.linalg import unit_rows
from tests.analysis.word_store import write_words

D = 24


@pytest.fixture(autouse=True)
def small_is_not_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small searches are done as large ones."""
    monkeypatch.setattr(exact, "FEW_PAIRS", 0)


def clouds(seed: int) -> dict[str, np.ndarray]:
    """Vectors of the kinds that break a search."""
    rng = np.random.default_rng(seed)
    plain = rng.normal(size=(700, D))
    repeated = np.repeat(rng.normal(size=(9, D)), 80, 0)[rng.permutation(720)]
    with_zeros = np.concatenate([plain[:300], np.zeros((40, D)), plain[:50]])
    return {
        "plain": plain,
        "lengths apart": plain * np.exp(rng.normal(size=(700, 1)) * 2),
        "a common mean": plain + 30,
        "repeated": repeated,
        "zeros": with_zeros,
        "all equal": np.ones((500, D)),
        "few": plain[:3],
    }


def all_scores(space: Space, queries: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """The score of every query with every vector [q, n], each summed separately so that equal vectors score equally."""
    asked, held = space.transform(queries), space.transform(vectors)
    if space.metric == "l2":
        return np.array([np.sqrt(np.square(held - query).sum(1)) for query in asked])
    if space.metric == "cosine":
        asked, held = unit_rows(asked), unit_rows(held)
    return np.array([(held * query).sum(1) for query in asked])


def brute(queries: np.ndarray, vectors: np.ndarray, k: int, space: Space, allowed: np.ndarray) -> Hits:
    """Every score in float64, sorted, equals by row."""
    scores = all_scores(space, queries, vectors)
    rows, best = np.full((len(queries), k), -1), np.full((len(queries), k), np.nan)
    for number, (row_scores, may) in enumerate(zip(scores, allowed, strict=True)):
        key = np.where(may, row_scores if space.ascending else -row_scores, np.inf)
        order = np.lexsort((np.arange(len(key)), key))[:k]
        order = order[may[order]]
        rows[number, : len(order)], best[number, : len(order)] = order, row_scores[order]
    return Hits(rows, best)


def require_same(found: Hits, expected: Hits) -> None:
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-12, atol=1e-13)
    np.testing.assert_array_equal(found.rows, expected.rows)


def stored(vectors: np.ndarray, dtype: str) -> np.ndarray:
    return vectors.astype(dtype)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", list(clouds(0)))
@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.quick(3)
def test_the_nearest_are_those_of_float64(kind: str, metric: str, dtype: str, count: int) -> None:
    vectors = stored(clouds(1)[kind], dtype)
    rng = np.random.default_rng(2)
    queries = np.concatenate([vectors[rng.integers(len(vectors), size=count // 2)], rng.normal(size=(count, D))])
    everything = np.ones((len(queries), len(vectors)), bool)
    for k in (1, 10, 60):
        with es.config(threads=2):
            found = exact_search(ArrayVectors(vectors), queries, k=k, space=Space(metric))
        require_same(found, brute(queries, vectors, k, Space(metric), everything))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", ["plain", "a common mean", "repeated", "zeros", "all equal"])
@pytest.mark.quick(3)
def test_the_mean_is_taken_away(kind: str, metric: str, tmp_path: Path) -> None:
    vectors = clouds(3)[kind].astype(np.float32)
    made = write_words(tmp_path / "store.zarr", [("word", vectors)]).store
    space = space_of(made, 2, metric=metric, centered=True)
    held = made.vectors(np.arange(made.n_rows), layers=2)
    np.testing.assert_allclose(space.mean, held.mean(0, dtype=np.float64), atol=1e-6)
    queries = np.concatenate([held[:5], np.random.default_rng(0).normal(size=(8, D)), held.mean(0)[None]])
    everything = np.ones((len(queries), len(held)), bool)
    for part in (queries, queries[:3]):
        found = exact_search(StoreVectors(made, 2), part, k=7, space=space)
        require_same(found, brute(part, held, 7, space, everything[: len(part)]))


@pytest.mark.parametrize("suffix", ["zarr", "h5"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16", "int8"])
@pytest.mark.quick(2)
def test_filters_hold_in_stores(suffix: str, dtype: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    words = [(f"word{number}", rng.normal(size=(number % 9 + 1, D))) for number in range(150)]
    store = write_words(tmp_path / f"store.{suffix}", words, dtype=dtype, layers=(2, 5)).store
    held = store.vectors(np.arange(store.n_rows), layers=5)
    asked = rng.choice(store.n_rows, 30, replace=False)
    types, sentences = np.asarray(store.index.type), np.asarray(store.index.sentence)
    none = np.where(np.arange(30) % 3 == 0, -1, types[asked])
    for rows in (
        None,
        range(20, 300),
        np.flatnonzero(types % 2 == 0),
        np.sort(rng.choice(store.n_rows, 12, replace=False)),
    ):
        groups = [Exclusion(types, none), Exclusion(sentences, sentences[asked])]
        allowed = (sentences[None] != sentences[asked][:, None]) & (types[None] != none[:, None])
        if rows is not None:
            allowed &= np.isin(np.arange(store.n_rows), rows)
        for part in (slice(0, 30), slice(0, 2)):
            few = [Exclusion(group.of_rows, group.of_queries[part]) for group in groups]
            found = exact_search(StoreVectors(store, 5), held[asked[part]], k=9, rows=rows, exclude=few)
            require_same(found, brute(held[asked[part]], held, 9, Space(), allowed[part]))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", list(clouds(0)))
def test_torch_alone_finds_the_same(kind: str, metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = clouds(5)[kind].astype(np.float32)
    queries = np.random.default_rng(1).normal(size=(11, D))
    groups = (Exclusion(np.arange(len(vectors)) % 5, np.arange(11) % 7 - 1),)
    allowed = groups[0].of_rows[None] != groups[0].of_queries[:, None]
    for mean in (None, vectors.mean(0, dtype=np.float64)):
        space = Space(metric, mean)
        placed = space.transform(queries)
        placed = unit_rows(placed) if metric == "cosine" else placed
        search = Search(ArrayVectors(vectors), placed, 8, space, np.arange(len(vectors)), groups, None)
        monkeypatch.setattr("embstore.analysis.neighbors.exact.GPU_BLOCK_NBYTES", 100 * 4 * D)
        found = search.decide(*_gpu_candidates(search, torch.device("cpu")))
        require_same(found, brute(queries, vectors, 8, space, allowed))


@pytest.mark.parametrize("metric", METRICS)
def test_few_pairs_are_all_scored_in_float64(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "FEW_PAIRS", 10_000)
    monkeypatch.setattr(Search, "candidates", None)
    for vectors in clouds(9).values():
        for dtype, count, k in (("float16", 1, 1), ("float32", 7, 60)):
            held = stored(vectors, dtype)
            queries = np.random.default_rng(2).normal(size=(count, D))
            rows = np.flatnonzero(np.arange(len(held)) % 3)
            group = Exclusion(np.arange(len(held)) % 5, np.arange(count) % 5 - 1)
            allowed = (group.of_rows[None] != group.of_queries[:, None]) & np.isin(np.arange(len(held)), rows)
            seen: list[int] = []
            more = {"rows": rows, "exclude": [group], "progress": seen.append}
            found = exact_search(ArrayVectors(held), queries, k=k, space=Space(metric), **more)
            require_same(found, brute(queries, held, k, Space(metric), allowed))
            assert seen == [len(rows)]


def test_more_than_there_is(tmp_path: Path) -> None:
    found = exact_search(ArrayVectors(np.eye(3, dtype=np.float32)), np.eye(3)[0], k=5)
    assert found.rows.tolist() == [[0, 1, 2, -1, -1]]
    assert found.scores[0, :3].tolist() == [1, 0, 0]
    assert np.isnan(found.scores[0, 3:]).all()
    nothing = exact_search(ArrayVectors(np.eye(3)), np.eye(3), k=2, rows=np.empty(0, np.int64))
    assert (nothing.rows == -1).all()


@pytest.mark.parametrize("scale", [0, 1e-42, 1e-20])
def test_equal_distances_to_vectors_near_zero_are_ordered_by_row(scale: float) -> None:
    vectors = np.full((900, D), scale, np.float32)
    queries = np.random.default_rng(6).normal(size=(40, D))
    found = exact_search(ArrayVectors(vectors), queries, k=1, space=Space("l2"))
    assert (found.rows == 0).all()


@pytest.mark.parametrize("scale", [1e-25, 1e-42, 1e30])
def test_the_smallest_and_largest_lengths(scale: float) -> None:
    vectors = (np.random.default_rng(6).normal(size=(200, D)) * scale).astype(np.float32)
    found = exact_search(ArrayVectors(vectors), vectors[:9], k=4)
    require_same(found, brute(vectors[:9], vectors, 4, Space(), np.ones((9, 200), bool)))


@pytest.mark.parametrize("few_pairs", [0, 10_000])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("count", [2, 20])
def test_values_that_are_not_finite_are_refused(
    count: int, metric: str, few_pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact, "FEW_PAIRS", few_pairs)
    for value, dtype, why in (
        *((value, dtype, "") for value in (np.inf, -np.inf, np.nan) for dtype in (np.float16, np.float32)),
        *[(1e30, np.float32, "row 77 is too long a vector for float32")] * (metric != "cosine"),
    ):
        vectors = np.ones((300, D), dtype)
        vectors[77, 23] = value
        with pytest.raises(NonFiniteError, match=why or "row 77 holds a value that is not finite"):
            exact_search(ArrayVectors(vectors), np.ones((count, D)), k=3, space=Space(metric))
    with pytest.raises(NonFiniteError, match="query 1 holds"):
        exact_search(ArrayVectors(np.ones((4, D))), np.array([[1.0] * D, [np.nan] * D]), k=3)


def test_bad_input_in_one_line() -> None:
    vectors = ArrayVectors(np.eye(4))
    with pytest.raises(InvalidValueError, match="k 0 is not allowed"):
        exact_search(vectors, np.eye(4), k=0)
    with pytest.raises(InvalidValueError, match=r"queries must be \[q, 4\]"):
        exact_search(vectors, np.ones(3), k=1)
    with pytest.raises(InvalidValueError, match="rows must be ascending"):
        exact_search(vectors, np.eye(4), k=1, rows=np.array([2, 1]))


def test_what_float32_cannot_decide_is_second_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    vectors = np.repeat(rng.normal(size=(5, D)), 300, 0).astype(np.float32)
    read: list[int] = []
    again = Search._second_pass
    monkeypatch.setattr(Search, "_second_pass", lambda self, *a: (read.append(len(a[1])), again(self, *a))[1])
    monkeypatch.setattr(exact, "RESCORED_NUMBERS", 1024)
    monkeypatch.setattr(exact, "SECOND_PASS_SCORES", 200)  # blocks of 100 rows
    found = exact_search(ArrayVectors(vectors), vectors[[750, 3]], k=50)
    assert read == [2]
    assert found.rows[0].tolist() == list(range(600, 650))
    assert found.rows[1].tolist() == list(range(50))


@pytest.mark.parametrize("count", [2, 80])
def test_the_longest_vector_of_every_thread_counts(count: int) -> None:
    vectors = np.random.default_rng(8).normal(size=(9000, D)).astype(np.float32)
    vectors[[10, 8990]] *= [[50], [90]]
    given = vectors[:count].astype(float)
    search = Search(ArrayVectors(vectors), given, 3, Space("ip"), np.arange(9000), (), None, threads=2)
    search.candidates()
    assert max(search.lengths) == pytest.approx(np.linalg.norm(vectors, axis=1).max(), rel=1e-5)
