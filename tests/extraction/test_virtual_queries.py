"""Every query gives the same table for a full, a thinned and a virtual store, on a disk and in a bucket."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import embstore as es
from embstore.corpus.sentence import Document
from tests.extraction.plans import plan_of
from tests.models import tiny
from tests.object_server import Bucket


def labels(words: list[str]) -> dict[str, list[str]]:
    """A label of each word, and one that a word has several of."""
    return {"upos": ["YX"[len(word) % 2] for word in words], "place": [str(each % 2) for each in range(len(words))]}


def corpus() -> list[es.corpus.Sentence]:
    old, new = (Document(fields={"year": year}) for year in (1900, 1950))
    texts = tiny.random_sentences(100, seed=1)
    return [
        es.corpus.Sentence(text, labels(text), (), old if number < 50 else new) for number, text in enumerate(texts)
    ]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of a full store, of one that is thinned and of one that never had a vector."""
    folder = tmp_path_factory.mktemp("stores")
    found = {name: folder / name / "store.zarr" for name in ("full", "thinned", "virtual")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("embstore.store.layout.SHARD_NBYTES", 1)
        patch.setenv("EMBSTORE_CACHE", str(folder / "made"))
        made = plan_of(corpus(), model=tiny.save("bert", folder / "bert"))
        for path in found.values():
            path.parent.mkdir()
        es.extract(made, found["full"])
        shutil.copytree(found["full"], found["thinned"])
        es.store.thin(found["thinned"], model=folder / "bert")
        es.extract(made, found["virtual"], virtual=True)
    return found


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stores: dict[str, Path]) -> None:
    monkeypatch.setenv("EMBSTORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("EMBSTORE_MODEL", str(stores["full"].parent.parent / "bert"))


def word_of(store: es.Store) -> str:
    return store.index.words[int(np.bincount(store.index.type).argmax())]


def batches(store: es.Store) -> Any:
    loaded = store.select(layers=[1, 2]).to_torch(label="upos", batch_size=50, shuffle=True, seed=3)
    return [np.asarray(each).tobytes() for batch in loaded for each in batch[:3]]


QUERIES: dict[str, Callable[[es.Store], Any]] = {
    "geometry": lambda store: es.geometry(store, min_contexts=2),
    "neighbors": lambda store: es.neighbors(store, word_of(store), layers=1, k=5),
    "sql": lambda store: es.sql(store, "select word, cos(h2, vec(7, 2)) s from occurrences order by s desc limit 9"),
    "lookup": lambda store: (
        store.select(words=word_of(store)).table(),
        store.select(words=word_of(store)).concordance(),
    ),
    "to_torch": batches,
}
QUICK = ("lookup", "to_torch")


def same(one: Any, other: Any) -> bool:
    if isinstance(one, pl.DataFrame):
        return one.drop("store", strict=False).equals(other.drop("store", strict=False))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in QUERIES]
)
@pytest.mark.quick(1)
def test_queries_have_the_same_tables(stores: dict[str, Path], name: str, tmp_path: Path) -> None:
    query = QUERIES[name]
    expected = query(es.open(stores["full"]))
    assert expected is not None
    for kind in ("thinned", "virtual"):
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        assert same(query(es.open(stores[kind])), expected), kind


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["thinned", "virtual"])
def test_one_in_a_bucket_is_computed_into_its_cache(
    stores: dict[str, Path], kind: str, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second reader requests no vector."""
    full = es.open(stores["full"])
    url = bucket.upload(stores[kind], "store.zarr")
    bucket.proxy.reset()
    far = es.open(url)
    assert far.table().equals(full.table())
    assert far.vectors(np.arange(full.n_rows)).tobytes() == full.vectors(np.arange(full.n_rows)).tobytes()
    for name in ("neighbors", "lookup"):
        assert same(QUERIES[name](far), QUERIES[name](full))
    assert list((tmp_path / "cache").glob("*.cached"))
    with monkeypatch.context() as patch:
        patch.setattr("embstore.recomputing._registered", [not_again])
        assert es.open(url).vectors([300], layers=2).tobytes() == full.vectors([300], layers=2).tobytes()
    assert not [each.key for each in bucket.proxy.requests if each.key.startswith("store.zarr/hidden_states/c/")]
    assert es.verify(url).ok


def not_again(*_: Any) -> None:
    raise AssertionError("computed twice")
