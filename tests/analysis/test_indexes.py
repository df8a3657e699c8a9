"""Indexes: exact kinds equal brute force, filters hold, hits are scored by what is stored; damage is found."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
import zarr

import embstore as es
from embstore.analysis.neighbors import index as index_module
from embstore.analysis.neighbors.exact import Exclusion
from embstore.analysis.neighbors.index import build_index, folder_of, list_indexes, open_index, remove_index
from embstore.errors import (
    InvalidValueError,
    MissingPackageError,
    MissingRowsError,
    NonFiniteError,
    SearchIndexError,
    SearchIndexNotFoundError,
)
from embstore.store import Store, StoreWriter, open_store, verify
from tests.analysis.index_store import LAYER, hard_store, require_nearest, scores_by_hand
from tests.analysis.word_store import Written, write_words
from tests.store.example import example

METRICS = ("cosine", "ip", "l2")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """With which the same build writes the same bytes."""
    with es.config(threads=1):
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return hard_store(tmp_path_factory.mktemp("made") / "s.zarr")


def fresh(path: Path) -> Store:
    return hard_store(path).store


def files_of(store: Store, name: str) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (folder_of(store) / name).iterdir()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("metric", METRICS)
def test_every_dtype_is_searched_as_it_reads(dtype: str, metric: str, tmp_path: Path) -> None:
    made = hard_store(tmp_path / "s.zarr", words=6, dtype=dtype)
    index = build_index(made.store, LAYER, kind="hnsw", metric=metric)
    queries = made.values[0][::30]
    hits = index.search(queries, k=12)
    by_hand = scores_by_hand(queries, made.values[0], metric)
    np.testing.assert_allclose(hits.scores, np.take_along_axis(by_hand, hits.rows, 1), rtol=1e-12, atol=1e-10)
    nearest = np.sort(by_hand, 1)[:, :12] if metric == "l2" else -np.sort(-by_hand, 1)[:, :12]
    assert np.isclose(hits.scores, nearest, rtol=1e-9, atol=1e-9).mean() > 0.5


@pytest.mark.parametrize("kind", ["ivf", "ivfpq", "hnsw"])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.quick(3)
def test_filters_hold_and_k_answers_come_where_there_are_k(
    made: Written, metric: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "FEW_ROWS", 20)
    index = build_index(made.store, LAYER, kind=kind, metric=metric)
    rng = np.random.default_rng(0)
    types = np.asarray(made.store.index.type, np.int64)
    sentences = np.asarray(made.store.index.sentence, np.int64)
    asked = rng.choice(made.store.n_rows, 25, replace=False)
    queries = made.values[0][asked]
    for size in (made.store.n_rows, 300, 33, 19):
        rows = np.sort(rng.choice(made.store.n_rows, size, replace=False))
        groups = np.where(rng.random(25) < 0.2, -1, types[asked])
        exclude = [Exclusion(types, groups), Exclusion(sentences, sentences[asked])]
        allowed = np.isin(np.arange(made.store.n_rows), rows)[None] & (sentences[None] != sentences[asked][:, None])
        allowed &= (types[None] != groups[:, None]) | (groups < 0)[:, None]
        by_hand = scores_by_hand(queries, made.values[0], metric)
        hits = index.search(queries, k=30, rows=rows, exclude=exclude)
        for query, (found, scores) in enumerate(zip(hits.rows, hits.scores, strict=True)):
            there = found[found >= 0]
            assert len(there) == len(set(there.tolist())) == min(30, allowed[query].sum())
            assert allowed[query][there].all()
            assert (np.isnan(scores) == (found < 0)).all()
            np.testing.assert_allclose(scores[found >= 0], by_hand[query][there], rtol=1e-12, atol=1e-10)


def test_more_than_there_are_and_a_single_query(made: Written) -> None:
    index = build_index(made.store, LAYER, kind="ivf")
    hits = index.search(made.values[0][0], k=made.store.n_rows + 5)
    require_nearest(
        hits.rows, hits.scores, scores_by_hand(made.values[0][:1], made.values[0], "cosine"), metric="cosine"
    )
    none = index.search(made.values[0][0], k=3, rows=np.empty(0, np.int64))
    assert (none.rows == -1).all()


def test_a_filter_that_faiss_ignores_holds(made: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are not allowed are left out of what an index returns, whatever it does with the filter."""
    monkeypatch.setattr(index_module, "FEW_ROWS", 20)
    index = build_index(made.store, LAYER, kind="hnsw", metric="l2")
    search = index._faiss.search
    monkeypatch.setattr(index._faiss, "search", lambda queries, k, params: search(queries, k))
    rows = np.arange(1, made.store.n_rows, 2)
    hits = index.search(made.values[0][::50], k=9, rows=rows)
    assert (hits.rows % 2 == 1).all()


