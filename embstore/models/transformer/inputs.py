"""Arguments of a forward pass over a batch: ids, token types, positions and attention masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import ModelError
from embstore.models.batching import Batch, Batching
from embstore.models.encoder import Indices, Tokenized, ragged_indices
from embstore.models.running import to_device
from embstore.models.transformer.tokens import Specials, SubwordTokenizer
from embstore.models.transformer.varlen import KEYWORD, SentenceBounds

FULL, SLIDING = "full_attention", "sliding_attention"
NO_WORD = -1
Mask = torch.Tensor | dict[str, torch.Tensor]  # or one for each kind of layer
MAX_REACH = 2**31 - 1  # words, which are numbered in int32


@dataclass(frozen=True)
class InputMaker:
    """Builds the keyword arguments of a model.

    `tokenizer`: knows the special subwords. `parameters`: the names that its forward accepts. `position_offset`: the
    first position's number, None if the model takes no positions. `window`: the reach of attention in sliding layers.
    `layer_types`: the kinds of attention of its layers if they differ.
    """

    tokenizer: SubwordTokenizer
    parameters: frozenset[str]
    takes_types: bool
    padding_id: int
    position_offset: int | None
    causal: bool
    window: int | None
    layer_types: frozenset[str]
    device: torch.device
    dtype: torch.dtype

    @property
    def specials(self) -> Specials:
        return self.tokenizer.specials

    @property
    def fixed(self) -> dict[str, Any]:
        """Return the arguments that are the same for every batch: no caches."""
        return {name: False for name in ("use_cache", "use_mems") if name in self.parameters}

    def plain(self, ids: NDArray[np.int32]) -> dict[str, Any]:
        """Return the arguments for one sentence, without its special subwords, as its tokenizer would make them."""
        whole, types = (torch.from_numpy(array)[None].to(self.device) for array in self.specials.around(ids))
        inputs = {"input_ids": whole, "attention_mask": torch.ones_like(whole)}
        return inputs | ({"token_type_ids": types} if self.takes_types else {})

    def batch(
        self,
        batch: Batch,
        tokenized: Tokenized,
        starts: Indices,
        lengths: Indices,
        how: Batching,
        reach: int | None = None,
    ) -> dict[str, Any]:
        """Return the arguments for a batch of sentences.

        `starts`, `lengths`: for each sentence of the batch its run of subwords, without special ones. `reach`: of an
        attention window, the distance in words up to which a word attends; None: to its whole sentence.
        """
        size = batch.shape[0] * batch.shape[1]
        total = lengths + self.specials.count
        first = batch.rows * batch.shape[1] + batch.columns
        after = first + len(self.specials.prefix) + lengths
        body, source = ragged_indices(after - lengths, lengths), ragged_indices(starts, lengths)
        flat = np.full(size, self.padding_id, np.int64)
        flat[body] = tokenized.ids[source]
        self._put_specials(flat, self.specials.prefix, self.specials.suffix, lengths, first)
        inputs: dict[str, Any] = {"input_ids": self._to_device(flat, batch)}
        if self.takes_types:
            types = np.full(size, self.specials.body_type, np.int64)
            self._put_specials(types, self.specials.prefix_types, self.specials.suffix_types, lengths, first)
            if tokenized.types is not None:
                types[body], pair = tokenized.types[source], self.tokenizer.pair
                of_pairs = after[tokenized.types[starts + lengths - 1] == pair.second_type]
                for position, value in enumerate(pair.suffix_types):
                    types[of_pairs + position] = value
            inputs["token_type_ids"] = self._to_device(types, batch)
        if how != "equal" and self.position_offset is not None:
            positions = np.full(size, self.position_offset, np.int64)
            positions[ragged_indices(first, total)] += ragged_indices(np.zeros_like(total), total)
            inputs["position_ids"] = self._to_device(positions, batch)
        if how == "varlen":
            inputs[KEYWORD] = SentenceBounds.of(total, causal=self.causal, device=self.device)
        elif how != "equal" or reach is not None:
            owners = np.zeros(size, np.int32)
            owners[ragged_indices(first, total)] = np.repeat(np.arange(1, len(total) + 1, dtype=np.int32), total)
            within = None
            if reach is not None:
                if tokenized.words is None:
                    raise ModelError("an attention window needs the words of the subwords")
                words = np.full(size, NO_WORD, np.int32)
                words[body] = tokenized.words[source]
                within = visible_words(self._to_device(words, batch), min(reach, MAX_REACH))
            inputs["attention_mask"] = self.mask(self._to_device(owners, batch), how, within)
        return inputs | self.fixed

    def mask(self, owners: torch.Tensor, how: Batching, within: torch.Tensor | None = None) -> Mask:
        """Return the attention mask; `owners` [rows, columns]: the sentence of each position, 0 for padding.

        `within`: bool [rows, 1, columns, columns], what a position may attend to besides; None: anything. Masks of
        pairs are added to the scores, so that eager and fused attention treat them alike (eager attention adds a
        boolean mask as 0 and 1). Padding attends to padding: a row of scores must not be masked entirely.
        """
        if how == "padded" and within is None:
            return (owners > 0).long()
        allowed = owners[:, None, :, None] == owners[:, None, None, :]
        return self.additive_mask(allowed if within is None else allowed & within)

    def additive_mask(self, allowed: torch.Tensor) -> Mask:
        """Return the mask that is added to attention scores: `allowed` and the model's own causal and sliding masks.

        `allowed`: bool [rows, 1, positions, positions], queries before keys. A model whose layers differ gets a mask
        for each kind of layer.
        """
        index = torch.arange(allowed.shape[-1], device=self.device)
        distance = index[:, None] - index[None, :]  # from the key to the query
        if self.causal:
            allowed = allowed & (distance >= 0)
        near = allowed
        if self.window is not None:
            near = allowed & ((distance < self.window) if self.causal else (distance.abs() <= self.window))
        if len(self.layer_types) > 1:
            return {FULL: additive(allowed, self.dtype), SLIDING: additive(near, self.dtype)}
        return additive(near, self.dtype)

    def _put_specials(
        self, flat: Indices, prefix: tuple[int, ...], suffix: tuple[int, ...], lengths: Indices, first: Indices
    ) -> None:
        for position, value in enumerate(prefix):
            flat[first + position] = value
        after = first + len(prefix) + lengths
        for position, value in enumerate(suffix):
            flat[after + position] = value

    def _to_device(self, flat: NDArray[Any], batch: Batch) -> torch.Tensor:
        return to_device(flat.reshape(batch.shape), self.device)


def additive(allowed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a mask that is added to attention scores: 0 where `allowed`, else the lowest number of the dtype."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, torch.finfo(dtype).min)


def visible_words(words: torch.Tensor, reach: int) -> torch.Tensor:
    """Return what each position attends to in an attention window: bool [rows, 1, positions, positions].

    `words`: int [rows, positions], the number of the word at each position, NO_WORD for a special subword. Words attend
    to those at most `reach` away and to the special subwords; these attend only to each other, because otherwise they
    would carry distant words into the next layer.
    """
    special = words == NO_WORD
    near = (words[:, None, :, None] - words[:, None, None, :]).abs() <= reach
    return special[:, None, None, :] | (near & ~special[:, None, :, None])
