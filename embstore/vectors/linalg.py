"""Unit vectors, and spherical k-means: clusters by the cosine with the cluster centers."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

N_RESTARTS = 10
MAX_ITERATIONS = 100
Real = TypeVar("Real", np.float32, np.float64)


def unit_rows(vectors: NDArray[Real]) -> NDArray[Real]:
    """Scale vectors [..., feature] to unit length, zero vectors unchanged; exact for very short and long ones too."""
    largest = np.abs(vectors).max(-1, keepdims=True, initial=0)
    scaled = vectors / np.where(largest > 0, largest, 1)  # squares of float32 can overflow and vanish
    lengths = np.sqrt(np.square(scaled).sum(-1, keepdims=True))
    return np.asarray(scaled / np.where(lengths > 0, lengths, 1))


def spherical_kmeans(
    unit: NDArray[np.float32] | NDArray[np.float64], n_clusters: int, *, seed: int
) -> NDArray[np.int64]:
    """Return the cluster of each unit vector [n, dimensions], int64 [n].

    k-means++ initialisation; of all restarts the one with the greatest sum of cosines with the centers is returned. No
    cluster is empty; `n_clusters` must not exceed n.
    """
    random = np.random.default_rng(seed)
    best, best_sum = np.zeros(len(unit), np.int64), -np.inf
    vectors = unit.astype(np.float64)
    for _ in range(N_RESTARTS):
        clusters, total = _refine(vectors, _initial_centers(vectors, n_clusters, random))
        if total > best_sum:
            best, best_sum = clusters, total
    return best


def _initial_centers(unit: NDArray[np.float64], n_clusters: int, random: np.random.Generator) -> NDArray[np.float64]:
    chosen = [int(random.integers(len(unit)))]
    nearest = unit @ unit[chosen[0]]
    for _ in range(n_clusters - 1):
        distance = np.maximum(1 - nearest, 0)
        distance[chosen] = 0
        total = distance.sum()
        weights = distance / total if total > 0 else None  # all remaining vectors equal a center
        chosen.append(int(random.choice(len(unit), p=weights)))
        nearest = np.maximum(nearest, unit @ unit[chosen[-1]])
    return unit[chosen]


def _refine(unit: NDArray[np.float64], centers: NDArray[np.float64]) -> tuple[NDArray[np.int64], float]:
    """Iterate until no vector changes its cluster; returns the clusters and the sum of cosines."""
    clusters = np.full(len(unit), -1, np.int64)
    for _ in range(MAX_ITERATIONS):
        cosines = unit @ centers.T
        nearest = cosines.argmax(1)
        _fill_empty(nearest, cosines)
        if (nearest == clusters).all():
            break
        clusters = nearest
        centers = unit_rows((clusters == np.arange(len(centers))[:, None]).astype(np.float64) @ unit)
    return clusters, float((unit * centers[clusters]).sum())


def _fill_empty(clusters: NDArray[np.int64], cosines: NDArray[np.float64]) -> None:
    """Move into each empty cluster the vector farthest from its own center, out of clusters of two or more."""
    counts = np.bincount(clusters, minlength=cosines.shape[1])
    for empty in np.flatnonzero(counts == 0):
        own = cosines[np.arange(len(clusters)), clusters]
        farthest = int(np.where(counts[clusters] > 1, own, np.inf).argmin())
        counts[clusters[farthest]] -= 1
        clusters[farthest] = empty
        counts[empty] = 1
