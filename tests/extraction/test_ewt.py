"""The English Web Treebank through a real BERT: two backends, two dtypes, against one sentence at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import embstore as es
from embstore.extraction.extract import extract_together
from embstore.spacing import split_words
from embstore.store import Store
from tests.extraction.plans import plan_of


def plain_sentence(model: torch.nn.Module, tokenizer: object, words: list[str]) -> list[np.ndarray | None]:
    """The vectors [layer, feature] of each word of one sentence, its subwords averaged by hand; None for no subword."""
    inputs = tokenizer(words, is_split_into_words=True, return_tensors="pt", truncation=False)  # type: ignore[operator]
    with torch.no_grad():
        states = model(**inputs, output_hidden_states=True).hidden_states
    vectors: list[np.ndarray | None] = []
    for word in range(len(words)):
        places = [place for place, owner in enumerate(inputs.word_ids()) if owner == word]
        if not places:
            vectors.append(None)
            continue
        pooled = []
        for state in states:
            total = torch.zeros(state.shape[-1], dtype=torch.float64)
            for place in places:
                total += state[0, place].double()
            pooled.append((total / len(places)).numpy())
        vectors.append(np.stack(pooled))
    return vectors


@pytest.fixture(scope="module")
def stores(
    data: Path, minilm: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[es.extraction.Plan, Store, Store]:
    """The training part in float16, as Zarr and as HDF5, of one pass of the model."""
    folder = tmp_path_factory.mktemp("ewt")
    plan = plan_of(data / "ud-ewt" / "en_ewt-ud-train.conllu", model=minilm)
    zarr, hdf5 = extract_together([plan, plan], [folder / "ewt.zarr", folder / "ewt.h5"])
    return plan, zarr, hdf5


@pytest.mark.slow
def test_every_word_is_there_or_counted(stores: tuple[es.extraction.Plan, Store, Store]) -> None:
    plan, zarr, _ = stores
    assert plan.n_sentences == 12_544
    assert zarr.n_rows + sum(drop.count for drop in plan.metadata.dropped) == plan.n_words
    words = [split_words(text) for text in zarr.index.texts]
    for row in np.random.default_rng(3).integers(0, zarr.n_rows, 5_000).tolist():
        sentence, position = int(zarr.index.sentence[row]), int(zarr.index.position[row])
        assert zarr.index.words[int(zarr.index.type[row])] == words[sentence][position]


@pytest.mark.slow
def test_vectors_equal_the_plain_pass(
    stores: tuple[es.extraction.Plan, Store, Store], minilm: Path, tmp_path: Path
) -> None:
    from transformers import AutoModel, AutoTokenizer

    _, half, _ = stores
    model = AutoModel.from_pretrained(minilm).eval()
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    tokenizer.backend_tokenizer.no_truncation()
    chosen = np.sort(np.random.default_rng(7).choice(len(half.index.texts), 500, replace=False)).tolist()
    sentences = [split_words(half.index.texts[sentence]) for sentence in chosen]
    single = es.extract(
        plan_of(sentences, model=minilm, dtype="float32"),
        tmp_path / "single.zarr",
    )
    worst = {"float32": 0.0, "float16": 0.0}
    for number, (sentence, words) in enumerate(zip(chosen, sentences, strict=True)):
        expected = plain_sentence(model, tokenizer, words)
        present = [place for place, vectors in enumerate(expected) if vectors is not None]
        plain = np.stack([expected[place] for place in present], axis=1)
        for store, row in ((half, sentence), (single, number)):
            rows = np.arange(store.index.indptr[row], store.index.indptr[row + 1])
            assert store.index.position[rows].tolist() == present
            difference = np.abs(store.vectors(rows) - plain).max(-1)
            scale = np.abs(plain).max(-1) if store is half else 1
            worst[store.dtype] = max(worst[store.dtype], float((difference / scale).max()))
    print(f"\nlargest difference: {worst['float32']:.2e} (float32), {worst['float16']:.2e} relative (float16)")
    assert worst["float32"] < 2e-5
    assert worst["float16"] < 1e-3
