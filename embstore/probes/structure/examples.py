"""Sentences of a store with their gold trees, in batches for the structural probe, the next ones read ahead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.corpus.trees import Tree, tree_depths, tree_distances
from embstore.errors import InvalidValueError
from embstore.store import Store

READ_AHEAD = 2
NOT_FOUND = "sentences not in the store"
ROWS_LACKING = "sentences of which words have no row"


@dataclass(frozen=True, eq=False)
class Treebank:
    """Sentences of a store that have a gold tree: of each its `tree`, and its `first` row, one row a word from there.

    `distances` int16 [words, words] and `depths` int16 [words], of each sentence. `left_out`: sentences that take no
    part, by reason; `examples`: the first of each.
    """

    store: Store
    trees: Sequence[Tree]
    first: NDArray[np.int64]
    left_out: Mapping[str, int]
    examples: Mapping[str, str] = field(default_factory=dict)
    distances: list[NDArray[np.int16]] = field(default_factory=list)
    depths: list[NDArray[np.int16]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.distances.extend(tree_distances(tree.heads).astype(np.int16) for tree in self.trees)
        self.depths.extend(tree_depths(tree.heads).astype(np.int16) for tree in self.trees)

    def __len__(self) -> int:
        return len(self.trees)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The words of each sentence, int64 [sentences]."""
        return np.array([len(tree) for tree in self.trees], np.int64)

    def rows(self, sentences: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows of some sentences, one after the other."""
        spans = [np.arange(self.first[number], self.first[number] + len(self.trees[number])) for number in sentences]
        return np.concatenate(spans)


class SentenceFinder:
    """The sentences of a store by their words."""

    def __init__(self, store: Store) -> None:
        unit = store.metadata.extraction.get("unit", "word")
        if unit != "word":
            raise InvalidValueError(
                f"{store.path} is a store of {unit}s: the structural probe needs a vector a word; extract one with "
                "--unit word"
            )
        self.store = store
        self._places: dict[str, list[int]] = {}
        for number, text in enumerate(store.index.texts):
            self._places.setdefault(text, []).append(number)

    def treebank(self, trees: Sequence[Tree], *, name: str = "trees") -> Treebank:
        """The trees whose sentence the store has with a row for each word.

        Raises InvalidValueError where that is none of them.
        """
        left_out = {NOT_FOUND: 0, ROWS_LACKING: 0}
        examples: dict[str, str] = {}
        held, first = [], []
        for tree in trees:
            text = " ".join(tree.words)
            row = self._first_row(tree, text)
            if row is not None:
                held.append(tree)
                first.append(row)
                continue
            reason = ROWS_LACKING if text in self._places else NOT_FOUND
            left_out[reason] += 1
            examples.setdefault(reason, _shortened(text))
        if not held:
            shown = f": the first is {next(iter(examples.values()))!r}" if examples else ""
            raise InvalidValueError(
                f"none of the {len(trees):,} {name} sentences stands in {self.store.path} with all its words{shown}; "
                "extract the same CoNLL-U files"
            )
        return Treebank(self.store, held, np.array(first, np.int64), left_out, examples)

    def _first_row(self, tree: Tree, text: str) -> int | None:
        """The first row of the first sentence of these words that has a row, and no more, for each of them."""
        index = self.store.index
        sizes = np.array([word.count(" ") + 1 for word in tree.words])
        for place in self._places.get(text, ()):
            start, stop = int(index.indptr[place]), int(index.indptr[place + 1])
            if stop - start == len(tree) and np.array_equal(index.position[start:stop], np.cumsum(sizes) - sizes):
                return start
        return None


@dataclass(frozen=True, eq=False)
class Batch:
    """Some sentences of a treebank, one after the other.

    `sentences` int64 [n], their places. `vectors` float32 [layer, words, width]. `slots` int64 [n, longest]: the place
    among the words of each sentence's, and one past the last for none. `distances` float32 [n, longest, longest] and
    `depths` [n, longest], of the trees; `lengths` float32 [n].
    """

    sentences: NDArray[np.int64]
    vectors: torch.Tensor
    slots: torch.Tensor
    distances: torch.Tensor
    depths: torch.Tensor
    lengths: torch.Tensor


def iter_tree_batches(
    bank: Treebank, batches: Sequence[NDArray[np.int64]], layers: Sequence[int], device: torch.device
) -> Iterator[Batch]:
    """Yield the batches of sentences given, in their order; a thread reads ahead."""
    with ThreadPoolExecutor(1, "embstore-trees") as reader:
        waiting: list[Future[Batch]] = []
        try:
            for number in range(len(batches) + READ_AHEAD):
                if number < len(batches):
                    waiting.append(reader.submit(_read, bank, batches[number], layers, device))
                if number >= READ_AHEAD:
                    yield waiting.pop(0).result()
        finally:
            for future in waiting:
                future.cancel()


def _read(bank: Treebank, sentences: NDArray[np.int64], layers: Sequence[int], device: torch.device) -> Batch:
    lengths = np.array([len(bank.trees[number]) for number in sentences.tolist()])
    longest, words = int(lengths.max()), int(lengths.sum())
    distances = np.zeros((len(lengths), longest, longest), np.float32)
    depths = np.zeros((len(lengths), longest), np.float32)
    slots = np.full((len(lengths), longest), words, np.int64)
    slots[np.arange(longest) < lengths[:, None]] = np.arange(words)
    for place, (number, size) in enumerate(zip(sentences.tolist(), lengths.tolist(), strict=True)):
        distances[place, :size, :size] = bank.distances[number]
        depths[place, :size] = bank.depths[number]
    vectors = torch.from_numpy(bank.store.gather_layers(bank.rows(sentences), layers))
    return Batch(
        sentences,
        vectors.to(device).float(),
        *(torch.from_numpy(array).to(device) for array in (slots, distances, depths, lengths.astype(np.float32))),
    )


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
