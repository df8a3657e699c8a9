"""Linear centered kernel alignment (CKA): how similar two layers are, of one store or of two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isqrt
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from embstore.analysis.scan import Precision, gather_finite, selected
from embstore.analysis.words import Resources
from embstore.arguments import checked
from embstore.config import settings
from embstore.errors import InvalidValueError, NonFiniteError
from embstore.progress import reporting
from embstore.store import Selection, Store, Strings
from embstore.store.layout import Layers

BLOCK_ROWS = 2048  # large enough for products of two layers to keep the processor busy


class Side(NamedTuple):
    """A layer of the first selection (0) or of the second one (1)."""

    selection: int
    layer: int


Pair = tuple[Side, Side]
Selections = tuple[Selection, Selection]


@checked
def linear_cka(
    data: Store | Selection,
    other: Store | Selection | None = None,
    *,
    layers: Layers = None,
    other_layers: Layers = None,
    precision: Precision = "float64",
) -> pl.DataFrame:
    """Compare layers of one store, or of two stores of the same occurrences, by linear CKA (Kornblith et al. 2019).

    CKA(X, Y) = |Y'X|^2 / (|X'X| |Y'Y|), with Frobenius norms, of features X [n, d] and Y [n, e] minus their means. It
    is 1 for layers that differ only in rotation, shift and scale. It is not debiased (Nguyen et al. 2021): independent
    layers of d features that vary alike have about d/(n + d), so take many more occurrences than features. Pairs of
    layers that do not fit the memory of `es.config` are computed in further passes.

    Parameters
    ----------
    data, other : Store or Selection
        The occurrences; `other` by default the same.
    layers, other_layers : int or sequence of int, optional
        By default all, and `other_layers` of one store `layers`.
    precision : {"float64", "float32"}
        Of products of vectors.

    Returns
    -------
    polars.DataFrame
        `layer, other_layer, value, count`, a row for each pair; `value` is in [0, 1], and NaN if a layer does not vary;
        `count` is the number of occurrences.

    Raises
    ------
    InvalidValueError
        For different occurrences and a layer that is not stored.
    MissingRowsError, NonFiniteError
        For rows that are not written yet or not finite.
    """
    resources = Resources.of(precision, settings().device, settings().nbytes)
    one = selected(data, layers)
    if other is None:
        two, second = one if other_layers is None else selected(data, other_layers), 0
    else:
        two, second = selected(other, other_layers), 1
        require_same_occurrences(one, two)
    columns = [Side(0, layer) for layer in one.layers]
    rows = [Side(second, layer) for layer in two.layers]
    requested = [(column, row) for column in columns for row in rows]
    needed = sorted({_ordered(*pair) for pair in requested} | {(side, side) for side in (*columns, *rows)})
    with reporting(settings().progress, total=len(needed) * len(one.rows), unit="vectors", label="cka") as report:
        norms = _norms((one, two), needed, resources, report)
    values = []
    for column, row in requested:
        own = norms[column, column] * norms[row, row]
        values.append(min(norms[_ordered(column, row)] ** 2 / own, 1.0) if own > 0 else float("nan"))
    return pl.DataFrame(
        {
            "layer": [column.layer for column, _ in requested],
            "other_layer": [row.layer for _, row in requested],
            "value": np.array(values, np.float64),
            "count": np.full(len(requested), len(one.rows)),
        },
    )


def _ordered(one: Side, other: Side) -> Pair:
    return (one, other) if one <= other else (other, one)


def _norms(
    selections: Selections, pairs: list[Pair], resources: Resources, progress: Callable[[int], object]
) -> dict[Pair, float]:
    """The Frobenius norm of the centered Y'X of every pair, up to a power of two for each side."""
    norms: dict[Pair, float] = {}
    n_rows = len(selections[0].rows)
    origins = {}
    for side in _sides(pairs):  # one origin for all passes: norms of different scales cannot be compared
        size = _block_rows(selections[side.selection].store.hidden_size, resources)
        origins[side] = Origin.of(_read(selections[side.selection], side, 0, min(size, n_rows), resources))
    own_nbytes = 8 * max(selection.store.hidden_size for selection in selections) ** 2
    product_nbytes = own_nbytes if resources.dtype == torch.float64 else own_nbytes + own_nbytes // 2
    for chunk in chunks(pairs, most=max(1, (resources.memory * 3 // 4 - product_nbytes) // own_nbytes)):
        done = len(norms) * n_rows
        moments = CrossMoments(chunk, n_rows, origins)
        size = _block_rows(sum(selections[side.selection].store.hidden_size for side in moments.sums), resources)
        for start in range(0, n_rows, size):
            stop = min(start + size, n_rows)
            moments.add({s: _read(selections[s.selection], s, start, stop, resources) for s in moments.sums})
            progress(done + stop * len(chunk))
        norms |= {pair: moments.norm(pair) for pair in chunk}
    return norms


def _sides(pairs: list[Pair]) -> list[Side]:
    return sorted({side for pair in pairs for side in pair})


def chunks(pairs: list[Pair], *, most: int) -> Iterator[list[Pair]]:
    """Split pairs into parts of at most `most` that share few layers: squares of the table of pairs."""
    edge = isqrt(most)
    squares = {side: number // edge for number, side in enumerate(_sides(pairs))}
    ordered = sorted(pairs, key=lambda pair: (squares[pair[0]], squares[pair[1]]))
    for start in range(0, len(ordered), most):
        yield ordered[start : start + most]


def _block_rows(features: int, resources: Resources) -> int:
    return min(BLOCK_ROWS, max(1, resources.memory // 4 // (24 * features)))  # as stored, converted and shifted


def _read(selection: Selection, side: Side, start: int, stop: int, resources: Resources) -> torch.Tensor:
    """The vectors of some occurrences at one layer; raises NonFiniteError."""
    vectors = gather_finite(selection.store, selection.rows[start:stop], side.layer)
    return torch.from_numpy(vectors).to(resources.device, resources.dtype)


@dataclass(frozen=True)
class Origin:
    """The origin and scale that vectors are relative to: about their mean, and a power of two close to their size."""

    shift: torch.Tensor
    scale: float

    @classmethod
    def of(cls, vectors: torch.Tensor) -> Origin:
        """The origin of vectors [n, feature]; exactly their mean if they are equal."""
        double = vectors.double()
        shift = double[0] + (double - double[0]).mean(0)
        size = float((double - shift).abs().max())
        return cls(shift.to(vectors.dtype), 2.0 ** np.floor(np.log2(size)) if size > 0 else 1.0)

    def relative(self, vectors: torch.Tensor) -> torch.Tensor:
        return (vectors - self.shift) / self.scale


class CrossMoments:
    """The sums of x y' for pairs of layers, float64 [feature, feature] each, block by block."""

    def __init__(self, pairs: list[Pair], n_rows: int, origins: dict[Side, Origin]) -> None:
        self._n_rows = n_rows
        self._origins = origins
        self.sums = {side: torch.zeros_like(origins[side].shift, dtype=torch.float64) for side in _sides(pairs)}
        self._products = {
            (one, other): torch.zeros(
                len(self.sums[one]), len(self.sums[other]), dtype=torch.float64, device=self.sums[one].device
            )
            for one, other in pairs
        }

    def add(self, vectors: dict[Side, torch.Tensor]) -> None:
        """Add the next occurrences, [n, feature] at every layer."""
        relative = {side: self._origins[side].relative(vectors[side]) for side in vectors}
        for side, block in relative.items():
            self.sums[side] += block.sum(0, dtype=torch.float64)
        for (one, other), product in self._products.items():
            if product.dtype == relative[one].dtype:
                product.addmm_(relative[one].T, relative[other])
            else:
                product += relative[one].T @ relative[other]

    def norm(self, pair: Pair) -> float:
        """The Frobenius norm of a sum after the means are subtracted; 0 if nothing varies. Consumes the sum."""
        one, other = pair
        product = self._products.pop(pair)
        total = float(product.trace()) if one == other else 0.0
        product.addr_(self.sums[one], self.sums[other] / -self._n_rows)
        norm = float(torch.linalg.matrix_norm(product))
        if not np.isfinite(norm):
            raise NonFiniteError(
                f"layers {one.layer} and {other.layer} hold vectors of too different lengths: choose precision float64"
            )
        if one == other and float(product.trace()) <= len(product) * np.finfo(np.float64).eps * total:
            return 0.0
        return norm


def require_same_occurrences(one: Selection, other: Selection) -> None:
    """Raise InvalidValueError, which names the first difference, unless two selections have the same occurrences.

    Compared are their number and, in their order, the word, the text of the sentence and the position in it.
    """
    advice = "select the occurrences that both have, or extract both from one corpus"
    paths = f"{one.store.path} and {other.store.path}"
    if len(one.rows) != len(other.rows):
        raise InvalidValueError(
            f"{paths} differ in their occurrences: {len(one.rows):,} and {len(other.rows):,}; {advice}"
        )
    for what in ("word", "sentence", "position"):
        numbers = np.flatnonzero(~_same(what, one, other))
        if len(numbers):
            left, right = (_described(what, part, int(part.rows[numbers[0]])) for part in (one, other))
            raise InvalidValueError(
                f"{paths} differ in the {what} of occurrence {numbers[0]}: {left} and {right}; {advice}"
            )


def _same(what: str, one: Selection, other: Selection) -> NDArray[np.bool_]:
    """Whether each occurrence has the same word, text of the sentence or position in both selections."""
    mine, theirs = one.store.index, other.store.index
    if what == "position":
        return np.asarray(mine.position[one.rows] == theirs.position[other.rows])
    if what == "word":
        return _same_strings(mine.words, mine.type[one.rows], theirs.words, theirs.type[other.rows])
    return _same_strings(mine.texts, mine.sentence[one.rows], theirs.texts, theirs.sentence[other.rows])


def _described(what: str, part: Selection, row: int) -> str:
    index = part.store.index
    if what == "position":
        return str(index.position[row])
    text = index.words[int(index.type[row])] if what == "word" else index.texts[int(index.sentence[row])]
    return repr(text if len(text) <= 40 else text[:39] + "…")


def _same_strings(
    mine: Strings, my_numbers: NDArray[np.generic], theirs: Strings, their_numbers: NDArray[np.generic]
) -> NDArray[np.bool_]:
    """Whether each string of one list, given by number, equals that of the other."""
    if np.array_equal(mine.offsets, theirs.offsets) and np.array_equal(mine.data, theirs.data):
        return np.asarray(my_numbers == their_numbers)
    pairs, inverse = np.unique(np.stack([my_numbers, their_numbers], 1), axis=0, return_inverse=True)
    same = np.array([mine[left] == theirs[right] for left, right in pairs.tolist()], bool)
    return np.asarray(same[inverse.reshape(-1)])
