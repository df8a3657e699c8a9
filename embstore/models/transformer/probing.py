"""Find out from a few forward passes what a model accepts: positions, causality, needed parameters, limits."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from embstore.errors import ModelError
from embstore.models.transformer.inputs import FULL, InputMaker
from embstore.models.transformer.tokens import Specials, SubwordTokenizer

PROBE_POSITIONS = 7
SAME = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}  # equal up to last bits, relative
NO_EFFECT = {torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}  # of a later subword, relative
FAIRSEQ_OFFSET = 2  # of the first position where the code counts from it whatever the padding is, as MPNet's

_States = tuple[torch.Tensor, ...]


def vocabulary_of(model: Any, name: str) -> int:
    """Return how many subwords a model knows; raises ModelError for a model of something else than text."""
    try:
        embeddings = model.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        embeddings = None
    size = getattr(embeddings, "num_embeddings", None)
    if not isinstance(size, int):
        what = "no embeddings of subwords: use a model of text"
        if getattr(embeddings, "weight", None) is not None:  # such as the quantized ones of I-BERT
            what = f"embeddings of a kind that is not known, {type(embeddings).__name__}: use another model"
        raise ModelError(f"the model {name!r} ({type(model).__name__}) has {what}")
    return size


def find_inputs(
    model: Any, tokenizer: SubwordTokenizer, given: Mapping[str, torch.Tensor], states: _States, *, dtype: torch.dtype
) -> InputMaker:
    """Return what makes the inputs of a model, from its hidden states `states` of the inputs `given`."""
    config = model.config
    parameters = frozenset(inspect.signature(model.forward).parameters)
    padding = getattr(config, "pad_token_id", None)
    window, kinds = sliding_window(config)
    return InputMaker(
        parameters=parameters,
        specials=tokenizer.specials,
        takes_types=tokenizer.takes_types and "token_type_ids" in parameters,
        padding_id=padding if isinstance(padding, int) and 0 <= padding < tokenizer.vocabulary else 0,
        position_offset=_position_offset(model, given, states, SAME[dtype]) if "position_ids" in parameters else None,
        causal=_is_causal(model, given, states, NO_EFFECT[dtype]),
        window=window,
        layer_types=kinds,
        device=given["input_ids"].device,
        dtype=dtype,
    )


def probe_inputs(model: Any, tokenizer: Any, specials: Specials, device: torch.device) -> dict[str, torch.Tensor]:
    """Return a batch of two texts of different subwords of the vocabulary, as a model's keyword arguments."""
    vocabulary = model.get_input_embeddings().num_embeddings
    special = set(getattr(tokenizer, "all_special_ids", ()))
    usable = torch.tensor([index for index in range(vocabulary) if index not in special] or list(range(vocabulary)))
    limit = longest_sentence(model.config, tokenizer, specials, None)
    count = min(PROBE_POSITIONS, limit or PROBE_POSITIONS)
    chosen = torch.arange(2 * count) * (len(usable) - 1) // (2 * count - 1)
    ids = usable[chosen].reshape(2, count).to(device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def sliding_window(config: Any) -> tuple[int | None, frozenset[str]]:
    """Return the reach of the model's own sliding attention (None: no layer slides) and the kinds of its layers."""
    kinds = frozenset(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    if not isinstance(window, int) or kinds == {FULL} or not getattr(config, "use_sliding_window", True):
        return None, kinds
    return window, kinds


def _position_offset(model: Any, inputs: Mapping[str, torch.Tensor], states: _States, same: float) -> int | None:
    """Return the number of the first position, by trying which explicit positions change nothing.

    `states`: the hidden states of `inputs`, which contain no positions. None: no positions give the same states. Those
    beyond the model's last position are not tried, because on a GPU they would end the process's use of it.
    """
    count = inputs["input_ids"].shape[1]
    limit = getattr(model.config, "max_position_embeddings", None)
    for offset in dict.fromkeys((0, (getattr(model.config, "pad_token_id", None) or 0) + 1, FAIRSEQ_OFFSET)):
        if isinstance(limit, int) and offset + count > limit:
            continue
        positions = torch.arange(offset, offset + count, device=inputs["input_ids"].device)
        positions = positions.expand_as(inputs["input_ids"])
        explicit = model(**inputs, position_ids=positions, output_hidden_states=True).hidden_states
        # Last bits may differ: on a GPU the sums of a mixture of experts have no fixed order.
        if all(_largest(one - other) <= same * _largest(one) for one, other in zip(states, explicit, strict=True)):
            return offset
    return None


def _is_causal(model: Any, inputs: Mapping[str, torch.Tensor], states: _States, tolerance: float) -> bool:
    """Return whether a position attends only to those before it.

    Changes the last subword; the effect on earlier positions, relative to that on its own, must be below `tolerance`.
    It need not be zero: in a mixture of experts another last subword changes the last bits of the earlier ones. But it
    must where the attention modules say of themselves that they are not causal.
    """
    changed = inputs["input_ids"].clone()
    changed[:, -1] = changed[:, 0]
    others = model(**{**inputs, "input_ids": changed}, output_hidden_states=True).hidden_states
    differences = [one - other for one, other in zip(states, others, strict=True)]
    own = max(_largest(difference[:, -1:]) for difference in differences)
    earlier = max(_largest(difference[:, :-1]) for difference in differences)
    declared = {module.is_causal for module in model.modules() if isinstance(getattr(module, "is_causal", None), bool)}
    declared = declared or ({True} if getattr(model.config, "is_decoder", False) else set())
    if not own > 0:
        return declared == {True}
    return earlier <= (0 if declared == {False} else tolerance) * own


def _largest(values: torch.Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0


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
    limit = getattr(config, "max_position_embeddings", getattr(config, "max_encoder_position_embeddings", None))
    if limit is None and not hasattr(config, "relative_attention_num_buckets"):
        limit = getattr(config, "n_positions", None)
    if not isinstance(limit, int) or limit <= 0:
        return None
    limit = min(limit - (offset or 0), getattr(tokenizer, "model_max_length", limit))
    return max(0, limit - specials.count)
