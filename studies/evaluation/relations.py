"""SemEval-2012 task 2: how well does a pair of words illustrate a relation?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embstore.errors import CorpusError, quoted
from embstore.vectors.linalg import unit_rows
from embstore_studies.evaluation.lexicon import Lexicon, Oov, Score, line_error, read_lines, spearman

Pair = tuple[str, str]
PARADIGMS = "subcategories-paradigms.txt"
GOLD = re.compile(r"GoldRatings-(\d+[a-z])\.txt")
_PAIR = re.compile(
    r"([^\s,.:]+):([^\s,.:]+)"
)  # the file separates pairs by commas, twice by full stops, once by a space
_RATED = re.compile(r'\s*(-?[\d.]+)\s+"([^":]+):([^":]+)"\s*')


@dataclass(frozen=True)
class Relation:
    """A relation: its paradigm pairs, and the rated pairs."""

    name: str
    paradigms: tuple[Pair, ...]
    pairs: tuple[Pair, ...]
    ratings: tuple[float, ...]


@dataclass(frozen=True)
class Relations:
    """All relations of the task."""

    name: str
    relations: tuple[Relation, ...]

    def scores(self, lexicon: Lexicon, *, oov: Oov, seed: int = 0) -> list[Score]:
        """Return Spearman's rho, averaged over the relations that have one, and of each relation."""
        scores = []
        for relation in self.relations:
            cosines, covered = prototype_cosines(relation.paradigms, relation.pairs, lexicon, oov)
            scored = covered if oov == "skip" else np.ones_like(covered)
            value = spearman(cosines[scored], np.array(relation.ratings)[scored])
            task = f"relations/{relation.name}"
            scores.append(Score(task, "spearman", value, int(scored.sum()), float(covered.mean())))
        values = [score.value for score in scores if score.value is not None]
        mean = sum(values) / len(values) if values else None
        sizes = [len(relation.pairs) for relation in self.relations]
        coverage = float(np.average([score.coverage for score in scores], weights=sizes))
        return [Score("relations", "spearman", mean, sum(score.count for score in scores), coverage), *scores]


def prototype_cosines(
    paradigms: Sequence[Pair], pairs: Sequence[Pair], lexicon: Lexicon, oov: Oov
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    r"""Return how similar pairs are to the paradigm pairs P of a relation, and which pairs are covered.

    .. math:: \cos\Bigl(\frac{1}{|P|} \sum_{(a, b) \in P} (u_b - u_a),\; u_d - u_c\Bigr)

    with unit vectors u. With oov="skip" paradigms with an unknown word are left out. If no paradigm is known, no pair
    is covered.
    """
    paradigm_rows, rows = lexicon.tuple_rows(paradigms), lexicon.tuple_rows(pairs)
    known = np.all(paradigm_rows >= 0, axis=1)
    covered = np.all(rows >= 0, axis=1) if known.any() else np.zeros(len(rows), np.bool_)
    if oov == "skip":
        paradigm_rows = paradigm_rows[known]
    if not len(paradigm_rows):
        return np.zeros(len(rows)), covered
    offsets, paradigm_offsets = (lexicon.unit[pair[:, 1]] - lexicon.unit[pair[:, 0]] for pair in (rows, paradigm_rows))
    prototype = unit_rows(paradigm_offsets.mean(0)).astype(np.float64)
    return unit_rows(offsets).astype(np.float64) @ prototype, covered


def read_relations(folders: Sequence[Path], *, name: str) -> Relations:
    """Read the test relations of the task from the folders of its packages.

    The gold ratings (`Testing/GoldRatings-*.txt`) and `subcategories-paradigms.txt` are required. Raises
    CorpusError, with the line if there is one.
    """
    files = sorted(path for folder in folders for path in folder.rglob("*.txt"))
    paradigm_file = next((path for path in files if path.name == PARADIGMS), None)
    gold = [path for path in files if GOLD.fullmatch(path.name) and path.parent.name == "Testing"]
    if paradigm_file is None or not gold:
        raise CorpusError(f"{folders[0]}: not SemEval-2012 task 2: {PARADIGMS} and Testing/GoldRatings-* are needed")
    paradigms = {}
    for number, line in read_lines(paradigm_file):
        fields = [field.strip() for field in line.split(",")]
        pairs = tuple((left, right) for left, right in _PAIR.findall(",".join(fields[4:])))
        if len(fields) < 5 or not pairs:
            message = f"{quoted(line)}: give number, letter, class, name and pairs such as flower:tulip"
            raise line_error(paradigm_file, number, message)
        paradigms[fields[0] + fields[1]] = pairs
    relations = []
    for path in gold:
        identity = path.stem.removeprefix("GoldRatings-")
        if identity not in paradigms:
            raise CorpusError(f"{paradigm_file}: no paradigm pair of the relation {identity} of {path.name}")
        relations.append(Relation(identity, paradigms[identity], *read_ratings(path)))
    return Relations(name, tuple(sorted(relations, key=lambda relation: (int(relation.name[:-1]), relation.name))))


def read_ratings(path: Path) -> tuple[tuple[Pair, ...], tuple[float, ...]]:
    """Read pairs and their ratings, one `50.0 "weapon:spear"` a line. Raises CorpusError with the line."""
    pairs, ratings = [], []
    for number, line in read_lines(path):
        match = _RATED.fullmatch(line)
        if match is None:
            raise line_error(path, number, f'{quoted(line)}: give a rating and a pair such as 50.0 "weapon:spear"')
        pairs.append((match[2], match[3]))
        ratings.append(float(match[1]))
    if not pairs:
        raise CorpusError(f"{path}: no rated pair in it")
    return tuple(pairs), tuple(ratings)
