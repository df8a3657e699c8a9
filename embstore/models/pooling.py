"""Spans to vectors on the device, with the same index tensors for every layer of a batch."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import InvalidValueError
from embstore.models.encoder import Pooling
from embstore.models.transformer.tokens import ragged_indices
from embstore.models.transformer.transfer import to_device

POOLINGS: tuple[Pooling, ...] = ("mean", "first", "last", "max")


class Pool:
    """How the spans of one batch are pooled from the batch's positions.

    `starts`, `lengths`: int64 [spans], runs in the batch's positions counted row after row.
    `order`: int64 [spans], which span each pooled vector is of: those of one subword come first.
    """

    def __init__(
        self, starts: NDArray[np.int64], lengths: NDArray[np.int64], *, pooling: Pooling, device: torch.device
    ) -> None:
        self._mode = pooling
        one = lengths == 1
        if pooling in ("first", "last"):
            one = np.ones(len(lengths), np.bool_)
        if pooling == "last":
            starts = starts + lengths - 1
        single, several = np.flatnonzero(one), np.flatnonzero(~one)
        self.order = np.concatenate([single, several])
        self._singles = len(single)
        self._single = to_device(starts[single], device)
        several_lengths = lengths[several]
        indices = ragged_indices(starts[several], several_lengths)
        self._members = to_device(indices, device)
        self._offsets = to_device(np.cumsum(several_lengths) - several_lengths, device)

    def __call__(self, hidden: torch.Tensor, out: torch.Tensor) -> None:
        """Pool hidden states [positions, features] into `out` [spans, features], in the order of `order`."""
        torch.index_select(hidden, 0, self._single, out=out[: self._singles])
        if self._singles < len(out):
            out[self._singles :] = torch.nn.functional.embedding_bag(
                self._members, hidden, self._offsets, mode=self._mode
            )


def check_pooling(pooling: str) -> Pooling:
    """Return `pooling`, or raise InvalidValueError where it is none of POOLINGS."""
    for allowed in POOLINGS:
        if pooling == allowed:
            return allowed
    raise InvalidValueError(f"unknown pooling {pooling!r}; allowed are {', '.join(POOLINGS)}")
