"""Stores of sentences with trees, some of them planted in the vectors of a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from embstore.corpus.trees import Tree, ancestry
from embstore.store import Store, Strings, Text
from tests.probes.class_store import write_rows

PLANTED, SHUFFLED, NOISE = 3, 4, 0


def random_tree(rng: np.random.Generator, words: Sequence[str]) -> Tree:
    """A tree in which any word may hang on any other; one word in ten is a punctuation mark without dependents."""
    count = len(words)
    order = rng.permutation(count)
    heads = np.full(count, -1, np.int64)
    for place in range(1, count):
        heads[order[place]] = order[rng.integers(0, place)]
    punctuation = (rng.random(count) < 0.1) & ~np.isin(np.arange(count), heads) & (heads >= 0)
    return Tree(tuple(words), heads, punctuation)


def embedded(tree: Tree, directions: np.ndarray) -> np.ndarray:
    """Vectors whose squared distances are those of the tree, [words, width]: each word is a step from its head."""
    above = ancestry(tree.heads)
    steps = above.copy()
    steps[:, tree.heads < 0] = False
    return np.asarray(steps @ directions[: len(tree)])


@dataclass
class TreeStore:
    store: Store
    trees: list[Tree]


def make(
    path: Path,
    *,
    sentences: int = 120,
    longest: int = 9,
    width: int = 20,
    seed: int = 0,
    unit: str = "word",
    dtype: str = "float32",
) -> TreeStore:
    """Layers: noise (0), trees planted in a random subspace (3), other sentences' trees planted so (4)."""
    rng = np.random.default_rng(seed)
    trees = []
    for number in range(sentences):
        words = [f"w{number}x{place}" for place in range(int(rng.integers(1, longest + 1)))]
        trees.append(random_tree(rng, words))
    basis = np.linalg.qr(rng.normal(size=(width, width)))[0]
    directions, rest = basis[:longest], basis[longest:]
    layers: dict[int, list[np.ndarray]] = {NOISE: [], PLANTED: [], SHUFFLED: []}
    for tree in trees:
        noise = rng.normal(size=(len(tree), len(rest))) @ rest
        other = random_tree(rng, tree.words)
        layers[NOISE].append(rng.normal(size=(len(tree), width)))
        layers[PLANTED].append(embedded(tree, directions) + noise)
        layers[SHUFFLED].append(embedded(other, directions) + noise)
    vectors = np.stack([np.concatenate(held) for held in layers.values()]).astype(np.float32)
    return TreeStore(write_store(path, trees, vectors, layers=tuple(layers), unit=unit, dtype=dtype), trees)


def write_store(
    path: Path,
    trees: Sequence[Tree],
    vectors: np.ndarray,
    *,
    layers: tuple[int, ...],
    unit: str = "word",
    dtype: str = "float32",
    drop: Sequence[int] = (),
) -> Store:
    """A store of the sentences of trees, `vectors` [layer, words, width]; the rows of `drop` are left out."""
    table = [(number, place, word) for number, tree in enumerate(trees) for place, word in enumerate(tree.words)]
    kept = [row for row in range(len(table)) if row not in set(drop)]
    table = [table[row] for row in kept]
    vectors = vectors[:, kept]
    words = list(dict.fromkeys(word for _, _, word in table))
    places = {word: number for number, word in enumerate(words)}
    sentence = np.array([number for number, _, _ in table], np.int64)
    sizes = [np.cumsum([0] + [word.count(" ") + 1 for word in tree.words]) for tree in trees]
    columns = {
        "type": np.array([places[word] for _, _, word in table], np.int32),
        "sentence": sentence,
        "position": np.array([sizes[number][place] for number, place, _ in table], np.int32),
        "words": Strings.of(words),
        "text": Text.of_words([" ".join(tree.words).split(" ") for tree in trees]),
    }
    return write_rows(path, vectors, layers, dtype, unit, **columns)


def conllu(trees: Sequence[Tree]) -> str:
    """The trees as a CoNLL-U file."""
    blocks = []
    for tree in trees:
        lines = (
            f"{place}\t{word}\t_\t{'PUNCT' if mark else 'X'}\t_\t_\t{head + 1}\t_\t_\t_"
            for place, (word, head, mark) in enumerate(zip(tree.words, tree.heads, tree.punctuation, strict=True), 1)
        )
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)
