"""Vectors drawn from N(0, I), each seeded by its word."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidValueError
from embstore.vectors.lookup import VectorTable

MOST_DIMENSIONS = 2**16


class DrawnVectors(VectorTable):
    """A table that has every word and every phrase: a vector from N(0, I), the same for the same seed and word.

    The numbers are those of numpy's legacy generator over Philox, whose stream numpy never changes, under the key
    BLAKE2b(seed, word), so they are the same in any process and on any machine.
    """

    def __init__(self, dimensions: int, *, seed: int = 0) -> None:
        if not 1 <= dimensions <= MOST_DIMENSIONS:
            raise InvalidValueError(f"{dimensions} dimensions are not allowed: give 1 to {MOST_DIMENSIONS}")
        self.dimensions = dimensions
        self.seed = seed
        rule = {"drawn": "N(0, I)", "dimensions": dimensions, "seed": seed}
        self.sha256 = hashlib.sha256(json.dumps(rule, sort_keys=True).encode()).hexdigest()

    def holds(self, word: str) -> bool:
        return True

    def vectors_of(self, words: Sequence[str]) -> NDArray[np.float32]:
        vectors = np.empty((len(words), self.dimensions), np.float32)
        for row, word in enumerate(words):
            spelled = f"{self.seed}\0{word}".encode("utf-8", "surrogatepass")
            key = int.from_bytes(hashlib.blake2b(spelled, digest_size=16).digest(), "little")
            vectors[row] = np.random.RandomState(np.random.Philox(key=key)).standard_normal(self.dimensions)
        return vectors
