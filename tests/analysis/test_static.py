"""Static vectors against a numpy.linalg.svd, a loop over pairs and a plain mean, word by word in float64."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import embstore as es
from embstore.analysis.static import static_vectors, write_static_store
from embstore.errors import InvalidValueError, MissingRowsError, NonFiniteError, UnfinishedStoreWarning
from embstore.store.convert.words import word_metadata
from embstore.vectors import WordVectors, read_vectors, write_vectors
from tests.analysis.word_store import Written, awkward_words, one_line, write_words
from tests.store_making import make_store


@pytest.fixture(scope="module", params=["float32", "float16", "int8"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    first, second = awkward_words(seed=1), awkward_words(seed=2)
    vectors = [(word, np.stack([array, other])) for (word, array), (_, other) in zip(first, second, strict=True)]
    folder = tmp_path_factory.mktemp("static")
    return write_words(folder / "store.zarr", vectors, layers=(1, 4), dtype=request.param)


def component(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first right singular vector, turned towards the mean, and all singular values."""
    _, values, directions = np.linalg.svd(vectors, full_matrices=False)
    first = directions[0]
    return (-first if first @ vectors.mean(0) < 0 else first), values


@pytest.mark.parametrize("memory", ["1GiB", 2_000])
@pytest.mark.quick(1)
def test_pc1_is_the_first_right_singular_vector(written: Written, memory: int | str) -> None:
    compared = 0
    for layer in (1, 4):
        with es.config(memory=memory):
            found = static_vectors(written.store, layers=layer, method="pc1")
        assert found.words == tuple(written.store.index.words)
        for word, vector in zip(found.words, found.vectors.astype(np.float64), strict=True):
            vectors = written.of(word, layer)
            expected, values = component(vectors)
            length = float(values[0] > 0)
            assert np.linalg.norm(vector) == pytest.approx(length, rel=1e-6, abs=1e-30)
            assert np.linalg.norm(vectors @ vector) == pytest.approx(values[0] * length, rel=1e-6)
            assert vector @ vectors.mean(0) >= -1e-6 * length * np.linalg.norm(vectors.mean(0))
            if len(values) == 1 or values[1] < 0.99 * values[0]:
                np.testing.assert_allclose(vector, length * expected, atol=1e-6 * max(length, 1e-30))
                compared += 1
    assert compared > 60


def test_the_sign_of_pc1_where_the_mean_says_nothing(tmp_path: Path) -> None:
    few = np.array([[3.0, -4, 0, 0], [-3, 4, 0, 0]])
    many = np.array([[0.0, 1, -2, 0], [0, -1, 2, 0]] * 5)
    store = write_words(tmp_path / "signs.zarr", [("few", few), ("many", many)]).store
    found = static_vectors(store, layers=2).vectors
    np.testing.assert_allclose(found[0], [-0.6, 0.8, 0, 0], atol=1e-6)
    np.testing.assert_allclose(found[1], np.array([0, -1, 2, 0]) / np.sqrt(5), atol=1e-6)


