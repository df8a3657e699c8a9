"""Transformers with their language modeling head."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from embstore.errors import ModelError
from embstore.models.checkpoint import Loaded, open_checkpoint, quiet, read_network, sha256_of
from embstore.models.placing import Place
from embstore.models.transformer.attention import AttentionModel
from embstore.models.transformer.network import Network


@dataclass(frozen=True)
class LanguageModel:
    """A transformer with its language modeling head; `mask_id`: of the mask, None for a causal model."""

    network: Any
    attention: AttentionModel
    mask_id: int | None


def load_language_model(model: str | Path, *, device: torch.device) -> LanguageModel:
    """Load a model with its language modeling head, in float32.

    Raises ModelError for a model whose files have none, and for one without attention weights.
    """
    checkpoint = open_checkpoint(model, revision=None)
    config, mask_id = checkpoint.config, checkpoint.tokenizer.mask_token_id
    kinds: Any = transformers.AutoModelForMaskedLM
    if type(config) not in kinds._model_mapping:
        kinds, mask_id = transformers.AutoModelForCausalLM, None
    elif mask_id is None:
        raise ModelError(f"the tokenizer of {str(model)!r} has no mask, which the loss of its language model needs")
    if type(config) not in kinds._model_mapping or getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"the model {str(model)!r} ({config.model_type}) has no language modeling head")
    with quiet():
        network, report = read_network(kinds, checkpoint.folder, config, torch.float32)
    parameters = {name for name, _ in network.named_parameters(remove_duplicate=False)}
    if missing := sorted(name for name in report["missing_keys"] if name in parameters):
        raise ModelError(
            f"the model {str(model)!r} has no language modeling head: its weights do not contain {missing[0]!r}"
        )
    network = network.to(device).eval().requires_grad_(True)
    sha256 = sha256_of(checkpoint.files)
    base = Loaded(
        network.base_model,
        checkpoint.tokenizer,
        str(model),
        checkpoint.revision,
        sha256,
        {},
        Place(device),
        torch.float32,
    )
    attention = AttentionModel(Network(base))
    attention.check()
    network.set_attn_implementation("eager")
    return LanguageModel(network, attention, mask_id)
