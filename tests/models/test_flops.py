"""The operations of a forward pass, compared with torch's counter and a count by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from embstore.models import load_encoder
from tests.models.tiny import save


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_flops_equal_those_of_torch(tmp_path, name):
    encoder = load_encoder(save(name, tmp_path))
    lengths = np.array([11, 3, 40])
    total = 0
    for length in lengths.tolist():
        inputs = encoder.network.inputs.plain(np.full(length - encoder.n_specials, 7))
        plain = sdpa_kernel(SDPBackend.MATH)  # fused attention on a CPU is not counted
        with plain, FlopCounterMode(display=False) as counter, torch.inference_mode():
            encoder.network.model(**inputs, **encoder.network.inputs.fixed)
        total += counter.get_total_flops()
    assert encoder.forward_flops(lengths, layers=(0, 3)) == total


@pytest.mark.parametrize(
    ("name", "query", "key"), [("albert", 32, 32), ("llama", 32, 16), ("mixtral", 32, 16)]
)  # shared layers, grouped keys, two of four experts
def test_layers_that_share_weights_are_counted_each_time(tmp_path, name, query, key):
    encoder = load_encoder(save(name, tmp_path))
    once, thrice = (encoder.forward_flops(np.array([9]), layers=(layer,)) for layer in (1, 3))
    entry = 2 * 9 * 16 * 32 if name == "albert" else 0  # its embeddings are smaller than its layers
    pooler = 2 * 32 * 32 if name == "albert" else 0
    assert thrice - entry - pooler == 3 * (once - entry)
    products = {"albert": 2 * 32 * 48, "llama": 3 * 32 * 48, "mixtral": 2 * 3 * 32 * 48}[name]
    assert once - entry == 2 * 9 * (2 * query * 32 + 2 * key * 32 + products) + 4 * query * 81
