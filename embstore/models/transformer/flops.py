"""How many operations a forward pass takes, from the shapes of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers.pytorch_utils import Conv1D

if TYPE_CHECKING:
    from embstore.models.transformer.encoder import TransformerEncoder

_PROBE_SUBWORDS = 5


def forward_flops(encoder: TransformerEncoder, lengths: NDArray[np.int64], *, deepest: int) -> float:
    """Count the multiplications and additions of a pass over sentences up to layer `deepest`.

    `lengths`: positions of each sentence, special ones included. 2 x in x out for each position of each linear layer,
    and 4 x width x length^2 for the attention of each layer: what the sentences need, without padding, and with no
    discount for attention that slides or is causal.
    """
    by_position, by_sentence = _linear_flops(encoder, deepest)
    pairs = float((lengths.astype(np.float64) ** 2).sum())
    attention = 4.0 * attention_width(encoder.model.config, encoder.info.hidden_size) * pairs * deepest
    return by_position * float(lengths.sum()) + by_sentence * len(lengths) + attention


def attention_width(config: Any, hidden_size: int) -> int:
    """Return the features of all heads of a layer together."""
    heads = next(
        (getattr(config, name) for name in ("num_attention_heads", "n_head", "num_heads") if _has(config, name)), 1
    )
    each = next((getattr(config, name) for name in ("head_dim", "d_kv", "d_head") if _has(config, name)), None)
    return hidden_size if each is None else int(heads * each)


def _has(config: Any, name: str) -> bool:
    return isinstance(getattr(config, name, None), int)


@torch.inference_mode()
def _linear_flops(encoder: TransformerEncoder, deepest: int) -> tuple[float, float]:
    """Return the operations of linear layers a position and a sentence, by a pass over one short sentence."""
    maker = encoder.inputs
    ids = np.full(_PROBE_SUBWORDS, maker.padding_id, np.int32)
    inputs = maker.plain(maker.with_specials(ids))
    positions = inputs["input_ids"].shape[1]
    counted = {True: 0.0, False: 0.0}

    def count(module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        weight: Any = module.weight
        rows = args[0].numel() // args[0].shape[-1]
        counted[rows == positions] += 2.0 * weight.numel() * rows

    handles = [m.register_forward_pre_hook(count) for m in encoder.model.modules() if isinstance(m, nn.Linear | Conv1D)]
    try:
        encoder.run_layers(inputs | maker.fixed(), (deepest,), lambda layer, state: None)
    finally:
        for handle in handles:
            handle.remove()
    return counted[True] / positions, counted[False]
