"""Word vectors as benchmarks ask for them: how a word is found, and what stands in for one that is not there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidValueError
from embstore.vectors import WordVectors

Oov = Literal["skip", "mean"]
BLOCK_ROWS = 2**14
Rows = NDArray[np.int64]
Real = TypeVar("Real", np.float32, np.float64)


@dataclass(frozen=True)
class Score:
    """One number of a benchmark: `count` items were scored, `coverage` of all have every word; None where undefined."""

    task: str
    metric: str
    value: float | None
    count: int
    coverage: float


class Benchmark(Protocol):
    """A benchmark that has been read."""

    @property
    def name(self) -> str: ...

    def scores(self, lexicon: Lexicon, *, oov: Oov, seed: int) -> list[Score]:
        """Hold word vectors against the benchmark; the first score is the main one."""
        ...


@dataclass(frozen=True, eq=False)
class Lexicon:
    """Unit vectors found by a benchmark's words.

    A word is looked up as written, with "_" for its spaces, and, with `lowercase`, both again in lower case.
    """

    vectors: WordVectors
    lowercase: bool = True

    @cached_property
    def unit(self) -> NDArray[np.float32]:
        """[words + 1, dimensions]: every vector at length 1 (zeros stay zeros), then their mean's, at row -1."""
        vectors = self.vectors.vectors
        unit = np.empty((len(vectors) + 1, vectors.shape[1]), np.float32)
        for start in range(0, len(vectors), BLOCK_ROWS):
            block = vectors[start : start + BLOCK_ROWS]
            unit[start : start + len(block)] = unit_rows(block)
        unit[-1:] = unit_rows(vectors.mean(0, dtype=np.float64, keepdims=True))
        return unit

    def __len__(self) -> int:
        return len(self.vectors)

    def rows_of(self, words: Iterable[str]) -> Rows:
        """The row of each word, -1 where it has none."""
        return np.fromiter((self._row_of(word) for word in words), np.int64)

    def pair_rows(self, pairs: Iterable[tuple[str, ...]]) -> Rows:
        """The rows of tuples of as many words each; int64 [tuples, words]."""
        listed = list(pairs)
        return self.rows_of(word for pair in listed for word in pair).reshape(len(listed), -1)

    def _row_of(self, word: str) -> int:
        spellings = [word, word.replace(" ", "_")]
        if self.lowercase:
            spellings += [spelling.lower() for spelling in spellings]
        for spelling in spellings:
            if (row := self.vectors.place_of(spelling)) is not None:
                return row
        return -1


def unit_rows(vectors: NDArray[Real]) -> NDArray[Real]:
    """Rows at length 1; rows of zeros stay so."""
    # Scaled by the largest number first: squares of float32 can overflow and vanish.
    largest = np.abs(vectors).max(1, keepdims=True)
    scaled = vectors.copy()
    scaled /= np.where(largest > 0, largest, 1).astype(vectors.dtype)
    norms = np.linalg.norm(scaled, axis=1, keepdims=True)
    scaled /= np.where(norms > 0, norms, 1).astype(vectors.dtype)
    return scaled


def on_shared_vocabulary(systems: Mapping[str, WordVectors], *, lowercase: bool = True) -> dict[str, WordVectors]:
    """Each system restricted to the words that all have, in the order of the first.

    With `lowercase` words are the same where their lower-case forms are: each system gives the vector of the
    lower-case spelling, else of the first spelling that it has. Raises InvalidValueError where no word is shared.
    """
    places = {name: _places(vectors, lowercase) for name, vectors in systems.items()}
    first, *others = places.values()
    words = tuple(word for word in first if all(word in other for other in others))
    if not words:
        raise InvalidValueError(f"no word is in all of {', '.join(systems)}: evaluate them one by one")
    return {
        name: WordVectors(words, vectors.vectors[[places[name][word] for word in words]])
        for name, vectors in systems.items()
    }


def _places(vectors: WordVectors, lowercase: bool) -> dict[str, int]:
    if not lowercase:
        return {word: row for row, word in enumerate(vectors.words)}
    places: dict[str, int] = {}
    for row, word in enumerate(vectors.words):
        folded = word.lower()
        if folded not in places or word == folded:
            places[folded] = row
    return places


def covered(rows: Rows) -> NDArray[np.bool_]:
    """Which items [items, words] have all their words."""
    return np.asarray((rows >= 0).all(1), np.bool_)
