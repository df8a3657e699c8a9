"""Attention over sentences of any lengths that stand end to end in one row: no padding, no mask."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from embstore.models.transformer.transfer import to_device

NAME = "embstore_varlen"
KEYWORD = "embstore_sentences"
LARGEST_HEAD = 256  # features of a head that the fused kernel takes, in eights

_Window = tuple[int, int]
_Fused = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Sentences:
    """Where the sentences of the row begin and end.

    `bounds`: int32 [sentences + 1], on the device. `longest`: positions of the longest. `runs`: how many neighbours
    have how many positions. `causal`: whether a position sees only those before it.
    """

    bounds: torch.Tensor
    longest: int
    runs: tuple[tuple[int, int], ...]
    causal: bool

    @classmethod
    def of(cls, lengths: NDArray[np.int64], *, causal: bool, device: torch.device) -> Sentences:
        """Note sentences of so many positions, in their order."""
        bounds = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(lengths, out=bounds[1:])
        begins = np.append(np.flatnonzero(np.diff(lengths, prepend=-1)), len(lengths))
        runs = tuple(zip(np.diff(begins).tolist(), lengths[begins[:-1]].tolist(), strict=True))
        return cls(to_device(bounds, device), int(lengths.max()), runs, causal)


def takes_sentences(model: Any, parameters: frozenset[str]) -> bool:
    """Tell whether it is worth trying: the model names positions, hands keywords on, and chooses its attention."""
    keywords = any(one.kind is one.VAR_KEYWORD for one in inspect.signature(model.forward).parameters.values())
    return keywords and "position_ids" in parameters and model.config._attn_implementation == "sdpa"


@contextmanager
def attending(model: Any) -> Iterator[None]:
    """Let the model attend by `varlen_attention`; outside of it the model is the stock model."""
    before = model.config._attn_implementation
    model.config._attn_implementation = NAME
    try:
        yield
    finally:
        model.config._attn_implementation = before


def varlen_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Attend within each sentence: `query` [1, heads, positions, features] to [1, positions, heads, features].

    On CUDA in half precision by one kernel, else sentence by sentence, those of one length together. Raises
    ValueError for what it cannot do: biases of pairs of positions, caps and sinks.
    """
    sentences: Sentences | None = more.get(KEYWORD)
    if sentences is None:
        raise ValueError("the model did not hand on where its sentences stand")
    others = [name for name in ("position_bias", "softcap", "s_aux", "cache") if more.get(name) is not None]
    if attention_mask is not None or others or query.shape[0] != 1:
        raise ValueError(f"attention without a mask cannot heed {', '.join(others) or 'a mask'}")
    window = (-1, -1) if sliding_window is None else (sliding_window - 1, sliding_window - 1)
    if sentences.causal:
        window = (window[0], 0)
    fused = _fused(query)
    attend = _by_length if fused is None else fused
    return attend(query, key, value, sentences, window, scaling), None


def _fused(query: torch.Tensor) -> _Fused | None:
    """Return attention by the fused kernel where it takes such queries."""
    half = query.dtype in (torch.float16, torch.bfloat16)
    features = query.shape[-1]
    if not query.is_cuda or not half or features % 8 or features > LARGEST_HEAD:
        return None
    found = _kernel()
    return None if found is None else lambda *given: _by_kernel(found, *given)


@cache
def _kernel() -> _Fused | None:
    """Return torch's kernel, None where this torch has none, or one that knows neither scales nor windows."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    kernel: Any = varlen_attn
    return kernel if {"scale", "window_size"} <= _options(kernel) else None


@cache
def _options(kernel: _Fused) -> frozenset[str]:
    return frozenset(inspect.signature(kernel).parameters)


def _by_kernel(
    kernel: _Fused,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sentences: Sentences,
    window: _Window,
    scaling: float | None,
) -> torch.Tensor:
    queries, keys, values = (states[0].transpose(0, 1) for states in (query, key, value))  # [positions, heads, ...]
    if queries.shape[1] != keys.shape[1] and "enable_gqa" in _options(kernel):
        kernel = _grouped(kernel)
    bounds, longest = sentences.bounds, sentences.longest
    return kernel(queries, keys, values, bounds, bounds, longest, longest, scale=scaling, window_size=window).unsqueeze(
        0
    )


def _grouped(kernel: _Fused) -> _Fused:
    return lambda *given, **options: kernel(*given, enable_gqa=True, **options)


def _by_length(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sentences: Sentences,
    window: _Window,
    scaling: float | None,
) -> torch.Tensor:
    heads, positions = query.shape[1:3]
    groups = heads // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    out = query.new_empty(positions, heads, value.shape[-1])
    start = 0
    for count, length in sentences.runs:
        stop = start + count * length
        queries, keys, values = (_apart(states[0, :, start:stop], count) for states in (query, key, value))
        attended = torch.nn.functional.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=_near(length, window, query.device),
            is_causal=window[1] == 0 and not 0 <= window[0] < length - 1,
            scale=scaling,
        )
        out[start:stop].view(count, length, heads, -1).copy_(attended.transpose(1, 2))
        start = stop
    return out.unsqueeze(0)


def _apart(states: torch.Tensor, count: int) -> torch.Tensor:
    """Stand sentences of one length apart: [heads, positions, features] to [sentences, heads, length, features]."""
    return states.view(len(states), count, -1, states.shape[-1]).transpose(0, 1)


def _near(length: int, window: _Window, device: torch.device) -> torch.Tensor | None:
    """Return which positions see which where the window is narrower than the sentence."""
    left, right = window
    if left < 0 or left >= length - 1:
        return None
    place = torch.arange(length, device=device)
    back = place[:, None] - place[None, :]
    return (back <= left) & (back >= -right)


transformers.AttentionInterface.register(NAME, varlen_attention)
