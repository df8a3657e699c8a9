"""Words with one vector each: in memory, and tables to look them up in a mapped file or drawn at random."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from embstore.arguments import as_matrix, checked
from embstore.errors import InvalidValueError, check_whole, quoted
from embstore.store.vectors import all_finite

PHRASE_JOINS = ("_", " ")  # how the entries of phrases are spelled: as by word2vec, then as in memory
MAX_DIMENSIONS = 2**16  # of random vectors: more than any model has


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Distinct words and their vectors: float32 [words, dimensions], finite, in the order of the words.

    Made by `read_vectors` and `static_vectors`, and accepted wherever static embeddings are analysed.
    Raises InvalidValueError for a word that is repeated, empty or not text, and for vectors of another shape or with
    NaN or infinity.
    """

    words: tuple[str, ...]
    vectors: NDArray[np.float32]

    def __post_init__(self) -> None:
        given = as_matrix("word vectors", self.vectors)
        words: object = self.words
        unordered = isinstance(words, str | set | frozenset) or not isinstance(words, Iterable)
        if unordered or getattr(words, "ndim", 1) < 1:
            raise InvalidValueError(f"words {quoted(words)} are not allowed: give a list of words")
        with np.errstate(over="ignore"):  # a number beyond float32 becomes infinite, which is refused below
            object.__setattr__(self, "vectors", np.ascontiguousarray(given, np.float32))
        object.__setattr__(self, "words", tuple(self.words))
        if len(self.words) != len(self.vectors):
            raise InvalidValueError(f"{len(self.words)} words and {len(self.vectors)} vectors: give one vector a word")
        if not all_finite(self.vectors):
            row = int(np.isfinite(self.vectors).all(1).argmin())
            raise InvalidValueError(f"the vector of {self.words[row]!r} (row {row}) has NaN or infinity in it")
        for row, word in enumerate(self.words):
            if not isinstance(word, str) or not word:
                raise InvalidValueError(f"word {row} is {word!r}: a word is text that is not empty")
        if (pair := first_repeated(self.words)) is not None:
            raise InvalidValueError(f"the word {self.words[pair[1]]!r} is given twice, at {pair[0]} and at {pair[1]}")

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._row_of

    def __repr__(self) -> str:
        words = ", ".join(quoted(word) for word in self.words[:3])
        more = ", ..." if len(self.words) > 3 else ""
        return f"<WordVectors of {len(self):,} words ({words}{more}), {self.dimensions} dimensions>"

    @property
    def dimensions(self) -> int:
        """The number of components of a vector."""
        return int(self.vectors.shape[1])

    @checked
    def row_of(self, word: str) -> int | None:
        """Return the row of a word, which must be spelled exactly so; None if there is none."""
        return self._row_of.get(word)

    @checked
    def rows_of(self, words: Iterable[str]) -> NDArray[np.int64]:
        """Return the row of each word, -1 for words without a vector; int64 [words]."""
        return np.fromiter((self._row_of.get(word, -1) for word in words), np.int64)

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> Self:
        """Return the words of these distinct rows, in this order. Raises InvalidValueError for a row that is none."""
        chosen = np.asarray(rows)
        if chosen.ndim != 1 or (chosen.size and chosen.dtype.kind not in "iu"):
            raise InvalidValueError(f"rows {quoted(rows)} are not allowed: give a list of whole numbers")
        chosen = chosen.astype(np.int64)
        for row in chosen[(chosen < 0) | (chosen >= len(self))][:1].tolist():
            raise InvalidValueError(f"there is no row {row}: the {len(self):,} words have rows 0 to {len(self) - 1}")
        return type(self)(tuple(self.words[row] for row in chosen.tolist()), self.vectors[chosen])

    def sha256(self) -> str:
        """Return the hash of the words and vectors."""
        digest = hashlib.sha256("\n".join(self.words).encode("utf-8", "surrogatepass"))
        digest.update(self.vectors.data)
        return digest.hexdigest()

    @cached_property
    def _row_of(self) -> dict[str, int]:
        return {word: row for row, word in enumerate(self.words)}


def first_repeated(words: Sequence[str]) -> tuple[int, int] | None:
    """Return the rows of the first repeated word, where it occurs first and where it is repeated; None without any."""
    if len(set(words)) == len(words):
        return None
    row_of: dict[str, int] = {}
    for row, word in enumerate(words):
        if (first := row_of.setdefault(word, row)) != row:
            return first, row
    return None


class VectorTable(ABC):
    """Vectors of words that are read on lookup, as the static encoders use them.

    `dimensions`: the number of components of a vector. `sha256`: the hash of all data that the vectors depend on.
    """

    dimensions: int
    sha256: str

    @abstractmethod
    def holds(self, word: str) -> bool:
        """Return whether the word has an entry of its own, as spelled or in lower case."""

    def has(self, word: str) -> bool:
        """Return whether the word has a vector, including one composed of its n-grams."""
        return self.holds(word)

    @abstractmethod
    def vectors_of(self, words: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of words, float32 [words, dimensions]. Raises KeyError for a word without a vector."""

    def phrase(self, words: Sequence[str]) -> str | None:
        """Return the entry of a phrase, its words joined by "_" or a space; None if there is none."""
        for join in PHRASE_JOINS:
            if self.holds(entry := join.join(words)):
                return entry
        return None


class RowTable(VectorTable):
    """A table of vectors in memory; `sha256` is that of their file, else that of the words and vectors."""

    def __init__(self, vectors: WordVectors, sha256: str | None = None) -> None:
        self.vectors = vectors
        self.dimensions = vectors.dimensions
        self.sha256 = sha256 or vectors.sha256()

    def holds(self, word: str) -> bool:
        return word in self.vectors or word.lower() in self.vectors

    def vectors_of(self, words: Sequence[str]) -> NDArray[np.float32]:
        rows = self.vectors.rows_of(word if word in self.vectors else word.lower() for word in words)
        if (rows < 0).any():
            raise KeyError(words[int(rows.argmin())])
        return np.asarray(self.vectors.vectors[rows], np.float32)


class RandomVectors(VectorTable):
    """A table that has every word and phrase: a vector from N(0, I), the same for the same seed and word.

    The numbers are those of numpy's legacy generator over Philox, whose stream numpy never changes, with the key
    BLAKE2b(seed, word), so they are the same in any process and on any machine.
    """

    def __init__(self, dimensions: int, *, seed: int = 0) -> None:
        self.dimensions = check_whole("dimensions", dimensions, 1, MAX_DIMENSIONS)
        self.seed = seed
        rule = {"drawn": "N(0, I)", "dimensions": self.dimensions, "seed": self.seed}
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
