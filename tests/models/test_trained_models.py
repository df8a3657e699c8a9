"""Real trained models: MiniLM on real text, and a small GPT-2 with outputs of an independent implementation."""

from __future__ import annotations

import shutil

import numpy as np
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from embstore.models import load_encoder
from embstore.models.encoder import Spans
from tests.models.oracle import gather


def test_gpt_nano_equals_an_independent_implementation(data, tmp_path):
    for name in ("config.json", "model.safetensors"):
        shutil.copy(data / "gpt-nano" / name, tmp_path)
    words = Tokenizer(models.WordLevel({"A": 0, "B": 1, "C": 2}, unk_token="A"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path)
    expected = np.load(data / "gpt-nano" / "expected.npz")
    encoder = load_encoder(tmp_path)
    assert encoder.info.max_subwords == 11
    assert encoder.info.final_norm
    tokenized = encoder.tokenize([["ABC"[int(index)] for index in row] for row in expected["idx"]])
    assert encoder.self_check(tokenized, layers=(0, 1, 2, 3), pooling="mean") < 2e-5
    assert encoder.batching == "varlen"
    places = np.tile(np.arange(11), 3)
    spans = Spans(np.repeat(np.arange(3), 11), places, places + 1)
    passes = encoder.encode(tokenized, spans, layers=(0, 1, 2, 3), pooling="mean", batch_subwords=64)
    vectors = gather(passes, spans, 4, 48)
    for layer, name in enumerate(("x", "block0", "block1", "ln_f")):
        assert np.abs(vectors[layer] - expected[name].reshape(33, 48)).max() < 2e-6
