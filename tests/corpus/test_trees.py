"""Dependency trees of CoNLL-U: reading, errors, and distances against those of shortest paths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embstore.corpus import read_trees
from embstore.corpus.trees import tree_depths, tree_distances
from embstore.errors import CorpusError

CHEF = """# text = The chef made pizza.
1\tThe\tthe\tDET\tDT\t_\t2\tdet\t_\t_
2\tchef\tchef\tNOUN\tNN\t_\t3\tnsubj\t_\t_
3\tmade\tmake\tVERB\tVBD\t_\t0\troot\t_\t_
4-5\tpizza.\t_\t_\t_\t_\t_\t_\t_\t_
4\tpizza\tpizza\tNOUN\tNN\t_\t3\tobj\t_\t_
5\t.\t.\tPUNCT\t.\t_\t3\tpunct\t_\t_
5.1\tnothing\t_\t_\t_\t_\t_\t_\t_\t_

1\tYes\tyes\tINTJ\tUH\t_\t0\troot\t_\t_
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "some.conllu"
    path.write_text(text)
    return path


def test_trees_are_read(tmp_path: Path) -> None:
    chef, yes = read_trees(written(tmp_path, CHEF))
    assert chef.words == ("The", "chef", "made", "pizza", ".")
    assert chef.heads.tolist() == [1, 2, -1, 2, 2]
    assert chef.punctuation.tolist() == [False, False, False, False, True]
    assert (chef.root, yes.words, yes.heads.tolist()) == (2, ("Yes",), [-1])


@pytest.mark.parametrize(("upos", "relation"), [("PUNCT", "punct"), ("_", "punct"), ("PUNCT", "_"), ("_", "punct:end")])
def test_punctuation_is_known_by_its_tag_or_its_relation(tmp_path: Path, upos: str, relation: str) -> None:
    """A treebank without upos has the same edges of words as one with it."""
    text = CHEF.replace("\tPUNCT\t", f"\t{upos}\t").replace("\tpunct\t", f"\t{relation}\t")
    assert read_trees(written(tmp_path, text))[0].punctuation.tolist() == [False, False, False, False, True]


@st.composite
def trees(draw: st.DrawFn) -> np.ndarray:
    order = draw(st.permutations(range(draw(st.integers(1, 12)))))
    heads = np.full(len(order), -1, np.int64)
    for position in range(1, len(order)):
        heads[order[position]] = order[draw(st.integers(0, position - 1))]
    return heads


@settings(max_examples=40)
@given(trees())
def test_distances_are_those_of_shortest_paths(heads: np.ndarray) -> None:
    count = len(heads)
    distances = np.full((count, count), count)
    np.fill_diagonal(distances, 0)
    words = np.flatnonzero(heads >= 0)
    distances[words, heads[words]] = distances[heads[words], words] = 1
    for through in range(count):  # Floyd and Warshall
        distances = np.minimum(distances, distances[:, [through]] + distances[through])
    assert np.array_equal(tree_distances(heads), distances)
    assert np.array_equal(tree_depths(heads), distances[np.flatnonzero(heads < 0)[0]])


WORD = "{}\t{}\t_\tX\t_\t_\t{}\t_\t_\t_\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (WORD.format(1, "a", "_"), "some.conllu:1: the head (column 7) of 'a' is '_': a tree needs a number from 0"),
        (WORD.format(1, "a", "²"), ":1: the head (column 7) of 'a' is '²'"),  # isdigit is true, int fails
        (WORD.format(1, "a", 0) + WORD.format(2, "b", 3), ":2: the head (column 7) of 'b' is '3'"),
        (WORD.format(1, "a", 0) + WORD.format(2, "b", 2), ":2: the head (column 7) of 'b' is the word itself"),
        ("\n" + WORD.format(1, "a", 0) + WORD.format(2, "b", 0), ":2: the sentence beginning here has 2 roots"),
        (WORD.format(1, "a", 2) + WORD.format(2, "b", 1), ":1: the sentence beginning here has 0 roots"),
        (
            WORD.format(1, "a", 2) + WORD.format(2, "b", 1) + WORD.format(3, "c", 0),
            ":1: the heads of the sentence beginning here form a cycle, not a tree",
        ),
        ("1\ta\t0\n", ":1: 3 columns separated by tabs instead of CoNLL-U's 10"),
        ("# nothing\n", "no sentence in it"),
    ],
)
def test_invalid_trees_are_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(CorpusError) as raised:
        read_trees(written(tmp_path, text))
    assert message in str(raised.value)
