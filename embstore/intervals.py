"""Intervals of 95 % that hold for few observations too."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
MIN_UNITS = 5  # that are resampled; of fewer the expanded interval too holds in less than nine of ten cases
BLOCK = 2**22  # numbers of a matrix of resamples in memory at a time

Interval = tuple[float | None, float | None]


def worth(weights: NDArray[np.number]) -> float:
    """Return how many units of equal weight are worth as much as units of these weights (Kish 1965)."""
    return float(weights.sum() ** 2 / np.square(weights).sum())


def resampled(n_units: int, n_resamples: int, random: np.random.Generator) -> Iterator[NDArray[np.float64]]:
    """Yield how often each unit is in a resample with replacement, [resamples, units], some resamples at a time."""
    most = max(1, BLOCK // max(1, n_units))
    for start in range(0, n_resamples, most):
        drawn = random.integers(0, n_units, (min(most, n_resamples - start), n_units))
        drawn += np.arange(len(drawn))[:, None] * n_units
        yield np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape).astype(np.float64)


def expanded(drawn: NDArray[np.float64], n_units: float) -> Interval:
    """Return the expanded percentile interval (Hesterberg 2015) of resampled values, NaN left out.

    The percentiles are further out than 2.5 and 97.5, as the bootstrap divides by n and knows no Student's t.
    `n_units`: that were resampled, or what they are `worth` if they differ in size.
    None if there are no values, or more than one in twenty is NaN.
    """
    from scipy.stats import norm, t

    if not len(drawn) or np.isnan(drawn).mean() > 1 - LEVEL:
        return None, None
    outside = norm.cdf(-np.sqrt(n_units / (n_units - 1)) * t.ppf((1 + LEVEL) / 2, n_units - 1))
    low, high = np.nanquantile(drawn, [outside, 1 - outside])
    return float(low), float(high)


def reach(values: NDArray[np.float64]) -> float:
    """Return half the width of the interval of a mean by Student's t; NaN of a single value."""
    from scipy.stats import t

    n = len(values)
    return float(t.ppf((1 + LEVEL) / 2, n - 1) * values.std(ddof=1) / np.sqrt(n)) if n > 1 else np.nan


def exact(right: NDArray[np.floating], size: NDArray[np.floating]) -> tuple[float, float]:
    """Return the interval of the share sum(right) / sum(size), as exact as that of a binomial (Clopper & Pearson 1934).

    `right`, `size`: of each sentence, whose answers are not independent: the sample counts as smaller by the factor by
    which the variance of shares over sentences exceeds that of independent answers, and by how little is known of that
    factor (Korn & Graubard 1998), but not as smaller than what its sentences are `worth`. It counts as
    that where fewer than five sentences have a right answer, or a wrong one, whose dependence nobody can tell.
    """
    from scipy.stats import beta, norm, t

    total, outside = float(size.sum()), (1 - LEVEL) / 2
    share = float(right.sum()) / total
    n = units = worth(size)
    if min((right > 0).sum(), (right < size).sum()) >= MIN_UNITS:
        squares = np.square(right - share * size) / (1 - size / total)
        n = share * (1 - share) * total**2 / max(squares.sum(), 1e-9)
        n = np.clip(n * (norm.ppf(outside) / t.ppf(outside, units - 1)) ** 2, units, total)
    low = beta.ppf(outside, share * n, n - share * n + 1) if share > 0 else 0.0
    return float(low), float(beta.ppf(1 - outside, share * n + 1, n - share * n)) if share < 1 else 1.0
