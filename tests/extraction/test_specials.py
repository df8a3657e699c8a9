"""Rows of special tokens and of sentences against transformers run on one sentence at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import embstore as es
from embstore.corpus import Sentence
from embstore.errors import CorpusError, InvalidValueError
from tests.extraction.plans import plan_of
from tests.models.tiny import SENTENCES, save

TEXTS = [" ".join(words) for words in SENTENCES if words]
ADDED = {"bert": (["[CLS]"], ["[SEP]"]), "llama": (["<s>"], []), "xlnet": ([], ["<sep>", "<cls>"])}
SLOW = pytest.mark.slow
NAMES = ["bert", "llama", pytest.param("xlnet", marks=SLOW)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name in (*ADDED, "gpt2"):
        save(name, folder / name)
    for name, token in (("bert", "[CLS]"), ("xlnet", "<cls>")):  # as published tokenizers say
        path = folder / name / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"cls_token": token}))
    return folder


def extracted(folder: Path, path: Path, corpus: Any = None, **options: Any) -> es.Store:
    made = plan_of(corpus or [text.split() for text in TEXTS], model=folder, dtype="float32", **options)
    store = es.extract(made, path)
    assert es.verify(path).ok
    return store


@torch.inference_mode()
def plain(folder: Path, text: str, *, max_length: int | None = None) -> tuple[list[str], np.ndarray]:
    """Return the tokens of a sentence, special ones included, and all layers [layer, position, feature]."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    options = {} if max_length is None else {"truncation": True, "max_length": max_length}
    given = tokenizer(" ".join(text.split()), return_tensors="pt", **options)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    states = model(**given, output_hidden_states=True).hidden_states
    return tokenizer.convert_ids_to_tokens(given["input_ids"][0].tolist()), torch.cat(states).numpy()


def close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, atol=3e-5 * np.abs(expected).max())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("unit", ["subword", pytest.param("word", marks=SLOW)])
@pytest.mark.quick(1)
def test_special_tokens_have_rows(folders: Path, name: str, unit: str, tmp_path: Path) -> None:
    store = extracted(folders / name, tmp_path / "x.zarr", specials=True, unit=unit)
    before, after = ADDED[name]
    for sentence, text in enumerate(TEXTS):
        tokens, states = plain(folders / name, text)
        rows = store.select(where=f"sentence = {sentence} AND special IS NOT NULL")
        table = rows.table()
        assert table["word"].to_list() == table["special"].to_list() == [*before, *after]
        n_words = len(text.split())
        places = [*range(-len(before), 0), *range(n_words, n_words + len(after))]
        assert table["position"].to_list() == places
        close(rows.vectors(), states[:, [*range(len(before)), *range(len(tokens) - len(after), len(tokens))]])
        if unit == "subword":  # the rows of a sentence are its tokens, in order
            every = store.select(where=f"sentence = {sentence}")
            assert every.table()["word"].to_list() == tokens
            close(every.vectors(), states)


@SLOW
def test_words_are_the_same_with_and_without_specials(folders: Path, tmp_path: Path) -> None:
    alone = extracted(folders / "bert", tmp_path / "alone.zarr")
    store = extracted(folders / "bert", tmp_path / "x.h5", specials=True)
    words = store.select(where="special IS NULL")
    assert len(words) == alone.n_rows
    assert len(store.select(where="special IS NOT NULL")) == 2 * len(TEXTS) == store.n_rows - alone.n_rows
    np.testing.assert_array_equal(words.vectors(), alone.select().vectors())
    assert words.table(columns=["word", "position"]).rows() == alone.table(columns=["word", "position"]).rows()
    assert store.metadata.corpus["sha256"] == alone.metadata.corpus["sha256"]
    assert len(alone.select()) == alone.n_rows
    assert store.select(labels={"special": "[CLS]"}).rows.tolist() == store.select(words="[CLS]").rows.tolist()
    found = es.neighbors(store, "[CLS]", layers=3, k=len(TEXTS) + 3)
    marked = found.filter(found["special"].is_not_null()).select("special", "text", "marked").rows()
    assert marked
    assert all(it == (f"[[CLS]] {text}" if kind == "[CLS]" else f"{text} [[SEP]]") for kind, text, it in marked)
    with pytest.raises(InvalidValueError, match="no rows of special tokens: extract one with --specials"):
        alone.select(labels={"special": "[SEP]"})


