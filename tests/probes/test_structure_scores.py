"""Scores of structural probes against hand calculations, scipy and brute force."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from embstore.corpus.trees import Tree, tree_depths, tree_distances
from embstore.probes.structure.examples import SentenceFinder, Treebank
from embstore.probes.structure.scores import (
    Predicted,
    Score,
    attachment,
    equal_lengths,
    linear_order,
    root_hits,
    score_structure,
    spanning_trees,
    spearman,
)
from tests.probes.tree_store import random_tree, write_store


def bank_of(path: Path, trees: list[Tree]) -> Treebank:
    words = sum(map(len, trees))
    return SentenceFinder(write_store(path, trees, np.zeros((1, words, 2)), layers=(0,))).treebank(trees)


def tree(words: str, heads: list[int], marks: str = "") -> Tree:
    forms = tuple(words.split())
    return Tree(forms, np.array(heads) - 1, np.array([form in marks.split() for form in forms]))


def test_spearman_equals_scipys() -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 4, (3, 5, 8)), rng.normal(size=(3, 5, 8)).round(1)
    found = spearman(one, other)
    for place in np.ndindex(3, 5):
        assert found[place] == pytest.approx(stats.spearmanr(one[place], other[place]).statistic)
    assert spearman(np.zeros(4), np.arange(4.0)) == 0
    assert spearman(np.array([1, 2, 2, 5]), np.array([1, 2, 3, 4])) == pytest.approx(4.5 / np.sqrt(4.5 * 5))


def lightest(distances: np.ndarray, allowed: np.ndarray) -> float:
    """The least weight of a spanning tree, by trying all sets of edges."""
    nodes = np.flatnonzero(allowed).tolist()
    best = np.inf
    for edges in combinations(list(combinations(nodes, 2)), len(nodes) - 1):
        joined = {node: node for node in nodes}
        for one, other in edges:
            old, new = joined[one], joined[other]
            joined = {node: new if group == old else group for node, group in joined.items()}
        if len(set(joined.values())) == 1:
            best = min(best, sum(distances[edge] for edge in edges))
    return float(best)


def test_spanning_trees_are_the_lightest() -> None:
    rng = np.random.default_rng(1)
    distances = rng.normal(size=(12, 6, 6)).astype(np.float32)  # those of a probe may lie a little below 0
    distances += distances.transpose(0, 2, 1)
    allowed = rng.random((12, 6)) < 0.8
    allowed[0], allowed[1] = False, np.arange(6) == 3
    parents = spanning_trees(distances, allowed)
    for place in range(12):
        words = np.flatnonzero(parents[place] >= 0)
        assert len(words) == max(0, allowed[place].sum() - 1)
        assert allowed[place][words].all()
        assert allowed[place][parents[place][words]].all()
        if allowed[place].sum() > 1:
            weight = distances[place, words, parents[place][words]].sum()
            assert weight == pytest.approx(lightest(distances[place], allowed[place]), abs=1e-5)


def test_attachment_by_hand() -> None:
    gold = tree_distances(np.array([1, 2, -1, 2, 2]))[None]
    chain = np.abs(np.subtract.outer(np.arange(5), np.arange(5))).astype(np.float32)[None, None]
    perfect = gold[None].astype(np.float32)
    both = np.concatenate([chain, perfect])
    right, there = attachment(both, gold.astype(np.int16), np.ones((1, 5), bool))
    assert (right.tolist(), there) == ([3, 4], 4)  # the chain has 0-1, 1-2 and 2-3, not 2-4
    allowed = np.array([[True, True, False, True, True]])
    right, there = attachment(both, gold.astype(np.int16), allowed)
    assert (right.tolist(), there) == ([1, 1], 1)  # of the gold edges 0-1 alone is left


def test_roots_by_hand() -> None:
    gold = np.array([[1, 0, 2], [1, 0, 1]], np.int16)
    depths = np.array([[[0.5, 0.4, 9], [0.1, 0.2, 0.3]], [[0, 1, 2], [2, 0, 2]]], np.float32)
    assert root_hits(depths, gold, np.ones((2, 3), bool))[0].tolist() == [1, 1]
    right, count = root_hits(depths, gold, np.array([[False, True, True], [False, False, False]]))
    assert (right.tolist(), count) == ([1, 1], 1)


def test_averages_by_hand(tmp_path: Path) -> None:
    """Two sentences of five words and one of six count as two lengths; the one of three does not count."""
    trees = [
        tree("a b c d .", [2, 0, 2, 3, 2], "."),
        tree("e f g h i", [0, 1, 2, 3, 4]),
        tree("j k l m n o", [2, 3, 0, 3, 4, 5]),
        tree("p q r", [0, 1, 1]),
    ]
    bank = bank_of(tmp_path / "s.zarr", trees)
    scores = {score.metric: score for score in score_structure(bank, linear_order(bank), probes=1)}
    places = [np.arange(len(each)) for each in trees]
    rows = [
        np.mean([spearman(abs(order - order[word]), tree_distances(each.heads)[word]) for word in order])
        for order, each in zip(places, trees, strict=True)
    ]
    assert scores["dspr"].values == [pytest.approx((np.mean(rows[:2]) + rows[2]) / 2)]
    depths = [spearman(order, tree_depths(each.heads)) for order, each in zip(places, trees, strict=True)]
    assert scores["nspr"].values == [pytest.approx((np.mean(depths[:2]) + depths[2]) / 2)]
    assert (scores["dspr"].count, scores["nspr"].count) == (3, 3)
    assert scores["uuas"] == Score("distance", "uuas", [pytest.approx(13 / 14)], 14)  # of 3 + 4 + 5 + 2, all but p-r
    assert scores["root_accuracy"] == Score("depth", "root_accuracy", [0.5], 4)  # e and p are first and roots


@pytest.mark.parametrize(("n_words", "counts"), [(4, False), (5, True), (50, True), (51, False)])
def test_correlations_are_of_sentences_of_5_to_50_words(tmp_path: Path, n_words: int, counts: bool) -> None:
    made = random_tree(np.random.default_rng(n_words), [f"w{place}" for place in range(n_words)])
    bank = bank_of(tmp_path / "s.zarr", [made])
    scores = {score.metric: score for score in score_structure(bank, linear_order(bank), probes=1)}
    for metric in ("dspr", "nspr"):
        assert scores[metric].count == counts
        assert (scores[metric].values != [None]) == counts
    assert scores["uuas"].count == n_words - 1 - made.punctuation.sum(), "edges of all sentences count"
    assert scores["root_accuracy"].count == 1


def test_nothing_to_correlate_is_none(tmp_path: Path) -> None:
    bank = bank_of(tmp_path / "s.zarr", [tree("a b", [0, 1]), tree(". !", [0, 1], ". !")])
    scores = {score.metric: score for score in score_structure(bank, linear_order(bank), probes=1)}
    assert scores["dspr"] == Score("distance", "dspr", [None], 0)
    assert (scores["uuas"].values, scores["uuas"].count) == ([1.0], 1)
    assert (scores["root_accuracy"].values, scores["root_accuracy"].count) == ([1.0], 1)


def test_gold_scores_one_and_several_probes_differ(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    trees = [random_tree(rng, [f"{number}-{place}" for place in range(4 + number % 9)]) for number in range(40)]
    bank = bank_of(tmp_path / "s.zarr", trees)

    def predictions(wrong: bool) -> list[Predicted]:
        made = []
        for sentences in equal_lengths(bank, n_pairs=150):
            gold = np.stack([bank.distances[number] for number in sentences]).astype(np.float32)
            depth = np.stack([bank.depths[number] for number in sentences]).astype(np.float32)
            made.append(
                Predicted(sentences, np.stack([gold, -gold][: 1 + wrong]), np.stack([depth, -depth][: 1 + wrong]))
            )
        return made

    for score in score_structure(bank, iter(predictions(True)), probes=2):
        assert score.values[0] == pytest.approx(1)
        assert (score.values[1] or 0) < 0.5
        alone = score_structure(bank, iter(predictions(False)), probes=1)
        assert next(each for each in alone if each.metric == score.metric).values[0] == pytest.approx(score.values[0])
