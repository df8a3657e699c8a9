"""Maps of layers in two dimensions: coordinates against NumPy, and in step with each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore as es
from embstore.analysis import project
from embstore.analysis.projection import anchor_maps, mirror, stretches, turn
from embstore.errors import InvalidValueError
from tests.store_making import Made, make_store


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_store(tmp_path_factory.mktemp("maps") / "a.zarr", sentences=150, hidden_size=7)


@pytest.mark.parametrize("words", [None, "bank"])
def test_coordinates_are_those_of_the_singular_value_decomposition(made: Made, words: str | None) -> None:
    chosen = made.store.select(words=words)
    for number, layer in enumerate(made.store.layers):
        vectors = made.vectors[number, chosen.rows].astype(np.float64)
        vectors -= vectors.mean(0)
        _, values, axes = np.linalg.svd(vectors, full_matrices=False)
        found = project(chosen, layers=layer, sample=None)
        assert np.array_equal(found.rows, chosen.rows)
        own = vectors @ axes[:2].T
        np.testing.assert_allclose(found.points * mirror(found.points, own), own, atol=5e-5)
        assert found.explained is not None
        assert found.explained[0] >= found.explained[1], "the first axis is the first principal component"
        shares = np.square(found.points).sum(0) / np.square(values).sum()
        np.testing.assert_allclose(found.explained, shares, rtol=1e-4)
        assert sum(found.explained) == pytest.approx(np.square(values[:2]).sum() / np.square(values).sum(), rel=1e-5)


def test_a_turn_keeps_distances_and_is_the_best_one() -> None:
    random = np.random.default_rng(0)
    points, like = random.normal(size=(40, 2)), random.normal(size=(40, 2))
    best = turn(points, like)
    np.testing.assert_allclose(best.T @ best, np.eye(2), atol=1e-12)
    least = np.linalg.norm(points @ best - like)
    for angle in np.linspace(0, 2 * np.pi, 60):
        for sign in (1, -1):
            other = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle) * sign, np.cos(angle) * sign]])
            assert least <= np.linalg.norm(points @ other - like) + 1e-9
    np.testing.assert_allclose(points @ turn(points, points @ other), points @ other, atol=1e-12)


def test_each_layer_is_mirrored_like_the_one_before(made: Made) -> None:
    store = made.store
    maps = {layer: project(store, layers=layer, sample=None).points for layer in store.layers}
    anchors = anchor_maps(store, np.arange(store.n_rows), store.layers[-1])  # all rows are anchors
    for before, layer in zip(store.layers, store.layers[1:], strict=False):
        for of in (anchors, maps):
            assert np.all(np.einsum("ij,ij->j", of[layer], of[before]) > 0)


def test_a_turned_copy_of_a_layer_has_the_same_map(tmp_path: Path) -> None:
    """The second layer is the first one, rotated in all dimensions: its principal components differ in sign."""
    vectors = np.random.default_rng(1).normal(size=(900, 5)) * [5, 3, 1, 1, 1]
    other = vectors @ np.linalg.qr(np.random.default_rng(2).normal(size=(5, 5)))[0]
    made = make_store(tmp_path / "a.zarr", sentences=100, hidden_size=5, layers=(0, 1))
    count = made.store.n_rows
    store = rewritten(tmp_path / "b.zarr", made, np.stack([vectors[:count], other[:count]]).astype(np.float32))
    one, two = (project(store, layers=layer, sample=None).points for layer in (0, 1))
    np.testing.assert_allclose(one, two, atol=1e-4)


def rewritten(path: Path, made: Made, vectors: np.ndarray) -> es.Store:
    from embstore.store import StoreWriter, create_store, open_store

    create_store(path, metadata=made.store.metadata, index=made.store.index)
    with StoreWriter(path) as writer:
        for partition in writer.missing():
            start, stop = made.store.source.layout.span(partition)
            writer.write(partition, {"hidden_states": np.ascontiguousarray(vectors[:, start:stop])})
        writer.finish()
    return open_store(path)


@pytest.mark.parametrize(("total", "count"), [(10, 3), (1000, 999), (7, 7), (7, 20), (10**9, 50)])
def test_a_sample_has_one_number_from_each_stretch(total: int, count: int) -> None:
    found = stretches(total, count, 3)
    size = min(total, count)
    assert len(found) == size
    assert found[0] >= 0
    assert found[-1] < total
    edges = np.arange(size + 1) * total // size
    assert np.all((edges[:-1] <= found) & (found < edges[1:]))


def test_the_axes_of_many_rows_are_learned_from_some(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embstore.analysis.projection.AXES_ROWS", 200)
    found = project(made.store, layers=2, sample=None)
    some = stretches(made.store.n_rows, 200, 0)
    vectors = made.vectors[1, some].astype(np.float64)
    axes = np.linalg.svd(vectors - vectors.mean(0))[2][:2]
    own = made.vectors[1].astype(np.float64) @ axes.T
    own -= own.mean(0)
    np.testing.assert_allclose(found.points * mirror(found.points, own), own, atol=1e-4)
    assert (found.axes_rows, len(found.rows)) == (200, made.store.n_rows)


def test_layers_where_nothing_varies_have_a_map(tmp_path: Path) -> None:
    made = make_store(tmp_path / "a.zarr", sentences=30, hidden_size=1, layers=(0, 1))
    store = rewritten(tmp_path / "b.zarr", made, np.ones((2, made.store.n_rows, 1), np.float32))
    found = project(store, layers=1)
    assert not found.points.any()
    assert found.explained == (0.0, 0.0)
    assert project(made.store, layers=1).explained == pytest.approx((1.0, 0.0))


@pytest.mark.parametrize(("given", "named"), [({"layers": 9}, "9"), ({"layers": [0, 2]}, "layer")])
def test_wrong_arguments_are_named(made: Made, given: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidValueError, match=named):
        project(made.store, **given)


def test_two_occurrences_have_no_map(made: Made) -> None:
    with pytest.raises(InvalidValueError, match="2 occurrences"):
        project(made.store.select(rows=[1, 5]))
