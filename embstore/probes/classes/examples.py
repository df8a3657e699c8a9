"""Examples of class probes: word-class pairs of a store and their labels, read in batches ahead of their use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.analysis.static import static_vectors
from embstore.corpus.keep import splitmix
from embstore.errors import InvalidValueError
from embstore.probes.splits import SPLITS, WordSplit
from embstore.store import Selection, Store
from embstore.store.reading.ahead import read_ahead
from embstore.store.vectors import VALUE_DTYPE

READ_AHEAD = 2  # batches that are read before they are needed: one on its way while another is computed


class StoredExamples:
    """Occurrences of a store, `rows` int64 [n]; their vectors are read when they are needed.

    `read` fills `out` [layer, n, width], C-contiguous and of `dtype`, with those of some numbers, from 0.
    """

    def __init__(self, store: Store, rows: NDArray[np.int64]) -> None:
        self._store, self._rows = store, rows
        self.width = store.hidden_size
        self.dtype = VALUE_DTYPE[store.dtype]

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, numbers: NDArray[np.int64], layers: Sequence[int], out: NDArray[Any], /) -> None:
        self._store.vectors(self._rows[numbers], layers=layers, out=out)


class ArrayExamples:
    """Vectors in memory: an array [n, width] float32 for each layer."""

    def __init__(self, vectors: Mapping[int, NDArray[np.float32]]) -> None:
        self._vectors = vectors
        first = next(iter(vectors.values()))
        self._count, self.width = first.shape
        self.dtype = np.dtype(np.float32)

    def __len__(self) -> int:
        return int(self._count)

    def read(self, numbers: NDArray[np.int64], layers: Sequence[int], out: NDArray[Any], /) -> None:
        for layer, target in zip(layers, out, strict=True):
            np.take(self._vectors[layer], numbers, 0, target, "clip")


Examples = StoredExamples | ArrayExamples


@dataclass(frozen=True, eq=False)
class LabelledExamples:
    """Examples with their labels: `targets` bool [groups, outputs], and the `group` int64 [n] of each example."""

    examples: Examples
    group: NDArray[np.int64]
    targets: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.examples)


def iter_batches(
    examples: Examples,
    order: NDArray[np.int64],
    layers: Sequence[int],
    *,
    batch_size: int,
    device: torch.device,
) -> Iterator[tuple[NDArray[np.int64], torch.Tensor]]:
    """Yield (numbers, columns) of each batch; columns are float32 [layer, n, width + 1], the last column 1.

    `order` is cut into batches; within a batch the numbers ascend. The columns are overwritten by the next batch.
    """
    size = len(layers) * min(batch_size, len(order))
    buffers = [np.empty(size * examples.width, examples.dtype) for _ in range(READ_AHEAD + 1)]
    columns = torch.empty(size * (examples.width + 1), device=device)
    batches = [np.sort(order[start : start + batch_size]) for start in range(0, len(order), batch_size)]

    def read(number: int, buffer: int) -> torch.Tensor:
        shape = (len(layers), len(batches[number]), examples.width)
        vectors = buffers[buffer][: prod(shape)].reshape(shape)
        examples.read(batches[number], layers, vectors)
        return torch.from_numpy(vectors)

    for numbers, vectors in zip(batches, read_ahead(read, len(batches), n_ahead=READ_AHEAD), strict=True):
        shape = (len(layers), len(numbers), examples.width + 1)
        out = columns[: prod(shape)].view(shape)
        out[:, :, :-1].copy_(vectors)
        out[:, :, -1] = 1
        yield numbers, out


@dataclass(frozen=True, eq=False)
class SplitExamples:
    """The examples of one split, in groups: word-class pairs (level context) or words (level type).

    `group` int64 [n]: the group of each example. By group, `word` int64 [groups] indexes `words`, and `gold` is bool
    [groups, classes]. `left_out`: counts by reason.
    """

    examples: Examples
    group: NDArray[np.int64]
    words: tuple[str, ...]
    word: NDArray[np.int64]
    gold: NDArray[np.bool_]
    left_out: Mapping[str, int]

    @property
    def contexts(self) -> NDArray[np.int64]:
        """The number of examples of each group, int64 [groups]."""
        return np.bincount(self.group, minlength=len(self.word))

    def labelled(self, control: NDArray[np.bool_] | None) -> LabelledExamples:
        """Return the examples with their labels, followed by those of a control task, bool [words, classes]."""
        targets = self.gold if control is None else np.concatenate([self.gold, control[self.word]], 1)
        return LabelledExamples(self.examples, self.group, targets)


class _Pairs(NamedTuple):
    """The labelled occurrences of a split: `rows` with the `pair` of each, and the type and class of each pair."""

    rows: NDArray[np.int64]
    pair: NDArray[np.int64]
    types: NDArray[np.int64]
    codes: NDArray[np.int64]


class ClassExamples:
    """The labelled occurrences of a selection by split; see `ClassProbe` for what they are.

    The label column is optional at level type if the split lists the classes of its words.
    """

    def __init__(
        self,
        selection: Selection,
        split: WordSplit,
        label: str,
        *,
        level: str = "context",
        max_contexts: int | None = None,
        seed: int = 0,
    ) -> None:
        self.selection, self.split = selection, split
        self._of_types, self._max_contexts, self._seed = level == "type", max_contexts, seed
        self._index = selection.store.index
        labels = self._index.labels
        listed = sorted({name for name_of in SPLITS for classes in split.of(name_of).values() for name in classes})
        if label in labels:
            self.names, codes = list(labels[label].names), np.asarray(labels[label].codes)
        elif self._of_types and listed:
            self.names, codes = ["", *listed], np.zeros(len(self._index.type), np.int32)
        else:
            known = ", ".join(labels) or "none"
            raise InvalidValueError(f"there is no label column {label!r}: the store has {known}")
        rows = np.unique(selection.rows)
        self._rows = rows[codes[rows] >= 0]
        self._codes = codes[self._rows].astype(np.int64)
        self._types = np.asarray(self._index.type)[self._rows].astype(np.int64)
        self._split_of_type = np.full(len(self._index.words), -1, np.int8)
        for number, form in enumerate(self._index.words):
            for place, name in enumerate(SPLITS):
                if form in split.of(name):
                    self._split_of_type[number] = place

    def classes(self) -> tuple[list[str], list[str]]:
        """Return the classes that can be learned, and those with too few train words.

        A class needs two words in train and dev, one of them in train.
        """
        words: dict[str, dict[str, set[int]]] = {split: {} for split in SPLITS[:2]}
        for split, of_class in words.items():
            for number, names in self._classes_of_types(split).items():
                for name in names:
                    of_class.setdefault(name, set()).add(number)
        train, dev = words["train"], words["dev"]
        known = sorted(train.keys() | dev.keys())
        fit = [name for name in known if name in train and len(train[name] | dev.get(name, set())) > 1]
        return fit, [name for name in known if name not in fit]

    def _classes_of_types(self, split: str) -> dict[int, tuple[str, ...]]:
        """Return the classes of each word of a split that the store has, by type."""
        pairs, _ = self._pairs(split)
        found: dict[int, list[str]] = {}
        for number, code in zip(pairs.types.tolist(), pairs.codes.tolist(), strict=True):
            found.setdefault(number, []).append(self.names[code])
        if not self._of_types:
            return {number: tuple(names) for number, names in found.items()}
        listed = self.split.of(split)
        return {
            number: listed[self._index.words[number]] or tuple(name for name in names if name)
            for number, names in found.items()
        }

    def _pairs(self, split: str) -> tuple[_Pairs, int]:
        """Return the word-class pairs of a split, and how many are left out since the split does not list them."""
        mine = np.flatnonzero(self._split_of_type[self._types] == SPLITS.index(split))
        key = self._types[mine] * len(self.names) + self._codes[mine]
        keys, pair = np.unique(key, return_inverse=True)
        types, codes = np.divmod(keys, len(self.names))
        fit = np.ones(len(keys), bool)
        if not self._of_types:
            listed = self.split.of(split)
            for place, (number, code) in enumerate(zip(types.tolist(), codes.tolist(), strict=True)):
                allowed = listed[self._index.words[number]]
                fit[place] = not allowed or self.names[code] in allowed
        chosen = fit[pair]
        renumbered = np.cumsum(fit) - 1
        return _Pairs(self._rows[mine[chosen]], renumbered[pair[chosen]], types[fit], codes[fit]), int((~fit).sum())

    def of(self, split: str, classes: Sequence[str]) -> SplitExamples:
        """Return the examples of a split; raises InvalidValueError if there are none."""
        pairs, n_unlisted = self._pairs(split)
        listed = self.split.of(split)
        stored = {self._index.words[number] for number in np.unique(pairs.types).tolist()}
        left_out = {"words not in the store": len(listed.keys() - stored), "pairs not listed": n_unlisted}
        make = self._types_of if self._of_types else self._contexts_of
        made = make(split, pairs, list(classes), left_out)
        if not len(made.group):
            raise InvalidValueError(
                f"no {split} word has a labelled occurrence in {self.selection.store.path}: give other words"
            )
        return made

    def _contexts_of(self, split: str, pairs: _Pairs, classes: list[str], left_out: dict[str, int]) -> SplitExamples:
        number = np.array([classes.index(each) if each in classes else -1 for each in self.names], np.int64)
        own = number[pairs.codes]
        fit = own >= 0
        left_out["pairs of a class without probe"] = int((~fit).sum())
        rows, pair = self._sampled(pairs.rows, pairs.pair)
        chosen = fit[pair]
        types, word = np.unique(pairs.types[fit], return_inverse=True)
        return SplitExamples(
            examples=StoredExamples(self.selection.store, rows[chosen]),
            group=(np.cumsum(fit) - 1)[pair[chosen]],
            words=tuple(self._index.words[number] for number in types.tolist()),
            word=word,
            gold=own[fit][:, None] == np.arange(len(classes)),
            left_out=left_out,
        )

    def _types_of(self, split: str, pairs: _Pairs, classes: list[str], left_out: dict[str, int]) -> SplitExamples:
        rows, _ = self._sampled(pairs.rows, pairs.pair)
        of_types = self._classes_of_types(split)
        types = np.array(sorted(of_types), np.int64)
        gold = np.zeros((len(types), len(classes)), bool)
        n_lost = 0
        for place, number in enumerate(types.tolist()):
            for each in of_types[number]:
                if each in classes:
                    gold[place, classes.index(each)] = True
                else:
                    n_lost += 1
        left_out["pairs of a class without probe"] = n_lost
        examples: Examples = ArrayExamples(dict.fromkeys(self.selection.layers, np.empty((0, 1), np.float32)))
        if len(types):
            chosen = self.selection.store.select(rows=np.sort(rows))
            of_layer = partial(static_vectors, chosen, method="mean", types=types)
            examples = ArrayExamples({layer: of_layer(layers=layer).vectors for layer in self.selection.layers})
        return SplitExamples(
            examples=examples,
            group=np.arange(len(types)),
            words=tuple(self._index.words[number] for number in types.tolist()),
            word=np.arange(len(types)),
            gold=gold,
            left_out=left_out,
        )

    def _sampled(self, rows: NDArray[np.int64], pair: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Draw at most `max_contexts` occurrences of each pair: the same ones in every store of a corpus."""
        if self._max_contexts is None:
            return rows, pair
        index = self._index
        source = np.asarray(index.source)[np.asarray(index.sentence)[rows]]
        key = source.astype(np.uint64) * np.uint64(2**16) + np.asarray(index.position)[rows].astype(np.uint64)
        key = splitmix(key + np.uint64((self._seed + 1) * 0x9E3779B97F4A7C15 % 2**64))
        order = np.lexsort((rows, key, pair))
        starts = np.flatnonzero(np.diff(pair[order], prepend=-1))
        rank = np.arange(len(order)) - np.repeat(starts, np.diff([*starts.tolist(), len(order)]))
        chosen = np.sort(order[rank < self._max_contexts])
        return rows[chosen], pair[chosen]
