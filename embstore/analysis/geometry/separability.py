"""Whether a word's senses lie apart: the nearest centroid of the labels of each occurrence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from embstore.analysis.groups import Grouping, group_sums
from embstore.analysis.parts import reduce
from embstore.analysis.scan import Batch, Scope, selected
from embstore.errors import InvalidValueError
from embstore.store import Selection, Store

TIE = 1e-12  # cosines that differ by less are equal but for rounding
METRIC = "separability"


def sense_separability(
    source: Store | Selection,
    *,
    label: str,
    layers: int | Sequence[int] | None = None,
    min_occurrences: int = 2,
    device: str = "cpu",
    progress: Callable[[int], object] | None = None,
) -> pl.DataFrame:
    """How often a word's occurrence is nearest, by cosine, to the centroid of its own label, by word and layer.

    A centroid is the mean of the unit vectors of a word's occurrences of one label, that of the occurrence's own
    label without the occurrence itself. An occurrence as near to another label's counts half, to two others' a third,
    as by drawing lots; a zero vector is as near to all. Labels of fewer than `min_occurrences` (2 or more) are left
    out, and words with one label left.

    One row a word and layer: `metric, layer, item, count, value, baseline, adjusted`; `item` is the word, `count` its
    occurrences, `value` the share that is right, `baseline` the share of its most frequent label, `adjusted` their
    difference. The row of a layer whose `item` is "" has the means over its `count` words, each word weighing the same.
    `progress`: is told how many occurrences of how many layers are done, each being read twice.
    Raises InvalidValueError (no such column or layer, no word with two labels), MissingRowsError, NonFiniteError.
    """
    if min_occurrences < 2:
        raise InvalidValueError(
            f"min_occurrences {min_occurrences} is not allowed: give 2 or more, as each occurrence is left out once"
        )
    selection = selected(source, layers)
    senses = labelled_senses(selection, label=label, min_occurrences=min_occurrences)
    chosen = Selection(selection.store, layers=selection.layers, rows=senses.rows)
    done = 0

    def advance(rows: int) -> None:
        if progress is not None:
            progress(done + rows)

    scan = partial(reduce, chosen, precision="float64", device=device, progress=advance)
    adding = SenseSums(senses)
    frames = []
    for layer in selection.layers:
        sums = scan({"sums": adding}, layers=layer)[layer]["sums"]
        done += len(senses.rows)
        right = scan({"right": NearestSense(senses, sums)}, layers=layer)[layer]["right"]
        done += len(senses.rows)
        frames.append(_table(senses, selection.store, layer, right))
    return pl.concat(frames)


@dataclass(frozen=True)
class Senses:
    """The labelled occurrences of words of several labels; a sense is a word and a label.

    `rows`: int64 [n], ascending. `sense`, `word`: int64 [n], of each row. `first`, `labels`: int64 [words], the first
    sense of each word and how many it has; they follow each other. `types`: int64 [words], rows of `index.words`.
    """

    rows: NDArray[np.int64]
    sense: NDArray[np.int64]
    word: NDArray[np.int64]
    first: NDArray[np.int64]
    labels: NDArray[np.int64]
    types: NDArray[np.int64]

    @property
    def count(self) -> int:
        """How many senses there are."""
        return int(self.labels.sum())


def labelled_senses(selection: Selection, *, label: str, min_occurrences: int) -> Senses:
    """Find the words of two or more labels, each of so many occurrences; raises InvalidValueError for none."""
    index = selection.store.index
    if label not in index.labels:
        known = ", ".join(index.labels) or "none"
        raise InvalidValueError(f"there is no label column {label!r}: the store has {known}")
    rows = np.unique(selection.rows)
    codes = index.labels[label].codes[rows]
    rows, codes = rows[codes >= 0], codes[codes >= 0]
    keys = index.type[rows].astype(np.int64) * max(1, len(index.labels[label].names)) + codes
    known_keys, numbers, counts = np.unique(keys, return_inverse=True, return_counts=True)
    types = known_keys // max(1, len(index.labels[label].names))
    enough = counts >= min_occurrences
    several = np.bincount(types[enough], minlength=len(index.words)) >= 2
    kept = enough & several[types]
    if not kept.any():
        raise InvalidValueError(
            f"no word selected of {selection.store.path} has two labels in {label!r} of {min_occurrences} occurrences "
            "or more each: ask for fewer, or choose another column"
        )
    sense_of = np.cumsum(kept) - 1
    held = kept[numbers]
    own, word_of_sense, labels = np.unique(types[kept], return_inverse=True, return_counts=True)
    sense = sense_of[numbers[held]]
    return Senses(
        rows=rows[held],
        sense=sense,
        word=word_of_sense[sense],
        first=np.cumsum(labels) - labels,
        labels=labels,
        types=own,
    )


class SenseSums:
    """The sum of the unit vectors of each sense, float64 [sense, hidden_size]."""

    def __init__(self, senses: Senses) -> None:
        self._grouping = Grouping(senses.sense, senses.count)

    def init(self, scope: Scope) -> torch.Tensor:
        return torch.zeros(self._grouping.count, scope.hidden_size, dtype=torch.float64, device=scope.device)

    def update(self, state: torch.Tensor, batch: Batch) -> torch.Tensor:
        members = self._grouping.members(batch)
        return state.index_add_(0, members.groups, group_sums(batch, members, unit=True).to(torch.float64))

    def merge(self, state: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return state.add_(other)

    def finish(self, state: torch.Tensor, scope: Scope) -> torch.Tensor:
        return state


class NearestSense:
    """How many occurrences of each word are nearest to their own sense, ties by share; finishes as float64 [words]."""

    def __init__(self, senses: Senses, sums: torch.Tensor) -> None:
        self._senses = senses
        self._sums = sums
        self._sizes = torch.from_numpy(np.bincount(senses.sense, minlength=senses.count)).to(sums.device)
        self._unit = unit_length(sums, self._sizes)

    def init(self, scope: Scope) -> torch.Tensor:
        return torch.zeros(len(self._senses.types), dtype=torch.float64, device=scope.device)

    def update(self, state: torch.Tensor, batch: Batch) -> torch.Tensor:
        device = batch.vectors.device
        words = self._senses.word[batch.places]
        sense, word, first, labels = (
            torch.from_numpy(array).to(device)
            for array in (
                self._senses.sense[batch.places],
                words,
                self._senses.first[words],
                self._senses.labels[words],
            )
        )
        vectors = batch.vectors.to(torch.float64) * batch.unit_scale[:, None]
        own = (unit_length(self._sums[sense] - vectors, self._sizes[sense]) * vectors).sum(1)
        beaten = torch.zeros_like(own, dtype=torch.bool)
        equals = torch.ones_like(own)
        for number in range(int(labels.max())):
            rivals = torch.nonzero((number < labels) & (first + number != sense))[:, 0]
            cosines = (self._unit[first[rivals] + number] * vectors[rivals]).sum(1)
            beaten[rivals] |= cosines > own[rivals] + TIE
            equals[rivals] += (cosines - own[rivals]).abs() <= TIE
        return state.index_add_(0, word, torch.where(beaten, 0, 1 / equals))

    def merge(self, state: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return state.add_(other)

    def finish(self, state: torch.Tensor, scope: Scope) -> NDArray[np.float64]:
        return np.asarray(state.cpu().numpy())


def unit_length(sums: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Sums of `counts` unit vectors, [n, feature], at length 1; 0 where they cancel but for rounding."""
    norms = torch.linalg.vector_norm(sums, dim=1)
    return sums * torch.where(norms > TIE * counts, 1 / norms, 0)[:, None]


def _table(senses: Senses, store: Store, layer: int, right: NDArray[np.float64]) -> pl.DataFrame:
    counts = np.bincount(senses.word)
    sizes = np.bincount(senses.sense)
    value = right / counts
    baseline = np.maximum.reduceat(sizes, senses.first) / counts
    words = [store.index.words[number] for number in senses.types.tolist()]
    value, baseline = np.append(value, value.mean()), np.append(baseline, baseline.mean())
    return pl.DataFrame(
        {
            "metric": [METRIC] * (len(words) + 1),
            "layer": [layer] * (len(words) + 1),
            "item": [*words, ""],
            "count": np.append(counts, len(words)),
            "value": value,
            "baseline": baseline,
            "adjusted": value - baseline,
        }
    )
