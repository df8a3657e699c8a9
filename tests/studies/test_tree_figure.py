"""The figure of a recovered tree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from embstore.probes import RecoveredTree
from embstore_studies.hewitt2019.tree_figure import RIGHT, WRONG, tree_figure

pytest.importorskip("matplotlib", reason="figures need matplotlib")


def texts(axis: Any) -> list[str]:
    return [text.get_text() for text in axis.texts]


def test_a_recovered_tree_is_drawn_below_the_gold_one() -> None:
    gold, found = frozenset({(0, 1), (1, 2), (2, 3)}), frozenset({(0, 1), (1, 2), (1, 3)})
    words, punctuation = ("The", "$chef", "made", "pizza", "."), np.array([False] * 4 + [True])
    tree = RecoveredTree(words, punctuation, gold, found, 2, 1, np.zeros((5, 5), np.float32), 7)
    axis = tree_figure(tree).axes[0]
    assert texts(axis)[:5] == ["The", r"\$chef", "made", "pizza", "."]
    assert axis.get_title() == "2 of 3 edges found at layer 7"
    arcs = [line for line in axis.lines if len(line.get_xdata()) > 2]
    drawn = [(line.get_color(), bool(np.mean(line.get_ydata()) > 0)) for line in arcs]
    assert sorted(drawn) == sorted(
        [(RIGHT, True), (RIGHT, True), (WRONG, True), (RIGHT, False), (RIGHT, False), (WRONG, False)]
    )
    middle = [text.get_position()[0] for text in axis.texts[:4]]
    for line in arcs:
        edge = tuple(int(np.abs(np.array(middle) - end).argmin()) for end in sorted(line.get_xdata()[[0, -1]]))
        assert edge in (gold if np.mean(line.get_ydata()) > 0 else found)
        assert (line.get_color() == RIGHT) == (edge in gold & found)


@pytest.mark.slow
def test_long_sentences_have_upright_words_and_a_tree_of_a_page() -> None:
    words = tuple(f"word{number}" for number in range(60))
    edges = frozenset((number, number + 1) for number in range(59))
    tree = RecoveredTree(words, np.zeros(60, bool), edges, edges, 0, 0, np.zeros((60, 60), np.float32), 2)
    figure = tree_figure(tree)
    assert figure.get_size_inches()[0] <= 10
    assert {text.get_rotation() for text in figure.axes[0].texts[:60]} == {90}