def test_a_choice_of_words_keeps_the_specials_of_their_sentences(folders: Path, tmp_path: Path) -> None:
    keep = es.corpus.Keep(words=frozenset({"bank", "cat"}), max_contexts=1)
    store = extracted(folders / "bert", tmp_path / "x.zarr", specials=True, keep=keep)
    assert store.table()["word"].to_list() in (
        ["[CLS]", "bank", "[SEP]", "[CLS]", "cat", "[SEP]"],
        ["[CLS]", "cat", "[SEP]", "[CLS]", "bank", "[SEP]"],
    )


def test_special_tokens_of_a_sentence_in_blocks_are_the_first_and_the_last(folders: Path, tmp_path: Path) -> None:
    store = extracted(folders / "bert", tmp_path / "x.zarr", [TEXTS[0].split()], specials=True, max_length=7)
    contexts = store.index.contexts
    assert contexts is not None
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders / "bert")
    ids = [store.index.text.ids[slice(*run)].tolist() for run in zip(contexts.start, contexts.stop, strict=True)]
    assert len(ids) > 1
    first, last = (plain(folders / "bert", tokenizer.decode(ids[at]))[1][:, at] for at in (0, -1))
    close(store.select(where="special IS NOT NULL").vectors(), np.stack([first, last], 1))


@pytest.mark.parametrize("pooling", ["mean", "cls", *(pytest.param(one, marks=SLOW) for one in ("first", "last"))])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.quick(1)
def test_a_row_for_each_sentence(folders: Path, name: str, pooling: str, tmp_path: Path) -> None:
    if name == "llama" and pooling == "cls":
        return
    labelled = [Sentence(text.split(), {"number": [str(at)] * len(text.split())}) for at, text in enumerate(TEXTS)]
    store = extracted(folders / name, tmp_path / "x.zarr", labelled, unit="sentence", pooling=pooling, layers="1-3")
    table = store.table()
    assert table["word"].to_list() == table["text"].to_list() == TEXTS
    assert table["position"].to_list() == [0] * len(TEXTS)
    assert table["number"].to_list() == [str(at) for at in range(len(TEXTS))]
    before, after = ADDED[name]
    for row, text in enumerate(TEXTS):
        tokens, states = plain(folders / name, text)
        body = states[1:, len(before) : len(tokens) - len(after)]
        expected = {
            "mean": body.mean(1),
            "first": body[:, 0],
            "last": body[:, -1],
            "cls": states[1:, -1 if name == "xlnet" else 0],
        }
        close(store.select(rows=[row]).vectors()[:, 0], expected[pooling])
        assert table["subwords"][row] == (1 if pooling == "cls" else body.shape[1])
    assert es.neighbors(store, TEXTS[0], layers="last", k=2)["word"].len() == 2


def test_a_cut_sentence_is_pooled_within_the_limit(folders: Path, tmp_path: Path) -> None:
    store = extracted(folders / "bert", tmp_path / "x.zarr", [TEXTS[0].split()], unit="sentence", max_length=7)
    _, states = plain(folders / "bert", TEXTS[0], max_length=7)
    close(store.select().vectors()[:, 0], states[:, 1:6].mean(1))


def test_bad_input_is_one_line(folders: Path) -> None:
    for options, message in (
        ({"pooling": "cls"}, "pooling cls is for unit sentence, not word"),
        (
            {"unit": "sentence", "keep": es.corpus.Keep(max_contexts=3)},
            "unit sentence does not go with a choice of words",
        ),
    ):
        with pytest.raises(InvalidValueError, match=message):
            es.ExtractionOptions(**options)  # type: ignore[arg-type]
    for options, message in (
        ({"specials": True}, "gpt2 adds no special tokens to a sentence"),
        ({"unit": "sentence", "pooling": "cls"}, "gpt2 adds no .CLS. to a sentence: choose pooling mean"),
    ):
        with pytest.raises(InvalidValueError, match=message):
            plan_of([["a"]], model=folders / "gpt2", **options)
    with pytest.raises(CorpusError, match="the corpus has a label column 'special'"):
        plan_of([Sentence(["a"], {"special": ["x"]})], model=folders / "bert", specials=True)