def test_names_and_listing(made: Written) -> None:
    for metric in ("ip", "l2"):
        build_index(made.store, LAYER, kind="ivf", metric=metric)
    states = {state.name: state.state for state in list_indexes(made.store)}
    assert states["layer2-ivf-ip"] == states["layer2-ivf-l2"] == "ready"
    assert open_index(made.store, name="layer2-ivf-l2").info.metric == "l2"
    with pytest.raises(InvalidValueError, match=r"several such indexes: give the name, one of .*layer2-ivf-ip"):
        open_index(made.store, LAYER)
    remove_index(made.store, "layer2-ivf-l2")
    for call in (open_index, remove_index):
        with pytest.raises(SearchIndexNotFoundError, match="has no index 'layer2-ivf-l2'"):
            call(made.store, name="layer2-ivf-l2")  # type: ignore[operator]


def test_removing_the_last_leaves_nothing(tmp_path: Path) -> None:
    for suffix in (".zarr", ".h5"):
        made = hard_store(tmp_path / f"s{suffix}", words=2)
        before = sorted(tmp_path.rglob("*"))
        build_index(made.store, LAYER)
        assert sorted(tmp_path.rglob("*")) != before
        remove_index(made.store, "layer2-sketch")
        assert sorted(tmp_path.rglob("*")) == before
        assert list_indexes(made.store) == []


def test_a_store_that_is_not_finished_has_no_index(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="not finished"):
        made = write_words(tmp_path / "s.zarr", [("a", np.ones((600, 4)))], written=False)
    with pytest.raises(MissingRowsError, match="is not finished, and only a finished store can have an index"):
        build_index(made.store, LAYER, kind="ivf")


def test_bad_searches_are_one_line(made: Written) -> None:
    index, query = build_index(made.store, LAYER, kind="ivf"), made.values[0][:2]
    with pytest.raises(InvalidValueError, match="queries must be"):
        index.search(query[:, :5], k=1)
    with pytest.raises(NonFiniteError):
        index.search(query * np.nan, k=1)


def test_values_that_are_not_finite_name_their_row(tmp_path: Path) -> None:
    vectors = np.ones((300, 4))
    made = write_words(tmp_path / "s.zarr", [("a", vectors), ("b", np.full((1, 4), np.nan))])
    row = made.rows["b"][0]
    for kind in ("ivf", "hnsw", "sketch"):
        with pytest.raises(NonFiniteError, match=f"layer 2, row {row} holds a value that is not finite"):
            build_index(made.store, LAYER, kind=kind)  # type: ignore[arg-type]


def test_without_faiss_the_extra_is_named(made: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    build_index(made.store, LAYER, kind="ivf")
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingPackageError, match=r"embstore\[faiss-cpu\]"):
        open_index(made.store, name="layer2-ivf-cosine")
    with pytest.raises(MissingPackageError, match=r"embstore\[faiss-cpu\]"):
        build_index(made.store, LAYER, kind="hnsw", metric="ip")


@pytest.mark.parametrize("kind", ["ivf", "hnsw", "sketch"])
def test_a_build_that_fails_leaves_nothing_and_the_same_build_the_same_bytes(tmp_path: Path, kind: Any) -> None:
    store = fresh(tmp_path / "s.zarr")
    before = sorted(tmp_path.rglob("*"))

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with es.config(progress=stop), pytest.raises(KeyboardInterrupt):
        build_index(store, LAYER, kind=kind)
    assert sorted(tmp_path.rglob("*")) == before
    name = build_index(store, LAYER, kind=kind).name
    first = files_of(store, name)
    remove_index(store, name)
    build_index(store, LAYER, kind=kind)
    assert files_of(store, name) == first


def test_an_index_that_exists_is_opened_on_a_read_only_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = fresh(tmp_path / "s.zarr")
    built = build_index(store, LAYER, kind="sketch")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    for name in ("unlink", "rename", "replace", "mkdir"):
        monkeypatch.setattr(os, name, refuse)
    assert build_index(store, LAYER, kind="sketch").info == built.info


def test_a_store_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    store = example(rows=600, seed=1).make(tmp_path / "s.zarr")

    def write(done: int, total: int) -> None:
        if done == total:
            rewritten(store.path)

    with es.config(progress=write), pytest.raises(SearchIndexError, match="changed while it was indexed: run"):
        build_index(store, 3, kind="ivf")
    assert list_indexes(store) == []
    assert build_index(store, 3, kind="ivf").info.digest == store.digest


def rewritten(path: Path) -> Store:
    """The same store with other vectors in one partition."""
    made = example(rows=600, seed=1)
    with StoreWriter(path) as writer:
        writer.discard([1])
        arrays = {name: array.copy() for name, array in made.partition(1).items()}
        arrays["hidden_states"][0, 5] += 1
        writer.write(1, arrays)
        writer.finish()
    return open_store(path)


