"""Unit vectors."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Real = TypeVar("Real", np.float32, np.float64)


def unit_rows(vectors: NDArray[Real]) -> NDArray[Real]:
    """Scale vectors [..., feature] to unit length, zero vectors unchanged; exact for very short and long ones too."""
    largest = np.abs(vectors).max(-1, keepdims=True, initial=0)
    scaled = vectors / np.where(largest > 0, largest, 1)  # squares of float32 can overflow and vanish
    lengths = np.sqrt(np.square(scaled).sum(-1, keepdims=True))
    return np.asarray(scaled / np.where(lengths > 0, lengths, 1))
