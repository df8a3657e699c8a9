"""Every score equals its oracle, an explicit loop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embstore.vectors import WordVectors
from embstore.vectors.linalg import unit_rows
from embstore_studies.evaluation import analogies
from embstore_studies.evaluation.analogies import Analogies
from embstore_studies.evaluation.lexicon import Lexicon, Score, spearman
from embstore_studies.evaluation.relations import Relation, Relations, read_ratings
from embstore_studies.evaluation.similarity import Categories, SimilarityPairs, purity
from tests.studies.evaluation import oracle


def by_task(scores: list[Score]) -> dict[tuple[str, str], Score]:
    return {(score.task, score.metric): score for score in scores}


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=2, max_size=12))
def test_spearman(pairs: list[tuple[int, int]]) -> None:
    left, right = (list(map(float, side)) for side in zip(*pairs, strict=True))
    if len(set(left)) < 2 or len(set(right)) < 2:
        assert spearman(left, right) is None
    else:
        assert spearman(left, right) == pytest.approx(oracle.spearman(left, right), abs=1e-12)


@pytest.mark.parametrize(("values", "expected"), [(([], []), None), (([1], [2]), None), (([1, 2], [4, 3]), -1.0)])
def test_spearman_of_few(values: tuple[list[float], list[float]], expected: float | None) -> None:
    assert spearman(*values) == pytest.approx(expected)


@pytest.mark.parametrize("oov", ["skip", "mean"])
def test_similarity(oov: str) -> None:
    system = oracle.vectors(20)
    names = [f"w{number}" for number in range(25)]  # the last five are not there
    random = np.random.default_rng(1)
    pairs = tuple(tuple(random.choice(names, 2, replace=False)) for _ in range(60))
    ratings = tuple(random.integers(0, 10, 60).astype(float).tolist())
    [score] = SimilarityPairs("s", pairs, ratings).scores(Lexicon(system), oov=oov)
    known = oracle.table(system)
    kept = [place for place, pair in enumerate(pairs) if oov == "mean" or all(word in known for word in pair)]
    cosines = [oracle.cosine(*(known.get(word, oracle.mean(system)) for word in pairs[place])) for place in kept]
    assert score.value == pytest.approx(oracle.spearman(cosines, [ratings[place] for place in kept]), abs=1e-9)
    covered = sum(all(word in known for word in pair) for pair in pairs)
    assert 0 < covered < 60
    assert (score.count, score.coverage) == (len(kept), covered / 60)


def test_pairs_of_a_vector_with_itself_are_ties() -> None:
    lexicon = Lexicon(oracle.vectors(40, dimensions=50))
    pairs = (*((f"w{place}", f"w{place}") for place in range(40)), ("x", "y"), ("z", "x"), ("w0", "w1"))
    [score] = SimilarityPairs("s", pairs, (*(1.0 for _ in range(42)), 0.0)).scores(lexicon, oov="mean")
    assert score.value == pytest.approx(1)


@pytest.mark.parametrize("oov", ["skip", "mean"])
@pytest.mark.parametrize("block", [1, 50, 2**22])
@pytest.mark.quick(2)
def test_analogies(oov: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analogies, "BLOCK_NUMBERS", block)
    system = oracle.vectors(30)
    random = np.random.default_rng(2)
    names = [f"w{number}" for number in range(33)]
    questions = [tuple(random.choice(names, 4, replace=False).tolist()) for _ in range(60)]
    for place in range(0, 60, 2):  # half of them have the answer of a metric, so that some are right
        a, b, c, _ = questions[place]
        questions[place] = (a, b, c, oracle.answer(system, a, b, c, multiply=place % 4 == 0))
    sections = (("capitals", 0, 20), ("gram1", 20, 45), ("gram2", 45, 60))
    found = by_task(Analogies("a", tuple(questions), sections).scores(Lexicon(system), oov=oov))
    parts = {
        "analogy": range(60),
        "analogy/syntactic": range(20, 60),
        "analogy/semantic": range(20),
        **{f"analogy/{title}": range(start, stop) for title, start, stop in sections},
    }
    assert {task for task, _ in found} == set(parts)
    for (task, metric), score in found.items():
        known = [place for place in parts[task] if all(word in system for word in questions[place])]
        scored = known if oov == "skip" else list(parts[task])
        right = [
            oracle.answer(system, *questions[place][:3], multiply=metric == "3CosMul") == questions[place][3]
            for place in scored
        ]
        assert 0 < sum(right) < len(right)
        assert score == Score(task, metric, sum(right) / len(right), len(scored), len(known) / len(parts[task]))


def test_the_words_of_a_question_are_no_answers() -> None:
    system = WordVectors(("a", "b", "c", "far"), np.array([[1, 0], [1, 0.1], [1, 0.2], [-1, 0]], np.float32))
    scores = Analogies("a", (("a", "b", "c", "far"), ("a", "b", "c", "c")), ()).scores(Lexicon(system), oov="skip")
    assert [(score.metric, score.value) for score in scores] == [("3CosAdd", 0.5), ("3CosMul", 0.5)]


@pytest.mark.parametrize("block", [1, 2**20])
def test_of_equal_answers_the_first_wins(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analogies, "BLOCK_NUMBERS", block)
    three = oracle.vectors(3).vectors
    answer = three[1] - three[0] + three[2]
    system = WordVectors(("a", "b", "c", "first", "second"), np.stack([*three, answer, answer]))
    questions = (("a", "b", "c", "first"), ("a", "b", "c", "second"))
    scores = Analogies("a", questions, ()).scores(Lexicon(system), oov="skip")
    assert [score.value for score in scores] == [0.5, 0.5]
    found = analogies.solve(Lexicon(system), np.array([[0, 1, 2]]))
    assert {metric: rows.tolist() for metric, rows in found.items()} == {"3CosAdd": [3], "3CosMul": [3]}


def test_too_few_words_to_answer() -> None:
    system = oracle.vectors(3)
    scores = Analogies("a", (("w0", "w1", "w2", "w9"),), ()).scores(Lexicon(system), oov="mean")
    assert [score.value for score in scores] == [0, 0]
    scores = Analogies("a", (("w0", "w1", "w2", "w9"),), ()).scores(Lexicon(system), oov="skip")
    assert [(score.value, score.count, score.coverage) for score in scores] == [(None, 0, 0.0)] * 2


def words(random: np.random.Generator, count: int) -> tuple[tuple[str, str], ...]:
    return tuple((f"w{left}", f"w{right}") for left, right in random.integers(0, 26, (count, 2)).tolist())


@pytest.mark.parametrize("oov", ["skip", "mean"])
def test_relations(oov: str) -> None:
    system, random = oracle.vectors(24), np.random.default_rng(4)
    known = oracle.table(system)
    made = []
    for name in ("1a", "1b", "2c"):
        paradigms, pairs = words(random, 5), tuple(dict.fromkeys(words(random, 15)))
        made.append(
            Relation(name, paradigms, pairs, tuple(random.integers(-50, 50, len(pairs)).astype(float).tolist()))
        )
    without = Relation("9z", (("x", "y"),), made[0].pairs, made[0].ratings)

    def offset(pair: tuple[str, str]) -> np.ndarray:
        left, right = (oracle.unit(known.get(word, oracle.mean(system))) for word in pair)
        return right - left

    found = by_task(Relations("r", (*made, without)).scores(Lexicon(system), oov=oov))
    rho = []
    for relation in made:
        paradigms = [p for p in relation.paradigms if oov == "mean" or all(word in known for word in p)]
        prototype = sum(map(offset, paradigms)) / len(paradigms)
        kept = [place for place, p in enumerate(relation.pairs) if oov == "mean" or all(word in known for word in p)]
        rated = [oracle.cosine(prototype, offset(relation.pairs[place])) for place in kept]
        rho.append(oracle.spearman(rated, [relation.ratings[place] for place in kept]))
        assert found[f"relations/{relation.name}", "spearman"].value == pytest.approx(rho[-1], abs=1e-9)
        assert found[f"relations/{relation.name}", "spearman"].count == len(kept)
    assert found["relations/9z", "spearman"].coverage == 0
    if oov == "skip":
        assert found["relations/9z", "spearman"].value is None
        assert found["relations", "spearman"].value == pytest.approx(sum(rho) / 3)
    counts = [found[f"relations/{relation.name}", "spearman"].count for relation in (*made, without)]
    assert found["relations", "spearman"].count == sum(counts)


def test_spearman_as_the_scripts_of_the_task(data: Path) -> None:
    examples = data / "word-benchmarks/semeval2012-task2/SemEval-2012-Complete-Data-Package/Examples"
    files = (examples / "RandomScaled-1a.txt", examples / "TurkerScaled-1a.txt")
    guessed, gold = (dict(zip(*read_ratings(path), strict=True)) for path in files)
    assert guessed.keys() == gold.keys()
    rho = spearman([guessed[pair] for pair in gold], list(gold.values()))
    assert rho == pytest.approx(-0.00657952092202216, abs=1e-12)


def test_purity() -> None:
    clusters = np.array([0, 0, 0, 1, 1, 2])
    assert purity(clusters, np.array([5, 5, 1, 1, 0, 0])) == (2 + 1 + 1) / 6
    random = np.random.default_rng(0)
    for _ in range(20):
        clusters, classes = random.integers(0, 5, (2, 30))
        largest = [
            max([int((classes[clusters == cluster] == kind).sum()) for kind in range(5)]) for cluster in range(5)
        ]
        assert purity(clusters, classes) == pytest.approx(sum(largest) / 30)


@pytest.mark.parametrize("oov", ["skip", "mean"])
def test_categories(oov: str) -> None:
    random = np.random.default_rng(0)
    centers = np.eye(4, 8) * 10
    kinds = random.integers(0, 4, 40)
    system = WordVectors(tuple(f"w{place}" for place in range(40)), centers[kinds] + random.standard_normal((40, 8)))
    classes = tuple(f"k{kind}" for kind in kinds.tolist())
    benchmark = Categories("c", (*system.words, "gone", "lost"), (*classes, "k0", "k1"))
    [score] = benchmark.scores(Lexicon(system), oov=oov, seed=0)
    assert score.coverage == 40 / 42
    if oov == "skip":
        assert (score.value, score.count) == (1.0, 40)
    else:
        assert score.count == 42
        assert 40 / 42 <= score.value < 1  # the two have the same vector and different classes


def test_categories_without_a_word() -> None:
    [score] = Categories("c", ("x",), ("k",)).scores(Lexicon(oracle.vectors(3)), oov="skip", seed=0)
    assert (score.value, score.count, score.coverage) == (None, 0, 0.0)


def test_unit_rows_of_extreme_vectors() -> None:
    rows = np.array([[3e38, 3e38], [1e-44, 0], [0, 0], [3, 4]], np.float32)
    assert np.allclose(unit_rows(rows), [[0.5**0.5] * 2, [1, 0], [0, 0], [0.6, 0.8]], atol=1e-6)
    assert rows[3].tolist() == [3, 4]
