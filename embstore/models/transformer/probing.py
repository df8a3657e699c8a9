"""Find out from a few forward passes what a model accepts: positions, causality, needed parameters, limits."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from embstore.models.transformer.inputs import FULL
from embstore.models.transformer.tokens import Specials

PROBE_POSITIONS = 7

_States = tuple[torch.Tensor, ...]


def forward_parameters(model: nn.Module) -> frozenset[str]:
    """Return the names of the arguments of the model's forward."""
    return frozenset(inspect.signature(model.forward).parameters)


def probe_inputs(model: Any, tokenizer: Any, specials: Specials, *, n_sentences: int) -> dict[str, torch.Tensor]:
    """Return a small batch of different subwords of the vocabulary, as a model's keyword arguments."""
    vocabulary = model.get_input_embeddings().num_embeddings
    special = set(getattr(tokenizer, "all_special_ids", ()))
    usable = torch.tensor([index for index in range(vocabulary) if index not in special] or list(range(vocabulary)))
    limit = longest_sentence(model.config, tokenizer, specials, None)
    count = min(PROBE_POSITIONS, limit or PROBE_POSITIONS)
    chosen = torch.arange(n_sentences * count) * (len(usable) - 1) // max(1, n_sentences * count - 1)
    ids = usable[chosen].reshape(n_sentences, count).to(model.device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def padding_id(config: Any, vocabulary: int) -> int:
    """Return the id of padding, 0 if the model has none."""
    padding = getattr(config, "pad_token_id", None)
    return padding if isinstance(padding, int) and 0 <= padding < vocabulary else 0


def sliding_window(config: Any) -> tuple[int | None, frozenset[str]]:
    """Return the reach of the model's own sliding attention (None: no layer slides) and the kinds of its layers."""
    kinds = frozenset(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    if not isinstance(window, int) or kinds == {FULL} or not getattr(config, "use_sliding_window", True):
        return None, kinds
    return window, kinds


def position_offset(model: nn.Module, inputs: Mapping[str, Any], states: _States) -> int | None:
    """Return the number of the first position, by trying which explicit positions change nothing.

    `states`: the hidden states of `inputs`, which contain no positions. None: the model takes no positions.
    """
    if "position_ids" not in forward_parameters(model):
        return None
    count = inputs["input_ids"].shape[1]
    padding: Any = getattr(model.config, "pad_token_id", None)
    for offset in (0, (padding or 0) + 1):
        positions = torch.arange(offset, offset + count, device=inputs["input_ids"].device)
        positions = positions.expand_as(inputs["input_ids"])
        try:
            explicit = model(**inputs, position_ids=positions, output_hidden_states=True).hidden_states
        except IndexError:
            continue
        if all(torch.equal(one, other) for one, other in zip(explicit, states, strict=True)):
            return offset
    return None


def is_causal(model: nn.Module, inputs: Mapping[str, Any], states: _States) -> bool:
    """Return whether a position attends only to those before it, by changing the last subword."""
    changed = inputs["input_ids"].clone()
    changed[:, -1] = changed[:, 0]
    other = model(**{**inputs, "input_ids": changed}, output_hidden_states=True).hidden_states
    last_differs = not torch.equal(states[0][:, -1], other[0][:, -1])
    before_same = all(torch.equal(one[:, :-1], two[:, :-1]) for one, two in zip(states, other, strict=True))
    return last_differs and before_same


def needed_parameters(model: nn.Module, inputs: Mapping[str, Any], parameters: Mapping[str, torch.Tensor]) -> list[str]:
    """Return which of the parameters the hidden states depend on, by giving each in turn another value.

    NaN would not do: fused attention on a CPU can hide it. The parameters are zero afterwards.
    """
    filled = {name: value for name, value in parameters.items() if value.is_floating_point()}
    if not filled:
        return []
    for value in filled.values():  # no value is zero, so that none hides another
        _fill(value, 0.05)
    usual = model(**inputs, output_hidden_states=True).hidden_states
    needed = []
    for name, value in filled.items():
        _fill(value, -0.03)
        other = model(**inputs, output_hidden_states=True).hidden_states
        _fill(value, 0.05)
        if not all(torch.equal(one, two) for one, two in zip(usual, other, strict=True)):
            needed.append(name)
    for value in filled.values():
        value.zero_()
    return needed


def _fill(value: torch.Tensor, scale: float) -> None:
    value.copy_(torch.linspace(scale, 2 * scale, value.numel()).reshape(value.shape))


def longest_sentence(config: Any, tokenizer: Any, specials: Specials, offset: int | None) -> int | None:
    """Return the limit of a sentence in subwords without special ones; None if positions are relative."""
    limit = getattr(config, "max_position_embeddings", None)
    if limit is None and not hasattr(config, "relative_attention_num_buckets"):
        limit = getattr(config, "n_positions", None)
    if not isinstance(limit, int) or limit <= 0:
        return None
    limit = min(limit - (offset or 0), getattr(tokenizer, "model_max_length", limit))
    return max(0, limit - specials.count)
