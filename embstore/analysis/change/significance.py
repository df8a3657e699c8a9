"""Is a change more than chance: permutations, bootstrap intervals, false discovery, and words of like frequency."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.analysis.change.sums import JSD, TWO_SIDED, Products, measures
from embstore.analysis.neighbors.senses import kmeans
from embstore.vectors.linalg import unit_rows

LEVEL = 0.05  # of the false discovery rate, and of what lies outside an interval
TIE = 1e-9  # measures that differ by less are equal up to rounding
_BLOCK = 2**21  # weights of a block of permutations


@dataclass(frozen=True)
class Units:
    """Vectors of a word in two periods, summed by document or sentence: what is exchanged and resampled as one.

    `is_new`: bool [unit]. `counts`, `n_nonzero`: float64 [unit]. `unit`, `plain`, `centered`: float64 [unit, feature].
    `senses`: float64 [unit, cluster], the occurrences of each unit in each cluster; None without clusters.
    """

    is_new: NDArray[np.bool_]
    counts: NDArray[np.float64]
    n_nonzero: NDArray[np.float64]
    unit: NDArray[np.float64]
    plain: NDArray[np.float64]
    centered: NDArray[np.float64]
    senses: NDArray[np.float64] | None

    @classmethod
    def of(
        cls,
        vectors: NDArray[np.float64],
        is_new: NDArray[np.bool_],
        units: NDArray[np.int64],
        centers: NDArray[np.float64],
        clusters: NDArray[np.int64] | None,
    ) -> Units:
        """Sum the vectors [n, feature] of one side of a document or sentence; `centers` [2, feature] of both sides."""
        names, numbers = np.unique(units * 2 + is_new, return_inverse=True)
        member = np.zeros((len(names), len(vectors)))
        member[numbers, np.arange(len(vectors))] = 1
        senses = None if clusters is None else member @ (clusters[:, None] == np.arange(clusters.max() + 1))
        return cls(
            is_new=names % 2 == 1,
            counts=member.sum(1),
            n_nonzero=member @ vectors.any(1),
            unit=member @ unit_rows(vectors),
            plain=member @ vectors,
            centered=member @ (vectors - centers[is_new.astype(int)]),
            senses=senses,
        )

    def measures(self, old: NDArray[np.float64], new: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """The measures for weights [p, unit] of both sides, float64 [p] each: a permutation is a weighted sum."""
        unit, plain, centered = (
            weighted_products(each, old, new, gram_of(each)) for each in (self.unit, self.plain, self.centered)
        )
        similar = self._similar(old, unit.old), self._similar(new, unit.new)
        found = measures(unit, plain, centered, (old @ self.counts, new @ self.counts), similar)
        if self.senses is not None:
            found[JSD] = jensen_shannon(old @ self.senses, new @ self.senses)
        return found

    def _similar(self, weights: NDArray[np.float64], squares: NDArray[np.float64]) -> NDArray[np.float64]:
        """The mean cosine of two occurrences of a side, but for pairs of two copies of one unit, which are no pairs.

        `squares` [p]: the squared length of the weighted sum. A unit that a resample draws w times has w (w - 1) pairs
        of copies; with them the occurrences of a side would seem more alike than they are.
        """
        copies = weights * (weights - 1)
        counts = weights @ self.counts
        pairs = counts * (counts - 1) - copies @ np.square(self.counts)
        inside = squares - copies @ np.square(self.unit).sum(1) - weights @ self.n_nonzero
        similar: NDArray[np.float64] = np.divide(inside, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)
        return similar

    @property
    def observed(self) -> dict[str, NDArray[np.float64]]:
        """The measures of the sides as they are, float64 [1] each."""
        new = self.is_new[None].astype(np.float64)
        return self.measures(1 - new, new)

    @property
    def n_exchanges(self) -> int:
        """In how many ways the sides can be assigned."""
        return math.comb(len(self.is_new), int(self.is_new.sum()))


def gram_of(sums: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """The Gram matrix of sums [unit, feature], None where there are more units than features."""
    return sums @ sums.T if len(sums) <= sums.shape[1] else None


def weighted_products(
    sums: NDArray[np.float64], old: NDArray[np.float64], new: NDArray[np.float64], gram: NDArray[np.float64] | None
) -> Products:
    """The inner products of weighted sums; over their Gram matrix if there is one."""
    if gram is None:
        return Products.of(old @ sums, new @ sums)
    left, right = old @ gram, new @ gram
    dots = [np.einsum("ij,ij->i", one, other) for one, other in ((left, old), (left, new), (right, new))]
    return Products(*dots)


def jensen_shannon(old: NDArray[np.float64], new: NDArray[np.float64]) -> NDArray[np.float64]:
    """The Jensen-Shannon divergence in bits, 0 to 1, of counts [..., cluster] on two sides (Lin 1991).

    H((p + q) / 2) - (H(p) + H(q)) / 2 with the entropy H; its root is the distance of scipy.
    """
    p, q = (each / each.sum(-1, keepdims=True) for each in (old, new))
    return np.maximum(_entropy((p + q) / 2) - (_entropy(p) + _entropy(q)) / 2, 0)


def _entropy(p: NDArray[np.float64]) -> NDArray[np.float64]:
    logs = np.log2(p, out=np.zeros_like(p), where=p > 0)
    return np.asarray(-(p * logs).sum(-1))


def sense_clusters(vectors: NDArray[np.float64], n_clusters: int, seed: int) -> NDArray[np.int64]:
    """Cluster the occurrences of all periods together: k-means of unit vectors; int64 [n]."""
    return kmeans(unit_rows(vectors), min(n_clusters, len(vectors)), seed=seed)


def permutations(
    is_new: NDArray[np.bool_], count: int, random: np.random.Generator
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Yield weights of the old and the new side, [p, unit], with the sides exchanged at random."""
    for n_rows in _blocks(count, len(is_new)):
        new = random.permuted(np.broadcast_to(is_new, (n_rows, len(is_new))), axis=1).astype(np.float64)
        yield 1 - new, new


