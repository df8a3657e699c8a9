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
from embstore.models.transformer.layers import hooked, same

SAME = 1e-4  # of the largest logit: between the model's own logits and those of its last hidden state
PROBED_SUBWORDS = 9


class Unembedding:
    """The final norm and the head of a decoder, in float32; made by `load_unembedding`.

    The head is the forward pass of the whole model with given states in the place of what its blocks compute, so that
    a bias, a scale or a cap of the logits is applied as the model does it. `encoder`: the identity and the tokenizer.
    `vocabulary`: the number of logits.
    """

    def __init__(self, model: Any, encoder: TransformerEncoder) -> None:
        self._model, self.encoder, self.info = model, encoder, encoder.info
        if not encoder.causal:
            raise ModelError(
                f"the model {self.info.name!r} reads in both directions, so that its states do not predict the next "
                "subword: give a store of a decoder"
            )
        encoder.drop_fast_layers()
        try:
            self._find()
        except Exception as error:
            raise ModelError(f"the head of {self.info.name!r} cannot be used: {reason(error)}") from error
        for block in encoder.network.tap.blocks:
            block.to("meta")  # frees its weights

    @torch.inference_mode()
    def _find(self) -> None:
        """Find the final norm, put states in the place of the blocks, and check the logits of the last layer."""
        network = self.encoder.network
        known = np.arange(network.tokenizer.vocabulary // 2, network.tokenizer.vocabulary, dtype=np.int32)
        ids = np.resize(known, min(PROBED_SUBWORDS, self.info.max_subwords or PROBED_SUBWORDS))
        inputs, outputs = network.inputs.plain(ids) | network.inputs.fixed, list[tuple[Any, Any]]()
        inside = {module for block in network.tap.blocks for module in block.modules()}
        with hooked(
            module.register_forward_hook(lambda module, _, output: outputs.append((module, output)))
            for module in network.model.modules()
            if module not in inside and (module is network.model or "norm" in type(module).__name__.lower())
        ):
            whole = self._model(**inputs).logits[0]
        (*others, (_, output)), last = outputs, network.tap.plain(inputs)[-1]
        norms = [norm for norm, normed in others if isinstance(normed, torch.Tensor) and same(normed, last)]
        self._norm = norms[0] if self.info.final_norm else torch.nn.Identity()
        network.model.forward = lambda *_, **__: type(output)(last_hidden_state=self._states)
        self.vocabulary = int(whole.shape[-1])
        difference = float((self.logits(last[0], normed=True) - whole).abs().max() / whole.abs().max())
        if not difference <= SAME:
            raise ValueError(f"its logits differ by {difference:.1e} from those of the last hidden state")

    @torch.inference_mode()
    def logits(self, states: torch.Tensor, *, normed: bool) -> torch.Tensor:
        """Return the logits [n, vocabulary] of states [n, features]; `normed`: these are after the final norm."""
        self._states = (states if normed else self._norm(states))[None]
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
