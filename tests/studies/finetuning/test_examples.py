"""Labels at last subwords, masks of attention windows: each against a plain loop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from embstore.models.checkpoint import open_checkpoint
from embstore.models.transformer.inputs import InputMaker
from embstore.models.transformer.tokens import SubwordTokenizer
from embstore_studies.finetuning.data import LabeledText, LabeledWords
from embstore_studies.finetuning.examples import NO_LABEL, Collator, FineTuneExample, text_examples, word_examples
from embstore_studies.finetuning.network import load_trainable
from tests.models import tiny

NUMBERS = {"A": 0, "B": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save("bert", tmp_path_factory.mktemp("tiny") / "bert")


def tokenizer(folder: Path) -> SubwordTokenizer:
    return SubwordTokenizer(open_checkpoint(folder, revision=None).tokenizer, vocabulary=tiny.VOCABULARY)


@pytest.mark.parametrize("max_length", [4, 9, 128])
def test_labels_are_at_last_subwords(folder: Path, max_length: int) -> None:
    rng = np.random.default_rng(0)
    sentences = [*tiny.random_sentences(30, seed=1), ["\u200b", "cat"], ["Unbelievably", "\u200b"]]
    labels = [[[None, "A", "B"][i] for i in rng.integers(3, size=len(words))] for words in sentences]
    tagged = [LabeledWords(*both) for both in zip(sentences, labels, strict=True)]
    made = word_examples(tagged, tokenizer(folder), NUMBERS, max_length=max_length)

    plain = transformers.AutoTokenizer.from_pretrained(folder)
    expected, cut = [], 0
    for sentence in tagged:
        encoded = plain(list(sentence.words), is_split_into_words=True, truncation=True, max_length=max_length)
        whole = plain(list(sentence.words), is_split_into_words=True, truncation=False)
        labels = [NO_LABEL] * len(encoded["input_ids"])
        for number, label in enumerate(sentence.labels):
            places = [place for place, word in enumerate(whole.word_ids()) if word == number]
            if label is None:
                continue
            if places and places[-1] < len(labels) - 1:
                labels[places[-1]] = NUMBERS[label]
            else:
                cut += 1
        if set(labels) != {NO_LABEL}:
            expected.append((encoded["input_ids"], encoded["token_type_ids"], encoded.word_ids(), labels))
    assert made.n_cut == cut
    assert len(made.examples) == len(expected)
    for example, (ids, types, words, labels) in zip(made.examples, expected, strict=True):
        assert example.ids.tolist() == ids
        assert example.types.tolist() == types
        assert example.words.tolist() == [-1 if word is None else word for word in words]
        assert example.labels.tolist() == labels
    assert made.n_labels == sum(label != NO_LABEL for *_, labels in expected for label in labels)


def inputs(folder: Path) -> InputMaker:
    return load_trainable(open_checkpoint(folder, revision=None), "bert", ["A", "B"]).inputs


def examples(folder: Path, count: int = 6) -> list[FineTuneExample]:
    tagged = [LabeledWords(words, ["A"] * len(words)) for words in tiny.random_sentences(count, seed=3)]
    return word_examples(tagged, tokenizer(folder), NUMBERS, max_length=40).examples


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [0, 1, 2, 8])
@pytest.mark.quick(2)
def test_the_mask_of_a_window(folder: Path, window: int, causal: bool) -> None:
    batch = examples(folder)
    given = Collator(replace(inputs(folder), causal=causal), window)(batch)
    mask = given["attention_mask"]
    length = given["input_ids"].shape[1]
    assert mask.shape == (len(batch), 1, length, length)
    assert mask.dtype == torch.float32
    for row, example in enumerate(batch):
        words = example.words.tolist()
        for query in range(length):
            for key in range(length):
                if query >= len(words) or key >= len(words):
                    sees = query >= len(words) and key >= len(words)
                elif words[key] == -1:
                    sees = True
                else:
                    sees = words[query] != -1 and abs(words[query] - words[key]) <= window
                sees = sees and not (causal and key > query)
                assert (float(mask[row, 0, query, key]) == 0.0) == sees
                if not sees:
                    assert float(mask[row, 0, query, key]) < -1e30


def test_without_a_window_only_padding_is_masked(folder: Path) -> None:
    batch = examples(folder)
    given = Collator(replace(inputs(folder), padding_id=7, takes_types=False), None)(batch)
    assert "token_type_ids" not in given
    for row, example in enumerate(batch):
        many = len(example.ids)
        assert given["input_ids"][row].tolist() == example.ids.tolist() + [7] * (given["labels"].shape[1] - many)
        assert given["attention_mask"][row].sum() == many
        assert given["attention_mask"][row, :many].all()
        assert (given["labels"][row, many:] == NO_LABEL).all()


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2"])
@pytest.mark.parametrize("window", [0, 2])
@pytest.mark.quick(2)
def test_nothing_beyond_a_window_changes_a_label(name: str, window: int, tmp_path: Path) -> None:
    """One layer: a word's logits depend on the words within the window, and on those only."""
    checkpoint = open_checkpoint(tiny.save(name, tmp_path / name), revision=None)
    setattr(checkpoint.config, "n_layer" if name == "gpt2" else "num_hidden_layers", 1)
    trainable = load_trainable(checkpoint, name, ["A", "B"])
    collator = Collator(trainable.inputs, window)
    tagged = [LabeledWords(tiny.SENTENCES[6][:10], ["A"] * 10), LabeledWords(["the"] * 15, ["A"] * 15)]
    made = word_examples(tagged, trainable.tokenizer, NUMBERS, max_length=60).examples
    words, asked = made[0].words, 4
    place = int(np.flatnonzero(words == asked)[-1])

    def logits(changed: int | None) -> torch.Tensor:
        ids = made[0].ids.copy()
        if changed is not None:
            ids[words == changed] = 50 + (ids[words == changed] + 17) % 300
        batch = [FineTuneExample(ids, made[0].types, words, made[0].labels), made[1]]
        with torch.no_grad():
            result: torch.Tensor = trainable.network(**collator(batch)).logits[0, place]
        return result

    usual = logits(None)
    for changed in range(10):
        moved = not torch.allclose(usual, logits(changed), atol=1e-6)
        assert moved == (abs(changed - asked) <= window and not (trainable.inputs.causal and changed > asked))


