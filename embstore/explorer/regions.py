"""Regions of a map: where its points are dense, and the words that each region has more of than the others."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embstore.explorer.stores import Explored
from embstore.spacing import natural, split_marked
from embstore.store import Store

GRID = 96  # cells along each axis
MAX_REGIONS = 24
LEAST_POINTS, LEAST_SHARE = 8, 0.004
CONTEXT_ROWS, CONTEXT = 20_000, 5  # occurrences of a word whose sentences are read, and words on each side
PRIOR = 500.0  # weight of the prior, in words
LEAST_Z = 1.96
N_WORDS = 3


@dataclass(frozen=True)
class Regions:
    """The largest first: `codes` int32 [n], the region of each point, -1 for none; `centers` [r, 2] and `counts`."""

    codes: NDArray[np.int32]
    centers: NDArray[np.float64]
    counts: NDArray[np.int64]


def find_regions(points: NDArray[np.floating]) -> Regions:
    """Cut a map into the hills of its density: a grid of counts, smoothed; each cell belongs to the peak uphill of it.

    The bandwidth falls with the number of points n as n^(-1/6) (Scott 1992).
    """
    low, high = np.percentile(points[:: max(1, len(points) // 100_000)], (0.5, 99.5), axis=0)
    places = (points - low) / np.maximum(high - low, np.finfo(np.float32).tiny) * GRID
    cells = np.clip(places, 0, GRID - 1).astype(np.int64) @ np.array([GRID, 1])
    density = np.bincount(cells, minlength=GRID * GRID).reshape(GRID, GRID).astype(np.float64)
    width = GRID / 6 * len(points) ** (-1 / 6)
    reach = np.arange(-int(3 * width) - 1, int(3 * width) + 2)
    kernel = np.exp(-0.5 * np.square(reach / width))
    for axis in (0, 1):
        density = np.apply_along_axis(np.convolve, axis, density, kernel)
    edge = len(reach) // 2
    peaks = _uphill(density[edge : edge + GRID, edge : edge + GRID])[cells]
    found, codes, counts = np.unique(peaks, return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    order = order[counts[order] >= max(LEAST_POINTS, LEAST_SHARE * len(points))][:MAX_REGIONS]
    numbers = np.full(len(found), -1, np.int32)
    numbers[order] = np.arange(len(order))
    own = np.asarray(numbers[codes], np.int32)
    inside = own >= 0
    sums = [np.bincount(own[inside], points[inside, axis], len(order)) for axis in (0, 1)]
    return Regions(own, np.stack(sums, 1) / np.maximum(counts[order], 1)[:, None], counts[order])


def _uphill(density: NDArray[np.float64]) -> NDArray[np.int64]:
    """The cell of the peak that steepest ascent reaches from each cell; int64 [cells]."""
    size = len(density)
    around = np.pad(density, 1, constant_values=-1)
    shifted = np.stack([around[i : i + size, j : j + size] for i in range(3) for j in range(3)])
    shifted[4] = np.nextafter(shifted[4], np.inf)  # on a plateau a cell is its own peak
    step = shifted.argmax(0)
    rows, columns = np.indices((size, size))
    target = ((rows + step // 3 - 1) * size + columns + step % 3 - 1).ravel()
    while not np.array_equal(target[target], target):
        target = target[target]
    return np.asarray(target)


def name_groups(
    one: Explored, rows: NDArray[np.int64], codes: NDArray[np.int32], n_groups: int, *, by_context: bool
) -> list[str]:
    """Name groups of rows by the words that they have more of than the other rows: by the z score of the log-odds.

    Log-odds ratio with an informative Dirichlet prior (Monroe et al. 2008, eq. 22). `by_context`: the words within
    five of the occurrences instead, for occurrences of a single word.
    """
    store = one.store
    if by_context:
        some = np.arange(0, len(rows), -(-len(rows) // CONTEXT_ROWS))
        groups, items, words = _contexts(store, rows[some], codes[some])
    else:
        groups, items = codes, np.asarray(store.index.type[rows])
        found, items = np.unique(items, return_inverse=True)
        words = [store.index.words[number] for number in found.tolist()]
    whole = np.bincount(items, minlength=len(words)).astype(np.float64)
    prior = PRIOR * whole / max(float(whole.sum()), 1.0)
    names = []
    for group in range(n_groups):
        own = np.bincount(items[groups == group], minlength=len(words)).astype(np.float64)
        scores = log_odds(own, whole - own, prior)
        order = np.argsort(-scores, kind="stable")[: 10 * N_WORDS].tolist()
        best = [number for number in order if scores[number] > LEAST_Z]
        best = [number for number in best if any(map(str.isalnum, words[number]))] or best
        best = best[:N_WORDS] or (np.argsort(-own, kind="stable")[:1].tolist() if own.any() else [])
        names.append(", ".join(words[number] for number in best))
    return names


def log_odds(own: NDArray[np.float64], other: NDArray[np.float64], prior: NDArray[np.float64]) -> NDArray[np.float64]:
    """The z score of the log-odds ratio of each word: positive where `own` counts have more of it than `other` ones."""
    one, two, total = own + prior, other + prior, prior.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(one / (own.sum() + total - one)) - np.log(two / (other.sum() + total - two))
        return np.asarray(np.nan_to_num(ratio / np.sqrt(1 / one + 1 / two), nan=0.0, posinf=0.0, neginf=0.0))


def _contexts(
    store: Store, rows: NDArray[np.int64], codes: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int64], list[str]]:
    """The words around some rows: the group and the number of each, and the words by number, most frequent first."""
    index = store.index
    groups: list[int] = []
    found: list[str] = []
    places = zip(index.sentence[rows].tolist(), index.position[rows].tolist(), codes.tolist(), strict=True)
    for sentence, position, group in places:
        words = [natural(word).strip().lower() for word in split_marked(index.texts[sentence])]
        near = words[max(0, position - CONTEXT) : max(0, position)] + words[position + 1 : position + 1 + CONTEXT]
        near = [word for word in near if any(map(str.isalpha, word))]
        found += near
        groups += [group] * len(near)
    words = [word for word, _ in Counter(found).most_common()]
    numbers = {word: number for number, word in enumerate(words)}
    return np.array(groups, np.int32), np.array([numbers[word] for word in found], np.int64), words