def test_an_index_of_a_changed_store_is_stale(tmp_path: Path) -> None:
    path = tmp_path / "s.zarr"
    store = example(rows=600, seed=1).make(path)
    build_index(store, 3, kind="ivf")
    assert open_index(store, 3).search(np.ones(16), k=2).rows.shape == (1, 2)
    store = rewritten(path)
    for call in (lambda: open_index(store, 3), lambda: open_index(store, name="layer3-ivf-cosine")):
        with pytest.raises(SearchIndexError, match=r"is stale: .* has changed since, .*: build it again with"):
            call()
    assert [state.state for state in list_indexes(store)] == ["stale"]
    index = build_index(store, 3, kind="ivf")
    assert index.info.digest == store.digest
    hits = index.search(store.vectors([261], layers=3), k=1)
    assert hits.rows.tolist() == [[261]]


def test_an_index_of_another_store_is_refused(tmp_path: Path) -> None:
    store, name = fresh(tmp_path / "a.zarr"), "layer2-ivf-cosine"
    build_index(store, LAYER, kind="ivf")
    for taker in (hard_store(tmp_path / "b.h5", words=3).store, hard_store(tmp_path / "c.h5").store):
        shutil.copytree(folder_of(store) / name, folder_of(taker) / name)
        with pytest.raises(SearchIndexError, match=r"is stale: .* or is another store"):
            open_index(taker, name=name)
        assert [state.state for state in list_indexes(taker)] == ["stale"]
    shutil.copytree(folder_of(store) / name, folder_of(store) / "y")
    with pytest.raises(SearchIndexError, match=f"was built as '{name}'"):
        open_index(store, name="y")


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut": lambda folder: os.truncate(folder / "index.faiss", 100),
    "empty": lambda folder: os.truncate(folder / "index.faiss", 0),
    "gone": lambda folder: (folder / "index.faiss").unlink(),
    "longer": lambda folder: (folder / "index.faiss").write_bytes((folder / "index.faiss").read_bytes() + b"x"),
    "pipe": lambda folder: piped(folder / "index.faiss"),
    "pipe for the metadata": lambda folder: piped(folder / "index.json"),
    "no metadata": lambda folder: (folder / "index.json").unlink(),
    "metadata cut": lambda folder: os.truncate(folder / "index.json", 50),
    "metadata of a list": lambda folder: (folder / "index.json").write_text("[]"),
    "metadata of nothing": lambda folder: (folder / "index.json").write_text("{}"),
    "metadata changed": lambda folder: (folder / "index.json").write_text(
        (folder / "index.json").read_text().replace('"layer": 2', '"layer": 1')
    ),
}


def test_a_large_index_is_checked_before_faiss_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = fresh(tmp_path / "s.zarr")
    index = build_index(store, LAYER, kind="ivf")
    content = bytearray((index.path / "index.faiss").read_bytes())
    content[-1] ^= 1
    (index.path / "index.faiss").write_bytes(content)
    monkeypatch.setattr(faiss, "read_index", lambda *arguments, **options: pytest.fail("read"))
    with pytest.raises(SearchIndexError, match="was changed"):
        open_index(store, name=index.name)


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.quick(3)
def test_a_damaged_index_is_refused_and_rebuilt(tmp_path: Path, damage: str) -> None:
    store = fresh(tmp_path / "s.zarr")
    index = build_index(store, LAYER, kind="ivf")
    before = files_of(store, index.name)
    DAMAGE[damage](index.path)
    assert [state.state for state in list_indexes(store)] == ["damaged"]
    with pytest.raises(SearchIndexError, match="is damaged") as raised:
        open_index(store, name=index.name)
    assert "build it again with embstore index, or remove it (--remove layer2-ivf-cosine)" in str(raised.value)
    build_index(store, LAYER, kind="ivf")
    assert files_of(store, index.name) == before


@pytest.mark.parametrize("suffix", [".zarr", ".h5"])
@pytest.mark.quick(1)
def test_indexes_do_not_affect_the_store(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"s{suffix}"
    made = example(rows=600)
    store = made.make(path)
    checked = verify(path).checked_nbytes
    for kind in ("ivf", "hnsw"):
        build_index(store, 3, kind=kind)
    report = verify(path)
    assert report.ok
    assert report.checked_nbytes == checked
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if suffix == ".zarr":
            members = dict(zarr.open_group(str(path), mode="r").members(max_depth=None))
            assert "hidden_states" in members
            assert not any("index" in name.split("/") for name in members)
    copy = es.export(store, tmp_path / "copy.zarr")
    assert verify(copy.path).ok
    assert list_indexes(copy) == []
    with StoreWriter(path) as writer:  # what a resumed extraction does
        assert writer.missing() == []
        writer.finish()
    assert open_index(open_store(path), name="layer3-ivf-cosine").search(np.ones(16), k=1).rows.shape == (1, 1)
