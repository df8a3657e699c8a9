"""Intervals of 95 % that hold for few observations too."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
MIN_UNITS = 5  # that are resampled; of fewer the expanded interval too holds in less than nine of ten cases


Interval = tuple[float | None, float | None]


def expanded(drawn: NDArray[np.float64], n_units: int) -> Interval:
    """Return the expanded percentile interval (Hesterberg 2015) of resampled values, NaN left out.

    The percentiles are further out than 2.5 and 97.5, as the bootstrap divides by n and knows no Student's t.
    None if there are no values, or more than one in twenty is NaN.
    """
    from scipy.stats import norm, t

    if not len(drawn) or np.isnan(drawn).mean() > 1 - LEVEL:
        return None, None
    outside = norm.cdf(-np.sqrt(n_units / (n_units - 1)) * t.ppf((1 + LEVEL) / 2, n_units - 1))
    low, high = np.nanquantile(drawn, [outside, 1 - outside])
    return float(low), float(high)


def exact(right: NDArray[np.floating], size: NDArray[np.floating]) -> tuple[float, float]:
    """Return the interval of the share sum(right) / sum(size), as exact as that of a binomial (Clopper & Pearson 1934).

    `right`, `size`: of each sentence, whose answers are not independent: the sample counts as smaller by the factor by
    which the variance of shares over sentences exceeds that of independent answers (Korn & Graubard 1998).
    """
    from scipy.stats import beta

    total = float(size.sum())
    share = float(right.sum()) / total
    independent = share * (1 - share) * total
    factor = max(1.0, float(np.square(right - share * size).sum()) / independent) if independent > 0 else 1.0
    n, outside = total / factor, (1 - LEVEL) / 2
    low = beta.ppf(outside, share * n, n - share * n + 1) if share > 0 else 0.0
    return float(low), float(beta.ppf(1 - outside, share * n + 1, n - share * n)) if share < 1 else 1.0
