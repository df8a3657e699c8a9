"""Regions of a map: where its points are dense, and the words that each region has more of than the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.analysis import contexts, marker_words, marking
from embstore.store import Store
from embstore_explorer.stores import Explored

GRID = 96  # cells along each axis
BLOCK = 2**18  # points at a time
MAX_REGIONS = 24
LEAST_POINTS, LEAST_SHARE = 8, 0.004
CONTEXT_ROWS, NAMED_ROWS = 20_000, 400_000  # occurrences whose sentences, and whose words, are read for names
N_WORDS = 3  # of a name
SPACES = "ĠĊĉč▁"  # as subwords spell them
COMMON, MUCH = 200, 0.1  # of the words the 200th part, the commonest, name only regions of which they are this share


@dataclass(frozen=True)
class Regions:
    """The largest first: `codes` int8 [n], the region of each point, -1 for none; `centers` [r, 2] and `counts`."""

    codes: NDArray[np.int8]
    centers: NDArray[np.float64]
    counts: NDArray[np.int64]


def find_regions(points: NDArray[np.floating]) -> Regions:
    """Cut a map into the hills of its density: a grid of counts, smoothed; each cell belongs to the peak uphill of it.

    The bandwidth falls with the number of points n as n^(-1/6) (Scott 1992).
    """
    low, high = np.percentile(points[:: max(1, len(points) // 100_000)], (0.5, 99.5), axis=0)
    scale = GRID / np.maximum(high - low, np.finfo(np.float32).tiny)
    n_cells = GRID * GRID
    cells, sums = np.empty(len(points), np.uint16), np.zeros((n_cells, 2))
    for start in range(0, len(points), BLOCK):
        block = points[start : start + BLOCK]
        own = np.clip((block - low) * scale, 0, GRID - 1).astype(np.int64) @ np.array([GRID, 1])
        sums += np.stack([np.bincount(own, block[:, axis], n_cells) for axis in (0, 1)], 1)
        cells[start : start + len(block)] = own
    counts = np.bincount(cells, minlength=n_cells)
    density = counts.reshape(GRID, GRID).astype(np.float64)
    width = GRID / 6 * len(points) ** (-1 / 6)
    reach = np.arange(-int(3 * width) - 1, int(3 * width) + 2)
    kernel = np.exp(-0.5 * np.square(reach / width))
    for axis in (0, 1):
        density = np.apply_along_axis(np.convolve, axis, density, kernel)
    edge = len(reach) // 2
    peaks = _uphill(density[edge : edge + GRID, edge : edge + GRID])
    sizes = np.bincount(peaks, counts, n_cells).astype(np.int64)  # of the region of each cell that is a peak
    order = np.argsort(-sizes, kind="stable")[:MAX_REGIONS]
    order = order[sizes[order] >= max(LEAST_POINTS, LEAST_SHARE * len(points))]
    numbers = np.full(n_cells, -1, np.int8)
    numbers[order] = np.arange(len(order))
    centers = np.stack([np.bincount(peaks, sums[:, axis], n_cells)[order] for axis in (0, 1)], 1)
    return Regions(numbers[peaks][cells], centers / np.maximum(sizes[order], 1)[:, None], sizes[order])


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


def around(store: Store, rows: NDArray[np.int64]) -> list[tuple[str, ...]]:
    """Return the words within five of each occurrence of a word, without that word."""
    own = {store.index.words[number].lstrip(SPACES).casefold() for number in store.index.type[rows[:1]].tolist()}
    return [tuple(word for word in words if word not in own) for words in contexts(store, rows)]


def name_groups(
    one: Explored, rows: NDArray[np.int64], codes: NDArray[Any], n_groups: int, *, by_context: bool
) -> list[str]:
    """Name groups of rows by the words that set them apart from the other rows (`markers.marking`).

    Words as common as function words name only a region that consists of them. `by_context`: the words within five of
    the occurrences instead, for occurrences of a single word. Of many rows an even sample is read.
    """
    store, limit = one.store, CONTEXT_ROWS if by_context else NAMED_ROWS
    step = max(1, -(-len(rows) // limit))
    rows, codes = rows[::step], np.asarray(codes[::step], np.int64)
    if by_context:
        found = marker_words(around(store, rows), codes.tolist(), n_groups, count=N_WORDS)
        return [", ".join(words) for words in found]
    types, items = np.unique(store.index.type[rows], return_inverse=True)
    inside, n_items = codes >= 0, len(types)
    places = codes[inside] * n_items + items[inside]
    counts = np.bincount(places, minlength=n_groups * n_items).reshape(n_groups, n_items)
    words = [store.index.words[number] for number in types.tolist()]
    known = np.array([any(map(str.isalnum, word)) for word in words], bool)
    common = np.isin(np.arange(n_items), np.argsort(-counts.sum(0), kind="stable")[: n_items // COMMON])
    names = []
    for own, best in zip(counts, marking(counts, count=n_items), strict=True):
        apt = [each for each in best if known[each] and (not common[each] or own[each] >= MUCH * own.sum())]
        most = [int(own.argmax())] if own.any() else []
        names.append(", ".join(words[number] for number in (apt or best or most)[:N_WORDS]))
    return names
