"""Control tasks (Hewitt & Liang 2019): classes drawn by word at random, which only memory can learn."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.probes.classes.tasks import Part

CONTROL = "control"


@dataclass(frozen=True, eq=False)
class ControlTask:
    """What words are given: one of `kinds` bool [kinds, classes], as often as `counts` int64 [kinds] has it.

    What a word gets depends on its spelling, the seed and this distribution alone.
    """

    seed: int
    kinds: NDArray[np.bool_]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, train: Part, seed: int) -> ControlTask:
        """A control task with the distribution of the train examples."""
        kinds, numbers = np.unique(train.gold, axis=0, return_inverse=True)
        counts = np.bincount(numbers.reshape(-1), weights=train.contexts, minlength=len(kinds)).astype(np.int64)
        return cls(seed, kinds, counts)

    def gold(self, words: Sequence[str]) -> NDArray[np.bool_]:
        """The classes of words, bool [words, classes]."""
        edges = np.cumsum(self.counts) / self.counts.sum()
        hashes = [hashlib.sha256(f"{self.seed} {word}".encode()).digest()[:8] for word in words]
        lots = np.array([int.from_bytes(each, "little") / 2**64 for each in hashes])
        return np.asarray(self.kinds[np.minimum(np.searchsorted(edges, lots, side="right"), len(self.kinds) - 1)])

    def as_json(self) -> dict[str, Any]:
        draws = [
            {"classes": np.flatnonzero(kind).tolist(), "count": int(count)}
            for kind, count in zip(self.kinds, self.counts, strict=True)
        ]
        return {"seed": self.seed, "draws": draws}

    @classmethod
    def from_json(cls, document: Mapping[str, Any], classes: int) -> ControlTask:
        draws: Iterable[Mapping[str, Any]] = document["draws"]
        kinds = np.zeros((len(document["draws"]), classes), bool)
        for row, draw in zip(kinds, draws, strict=True):
            row[draw["classes"]] = True
        return cls(document["seed"], kinds, np.array([draw["count"] for draw in draws], np.int64))