@pytest.mark.parametrize("memory", ["1GiB", 2_000])
@pytest.mark.quick(1)
def test_means_are_those_of_a_loop(written: Written, memory: int | str) -> None:
    with es.config(memory=memory):
        means = static_vectors(written.store, layers=4, method="mean")
    for word, vector in zip(means.words, means.vectors, strict=True):
        np.testing.assert_allclose(vector, written.of(word, 4).mean(0), rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_large_words(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    size = 200
    decay = np.arange(1, size + 1) ** -0.7
    words = [(f"w{count}", rng.normal(size=(count, size)) * decay + 0.1) for count in (97, 110, 160, 200, 201, 600)]
    written = write_words(tmp_path / "large.h5", words)
    found = static_vectors(written.store, layers=2)
    for word, vector in zip(found.words, found.vectors, strict=True):
        np.testing.assert_allclose(vector, component(written.of(word, 2))[0], atol=1e-6)


def test_words_have_the_required_number_of_contexts(tmp_path: Path) -> None:
    made = make_store(tmp_path / "store.zarr")
    texts = {word: {row["text"] for row in made.table if row["word"] == word} for word in made.store.index.words}
    fewest = sorted(len(found) for found in texts.values())[2]
    found = static_vectors(made.store, layers=5, method="mean", min_contexts=fewest)
    assert found.words == tuple(word for word in made.store.index.words if len(texts[word]) >= fewest)
    assert len(found) == 4
    chosen = static_vectors(made.store, layers=5, method="mean", types=[4, 1])
    assert chosen.words == ("suit", "river")
    selection = made.store.select(words=["suit", "the"], rows=slice(0, 100))
    of_selection = static_vectors(selection, layers=5, method="mean")
    assert of_selection.words == ("the", "suit")
    rows = [row for row in range(100) if made.table[row]["word"] == "suit"]
    np.testing.assert_allclose(of_selection.vectors[1], made.vectors[2][rows].mean(0), atol=1e-6)


def test_a_store_of_static_vectors(tmp_path: Path) -> None:
    source = make_store(tmp_path / "store.zarr", years=True).store
    vectors = {layer: static_vectors(source, layers=layer, method="mean") for layer in (5, 0)}
    made = {"method": "mean", "min_contexts": 1}
    store = write_static_store(vectors, tmp_path / "static.zarr", source=source, made=made)
    assert es.verify(store.path).ok
    assert store.finished
    assert store.layers == (0, 5)
    for layer in (0, 5):
        for word, vector in zip(vectors[layer].words, vectors[layer].vectors, strict=True):
            row = store.select(words=word, layers=layer)
            assert row.table()["text"].to_list() == [word]
            np.testing.assert_array_equal(row.vectors()[0], vector)
    static = store.metadata.extraction["static"]
    assert static["method"] == "mean"
    assert static["source"] == {"name": "store.zarr", "fingerprint": source.metadata.fingerprint}
    assert store.metadata.model == source.metadata.model
    with pytest.raises(InvalidValueError, match="exists already"):
        write_static_store(vectors, store.path, source=source, made=made)
    fewer = {0: vectors[0], 5: vectors[5].take([0, 1])}
    with pytest.raises(InvalidValueError, match="different words"):
        write_static_store(fewer, tmp_path / "none.zarr", source=source, made=made)


def test_words_have_no_fields_and_sites_of_their_source_and_are_stored_whole(tmp_path: Path) -> None:
    given = make_store(tmp_path / "store.zarr", years=True).store.metadata
    given = replace(given, sites={"residual": 6, "query": 4}, virtual=True)
    made = word_metadata(given, given.layout, made={"method": "mean"})
    assert (made.fields, made.sites, made.virtual) == ({}, {}, False)


@pytest.mark.parametrize(("name", "format"), [("v.txt", "text"), ("v.bin", "binary")])
def test_files_read_back(tmp_path: Path, name: str, format: str) -> None:
    source = make_store(tmp_path / "store.zarr").store
    vectors = static_vectors(source.select(words=["bank", "évident", "the"]), layers=2)
    write_vectors(vectors, tmp_path / name)
    read = read_vectors(tmp_path / name)
    assert read.words == vectors.words == ("bank", "the", "évident")
    np.testing.assert_array_equal(read.vectors, vectors.vectors)


def test_bad_input_is_refused_in_one_line(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store.zarr").store
    one_line(lambda: static_vectors(store, layers=3), InvalidValueError, "layer 3 is not stored", "0, 2, 5")
    one_line(lambda: static_vectors(store.select(rows=[]), layers=2), InvalidValueError, "is selected")
    one_line(lambda: static_vectors(store, layers=2, min_contexts=999), InvalidValueError, "999 different sentences")
    one_line(lambda: static_vectors(store, layers=[0, 2]), InvalidValueError, "layers [0, 2] are 2 layers")
    assert isinstance(static_vectors(store, layers=2), WordVectors)


@pytest.mark.parametrize("method", ["pc1", "mean"])
def test_bad_rows_are_refused(tmp_path: Path, method: str) -> None:
    rng = np.random.default_rng(0)
    for count in (4, 40):
        vectors = rng.normal(size=(count, 6))
        vectors[1, 2] = np.nan
        store = write_words(tmp_path / f"bad{count}.zarr", [("fine", np.ones((9, 6))), ("broken", vectors)]).store
        one_line(lambda: static_vectors(store, layers=2, method=method), NonFiniteError, "'broken'", "layer 2")  # noqa: B023
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnfinishedStoreWarning)
        part = write_words(tmp_path / "part.zarr", [("w", rng.normal(size=(300, 6)))], written=False).store
    one_line(lambda: static_vectors(part, layers=2, method=method), MissingRowsError, "not written yet")
