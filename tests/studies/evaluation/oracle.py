"""Scores by explicit loops over words, in float64."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np

from embstore.vectors import WordVectors


def vectors(count: int, dimensions: int = 6, *, seed: int = 0, prefix: str = "w") -> WordVectors:
    numbers = np.random.default_rng(seed).standard_normal((count, dimensions)) + 0.3
    return WordVectors(tuple(f"{prefix}{number}" for number in range(count)), numbers.astype(np.float32))


def ranks(values: Sequence[float]) -> list[float]:
    return [sum(other < value for other in values) + (values.count(value) + 1) / 2 for value in values]


def spearman(left: Sequence[float], right: Sequence[float]) -> float:
    return statistics.correlation(ranks(list(left)), ranks(list(right)))


def cosine(left: np.ndarray, right: np.ndarray) -> float:
    norms = math.sqrt(float(left @ left)) * math.sqrt(float(right @ right))
    return float(left @ right) / norms if norms else 0.0


def unit(vector: np.ndarray) -> np.ndarray:
    norm = math.sqrt(float(vector @ vector))
    return vector / norm if norm else vector


def table(system: WordVectors) -> dict[str, np.ndarray]:
    return {word: row.astype(np.float64) for word, row in zip(system.words, system.vectors, strict=True)}


def mean(system: WordVectors) -> np.ndarray:
    return system.vectors.astype(np.float64).sum(0) / len(system)


def answer(system: WordVectors, a: str, b: str, c: str, *, multiply: bool) -> str | None:
    """The word that 3CosAdd or 3CosMul chooses; words that are not there are asked with as the mean vector."""
    known = table(system)
    best, best_score = None, -math.inf
    asked = [known.get(word, mean(system)) for word in (a, b, c)]
    for word, vector in known.items():
        if word in (a, b, c):
            continue
        to_a, to_b, to_c = (cosine(vector, other) for other in asked)
        product = ((to_b + 1) / 2) * ((to_c + 1) / 2) / ((to_a + 1) / 2 + 0.001)
        score = product if multiply else to_b - to_a + to_c
        if score > best_score:
            best, best_score = word, score
    return best
