"""Benchmarks of similarity (pairs of words with human ratings) and of categorisation (words and their classes)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from embstore.corpus.lines import finite_number
from embstore.errors import CorpusError, quoted
from embstore_studies.evaluation.lexicon import Lexicon, Oov, Score, line_error, read_lines, spearman

_POS = re.compile(r"-[njv]$")  # BLESS writes alligator-n


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

    A first line without a number is a heading; fields after the rating are ignored. Raises CorpusError.
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
        raise CorpusError(f"{path}: no pair in it: give two words and their rating a line")
    return SimilarityPairs(name, tuple(pairs), tuple(ratings))


def separator_of(line: str) -> str | None:
    """Return the separator of fields in a file with this line: a tab, a comma, or None for any white space."""
    if "\t" in line:
        return "\t"
    return "," if line.count(",") >= 2 else None


@dataclass(frozen=True)
class Categories:
    """Words and the class of each."""

    name: str
    words: tuple[str, ...]
    classes: tuple[str, ...]

    def scores(self, lexicon: Lexicon, *, oov: Oov, seed: int) -> list[Score]:
        """Return the purity of a clustering into as many clusters as the scored words have classes."""
        rows = lexicon.rows_of(self.words)
        covered = rows >= 0
        scored = covered if oov == "skip" else np.ones_like(covered)
        value = None
        if scored.any():
            classes = np.unique(np.array(self.classes)[scored], return_inverse=True)[1]
            model = KMeans(int(classes.max()) + 1, n_init=10, random_state=seed)
            clusters = model.fit_predict(lexicon.unit[rows[scored]])
            value = purity(clusters, classes)
        return [Score("categorisation", "purity", value, int(scored.sum()), float(covered.mean()))]


def purity(clusters: NDArray[np.int64], classes: NDArray[np.int64]) -> float:
    r"""Return the share of items of their cluster's largest class, :math:`\frac{1}{n} \sum_k \max_c |k \cap c|`."""
    table = np.zeros((clusters.max() + 1, classes.max() + 1), np.int64)
    np.add.at(table, (clusters, classes), 1)
    return float(table.max(1).sum() / len(clusters))


def read_categories(path: Path, *, name: str) -> Categories:
    """Read lines of `word class`, or of BLESS (`word-n class relation relatum`), where each word counts once.

    Raises CorpusError with the line.
    """
    classes: dict[str, str] = {}
    lines = read_lines(path)
    separator = "\t" if lines and "\t" in lines[0][1] else None
    for number, line in lines:
        fields = [field.strip() for field in line.split(separator)]
        if len(fields) not in (2, 4) or not all(fields):
            raise line_error(path, number, f"{quoted(line)}: give a word and its class (or the four fields of BLESS)")
        word = _POS.sub("", fields[0]) if len(fields) == 4 else fields[0]
        known = classes.setdefault(word, fields[1])
        if known != fields[1]:
            message = f"{word!r} is of the class {fields[1]!r} here and of {known!r} before: give one"
            raise line_error(path, number, message)
    if not classes:
        raise CorpusError(f"{path}: no word in it: give a word and its class a line")
    return Categories(name, tuple(classes), tuple(classes.values()))
