"""Control tasks (Hewitt & Liang 2019): labels drawn at random by the form of a word or span.

A probe can only memorize them, so the score on the real task less that on the control task, the selectivity, says how
much of a score is in the vectors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

CONTROL = "control"


@dataclass(frozen=True, eq=False)
class ControlTask:
    """Random label sets with the frequencies of a real task.

    `label_sets` bool [sets, labels] are the distinct label sets of the train data, `counts` int64 [sets] their
    frequencies. A form gets one of them by its spelling and the seed.
    """

    seed: int
    label_sets: NDArray[np.bool_]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, gold: NDArray[np.bool_], seed: int, *, counts: NDArray[np.int64] | None = None) -> ControlTask:
        """Make the control task of train labels [examples, labels]; `counts` weights the examples (each once)."""
        label_sets, number = np.unique(gold, axis=0, return_inverse=True)
        weights = None if counts is None else counts.astype(np.float64)
        frequency = np.bincount(number.reshape(-1), weights=weights, minlength=len(label_sets))
        return cls(seed, label_sets, frequency.astype(np.int64))

    def gold(self, forms: Sequence[str]) -> NDArray[np.bool_]:
        """Return the labels of forms, bool [forms, labels]."""
        ends = np.cumsum(self.counts) / self.counts.sum()
        hashes = [hashlib.sha256(f"{self.seed} {form}".encode()).digest()[:8] for form in forms]
        drawn = np.array([int.from_bytes(each, "little") / 2**64 for each in hashes])
        number = np.minimum(np.searchsorted(ends, drawn, side="right"), len(self.label_sets) - 1)
        return np.asarray(self.label_sets[number])

    def as_json(self) -> dict[str, Any]:
        sets = [
            {"labels": np.flatnonzero(labels).tolist(), "count": int(count)}
            for labels, count in zip(self.label_sets, self.counts, strict=True)
        ]
        return {"seed": self.seed, "label_sets": sets}

    @classmethod
    def from_json(cls, document: Mapping[str, Any], n_labels: int) -> ControlTask:
        sets = document["label_sets"]
        label_sets = np.zeros((len(sets), n_labels), bool)
        for row, each in zip(label_sets, sets, strict=True):
            row[each["labels"]] = True
        return cls(document["seed"], label_sets, np.array([each["count"] for each in sets], np.int64))
