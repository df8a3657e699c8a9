"""Dependency trees of CoNLL-U: which word each word hangs on, and how far words are from each other in the tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embstore.corpus.formats.conllu import FORM, HEAD, UPOS, word_blocks
from embstore.corpus.lines import Lines
from embstore.corpus.messages import shown

ROOT = -1
PUNCTUATION = "PUNCT"


@dataclass(frozen=True, eq=False)
class Tree:
    """The dependency tree of one sentence.

    `words`: the forms. `heads`: int64 [words], the place of each word's head, -1 at the root. `punctuation`: bool
    [words], whether a word is a punctuation mark (upos PUNCT).
    """

    words: tuple[str, ...]
    heads: NDArray[np.int64]
    punctuation: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.words)

    @property
    def root(self) -> int:
        return int(np.flatnonzero(self.heads == ROOT)[0])


def read_trees(path: str | Path, *, encoding: str = "utf-8") -> list[Tree]:
    """Read the trees of a CoNLL-U file; multiword ranges and empty nodes are left out.

    Raises CorpusError, with the line, for what is no CoNLL-U, for a head that is missing or not a word of the sentence,
    for a sentence with no root, several, or a cycle; and for a file without a sentence.
    """
    lines = Lines(Path(path), encoding)
    trees = list(_iter_trees(lines))
    if not trees:
        raise lines.whole_error("no sentence in it (read as conllu)")
    return trees


def ancestry(heads: NDArray[np.int64]) -> NDArray[np.bool_] | None:
    """Which words stand above each word, itself included, bool [word, ancestor]; None where heads run in a circle."""
    count = len(heads)
    above = np.eye(count, dtype=bool)
    words, reached = np.arange(count), heads
    for _ in range(count):
        words, reached = words[reached != ROOT], reached[reached != ROOT]
        if not len(words):
            return above
        above[words, reached] = True
        reached = heads[reached]
    return None


def tree_depths(heads: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many edges each word is from the root, int64 [words]."""
    return np.asarray(_above(heads).sum(1) - 1)


def tree_distances(heads: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many edges are between any two words, int64 [words, words].

    With A the ancestors of each word, itself among them, two words share |A_i and A_j| of them and are
    |A_i| + |A_j| - 2 |A_i and A_j| edges apart.
    """
    above = _above(heads).astype(np.float32)
    size = above.sum(1)
    return np.asarray(size[:, None] + size[None, :] - 2 * (above @ above.T)).astype(np.int64)


def _above(heads: NDArray[np.int64]) -> NDArray[np.bool_]:
    above = ancestry(heads)
    if above is None:
        raise ValueError("the heads run in a circle")
    return above


def _iter_trees(lines: Lines) -> Iterator[Tree]:
    for numbers, rows in word_blocks(lines):
        heads = word_heads(lines, numbers, rows)
        if (roots := np.flatnonzero(heads == ROOT)).size != 1:
            named = ", ".join(f"{rows[place][FORM]!r}" for place in roots[:3].tolist()) or "none has the head 0"
            raise lines.error(
                numbers[0], f"the sentence beginning here has {len(roots)} roots ({named}): a tree has one"
            )
        if ancestry(heads) is None:
            raise lines.error(numbers[0], "the heads of the sentence beginning here run in a circle: that is no tree")
        words = tuple(" ".join(filter(None, row[FORM].split(" "))) for row in rows)
        yield Tree(words, heads, np.array([row[UPOS] == PUNCTUATION for row in rows]))


def word_heads(lines: Lines, numbers: Sequence[int], rows: Sequence[Sequence[str]]) -> NDArray[np.int64]:
    """The place of each word's head in a block of CoNLL-U, -1 at a root; CorpusError for what is no word of it."""
    heads = np.empty(len(rows), np.int64)
    for place, (number, row) in enumerate(zip(numbers, rows, strict=True)):
        head = row[HEAD]
        if not (head.isascii() and head.isdigit() and len(head) < 10) or int(head) > len(rows):
            raise lines.error(
                number,
                f"the head (column 7) of {shown(row[FORM])} is {shown(head)}: a tree needs a number from 0 (the root) "
                f"to {len(rows)} at every word",
            )
        if int(head) == place + 1:
            raise lines.error(number, f"the head (column 7) of {shown(row[FORM])} is the word itself")
        heads[place] = int(head) - 1
    return heads
