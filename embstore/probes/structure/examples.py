"""Sentences of a store with their gold trees, in batches for the structural probe, the next ones read ahead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.corpus.trees import Tree, tree_depths, tree_distances
from embstore.errors import InvalidValueError, quoted
from embstore.store import Store
from embstore.store.reading.ahead import read_ahead


@dataclass(frozen=True, eq=False)
class Treebank:
    """Sentences of a store that have a gold tree: the `tree` of each and its `first` row, one row per word from there.

    `distances` int16 [words, words] and `depths` int16 [words] are those of each tree. `note`: what was left out.
    """

    store: Store
    trees: Sequence[Tree]
    first: NDArray[np.int64]
    note: str = ""
    distances: list[NDArray[np.int16]] = field(default_factory=list)
    depths: list[NDArray[np.int16]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.distances.extend(tree_distances(tree.heads).astype(np.int16) for tree in self.trees)
        self.depths.extend(tree_depths(tree.heads).astype(np.int16) for tree in self.trees)

    def __len__(self) -> int:
        return len(self.trees)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of words of each sentence, int64 [sentences]."""
        return np.array([len(tree) for tree in self.trees], np.int64)

    def rows(self, sentences: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of some sentences, one sentence after the other."""
        spans = [np.arange(self.first[number], self.first[number] + len(self.trees[number])) for number in sentences]
        return np.concatenate(spans)


class SentenceFinder:
    """Find the sentences of a store by their words. Raises InvalidValueError for a store whose rows are not words."""

    def __init__(self, store: Store) -> None:
        unit = store.metadata.extraction.get("unit", "word")
        if unit != "word":
            raise InvalidValueError(
                f"{store.path} is a store of {unit}s: the structural probe needs one vector per word; extract one with "
                "--unit word"
            )
        self.store = store
        self._numbers: dict[str, list[int]] = {}
        text = store.index.text
        for number, words in enumerate(text.spaced(0, len(text))):
            self._numbers.setdefault(words, []).append(number)

    def treebank(self, trees: Sequence[Tree], *, split: str = "trees") -> Treebank:
        """Return the trees whose sentence is stored with a row for each word; raises InvalidValueError for none."""
        rows = [self._first_row(tree) for tree in trees]
        known = {number: row for number, row in enumerate(rows) if row is not None}
        missing = [quoted(" ".join(tree.words)) for tree, row in zip(trees, rows, strict=True) if row is None]
        if not known:
            shown = f": the first is {missing[0]}" if missing else ""
            raise InvalidValueError(
                f"{self.store.path} has no sentence of the {len(trees):,} {split} trees with all its words{shown}; "
                "extract the same CoNLL-U files"
            )
        note = ""
        if missing:
            what = f"{len(missing):,} sentences are not in the store with a row for each word, such as {missing[0]}"
            note = f"{self.store.path.stem}: {split}: {what}"
        return Treebank(self.store, [trees[number] for number in known], np.array([*known.values()]), note)

    def _first_row(self, tree: Tree) -> int | None:
        """Return the first row of the first stored sentence of these words that has exactly one row for each."""
        index = self.store.index
        sizes = np.array([word.count(" ") + 1 for word in tree.words])
        for number in self._numbers.get(" ".join(tree.words), ()):
            start, stop = int(index.indptr[number]), int(index.indptr[number + 1])
            if stop - start == len(tree) and np.array_equal(index.position[start:stop], np.cumsum(sizes) - sizes):
                return start
        return None


@dataclass(frozen=True, eq=False)
class TreeBatch:
    """Some sentences of a treebank, one after the other.

    `sentences` int64 [n], their numbers. `vectors` float32 [layer, words, width]. `slots` int64 [n, longest]: the
    position of each sentence's words among all words, the number of words where a sentence is shorter. `distances`
    float32 [n, longest, longest] and `depths` [n, longest] of the trees; `lengths` float32 [n].
    """

    sentences: NDArray[np.int64]
    vectors: torch.Tensor
    slots: torch.Tensor
    distances: torch.Tensor
    depths: torch.Tensor
    lengths: torch.Tensor


def iter_tree_batches(
    bank: Treebank, batches: Sequence[NDArray[np.int64]], layers: Sequence[int], device: torch.device
) -> Iterator[TreeBatch]:
    """Yield the batches of sentences given, in their order; a thread reads ahead."""
    return read_ahead(lambda number, _: _read(bank, batches[number], layers, device), len(batches))


def _read(bank: Treebank, sentences: NDArray[np.int64], layers: Sequence[int], device: torch.device) -> TreeBatch:
    lengths = np.array([len(bank.trees[number]) for number in sentences.tolist()])
    longest, n_words = int(lengths.max()), int(lengths.sum())
    distances = np.zeros((len(lengths), longest, longest), np.float32)
    depths = np.zeros((len(lengths), longest), np.float32)
    slots = np.full((len(lengths), longest), n_words, np.int64)
    slots[np.arange(longest) < lengths[:, None]] = np.arange(n_words)
    for place, (number, size) in enumerate(zip(sentences.tolist(), lengths.tolist(), strict=True)):
        distances[place, :size, :size] = bank.distances[number]
        depths[place, :size] = bank.depths[number]
    vectors = torch.from_numpy(bank.store.vectors(bank.rows(sentences), layers=layers))
    return TreeBatch(
        sentences,
        vectors.to(device).float(),
        *(torch.from_numpy(array).to(device) for array in (slots, distances, depths, lengths.astype(np.float32))),
    )
