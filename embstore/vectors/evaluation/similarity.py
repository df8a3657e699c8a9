"""Similarity benchmarks: pairs of words with human ratings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from embstore.corpus.lines import finite_number
from embstore.errors import BenchmarkError, quoted
from embstore.vectors.evaluation.lexicon import Lexicon, Oov, Score, line_error, read_lines, spearman


@dataclass(frozen=True)
class SimilarityPairs:
    """Pairs of words and their ratings."""

    name: str
    pairs: tuple[tuple[str, str], ...]
    ratings: tuple[float, ...]

    def scores(self, lexicon: Lexicon, *, oov: Oov, seed: int = 0) -> list[Score]:
        """Return Spearman's rho of the cosines with the ratings."""
        rows = lexicon.tuple_rows(self.pairs)
        covered = np.all(rows >= 0, axis=1)
        scored = covered if oov == "skip" else np.ones_like(covered)
        left, right = lexicon.unit[rows[scored]].transpose(1, 0, 2)
        cosines = np.einsum("nd,nd->n", left, right, dtype=np.float64)
        # Rounding must not rank the pairs of a vector with itself, as all pairs of two unknown words are.
        cosines[(rows[scored, 0] == rows[scored, 1]) & left.any(1)] = 1
        value = spearman(cosines, np.array(self.ratings)[scored])
        return [Score("similarity", "spearman", value, int(scored.sum()), float(covered.mean()))]


def read_similarity(path: Path, *, name: str) -> SimilarityPairs:
    """Read lines of `word1 word2 rating`, separated by tabs, commas or spaces.

    A first line without a number is a heading; fields after the rating are ignored. Raises BenchmarkError.
    """
    pairs, ratings = [], []
    lines = read_lines(path)
    separator = separator_of(lines[0][1]) if lines else None
    for index, (number, line) in enumerate(lines):
        fields = [field.strip() for field in line.split(separator)]
        if len(fields) < 3 or not all(fields[:2]):
            raise line_error(path, number, f"{quoted(line)}: give two words and their rating")
        rating = finite_number(fields[2])
        if rating is None:
            if index == 0:
                continue
            raise line_error(path, number, f"the rating {fields[2]!r} is not a number")
        pairs.append((fields[0], fields[1]))
        ratings.append(rating)
    if not pairs:
        raise BenchmarkError(f"{path}: no pair in it: give two words and their rating a line")
    return SimilarityPairs(name, tuple(pairs), tuple(ratings))


def separator_of(line: str) -> str | None:
    """Return the separator of fields in a file with this line: a tab, a comma, or None for any white space."""
    if "\t" in line:
        return "\t"
    return "," if line.count(",") >= 2 else None
