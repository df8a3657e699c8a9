"""SemEval-2012 task 2: how well does a pair of words stand for a relation?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embstore.errors import BenchmarkError
from embstore.vectors.evaluation.lexicon import Lexicon, Oov, Score, covered, unit_rows
from embstore.vectors.evaluation.lines import read_lines, shown, wrong
from embstore.vectors.evaluation.ranks import spearman

Pair = tuple[str, str]
Choice = tuple[Pair, ...]
PARADIGMS = "subcategories-paradigms.txt"
GOLD = re.compile(r"GoldRatings-(\d+[a-z])\.txt")
_PAIR = re.compile(r"[^\s,.:]+:[^\s,.:]+")  # the file parts pairs by commas, twice by full stops, once by a space
_RATED = re.compile(r'\s*(-?[\d.]+)\s+"([^":]+):([^":]+)"\s*')


@dataclass(frozen=True)
class MaxDiff:
    """A choice of pairs, and those that most people found the least and the most illustrative of a relation."""

    choice: Choice
    least: frozenset[Pair]
    most: frozenset[Pair]


@dataclass(frozen=True)
class Relation:
    """A relation: its paradigm pairs, the rated pairs, and questions with the answers of people."""

    name: str
    paradigms: tuple[Pair, ...]
    pairs: tuple[Pair, ...]
    ratings: tuple[float, ...]
    questions: tuple[MaxDiff, ...] = ()


@dataclass(frozen=True)
class Relations:
    """The relations of the task."""

    name: str
    relations: tuple[Relation, ...]

    def scores(self, lexicon: Lexicon, *, oov: Oov, seed: int = 0) -> list[Score]:
        """Spearman's rho and the MaxDiff accuracy, averaged over the relations that have one, and of each."""
        rho, maxdiff = [], []
        for relation in self.relations:
            rho.append(_spearman(relation, lexicon, oov))
            if relation.questions:
                maxdiff.append(_maxdiff(relation, lexicon, oov))
        sizes = [len(relation.pairs) for relation in self.relations]
        scores = [_mean(rho, sizes)]
        if maxdiff:
            scores.append(_mean(maxdiff, [len(it.questions) for it in self.relations if it.questions]))
        return scores + rho + maxdiff


