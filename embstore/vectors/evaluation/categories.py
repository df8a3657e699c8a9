"""Categorisation: do clusters of word vectors match the classes of the words?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from embstore.errors import BenchmarkError
from embstore.vectors.evaluation.lexicon import Lexicon, Oov, Score
from embstore.vectors.evaluation.lines import read_lines, shown, wrong
from embstore.vectors.kmeans import purity, spherical_kmeans

_POS = re.compile(r"-[njv]$")  # BLESS writes alligator-n


@dataclass(frozen=True)
class Categories:
    """Words and the class of each."""

    name: str
    words: tuple[str, ...]
    classes: tuple[str, ...]

    def scores(self, lexicon: Lexicon, *, oov: Oov, seed: int) -> list[Score]:
        """The purity of as many clusters as the words scored have classes."""
        rows = lexicon.rows_of(self.words)
        known = rows >= 0
        scored = known if oov == "skip" else np.ones_like(known)
        value = None
        if scored.any():
            classes = np.unique(np.array(self.classes)[scored], return_inverse=True)[1]
            clusters = spherical_kmeans(lexicon.unit[rows[scored]], int(classes.max()) + 1, seed=seed)
            value = purity(clusters, classes)
        return [Score("categorisation", "purity", value, int(scored.sum()), float(known.mean()))]


def read_categories(path: Path, *, name: str) -> Categories:
    """Read `word class` a line, or BLESS (`word-n class relation relatum`, each word once); else BenchmarkError."""
    classes: dict[str, str] = {}
    lines = read_lines(path)
    separator = "\t" if lines and "\t" in lines[0][1] else None
    for number, line in lines:
        fields = [field.strip() for field in line.split(separator)]
        if len(fields) not in (2, 4) or not all(fields):
            raise wrong(path, number, f"{shown(line)}: give a word and its class (or the four fields of BLESS)")
        bless = len(fields) == 4
        word = _POS.sub("", fields[0]) if bless else fields[0]
        known = classes.setdefault(word, fields[1])
        if known != fields[1]:
            raise wrong(path, number, f"{word!r} is of the class {fields[1]!r} here and of {known!r} before: give one")
    if not classes:
        raise BenchmarkError(f"{path}: no word in it: give a word and its class a line")
    return Categories(name, tuple(classes), tuple(classes.values()))
