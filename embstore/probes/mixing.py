"""Which layers a probe draws on: scalar mixing and the statistics of Tenney et al. 2019 (equations 1 to 4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from embstore.errors import InvalidValueError


def mixing_weights(logits: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """s = softmax(a) over the layers that each probe may see; [probes, layers], 0 for the others.

    `logits`: a, [probes, layers]. `allowed`: bool, of the same shape, at least one true a probe.
    """
    return logits.masked_fill(~allowed, -torch.inf).softmax(1)


def mixed(vectors: torch.Tensor, weights: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Equation 1 for all probes in one product: gamma * sum_l s_l h_l; [probes, n, width].

    `vectors`: h, [layers, n, width]. `weights`: s, [probes, layers]. `scale`: gamma, [probes].
    """
    layers, count, width = vectors.shape
    whole = (weights * scale[:, None]) @ vectors.reshape(layers, count * width)
    return whole.view(len(weights), count, width)


def cumulative(layers: int) -> NDArray[np.bool_]:
    """The layers that P(0) ... P(L) may see, a lower triangle bool [layers, layers]: P(l) sees 0 to l."""
    return np.tri(layers, dtype=bool)


def center_of_gravity(weights: ArrayLike, layers: Sequence[int] | None = None) -> float:
    """Equation 2: sum_l l * s_l, for weights that sum to 1; `layers`: their numbers (0 to L)."""
    held = _line(weights, "weights")
    return float(held @ _numbers(layers, len(held)))


def differential_scores(scores: ArrayLike) -> NDArray[np.float64]:
    """Equation 3: what each layer adds, score(P(l)) - score(P(l - 1)) for l = 1 to L; float64 [L]."""
    return np.diff(_line(scores, "scores"))


def expected_layer(scores: ArrayLike, layers: Sequence[int] | None = None) -> float | None:
    """Equation 4: sum l * D_l / sum D_l over l = 1 to L, for the scores of P(0) ... P(L).

    None where P(L) scores no higher than P(0): there is nothing to expect then. `layers`: numbers of the layers.
    """
    held = _line(scores, "scores")
    gained = differential_scores(held)
    total = float(held[-1] - held[0])
    return float(gained @ _numbers(layers, len(held))[1:]) / total if total > 0 else None


def kl_from_uniform(weights: ArrayLike) -> float | None:
    """KL(w || uniform) in nats, of weights that are first made to sum to 1; negative ones count as 0.

    So a layer that makes a score fall counts as one that adds nothing. None where no weight is above 0.
    """
    held = np.maximum(_line(weights, "weights"), 0)
    total = held.sum()
    if not total > 0:
        return None
    share = held[held > 0] / total
    return float((share * np.log(share)).sum() + np.log(len(held)))


def _line(values: ArrayLike, what: str) -> NDArray[np.float64]:
    held = np.asarray(values, np.float64)
    if held.ndim != 1 or not len(held) or not np.isfinite(held).all():
        raise InvalidValueError(f"{what} must be one or more finite numbers, one a layer, not {values!r}")
    return held


def _numbers(layers: Sequence[int] | None, count: int) -> NDArray[np.float64]:
    numbers = np.arange(count) if layers is None else np.asarray(layers)
    if len(numbers) != count:
        raise InvalidValueError(f"there are {len(numbers)} layers for {count} numbers: give one a layer")
    return numbers.astype(np.float64)
