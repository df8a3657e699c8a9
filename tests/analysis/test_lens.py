"""The logit lens next to a plain pass of transformers and a lens by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import embstore as es
from embstore.errors import InvalidValueError, ModelError
from tests.extraction.test_text import decoders  # noqa: F401  (a fixture)
from tests.models import tiny

TEXTS = ["The cat sat on the mat. Don't go!", "Rain fell on the river,\nand the boats turned."]
NORMS = {"gpt2": "ln_f", "llama": "norm", "smollm2": "norm"}


def saved(name: str, decoders: Any) -> Path:  # noqa: F811
    """Return the folder of a decoder with a head; tiny ones are saved again with one of random weights."""
    folder: Path = decoders(name)
    if name != "smollm2":
        auto: Any = transformers.AutoModelForCausalLM
        model = auto.from_config(transformers.AutoConfig.from_pretrained(folder))
        model.base_model.load_state_dict(transformers.AutoModel.from_pretrained(folder).state_dict())
        model.save_pretrained(folder)
    return folder


def by_hand(folder: Path, ids: list[int], norm: str) -> np.ndarray:
    """Logits of each position at each layer, [layer, position, subword]: the norm once, and the head."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        output = model(torch.tensor([ids]), output_hidden_states=True)
        final = getattr(model.base_model, norm)
        inner = [model.lm_head(final(state))[0] for state in output.hidden_states[:-1]]
        return torch.stack([*inner, output.logits[0]]).double().numpy()


@pytest.mark.parametrize(
    "name", ["gpt2", pytest.param("llama", marks=pytest.mark.slow), pytest.param("smollm2", marks=pytest.mark.slow)]
)
def test_the_lens_is_that_of_a_plain_pass(name: str, decoders: Any, tmp_path: Path) -> None:  # noqa: F811
    folder = saved(name, decoders)
    options = es.ExtractionOptions(unit="subword", context="document", dtype="float32")
    documents = [es.corpus.Document(text) for text in TEXTS]
    store = es.extract(es.plan(documents, model=folder, options=options), tmp_path / "store.zarr")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    frame = es.lens(store, model=folder, top=3)
    given = tokenizer(TEXTS, add_special_tokens=False)["input_ids"]
    assert frame["layer"].to_list() == [layer for layer in store.layers for _ in range(store.n_rows)]
    logits = np.concatenate([by_hand(folder, ids, NORMS[name]) for ids in given], 1)
    for row, (layer, at) in zip(frame.to_dicts(), np.ndindex(logits.shape[:2]), strict=True):
        own = logits[layer, at]
        p = np.exp(own - own.max())
        p /= p.sum()
        following = [after for ids in given for after in [*ids[1:], None]][at]
        assert row["next"] == following
        assert row["entropy"] == pytest.approx(-(p[p > 0] * np.log2(p[p > 0])).sum(), rel=2e-3, abs=1e-3)
        np.testing.assert_allclose(row["top_probability"], np.sort(p)[::-1][:3], rtol=5e-3, atol=1e-6)
        assert len(row["top"]) == 3
        if following is None:
            assert (row["rank"], row["probability"]) == (None, None)
            continue
        assert row["probability"] == pytest.approx(p[following], rel=5e-3, abs=1e-7)
        near = np.abs(own - own[following]) < 1e-3 * np.abs(own).max()
        assert (own > own[following])[~near].sum() <= row["rank"] <= (own > own[following])[~near].sum() + near.sum()
    assert math.isclose(frame.filter(frame["layer"] == 0)["occurrence"].to_numpy().sum(), sum(range(store.n_rows)))


def test_what_is_not_the_state_of_a_subword_of_a_decoder_is_refused(decoders: Any, tmp_path: Path) -> None:  # noqa: F811
    folder = saved("gpt2", decoders)
    words = es.extract(es.plan([["a", "boat"], ["incomprehensibility"]], model=folder), tmp_path / "words.zarr")
    with pytest.raises(InvalidValueError, match="subword"):
        es.lens(words, model=folder)
    bert = tiny.save("bert", tmp_path / "bert")
    both = es.extract(
        es.plan([["a", "boat"]], model=bert, options=es.ExtractionOptions(unit="subword")), tmp_path / "b.zarr"
    )
    with pytest.raises(ModelError, match=r"BertModel|bert|both directions"):
        es.lens(both, model=bert)
    random = es.extract(es.plan([["a", "boat"]], model="random:4"), tmp_path / "r.zarr")
    with pytest.raises(InvalidValueError, match="are no subwords of a model: give a store of a decoder"):
        es.lens(random)
