"""How alike two layers are, or two stores of the same occurrences: linear centred kernel alignment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from embstore.analysis.scan import selected
from embstore.analysis.word_batches import Computing
from embstore.errors import InvalidValueError, NonFiniteError
from embstore.store import Selection, Store, Strings

BLOCK_ROWS = 2048  # a product of two layers is then large enough to keep the processor busy


class Side(NamedTuple):
    """A layer of the first selection (0) or the second one (1)."""

    selection: int
    layer: int


Pair = tuple[Side, Side]


def linear_cka(
    source: Store | Selection,
    other: Store | Selection | None = None,
    *,
    layers: int | Sequence[int] | None = None,
    other_layers: int | Sequence[int] | None = None,
    precision: str = "float64",
    device: str = "cpu",
    memory: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> pl.DataFrame:
    """Linear CKA between layers of one store, or of two stores of the same occurrences (Kornblith et al. 2019).

    CKA(X, Y) = |Y'X|^2 / (|X'X| |Y'Y|), Frobenius norms, of features X [n, d] and Y [n, e] less their means; 1 for
    layers that differ in rotation, shift and scale only. One row a pair: `layer, other_layer, count, value`; `count`
    is n, `value` in [0, 1], NaN where a layer does not vary (one occurrence, equal vectors).

    `other_layers`: by default as many as `other` has, or `layers` where there is one store. `memory`: bytes to work in
    (1 GiB; never less than a pair needs); what does not fit is done in further passes. `progress`: is told how many
    occurrences of how many pairs are done; layers with themselves count.
    Raises InvalidValueError (other occurrences, a layer not stored), MissingRowsError, NonFiniteError.
    """
    computing = Computing.of(precision, device, memory)
    one = selected(source, layers)
    if other is None:
        two = one if other_layers is None else selected(source, other_layers)
        second = 0
    else:
        two, second = selected(other, other_layers), 1
        require_same_occurrences(one, two)
    columns = [Side(0, layer) for layer in one.layers]
    rows = [Side(second, layer) for layer in two.layers]
    asked = [(column, row) for column in columns for row in rows]
    needed = sorted({_ordered(*pair) for pair in asked} | {(side, side) for side in (*columns, *rows)})
    norms = _norms((one, two), needed, computing, progress)
    values = [_alignment(norms, column, row) for column, row in asked]
    return pl.DataFrame(
        {
            "layer": [column.layer for column, _ in asked],
            "other_layer": [row.layer for _, row in asked],
            "count": np.full(len(asked), len(one.rows)),
            "value": np.array(values, np.float64),
        },
    )


def _ordered(one: Side, other: Side) -> Pair:
    return (one, other) if one <= other else (other, one)


def _alignment(norms: dict[Pair, float], one: Side, other: Side) -> float:
    alone = norms[one, one] * norms[other, other]
    return min(norms[_ordered(one, other)] ** 2 / alone, 1.0) if alone > 0 else float("nan")


def _norms(
    selections: tuple[Selection, Selection],
    pairs: list[Pair],
    computing: Computing,
    progress: Callable[[int], object] | None,
) -> dict[Pair, float]:
    """The Frobenius norm of the centred Y'X of every pair, up to a power of two for each side."""
    norms: dict[Pair, float] = {}
    count = len(selections[0].rows)
    sides = sorted({side for pair in pairs for side in pair})
    origins = {side: _origin(selections[side.selection], side, computing) for side in sides}
    for chunk in chunks(pairs, most=_most_pairs(selections, computing)):
        done = len(norms) * count
        moments = Moments(chunk, count, origins)
        for place, vectors in _blocks(selections, chunk, computing):
            moments.add(vectors)
            if progress is not None:
                progress(done + place * len(chunk))
        norms.update(moments.norms())
    return norms


