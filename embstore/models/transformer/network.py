"""A loaded transformer with everything that is known about it: its inputs, layers, limits and costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from embstore.errors import ModelError
from embstore.models.batching import ROW_CAPACITY, Batching, fitting_capacity
from embstore.models.checkpoint import Loaded, reason
from embstore.models.encoder import ModelInfo
from embstore.models.names import public_name
from embstore.models.transformer.inputs import InputMaker
from embstore.models.transformer.layers import TYPICAL_POSITIONS, LayerTap, PackedWeights, find_layers
from embstore.models.transformer.probing import (
    find_inputs,
    longest_sentence,
    needed_parameters,
    probe_inputs,
    vocabulary_of,
)
from embstore.models.transformer.sites import SiteTap, find_sites
from embstore.models.transformer.tokens import SubwordTokenizer
from embstore.models.transformer.varlen import accepts_sentence_bounds

COPIES = 2  # of the vectors of a batch on a GPU: pooled, and cast
OUTLIERS = 0.01  # a mask that lets sentences see each other changes far more of the vectors that are checked
PLAIN = (bool, int, float, str, tuple, torch.dtype, type(None))
NUMBER_OF_BLOCK = ("layer_idx", "layer_id", "layer_number")
SITE_SUBWORDS = 24  # of the sentence on which sites are checked


class Network:
    """A transformer and what its batches must look like; the encoder and its self-check share it.

    `model`: the model as transformers loads it. `tap`: its layers. `packed`: the weights that batches use on a CPU,
    where the plain pass uses those of the model. `row_capacity`: the width of packed rows.
    """

    def __init__(self, loaded: Loaded) -> None:
        self.model: Any = loaded.model
        _skip_idle_calls(self.model)
        self.device, self.dtype, self.is_split = loaded.place.main, loaded.dtype, loaded.place.device_map is not None
        self.row_capacity = ROW_CAPACITY.get(self.device.type, 128)
        vocabulary = vocabulary_of(self.model, loaded.name)
        self.tokenizer = SubwordTokenizer(loaded.tokenizer, vocabulary=vocabulary)
        self.inputs, self.tap = self._probe(loaded)
        self.packed = PackedWeights([] if self.is_split else self.model.modules())  # hooks move its parts
        specials, offset = self.tokenizer.specials, self.inputs.position_offset
        self.info = ModelInfo(
            name=public_name(loaded.name),
            architecture=type(self.model).__name__,
            revision=loaded.revision,
            weights_sha256=loaded.weights_sha256,
            tokenizer_sha256=self.tokenizer.sha256(),
            num_hidden_layers=self.tap.num_hidden_layers,
            hidden_size=self.tap.hidden_size,
            max_subwords=longest_sentence(self.model.config, loaded.tokenizer, specials, offset),
            final_norm=self.tap.final_norm,
            config_sha256=loaded.config_sha256,
        )

    @cached_property
    def sites(self) -> SiteTap:
        """What the parts of the blocks compute; raises ModelError if that is not known, or not known here."""
        return find_sites(self.tap, self._different_inputs(), name=self.info.name)

    def candidate_batchings(
        self, *, attention_window: int | None = None, equal_lengths: bool = False
    ) -> tuple[Batching, ...]:
        """Return the batchings to try with this model, fastest first.

        "varlen" is first, because a mask costs more than the attention of the sentences; it has none for an attention
        window. `equal_lengths`: batch only sentences of one length together.
        """
        if equal_lengths or "attention_mask" not in self.inputs.parameters:
            masked: tuple[Batching, ...] = ("equal",)
        else:
            masked = ("packed", "padded", "equal")
        if equal_lengths or attention_window is not None or not self.takes_varlen:
            return masked
        return ("varlen", *masked)

    @property
    def takes_varlen(self) -> bool:
        """Return whether "varlen" may be tried: the model is given positions and passes keywords on to attention."""
        return self.inputs.position_offset is not None and accepts_sentence_bounds(self.model, self.inputs.parameters)

    @property
    def layers_of_all_kinds(self) -> int:
        """Return a layer, the second or a later one, below which there is a block of every kind.

        Blocks of one kind have the same modules, and the same numbers and names in them but for their own number.
        """
        types = getattr(self.model.config, "layer_types", None) or ()
        kinds = [(*types[at : at + 1], *_kind(block)) for at, block in enumerate(self.tap.blocks)]
        every = self.info.num_hidden_layers
        return min(every, max(2, *(kinds.index(kind) + 1 for kind in kinds))) if kinds else every

    @property
    def outliers(self) -> float:
        """Return the share of vectors that may differ from the plain pass: last bits choose between near experts."""
        experts = _first_int(self.model.config, ("num_experts_per_tok", "num_experts", "num_local_experts"), 0)
        return OUTLIERS if experts and self.dtype != torch.float32 else 0.0

    @property
    def gpus(self) -> list[torch.device]:
        """Return the CUDA devices that the weights are on."""
        return sorted({p.device for p in self.model.parameters() if p.device.type == "cuda"} or {self.device}, key=str)

    @property
    def weights_nbytes(self) -> int:
        """Return the bytes of the weights, packed copies included; of a split model those on its main device."""
        main = self.device if self.device.index is not None else torch.device(self.device.type, 0)
        weights = [p for p in self.model.parameters() if not self.is_split or p.device in (main, self.device)]
        return sum(int(p.nbytes) for p in weights) + self.packed.nbytes

    def batch_nbytes(self, *, n_features: int, batch_subwords: int) -> int:
        """Estimate the memory of one batch's activations, masks and results, from above.

        `n_features`: of a row, in all layers and sites.
        """
        config, size, hidden = self.model.config, self.dtype.itemsize, self.info.hidden_size
        inner = _first_int(config, ("intermediate_size", "d_ff", "n_inner", "hidden_dim", "d_inner"), 4 * hidden)
        heads = _first_int(config, ("num_attention_heads", "n_head", "num_heads", "n_heads"), 1)
        longest = (self.info.max_subwords or batch_subwords) + self.inputs.specials.count
        width = min(fitting_capacity(longest, self.row_capacity), max(self.row_capacity, batch_subwords))
        positions = max(batch_subwords, width)
        held = n_features if self.tap.blocks else n_features + (self.info.num_hidden_layers + 1) * hidden
        if self.device.type != "cpu":
            held += COPIES * n_features
        activations = positions * size * (8 * hidden + 3 * inner + held)
        masks = positions * width * (size + 12) * max(1, len(self.inputs.layer_types))
        scores = 0 if config._attn_implementation == "sdpa" else 3 * positions * width * heads * size
        return activations + masks + scores

    def position_nbytes(self, n_features: int) -> int:
        """Estimate the memory of one subword of a batch, from above; see `batch_nbytes`."""
        return max(1, self.batch_nbytes(n_features=n_features, batch_subwords=TYPICAL_POSITIONS) // TYPICAL_POSITIONS)

    def _different_inputs(self) -> dict[str, Any]:
        half = self.tokenizer.vocabulary // 2
        ids = np.resize(np.arange(half, 2 * half, dtype=np.int32), SITE_SUBWORDS)
        return self.inputs.plain(ids) | self.inputs.fixed

    def _probe(self, loaded: Loaded) -> tuple[InputMaker, LayerTap]:
        """Find out what the model takes and where its layers are; raises ModelError if it cannot be used."""
        model = self.model
        given = probe_inputs(model, loaded.tokenizer, self.tokenizer.specials, self.device)
        try:
            with torch.no_grad():
                states = model(**given, output_hidden_states=True).hidden_states
                if random := needed_parameters(model, given, loaded.missing):
                    raise ModelError(
                        f"the weights of {loaded.name!r} do not contain {len(random)} parameters that the hidden "
                        f"states need, such as {random[0]!r}; use a complete model"
                    )
                tap = find_layers(model, given)
                return find_inputs(model, self.tokenizer, given, states, dtype=self.dtype), tap
        except ModelError:
            raise
        except Exception as error:
            hint = "" if isinstance(error, ValueError) else ", on a few subwords: check its config.json"
            if self.dtype != torch.float32:  # such as XLNet, which computes its positions in float32
                hint = f", in {self.dtype}: choose the compute dtype float32".replace("torch.", "")
            raise ModelError(f"the model {loaded.name!r} cannot be used: {reason(error)}{hint}") from error


def _skip_idle_calls(model: Any) -> None:
    """Leave out what does nothing in a forward pass: dropout, and a search for padding, which waits for the GPU."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.forward = lambda states: states  # type: ignore[assignment, method-assign]
    model.warn_if_padding_and_no_attention_mask = lambda *_: None


def _kind(block: nn.Module) -> Iterator[Any]:
    """Yield the modules of a block and their numbers and names: all that decides what it computes but its weights."""
    for name, module in block.named_modules():
        values = {key: value for key, value in vars(module).items() if key not in NUMBER_OF_BLOCK}
        yield name, type(module), {key: value for key, value in values.items() if isinstance(value, PLAIN)}


def _first_int(config: Any, names: Sequence[str], default: int) -> int:
    values = (getattr(config, name, None) for name in names)
    return next((value for value in values if isinstance(value, int)), default)
