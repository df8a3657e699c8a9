"""The network that is fine-tuned: a pretrained transformer with one new linear layer on its last hidden states."""

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
from embstore.models.checkpoint import TOKENIZER_FILES, Checkpoint, quiet, read_network, reason
from embstore.models.transformer.inputs import InputMaker, visible_words
from embstore.models.transformer.probing import find_inputs, longest_sentence, probe_inputs, vocabulary_of
from embstore.models.transformer.tokens import SubwordTokenizer

_TOKENIZER_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")


@dataclass(frozen=True)
class Trainable:
    """A network with a linear layer over its last hidden states, and what its batches must look like.

    `packs`: whether sentences may be packed into rows. `longest`: subwords of a sentence, special ones included; None:
    no limit. `probe`: ids [1, n] of different subwords.
    """

    network: Any
    tokenizer: SubwordTokenizer
    inputs: InputMaker
    packs: bool
    longest: int | None
    probe: torch.Tensor

    def check(self, *, max_length: int, attention_window: int | None) -> None:
        """Raise InvalidValueError for a length that the model does not accept, ModelError for an attention window."""
        specials = self.tokenizer.specials.count
        if max_length <= specials:
            raise InvalidValueError(
                f"max length is {max_length}: {specials} special subwords leave no space for a word"
            )
        if self.longest is not None and max_length > self.longest:
            raise InvalidValueError(f"max length is {max_length}; this model accepts at most {self.longest} subwords")
        if attention_window is None:
            return
        if self.inputs.window is not None:
            raise ModelError("the model has an attention window of its own; leave --attention-window out")
        changed = self.probe.clone()
        changed[0, -1] = changed[0, 1]
        mask = self.inputs.additive_mask(visible_words(torch.arange(self.probe.shape[1])[None], 0))
        try:
            with torch.no_grad():
                one, two = (
                    self.network(input_ids=ids, attention_mask=mask).logits[0, 0] for ids in (self.probe, changed)
                )
        except Exception as error:
            raise ModelError(f"the model supports no attention window: {reason(error)}") from error
        if not torch.allclose(one, two, atol=1e-6):
            raise ModelError("the model attends beyond an attention window; leave --attention-window out")


def load_trainable(checkpoint: Checkpoint, name: str, labels: Sequence[str], *, fresh: bool = True) -> Trainable:
    """Read a checkpoint with a linear layer for `labels`: a fresh one, by torch's own generator, or the stored one."""
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
    if missing := sorted(key for key in wrong if key in parameters and (key.startswith(base) or not fresh)):
        raise ModelError(f"the weights of {name!r} do not contain {len(missing)} parameters, such as {missing[0]!r}")
    spread = getattr(config, "initializer_range", 0.02)
    for module_name, module in network.named_modules():  # nothing remains of the head of an earlier fine-tuning
        if fresh and isinstance(module, nn.Linear) and not module_name.startswith(base):
            nn.init.normal_(module.weight, std=spread)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    vocabulary = vocabulary_of(network, name)
    return _probed(network, checkpoint, SubwordTokenizer(checkpoint.tokenizer, vocabulary=vocabulary))


def _probed(network: Any, checkpoint: Checkpoint, tokenizer: SubwordTokenizer) -> Trainable:
    """Find out from a few forward passes what the network accepts."""
    given = probe_inputs(network, checkpoint.tokenizer, tokenizer.specials, n_sentences=1)
    network.eval()
    with torch.no_grad():
        states = network.base_model(**given, output_hidden_states=True).hidden_states
        inputs = find_inputs(network.base_model, tokenizer, given, states, dtype=torch.float32)
        packs = _packs(network, inputs, given["input_ids"])
    limit = longest_sentence(network.config, checkpoint.tokenizer, tokenizer.specials, inputs.position_offset)
    return Trainable(
        network=network,
        tokenizer=tokenizer,
        inputs=inputs,
        packs=packs,
        longest=None if limit is None else limit + tokenizer.specials.count,
        probe=given["input_ids"],
    )


def _packs(network: Any, inputs: InputMaker, ids: torch.Tensor) -> bool:
    """Return whether two sentences in one row give the same results as each one alone."""
    if inputs.window is not None or inputs.position_offset is None:
        return False
    half = ids.shape[1] // 2
    owners = (torch.arange(ids.shape[1]) >= half).int()[None] + 1
    positions = torch.cat([torch.arange(half), torch.arange(ids.shape[1] - half)])[None] + inputs.position_offset
    try:
        mask = inputs.mask(owners, "packed")
        together = network(input_ids=ids, attention_mask=mask, position_ids=positions).logits
    except (TypeError, ValueError, RuntimeError, IndexError):
        return False
    alone = torch.cat([network(input_ids=part).logits for part in (ids[:, :half], ids[:, half:])], dim=1)
    return torch.allclose(together, alone, atol=1e-4)


def save_network(network: Any, checkpoint: Checkpoint, folder: Path) -> None:
    """Write a network as an ordinary checkpoint with unchanged copies of the tokenizer's files."""
    with quiet():
        network.save_pretrained(folder)
    for name in (*TOKENIZER_FILES, *_TOKENIZER_SETTINGS):
        if (checkpoint.folder / name).is_file():
            shutil.copyfile(checkpoint.folder / name, folder / name)
