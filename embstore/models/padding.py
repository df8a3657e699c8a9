"""Sentences of many lengths as rows of one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.models.transformer.tokens import Specials


def padded(arrays: Sequence[NDArray[Any]], fill: int) -> torch.Tensor:
    """Return arrays as the rows of one int64 tensor, filled up at the end."""
    rows = np.full((len(arrays), max(map(len, arrays))), fill, np.int64)
    for row, array in zip(rows, arrays, strict=True):
        row[: len(array)] = array
    return torch.from_numpy(rows)


def within_specials(ids: NDArray[Any], specials: Specials) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return a sentence's subwords with the special ones around them, and the token types of all."""
    body = np.full(len(ids), specials.body_type)
    types = np.concatenate([specials.prefix_types, body, specials.suffix_types])
    return np.concatenate([specials.prefix, ids, specials.suffix]).astype(np.int64), types.astype(np.int64)
