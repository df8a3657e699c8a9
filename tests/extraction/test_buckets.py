"""Extraction into a bucket writes the bytes of a store on a disk, also after interruptions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import embstore as es
from embstore.corpus import Sentence
from embstore.errors import NonFiniteError
from tests.extraction.fake import FakeEncoder
from tests.extraction.plans import plan_of
from tests.extraction.test_pipeline import many, small_partitions
from tests.store.example import all_files
from tests.store.memory_bucket import URL, MemoryBucket

pytest.importorskip("obstore", reason="no obstore: pip install 'embstore[objects]'")


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> MemoryBucket:
    small_partitions(monkeypatch)
    held = MemoryBucket()
    monkeypatch.setattr("embstore.store.storage.objects.ObjectStorage.at", held.at)
    return held


def plan(sentences: list[Sentence], *, model: FakeEncoder | None = None, **options: Any) -> es.extraction.Plan:
    return plan_of(sentences, model=model or FakeEncoder(), **({"dtype": "float32"} | options))


@pytest.mark.parametrize("dtype", ["float32", pytest.param("int8", marks=pytest.mark.slow)])
def test_a_bucket_gets_the_bytes_of_a_disk(memory: MemoryBucket, tmp_path: Path, dtype: str) -> None:
    sentences = many(150)
    store = es.extract(plan(sentences, dtype=dtype, store=URL), URL)
    assert store.finished
    assert str(store.path) == URL
    near = es.extract(plan(sentences, dtype=dtype), tmp_path / "x.zarr")
    assert near.metadata.layout.n_partitions > 2
    assert memory.files() == all_files(near.path)
    before = memory.files()
    assert es.extract(plan(sentences, dtype=dtype), URL).finished
    assert memory.files() == before


def test_repair_encodes_what_is_damaged(memory: MemoryBucket) -> None:
    sentences = many(150)
    es.extract(plan(sentences), URL)
    before = memory.files()
    for name in ("hidden_states/c/0/1/0", "occurrences/type/c/0", "commits/c/0/0"):
        memory.storage.put(name, [before[name][:-9] + bytes(9)])
        assert es.extract(plan(sentences), URL, repair=True).finished
        assert memory.files() == before


def test_what_cannot_be_stored_leaves_nothing(memory: MemoryBucket) -> None:
    encoder = FakeEncoder()
    poisoned = plan([Sentence(["zzz", "poison"])], model=encoder)
    encoder.poison = "zzz"
    with pytest.raises(NonFiniteError):
        es.extract(poisoned, URL)
    assert memory.files() == {}
