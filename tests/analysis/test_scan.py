"""Reductions, geometry and static vectors in threads: the same to the bit as in one."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embstore.analysis import scan as scan_module
from embstore.analysis.geometry import measure
from embstore.analysis.geometry.cosine import Cosines, Groups
from embstore.analysis.geometry.measure import METRICS, geometry
from embstore.analysis.geometry.moments import Moments
from embstore.analysis.scan import Batch, Scope, part_spans, scan
from embstore.analysis.static import static_vectors
from embstore.config import config
from embstore.store import Selection, Store
from tests.analysis.word_store import awkward_words, write_words


@pytest.fixture(autouse=True)
def many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut small stores into several parts."""
    monkeypatch.setattr(scan_module, "MIN_PARTS", 5)
    monkeypatch.setattr(measure, "MIN_PARTS", 5)


SMALL = 30_000  # bytes of memory: blocks of nine rows
KINDS = ["float16", *(pytest.param(name, marks=pytest.mark.slow) for name in ("float32", "int8"))]


@pytest.fixture(scope="module", params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Store:
    first, second = awkward_words(seed=1), awkward_words(seed=2)
    vectors = [(word, np.stack([array, other])) for (word, array), (_, other) in zip(first, second, strict=True)]
    path = tmp_path_factory.mktemp("executors") / "store.zarr"
    return write_words(path, vectors, layers=(1, 4), dtype=request.param).store


def require_same(one: pl.DataFrame, other: pl.DataFrame) -> None:
    """Require that two tables are equal to the bit."""
    assert one.columns == other.columns
    for column in ("value", "baseline", "adjusted"):
        found, expected = (table[column].fill_null(float("nan")).to_numpy().view(np.int64) for table in (one, other))
        np.testing.assert_array_equal(found, expected)
    floats = ("value", "baseline", "adjusted")
    assert one.drop(floats).equals(other.drop(floats))


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"memory": 6_000}, marks=pytest.mark.slow),
        pytest.param({"precision": "float64"}, marks=pytest.mark.slow),
        pytest.param({"baseline": 40, "layers": [4]}, marks=pytest.mark.slow),
        {"metrics": ["selfsim", "mev"], "layers": 4, "memory": 20_000},
    ],
    ids=["all", "in passes", "float64", "sample", "words"],
)
@pytest.mark.quick(1)
def test_geometry_is_the_same_to_the_bit(store: Store, options: dict[str, Any]) -> None:
    asked = {"metrics": METRICS, "min_contexts": 1, **options}
    with config(memory=asked.pop("memory", SMALL)):
        with config(threads=1):
            whole = geometry(store, **asked)
        with config(threads=3):
            require_same(geometry(store, **asked), whole)


@pytest.mark.parametrize("method", ["pc1", pytest.param("mean", marks=pytest.mark.slow)])
def test_static_vectors_are_the_same_to_the_bit(store: Store, method: str) -> None:
    for layer, memory, options in ((4, 9_000, {}), (1, 2**30, {"types": [5, 3, 20, 11]})):
        found = []
        for threads in (1, 3):
            with config(memory=memory, threads=threads):
                found.append(static_vectors(store, layers=layer, method=method, **options))
        assert found[0].words == found[1].words
        np.testing.assert_array_equal(found[0].vectors.view(np.int32), found[1].vectors.view(np.int32))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Store:
    rng = np.random.default_rng(3)
    words = [(f"word{number}", rng.normal(size=(number % 7 + 1, 16)) + 2) for number in range(60)]
    return write_words(tmp_path_factory.mktemp("small") / "store.zarr", words, dtype="float16").store


def reducers_of(store: Store) -> dict[str, Any]:
    types, sentence = np.asarray(store.index.type), np.asarray(store.index.sentence)
    words = Groups.of(types, np.arange(len(store.index.words)))
    sentences = Groups.of(sentence, np.flatnonzero(np.bincount(sentence) > 1))
    return {"cosines": Cosines(words=words, sentences=sentences), "all": Moments()}


def bits_of(found: dict[int, dict[str, Any]]) -> bytes:
    (figures,) = found.values()
    cosines, moments = figures["cosines"], figures["all"]
    return pickle.dumps([cosines.selfsim, cosines.intrasim, cosines.anisotropy, moments.mean, moments.scatter])


class Scattered(ThreadPoolExecutor):
    """Threads whose tasks end in a chosen order."""

    order: tuple[int, ...] = ()
    done = 0

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        seconds = 0.004 * self.order[self.done % len(self.order)]
        self.done += 1
        return super().submit(lambda: (time.sleep(seconds), function(*args, **kwargs))[1])


