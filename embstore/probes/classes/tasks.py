"""What a store has to learn from: word-class pairs, their examples and what is right of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embstore.analysis.static.vectors import static_vectors
from embstore.errors import InvalidValueError
from embstore.probes.classes.examples import Examples, HeldExamples, StoredExamples
from embstore.probes.splits import PARTS, WordSplit
from embstore.probes.training import LabelledExamples
from embstore.store import Selection

LEVELS = ("context", "type")


@dataclass(frozen=True, eq=False)
class Part:
    """The examples of one split, in groups: word-class pairs, or words where each is one example.

    `pair` int64 [n]: the group of each example. Of each group `word` int64 [pairs], a place in `words`, and `gold`
    bool [pairs, classes]. Of each word `frequency` int64, its occurrences in the store. `left_out`: what takes no
    part, by reason.
    """

    examples: Examples
    pair: NDArray[np.int64]
    words: tuple[str, ...]
    word: NDArray[np.int64]
    gold: NDArray[np.bool_]
    frequency: NDArray[np.int64]
    left_out: Mapping[str, int]

    @property
    def contexts(self) -> NDArray[np.int64]:
        """How many examples each group has, int64 [pairs]."""
        return np.bincount(self.pair, minlength=len(self.word))

    def with_control(self, control: NDArray[np.bool_] | None) -> LabelledExamples:
        """The examples with what is right in the task, and beside it in a control task, bool [words, classes]."""
        targets = self.gold if control is None else np.concatenate([self.gold, control[self.word]], 1)
        return LabelledExamples(self.examples, self.pair, targets)


@dataclass(frozen=True, eq=False)
class _Pairs:
    """The labelled occurrences of a split: `rows` and the `pair` of each; of each pair its type and class."""

    rows: NDArray[np.int64]
    pair: NDArray[np.int64]
    types: NDArray[np.int64]
    codes: NDArray[np.int64]


class Source:
    """The labelled occurrences of a selection by split; `label`: the column, which type level can do without."""

    def __init__(
        self,
        selection: Selection,
        split: WordSplit,
        *,
        label: str,
        level: str,
        max_contexts: int | None,
        seed: int,
    ) -> None:
        if level not in LEVELS:
            raise InvalidValueError(f"unknown level {level!r}; allowed are {', '.join(LEVELS)}")
        if max_contexts is not None and max_contexts < 1:
            raise InvalidValueError(f"max_contexts {max_contexts} is not allowed: give 1 or more")
        self.selection, self.split, self.level = selection, split, level
        self._index = selection.store.index
        self._label, self._max_contexts, self._seed = label, max_contexts, seed
        self.names, codes = self._column()
        rows = np.unique(selection.rows)
        self._rows = rows[codes[rows] >= 0]
        self._codes = codes[self._rows].astype(np.int64)
        self._types = np.asarray(self._index.type)[self._rows].astype(np.int64)
        self._part_of_type = np.full(len(self._index.words), -1, np.int8)
        for number, form in enumerate(self._index.words):
            for place, part in enumerate(PARTS):
                if form in split.of(part):
                    self._part_of_type[number] = place

    def _column(self) -> tuple[list[str], NDArray[np.int32]]:
        """The names of the classes, and the class of each row of the store, -1 where it has none."""
        labels = self._index.labels
        if self._label in labels:
            return list(labels[self._label].names), np.asarray(labels[self._label].codes)
        listed = sorted({name for part in PARTS for classes in self.split.of(part).values() for name in classes})
        if self.level == "type" and listed:
            return ["", *listed], np.zeros(self.selection.store.n_rows, np.int32)
        known = ", ".join(labels) or "none"
        raise InvalidValueError(f"there is no label column {self._label!r}: the store has {known}")

    def classes(self) -> tuple[list[str], list[str]]:
        """The classes that can be learnt, and those that too few train words have: two at least, one to learn from."""
        words: dict[str, dict[str, set[int]]] = {part: {} for part in PARTS[:2]}
        for part, held in words.items():
            for number, names in self._classes_of_types(part).items():
                for name in names:
                    held.setdefault(name, set()).add(number)
        learnt = words["train"]
        known = sorted(learnt.keys() | words["dev"].keys())
        fit = [name for name in known if name in learnt and len(learnt[name] | words["dev"].get(name, set())) > 1]
        return fit, [name for name in known if name not in fit]

    def _classes_of_types(self, part: str) -> dict[int, tuple[str, ...]]:
        """The classes of each word of a split that the store has, by type."""
        pairs, _ = self._pairs(part)
        found: dict[int, list[str]] = {}
        for number, code in zip(pairs.types.tolist(), pairs.codes.tolist(), strict=True):
            found.setdefault(number, []).append(self.names[code])
        if self.level == "context":
            return {number: tuple(names) for number, names in found.items()}
        listed = self.split.of(part)
        return {
            number: listed[self._index.words[number]] or tuple(name for name in names if name)
            for number, names in found.items()
        }

    def _pairs(self, part: str) -> tuple[_Pairs, int]:
        """The pairs of a split, and how many the lists do not have."""
        mine = np.flatnonzero(self._part_of_type[self._types] == PARTS.index(part))
        key = self._types[mine] * len(self.names) + self._codes[mine]
        keys, pair = np.unique(key, return_inverse=True)
        types, codes = np.divmod(keys, len(self.names))
        fit = np.ones(len(keys), bool)
        if self.level == "context":
            listed = self.split.of(part)
            for place, (number, code) in enumerate(zip(types.tolist(), codes.tolist(), strict=True)):
                allowed = listed[self._index.words[number]]
                fit[place] = not allowed or self.names[code] in allowed
        held = fit[pair]
        renumbered = np.cumsum(fit) - 1
        return _Pairs(self._rows[mine[held]], renumbered[pair[held]], types[fit], codes[fit]), int((~fit).sum())

    def part(self, name: str, classes: Sequence[str]) -> Part:
        """The examples of a split; raises InvalidValueError where there is none."""
        pairs, unlisted = self._pairs(name)
        listed = self.split.of(name)
        held = {self._index.words[number] for number in np.unique(pairs.types).tolist()}
        left_out = {"words not in the store": len(listed.keys() - held), "pairs not listed": unlisted}
        make = self._contexts if self.level == "context" else self._words
        made = make(name, pairs, list(classes), left_out)
        if not len(made.pair):
            raise InvalidValueError(
                f"no {name} word has a labelled occurrence in {self.selection.store.path}: give other words"
            )
        return made

    def _contexts(self, name: str, pairs: _Pairs, classes: list[str], left_out: dict[str, int]) -> Part:
        place = np.array([classes.index(each) if each in classes else -1 for each in self.names], np.int64)
        own = place[pairs.codes]
        left_out["pairs of no class that is probed"] = int((own < 0).sum())
        rows, pair = self._sampled(pairs.rows, pairs.pair)
        chosen = own[pair] >= 0
        fit = own >= 0
        types, word = np.unique(pairs.types[fit], return_inverse=True)
        gold = own[fit][:, None] == np.arange(len(classes))
        return Part(
            examples=StoredExamples(self.selection.store, rows[chosen]),
            pair=(np.cumsum(fit) - 1)[pair[chosen]],
            words=tuple(self._index.words[number] for number in types.tolist()),
            word=word,
            gold=gold,
            frequency=self._frequency(types),
            left_out=left_out,
        )

    def _words(self, name: str, pairs: _Pairs, classes: list[str], left_out: dict[str, int]) -> Part:
        rows, _ = self._sampled(pairs.rows, pairs.pair)
        of_types = self._classes_of_types(name)
        types = np.array(sorted(of_types), np.int64)
        gold = np.zeros((len(types), len(classes)), bool)
        lost = 0
        for place, number in enumerate(types.tolist()):
            for each in of_types[number]:
                if each in classes:
                    gold[place, classes.index(each)] = True
                else:
                    lost += 1
        left_out["pairs of no class that is probed"] = lost
        examples: Examples = HeldExamples(dict.fromkeys(self.selection.layers, np.empty((0, 1), np.float32)))
        if len(types):
            chosen = self.selection.store.select(rows=np.sort(rows))
            means = static_vectors(chosen, layers=self.selection.layers, method="mean", types=types)
            examples = HeldExamples({layer: vectors.vectors for layer, vectors in means.items()})
        return Part(
            examples=examples,
            pair=np.arange(len(types)),
            words=tuple(self._index.words[number] for number in types.tolist()),
            word=np.arange(len(types)),
            gold=gold,
            frequency=self._frequency(types),
            left_out=left_out,
        )

    def _frequency(self, types: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.bincount(np.asarray(self._index.type), minlength=len(self._index.words))[types]

    def _sampled(self, rows: NDArray[np.int64], pair: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """At most `max_contexts` occurrences of each pair: the same of a corpus in every store of it."""
        if self._max_contexts is None:
            return rows, pair
        index = self._index
        source = np.asarray(index.source)[np.asarray(index.sentence)[rows]]
        lot = _scattered(source, np.asarray(index.position)[rows], self._seed)
        order = np.lexsort((rows, lot, pair))
        starts = np.flatnonzero(np.diff(pair[order], prepend=-1))
        rank = np.arange(len(order)) - np.repeat(starts, np.diff([*starts.tolist(), len(order)]))
        chosen = np.sort(order[rank < self._max_contexts])
        return rows[chosen], pair[chosen]


def _scattered(source: NDArray[np.int64], position: NDArray[np.int32], seed: int) -> NDArray[np.uint64]:
    """A number for each place of the corpus that looks random (splitmix64 of it and the seed)."""
    lot = source.astype(np.uint64) * np.uint64(2**16) + position.astype(np.uint64)
    lot += np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        lot = (lot ^ (lot >> np.uint64(shift))) * np.uint64(factor)
    return lot ^ (lot >> np.uint64(31))
