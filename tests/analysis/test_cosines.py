"""Mean cosines against explicit pairs, and the words of one sentence."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import reduce as reduce_states
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embstore.analysis.geometry.cosine import Cosines, Groups, MeanCosines
from embstore.analysis.geometry.moments import Moments
from embstore.analysis.scan import scan
from embstore.store import Store
from tests.analysis.test_geometry import mean_cosine, states_of, within_sentence
from tests.analysis.word_store import write_words


@pytest.fixture(scope="module", params=["float16", "float32", "bfloat16", "int8"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Store:
    rng = np.random.default_rng(3)
    words = [(f"word{number}", rng.normal(size=(number % 7 + 1, 16)) + 2) for number in range(120)]
    words += [("zero", np.zeros((3, 16))), ("often", rng.normal(size=(300, 16)) + 2)]
    folder = tmp_path_factory.mktemp("cosines")
    return write_words(folder / "store.zarr", words, dtype=request.param, layers=(2, 5)).store


def over(store: Store, layer: int, groups: list[np.ndarray], mean: Callable[[np.ndarray], float]) -> list[float]:
    """A mean of cosines of each group of rows, in float64; NaN for a single row."""
    vectors = [store.vectors(rows, layers=layer).astype(np.float64) for rows in groups]
    return [mean(each) if len(each) > 1 else np.nan for each in vectors]


def require_by_pairs(found: MeanCosines, store: Store, layer: int, *, atol: float, every: int = 1) -> None:
    """Compare the cosines of every n-th type and sentence with explicit pairs."""
    types, sentence = np.asarray(store.index.type), np.asarray(store.index.sentence)
    words = [np.flatnonzero(types == number) for number in range(0, len(store.index.words), every)]
    every_sentence = [np.flatnonzero(sentence == number) for number in range(int(sentence[-1]) + 1)]
    several = [rows for rows in every_sentence if len(rows) > 1]
    np.testing.assert_allclose(found.selfsim, over(store, layer, words, mean_cosine), atol=atol)
    np.testing.assert_allclose(found.intrasim, over(store, layer, several[::every], within_sentence), atol=atol)
    (everything,) = over(store, layer, [np.arange(store.n_rows)], mean_cosine)
    assert found.anisotropy == pytest.approx(everything, abs=atol)


def cosines_of(store: Store, *, every: int = 1) -> Cosines:
    """The reducer for every n-th type and sentence of a store."""
    types, sentence = np.asarray(store.index.type), np.asarray(store.index.sentence)
    several = np.flatnonzero(np.bincount(sentence) > 1)[::every]
    words = np.arange(0, len(store.index.words), every)
    return Cosines(words=Groups.of(types, words), sentences=Groups.of(sentence, several))


@pytest.mark.parametrize("options", [{"threads": 1}, {"threads": 3, "block_rows": 1}, {"block_rows": 37}])
@pytest.mark.parametrize(("precision", "atol"), [("float32", 1e-6), ("float64", 1e-12)])
@pytest.mark.quick(2)
def test_cosines_are_those_of_explicit_pairs(
    store: Store, options: dict[str, int], precision: str, atol: float
) -> None:
    found = scan(store, {"all": cosines_of(store)}, precision=precision, **options)  # type: ignore[arg-type]
    for layer in store.layers:
        require_by_pairs(found[layer]["all"], store, layer, atol=atol)


@pytest.mark.quick(2)
def test_occurrences_without_a_group(store: Store) -> None:
    for layer, found in scan(store, {"all": cosines_of(store, every=3)}, block_rows=29).items():
        require_by_pairs(found["all"], store, layer, atol=1e-6, every=3)


def test_a_frequent_word_is_as_exact_as_a_rare_one(tmp_path: Path) -> None:
    """Equal vectors have the cosine 1; a sum of them in float32 gives one that is wrong by 4e-5."""
    words = [("often", np.tile(np.array([[0.3, -0.2, 0.9]]), (30_000, 1))), ("rare", np.ones((2, 3)))]
    store = write_words(tmp_path / "store.zarr", words).store
    cosines = Cosines(words=Groups.of(store.index.type, np.arange(2)))
    for n_parts in (1, 2):
        found = scan(store, {"all": cosines}, parts=n_parts)[2]["all"].selfsim
        np.testing.assert_allclose(found, 1, atol=4e-6)
    reducers: dict[str, Any] = {"all": cosines}
    parts = [states_of(reducers, store.select(), 2, start, start + 1000)["all"] for start in range(0, 30_000, 1000)]
    merged = reduce_states(cosines.merge, parts)
    assert np.linalg.norm(merged.word_sums[0]) < 2 * 64  # of unit vectors that are equal: their number


def test_reducers_are_given_vectors_of_a_mapped_file_without_a_warning(store: Store) -> None:
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            (found,) = scan(store, {"mean": Moments()}, layers=5, threads=1).values()
    finally:
        torch.set_warn_always(False)
    np.testing.assert_allclose(found["mean"].mean, store.vectors(np.arange(store.n_rows), layers=5).mean(0), atol=1e-3)
