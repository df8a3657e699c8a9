"""Categorisation: do clusters of word vectors match the classes of the words?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embstore.errors import BenchmarkError
from embstore.evaluation.lexicon import Lexicon, Oov, Score, unit_rows
from embstore.evaluation.lines import read_lines, shown, wrong

RESTARTS = 10
ITERATIONS = 100
_POS = re.compile(r"-[njv]$")  # BLESS writes alligator-n


@dataclass(frozen=True)
class Categories:
    """Words and the class of each."""

    name: str
    words: tuple[str, ...]
    classes: tuple[str, ...]

    def scores(self, lexicon: Lexicon, *, oov: Oov, seed: int) -> list[Score]:
        """The purity of as many clusters as the words scored have classes."""
        rows = lexicon.rows_of(self.words)
        known = rows >= 0
        scored = known if oov == "skip" else np.ones_like(known)
        value = None
        if scored.any():
            classes = np.unique(np.array(self.classes)[scored], return_inverse=True)[1]
            clusters = spherical_kmeans(lexicon.unit[rows[scored]], int(classes.max()) + 1, seed=seed)
            value = purity(clusters, classes)
        return [Score("categorisation", "purity", value, int(scored.sum()), float(known.mean()))]


def purity(clusters: NDArray[np.int64], classes: NDArray[np.int64]) -> float:
    r"""The share of words in the class of most of their cluster: :math:`\frac{1}{n} \sum_k \max_c |k \cap c|`."""
    table = np.zeros((clusters.max() + 1, classes.max() + 1), np.int64)
    np.add.at(table, (clusters, classes), 1)
    return float(table.max(1).sum() / len(clusters))


def spherical_kmeans(
    unit: NDArray[np.float32], count: int, *, seed: int, restarts: int = RESTARTS
) -> NDArray[np.int64]:
    """The cluster of each unit vector [n, dimensions]: k-means by cosine, begun as k-means++, the best of the restarts.

    The best has the greatest sum of cosines with the centres; classes are never looked at.
    """
    random = np.random.default_rng(seed)
    best, best_sum = np.zeros(len(unit), np.int64), -np.inf
    vectors = unit.astype(np.float64)
    for _ in range(restarts):
        clusters, total = _refine(vectors, _first_centers(vectors, count, random))
        if total > best_sum:
            best, best_sum = clusters, total
    return best


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
        sums = np.zeros_like(centers)
        np.add.at(sums, clusters, unit)
        centers = unit_rows(sums)
    return clusters, float((unit * centers[clusters]).sum())


def _fill_empty(clusters: NDArray[np.int64], cosines: NDArray[np.float64]) -> None:
    """Give each empty cluster the vector that lies farthest from its own centre, of clusters of two or more."""
    counts = np.bincount(clusters, minlength=cosines.shape[1])
    for empty in np.flatnonzero(counts == 0):
        own = cosines[np.arange(len(clusters)), clusters]
        farthest = int(np.where(counts[clusters] > 1, own, np.inf).argmin())
        counts[clusters[farthest]] -= 1
        clusters[farthest] = empty
        counts[empty] = 1


def read_categories(path: Path, *, name: str) -> Categories:
    """Read `word class` a line, or BLESS (`word-n class relation relatum`, each word once); else BenchmarkError."""
    classes: dict[str, str] = {}
    lines = read_lines(path)
    separator = "\t" if lines and "\t" in lines[0][1] else None
    for number, line in lines:
        fields = [field.strip() for field in line.split(separator)]
        if len(fields) not in (2, 4) or not all(fields):
            raise wrong(path, number, f"{shown(line)}: give a word and its class (or the four fields of BLESS)")
        bless = len(fields) == 4
        word = _POS.sub("", fields[0]) if bless else fields[0]
        known = classes.setdefault(word, fields[1])
        if known != fields[1]:
            raise wrong(path, number, f"{word!r} is of the class {fields[1]!r} here and of {known!r} before: give one")
    if not classes:
        raise BenchmarkError(f"{path}: no word in it: give a word and its class a line")
    return Categories(name, tuple(classes), tuple(classes.values()))
