"""Every architecture in every dtype and batching: right by each vector's length, or refused by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from embstore.errors import ModelError
from embstore.models import batched, load_encoder
from embstore.models.batched import word_spans
from embstore.models.encoder import Pooled
from embstore.models.transformer.encoder import TransformerEncoder
from tests.models.oracle import gather, tokenize
from tests.models.tiny import ARCHITECTURES, DECODERS, SENTENCES, save

NAMES = [*ARCHITECTURES, *(name for name in DECODERS if name not in ("llama64", "falcon_h1"))]
LAYERS = (0, 1, 2, 3)
BOUND = {"float32": 2e-5, "float16": 1e-2, "bfloat16": 8e-2}
REFUSED = {  # in each dtype
    "deberta_v2": {"packed"},
    "xlnet": {"packed"},
    "llama4": {"varlen", "packed"},  # its attention is in chunks
    **{name: {"varlen", "packed"} for name in ("qwen3_next", "jamba", "recurrent_gemma")},  # they have states
    **{name: {"packed"} for name in ("mamba", "mamba2", "rwkv")},
}


def apart(vectors, expected):
    """Return how far each vector is from the expected one, in its length: [layer, vector]."""
    return np.linalg.norm(vectors - expected, axis=2) / np.linalg.norm(expected, axis=2)


@pytest.mark.parametrize(
    "name", [name if name == "t5" else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_every_dtype_and_batching(name, tmp_path, monkeypatch):
    """A batch is as near to the plain pass of float32 as the plain pass of its own dtype is."""
    monkeypatch.setattr(TransformerEncoder, "choices_vary", True)  # as on a GPU, all batchings are tried
    monkeypatch.setattr(batched, "fastest", lambda names, run: names[0])
    exact = load_encoder(save(name, tmp_path))
    tokenized = tokenize(exact, SENTENCES)
    spans, options = word_spans(tokenized, None), {"layers": LAYERS, "pooling": "mean"}
    right = exact.plain_vectors(tokenized, spans, **options)
    for dtype, bound in BOUND.items():
        if name == "xlnet" and dtype != "float32":
            with pytest.raises(ModelError, match=f"cannot be used: .*, in {dtype}: choose the compute dtype float32"):
                load_encoder(tmp_path, compute_dtype=dtype)
            continue
        encoder = load_encoder(tmp_path, compute_dtype=dtype)
        plain = encoder.plain_vectors(tokenized, spans, **options)
        assert encoder.self_check(tokenized, **options) <= bound
        assert set(encoder.refused) == REFUSED.get(name, set()), (dtype, encoder.refused)
        for batching in set(encoder.candidate_batchings()) - set(encoder.refused):
            encoder.use_batching(batching)
            passes = encoder.encode(tokenized, spans, **options, batch_subwords=256)
            vectors = gather(passes, spans, len(LAYERS), encoder.info.hidden_size)
            assert apart(vectors, plain).max() <= bound, (dtype, batching)
            assert apart(vectors, right).max() <= apart(plain, right).max() + bound, (dtype, batching)


def test_what_a_difference_is_relative_to():
    """Its own length, of a short vector that of others; one of a hundred may differ more where that is allowed."""
    expected = np.ones((1, 100, 4), np.float32)
    expected[0, 0], expected[0, 1] = 1e-6, 3000

    def difference(rows, by, but=0.0, missing=0):
        vectors = expected[:, missing:].copy()
        vectors[0, rows] += np.float32(by)
        pooled = Pooled(np.arange(missing, 100), torch.from_numpy(vectors))
        return batched.largest_difference([pooled], {"residual": expected}, but)

    assert difference([5], 0.5) == difference([1, 5], 0.5) == 0.5
    assert difference([1], 3) == pytest.approx(1e-3)
    assert difference([0], 1e-6) == pytest.approx(1e-5)
    assert (difference([5], 0.5, but=0.01), difference([5, 6], 0.5, but=0.01)) == (0, 0.5)
    assert difference([5], np.nan, but=0.01) == difference([5], 0, missing=1) == np.inf


def test_vectors_of_a_mixture_in_half_precision_may_differ(tmp_path):
    folders = [save(name, tmp_path / name) for name in ("mixtral", "bert")]
    assert [load_encoder(folder, compute_dtype="float16").outliers for folder in folders] == [0.01, 0.0]
