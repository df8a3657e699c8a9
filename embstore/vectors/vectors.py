"""A table of words, one vector each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidValueError

CHECKED_ROWS = 2**14


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Words, each once, and their vectors [n, dimensions] in the same order, float32 and finite.

    Raises InvalidValueError for a word that stands twice, is empty or not text, and for vectors of another shape
    or not finite.
    """

    words: tuple[str, ...]
    vectors: NDArray[np.float32]

    def __post_init__(self) -> None:
        given = np.asarray(self.vectors)
        if given.dtype.kind not in "fiu" or given.ndim != 2 or not given.size:
            raise InvalidValueError(
                f"word vectors of shape {given.shape} and dtype {given.dtype}: give numbers [words, dimensions]"
            )
        with np.errstate(over="ignore"):  # a number beyond float32 becomes infinite, which is refused below
            object.__setattr__(self, "vectors", np.ascontiguousarray(given, np.float32))
        object.__setattr__(self, "words", tuple(self.words))
        if len(self.words) != len(self.vectors):
            raise InvalidValueError(f"{len(self.words)} words and {len(self.vectors)} vectors: give one vector a word")
        if (row := first_not_finite(self.vectors)) is not None:
            raise InvalidValueError(f"the vector of {self.words[row]!r} (row {row}) has NaN or infinity in it")
        for row, word in enumerate(self.words):
            if not isinstance(word, str) or not word:
                raise InvalidValueError(f"word {row} is {word!r}: a word is text that is not empty")
        if (twice := first_repeated(self.words)) is not None:
            raise InvalidValueError(f"the word {self.words[twice[1]]!r} stands twice, at {twice[0]} and at {twice[1]}")

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._places

    @property
    def dimensions(self) -> int:
        """How many numbers a vector has."""
        return int(self.vectors.shape[1])

    def place_of(self, word: str) -> int | None:
        """The row of a word as it is spelled, None where it has none."""
        return self._places.get(word)

    def rows_of(self, words: Iterable[str]) -> NDArray[np.int64]:
        """The row of each word, -1 where it has none; int64 [words]."""
        places = self._places
        return np.fromiter((places.get(word, -1) for word in words), np.int64)

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> Self:
        """The words of these rows, in this order; each row once."""
        chosen = np.asarray(rows, np.int64)
        return type(self)(tuple(self.words[row] for row in chosen.tolist()), self.vectors[chosen])

    def sha256(self) -> str:
        """Hash words and vectors."""
        digest = hashlib.sha256("\n".join(self.words).encode("utf-8", "surrogatepass"))
        digest.update(self.vectors.data)
        return digest.hexdigest()

    @cached_property
    def _places(self) -> dict[str, int]:
        return {word: row for row, word in enumerate(self.words)}


def first_not_finite(vectors: NDArray[np.float32]) -> int | None:
    """The first row with NaN or infinity in it."""
    for start in range(0, len(vectors), CHECKED_ROWS):
        finite = np.isfinite(vectors[start : start + CHECKED_ROWS]).all(1)
        if not finite.all():
            return start + int(finite.argmin())
    return None


def first_repeated(words: Sequence[str]) -> tuple[int, int] | None:
    """The first place whose word stood before, after the place where it stood."""
    if len(set(words)) == len(words):
        return None
    seen: dict[str, int] = {}
    for place, word in enumerate(words):
        if (before := seen.setdefault(word, place)) != place:
            return before, place
    return None
