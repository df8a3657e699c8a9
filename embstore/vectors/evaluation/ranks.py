"""Spearman's rank correlation."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def average_ranks(values: ArrayLike) -> NDArray[np.float64]:
    """The rank of each value from 1, ties sharing the mean of their ranks."""
    _, place, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = counts.cumsum()
    return np.asarray((last - (counts - 1) / 2)[place], np.float64)


def spearman(left: ArrayLike, right: ArrayLike) -> float | None:
    r"""Spearman's rho of two lists of equal length: Pearson's correlation of their ranks.

    .. math:: \rho = \frac{\sum_i (r_i - \bar r)(s_i - \bar s)}{\sqrt{\sum_i (r_i - \bar r)^2 \sum_i (s_i - \bar s)^2}}

    None where one side has fewer than two different values.
    """
    ranks = np.stack([average_ranks(left), average_ranks(right)])
    if ranks.shape[1] < 2:
        return None
    centered = ranks - ranks.mean(1, keepdims=True)
    norms = np.linalg.norm(centered, axis=1)
    if not norms.all():
        return None
    return float(np.clip(centered[0] @ centered[1] / norms.prod(), -1, 1))
