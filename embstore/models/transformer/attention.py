"""The attention maps of a transformer, layer by layer as they are computed: no list of all layers is held."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import InvalidValueError, ModelError, check_whole
from embstore.models.batching import Batch, Batching
from embstore.models.checkpoint import load, reason
from embstore.models.encoder import Tokenized
from embstore.models.placing import Place
from embstore.models.transformer.inputs import Segments
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
        self.info = network.info
        self.causal = network.inputs.causal
        self.n_layers = network.info.num_hidden_layers
        self._registered = _takes_registered(network.model)
        if not self._registered:
            try:
                network.model.set_attn_implementation("eager")
            except Exception as error:
                raise ModelError(f"the model {self.info.name!r} returns no attention weights: {error}") from error
        self.n_heads = 0  # as `check` finds

    def run(self, inputs: dict[str, Any], layers: Sequence[int], receive: Receive) -> None:
        """Run a batch as deep as necessary; calls `receive(layer, [rows, heads, queries, keys])` for each layer.

        The maps are the caller's to change. Those of padding positions as queries are meaningless.
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

    def batch(
        self, batch: Batch, tokenized: Tokenized, starts: NDArray[np.int64], lengths: NDArray[np.int64], how: Batching
    ) -> dict[str, Any]:
        """Return the arguments of `run` for a batch; see `InputMaker.batch`."""
        segments = None if tokenized.types is None else Segments(tokenized.types, self.network.tokenizer.pair)
        return self.network.inputs.batch(batch, tokenized.ids, starts, lengths, how, segments=segments)

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
            given = inputs.batch(batch, ids, starts, lengths, "padded")
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
    specials, limit = model.network.inputs.specials.count, model.info.max_subwords
    if max_length is None:
        return limit
    check_whole("max length", max_length, 1)
    if max_length <= specials:
        raise InvalidValueError(f"max length is {max_length}: {specials} special subwords leave no space for a word")
    if limit is not None and max_length > limit + specials:
        raise InvalidValueError(
            f"max length is {max_length}; {model.info.name!r} accepts at most {limit + specials} subwords"
        )
    return max_length - specials


def _takes_registered(model: Any) -> bool:
    """Return whether the modules of a model look attention up by name, with one of their own as the default."""
    names = {type(module).__module__ for module in model.modules() if "attention" in type(module).__name__.lower()}
    return bool(model._supports_sdpa) and any(hasattr(sys.modules[name], EAGER) for name in names)


def _plain_maps(network: Network, ids: NDArray[np.int32]) -> Sequence[torch.Tensor]:
    """Return the maps of one sentence as transformers gives them: no batch, no registered attention."""
    model = network.model
    with attention_by("eager", model):
        maps = model(**network.inputs.plain(ids), output_attentions=True).attentions
    if maps is None:
        raise ModelError(f"the model {network.info.name!r} returns no attention weights")
    return tuple(maps)
