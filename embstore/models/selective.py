"""What the plan of an extraction asks of an encoder that has no vector for some words."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from embstore.models.encoder import Spans, Tokenized


@runtime_checkable
class Selective(Protocol):
    """An encoder that may lack the vector of a span; `encode` then gives NaN, which no store takes."""

    def lacking(self, tokenized: Tokenized, spans: Spans) -> NDArray[np.bool_]:
        """Say of each span whether it has no vector: bool [spans]."""
        ...
