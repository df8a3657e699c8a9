"""The English Web Treebank through a real BERT: two dtypes, against one sentence at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import embstore as es
from embstore.spacing import split_words
from embstore.store import Store
from tests.extraction.plans import plan_of
from tests.models.oracle import PlainScript


@pytest.fixture(scope="module")
def made(data: Path, minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[es.extraction.Plan, Store]:
    """The development part in float16."""
    plan = plan_of(data / "ud-ewt" / "en_ewt-ud-dev.conllu", model=minilm)
    return plan, es.extract(plan, tmp_path_factory.mktemp("ewt") / "ewt.zarr")


@pytest.mark.slow
def test_every_word_is_there_or_counted(made: tuple[es.extraction.Plan, Store]) -> None:
    plan, zarr = made
    assert plan.n_sentences == 2_001
    assert zarr.n_rows + sum(drop.count for drop in plan.metadata.dropped) == plan.n_words
    words = [split_words(text) for text in zarr.index.texts]
    for row in np.random.default_rng(3).integers(0, zarr.n_rows, 5_000).tolist():
        sentence, position = int(zarr.index.sentence[row]), int(zarr.index.position[row])
        assert zarr.index.words[int(zarr.index.type[row])] == words[sentence][position]


@pytest.mark.slow
def test_vectors_equal_the_plain_pass(made: tuple[es.extraction.Plan, Store], minilm: Path, tmp_path: Path) -> None:
    _, half = made
    script = PlainScript.open(minilm)
    chosen = np.sort(np.random.default_rng(7).choice(len(half.index.texts), 200, replace=False)).tolist()
    sentences = [split_words(half.index.texts[sentence]) for sentence in chosen]
    single = es.extract(
        plan_of(sentences, model=minilm, dtype="float32"),
        tmp_path / "single.zarr",
    )
    worst = {"float32": 0.0, "float16": 0.0}
    for number, (sentence, words) in enumerate(zip(chosen, sentences, strict=True)):
        present = sorted({place for place in script.layers(words)[1] if place is not None})
        plain = np.stack([script.span(words, place, place + 1, "mean") for place in present], axis=1)
        for store, row in ((half, sentence), (single, number)):
            rows = np.arange(store.index.indptr[row], store.index.indptr[row + 1])
            assert store.index.position[rows].tolist() == present
            difference = np.abs(store.vectors(rows) - plain).max(-1)
            scale = np.abs(plain).max(-1) if store is half else 1
            worst[store.dtype] = max(worst[store.dtype], float((difference / scale).max()))
    assert worst["float32"] < 2e-5
    assert worst["float16"] < 1e-3
