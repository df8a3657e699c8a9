"""The attention maps of a transformer, layer by layer as they are computed: no list of all layers is held."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import ModelError, check_whole
from embstore.models.batching import Batch
from embstore.models.checkpoint import load, reason
from embstore.models.encoder import Tokenized, subwords_within
from embstore.models.placing import Place
from embstore.models.transformer.network import Network
from embstore.models.transformer.sites import Attended, captured
from embstore.models.transformer.varlen import attention_by

EAGER = "eager_attention_forward"  # of each module of transformers: attention in steps, as its authors define it
SAME = 1e-4  # largest difference of a probability between a padded batch and transformers' own eager attention

Receive = Callable[[int, torch.Tensor], None]


class AttentionModel:
    """A transformer that gives its attention maps: the probabilities with which positions attend to positions.

    Layer l is the attention of block l, from 1 to `n_layers`; heads count from 0. `causal`: whether a position attends
    only to itself and those before it. Made by `load_attention_model`.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.info, self.inputs = network.info, network.inputs
        self.causal = network.inputs.causal
        self.n_layers = network.info.num_hidden_layers
        # Whether the modules of the model look attention up by name, with one of their own as the default
        names = {type(one).__module__ for one in network.model.modules() if "attention" in type(one).__name__.lower()}
        is_eager = any(hasattr(sys.modules[name], EAGER) for name in names)
        self._registered = bool(network.model._supports_sdpa) and is_eager
        if not self._registered:
            try:
                network.model.set_attn_implementation("eager")
            except Exception as error:
                raise ModelError(f"the model {self.info.name!r} returns no attention weights: {error}") from error
        self.n_heads = 0  # as `check` finds

    def run(self, inputs: dict[str, Any], layers: Sequence[int], receive: Receive) -> None:
        """Run a batch as deep as necessary; calls `receive(layer, [rows, heads, queries, keys])` for each layer.

        `inputs`: of `InputMaker.batch`. The maps are the caller's to change; those of padding positions as queries are
        meaningless.
        """
        wanted = frozenset(layers)
        if not self._registered:
            maps = self.network.model(**inputs, output_attentions=True).attentions
            for layer in sorted(wanted):
                receive(layer, maps[layer - 1])
            return
        calls = 0

        def take(call: Attended) -> None:
            nonlocal calls
            calls += 1
            if calls in wanted:
                receive(calls, call.weights)

        with captured(self.network.model, take, by="eager"), self.network.packed.used():
            self.network.tap.run(inputs, (max(wanted),), lambda layer, state: None)
        if calls < max(wanted):
            raise ModelError(f"{self.info.name!r} computed {calls} attention maps of {max(wanted)} layers")

    @torch.inference_mode()
    def check(self) -> None:
        """Raise ModelError unless a batch of two sentences gives the maps that transformers gives for each alone."""
        inputs, name = self.network.inputs, self.info.name
        count = min(9, self.info.max_subwords or 9)
        specials = {*inputs.specials.prefix, *inputs.specials.suffix, inputs.padding_id}
        usable = [index for index in range(self.network.tokenizer.vocabulary) if index not in specials]
        ids = np.array([usable[(7 * number) % len(usable)] for number in range(count)], np.int32)
        lengths = np.array([count, max(1, count - 4)])
        starts, rows = np.zeros(2, np.int64), np.arange(2)
        batch = Batch(rows, rows, starts, (2, count + inputs.specials.count))
        found: list[torch.Tensor] = []
        try:
            given = inputs.batch(batch, Tokenized(ids, np.array([0, count])), starts, lengths, "padded")
            self.run(given, range(1, self.n_layers + 1), lambda _, maps: found.append(maps))
            for row, column, length in zip(batch.rows, batch.columns, lengths, strict=True):
                plain = _plain_maps(self.network, ids[:length])
                if len(plain) != self.n_layers or any(maps.ndim != 4 for maps in plain):
                    raise ModelError(f"the model {name!r} returns no attention weights by layer and head")
                block = slice(int(column), int(column) + plain[0].shape[-1])
                for layer, (maps, own) in enumerate(zip(found, plain, strict=True), 1):
                    difference = float((maps[row, :, block, block] - own[0]).abs().max())
                    if not difference <= SAME:
                        raise ModelError(
                            f"attention maps of {name!r} in a padded batch differ from its own by "
                            f"{difference:.1e} in layer {layer}: this architecture is not supported"
                        )
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(f"the model {name!r} returns no attention weights: {reason(error)}") from error
        self.n_heads = int(found[0].shape[1])


def load_attention_model(model: str | Path, *, device: torch.device) -> AttentionModel:
    """Load a transformer that gives its attention maps, in float32.

    Raises ModelError, in one line, for a model that cannot be loaded, and for one without attention weights.
    """
    loaded = load(model, Place(device), dtype=torch.float32, revision=None)
    made = AttentionModel(Network(loaded))
    made.check()
    return made


def longest_words(model: AttentionModel, max_length: int | None) -> int | None:
    """Return how many subwords of a sentence, without special ones, fit `max_length` with them; None: no limit.

    Raises InvalidValueError if nothing fits, or if the model accepts fewer.
    """
    if max_length is None:
        return model.info.max_subwords
    check_whole("max length", max_length, 1)
    return subwords_within("max length", max_length, model.info, model.inputs.specials.count)


def _plain_maps(network: Network, ids: NDArray[np.int32]) -> Sequence[torch.Tensor]:
    """Return the maps of one sentence as transformers gives them: no batch, no registered attention."""
    model = network.model
    with attention_by("eager", model):
        maps = model(**network.inputs.plain(ids), output_attentions=True).attentions
    if maps is None:
        raise ModelError(f"the model {network.info.name!r} returns no attention weights")
    return tuple(maps)
