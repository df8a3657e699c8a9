"""Linear CKA, against centred matrices of float64 held whole."""

from __future__ import annotations

import warnings
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from embstore.analysis.geometry import cka
from embstore.analysis.geometry.cka import Side, chunks, linear_cka
from embstore.config import config
from embstore.errors import InvalidValueError, MissingRowsError, NonFiniteError, UnfinishedStoreWarning
from embstore.store import export
from tests.analysis.word_store import Written, write_words
from tests.store_making import make_store

LAYERS = (0, 3, 4)


def by_the_book(one: np.ndarray, other: np.ndarray) -> float:
    one = one.astype(np.float64) - one.mean(0, dtype=np.float64)
    other = other.astype(np.float64) - other.mean(0, dtype=np.float64)
    norms = np.linalg.norm(one.T @ one) * np.linalg.norm(other.T @ other)
    return float(np.linalg.norm(other.T @ one) ** 2 / norms) if norms > 0 else float("nan")


def vectors_of(seed: int, *, count: int = 300, size: int = 10, offset: float = 0.0) -> np.ndarray:
    """Layers that share some of what they hold, with a common mean and features of different size."""
    rng = np.random.default_rng(seed)
    shared = np.random.default_rng(99).normal(size=(count, 4))
    layers = [shared @ rng.normal(size=(4, size)) + share * rng.normal(size=(count, size)) for share in (0.1, 1.0, 5.0)]
    return np.stack(layers) * rng.uniform(0.1, 10, size) + offset


def stored(path: Path, vectors: np.ndarray, **options: object) -> Written:
    half = vectors.shape[1] // 2
    words = [("bank", vectors[:, :half]), ("river", vectors[:, half:])]
    return write_words(path, words, layers=LAYERS, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=[(".zarr", "float32"), (".h5", "float16"), (".zarr", "int8")])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    suffix, dtype = request.param
    return stored(tmp_path_factory.mktemp("cka") / f"store{suffix}", vectors_of(1, offset=20), dtype=dtype)


def expected(one: Written, other: Written, rows: np.ndarray | None = None) -> list[float]:
    rows = np.arange(one.store.n_rows) if rows is None else rows
    return [by_the_book(left[rows], right[rows]) for left, right in product(one.values, other.values)]


def test_cka_of_one_store_is_by_the_book(written: Written) -> None:
    table = linear_cka(written.store)
    assert table.columns == ["layer", "other_layer", "value", "count"]
    assert list(zip(table["layer"], table["other_layer"], strict=True)) == list(product(LAYERS, LAYERS))
    assert set(table["count"]) == {300}
    np.testing.assert_allclose(table["value"], expected(written, written), atol=1e-9, rtol=0)


def test_cka_of_two_stores_of_different_size(written: Written, tmp_path: Path) -> None:
    other = stored(tmp_path / "other.zarr", vectors_of(2, size=7))
    table = linear_cka(written.store, other.store)
    values = expected(written, other)
    assert max(values) - min(values) > 0.2
    np.testing.assert_allclose(table["value"], values, atol=1e-9, rtol=0)
    back = linear_cka(other.store, written.store, layers=[3], other_layers=[4, 0])
    assert back.select("layer", "other_layer").rows() == [(3, 4), (3, 0)]
    wanted = [by_the_book(other.values[1], written.values[place]) for place in (2, 0)]
    np.testing.assert_allclose(back["value"], wanted, atol=1e-9, rtol=0)


