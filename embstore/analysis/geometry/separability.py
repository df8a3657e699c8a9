"""Whether the senses of a word form separate groups: the nearest label centroid of each occurrence."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from embstore.analysis.scan import Batch, Scope, reduce, selected
from embstore.errors import InvalidValueError, check_whole
from embstore.progress import Progress, reporting
from embstore.store import Selection, Store
from embstore.store.layout import Layers

TIE = 1e-12  # cosines that differ by less are equal up to rounding
METRIC = "separability"


def sense_separability(
    data: Store | Selection,
    *,
    label: str,
    layers: Layers = None,
    min_occurrences: int = 2,
    device: str = "auto",
    progress: Progress = None,
) -> pl.DataFrame:
    """Measure how often an occurrence is closest, by cosine, to the centroid of its own label, by word and layer.

    A centroid is the mean of the unit vectors of the occurrences of a word with one label; for the label of the
    occurrence itself, without that occurrence. An occurrence as close to the centroid of another label counts half, to
    two others a third, as random choice would; a zero vector is equally close to all. Labels of fewer than
    `min_occurrences` (2 or more) occurrences are left out, then words with a single label.

    One row per word and layer: `layer, metric, item, value, count, baseline, adjusted`. `item` is the word, `value` the
    share that is right, `count` its occurrences, `baseline` the share of its most frequent label and `adjusted` their
    difference. The row with an empty `item` has the means over the `count` words of the layer, unweighted.
    `progress(done, total)` counts vectors, each of which is read twice.
    Raises InvalidValueError (no such column or layer, no word with two labels), MissingRowsError, NonFiniteError.
    """
    check_whole("min_occurrences", min_occurrences, 2, unit="(each occurrence is left out once)")
    selection = selected(data, layers)
    senses = labelled_senses(selection, label=label, min_occurrences=min_occurrences)
    chosen = Selection(selection.store, rows=senses.rows, layers=selection.layers)
    frames = []
    with reporting(progress, total=2 * len(senses.rows) * len(selection.layers), unit="vectors") as report:
        for number, layer in enumerate(selection.layers):
            scan = partial(reduce, chosen, layers=layer, precision="float64", device=device, progress=False)
            sums = scan({"sums": SenseSums(senses)})
            report((2 * number + 1) * len(senses.rows))
            found = scan({"right": NearestSense(senses, sums[layer]["sums"])})
            report((2 * number + 2) * len(senses.rows))
            frames.append(_table(senses, selection.store, layer, found[layer]["right"]))
    return pl.concat(frames)


@dataclass(frozen=True)
class Senses:
    """The labelled occurrences of words with several labels; a sense is a word with a label.

    `rows`: int64 [n], ascending. `sense`, `word`: int64 [n], the numbers of each row's sense and word. `first`,
    `n_labels`: int64 [n_words], the first sense of each word and the number of its labels; senses of a word are
    consecutive. `types`: int64 [n_words], positions in `index.words`.
    """

    rows: NDArray[np.int64]
    sense: NDArray[np.int64]
    word: NDArray[np.int64]
    first: NDArray[np.int64]
    n_labels: NDArray[np.int64]
    types: NDArray[np.int64]

    @property
    def count(self) -> int:
        """The number of senses."""
        return int(self.n_labels.sum())


def labelled_senses(selection: Selection, *, label: str, min_occurrences: int) -> Senses:
    """Find the words with two or more labels that have enough occurrences; raises InvalidValueError for none."""
    index = selection.store.index
    if not isinstance(label, str) or label not in index.labels:
        known = ", ".join(index.labels) or "none"
        raise InvalidValueError(f"there is no label column {label!r}: the store has {known}")
    rows = np.unique(selection.rows)
    codes = index.labels[label].codes[rows]
    rows, codes = rows[codes >= 0], codes[codes >= 0]
    n_names = max(1, len(index.labels[label].names))
    keys, numbers, counts = np.unique(
        index.type[rows].astype(np.int64) * n_names + codes, return_inverse=True, return_counts=True
    )
    types = keys // n_names
    enough = counts >= min_occurrences
    several = np.bincount(types[enough], minlength=len(index.words)) >= 2
    mask = enough & several[types]
    if not mask.any():
        raise InvalidValueError(
            f"no selected word of {selection.store.path} has two labels in {label!r} of {min_occurrences} occurrences "
            "or more each: allow fewer, or choose another column"
        )
    row_mask = mask[numbers]
    own, word_of_sense, n_labels = np.unique(types[mask], return_inverse=True, return_counts=True)
    sense = (np.cumsum(mask) - 1)[numbers[row_mask]]
    return Senses(
        rows=rows[row_mask],
        sense=sense,
        word=word_of_sense[sense],
        first=np.cumsum(n_labels) - n_labels,
        n_labels=n_labels,
        types=own,
    )


class SenseSums:
    """A reducer for the sum of the unit vectors of each sense; its result is float64 [n_senses, hidden_size]."""

    def __init__(self, senses: Senses) -> None:
        self._senses = senses

    def init(self, scope: Scope) -> torch.Tensor:
        return torch.zeros(self._senses.count, scope.hidden_size, dtype=torch.float64, device=scope.device)

    def update(self, state: torch.Tensor, batch: Batch) -> torch.Tensor:
        sense = torch.from_numpy(self._senses.sense[batch.positions]).to(state.device)
        return state.index_add_(0, sense, batch.vectors.to(torch.float64) * batch.inverse_norms[:, None])

    def merge(self, state: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return state.add_(other)

    def finish(self, state: torch.Tensor, scope: Scope) -> torch.Tensor:
        return state


class NearestSense:
    """A reducer that counts the occurrences of each word closest to their own sense: float64 [n_words]."""

    def __init__(self, senses: Senses, sums: torch.Tensor) -> None:
        self._senses = senses
        self._sums = sums
        self._sizes = torch.from_numpy(np.bincount(senses.sense, minlength=senses.count)).to(sums.device)
        self._unit = unit_length(sums, self._sizes)

    def init(self, scope: Scope) -> torch.Tensor:
        return torch.zeros(len(self._senses.types), dtype=torch.float64, device=scope.device)

    def update(self, state: torch.Tensor, batch: Batch) -> torch.Tensor:
        senses, device = self._senses, batch.vectors.device
        words = senses.word[batch.positions]
        arrays = senses.sense[batch.positions], words, senses.first[words], senses.n_labels[words]
        sense, word, first, n_labels = (torch.from_numpy(array).to(device) for array in arrays)
        vectors = batch.vectors.to(torch.float64) * batch.inverse_norms[:, None]
        own = (unit_length(self._sums[sense] - vectors, self._sizes[sense]) * vectors).sum(1)
        is_beaten = torch.zeros_like(own, dtype=torch.bool)
        n_equal = torch.ones_like(own)
        for number in range(int(n_labels.max())):
            others = torch.nonzero((number < n_labels) & (first + number != sense))[:, 0]
            cosines = (self._unit[first[others] + number] * vectors[others]).sum(1)
            is_beaten[others] |= cosines > own[others] + TIE
            n_equal[others] += (cosines - own[others]).abs() <= TIE
        return state.index_add_(0, word, torch.where(is_beaten, 0, 1 / n_equal))

    def merge(self, state: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return state.add_(other)

    def finish(self, state: torch.Tensor, scope: Scope) -> NDArray[np.float64]:
        return np.asarray(state.cpu().numpy())


def unit_length(sums: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Scale sums of `counts` unit vectors, [n, feature], to length 1; 0 for sums that are zero up to rounding."""
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
            "layer": [layer] * (len(words) + 1),
            "metric": [METRIC] * (len(words) + 1),
            "item": [*words, ""],
            "value": value,
            "count": np.append(counts, len(words)),
            "baseline": baseline,
            "adjusted": value - baseline,
        }
    )