@pytest.mark.parametrize(("cls", "causal", "place"), [(2, False, 0), (None, False, 0), (None, True, -1), (3, True, -1)])
def test_the_subword_that_predicts_a_sentence(folder: Path, cls: int | None, causal: bool, place: int) -> None:
    plain = transformers.AutoTokenizer.from_pretrained(folder)
    plain.cls_token = None if cls is None else plain.convert_ids_to_tokens(cls)
    items = [LabeledText(("the cat sat",), "A"), LabeledText(("the mat was warm because",), "B")]
    made = text_examples(items, plain, NUMBERS, max_length=12, causal=causal)
    assert (made.n_labels, made.n_cut) == (2, 0)
    for item, example in zip(items, made.examples, strict=True):
        assert len(example.ids) <= 12
        assert np.flatnonzero(example.labels != NO_LABEL).tolist() == [place % len(example.ids)]
        assert example.labels[place] == NUMBERS[item.label]


def test_pairs_are_cut_and_typed_as_the_tokenizer_does(folder: Path) -> None:
    items = [LabeledText(("the cat sat on the mat", "the mat was warm because the cat was cold"), "B")]
    plain = transformers.AutoTokenizer.from_pretrained(folder)
    (example,) = text_examples(items, plain, NUMBERS, max_length=10, causal=False).examples
    expected = plain(*items[0].texts, truncation="longest_first", max_length=10, padding=False)
    assert example.ids.tolist() == expected["input_ids"]
    assert example.types.tolist() == expected["token_type_ids"]
    assert set(example.types.tolist()) == {0, 1}


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "gpt2"])
@pytest.mark.parametrize("window", [None, 1])
@pytest.mark.quick(2)
def test_packed_examples_equal_each_one_alone(name: str, window: int | None, tmp_path: Path) -> None:
    trainable = load_trainable(open_checkpoint(tiny.save(name, tmp_path / name), revision=None), name, ["A", "B"])
    rows = Collator(trainable.inputs, window)
    packing = replace(rows, packs=trainable.packs)
    tagged = [LabeledWords(words, ["A"] * len(words)) for words in tiny.random_sentences(12, seed=5)]
    made = word_examples(tagged, trainable.tokenizer, NUMBERS, max_length=50).examples
    batch = packing(made)
    assert batch["input_ids"].numel() < rows(made)["input_ids"].numel()
    with torch.no_grad():
        together = trainable.network(**batch)
        apart = [trainable.network(**rows([example])) for example in made]
    total = sum((example.labels != NO_LABEL).sum() for example in made)
    assert int((batch["labels"] != NO_LABEL).sum()) == total
    losses = sum(float(one.loss) * (each.labels != NO_LABEL).sum() for one, each in zip(apart, made, strict=True))
    assert float(together.loss) == pytest.approx(losses / total, abs=1e-5)
    asked = together.logits[batch["labels"] != NO_LABEL]
    expected = torch.cat([one.logits[0, each.labels != NO_LABEL] for one, each in zip(apart, made, strict=True)])
    assert torch.allclose(asked.sort(0).values, expected.sort(0).values, atol=1e-4)
