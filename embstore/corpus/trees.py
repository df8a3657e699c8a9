"""Dependency trees of CoNLL-U files, and the distances and depths of their words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embstore.arguments import checked
from embstore.corpus.formats.conll import DEPREL, FORM, HEAD, UPOS, word_blocks
from embstore.corpus.lines import Lines
from embstore.errors import quoted

ROOT = -1
PUNCTUATION, PUNCT = "PUNCT", "punct"  # the upos and the relation of punctuation marks: a treebank may lack one


@dataclass(frozen=True, eq=False)
class Tree:
    """The dependency tree of one sentence.

    `words`: the forms. `heads`: int64 [words], the position of each word's head, -1 at the root. `punctuation`: bool
    [words], whether a word is a punctuation mark (upos PUNCT or relation punct). `relations`: the relation of each word
    to its head; empty where they are unknown.
    """

    words: tuple[str, ...]
    heads: NDArray[np.int64]
    punctuation: NDArray[np.bool_]
    relations: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.words)

    @property
    def root(self) -> int:
        return int(np.flatnonzero(self.heads == ROOT)[0])


@checked
def read_trees(path: str | Path) -> list[Tree]:
    """Read the dependency trees of a CoNLL-U file; multiword ranges and empty nodes are skipped.

    Raises CorpusError, with the line, for a file that is not CoNLL-U, for a head that is missing or not a word of the
    sentence, for a sentence with no root, several roots or a cycle, and for a file without a sentence.
    """
    lines = Lines(Path(path))
    trees = list(iter_trees(lines))
    if not trees:
        raise lines.file_error("no sentence in it (read as conllu)")
    return trees


def iter_trees(lines: Lines) -> Iterator[Tree]:
    """Yield the trees of a file one by one; see `read_trees`."""
    for numbers, rows, *_ in word_blocks(lines):
        heads = word_heads(lines, numbers, rows)
        if (roots := np.flatnonzero(heads == ROOT)).size != 1:
            named = ", ".join(f"{rows[position][FORM]!r}" for position in roots[:3].tolist()) or "no head is 0"
            raise lines.error(numbers[0], f"the sentence beginning here has {len(roots)} roots ({named}), not one")
        try:
            ancestry(heads)
        except ValueError:
            raise lines.error(numbers[0], "the heads of the sentence beginning here form a cycle, not a tree") from None
        words = tuple(" ".join(filter(None, row[FORM].split(" "))) for row in rows)
        marks = np.array([row[UPOS] == PUNCTUATION or row[DEPREL].split(":")[0] == PUNCT for row in rows])
        yield Tree(words, heads, marks, tuple(row[DEPREL] for row in rows))


def word_heads(lines: Lines, numbers: Sequence[int], rows: Sequence[Sequence[str]]) -> NDArray[np.int64]:
    """Return the position of each word's head in a block of CoNLL-U, -1 at a root. Raises CorpusError."""
    heads = np.empty(len(rows), np.int64)
    for position, (number, row) in enumerate(zip(numbers, rows, strict=True)):
        head = row[HEAD]
        if not (head.isascii() and head.isdigit() and len(head) < 10) or int(head) > len(rows):
            own, allowed = quoted(row[FORM]), f"a number from 0 (the root) to {len(rows)}"
            raise lines.error(number, f"the head (column 7) of {own} is {quoted(head)}: a tree needs {allowed}")
        if int(head) == position + 1:
            raise lines.error(number, f"the head (column 7) of {quoted(row[FORM])} is the word itself")
        heads[position] = int(head) - 1
    return heads


def ancestry(heads: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return the ancestors of each word, itself included, bool [word, ancestor]; ValueError if heads form a cycle."""
    above = np.eye(len(heads), dtype=bool)
    words, reached = np.arange(len(heads)), heads
    for _ in range(len(heads)):
        words, reached = words[reached != ROOT], reached[reached != ROOT]
        if not len(words):
            return above
        above[words, reached] = True
        reached = heads[reached]
    raise ValueError("the heads form a cycle")


def tree_depths(heads: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of edges between the root and each word, int64 [words]."""
    return np.asarray(ancestry(heads).sum(1) - 1)


def tree_distances(heads: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of edges between any two words, int64 [words, words].

    With A_i the ancestors of word i, itself included, words i and j are |A_i| + |A_j| - 2 |A_i and A_j| edges apart.
    """
    above = ancestry(heads).astype(np.float32)
    size = above.sum(1)
    return np.asarray(size[:, None] + size[None, :] - 2 * (above @ above.T)).astype(np.int64)
