"""What all word benchmarks share: their files, the lookup of words, scores and rank correlation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from embstore.arguments import checked
from embstore.corpus.lines import read_blocks
from embstore.errors import CorpusError, InvalidValueError
from embstore.store.storage.files import regular_file
from embstore.vectors.linalg import unit_rows
from embstore.vectors.word_vectors import WordVectors

Oov = Literal["skip", "mean"]
BLOCK_ROWS = 2**14
MAX_NBYTES = 2**26  # of a benchmark, decompressed
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Score:
    """One score of a benchmark.

    `value`: None if it is undefined. `count`: the number of items scored. `coverage`: the share of all items of which
    every word has a vector.
    """

    task: str
    metric: str
    value: float | None
    count: int
    coverage: float


class Benchmark(Protocol):
    """A word benchmark in memory."""

    @property
    def name(self) -> str: ...

    def scores(self, lexicon: Lexicon, *, oov: Oov, seed: int) -> list[Score]:
        """Score word vectors on the benchmark; the first score is the main one."""
        ...


@dataclass(frozen=True, eq=False)
class Lexicon:
    """Unit vectors that benchmarks look up by word.

    A word is looked up as written, then with "_" for its spaces and, with `lowercase`, in both spellings in lower case.
    """

    vectors: WordVectors
    lowercase: bool = True

    @cached_property
    def unit(self) -> NDArray[np.float32]:
        """Every vector at length 1 (zeros stay zeros) and, in row -1, their mean's: float32 [words + 1, dimensions]."""
        vectors = self.vectors.vectors
        unit = np.empty((len(vectors) + 1, vectors.shape[1]), np.float32)
        for start in range(0, len(vectors), BLOCK_ROWS):
            block = vectors[start : start + BLOCK_ROWS]
            unit[start : start + len(block)] = unit_rows(block)
        unit[-1:] = unit_rows(vectors.mean(0, dtype=np.float64, keepdims=True))
        return unit

    def __len__(self) -> int:
        return len(self.vectors)

    def rows_of(self, words: Iterable[str]) -> IntArray:
        """Return the row of each word, -1 for words without a vector."""
        return np.fromiter((self._row_of(word) for word in words), np.int64)

    def tuple_rows(self, tuples: Iterable[tuple[str, ...]]) -> IntArray:
        """Return the rows of tuples of equal length; int64 [tuples, words]."""
        listed = list(tuples)
        return self.rows_of(word for words in listed for word in words).reshape(len(listed), -1)

    def _row_of(self, word: str) -> int:
        spellings = [word, word.replace(" ", "_")]
        if self.lowercase:
            spellings += [spelling.lower() for spelling in spellings]
        for spelling in spellings:
            if (row := self.vectors.row_of(spelling)) is not None:
                return row
        return -1


@checked
def on_shared_vocabulary(systems: Mapping[str, WordVectors], *, lowercase: bool = True) -> dict[str, WordVectors]:
    """Restrict each system to the words that all have, in the order of the first, for a fair comparison.

    With `lowercase` words are the same if their lower-case forms are: each system gives the vector of the lower-case
    spelling, else of the first spelling that it has. Raises InvalidValueError if no word is shared.
    """
    if not systems:
        raise InvalidValueError("no system is given: give one or more by name")
    rows_of = {name: _rows_by_word(vectors, lowercase) for name, vectors in systems.items()}
    first, *others = rows_of.values()
    words = tuple(word for word in first if all(word in other for other in others))
    if not words:
        raise InvalidValueError(f"no word is in all of {', '.join(systems)}: evaluate them one by one")
    return {
        name: WordVectors(words, vectors.vectors[[rows_of[name][word] for word in words]])
        for name, vectors in systems.items()
    }


def _rows_by_word(vectors: WordVectors, lowercase: bool) -> dict[str, int]:
    rows: dict[str, int] = {}
    for row, word in enumerate(vectors.words):
        key = word.lower() if lowercase else word
        if key not in rows or word == key:
            rows[key] = row
    return rows


def spearman(left: ArrayLike, right: ArrayLike) -> float | None:
    r"""Return Spearman's rho of two lists of equal length, Pearson's correlation of their ranks.

    .. math:: \rho = \frac{\sum_i (r_i - \bar r)(s_i - \bar s)}{\sqrt{\sum_i (r_i - \bar r)^2 \sum_i (s_i - \bar s)^2}}

    None if one side has fewer than two distinct values.
    """
    ranks = np.stack([pl.Series(np.asarray(side, np.float64)).rank("average").to_numpy() for side in (left, right)])
    if ranks.shape[1] < 2 or not np.ptp(ranks, axis=1).all():
        return None
    return float(np.corrcoef(ranks)[0, 1])


def read_lines(path: Path) -> list[tuple[int, str]]:
    """Return the numbered lines of a text file that are neither blank nor comments ("#" alone or before a space).

    Raises CorpusError if the file cannot be read or is not UTF-8.
    """
    try:
        content = b""
        for block in read_blocks(regular_file(path)):
            content += block
            if len(content) > MAX_NBYTES:
                raise CorpusError(f"{path}: more than {MAX_NBYTES:,} bytes, too many for a benchmark")
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        number = error.object.count(b"\n", 0, error.start) + 1
        raise line_error(path, number, f"byte 0x{error.object[error.start]:02x} is not UTF-8") from None
    except CorpusError as error:
        raise CorpusError(str(error)) from None
    lines = ((number, line.rstrip("\r")) for number, line in enumerate(text.split("\n"), 1))
    return [(number, line) for number, line in lines if line.strip() and not f"{line} ".startswith("# ")]


def line_error(path: Path, number: int, message: str) -> CorpusError:
    """Return the error to raise for a line of a file."""
    return CorpusError(f"{path}:{number}: {message}")
