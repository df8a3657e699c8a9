"""Gradients of a language model's loss by its attention against one sentence after another in transformers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from embstore.errors import ModelError
from embstore_studies.attention_importance import attention_importance
from tests.analysis.test_attention import SENTENCES, SHAPES
from tests.models import tiny

HEADS = {"bert": "BertForMaskedLM", "gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM"}


def language_model(name: str, folder: Path, *, mask: bool = True) -> Path:
    base = tiny.save(name, folder / "base")
    torch.manual_seed(3)
    whole = getattr(transformers, HEADS[name])(transformers.AutoConfig.from_pretrained(base)).eval()
    with torch.no_grad():
        for parameter in whole.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    whole.save_pretrained(folder / "lm")
    for path in base.glob("token*"):
        shutil.copyfile(path, folder / "lm" / path.name)
    if name == "bert" and mask:
        made = transformers.PreTrainedTokenizerFast(tokenizer_file=str(base / "tokenizer.json"), mask_token="[MASK]")
        made.save_pretrained(folder / "lm")
    return folder / "lm"


def slow(folder: Path, name: str) -> dict[str, np.ndarray]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    step = tokenizer.backend_tokenizer.pre_tokenizer
    if hasattr(step, "add_prefix_space"):
        step.add_prefix_space = True
    kind = getattr(transformers, HEADS[name])
    network = kind.from_pretrained(folder, attn_implementation="eager").eval()
    sums: dict[str, Any] = {}
    counts: dict[str, int] = {}
    for number, words in enumerate(SENTENCES):
        given = tokenizer(words, is_split_into_words=True, return_tensors="pt", truncation=False, padding=False)
        ids, owners = given["input_ids"][0], given.word_ids(0)
        body = [place for place, owner in enumerate(owners) if owner is not None]
        if name == "bert":
            chosen = np.random.default_rng((7, number)).choice(body, max(1, round(0.15 * len(body))), replace=False)
            given["input_ids"] = given["input_ids"].clone()
            given["input_ids"][0, chosen] = tokenizer.mask_token_id
        else:
            chosen = np.array([place for place in body if place > 0])
        if not len(chosen):
            continue
        out = network(**given, output_attentions=True)
        before = 0 if name == "bert" else 1
        places = torch.from_numpy(chosen)
        loss = torch.nn.functional.cross_entropy(out.logits[0, places - before], ids[places])
        gradients = torch.stack(torch.autograd.grad(loss, out.attentions))[:, 0].abs().double().numpy()
        stops = [place for place in body if words[owners[place]] in (".", ",")]
        kinds = {"period_comma": stops, "cls": [0] if body[0] else [], "sep": range(body[-1] + 1, len(ids))}
        for query in range(len(ids)):
            for key in range(len(ids) if name == "bert" else query + 1):
                found = next((kind for kind, places in kinds.items() if key in places), "other")
                sums[found] = sums.get(found, 0) + gradients[:, :, query, key]
                counts[found] = counts.get(found, 0) + 1
    return {kind: total / counts[kind] for kind, total in sums.items()}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.quick(1)
def test_gradients_are_those_of_each_sentence(name: str, tmp_path: Path) -> None:
    folder = language_model(name, tmp_path)
    frame = attention_importance(SENTENCES, model=folder, seed=7, batch_subwords=60, device="cpu")
    expected = slow(folder, name)
    assert set(frame["item"]) == set(expected)
    assert ("sep" in expected) == (name == "bert")
    for item, values in expected.items():
        rows = frame.filter(item=item, metric="importance").sort("layer", "head")
        np.testing.assert_allclose(rows["value"].to_numpy().reshape(values.shape), values, rtol=1e-3, atol=1e-7)
        assert values.min() > 1e-5


def test_a_model_without_a_head_or_a_mask_is_refused(tmp_path: Path) -> None:
    for made, says in (
        (language_model("bert", tmp_path, mask=False), r"has no mask"),
        (tiny.save("llama", tmp_path / "l"), r"has no language modeling head"),
    ):
        with pytest.raises(ModelError, match=says):
            attention_importance(SENTENCES[:2], model=made, device="cpu")
