"""Similarity benchmarks: pairs of words that people rated."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from embstore.errors import BenchmarkError
from embstore.vectors.evaluation.lexicon import Lexicon, Oov, Score, covered
from embstore.vectors.evaluation.lines import read_lines, shown, wrong
from embstore.vectors.evaluation.ranks import spearman


@dataclass(frozen=True)
class SimilarityPairs:
    """Pairs of words and their ratings."""

    name: str
    pairs: tuple[tuple[str, str], ...]
    ratings: tuple[float, ...]

    def scores(self, lexicon: Lexicon, *, oov: Oov, seed: int = 0) -> list[Score]:
        """Spearman's rho of the cosines with the ratings."""
        rows = lexicon.pair_rows(self.pairs)
        known = covered(rows)
        scored = known if oov == "skip" else np.ones_like(known)
        left, right = lexicon.unit[rows[scored]].transpose(1, 0, 2)
        cosines = np.einsum("nd,nd->n", left, right, dtype=np.float64)
        # Rounding must not rank the pairs of a vector with itself, among them all of two unknown words.
        cosines[(rows[scored, 0] == rows[scored, 1]) & left.any(1)] = 1
        value = spearman(cosines, np.array(self.ratings)[scored])
        return [Score("similarity", "spearman", value, int(scored.sum()), float(known.mean()))]


def read_similarity(path: Path, *, name: str) -> SimilarityPairs:
    """Read `word1 word2 rating`, apart by tabs, commas or spaces; a first line without a number is a heading.

    Fields after the rating are left out. Raises BenchmarkError with the line.
    """
    pairs, ratings = [], []
    lines = read_lines(path)
    separator = separator_of(lines[0][1]) if lines else None
    for place, (number, line) in enumerate(lines):
        fields = [field.strip() for field in line.split(separator)]
        if len(fields) < 3 or not all(fields[:2]):
            raise wrong(path, number, f"{shown(line)}: give two words and their rating")
        rating = rating_of(fields[2])
        if rating is None:
            if place == 0:
                continue
            raise wrong(path, number, f"the rating {fields[2]!r} is not a number")
        pairs.append((fields[0], fields[1]))
        ratings.append(rating)
    if not pairs:
        raise BenchmarkError(f"{path}: no pair in it: give two words and their rating a line")
    return SimilarityPairs(name, tuple(pairs), tuple(ratings))


def separator_of(line: str) -> str | None:
    """What parts the fields of a file with such a line: tab, comma, or any white space (None)."""
    if "\t" in line:
        return "\t"
    return "," if line.count(",") >= 2 else None


def rating_of(field: str) -> float | None:
    """A finite number, else None."""
    try:
        value = float(field)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
