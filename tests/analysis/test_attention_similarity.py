"""The cosine of attention maps against one sentence at a time in numpy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from embstore.analysis.attention import compare
from embstore.analysis.attention.compare import attention_similarity
from embstore.config import config
from embstore.errors import EmbstoreError
from tests.models import tiny

SENTENCES = tiny.random_sentences(25, seed=2)


@pytest.fixture(scope="module", params=["bert", "roberta", "distilbert", "gpt2"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two models of one architecture with other weights."""
    folder = tmp_path_factory.mktemp("models")
    first, second = (tiny.save(request.param, folder / f"seed{seed}", seed=seed) for seed in (0, 1))
    shutil.copyfile(first / "tokenizer.json", second / "tokenizer.json")
    return first, second


def slow(first: Path, second: Path, sentences: list[list[str]], max_length: int) -> np.ndarray:
    """Return one cosine per layer and head over all weights of all sentences."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(first)
    split = tokenizer.backend_tokenizer.pre_tokenizer
    if hasattr(split, "add_prefix_space"):  # byte-level: split words keep the space before them
        split.add_prefix_space = True
    weights: list[list[np.ndarray]] = []
    for folder in (first, second):
        model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
        parts = []
        for sentence in sentences:
            inputs = tokenizer(
                sentence, is_split_into_words=True, return_tensors="pt", padding=False, truncation=True,
                max_length=max_length,
            )  # fmt: skip
            with torch.no_grad():
                maps = model(**inputs, output_attentions=True).attentions
            parts.append(np.stack([layer[0].double().numpy().reshape(layer.shape[1], -1) for layer in maps]))
        weights.append(parts)
    a, b = (np.concatenate(parts, axis=-1) for parts in weights)
    result: np.ndarray = (a * b).sum(-1) / np.sqrt((a * a).sum(-1) * (b * b).sum(-1))
    return result


@pytest.mark.parametrize(("max_length", "batch"), [(20, 2048), (320, 60)])
@pytest.mark.quick(1)
def test_values_equal_a_slow_cosine(
    pair: tuple[Path, Path], max_length: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "BATCH_SUBWORDS", {"cpu": batch})
    calls: list[tuple[int, int]] = []
    with config(device="cpu", progress=lambda done, total: calls.append((done, total))):
        table = attention_similarity(SENTENCES, model_a=pair[0], model_b=pair[1], max_length=max_length)
    expected = slow(*pair, SENTENCES, max_length)
    assert table.columns == ["layer", "head", "value"]
    assert table["layer"].to_list() == [layer for layer in (1, 2, 3) for _ in range(4)]
    assert table["head"].to_list() == [0, 1, 2, 3] * 3
    np.testing.assert_allclose(table["value"].to_numpy().reshape(3, 4), expected, atol=1e-5)
    assert expected.min() < 0.9  # otherwise nothing would be tested
    assert calls[-1] == (25, 25)


@pytest.mark.quick(1)
def test_a_model_equals_itself(pair: tuple[Path, Path]) -> None:
    table = attention_similarity(SENTENCES[:5], model_a=pair[0], model_b=pair[0])
    np.testing.assert_allclose(table["value"].to_numpy(), 1, atol=1e-12)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save("bert", tmp_path_factory.mktemp("model") / "bert")


@pytest.mark.slow
def test_a_sample_is_seeded(bert: Path, tmp_path: Path) -> None:
    other = tiny.save("bert", tmp_path / "other", seed=1)
    first, again, second = (
        attention_similarity(SENTENCES, model_a=bert, model_b=other, n_sentences=4, seed=seed) for seed in (0, 0, 1)
    )
    assert first.equals(again)
    assert not first.equals(second)
    chosen = np.sort(np.random.default_rng(0).choice(25, 4, replace=False))
    whole = attention_similarity([SENTENCES[index] for index in chosen], model_a=bert, model_b=other)
    np.testing.assert_allclose(first["value"].to_numpy(), whole["value"].to_numpy(), atol=1e-9)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_length": 2}, "no space for a word"),
        ({"max_length": 999}, "accepts at most 320 subwords"),
        ({"corpus": [["\u200b"]]}, "no sentence has a subword"),
        ({"model_b": "gone/model/here"}, "no model folder"),
    ],
)
@pytest.mark.quick(4)
def test_bad_input_is_one_line(options: dict[str, object], says: str, bert: Path) -> None:
    arguments = {"model_a": bert, "model_b": bert, "corpus": SENTENCES[:2], **options}
    with pytest.raises(EmbstoreError, match=says):
        attention_similarity(**arguments)  # type: ignore[arg-type]


def test_models_of_other_shapes_are_refused(bert: Path, tmp_path: Path) -> None:
    for key, value, says in (("num_hidden_layers", 2, "3 and 2 layers"), ("num_attention_heads", 2, "4 and 2 heads")):
        other = tmp_path / key
        shutil.copytree(bert, other)
        config = json.loads((other / "config.json").read_text())
        (other / "config.json").write_text(json.dumps(config | {key: value}))
        with pytest.raises(EmbstoreError, match=says):
            attention_similarity(SENTENCES, model_a=bert, model_b=other)
    with pytest.raises(EmbstoreError, match="different tokenizers"):
        attention_similarity(SENTENCES, model_a=bert, model_b=tiny.save("roberta", tmp_path / "roberta"))