def resamples(
    is_new: NDArray[np.bool_], count: int, random: np.random.Generator
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Yield weights of both sides, [p, unit]: how often each unit is drawn with replacement from its own side."""
    for n_rows in _blocks(count, len(is_new)):
        drawn = []
        for side in (~is_new, is_new):
            weights = np.zeros((n_rows, len(is_new)))
            weights[:, side] = random.multinomial(side.sum(), np.full(side.sum(), 1 / side.sum()), n_rows)
            drawn.append(weights)
        yield drawn[0], drawn[1]


def _blocks(count: int, width: int) -> Iterator[int]:
    size = max(1, _BLOCK // width)
    yield from (min(size, count - start) for start in range(0, count, size))


def p_values(units: Units, count: int, random: np.random.Generator) -> dict[str, float]:
    """The p-value of each measure by `count` permutations of the sides of the units.

    (1 + permutations with a measure as great) / (count + 1), by which p is never 0 (Phipson & Smyth 2010); for
    `selfsim_change` as great in magnitude. Sides keep their numbers of units, so frequency plays no part in it. NaN for
    a measure that is not defined.
    """
    observed = units.observed
    greater = dict.fromkeys(observed, 0)
    for old, new in permutations(units.is_new, count, random):
        for name, values in units.measures(old, new).items():
            known = (np.abs(values), abs(observed[name][0])) if name in TWO_SIDED else (values, observed[name][0])
            greater[name] += int((~(known[0] < known[1] - TIE)).sum())
    return {
        name: (1 + greater[name]) / (count + 1) if np.isfinite(observed[name][0]) else math.nan for name in observed
    }


def intervals(units: Units, count: int, random: np.random.Generator) -> dict[str, tuple[float, float]]:
    """Percentile intervals of 95 % of each measure by the bootstrap over units; NaN for a side of one unit."""
    if min(units.is_new.sum(), (~units.is_new).sum()) < 2:  # every resample would be that unit
        return dict.fromkeys(units.observed, (math.nan, math.nan))
    found = [units.measures(old, new) for old, new in resamples(units.is_new, count, random)]
    ends = {}
    for name in found[0]:
        values = np.concatenate([each[name] for each in found])
        values = values[np.isfinite(values)]
        ends[name] = tuple(np.quantile(values, [LEVEL / 2, 1 - LEVEL / 2])) if len(values) else (math.nan, math.nan)
    return ends


def false_discovery(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """The adjusted p-values of Benjamini & Hochberg 1995, float64 [n]; NaN stays NaN and is no test.

    With p ascending, q_i is the least n p_j / j over j >= i, at most 1.
    """
    q = np.full(len(p), np.nan)
    tested = np.flatnonzero(~np.isnan(p))
    order = tested[np.argsort(p[tested], kind="stable")]
    scaled = p[order] * (len(order) / np.arange(1, len(order) + 1))
    q[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1)
    return q


def matched(
    values: NDArray[np.float64], counts: NDArray[np.float64], n_matched: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compare each word with the `n_matched` others nearest to it in frequency: the median with it, and a p-value.

    The p-value is (1 + others with a value as great) / (others + 1): how rare the value is among words of like
    frequency. It needs no exchange of sides, so it holds where corpora differ in genre and every word shifts. NaN with
    fewer than two others.
    """
    median, p = np.full(len(values), np.nan), np.full(len(values), np.nan)
    known = np.flatnonzero(np.isfinite(values))
    n_others = min(n_matched, len(known) - 1)
    if n_others < 2:
        return median, p
    order = known[np.argsort(counts[known], kind="stable")]
    starts = np.clip(np.arange(len(order)) - n_others // 2, 0, len(order) - 1 - n_others)
    ascending = np.ascontiguousarray(values[order])
    rolled = pl.Series(ascending).rolling_median(n_others + 1).to_numpy()
    median[order] = rolled[starts + n_others]
    windows = np.lib.stride_tricks.sliding_window_view(ascending, n_others + 1)[starts]
    p[order] = (windows >= ascending[:, None]).sum(1) / (n_others + 1)  # its own value is the 1 of (1 + others)
    return median, p


def attainable(p_least: NDArray[np.float64]) -> bool:
    """Whether any word could be significant, given the least p-value that each could have."""
    return bool(len(p_least)) and bool(false_discovery(p_least).min() <= LEVEL)


def change_points(
    units: NDArray[np.float64],
    counts: NDArray[np.float64],
    periods: NDArray[np.int64],
    *,
    count: int,
    random: np.random.Generator,
) -> list[tuple[int, float, float]]:
    """Find where a word changes over periods, by binary segmentation: (first period after it, gain, p-value).

    `units`: float64 [unit, feature], sums of unit vectors; `counts`, `periods` [unit]. Of all borders between two
    periods, the one with the greatest gain |U|^2/n + |V|^2/m - |U + V|^2/(n + m) is taken, which is how much less the
    occurrences vary around the means of both sides than around one mean. Its p-value is that of the greatest gain of
    all borders, with the periods of the units permuted; at 0.05 or less both sides are split in turn. It comes first.
    """
    names = np.unique(periods)
    if len(names) < 2:
        return []
    gram = gram_of(units)
    observed = _gains(units, gram, counts, periods[None], names)[0]
    best = int(observed.argmax())
    greater, n_rows = 0, max(1, _BLOCK // len(periods))
    for size in (min(n_rows, count - start) for start in range(0, count, n_rows)):
        shuffled = random.permuted(np.broadcast_to(periods, (size, len(periods))), axis=1)
        greater += int((_gains(units, gram, counts, shuffled, names).max(1) >= observed[best] - TIE).sum())
    p = (1 + greater) / (count + 1)
    found = [(int(names[best + 1]), float(observed[best]), p)]
    if p > LEVEL:
        return found
    for side in (periods <= names[best], periods > names[best]):
        inner = change_points(units[side], counts[side], periods[side], count=count, random=random)
        found += [each for each in inner if each[2] <= LEVEL]
    return found


def _gains(
    units: NDArray[np.float64],
    gram: NDArray[np.float64] | None,
    counts: NDArray[np.float64],
    periods: NDArray[np.int64],
    names: NDArray[np.int64],
) -> NDArray[np.float64]:
    """The gain of each border for periods [p, unit] of the units; float64 [p, border]."""
    gains = []
    for border in names[:-1]:
        left = (periods <= border).astype(np.float64)
        right = 1 - left
        both = weighted_products(units, left, right, gram)
        n, m = left @ counts, right @ counts
        whole = (both.old + 2 * both.both + both.new) / (n + m)
        gains.append(both.old / n + both.new / m - whole)
    return np.stack(gains, axis=1)
