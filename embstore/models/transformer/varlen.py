"""Attention over sentences of any lengths that follow one another in one row: no padding, no mask."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch.nn.attention import SDPBackend, sdpa_kernel

from embstore.models.encoder import indptr
from embstore.models.running import to_device

NAME = "embstore_varlen"
KEYWORD = "embstore_sentences"
LARGEST_HEAD = 256  # features of a head that the fused kernel of CUDA supports, in multiples of eight

_Window = tuple[int, int]


@dataclass(frozen=True)
class SentenceBounds:
    """Where the sentences of the row begin and end.

    `bounds`: int32 [n_sentences + 1], on the device. `longest`: positions of the longest sentence. `runs`: for each run
    of sentences of one length, their number and their length. `causal`: whether a position attends only to those
    before it.
    """

    bounds: torch.Tensor
    longest: int
    runs: tuple[tuple[int, int], ...]
    causal: bool

    @classmethod
    def of(cls, lengths: NDArray[np.int64], *, causal: bool, device: torch.device) -> SentenceBounds:
        """Return the bounds of consecutive sentences of these lengths."""
        starts = np.append(np.flatnonzero(np.diff(lengths, prepend=-1)), len(lengths))
        runs = tuple(zip(np.diff(starts).tolist(), lengths[starts[:-1]].tolist(), strict=True))
        return cls(to_device(indptr(lengths).astype(np.int32), device), int(lengths.max()), runs, causal)


def pinned_backends(device: torch.device) -> AbstractContextManager[None]:
    """Let attention on CUDA use kernels of any shape: cuDNN's builds a graph for each new one, which takes longer."""
    if device.type != "cuda":
        return nullcontext()
    kinds = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    return cast(AbstractContextManager[None], sdpa_kernel(kinds))


def accepts_sentence_bounds(model: Any) -> bool:
    """Return whether a model may work: it passes keywords on to its attention, and can change that."""
    keywords = any(one.kind is one.VAR_KEYWORD for one in inspect.signature(model.forward).parameters.values())
    return keywords and model.config._attn_implementation == "sdpa"


@contextmanager
def attention_by(name: str, model: Any) -> Iterator[None]:
    """Let the model use the attention registered by a name inside the block; its own is restored afterwards."""
    before = model.config._attn_implementation
    model.config._attn_implementation = name
    try:
        yield
    finally:
        model.config._attn_implementation = before


def attend(
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

    Uses one kernel on CUDA in half precision, and on a CPU one call per run of sentences of one length.
    Raises ValueError for what is not supported: a mask, biases of pairs of positions, caps and sinks.
    """
    sentences: SentenceBounds | None = more.get(KEYWORD)
    if sentences is None:
        raise ValueError("the model did not pass the bounds of the sentences on to its attention")
    others = [name for name in ("position_bias", "softcap", "s_aux", "cache") if more.get(name) is not None]
    if attention_mask is not None or others or query.shape[0] != 1:
        raise ValueError(f"attention end to end does not support {', '.join(others) or 'a mask'}")
    window = (-1, -1) if sliding_window is None else (sliding_window - 1, sliding_window - 1)
    if sentences.causal:
        window = (window[0], 0)
    features = query.shape[-1]
    if not query.is_cuda:
        return _by_length(query, key, value, sentences, window, scaling), None
    fits = query.dtype in (torch.float16, torch.bfloat16) and features % 8 == 0 and features <= LARGEST_HEAD
    kernel = _fused_kernel() if fits else None
    if kernel is None:  # a call for each length would be the slowest of all batchings
        raise ValueError(f"no kernel attends end to end with {features} features of {query.dtype} on {query.device}")
    queries, keys, values = (states[0].transpose(0, 1) for states in (query, key, value))  # [positions, heads, ...]
    bounds, longest = sentences.bounds, sentences.longest
    options: dict[str, Any] = {"scale": scaling, "window_size": window}
    if queries.shape[1] != keys.shape[1] and "enable_gqa" in _parameters(kernel):
        options["enable_gqa"] = True
    return kernel(queries, keys, values, bounds, bounds, longest, longest, **options).unsqueeze(0), None


@cache
def _fused_kernel() -> Callable[..., torch.Tensor] | None:
    """Return torch's kernel; None if this torch has none, or one without scales or windows."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    kernel: Any = varlen_attn
    return kernel if {"scale", "window_size"} <= _parameters(kernel) else None


@cache
def _parameters(kernel: Callable[..., torch.Tensor]) -> frozenset[str]:
    return frozenset(inspect.signature(kernel).parameters)


def _by_length(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sentences: SentenceBounds,
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
        queries, keys, values = (  # [heads, positions, features] to [sentences, heads, length, features]
            states[0, :, start:stop].view(heads, count, length, -1).transpose(0, 1) for states in (query, key, value)
        )
        attended = torch.nn.functional.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=_sliding_mask(length, window, query.device),
            is_causal=window[1] == 0 and not 0 <= window[0] < length - 1,
            scale=scaling,
        )
        out[start:stop].view(count, length, heads, -1).copy_(attended.transpose(1, 2))
        start = stop
    return out.unsqueeze(0)


def _sliding_mask(length: int, window: _Window, device: torch.device) -> torch.Tensor | None:
    """Return which positions attend to which, bool [length, length]; None if the window contains the sentence."""
    left, right = window
    if left < 0 or left >= length - 1:
        return None
    index = torch.arange(length, device=device)
    distance = index[:, None] - index[None, :]
    return (distance <= left) & (distance >= -right)


transformers.AttentionInterface.register(NAME, attend)
