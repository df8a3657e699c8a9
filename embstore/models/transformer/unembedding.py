"""From the hidden states of a decoder to the logits of the next subword, by the model's own norm and head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from embstore.errors import ModelError
from embstore.models.checkpoint import Loaded, config_sha256, language_model, open_checkpoint, quiet, reason, sha256_of
from embstore.models.memory import memory_needed
from embstore.models.placing import Place
from embstore.models.transformer.encoder import TransformerEncoder
from embstore.models.transformer.layers import same

SAME = 1e-4  # of the largest logit: between the model's own logits and those of its last hidden state
PROBED_SUBWORDS = 9


class Unembedding:
    """The final norm and the head of a decoder, in float32; made by `load_unembedding`.

    The head is the forward pass of the whole model with `states` in place of what its blocks compute, so that a bias,
    a scale or a cap of the logits is applied as the model does it. `encoder`: the identity and tokenizer of the model.
    `vocabulary`: the number of logits.
    """

    def __init__(self, model: Any, encoder: TransformerEncoder) -> None:
        self._model, self.encoder, self.info = model, encoder, encoder.info
        if not encoder.causal:
            raise ModelError(
                f"the model {self.info.name!r} reads in both directions, so that its states do not predict the next "
                "subword: give a store of a decoder"
            )
        network = encoder.network
        network.packed.drop()
        count = min(PROBED_SUBWORDS, self.info.max_subwords or PROBED_SUBWORDS)
        ids = np.resize(np.arange(network.tokenizer.vocabulary // 2, network.tokenizer.vocabulary), count)
        inputs = network.inputs.plain(ids.astype(np.int32)) | network.inputs.fixed
        try:
            with torch.inference_mode():
                self._find(inputs)
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(f"the head of {self.info.name!r} cannot be used: {reason(error)}") from error
        for block in network.tap.blocks:
            block.to("meta")  # frees its weights

    def _find(self, inputs: dict[str, Any]) -> None:
        """Find the final norm, put `states` in the place of the blocks, and check the logits of the last layer."""
        network, name = self.encoder.network, self.info.name
        body, calls = network.model, list[tuple[Any, Any]]()
        inside = {module for block in network.tap.blocks for module in block.modules()}
        handles = [
            module.register_forward_hook(lambda module, _, output: calls.append((module, output)))
            for module in body.modules()
            if module not in inside and (module is body or "norm" in type(module).__name__.lower())
        ]
        try:
            whole = self._model(**inputs).logits[0]
        finally:
            for handle in handles:
                handle.remove()
        last = network.tap.plain(inputs)[-1]
        norms = [module for module, output in calls[:-1] if isinstance(output, torch.Tensor) and same(output, last)]
        if self.info.final_norm and not norms:
            raise ModelError(f"the final norm of {name!r} is not found: this architecture is not supported")
        self._norm, output = norms[0] if self.info.final_norm else None, type(calls[-1][1])
        body.forward = lambda *_, **__: output(last_hidden_state=self._states)
        self.vocabulary = int(whole.shape[-1])
        difference = float((self.logits(last[0], normed=True) - whole).abs().max() / whole.abs().max())
        if not difference <= SAME:
            raise ModelError(
                f"the logits of {name!r} are not those of its last hidden state (they differ by {difference:.1e}): "
                "this architecture is not supported"
            )

    @torch.inference_mode()
    def logits(self, states: torch.Tensor, *, normed: bool) -> torch.Tensor:
        """Return the logits [n, vocabulary] of states [n, features]; `normed`: these are after the final norm."""
        states = states if normed or self._norm is None else self._norm(states)
        self._states = states[None]
        ids = torch.zeros(1, len(states), dtype=torch.int64, device=states.device)
        logits: torch.Tensor = self._model(input_ids=ids).logits[0]
        return logits.float()


def load_unembedding(model: str | Path, *, device: torch.device, revision: str | None) -> Unembedding:
    """Load the final norm and the head of a decoder; all of its weights are in memory for a moment.

    Raises ModelError, in one line, for a model without a head, and for one whose logits are not those of its last
    hidden state.
    """
    place, checkpoint = Place(device), open_checkpoint(model, revision=revision)
    with quiet(), memory_needed(f"the model {str(model)!r}", device):
        network = language_model(checkpoint, place, str(model), torch.float32)
        weights, config = sha256_of(checkpoint.files), config_sha256(checkpoint.folder)
        known = checkpoint.tokenizer, str(model), checkpoint.revision, weights, config
        loaded = Loaded(network.base_model, *known, missing={}, place=place, dtype=torch.float32)
        return Unembedding(network, TransformerEncoder(loaded))
