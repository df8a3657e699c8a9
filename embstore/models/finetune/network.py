"""The network that is fine-tuned: a pretrained transformer, and one new linear layer on its last hidden states."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from embstore.errors import InvalidValueError, ModelError
from embstore.models.finetune.examples import pair_mask
from embstore.models.loading import TOKENIZER_FILES, Checkpoint, quiet, read_network
from embstore.models.transformer.inputs import (
    attention_window,
    forward_parameters,
    is_causal,
    longest_sentence,
    position_offset,
)
from embstore.models.transformer.tokens import SubwordTokenizer

_TOKENIZER_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_PROBED = 7


@dataclass(frozen=True)
class Trainable:
    """A network with a linear layer over its last hidden states, and what its batches must look like.

    `position_offset`: the number of the first position where sentences may be packed into rows, else None.
    `longest`: subwords of a sentence, special ones included, None where there is no limit.
    """

    network: Any
    tokenizer: SubwordTokenizer
    padding_id: int
    takes_types: bool
    causal: bool
    position_offset: int | None
    longest: int | None


def load_trainable(checkpoint: Checkpoint, name: str, labels: Sequence[str]) -> Trainable:
    """Read a checkpoint with a new linear layer for `labels`, drawn from torch's own generator."""
    config = checkpoint.config
    kinds = transformers.AutoModelForTokenClassification
    if type(config) not in kinds._model_mapping or getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"the model {name!r} ({config.model_type}) cannot be fine-tuned: use an encoder such as BERT")
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: number for number, label in enumerate(labels)}
    with quiet():
        network, report = read_network(kinds, checkpoint.folder, config, torch.float32, ignore_mismatched_sizes=True)
    base = f"{network.base_model_prefix}."
    parameters = {parameter for parameter, _ in network.named_parameters(remove_duplicate=False)}
    wrong = [*report["missing_keys"], *(key[0] for key in report["mismatched_keys"])]
    if lacking := sorted(key for key in wrong if key in parameters and key.startswith(base)):
        raise ModelError(f"the weights of {name!r} lack {len(lacking)} parameters, {lacking[0]!r} the first")
    _renew_head(network, base)
    subwords = network.get_input_embeddings().num_embeddings
    tokenizer = SubwordTokenizer(checkpoint.tokenizer, vocabulary=subwords)
    return _probed(network, checkpoint, tokenizer)


def _renew_head(network: Any, base: str) -> None:
    """Draw the linear layers above the transformer anew, so that none is left from an earlier fine-tuning."""
    spread = getattr(network.config, "initializer_range", 0.02)
    for name, module in network.named_modules():
        if isinstance(module, nn.Linear) and not name.startswith(base):
            nn.init.normal_(module.weight, std=spread)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def _probed(network: Any, checkpoint: Checkpoint, tokenizer: SubwordTokenizer) -> Trainable:
    """Learn from a few passes what the network takes."""
    config, base = network.config, network.base_model
    vocabulary = network.get_input_embeddings().num_embeddings
    padding = getattr(config, "pad_token_id", None)
    ids = _probe_ids(checkpoint, vocabulary)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    network.eval()
    with torch.no_grad():
        states = base(**inputs, output_hidden_states=True).hidden_states
        causal = is_causal(base, inputs, states)
        offset = position_offset(base, inputs, states, padding)
    room = longest_sentence(config, checkpoint.tokenizer, tokenizer.specials, offset)
    return Trainable(
        network=network,
        tokenizer=tokenizer,
        padding_id=padding if isinstance(padding, int) and 0 <= padding < vocabulary else 0,
        takes_types="token_type_ids" in forward_parameters(network)
        and "token_type_ids" in getattr(checkpoint.tokenizer, "model_input_names", ()),
        causal=causal,
        position_offset=offset if offset is not None and _packs(network, ids, offset, causal) else None,
        longest=None if room is None else room + tokenizer.specials.count,
    )


def _packs(network: Any, ids: torch.Tensor, offset: int, causal: bool) -> bool:
    """Tell whether two sentences in one row give what each gives alone."""
    if attention_window(network.config)[0] is not None:
        return False
    half = ids.shape[1] // 2
    owners = (torch.arange(ids.shape[1]) >= half).long()[None]
    positions = torch.cat([torch.arange(half), torch.arange(ids.shape[1] - half)])[None] + offset
    mask = pair_mask(owners, owners, reach=None, causal=causal)
    try:
        together = network(input_ids=ids, attention_mask=mask, position_ids=positions).logits
    except (TypeError, ValueError, RuntimeError, IndexError):
        return False
    apart = torch.cat([network(input_ids=part).logits for part in (ids[:, :half], ids[:, half:])], dim=1)
    return torch.allclose(together, apart, atol=1e-4)


def _probe_ids(checkpoint: Checkpoint, vocabulary: int) -> torch.Tensor:
    special = set(getattr(checkpoint.tokenizer, "all_special_ids", ()))
    usable = torch.tensor([index for index in range(vocabulary) if index not in special])
    return usable[torch.arange(_PROBED) * (len(usable) - 1) // (_PROBED - 1)][None]


def require_length(trainable: Trainable, max_length: int) -> None:
    """Raise InvalidValueError where sentences of that many subwords are too long for the model, or hold no word."""
    specials = trainable.tokenizer.specials.count
    if max_length <= specials:
        raise InvalidValueError(f"max length is {max_length}: {specials} special subwords leave no room for a word")
    if trainable.longest is not None and max_length > trainable.longest:
        raise InvalidValueError(f"max length is {max_length}; this model takes {trainable.longest} subwords at most")


def require_window(trainable: Trainable, checkpoint: Checkpoint) -> None:
    """Raise ModelError where the model does not keep to an attention window, by changing what is beyond it."""
    if attention_window(trainable.network.config)[0] is not None:
        raise ModelError("the model has an attention window of its own; leave --attention-window out")
    vocabulary = trainable.network.get_input_embeddings().num_embeddings
    ids = _probe_ids(checkpoint, vocabulary)
    other = ids.clone()
    other[0, -1] = ids[0, 1]
    words = torch.arange(_PROBED)[None]
    mask = pair_mask(torch.zeros_like(words), words, reach=0, causal=trainable.causal)
    try:
        with torch.no_grad():
            one, two = (trainable.network(input_ids=row, attention_mask=mask).logits[0, 0] for row in (ids, other))
    except Exception as error:
        raise ModelError(f"the model takes no attention window: {' '.join(str(error).split())[:200]}") from error
    if not torch.allclose(one, two, atol=1e-6):
        raise ModelError("the model looks beyond an attention window; leave --attention-window out")


def save_network(network: Any, checkpoint: Checkpoint, folder: Path) -> None:
    """Write a network as an ordinary checkpoint with the tokenizer's files as they were."""
    with quiet():
        network.save_pretrained(folder)
    for name in (*TOKENIZER_FILES, *_TOKENIZER_SETTINGS):
        if (checkpoint.folder / name).is_file():
            shutil.copyfile(checkpoint.folder / name, folder / name)
