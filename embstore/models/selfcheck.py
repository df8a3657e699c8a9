"""What every encoder's self-check shares: sentences to check on, plain pooling, and the comparison of vectors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import ModelError
from embstore.models.encoder import ModelInfo, Pooled, Pooling, Spans, Tokenized

# Largest difference allowed, relative to the largest value of a layer; bfloat16 has 3 bits less than float16.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}
# Sentences on which the first word, capitals, digits, punctuation and other scripts would show an effect of context.
PROBES = (
    ("The", "cat", "'s", "1,234", "mice", ",", "don't", "they", "?"),
    ("the", "the", "Straße", "naïve", "日本", "…", "x_1", "ok"),
)


def word_spans(tokenized: Tokenized, limit: int | None) -> Spans:
    """Return a span for every word that has subwords and lies within the limit."""
    n_words = np.diff(tokenized.sentence_indptr)
    sentence = np.repeat(np.arange(len(n_words)), n_words)
    first = tokenized.sentence_bounds[:-1][sentence]
    start, stop = tokenized.word_indptr[:-1] - first, tokenized.word_indptr[1:] - first
    mask = stop > start
    if limit is not None:
        mask &= stop <= limit
    return Spans(sentence[mask], start[mask], stop[mask])


def pool_plainly(hidden: torch.Tensor, pooling: Pooling) -> NDArray[np.float32]:
    """Pool the hidden states of one span [n, hidden_size] into one vector."""
    subwords = hidden.float().cpu().numpy()
    if pooling in ("first", "last"):
        return np.asarray(subwords[0 if pooling == "first" else -1], np.float32)
    return np.asarray(subwords.max(axis=0) if pooling == "max" else subwords.mean(axis=0), np.float32)


def require_finite(info: ModelInfo, compute_dtype: str, expected: NDArray[np.float32], layers: Sequence[int]) -> None:
    """Raise ModelError if plain vectors [n_layers, n_spans, hidden_size] contain NaN or infinity."""
    for row, layer in enumerate(layers):
        if not np.isfinite(expected[row]).all():
            raise ModelError(
                f"layer {layer} of {info.name!r} is not finite in {compute_dtype}; "
                "choose the compute dtype float32 or bfloat16"
            )


def largest_difference(passes: Iterable[Pooled], expected: NDArray[np.float32]) -> float:
    """Return the largest difference between vectors and `expected`, relative to the largest value of the layer."""
    scale = np.abs(expected).max(axis=(1, 2), initial=0)
    worst = 0.0
    for pooled in passes:
        difference = np.abs(pooled.vectors.float().numpy() - expected[:, pooled.rows]).max(axis=(1, 2), initial=0)
        if not np.isfinite(difference).all():
            return float("inf")
        worst = max(worst, float((difference / np.where(scale > 0, scale, 1)).max(initial=0)))
    return worst
