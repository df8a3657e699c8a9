"""A loaded transformer with everything that is known about it: its inputs, layers, limits and costs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from embstore.errors import ModelError
from embstore.models.batching import ROW_CAPACITY, fitting_capacity
from embstore.models.checkpoint import Loaded, reason
from embstore.models.encoder import ModelInfo
from embstore.models.names import public_name
from embstore.models.transformer.inputs import FULL, InputMaker
from embstore.models.transformer.layers import TYPICAL_POSITIONS, LayerTap, PackedWeights, find_layers
from embstore.models.transformer.sites import SiteTap, find_sites
from embstore.models.transformer.tokens import Specials, SubwordTokenizer

COPIES = 2  # of the vectors of a batch on a GPU: pooled, and cast
OUTLIERS = 0.01  # a mask that lets sentences see each other changes far more of the vectors that are checked
PLAIN = (bool, int, float, str, tuple, torch.dtype, type(None))
NUMBER_OF_BLOCK = ("layer_idx", "layer_id", "layer_number")
PROBE_POSITIONS = 7
SAME = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}  # equal up to last bits, relative
NO_EFFECT = {torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}  # of a later subword, relative
FAIRSEQ_OFFSET = 2  # of the first position where the code counts from it whatever the padding is, as MPNet's
SITE_SUBWORDS = 24  # of the sentence on which sites are checked

_States = tuple[torch.Tensor, ...]


class Network:
    """A transformer and what its batches must look like; the encoder and its self-check share it.

    `model`: the model as transformers loads it. `tap`: its layers. `packed`: the weights that batches use on a CPU,
    where the plain pass uses those of the model. `row_capacity`: the width of packed rows.
    """

    def __init__(self, loaded: Loaded) -> None:
        self.model: Any = loaded.model
        for module in self.model.modules():
            if isinstance(module, nn.Dropout):  # does nothing in a forward pass
                module.forward = lambda states: states  # type: ignore[assignment, method-assign]
        self.model.warn_if_padding_and_no_attention_mask = lambda *_: None  # it would wait for the GPU
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
        half = self.tokenizer.vocabulary // 2
        ids = np.resize(np.arange(half, 2 * half, dtype=np.int32), SITE_SUBWORDS)  # all different, as far as possible
        return find_sites(self.tap, self.inputs.plain(ids) | self.inputs.fixed, name=self.info.name)

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

    def _probe(self, loaded: Loaded) -> tuple[InputMaker, LayerTap]:
        """Find out what the model takes and where its layers are; raises ModelError if it cannot be used."""
        model = self.model
        given = probe_inputs(model, loaded.tokenizer, self.tokenizer.specials, self.device)
        try:
            with torch.no_grad():
                if random := needed_parameters(model, given, loaded.missing):
                    raise ModelError(
                        f"the weights of {loaded.name!r} do not contain {len(random)} parameters that the hidden "
                        f"states need, such as {random[0]!r}; use a complete model"
                    )
                tap, states = find_layers(model, given)
                return find_inputs(model, self.tokenizer, given, states, dtype=self.dtype), tap
        except ModelError:
            raise
        except Exception as error:
            hint = "" if isinstance(error, ValueError) else ", on a few subwords: check its config.json"
            if self.dtype != torch.float32:  # such as XLNet, which computes its positions in float32
                hint = f", in {self.dtype}: choose the compute dtype float32".replace("torch.", "")
            raise ModelError(f"the model {loaded.name!r} cannot be used: {reason(error)}{hint}") from error


def _kind(block: nn.Module) -> Iterator[Any]:
    """Yield the modules of a block and their numbers and names: all that decides what it computes but its weights."""
    for name, module in block.named_modules():
        values = {key: value for key, value in vars(module).items() if key not in NUMBER_OF_BLOCK}
        yield name, type(module), {key: value for key, value in values.items() if isinstance(value, PLAIN)}


def _first_int(config: Any, names: Sequence[str], default: int) -> int:
    values = (getattr(config, name, None) for name in names)
    return next((value for value in values if isinstance(value, int)), default)


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
    kinds, window = frozenset(getattr(config, "layer_types", None) or ()), getattr(config, "sliding_window", None)
    slides = isinstance(window, int) and kinds != {FULL} and getattr(config, "use_sliding_window", True)
    return InputMaker(
        tokenizer=tokenizer,
        parameters=parameters,
        takes_types=tokenizer.takes_types and "token_type_ids" in parameters,
        padding_id=padding if isinstance(padding, int) and 0 <= padding < tokenizer.vocabulary else 0,
        position_offset=_position_offset(model, given, states, SAME[dtype]) if "position_ids" in parameters else None,
        causal=_is_causal(model, given, states, NO_EFFECT[dtype]),
        window=window if slides else None,
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
