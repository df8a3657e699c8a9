"""Sentences end to end: no padding, no mask, the vectors of the plain pass."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch

from embstore.models import load_encoder
from embstore.models.transformer import varlen
from embstore.models.transformer.varlen import KEYWORD, SentenceBounds, attend
from tests.models.oracle import gather, relative_error, tokenize, word_spans
from tests.models.tiny import SENTENCES, save

CPU = torch.device("cpu")
LENGTHS = np.array([9, 9, 9, 5, 4, 4, 1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save("bert", tmp_path_factory.mktemp("bert"))


@pytest.fixture
def encoder(folder):
    return load_encoder(folder)


def states(heads, *, key_heads=None, features=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    positions = int(LENGTHS.sum())
    return [
        torch.randn(1, count, positions, features, generator=generator)
        for count in (heads, key_heads or heads, key_heads or heads)
    ]


def loop_over_pairs(query, key, value, *, causal, window, scaling):
    """Attention of every pair of positions, one at a time."""
    heads, positions = query.shape[1:3]
    owner = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    out = np.zeros((positions, heads, value.shape[-1]))
    query, key, value = (state[0].double().numpy() for state in (query, key, value))
    for head in range(heads):
        shared = head * len(key) // heads
        for at in range(positions):
            seen = [
                other
                for other in range(positions)
                if owner[other] == owner[at]
                and (not causal or other <= at)
                and (window is None or abs(at - other) < window)
            ]
            scores = np.exp(key[shared, seen] @ query[head, at] * scaling)
            out[at, head] = scores @ value[shared, seen] / scores.sum()
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 3, 9, 40])
@pytest.mark.parametrize(("key_heads", "features"), [(4, 8), (2, 8), (2, 48)])
def test_attention_equals_a_loop_over_pairs(causal, window, key_heads, features):
    given = states(4, key_heads=key_heads, features=features)
    sentences = SentenceBounds.of(LENGTHS, causal=causal, device=CPU)
    out, _ = attend(torch.nn.Identity(), *given, None, scaling=0.3, sliding_window=window, **{KEYWORD: sentences})
    expected = loop_over_pairs(*given, causal=causal, window=window, scaling=0.3)
    np.testing.assert_allclose(out[0].numpy(), expected, atol=1e-5)


def by_loops(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale, window_size, enable_gqa=False):
    """A slow implementation of the fused kernel."""
    assert (query.shape[1] != key.shape[1]) == enable_gqa
    lengths = np.diff(cu_seq_q.numpy())
    assert cu_seq_q.dtype == torch.int32
    assert max_q == max_k == lengths.max()
    assert torch.equal(cu_seq_q, cu_seq_k)
    left, right = window_size
    key, value = (state.repeat_interleave(query.shape[1] // key.shape[1], 1) for state in (key, value))
    out = torch.empty_like(query)
    for start, stop in zip(cu_seq_q[:-1].tolist(), cu_seq_q[1:].tolist(), strict=True):
        place = torch.arange(stop - start)
        back = place[:, None] - place[None, :]
        seen = ((back <= left) | (left < 0)) & ((-back <= right) | (right < 0))
        scores = torch.einsum("qhd,khd->hqk", query[start:stop], key[start:stop]) * scale
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        out[start:stop] = torch.einsum("hqk,khd->qhd", weights, value[start:stop])
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("key_heads", [4, 2])
def test_the_arguments_of_the_fused_kernel(monkeypatch, causal, window, key_heads):
    given = states(4, key_heads=key_heads)
    options = {"scaling": 0.3, "sliding_window": window, KEYWORD: SentenceBounds.of(LENGTHS, causal=causal, device=CPU)}
    expected, _ = attend(torch.nn.Identity(), *given, None, **options)
    monkeypatch.setattr(varlen, "_fused_kernel", lambda: by_loops)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    half = [state.half() for state in given]
    out, _ = attend(torch.nn.Identity(), *half, None, **options)
    assert out.shape == expected.shape == (1, int(LENGTHS.sum()), 4, 8)
    torch.testing.assert_close(out.float(), expected, atol=5e-3, rtol=5e-3)


def test_the_kernel_of_this_torch_has_these_arguments():
    pytest.importorskip("torch.nn.attention.varlen")
    kernel = varlen._fused_kernel()
    if kernel is None:
        pytest.skip("the kernel of this torch knows no windows")
    given = inspect.signature(by_loops).bind(*range(7), scale=0.3, window_size=(-1, 0), enable_gqa=True)
    inspect.signature(kernel).bind(*given.args, **given.kwargs)


def test_a_cpu_has_no_fused_kernel(monkeypatch):
    monkeypatch.setattr(varlen, "_fused_kernel", lambda: pytest.fail("the kernel is for GPUs"))
    sentences = SentenceBounds.of(LENGTHS, causal=False, device=CPU)
    attend(torch.nn.Identity(), *(state.half() for state in states(4)), None, **{KEYWORD: sentences})


def test_without_a_kernel_cuda_does_not_attend_end_to_end(encoder, monkeypatch):
    """A call for each length and layer would be the slowest of all batchings; the plan says why it is another one."""
    monkeypatch.setattr(varlen, "_fused_kernel", lambda: by_loops)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    encoder.self_check(tokenize(encoder, SENTENCES), layers=(3,), pooling="mean")
    why = "no kernel attends end to end with 8 features of torch.float32 on cpu"
    assert (encoder.batching, encoder.refused) == ("packed", {"varlen": f"fails ({why})"})
    half = {features: [state.half() for state in states(4, features=features)] for features in (8, 12)}
    for kernel, features in ((by_loops, 12), (None, 8)):
        monkeypatch.setattr(varlen, "_fused_kernel", lambda kernel=kernel: kernel)
        sentences = SentenceBounds.of(LENGTHS, causal=False, device=CPU)
        with pytest.raises(ValueError, match=rf"no kernel attends end to end with {features} features"):
            attend(torch.nn.Identity(), *half[features], None, **{KEYWORD: sentences})


@pytest.mark.parametrize("more", [{"position_bias": 1}, {"softcap": 1.0}, {"s_aux": 1}])
def test_other_kinds_of_attention_are_refused(more):
    sentences = SentenceBounds.of(LENGTHS, causal=False, device=CPU)
    with pytest.raises(ValueError, match=next(iter(more))):
        attend(torch.nn.Identity(), *states(4), None, **{KEYWORD: sentences}, **more)
    with pytest.raises(ValueError, match="a mask"):
        attend(torch.nn.Identity(), *states(4), torch.zeros(1), **{KEYWORD: sentences})
    with pytest.raises(ValueError, match="did not pass the bounds"):
        attend(torch.nn.Identity(), *states(4), None)


def test_it_is_first_and_makes_no_mask(encoder, monkeypatch):
    shapes = []
    monkeypatch.setattr(encoder.network.inputs.__class__, "mask", lambda *args: pytest.fail("a mask was made"))
    encoder.network.model.embeddings.register_forward_hook(lambda module, args, output: shapes.append(output.shape))
    tokenized = tokenize(encoder, SENTENCES)
    assert encoder.self_check(tokenized, layers=(0, 1, 2, 3), pooling="mean") < 2e-5
    assert encoder.batching == "varlen"
    assert encoder.network.model.config._attn_implementation == "sdpa"
    spans, _ = word_spans(tokenized)
    shapes.clear()
    vectors = gather(encoder.encode(tokenized, spans, layers=(1, 3), pooling="mean", batch_subwords=60), spans, 2, 32)
    lengths = np.diff(tokenized.word_indptr[tokenized.sentence_indptr]) + 2
    assert sum(shape[1] for shape in shapes) == lengths.sum()  # nothing is padded
    assert all(shape[0] == 1 for shape in shapes)
    assert len(shapes) > 2
    expected = encoder.plain_vectors(tokenized, spans, layers=(1, 3), pooling="mean")
    assert relative_error(vectors, expected) < 2e-5


def test_models_without_keywords_or_of_other_attention_are_not_tried(encoder):
    assert "varlen" in encoder.candidate_batchings()
    encoder.network.model.config._attn_implementation = "eager"
    assert "varlen" not in encoder.candidate_batchings()
