"""Linear centered kernel alignment (CKA): how similar two layers are, of one store or of two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isqrt
from typing import NamedTuple

import numpy as np
import polars as pl
import torch

from embstore.analysis.scan import gather_finite, selected
from embstore.arguments import checked
from embstore.config import settings
from embstore.devices import choose_device
from embstore.errors import InvalidValueError
from embstore.progress import reporting
from embstore.store import Selection, Store
from embstore.store.layout import Layers

BLOCK_ROWS = 2048  # large enough for products of two layers to keep the processor busy
COMPARED_ROWS = 2**16  # whose words and texts are compared at a time: a few MiB


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
        norms = _norms((one, two), needed, report)
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
        }
    )


def _ordered(one: Side, other: Side) -> Pair:
    return (one, other) if one <= other else (other, one)


def _norms(selections: Selections, pairs: list[Pair], progress: Callable[[int], object]) -> dict[Pair, float]:
    """The Frobenius norm of the centered Y'X of every pair."""
    norms: dict[Pair, float] = {}
    device, memory, n_rows = choose_device(settings().device, float64=True), settings().nbytes, len(selections[0].rows)

    def read(side: Side, start: int, stop: int) -> torch.Tensor:
        selection = selections[side.selection]
        vectors = gather_finite(selection.store, selection.rows[start:stop], side.layer)
        return torch.from_numpy(vectors).to(device, torch.float64)

    def block_rows(features: int) -> int:
        return min(BLOCK_ROWS, max(1, memory // 4 // (24 * features)))  # as stored, converted and shifted

    shifts = {}
    for side in _sides(pairs):  # about the mean, so that a large one costs no precision; exactly it for equal ones
        some = read(side, 0, min(block_rows(selections[side.selection].store.hidden_size), n_rows))
        shifts[side] = some[0] + (some - some[0]).mean(0)
    product_nbytes = 8 * max(selection.store.hidden_size for selection in selections) ** 2
    for chunk in chunks(pairs, most=max(1, (memory * 3 // 4 - product_nbytes) // product_nbytes)):
        done = len(norms) * n_rows
        sums = {side: torch.zeros_like(shifts[side]) for side in _sides(chunk)}
        products = {(one, other): torch.outer(sums[one], sums[other]) for one, other in chunk}
        size = block_rows(sum(map(len, sums.values())))
        for start in range(0, n_rows, size):
            stop = min(start + size, n_rows)
            vectors = {side: read(side, start, stop) - shifts[side] for side in sums}
            for side, block in vectors.items():
                sums[side] += block.sum(0)
            for (one, other), product in products.items():
                product.addmm_(vectors[one].T, vectors[other])
            progress(done + stop * len(chunk))
        for one, other in chunk:
            product = products.pop((one, other))
            total = float(product.trace()) if one == other else 0.0
            product.addr_(sums[one], sums[other] / -n_rows)
            varies = one != other or float(product.trace()) > len(product) * np.finfo(np.float64).eps * total
            norms[one, other] = float(torch.linalg.matrix_norm(product)) if varies else 0.0
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
    for start in range(0, len(one.rows), COMPARED_ROWS):
        rows = slice(start, start + COMPARED_ROWS)
        left, right = (
            Selection(part.store, rows=part.rows[rows]).table(columns=["word", "text", "position"]).cast(pl.String)
            for part in (one, other)
        )
        for what, name in (("word", "word"), ("sentence", "text"), ("position", "position")):
            for place in (left[name] != right[name]).arg_true()[:1]:
                values = [
                    repr(part[name][place])[:40] if name != "position" else part[name][place] for part in (left, right)
                ]
                raise InvalidValueError(
                    f"{paths} differ in the {what} of occurrence {start + place}: {' and '.join(values)}; {advice}"
                )