def prototype_cosines(
    paradigms: Sequence[Pair], pairs: Sequence[Pair], lexicon: Lexicon, oov: Oov
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    r"""How much pairs resemble paradigm pairs P of a relation, and which of them have all words.

    .. math:: \cos\Bigl(\frac{1}{|P|} \sum_{(a, b) \in P} (u_b - u_a),\; u_d - u_c\Bigr)

    with unit vectors u. Paradigms with a word that is not there are left out (oov="skip"); without any left no pair
    counts as having its words.
    """
    paradigm_rows, rows = lexicon.pair_rows(paradigms), lexicon.pair_rows(pairs)
    known = covered(rows)
    if oov == "skip":
        paradigm_rows = paradigm_rows[covered(paradigm_rows)]
    if not covered(lexicon.pair_rows(paradigms)).any():
        known = np.zeros_like(known)
    if not len(paradigm_rows):
        return np.zeros(len(rows)), known
    prototype = _offsets(lexicon, paradigm_rows).mean(0, keepdims=True)
    cosines = unit_rows(_offsets(lexicon, rows)).astype(np.float64) @ unit_rows(prototype)[0].astype(np.float64)
    return cosines, known


def _offsets(lexicon: Lexicon, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    return lexicon.unit[rows[:, 1]] - lexicon.unit[rows[:, 0]]


def _spearman(relation: Relation, lexicon: Lexicon, oov: Oov) -> Score:
    cosines, known = prototype_cosines(relation.paradigms, relation.pairs, lexicon, oov)
    scored = known if oov == "skip" else np.ones_like(known)
    value = spearman(cosines[scored], np.array(relation.ratings)[scored])
    return Score(f"relations/{relation.name}", "spearman", value, int(scored.sum()), float(known.mean()))


def _maxdiff(relation: Relation, lexicon: Lexicon, oov: Oov) -> Score:
    asked = list(dict.fromkeys(pair for question in relation.questions for pair in question.choice))
    cosines, known = prototype_cosines(relation.paradigms, asked, lexicon, oov)
    rated = dict(zip(asked, cosines.tolist(), strict=True))
    has = dict(zip(asked, known.tolist(), strict=True))
    whole = [question for question in relation.questions if all(has[pair] for pair in question.choice)]
    coverage = len(whole) / len(relation.questions)
    questions = whole if oov == "skip" else relation.questions
    value = maxdiff_accuracy(questions, rated)
    return Score(f"relations/{relation.name}", "maxdiff", value, len(questions), coverage)


def maxdiff_accuracy(questions: Sequence[MaxDiff], rated: dict[Pair, float]) -> float | None:
    """The share of guesses that most people made too: the lowest rated pair as least, the highest as most illustrative.

    Of pairs rated the same the first of the question is the guess; where people tie, each of their choices is right.
    """
    right = []
    for question in questions:
        if question.least:
            right.append(min(question.choice, key=rated.__getitem__) in question.least)
        if question.most:
            right.append(max(question.choice, key=rated.__getitem__) in question.most)
    return sum(right) / len(right) if right else None


def _mean(scores: Sequence[Score], sizes: Sequence[int]) -> Score:
    values = [score.value for score in scores if score.value is not None]
    coverage = sum(score.coverage * size for score, size in zip(scores, sizes, strict=True)) / sum(sizes)
    count = sum(score.count for score in scores)
    return Score("relations", scores[0].metric, sum(values) / len(values) if values else None, count, coverage)


def read_relations(folders: Sequence[Path], *, name: str) -> Relations:
    """Read the test relations of the task from the folders of its packages.

    The gold ratings (`Testing/GoldRatings-*.txt`) and `subcategories-paradigms.txt` are needed, the answers of people
    (`Testing/Phase2Answers/*`) serve MaxDiff. Raises BenchmarkError, with the line where there is one.
    """
    files = sorted(path for folder in folders for path in folder.rglob("*.txt"))
    paradigm_file = next((path for path in files if path.name == PARADIGMS), None)
    gold = [path for path in files if GOLD.fullmatch(path.name) and path.parent.name == "Testing"]
    if paradigm_file is None or not gold:
        raise BenchmarkError(f"{folders[0]}: not SemEval-2012 task 2: {PARADIGMS} and Testing/GoldRatings-* are needed")
    paradigms = _read_paradigms(paradigm_file)
    answers = {path.name: path for path in files if path.match("Testing/Phase2Answers/Phase2Answers-*.txt")}
    relations = []
    for path in gold:
        found = GOLD.fullmatch(path.name)
        identity = found[1] if found else ""
        if identity not in paradigms:
            raise BenchmarkError(f"{paradigm_file}: no paradigm pair of the relation {identity} of {path.name}")
        pairs, ratings = read_ratings(path)
        answer = answers.get(f"Phase2Answers-{identity}.txt")
        questions = () if answer is None else read_maxdiff(answer)
        relations.append(Relation(identity, paradigms[identity], pairs, ratings, questions))
    return Relations(name, tuple(sorted(relations, key=lambda it: (int(it.name[:-1]), it.name))))


def _read_paradigms(path: Path) -> dict[str, tuple[Pair, ...]]:
    paradigms = {}
    for number, line in read_lines(path):
        fields = [field.strip() for field in line.split(",")]
        pairs = tuple(_pair(found) for found in _PAIR.findall(",".join(fields[4:])))
        if len(fields) < 5 or not pairs:
            raise wrong(path, number, f"{shown(line)}: give number, letter, class, name and pairs such as flower:tulip")
        paradigms[fields[0] + fields[1]] = pairs
    return paradigms


def read_ratings(path: Path) -> tuple[tuple[Pair, ...], tuple[float, ...]]:
    """Read pairs and their ratings, one `50.0 "weapon:spear"` a line; raises BenchmarkError with the line."""
    pairs, ratings = [], []
    for number, line in read_lines(path):
        found = _RATED.fullmatch(line)
        if found is None:
            raise wrong(path, number, f'{shown(line)}: give a rating and a pair such as 50.0 "weapon:spear"')
        pairs.append((found[2], found[3]))
        ratings.append(float(found[1]))
    if not pairs:
        raise BenchmarkError(f"{path}: no rated pair in it")
    return tuple(pairs), tuple(ratings)


def read_maxdiff(path: Path) -> tuple[MaxDiff, ...]:
    """Read the answers of people to MaxDiff questions; an answer may leave out one of the two choices."""
    answers: dict[Choice, list[tuple[str, str]]] = {}
    for number, line in read_lines(path):
        fields = [field.strip().strip('"') for field in line.split("\t")]
        if len(fields) < 6 or any(field.count(":") != 1 for field in fields[:4]):
            raise wrong(path, number, f"{shown(line)}: give four pairs, the least and the most illustrative of them")
        if any(field and field not in fields[:4] for field in fields[4:6]):
            raise wrong(path, number, f"{shown(line)}: the least and the most illustrative are two of the four pairs")
        answers.setdefault(tuple(map(_pair, fields[:4])), []).append((fields[4], fields[5]))
    return tuple(
        MaxDiff(choice, *(frozenset(_most_chosen(side)) for side in zip(*given, strict=True)))
        for choice, given in answers.items()
    )


def _most_chosen(chosen: Sequence[str]) -> Iterator[Pair]:
    given = [pair for pair in chosen if pair]
    most = max(map(given.count, given), default=0)
    yield from (_pair(pair) for pair in set(given) if given.count(pair) == most)


def _pair(text: str) -> Pair:
    left, _, right = text.partition(":")
    return left, right
