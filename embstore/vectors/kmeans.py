"""Spherical k-means: vectors of length one, put with the centre that they are nearest to by cosine."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

RESTARTS = 10
ITERATIONS = 100


def spherical_kmeans(
    unit: NDArray[np.float32] | NDArray[np.float64], count: int, *, seed: int, restarts: int = RESTARTS
) -> NDArray[np.int64]:
    """The cluster of each unit vector [n, dimensions]: k-means by cosine, begun as k-means++, the best of the restarts.

    The best has the greatest sum of cosines with the centres. No cluster of `count`, n at most, is empty.
    """
    random = np.random.default_rng(seed)
    best, best_sum = np.zeros(len(unit), np.int64), -np.inf
    vectors = unit.astype(np.float64)
    for _ in range(restarts):
        clusters, total = _refine(vectors, _first_centers(vectors, count, random))
        if total > best_sum:
            best, best_sum = clusters, total
    return best


def purity(clusters: NDArray[np.int64], classes: NDArray[np.int64]) -> float:
    r"""The share of items in the class of most of their cluster: :math:`\frac{1}{n} \sum_k \max_c |k \cap c|`."""
    table = np.zeros((clusters.max() + 1, classes.max() + 1), np.int64)
    np.add.at(table, (clusters, classes), 1)
    return float(table.max(1).sum() / len(clusters))


def _first_centers(unit: NDArray[np.float64], count: int, random: np.random.Generator) -> NDArray[np.float64]:
    chosen = [int(random.integers(len(unit)))]
    nearest = unit @ unit[chosen[0]]
    for _ in range(count - 1):
        distance = np.maximum(1 - nearest, 0)
        distance[chosen] = 0
        total = distance.sum()
        weights = distance / total if total > 0 else None  # only equal vectors are left
        chosen.append(int(random.choice(len(unit), p=weights)))
        nearest = np.maximum(nearest, unit @ unit[chosen[-1]])
    return unit[chosen]


def _refine(unit: NDArray[np.float64], centers: NDArray[np.float64]) -> tuple[NDArray[np.int64], float]:
    clusters = np.full(len(unit), -1, np.int64)
    for _ in range(ITERATIONS):
        cosines = unit @ centers.T
        nearest = cosines.argmax(1)
        _fill_empty(nearest, cosines)
        if (nearest == clusters).all():
            break
        clusters = nearest
        centers = _unit_sums(unit, clusters, len(centers))
    return clusters, float((unit * centers[clusters]).sum())


def _unit_sums(unit: NDArray[np.float64], clusters: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """The direction of each cluster's sum; zeros where its vectors cancel."""
    sums = (clusters == np.arange(count)[:, None]).astype(np.float64) @ unit
    norms = np.linalg.norm(sums, axis=1, keepdims=True)
    return np.asarray(sums / np.where(norms > 0, norms, 1))


def _fill_empty(clusters: NDArray[np.int64], cosines: NDArray[np.float64]) -> None:
    """Give each empty cluster the vector that lies farthest from its own centre, of clusters of two or more."""
    counts = np.bincount(clusters, minlength=cosines.shape[1])
    for empty in np.flatnonzero(counts == 0):
        own = cosines[np.arange(len(clusters)), clusters]
        farthest = int(np.where(counts[clusters] > 1, own, np.inf).argmin())
        counts[clusters[farthest]] -= 1
        clusters[farthest] = empty
        counts[empty] = 1
