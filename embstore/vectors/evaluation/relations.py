"""SemEval-2012 task 2: how well does a pair of words illustrate a relation?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embstore.errors import BenchmarkError, quoted
from embstore.vectors.evaluation.lexicon import (
    IntArray,
    Lexicon,
    Oov,
    Score,
    line_error,
    read_lines,
    spearman,
    unit_rows,
)

Pair = tuple[str, str]
PARADIGMS = "subcategories-paradigms.txt"
GOLD = re.compile(r"GoldRatings-(\d+[a-z])\.txt")
_PAIR = re.compile(r"[^\s,.:]+:[^\s,.:]+")  # the file separates pairs by commas, twice by full stops, once by a space
_RATED = re.compile(r'\s*(-?[\d.]+)\s+"([^":]+):([^":]+)"\s*')


@dataclass(frozen=True)
class MaxDiff:
    """A MaxDiff question: pairs, and those that most people chose as the least and the most illustrative."""

    choice: tuple[Pair, ...]
    least: frozenset[Pair]
    most: frozenset[Pair]


@dataclass(frozen=True)
class Relation:
    """A relation: its paradigm pairs, the rated pairs, and MaxDiff questions."""

    name: str
    paradigms: tuple[Pair, ...]
    pairs: tuple[Pair, ...]
    ratings: tuple[float, ...]
    questions: tuple[MaxDiff, ...] = ()


@dataclass(frozen=True)
class Relations:
    """All relations of the task."""

    name: str
    relations: tuple[Relation, ...]

    def scores(self, lexicon: Lexicon, *, oov: Oov, seed: int = 0) -> list[Score]:
        """Return Spearman's rho and the MaxDiff accuracy, averaged over the relations that have one, and of each."""
        rho, maxdiff = [], []
        for relation in self.relations:
            rho.append(_spearman_score(relation, lexicon, oov))
            if relation.questions:
                maxdiff.append(_maxdiff_score(relation, lexicon, oov))
        scores = [_mean_score(rho, [len(relation.pairs) for relation in self.relations])]
        if maxdiff:
            sizes = [len(relation.questions) for relation in self.relations if relation.questions]
            scores.append(_mean_score(maxdiff, sizes))
        return scores + rho + maxdiff


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
    prototype = unit_rows(_offsets(lexicon, paradigm_rows).mean(0, keepdims=True))[0].astype(np.float64)
    return unit_rows(_offsets(lexicon, rows)).astype(np.float64) @ prototype, covered


def _offsets(lexicon: Lexicon, rows: IntArray) -> NDArray[np.float32]:
    return lexicon.unit[rows[:, 1]] - lexicon.unit[rows[:, 0]]


def _spearman_score(relation: Relation, lexicon: Lexicon, oov: Oov) -> Score:
    cosines, covered = prototype_cosines(relation.paradigms, relation.pairs, lexicon, oov)
    scored = covered if oov == "skip" else np.ones_like(covered)
    value = spearman(cosines[scored], np.array(relation.ratings)[scored])
    return Score(f"relations/{relation.name}", "spearman", value, int(scored.sum()), float(covered.mean()))


def _maxdiff_score(relation: Relation, lexicon: Lexicon, oov: Oov) -> Score:
    pairs = list(dict.fromkeys(pair for question in relation.questions for pair in question.choice))
    cosines, covered = prototype_cosines(relation.paradigms, pairs, lexicon, oov)
    cosine_of = dict(zip(pairs, cosines.tolist(), strict=True))
    is_known = dict(zip(pairs, covered.tolist(), strict=True))
    whole = [question for question in relation.questions if all(is_known[pair] for pair in question.choice)]
    questions = whole if oov == "skip" else relation.questions
    value = maxdiff_accuracy(questions, cosine_of)
    return Score(f"relations/{relation.name}", "maxdiff", value, len(questions), len(whole) / len(relation.questions))


def maxdiff_accuracy(questions: Sequence[MaxDiff], cosine_of: dict[Pair, float]) -> float | None:
    """Return the share of correct guesses: the lowest pair of a question as least, the highest as most illustrative.

    Of equal pairs the first in the question is the guess; if people tie, each of their choices is correct.
    """
    correct = []
    for question in questions:
        if question.least:
            correct.append(min(question.choice, key=cosine_of.__getitem__) in question.least)
        if question.most:
            correct.append(max(question.choice, key=cosine_of.__getitem__) in question.most)
    return sum(correct) / len(correct) if correct else None


