"""Scores of row probes: accuracy, F1 and selectivity with intervals over documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.intervals import MIN_UNITS, Interval, exact, reach

Values = NDArray[np.float64]
Codes = NDArray[np.int64]


class Scores:
    """The scores of answers to examples: `gold` int64 [n], -1 for a label that train does not have, and their units.

    Units, by their `keys`, are what is independent: documents, or the words of a split by word. There is no interval
    of fewer than five units, nor of F1 or a difference of which fewer than five units tell.
    """

    def __init__(self, gold: Codes, keys: Codes, classes: tuple[str, ...]) -> None:
        self._gold, self._classes = gold, classes
        units, self._unit = np.unique(keys, return_inverse=True)
        self._n_units = len(units)

    def share(self, right: NDArray[np.bool_], metric: str = "accuracy") -> Iterator[dict[str, Any]]:
        """Yield for each seed the share of right answers [seed, n], with the interval of their mean."""
        own, size = self._sums(right.mean(0)), self._sums(np.ones(len(self._gold)))
        ends: Interval = exact(own, size) if self._n_units >= MIN_UNITS else (None, None)
        yield from self._rows(metric, right.mean(1), ends)

    def selectivity(self, right: NDArray[np.bool_], control: NDArray[np.bool_]) -> Iterator[dict[str, Any]]:
        """Yield the accuracy less that of the control task."""
        gained = right.astype(np.float64) - control
        mean = gained.mean(0)
        ends = self._interval(mean.mean(), (mean - mean.mean()) / len(mean), np.abs(gained).mean(0))
        yield from self._rows("selectivity", gained.mean(1), ends)

    def f1(self, answers: NDArray[np.int32]) -> Iterator[dict[str, Any]]:
        """Yield for each seed the mean F1 over the classes that are there or are answered, and that of each class.

        F_c = 2 TP_c / (n_c + m_c) of n_c examples and m_c answers. An example changes the mean of K classes by
        [(2 [right] - F_gold) / (n_gold + m_gold) - F_answer / (n_answer + m_answer)] / K, to first order.
        """
        n, known, seeds = len(self._classes), self._gold >= 0, []
        sizes = np.bincount(self._gold[known], minlength=n)
        for said in answers:
            right, counts = said == self._gold, sizes + np.bincount(said, minlength=n)
            each = 1 / np.maximum(counts, 1)
            f1 = 2 * np.bincount(said[right], minlength=n) * each
            change = np.where(known, (2 * right - f1[self._gold]) * each[self._gold], 0) - (f1 * each)[said]
            seeds.append((np.where(counts > 0, f1, np.nan), change / (counts > 0).sum()))
        means = np.array([np.nanmean(f1) for f1, _ in seeds])
        changes, wrong = np.mean([change for _, change in seeds], 0), (answers != self._gold).mean(0)
        yield from self._rows("macro_f1", means, self._interval(means.mean(), changes, wrong))
        for number, name in enumerate(self._classes):
            for seed, (f1, _) in enumerate(seeds):
                value = None if np.isnan(f1[number]) else float(f1[number])
                yield {"metric": "class_f1", "item": name, "value": value, "count": int(sizes[number]), "seed": seed}

    def _interval(self, value: float, change: Values, counted: Values) -> Interval:
        """Return the interval of a value that examples change, by unit; `counted`: above 0 where a unit tells of it."""
        if self._n_units < MIN_UNITS or (self._sums(counted) > 0).sum() < MIN_UNITS:
            return None, None
        within = reach(self._n_units * self._sums(change))
        return max(value - within, -1.0), min(value + within, 1.0)

    def _rows(self, metric: str, values: Values, ends: Interval) -> Iterator[dict[str, Any]]:
        common = {"metric": metric, "low": ends[0], "high": ends[1], "count": len(self._gold)}
        yield from ({**common, "value": float(value), "seed": seed} for seed, value in enumerate(values))

    def _sums(self, values: Values) -> Values:
        return np.asarray(np.bincount(self._unit, values, self._n_units), np.float64)
