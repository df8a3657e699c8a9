"""Stores of ELMo: the vectors of the plain biLM, resumed to the same bytes, and from the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import embstore as es
from embstore.store import StoreWriter
from tests.models.oracle import relative_error
from tests.models.test_elmo import SENTENCES
from tests.models.tiny_elmo import PlainBiLm, save_elmo
from tests.store.example import all_files


@pytest.fixture
def folder(tmp_path):
    return save_elmo(tmp_path / "elmo")


def corpus(path: Path, *, seed: int = 3) -> Path:
    random = np.random.default_rng(seed)
    words = np.array([word for sentence in SENTENCES for word in sentence if not word.isspace()])
    lines = [" ".join(random.choice(words, size)) for size in random.integers(1, 15, 90)]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


@pytest.mark.parametrize(("suffix", "unit"), [(".zarr", "word"), (".h5", "subword")])
@pytest.mark.quick(1)
def test_a_store_holds_the_vectors_of_the_plain_model(folder, tmp_path, suffix, unit, monkeypatch):
    monkeypatch.setattr("embstore.store.layout.SHARD_NBYTES", 1)
    monkeypatch.setattr("embstore.extraction.partition.PASSAGE_NBYTES", 700)
    text = corpus(tmp_path / "corpus.txt")
    lines = es.open_corpus(text, split="lines", words="spaces")
    plan = es.plan(lines, model=folder, options=es.ExtractionOptions(dtype="float32", unit=unit, batch_subwords=64))
    store = es.extract(plan, tmp_path / f"store{suffix}")
    assert plan.layout.n_partitions > 1
    assert es.verify(store.path).ok
    sentences = [line.split(" ") for line in text.read_text("utf-8").splitlines()]
    assert [store.index.words[number] for number in store.index.type] == [word for words in sentences for word in words]
    plain = PlainBiLm.open(folder)
    expected = np.concatenate([plain.layers(words) for words in sentences], axis=1)
    found = np.stack([store.vectors(np.arange(store.n_rows), layers=layer)[0] for layer in store.layers])
    assert relative_error(found, expected) < 2e-5
    assert (np.asarray(store.index.subwords) == 1).all()
    assert store.metadata.model["architecture"] == "ELMo"
    assert store.metadata.extraction["batching"] == "packed"


@pytest.mark.parametrize("suffix", [".zarr", ".h5"])
@pytest.mark.slow
def test_a_missing_partition_comes_back_with_the_same_bytes(folder, tmp_path, suffix, monkeypatch):
    monkeypatch.setattr("embstore.store.layout.SHARD_NBYTES", 1)
    text, path = corpus(tmp_path / "corpus.txt"), tmp_path / f"s{suffix}"
    for missing in ([], [1]):
        if missing:
            whole = all_files(path)
            with StoreWriter(path) as writer:
                writer.discard(missing)
        made = es.plan(text, model=folder, options=es.ExtractionOptions(layers=[1, 2]), calibrate=False)
        assert made.layout.n_partitions > 2
        es.extract(made, path)
    assert all_files(path) == whole
