"""`es.neighbors`: who is asked about, who may answer, and what the table says of each."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import embstore as es
from embstore.analysis.neighbors.find import encode_word, encoder_of, mark_words
from embstore.analysis.neighbors.space import Space
from embstore.corpus.sentence import Document, Span
from embstore.errors import InvalidValueError, ModelError
from embstore.vectors import WordVectors
from tests.analysis.test_exact import all_scores
from tests.models import tiny

TEXTS = [
    "the bank of the river was steep",
    "the bank closed early and the bank opened late",
    "a river ran past the old mill",
    "she sat by the river bank",
    "the mill was closed",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save("bert", tmp_path_factory.mktemp("model") / "bert")


@pytest.fixture(scope="module", params=["zarr", "h5"])
def store(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> es.Store:
    folder = tmp_path_factory.mktemp("store")
    conllu = folder / "corpus.conllu"
    with conllu.open("w") as file:
        for text in TEXTS:
            for number, word in enumerate(text.split(), 1):
                tag = "NOUN" if word in ("bank", "river", "mill") else "X"
                print(number, word, word, tag, "_", "_", 0, "root", "_", "_", sep="\t", file=file)
            print(file=file)
    plan = es.plan(conllu, model=model, options=es.ExtractionOptions(dtype="float32"), calibrate=False)
    return es.extract(plan, folder / f"store.{request.param}")


def brute(store: es.Store, row: int, layer: int, allowed: Callable[[int], bool], k: int, space: Space) -> list[int]:
    held = store.vectors(np.arange(store.n_rows), layers=layer)
    scores = all_scores(space, held[[row]], held)[0]
    order = np.argsort(scores if space.ascending else -scores, kind="stable")
    return [other for other in order.tolist() if other != row and allowed(other)][:k]


@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
@pytest.mark.quick(2)
def test_each_occurrence_of_a_word(store: es.Store, metric: str) -> None:
    table = es.neighbors(store, "bank", layers=2, k=4, metric=metric, exclude="self")
    rows = store.select(words="bank").rows.tolist()
    assert table["query"].unique(maintain_order=True).to_list() == rows
    for row in rows:
        part = table.filter(pl.col("query") == row)
        assert part["occurrence"].to_list() == brute(store, row, 2, lambda other: True, 4, Space(metric))
        assert part["rank"].to_list() == [1, 2, 3, 4]
    assert table["layer"].unique().to_list() == [2]
    assert table["store"].unique().to_list() == [str(store.path)]


def test_what_the_table_says(store: es.Store) -> None:
    table = es.neighbors(store, store.select(rows=[1]), k=3)
    assert table["layer"][0] == store.layers[-1]
    contexts = store.select(rows=table["occurrence"].to_numpy()).table()
    for column in ("word", "sentence", "position", "upos", "text"):
        assert table[column].to_list() == contexts[column].to_list()
    for row in table.to_dicts():
        words = row["text"].split()
        words[row["position"]] = f"[{words[row['position']]}]"
        assert row["marked"] == " ".join(words)


def test_filters_hold_exactly(store: es.Store) -> None:
    index, row = store.index, int(store.select(words="bank").rows[1])
    nouns = store.select(labels={"upos": "NOUN"})
    cases: list[tuple[Any, dict[str, Any], Callable[[int], bool]]] = [
        (store, {"exclude": "word"}, lambda other: index.type[other] != index.type[row]),
        (store, {"exclude": "sentence"}, lambda other: index.sentence[other] != index.sentence[row]),
        (nouns, {}, lambda other: other in nouns.rows),
        (store.select(rows=slice(3, 60)), {}, lambda other: 3 <= other < 60),
        (
            nouns,
            {"exclude": "both"},
            lambda other: (
                other in nouns.rows
                and index.type[other] != index.type[row]
                and index.sentence[other] != index.sentence[row]
            ),
        ),
    ]
    for source, options, allowed in cases:
        found = es.neighbors(source, store.select(rows=[row]), layers=1, k=6, **options)["occurrence"].to_list()
        near = brute(store, row, 1, allowed, store.n_rows, Space())
        if options.get("exclude") in ("word", "both"):  # each word once
            first = np.unique(index.type[near], return_index=True)[1]
            near = [near[place] for place in sorted(first.tolist())]
        assert found == near[:6]


def test_a_word_finds_other_words_each_once_whatever_the_case(tmp_path: Path) -> None:
    words = ["Bank", "bank", "Mill", *["mill"] * 40, "river", *["the"] * 30]
    angles = np.array([0, 0.01, 0.2, *np.linspace(0.1, 0.19, 40), 1.2, *np.linspace(0.3, 0.4, 30)])
    vectors = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    sentences = [[word] for word in words]
    store = es.store.write_arrays(tmp_path / "s.zarr", sentences, vectors[:, None, None], model="m", dtype="float32")
    found = es.neighbors(store, "bank", k=3)
    assert found["word"].to_list() == ["mill", "the", "river"]
    assert found["occurrence"].to_list() == [3, 44, 43]
    assert found["rank"].to_list() == [1, 2, 3]
    assert es.neighbors(store, "bank", k=9)["word"].to_list() == ["mill", "the", "river"]
    assert es.neighbors(store, "bank", k=3, exclude="self")["occurrence"].to_list() == [0, 3, 4]
    assert es.neighbors(store, store.select(words="bank"), k=1)["word"].to_list() == ["Bank"]


def test_vectors_and_several_words(store: es.Store) -> None:
    held = store.vectors(np.arange(store.n_rows), layers=0).astype(np.float64)
    means = [held[store.select(words=word).rows].mean(0) for word in ("bank", "river")]
    table = es.neighbors(store, means, layers=0, k=3)
    for number, mean in enumerate(means):
        scores = all_scores(Space(), mean[None], held)[0]
        part = table.filter(pl.col("query") == number)
        assert part["occurrence"].to_list() == np.argsort(-scores, kind="stable")[:3].tolist()
        np.testing.assert_allclose(part["score"], np.sort(scores)[::-1][:3])
    rows = store.select(words=["bank", "river"]).rows
    assert es.neighbors(store, ["bank", "river"], k=1)["query"].to_list() == rows.tolist()


def test_less_the_mean(store: es.Store) -> None:
    held = store.vectors(np.arange(store.n_rows), layers=1).astype(np.float64)
    placed = held - held.mean(0)
    unit = placed / np.linalg.norm(placed, axis=1, keepdims=True)
    scores = unit @ unit[4]
    scores[4] = -np.inf
    table = es.neighbors(store, store.select(rows=[4]), layers=1, k=5, centered=True)
    assert table["occurrence"].to_list() == np.argsort(-scores)[:5].tolist()
    np.testing.assert_allclose(table["score"], np.sort(scores)[::-1][:5], atol=1e-6)


@pytest.mark.quick(1)
def test_a_word_in_a_new_sentence_is_encoded_as_the_store_was(store: es.Store, model: Path) -> None:
    found = es.neighbors(store, "the bank of the [river] was steep", layers=2, k=2, model=model)
    assert found["marked"][0] == "the bank of the [river] was steep"
    assert found["score"][0] == pytest.approx(1, abs=1e-6)
    assert found["query"].to_list() == [0, 0]
    assert es.neighbors(store, "the [bank] closed", k=1)["rank"].to_list() == [1]  # where it was before


@pytest.mark.parametrize(("tokenize", "pooling"), [("text", "first"), ("text", "mean"), ("words", "max")])
@pytest.mark.quick(2)
def test_words_of_a_text_are_encoded_as_they_are_stored(tokenize: Any, pooling: Any, tmp_path: Path) -> None:
    text = '"No,"  she  said, ("never," and\nso on),\tdidn\'t she?"  No,"...'
    folder, trainer = tiny.save("gpt2", tmp_path / "m"), trainers.BpeTrainer(vocab_size=290, show_progress=False)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator([text] * 9, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    corpus = es.open_corpus([Document(text, spans=[Span(0, len(text), "sentence")])], words="punctuation")
    options = es.ExtractionOptions(tokenize=tokenize, pooling=pooling, dtype="float32")
    store = es.extract(es.plan(corpus, model=folder, options=options, calibrate=False), tmp_path / "s.zarr")
    assert (store.metadata.corpus["shared_subwords"] > 1) == (tokenize == "text")
    vectors = store.vectors(np.arange(store.n_rows))
    assert len(set(zip(*store.index.spans(np.arange(store.n_rows)), strict=True))) == store.n_rows > 12
    encoder = encoder_of(store, folder)
    for row, marked in enumerate(mark_words(store, np.arange(store.n_rows))):
        found = encode_word(store, marked, layers=store.layers, model=encoder)
        np.testing.assert_allclose(found, vectors[:, row], atol=1e-5)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files in /proc")
@pytest.mark.slow
def test_encoding_a_sentence_leaves_no_file_open(store: es.Store, model: Path) -> None:
    es.neighbors(store, "the [bank] closed", k=1, model=model)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        es.neighbors(store, "the [bank] closed", k=1, model=model)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_words_of_a_table() -> None:
    rng = np.random.default_rng(0)
    table = WordVectors(tuple(f"w{number}" for number in range(50)), rng.normal(size=(50, 8)).astype(np.float32))
    found = es.neighbors(table, ["w3", "w7"], k=4)
    unit = table.vectors / np.linalg.norm(table.vectors, axis=1, keepdims=True)
    for word in ("w3", "w7"):
        scores = unit @ unit[int(word[1:])]
        scores[int(word[1:])] = -np.inf
        expected = [f"w{row}" for row in np.argsort(-scores)[:4]]
        assert found.filter(pl.col("query") == word)["word"].to_list() == expected
    assert es.neighbors(table, table.vectors[5], k=1)["word"].to_list() == ["w5"]
    centred = es.neighbors(table, "w3", k=4, centered=True, metric="l2")
    assert centred["score"].is_sorted()


@pytest.mark.parametrize(
    ("query", "options", "match"),
    [
        ("bnak", {}, "no word 'bnak': did you mean 'bank'"),
        ("bank", {"k": 500}, "k 500 is more than the 33 occurrences"),
        ("bank", {"layers": 9}, "layer 9 is not stored"),
        ("bank", {"layers": [0, 1]}, "are 2 layers: give one"),
        (17, {}, r"17 is no vector: for an occurrence give store.select\(rows="),
        ([17, 4], {}, r"query: \[17, 4\] is no vector"),
        (np.ones(3), {}, r"queries must be \[q, 32\]"),
        (np.ones(32), {"exclude": "word"}, "exclude 'word' needs queries that are words or occurrences"),
        ("two [marked] [words]", {}, r"2 words of the text are in \[brackets\]"),
        ("bank", {"model": "x"}, r"give one with a word in \[brackets\]"),
    ],
)
def test_bad_input_in_one_line(store: es.Store, query: Any, options: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidValueError, match=match):
        es.neighbors(store, query, **options)


def test_another_model_is_refused(store: es.Store, tmp_path: Path) -> None:
    other = tiny.save("bert", tmp_path / "other", seed=1)
    with pytest.raises(ModelError, match="has other weights than the model 'bert' that made"):
        es.neighbors(store, "the [bank]", model=other)


def test_no_candidate_is_left(store: es.Store) -> None:
    nothing, one = store.select(words="mill", labels={"upos": "X"}), store.select(rows=[1])
    with pytest.raises(InvalidValueError, match=r"no occurrence of .* can be found"):
        es.neighbors(nothing, "bank")
    assert es.neighbors(one, one, k=1).schema == es.neighbors(store, one, k=1).schema  # no row, but all columns


def test_an_unknown_word_of_a_table() -> None:
    table = WordVectors(("bank", "river"), np.eye(2, dtype=np.float32))
    with pytest.raises(InvalidValueError, match="no vector of 'bnak'; similar words are bank"):
        es.neighbors(table, "bnak", k=1)
    with pytest.raises(InvalidValueError, match="k 2 is more than the 1 words"):
        es.neighbors(table, "bank", k=2)
    with pytest.raises(InvalidValueError, match="no layers, occurrences, index or model"):
        es.neighbors(table, "bank", layers=1)


def test_through_an_index(store: es.Store) -> None:
    pytest.importorskip("faiss", reason="indexes need faiss")
    es.analysis.build_index(store, 2, kind="hnsw")
    nouns = store.select(labels={"upos": "NOUN"})
    for data, options in ((store, {}), (store, {"exclude": "word"}), (nouns, {})):
        exact = es.neighbors(data, "bank", layers=2, k=5, **options)  # type: ignore[arg-type]
        found = es.neighbors(data, "bank", layers=2, k=5, index="layer2-hnsw-cosine", **options)  # type: ignore[arg-type]
        np.testing.assert_allclose(found["score"], exact["score"], rtol=1e-12)
        assert found.drop("score", "search").equals(exact.drop("score", "search"))
    with pytest.raises(InvalidValueError, match="the index layer2-hnsw-cosine has layer 2, not 1"):
        es.neighbors(store, "bank", layers=1, k=5, index="layer2-hnsw-cosine")
    with pytest.raises(InvalidValueError, match="is of vectors as stored, by cosine"):
        es.neighbors(store, "bank", layers=2, k=5, index="layer2-hnsw-cosine", centered=True)
