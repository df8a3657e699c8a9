"""Examples of class probes: word-class pairs of a store and their labels, read in batches ahead of their use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.analysis.scan import labelled
from embstore.analysis.static import static_vectors
from embstore.corpus.keep import splitmix
from embstore.errors import InvalidValueError
from embstore.probes.control import ControlTask
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
        self._count, self.width = next(iter(vectors.values())).shape
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
    examples: Examples, order: NDArray[np.int64], layers: Sequence[int], *, batch_size: int, device: torch.device
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

    def labelled(self, control: ControlTask | None) -> LabelledExamples:
        """Return the examples with their labels, followed by those of a control task."""
        targets = self.gold
        if control is not None:
            targets = np.concatenate([targets, control.gold(self.words)[self.word]], 1)
        return LabelledExamples(self.examples, self.group, targets)


class _Groups(NamedTuple):
    """The labelled occurrences of a split: `rows` with the `group` of each, and of each group its type and `classes`.

    `n_unlisted`: the word-class pairs that are left out since the split does not list them.
    """

    rows: NDArray[np.int64]
    group: NDArray[np.int64]
    types: NDArray[np.int64]
    classes: Sequence[tuple[str, ...]]
    n_unlisted: int


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
        listed = sorted({name for name_of in SPLITS for classes in split.of(name_of).values() for name in classes})
        if self._of_types and listed and label not in self._index.labels:
            self.names, self._rows = ["", *listed], np.unique(selection.rows)
            self._codes = np.zeros(len(self._rows), np.int64)
        else:
            self._rows, column = labelled(selection, label)
            self.names, self._codes = list(column.names), column.codes[self._rows].astype(np.int64)
        self._types = np.asarray(self._index.type)[self._rows].astype(np.int64)
        self._split_of_type = split.places(self._index.words)
        self._groups = cache(self._grouped)

    def classes(self) -> tuple[list[str], list[str]]:
        """Return the classes that can be learned, and those with too few train words.

        A class needs two words in train and dev, one of them in train.
        """
        words: dict[str, dict[str, set[int]]] = {split: {} for split in SPLITS[:2]}
        for split, of_class in words.items():
            found = self._groups(split)
            for number, names in zip(found.types.tolist(), found.classes, strict=True):
                for name in names:
                    of_class.setdefault(name, set()).add(number)
        train, dev = words["train"], words["dev"]
        known = sorted(train.keys() | dev.keys())
        fit = [name for name in known if name in train and len(train[name] | dev.get(name, set())) > 1]
        return fit, [name for name in known if name not in fit]

    def _grouped(self, split: str) -> _Groups:
        """Return the word-class pairs of a split that it lists, or at level type its words with all their classes."""
        mine = np.flatnonzero(self._split_of_type[self._types] == SPLITS.index(split))
        key = self._types[mine] * len(self.names) + self._codes[mine]
        keys, pair = np.unique(key, return_inverse=True)
        types, codes = np.divmod(keys, len(self.names))
        rows, pair = self._sampled(self._rows[mine], pair)
        words = self.split.of(split)
        labels = [
            (self.names[code], words[self._index.words[number]]) for number, code in zip(types, codes, strict=True)
        ]
        if self._of_types:
            distinct, word = np.unique(types, return_inverse=True)
            classes: list[tuple[str, ...]] = [()] * len(distinct)
            for place, (name, listed) in zip(word.tolist(), labels, strict=True):
                classes[place] = listed or (*classes[place], *filter(None, [name]))
            return _Groups(rows, word[pair], distinct, classes, 0)
        fit = np.array([not listed or name in listed for name, listed in labels], bool)
        chosen, group = fit[pair], np.cumsum(fit) - 1
        own = [(name,) for (name, _), fits in zip(labels, fit, strict=True) if fits]
        return _Groups(rows[chosen], group[pair[chosen]], types[fit], own, int((~fit).sum()))

    def of(self, split: str, classes: Sequence[str]) -> SplitExamples:
        """Return the examples of a split; raises InvalidValueError if there are none."""
        found, columns = self._groups(split), {name: column for column, name in enumerate(classes)}
        gold, n_lost = np.zeros((len(found.types), len(columns)), bool), 0
        for number, names in enumerate(found.classes):
            known = [columns[name] for name in names if name in columns]
            gold[number, known] = True
            n_lost += len(names) - len(known)
        fit = np.asarray(gold.any(1) | self._of_types)
        if not fit.any():
            raise InvalidValueError(
                f"no {split} word has a labelled occurrence in {self.selection.store.path}: give other words"
            )
        chosen = fit[found.group]
        rows, group = found.rows[chosen], (np.cumsum(fit) - 1)[found.group[chosen]]
        types, word = np.unique(found.types[fit], return_inverse=True)
        examples: Examples = StoredExamples(self.selection.store, rows)
        if self._of_types:
            of_layer = partial(static_vectors, self.selection.store.select(rows=rows), method="mean", types=types)
            examples = ArrayExamples({layer: of_layer(layers=layer).vectors for layer in self.selection.layers})
            group = np.arange(len(types))
        left_out = {
            "words not in the store": len(self.split.of(split)) - len(np.unique(found.types)),
            "pairs not listed": found.n_unlisted,
            "pairs of a class without probe": n_lost,
        }
        words = tuple(self._index.words[number] for number in types.tolist())
        return SplitExamples(examples, group, words, word, gold[fit], left_out)

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
