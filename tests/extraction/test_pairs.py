"""Pairs of sentences against transformers run on one pair at a time, as its tokenizer makes it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import embstore as es
from embstore.corpus.sentence import PAIR, Sentence, sentence_pair
from embstore.errors import CorpusError, InvalidValueError, ModelError
from embstore.models import load_encoder
from tests.extraction.plans import plan_of
from tests.models.tiny import SENTENCES, save

PAIRED = [(SENTENCES[number], SENTENCES[-number - 1]) for number in range(4)]
# the special tokens before, between and after, with their token types; those of the sentences are 0 and the last number
SHAPES = {
    "bert": (["[CLS]:0"], ["[SEP]:0"], ["[SEP]:1"], 1),
    "odd": (["[CLS]:0"], ["[SEP]:1"], ["[SEP]:1"], 1),  # BERT with another type between the sentences
    "roberta": (["<s>:0"], ["</s>:0", "</s>:0"], ["</s>:0"], 0),
    "xlnet": ([], ["<sep>:0"], ["<sep>:1", "<cls>:2"], 1),
}
NAMES = ["bert", "odd", *(pytest.param(name, marks=pytest.mark.slow) for name in ("roberta", "xlnet"))]


def model(name: str, folder: Path) -> Path:
    """Save a tiny model whose tokenizer makes pairs as published ones do."""
    save("bert" if name == "odd" else name, folder)
    before, between, after, second = SHAPES[name]
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    parts = [*before, "A:0", *between, f"B:{second}", *after]
    tokenizer["post_processor"]["pair"] = [
        {"Sequence" if part[0] in "AB" else "SpecialToken": {"id": part[:-2], "type_id": int(part[-1])}}
        for part in parts
    ]
    path.write_text(json.dumps(tokenizer))
    return folder


@torch.inference_mode()
def plain(folder: Path, first: list[str], second: list[str]) -> tuple[list[int | None], list[int], np.ndarray]:
    """Return for each token of a pair its side (None: special) and its word, and all layers."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    texts = " ".join(first), " ".join(second)
    given = tokenizer(*texts, return_tensors="pt", return_offsets_mapping=True)
    sides, words = given.sequence_ids(0), list[int]()
    tokens = tokenizer.convert_ids_to_tokens(given["input_ids"][0])
    for side, token, (start, stop) in zip(sides, tokens, given.pop("offset_mapping")[0].tolist(), strict=True):
        words.append(-1 if token == "▁" else texts[side or 0][: stop - 1 if stop > start else 0].count(" "))
    network = transformers.AutoModel.from_pretrained(folder).eval()
    return sides, words, torch.cat(network(**given, output_hidden_states=True).hidden_states).numpy()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.quick(1)
def test_pairs_are_encoded_as_the_tokenizer_makes_them(name: str, tmp_path: Path) -> None:
    folder = model(name, tmp_path / "model")
    corpus = [sentence_pair(*map(Sentence, pair), {"label": str(at)}) for at, pair in enumerate(PAIRED)]
    made = plan_of([["The", "cat"], *corpus], model=folder, dtype="float32", specials=True)
    store = es.extract(made, tmp_path / "x.zarr")
    assert es.verify(store.path).ok
    tolerance = 3e-5 * np.abs(store.select().vectors()).max()
    before, between, after, _ = SHAPES[name]
    for number, (first, second) in enumerate(PAIRED):
        sides, words, states = plain(folder, first, second)
        rows = store.select(where=f"sentence = {number + 1}")
        table, vectors = rows.table(), rows.vectors()
        assert table["text"][0] == f"{' '.join(first)}\n{' '.join(second)}"
        assert set(table["label"].to_list()) == {str(number), None}
        for row, (word, side, special, position) in enumerate(
            table.select("word", "side", "special", "position").iter_rows()
        ):
            if special is None:
                offset = 0 if side == "1" else len(first) + 1
                assert word == (first if side == "1" else second)[position - offset]
                own = [at for at, one in enumerate(sides) if one == int(side) - 1 and words[at] == position - offset]
            elif position == len(first):
                assert special == "".join(part[:-2] for part in between)
                own = [len(before) + sides.count(0) + at for at in range(len(between))]
            else:
                assert side is None
                own = [row if position < 0 else len(sides) - len(after) + position - len(first) - len(second) - 1]
            np.testing.assert_allclose(vectors[:, row], states[:, own].mean(1), atol=tolerance)
        assert table["special"].drop_nulls().len() == len(before) + 1 + len(after)
    alone = store.select(where="sentence = 0").table()
    assert alone["side"].to_list() == [None] * len(alone)


def test_mrpc_and_labelled_pairs_are_read(tmp_path: Path) -> None:
    mrpc = tmp_path / "mrpc.tsv"
    mrpc.write_text("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t70\t71\tA cat.\tOne cat sat.\n")
    nsp = tmp_path / "next.pairs"
    nsp.write_text("no\tIt rained\tCats sleep\n\n")
    (first,) = es.open_corpus(mrpc, format="pairs")
    assert list(first.words) == ["A", "cat", ".", PAIR, "One", "cat", "sat", "."]
    assert list(first.labels["side"]) == ["1"] * 3 + [None] + ["2"] * 4
    assert list(first.labels["label"]) == ["1"] * 3 + [None] + ["1"] * 4
    (second,) = es.open_corpus(nsp)
    assert second.labels["label"][0] == "no"
    for text, message in (
        ("yes\tone\n", "2 fields instead of 3"),
        ("\tone\ttwo\n", "the label .field 1. is empty"),
        ("yes\tone\t \n", "sentence 2 has no word"),
    ):
        nsp.write_text(text)
        with pytest.raises(CorpusError, match=f"next.pairs:1: {message}"):
            list(es.open_corpus(nsp))


def test_one_row_a_pair_and_none_for_the_mark(tmp_path: Path) -> None:
    folder = model("bert", tmp_path / "model")
    corpus = [sentence_pair(*map(Sentence, PAIRED[0]))]
    words = es.extract(plan_of(corpus, model=folder), tmp_path / "words.zarr")
    assert PAIR not in words.table()["word"].to_list()
    assert words.n_rows == len(PAIRED[0][0]) + len(PAIRED[0][1])
    _, _, states = plain(folder, *PAIRED[0])
    made = plan_of(corpus, model=folder, unit="sentence", pooling="mean", dtype="float32", layers="last")
    row = es.extract(made, tmp_path / "pair.zarr").select().vectors()[0, 0]
    np.testing.assert_allclose(row, states[-1, 1:-1].mean(0), atol=3e-5 * np.abs(states).max())


def test_bad_pairs_are_one_line(tmp_path: Path) -> None:
    folder = model("bert", tmp_path / "model")
    pair = [sentence_pair(Sentence(["a", "b"]), Sentence(["c"]))]
    with pytest.raises(InvalidValueError, match="pairs of sentences are encoded whole"):
        plan_of(pair, model=folder, context_window=2)
    with pytest.raises(ModelError, match="takes no pairs of sentences"):
        plan_of(pair, model=load_encoder("random:4"))
    with pytest.raises(ModelError, match="no known form for pairs"):
        plan_of(pair, model=save("bert", tmp_path / "single"))
