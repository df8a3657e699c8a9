"""What a model is given for a batch: ids, positions and attention masks, and the probes that settle which."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from embstore.models.transformer.batches import Batch, Batching
from embstore.models.transformer.tokens import Specials, ragged_indices
from embstore.models.transformer.transfer import to_device
from embstore.models.transformer.varlen import KEYWORD, Sentences

FULL, SLIDING = "full_attention", "sliding_attention"
NO_WORD = -1


@dataclass(frozen=True)
class WordWindow:
    """An attention window: a word sees the words at most `reach` words away.

    `words`: int32 [ids], the number of the word that each subword belongs to, ascending within a sentence.
    """

    words: NDArray[np.int32]
    reach: int


@dataclass(frozen=True)
class InputMaker:
    """Builds a model's keyword arguments.

    `parameters`: the names that its forward takes. `position_offset`: the first position's number, None where
    the model is given no positions. `window`: how far attention reaches in sliding layers. `layer_types`: the
    kinds of attention of its layers where they differ.
    """

    parameters: frozenset[str]
    specials: Specials
    takes_types: bool
    padding_id: int
    position_offset: int | None
    causal: bool
    window: int | None
    layer_types: frozenset[str]
    device: torch.device
    dtype: torch.dtype

    def fixed(self) -> dict[str, Any]:
        """Return the arguments that are the same for every batch: no caches are kept."""
        return {name: False for name in ("use_cache", "use_mems") if name in self.parameters}

    def plain(self, ids: NDArray[np.int64]) -> dict[str, Any]:
        """Return the arguments for one sentence, specials included, as its tokenizer would give them."""
        sentence = torch.from_numpy(ids)[None].to(self.device)
        inputs: dict[str, Any] = {"input_ids": sentence, "attention_mask": torch.ones_like(sentence)}
        if self.takes_types:
            types = torch.full_like(sentence, self.specials.body_type)
            types[0, : len(self.specials.prefix)] = torch.tensor(self.specials.prefix_types, dtype=torch.int64)
            types[0, len(ids) - len(self.specials.suffix) :] = torch.tensor(
                self.specials.suffix_types, dtype=torch.int64
            )
            inputs["token_type_ids"] = types
        return inputs

    def with_specials(self, ids: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return a sentence's ids with the special ones around them."""
        return np.concatenate([self.specials.prefix, ids, self.specials.suffix]).astype(np.int64)

    def batch(
        self,
        batch: Batch,
        ids: NDArray[np.int32],
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        how: Batching,
        window: WordWindow | None = None,
    ) -> dict[str, Any]:
        """Return the arguments for a batch of sentences.

        `starts`, `lengths`: for each sentence of the batch its run in `ids`, specials not counted.
        `window`: what a word may attend to, None for its whole sentence.
        """
        total = lengths + self.specials.count
        first = batch.rows * batch.shape[1] + batch.columns
        inputs: dict[str, Any] = {"input_ids": self._ids(batch, ids, starts, lengths, first)}
        if self.takes_types:
            inputs["token_type_ids"] = self._types(batch, lengths, first)
        if how != "equal" and self.position_offset is not None:
            positions = np.full(batch.shape[0] * batch.shape[1], self.position_offset, np.int64)
            positions[ragged_indices(first, total)] += ragged_indices(np.zeros_like(total), total)
            inputs["position_ids"] = self._to_device(positions, batch.shape)
        if how == "varlen":
            inputs[KEYWORD] = Sentences.of(total, causal=self.causal, device=self.device)
        elif how != "equal" or window is not None:
            owners = np.zeros(batch.shape[0] * batch.shape[1], np.int32)
            owners[ragged_indices(first, total)] = np.repeat(np.arange(1, len(total) + 1, dtype=np.int32), total)
            inputs["attention_mask"] = self._mask(
                self._to_device(owners, batch.shape), how, self._within(batch, starts, lengths, first, window)
            )
        return inputs | self.fixed()

    def _ids(
        self,
        batch: Batch,
        ids: NDArray[np.int32],
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        first: NDArray[np.int64],
    ) -> torch.Tensor:
        flat = np.full(batch.shape[0] * batch.shape[1], self.padding_id, np.int64)
        before = len(self.specials.prefix)
        flat[ragged_indices(first + before, lengths)] = ids[ragged_indices(starts, lengths)]
        self._put_specials(flat, self.specials.prefix, self.specials.suffix, lengths, first)
        return self._to_device(flat, batch.shape)

    def _types(self, batch: Batch, lengths: NDArray[np.int64], first: NDArray[np.int64]) -> torch.Tensor:
        flat = np.full(batch.shape[0] * batch.shape[1], self.specials.body_type, np.int64)
        self._put_specials(flat, self.specials.prefix_types, self.specials.suffix_types, lengths, first)
        return self._to_device(flat, batch.shape)

    def _put_specials(
        self,
        flat: NDArray[np.int64],
        prefix: tuple[int, ...],
        suffix: tuple[int, ...],
        lengths: NDArray[np.int64],
        first: NDArray[np.int64],
    ) -> None:
        for place, value in enumerate(prefix):
            flat[first + place] = value
        after = first + len(prefix) + lengths
        for place, value in enumerate(suffix):
            flat[after + place] = value

    def _to_device(self, flat: NDArray[Any], shape: tuple[int, int]) -> torch.Tensor:
        return to_device(flat.reshape(shape), self.device)

    def _within(
        self,
        batch: Batch,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        first: NDArray[np.int64],
        window: WordWindow | None,
    ) -> torch.Tensor | None:
        """Return which positions the words of a batch may attend to: bool [rows, 1, columns, columns]."""
        if window is None:
            return None
        flat = np.full(batch.shape[0] * batch.shape[1], NO_WORD, np.int32)
        flat[ragged_indices(first + len(self.specials.prefix), lengths)] = window.words[ragged_indices(starts, lengths)]
        return seen_words(self._to_device(flat, batch.shape), window.reach)

    def _mask(
        self, owners: torch.Tensor, how: Batching, within: torch.Tensor | None
    ) -> torch.Tensor | dict[str, torch.Tensor]:
        """Return what may attend to what; `owners` [rows, columns] is 0 where nothing stands.

        Packed, or with attention windows: added to the scores, so that eager and fused attention read it alike
        (eager attention adds a boolean mask as 0 and 1). Empty positions attend to each other, lest a row have
        nothing to attend to.
        """
        if how == "padded" and within is None:
            return (owners > 0).long()
        allowed = owners[:, None, :, None] == owners[:, None, None, :]
        if within is not None:
            allowed &= within
        place = torch.arange(owners.shape[1], device=self.device)
        return self.added(allowed, place[:, None] - place[None, :])

    def added(self, allowed: torch.Tensor, distance: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor]:
        """Return the mask that is added to the scores: `allowed` [rows, 1, positions, positions] and the model's own.

        `distance` [positions, positions]: how far the key stands before the query. A model whose layers differ gets
        a mask of each kind.
        """
        if self.causal:
            allowed = allowed & (distance >= 0)
        near = allowed
        if self.window is not None:
            near = allowed & ((distance < self.window) if self.causal else (distance.abs() <= self.window))
        if len(self.layer_types) > 1:
            return {FULL: self._additive(allowed), SLIDING: self._additive(near)}
        return self._additive(near)

    def _additive(self, allowed: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(allowed.shape, dtype=self.dtype, device=self.device)
        return mask.masked_fill_(~allowed, torch.finfo(self.dtype).min)


def seen_words(words: torch.Tensor, reach: int) -> torch.Tensor:
    """Return what an attention window lets see: bool [rows, 1, positions, positions], queries before keys.

    `words`: int [rows, positions], the number of the word at each position, NO_WORD for a special subword. Words see
    those at most `reach` away and the special subwords; these see only each other, lest they carry words further.
    """
    special = words == NO_WORD
    near = (words[:, None, :, None] - words[:, None, None, :]).abs() <= reach
    return special[:, None, None, :] | (near & ~special[:, None, :, None])


def forward_parameters(model: nn.Module) -> frozenset[str]:
    """Return the names that the model's forward takes."""
    return frozenset(inspect.signature(model.forward).parameters)


def attention_window(config: Any) -> tuple[int | None, frozenset[str]]:
    """Return how far sliding attention reaches (None: all layers see everything) and the kinds of layers."""
    kinds = frozenset(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    if not isinstance(window, int) or kinds == {FULL} or not getattr(config, "use_sliding_window", True):
        return None, kinds
    return window, kinds


def position_offset(
    model: nn.Module, inputs: Mapping[str, Any], states: tuple[torch.Tensor, ...], padding_id: int | None
) -> int | None:
    """Find the number of the first position, by trying which explicit positions change nothing.

    `states`: the hidden states of `inputs`, which holds no positions. None: the model takes no positions.
    """
    if "position_ids" not in forward_parameters(model):
        return None
    count = inputs["input_ids"].shape[1]
    for offset in (0, (padding_id or 0) + 1):
        positions = torch.arange(offset, offset + count, device=inputs["input_ids"].device)
        positions = positions.expand_as(inputs["input_ids"])
        try:
            explicit = model(**inputs, position_ids=positions, output_hidden_states=True).hidden_states
        except IndexError:
            continue
        if all(torch.equal(one, other) for one, other in zip(explicit, states, strict=True)):
            return offset
    return None


def is_causal(model: nn.Module, inputs: Mapping[str, Any], states: tuple[torch.Tensor, ...]) -> bool:
    """Tell whether a position sees only those before it, by changing the last subword."""
    changed = inputs["input_ids"].clone()
    changed[:, -1] = changed[:, 0]
    other = model(**{**inputs, "input_ids": changed}, output_hidden_states=True).hidden_states
    last_differs = not torch.equal(states[0][:, -1], other[0][:, -1])
    before_same = all(torch.equal(one[:, :-1], two[:, :-1]) for one, two in zip(states, other, strict=True))
    return last_differs and before_same


def needed_parameters(model: nn.Module, inputs: Mapping[str, Any], parameters: Mapping[str, torch.Tensor]) -> list[str]:
    """Return which parameters the hidden states depend on, by giving each in turn another value.

    NaN would not do: fused attention on a CPU can swallow it. The parameters are left at zero.
    """
    filled = {name: value for name, value in parameters.items() if value.is_floating_point()}
    if not filled:
        return []
    for value in filled.values():  # none is zero, so that none hides another
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
    """Return how many subwords a sentence may have, its specials not counted; None where positions are relative."""
    limit = getattr(config, "max_position_embeddings", None)
    if limit is None and not hasattr(config, "relative_attention_num_buckets"):
        limit = getattr(config, "n_positions", None)
    if not isinstance(limit, int) or limit <= 0:
        return None
    limit = min(limit - (offset or 0), getattr(tokenizer, "model_max_length", limit))
    return max(0, limit - specials.count)
