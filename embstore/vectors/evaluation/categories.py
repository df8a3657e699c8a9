"""Categorisation benchmarks: do clusters of word vectors match the classes of the words?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embstore.errors import BenchmarkError, quoted
from embstore.vectors.evaluation.lexicon import Lexicon, Oov, Score, line_error, read_lines
from embstore.vectors.kmeans import spherical_kmeans

_POS = re.compile(r"-[njv]$")  # BLESS writes alligator-n


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
            clusters = spherical_kmeans(lexicon.unit[rows[scored]], int(classes.max()) + 1, seed=seed)
            value = purity(clusters, classes)
        return [Score("categorisation", "purity", value, int(scored.sum()), float(covered.mean()))]


def purity(clusters: NDArray[np.int64], classes: NDArray[np.int64]) -> float:
    r"""Return the share of items of their cluster's largest class, :math:`\frac{1}{n} \sum_k \max_c |k \cap c|`."""
    table = np.zeros((clusters.max() + 1, classes.max() + 1), np.int64)
    np.add.at(table, (clusters, classes), 1)
    return float(table.max(1).sum() / len(clusters))


def read_categories(path: Path, *, name: str) -> Categories:
    """Read lines of `word class`, or of BLESS (`word-n class relation relatum`), where each word counts once.

    Raises BenchmarkError with the line.
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
        raise BenchmarkError(f"{path}: no word in it: give a word and its class a line")
    return Categories(name, tuple(classes), tuple(classes.values()))