def _mean_score(scores: Sequence[Score], sizes: Sequence[int]) -> Score:
    values = [score.value for score in scores if score.value is not None]
    coverage = sum(score.coverage * size for score, size in zip(scores, sizes, strict=True)) / sum(sizes)
    count = sum(score.count for score in scores)
    return Score("relations", scores[0].metric, sum(values) / len(values) if values else None, count, coverage)


def read_relations(folders: Sequence[Path], *, name: str) -> Relations:
    """Read the test relations of the task from the folders of its packages.

    The gold ratings (`Testing/GoldRatings-*.txt`) and `subcategories-paradigms.txt` are required, the answers of people
    (`Testing/Phase2Answers/*`) serve MaxDiff. Raises BenchmarkError, with the line if there is one.
    """
    files = sorted(path for folder in folders for path in folder.rglob("*.txt"))
    paradigm_file = next((path for path in files if path.name == PARADIGMS), None)
    gold = [path for path in files if GOLD.fullmatch(path.name) and path.parent.name == "Testing"]
    if paradigm_file is None or not gold:
        raise BenchmarkError(f"{folders[0]}: not SemEval-2012 task 2: {PARADIGMS} and Testing/GoldRatings-* are needed")
    paradigms = {}
    for number, line in read_lines(paradigm_file):
        fields = [field.strip() for field in line.split(",")]
        pairs = tuple(map(_pair, _PAIR.findall(",".join(fields[4:]))))
        if len(fields) < 5 or not pairs:
            message = f"{quoted(line)}: give number, letter, class, name and pairs such as flower:tulip"
            raise line_error(paradigm_file, number, message)
        paradigms[fields[0] + fields[1]] = pairs
    answers = {path.name: path for path in files if path.match("Testing/Phase2Answers/Phase2Answers-*.txt")}
    relations = []
    for path in gold:
        identity = path.stem.removeprefix("GoldRatings-")
        if identity not in paradigms:
            raise BenchmarkError(f"{paradigm_file}: no paradigm pair of the relation {identity} of {path.name}")
        pairs, ratings = read_ratings(path)
        answer = answers.get(f"Phase2Answers-{identity}.txt")
        questions = () if answer is None else read_maxdiff(answer)
        relations.append(Relation(identity, paradigms[identity], pairs, ratings, questions))
    return Relations(name, tuple(sorted(relations, key=lambda relation: (int(relation.name[:-1]), relation.name))))


def read_ratings(path: Path) -> tuple[tuple[Pair, ...], tuple[float, ...]]:
    """Read pairs and their ratings, one `50.0 "weapon:spear"` a line. Raises BenchmarkError with the line."""
    pairs, ratings = [], []
    for number, line in read_lines(path):
        match = _RATED.fullmatch(line)
        if match is None:
            raise line_error(path, number, f'{quoted(line)}: give a rating and a pair such as 50.0 "weapon:spear"')
        pairs.append((match[2], match[3]))
        ratings.append(float(match[1]))
    if not pairs:
        raise BenchmarkError(f"{path}: no rated pair in it")
    return tuple(pairs), tuple(ratings)


def read_maxdiff(path: Path) -> tuple[MaxDiff, ...]:
    """Read people's answers to MaxDiff questions; an answer may omit one of the two choices. Raises BenchmarkError."""
    answers: dict[tuple[Pair, ...], list[tuple[str, str]]] = {}
    for number, line in read_lines(path):
        fields = [field.strip().strip('"') for field in line.split("\t")]
        if len(fields) < 6 or any(field.count(":") != 1 for field in fields[:4]):
            message = f"{quoted(line)}: give four pairs, the least and the most illustrative of them"
            raise line_error(path, number, message)
        if any(field and field not in fields[:4] for field in fields[4:6]):
            message = f"{quoted(line)}: the least and the most illustrative must be two of the four pairs"
            raise line_error(path, number, message)
        answers.setdefault(tuple(map(_pair, fields[:4])), []).append((fields[4], fields[5]))
    return tuple(
        MaxDiff(choice, *(_most_chosen(side) for side in zip(*given, strict=True))) for choice, given in answers.items()
    )


def _most_chosen(choices: Sequence[str]) -> frozenset[Pair]:
    given = [pair for pair in choices if pair]
    most = max(map(given.count, given), default=0)
    return frozenset(_pair(pair) for pair in set(given) if given.count(pair) == most)


def _pair(text: str) -> Pair:
    left, _, right = text.partition(":")
    return left, right
