"""Which layers a probe uses: scalar mixing and the statistics of Tenney et al. 2019 (equations 1 to 4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from embstore.errors import InvalidValueError


def mixing_weights(logits: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """Return s = softmax(a) over the layers that each probe may read; [probes, layers], 0 for the others.

    `logits`: a, [probes, layers]. `allowed`: bool, of the same shape, with at least one layer per probe.
    """
    return logits.masked_fill(~allowed, -torch.inf).softmax(1)


def mixed(vectors: torch.Tensor, weights: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return equation 1 for all probes in one product: gamma * sum_l s_l h_l; [probes, n, width].

    `vectors`: h, [layers, n, width]. `weights`: s, [probes, layers]. `scale`: gamma, [probes].
    """
    layers, count, width = vectors.shape
    whole = (weights * scale[:, None]) @ vectors.reshape(layers, count * width)
    return whole.view(len(weights), count, width)


def cumulative(layers: int) -> NDArray[np.bool_]:
    """Return the layers that P(0) ... P(L) may read, bool [layers, layers]: P(l) reads 0 to l."""
    return np.tri(layers, dtype=bool)


def center_of_gravity(weights: ArrayLike, layers: Sequence[int] | None = None) -> float:
    """Return equation 2, sum_l l * s_l, for weights that sum to 1; `layers`: their numbers (0 to L)."""
    values = _vector(weights, "weights")
    return float(values @ _numbers(layers, len(values)))


def differential_scores(scores: ArrayLike) -> NDArray[np.float64]:
    """Return equation 3: what each layer adds, score(P(l)) - score(P(l - 1)) for l = 1 to L; float64 [L]."""
    return np.diff(_vector(scores, "scores"))


def expected_layer(scores: ArrayLike, layers: Sequence[int] | None = None) -> float | None:
    """Return equation 4, sum l * D_l / sum D_l over l = 1 to L, for the scores of P(0) ... P(L).

    None if P(L) scores no higher than P(0). `layers`: numbers of the layers.
    """
    values = _vector(scores, "scores")
    gained = differential_scores(values)
    total = float(values[-1] - values[0])
    return float(gained @ _numbers(layers, len(values))[1:]) / total if total > 0 else None


def kl_from_uniform(weights: ArrayLike) -> float | None:
    """Return KL(w || uniform) in nats of weights divided by their sum; negative weights count as 0.

    So a layer that lowers a score counts as one that adds nothing. None if no weight is above 0.
    """
    values = np.maximum(_vector(weights, "weights"), 0)
    total = values.sum()
    if not total > 0:
        return None
    share = values[values > 0] / total
    return float((share * np.log(share)).sum() + np.log(len(values)))


def _vector(values: ArrayLike, what: str) -> NDArray[np.float64]:
    vector = np.asarray(values, np.float64)
    if vector.ndim != 1 or not len(vector) or not np.isfinite(vector).all():
        raise InvalidValueError(f"{what} must be one or more finite numbers, one per layer, not {values!r}")
    return vector


def _numbers(layers: Sequence[int] | None, count: int) -> NDArray[np.float64]:
    numbers = np.arange(count) if layers is None else np.asarray(layers)
    if len(numbers) != count:
        raise InvalidValueError(f"there are {len(numbers)} layers for {count} numbers: give one per layer")
    return numbers.astype(np.float64)
