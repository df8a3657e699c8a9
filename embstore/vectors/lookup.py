"""Words looked up in a table of vectors, wherever it stands: in memory, in a file, in n-grams, in a generator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import WordVectorsError
from embstore.vectors.vectors import WordVectors, first_not_finite

PHRASE_JOINS = ("_", " ")  # how tables spell a phrase: word2vec's way, then numpy's and gensim's


class VectorTable(ABC):
    """Vectors of words, read as they are asked for.

    `dimensions`: the numbers of a vector. `sha256`: the hash of all that the vectors depend on.
    """

    dimensions: int
    sha256: str

    @abstractmethod
    def holds(self, word: str) -> bool:
        """Say whether the word has an entry of its own, as it is spelled or lower-cased."""

    def has(self, word: str) -> bool:
        """Say whether the word has a vector, be it one made of the word's parts."""
        return self.holds(word)

    @abstractmethod
    def vectors_of(self, words: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of words that it `has`: float32 [words, dimensions]."""

    def phrase(self, words: Sequence[str]) -> str | None:
        """Return the entry that stands for these words as one, joined by "_" or by a space; None without it."""
        for join in PHRASE_JOINS:
            if self.holds(entry := join.join(words)):
                return entry
        return None


class RowTable(VectorTable):
    """A table whose entries are rows: `places` says where a word stands, `rows` reads vectors of places."""

    def __init__(
        self,
        places: Mapping[str, int],
        rows: Callable[[Sequence[int]], NDArray[np.float32]],
        *,
        dimensions: int,
        sha256: str,
    ) -> None:
        self.dimensions = dimensions
        self.sha256 = sha256
        self._places = places
        self._rows = rows

    def __len__(self) -> int:
        return len(self._places)

    def holds(self, word: str) -> bool:
        return self.place_of(word) is not None

    def place_of(self, word: str) -> int | None:
        """Return the place of a word as it is spelled, else lower-cased, else None."""
        place = self._places.get(word)
        return self._places.get(word.lower()) if place is None else place

    def vectors_of(self, words: Sequence[str]) -> NDArray[np.float32]:
        places = [self.place_of(word) for word in words]
        if None in places:
            raise KeyError(words[places.index(None)])
        return self._rows([place for place in places if place is not None])


def held_table(vectors: WordVectors, *, sha256: str) -> RowTable:
    """Look words up in vectors that are in memory."""
    places = {word: row for row, word in enumerate(vectors.words)}
    return RowTable(
        places, lambda rows: vectors.vectors[np.asarray(rows, np.int64)], dimensions=vectors.dimensions, sha256=sha256
    )


def array_table(words: Sequence[str], array: NDArray[Any], *, name: str, sha256: str) -> RowTable:
    """Look words up in an array [words, dimensions] that may be memory-mapped; only rows asked for are read.

    Raises WordVectorsError where such a row has NaN or infinity in it.
    """

    def rows(places: Sequence[int]) -> NDArray[np.float32]:
        with np.errstate(over="ignore"):
            vectors = np.array(array[np.asarray(places, np.int64)], np.float32)
        if (row := first_not_finite(vectors)) is not None:
            raise WordVectorsError(f"{name}: the vector of {words[places[row]]!r} has NaN or infinity in it")
        return vectors

    places = {word: row for row, word in enumerate(words)}
    return RowTable(places, rows, dimensions=int(array.shape[1]), sha256=sha256)