def _most_pairs(selections: tuple[Selection, Selection], computing: Computing) -> int:
    size = max(selection.store.hidden_size for selection in selections)
    own_nbytes = 8 * size * size
    product_nbytes = own_nbytes if computing.dtype == torch.float64 else own_nbytes + own_nbytes // 2
    return max(1, (computing.memory * 3 // 4 - product_nbytes) // own_nbytes)


def chunks(pairs: list[Pair], *, most: int) -> Iterator[list[Pair]]:
    """Split pairs into parts of at most `most`, of few layers each: squares of the table of pairs."""
    edge = isqrt(most)
    places = {side: place // edge for place, side in enumerate(sorted({side for pair in pairs for side in pair}))}
    ordered = sorted(pairs, key=lambda pair: (places[pair[0]], places[pair[1]]))
    for start in range(0, len(ordered), most):
        yield ordered[start : start + most]


def _blocks(
    selections: tuple[Selection, Selection], pairs: list[Pair], computing: Computing
) -> Iterator[tuple[int, dict[Side, torch.Tensor]]]:
    """Yield how many occurrences have come and the newest ones' vectors of every layer of the pairs."""
    sides = sorted({side for pair in pairs for side in pair})
    size = _block_rows(sum(selections[side.selection].store.hidden_size for side in sides), computing)
    count = len(selections[0].rows)
    for start in range(0, count, size):
        stop = min(start + size, count)
        yield stop, {side: _read(selections[side.selection], side, start, stop, computing) for side in sides}


def _block_rows(features: int, computing: Computing) -> int:
    return min(BLOCK_ROWS, max(1, computing.memory // 4 // (24 * features)))  # as stored, read and shifted


def _read(selection: Selection, side: Side, start: int, stop: int, computing: Computing) -> torch.Tensor:
    """The vectors of some of the occurrences at one layer; raises NonFiniteError."""
    rows = selection.rows[start:stop]
    vectors = selection.store.gather(rows, side.layer)
    finite = np.isfinite(vectors).all(1)
    if not finite.all():
        raise NonFiniteError(
            f"layer {side.layer}, row {int(rows[finite.argmin()])} of {selection.store.path} holds a value that is not "
            "finite: run embstore verify, or leave the row out"
        )
    return torch.from_numpy(vectors).to(computing.device, computing.dtype)


@dataclass(frozen=True)
class Origin:
    """What vectors are taken relative to: about their mean, and a power of two near their size."""

    shift: torch.Tensor
    scale: float

    @classmethod
    def of(cls, vectors: torch.Tensor) -> Origin:
        """Of the first vectors [n, feature]; exactly their mean where they are equal."""
        double = vectors.double()
        shift = double[0] + (double - double[0]).mean(0)
        size = float((double - shift).abs().max())
        return cls(shift.to(vectors.dtype), 2.0 ** np.floor(np.log2(size)) if size > 0 else 1.0)

    def relative(self, vectors: torch.Tensor) -> torch.Tensor:
        return (vectors - self.shift) / self.scale


def _origin(selection: Selection, side: Side, computing: Computing) -> Origin:
    """The origin of the first occurrences; one for all passes, as norms of different scales cannot be compared."""
    size = _block_rows(selection.store.hidden_size, computing)
    return Origin.of(_read(selection, side, 0, min(size, len(selection.rows)), computing))


class Moments:
    """The sums of x y' of pairs of layers, float64 [feature, feature] each, block by block."""

    def __init__(self, pairs: list[Pair], count: int, origins: dict[Side, Origin]) -> None:
        self._pairs = pairs
        self._count = count
        self._origins = origins
        shifts = {side: origins[side].shift for pair in pairs for side in pair}
        self._sums = {side: torch.zeros_like(shift, dtype=torch.float64) for side, shift in shifts.items()}
        self._products = {
            (one, other): torch.zeros(
                len(shifts[one]), len(shifts[other]), dtype=torch.float64, device=shifts[one].device
            )
            for one, other in pairs
        }

    def add(self, vectors: dict[Side, torch.Tensor]) -> None:
        """Add the next occurrences, [n, feature] of every layer."""
        relative = {side: self._origins[side].relative(vectors[side]) for side in vectors}
        for side, block in relative.items():
            self._sums[side] += block.sum(0, dtype=torch.float64)
        for one, other in self._pairs:
            product = self._products[one, other]
            if relative[one].dtype == torch.float64:
                product.addmm_(relative[one].T, relative[other])
            else:
                product += relative[one].T @ relative[other]

    def norms(self) -> dict[Pair, float]:
        """The Frobenius norm of each sum after the means are taken away; 0 where nothing varies. Uses up the sums."""
        return {pair: self._norm(pair) for pair in self._pairs}

    def _norm(self, pair: Pair) -> float:
        one, other = pair
        product = self._products.pop(pair)
        total = float(product.trace()) if one == other else 0.0
        product.addr_(self._sums[one], self._sums[other] / -self._count)
        norm = float(torch.linalg.matrix_norm(product))
        if not np.isfinite(norm):
            raise NonFiniteError(
                f"layers {one.layer} and {other.layer} hold vectors of too different lengths: choose float64"
            )
        if one == other and float(product.trace()) <= len(product) * np.finfo(np.float64).eps * total:
            return 0.0
        return norm


def require_same_occurrences(one: Selection, other: Selection) -> None:
    """Raise InvalidValueError, naming the first difference, unless two selections are of the same occurrences.

    Compared are how many there are and, in their order, each one's word, its sentence's text and its position in it.
    """
    advice = "select the occurrences that both have, or extract both from one corpus"
    paths = f"{one.store.path} and {other.store.path}"
    if len(one.rows) != len(other.rows):
        raise InvalidValueError(
            f"{paths} differ in their occurrences: {len(one.rows):,} and {len(other.rows):,}; {advice}"
        )
    for what, differs, told in _comparisons(one, other):
        if len(differs):
            place = int(differs[0])
            left, right = told(one, int(one.rows[place])), told(other, int(other.rows[place]))
            raise InvalidValueError(f"{paths} differ in the {what} of occurrence {place}: {left} and {right}; {advice}")


def _comparisons(
    one: Selection, other: Selection
) -> Iterator[tuple[str, NDArray[np.int64], Callable[[Selection, int], str]]]:
    """Yield what is compared, the places that differ, ascending, and what words there are for a row."""
    mine, theirs = one.store.index, other.store.index
    same = _same_strings(mine.words, mine.type[one.rows], theirs.words, theirs.type[other.rows])
    yield "word", np.flatnonzero(~same), lambda part, row: repr(part.store.index.words[int(part.store.index.type[row])])
    same = _same_strings(mine.texts, mine.sentence[one.rows], theirs.texts, theirs.sentence[other.rows])
    yield "sentence", np.flatnonzero(~same), _told_text
    yield (
        "position",
        np.flatnonzero(mine.position[one.rows] != theirs.position[other.rows]),
        lambda part, row: str(part.store.index.position[row]),
    )


def _told_text(part: Selection, row: int) -> str:
    text = part.store.index.texts[int(part.store.index.sentence[row])]
    return repr(text if len(text) <= 40 else text[:39] + "…")


def _same_strings(
    mine: Strings, my_numbers: NDArray[np.generic], theirs: Strings, their_numbers: NDArray[np.generic]
) -> NDArray[np.bool_]:
    """Whether each string of one list, given by number, is that of the other."""
    if np.array_equal(mine.offsets, theirs.offsets) and np.array_equal(mine.data, theirs.data):
        return np.asarray(my_numbers == their_numbers)
    pairs, inverse = np.unique(np.stack([my_numbers, their_numbers], 1), axis=0, return_inverse=True)
    same = np.array([mine[left] == theirs[right] for left, right in pairs.tolist()], bool)
    return np.asarray(same[inverse.reshape(-1)])