@settings(max_examples=5)
@given(order=st.permutations(range(5)), threads=st.integers(2, 4))
def test_the_order_in_which_tasks_end_changes_no_bit(small: Store, order: list[int], threads: int) -> None:
    expected = bits_of(scan(small, reducers_of(small), block_rows=8, threads=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scattered, "order", tuple(order))
        patch.setattr(scan_module, "ThreadPoolExecutor", Scattered)
        assert bits_of(scan(small, reducers_of(small), block_rows=8, threads=threads)) == expected


class Positions:
    """A reducer of a user, whose sum depends on the positions of occurrences in the selection."""

    def init(self, scope: Scope) -> list[float]:
        return [0.0, float(scope.n_rows)]

    def update(self, state: list[float], batch: Batch) -> list[float]:
        weights = np.arange(batch.positions.start, batch.positions.stop)
        return [state[0] + float(weights @ batch.vectors.double().numpy()[:, 0]), state[1]]

    def merge(self, state: list[float], other: list[float]) -> list[float]:
        return [state[0] + other[0], other[1]]

    def finish(self, state: list[float], scope: Scope) -> list[float]:
        return state


def test_a_reducer_of_a_user(small: Store) -> None:
    for source in (small, small.select(rows=np.arange(small.n_rows)[::-2])):
        expected = scan(source, {"positions": Positions()}, block_rows=8)
        rows = source.rows if isinstance(source, Selection) else np.arange(small.n_rows)
        total = np.arange(len(rows)) @ small.vectors(rows, layers=2)[:, 0].astype(np.float64)
        assert expected[2]["positions"] == [pytest.approx(total), len(rows)]


class Living:
    """A reducer that counts the states that exist at a time; the first ones wait until there are `wanted`."""

    def __init__(self, wanted: int, seconds: float) -> None:
        self.lock, self.living, self.most = threading.Lock(), 0, 0
        self.wanted, self.reached, self.seconds = wanted, threading.Event(), seconds

    def init(self, scope: Scope) -> None:
        with self.lock:
            self.living += 1
            self.most = max(self.most, self.living)
            if self.most >= self.wanted:
                self.reached.set()
        if not self.reached.wait(self.seconds):
            self.reached.set()

    def update(self, state: None, batch: Batch) -> None:
        return state

    def merge(self, state: None, other: None) -> None:
        with self.lock:
            self.living -= 1

    def finish(self, state: None, scope: Scope) -> int:
        return self.most


@pytest.mark.parametrize("max_states", [2, 3])
def test_no_more_states_exist_than_allowed(small: Store, max_states: int) -> None:
    limited, free = Living(max_states + 1, seconds=0.05), Living(max_states + 1, seconds=600)
    found = scan(small, {"living": limited}, block_rows=8, threads=5, max_states=max_states)
    assert found[2]["living"] <= max_states
    assert scan(small, {"living": free}, block_rows=8, threads=5)[2]["living"] > max_states


def test_parts_depend_on_the_selection_alone() -> None:
    assert part_spans(100, 10, 8, None) == [(0, 20), (20, 40), (40, 60), (60, 80), (80, 100)]
    assert part_spans(100, 10, 8, 2) == [(0, 50), (50, 100)]
    assert part_spans(25, 10, 8, None) == [(0, 10), (10, 20), (20, 25)]
    assert len(part_spans(10**9, 1000, 768, None)) == scan_module.MAX_PARTS


def test_progress_ends_at_the_total(store: Store) -> None:
    seen: list[tuple[int, int]] = []
    with config(progress=lambda done, total: seen.append((done, total))):
        geometry(store, min_contexts=1)
        assert seen == sorted(seen)
        assert seen[-1][0] == seen[-1][1]
        static_vectors(store, layers=1)
        assert seen[-1] == (store.n_rows, store.n_rows)


class Failing:
    """A reducer that fails at the third part."""

    def init(self, scope: Scope) -> int:
        return 0

    def update(self, state: int, batch: Batch) -> int:
        if batch.start >= 80:
            raise ValueError("no such thing")
        return state + len(batch)

    def merge(self, state: int, other: int) -> int:
        return state + other

    def finish(self, state: int, scope: Scope) -> int:
        return state


def test_the_error_of_a_task_is_raised(small: Store) -> None:
    with pytest.raises(ValueError, match="no such thing"):
        scan(small, {"failing": Failing()}, block_rows=8, threads=3)