def test_cka_does_not_depend_on_memory_or_blocks(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = linear_cka(written.store)["value"]
    for memory in (1, 5_000, 40_000):
        with config(memory=memory):
            part = linear_cka(written.store)["value"]
        np.testing.assert_allclose(part, whole, atol=1e-10, rtol=0)
    monkeypatch.setattr(cka, "BLOCK_ROWS", 7)
    np.testing.assert_allclose(linear_cka(written.store)["value"], whole, atol=1e-10, rtol=0)


def test_chunks_hold_every_pair_once_and_few_layers() -> None:
    sides = [Side(0, layer) for layer in range(9)]
    pairs = [(one, other) for one in sides for other in sides if one <= other]
    for most in (1, 4, 9, 16, 100):
        parts = list(chunks(pairs, most=most))
        assert sorted(pair for part in parts for pair in part) == pairs
        assert max(map(len, parts)) <= most
    layers = [len({side for pair in part for side in pair}) for part in chunks(pairs, most=9)]
    assert max(layers) <= 9
    assert len(layers) == 5


def test_cka_of_a_selection(written: Written) -> None:
    rows = np.random.default_rng(0).permutation(300)[:80]
    table = linear_cka(written.store.select(rows=rows), other_layers=LAYERS)
    assert set(table["count"]) == {80}
    np.testing.assert_allclose(table["value"], expected(written, written, rows), atol=1e-9, rtol=0)


def test_what_does_not_vary_has_no_cka(tmp_path: Path) -> None:
    vectors = vectors_of(4)
    vectors[1] = 0.1 + vectors[1, :1]
    vectors[2] = 0
    table = linear_cka(stored(tmp_path / "constant.zarr", vectors).store)
    assert np.isnan(table["value"].to_numpy()).tolist() == [False] + 8 * [True]
    one = linear_cka(make_store(tmp_path / "one.zarr", sentences=5).store.select(rows=[3]))
    assert np.isnan(one["value"].to_numpy()).all()


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_values_of_any_size(tmp_path: Path, size: float) -> None:
    written = stored(tmp_path / "sizes.zarr", vectors_of(5) * size)
    values = written.values / size
    wanted = [by_the_book(left, right) for left, right in product(values, values)]
    table = linear_cka(written.store)
    np.testing.assert_allclose(table["value"], wanted, atol=1e-9, rtol=0)


def test_progress_ends_with_all_occurrences_of_all_pairs(written: Written) -> None:
    listed: list[int] = []
    with config(memory=5_000, progress=lambda done, total: listed.append(done)):
        linear_cka(written.store)
    assert listed == sorted(listed)
    assert listed[-1] == 300 * 6


def test_stores_of_different_occurrences_are_refused(tmp_path: Path) -> None:
    vectors = vectors_of(6)
    first = stored(tmp_path / "first.zarr", vectors)
    fewer = stored(tmp_path / "fewer.zarr", vectors[:, :299])
    with pytest.raises(InvalidValueError, match=r"differ in their occurrences: 300 and 299; select the occurrences"):
        linear_cka(first.store, fewer.store)
    mixed = stored(tmp_path / "mixed.zarr", vectors, seed=1)
    place = int(np.flatnonzero(first.store.index.type != mixed.store.index.type)[0])
    words = ("'bank'", "'river'") if first.store.index.type[place] == 0 else ("'river'", "'bank'")
    with pytest.raises(InvalidValueError, match=f"differ in the word of occurrence {place}: {words[0]} and {words[1]}"):
        linear_cka(first.store, mixed.store)
    texts = [f"text number {n}" for n in range(75)]
    texts[3] = "another"
    retold = stored(tmp_path / "retold.zarr", vectors, texts=texts)
    with pytest.raises(InvalidValueError, match="sentence of occurrence 12: 'text number 3' and 'another'"):
        linear_cka(first.store, retold.store)
    again = write_words(tmp_path / "again.zarr", [("bank", vectors[0, :4])]).store
    with pytest.raises(InvalidValueError, match="position of occurrence 1: 1 and 2"):
        linear_cka(again.select(rows=[0, 1]), again.select(rows=[0, 2]))


def test_words_numbered_otherwise_are_the_same_words(tmp_path: Path) -> None:
    made = make_store(tmp_path / "all.zarr", sentences=60)
    whole = made.store
    assert linear_cka(whole, whole)["value"].to_list() == pytest.approx(linear_cka(whole)["value"].to_list())
    part = export(whole.select(words=["suit", "bank"]), tmp_path / "part.zarr")
    rows = whole.select(words=["suit", "bank"])
    assert list(part.index.words) != list(whole.index.words)
    table = linear_cka(part, rows)
    assert table.filter(pl.col("layer") == pl.col("other_layer"))["value"].to_list() == pytest.approx([1, 1, 1])


def test_bad_input_is_refused(written: Written, tmp_path: Path) -> None:
    store = written.store
    with pytest.raises(InvalidValueError, match="layer 7 is not stored: choose among 0, 3, 4"):
        linear_cka(store, other_layers=[7])
    with pytest.raises(InvalidValueError, match="is selected: choose other conditions"):
        linear_cka(store.select(rows=[]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnfinishedStoreWarning)
        unfinished = make_store(tmp_path / "unfinished.zarr", leave_out=(1,)).store
    with pytest.raises(MissingRowsError, match="not written"):
        linear_cka(unfinished)
    vectors = vectors_of(7)
    vectors[1, 200] = np.nan
    broken = stored(tmp_path / "nan.zarr", vectors)
    row = int(np.flatnonzero(np.isnan(broken.values[1]).any(1))[0])
    with pytest.raises(NonFiniteError, match=f"layer 3, row {row} of .* not finite"):
        linear_cka(broken.store)
