"""Directions in hidden states: the occurrences in which each is most active, with its values along their contexts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import ArrayLike, NDArray

from embstore.analysis.neighbors.exact import RESCORED_NUMBERS, Search, checked_queries
from embstore.analysis.neighbors.space import Space, StoreVectors
from embstore.analysis.projection import stretches
from embstore.analysis.scan import Batch, Scope, layer_of, scan, selected
from embstore.arguments import Count, Positive, Share, as_matrix, checked
from embstore.config import settings
from embstore.devices import thread_count
from embstore.errors import InvalidValueError
from embstore.html import html_shaded, html_table
from embstore.store import Index, Selection, Store
from embstore.store.framed import Framed
from embstore.store.layout import Layers
from embstore.store.text import ragged_indices

SAMPLE = 2**16  # rows whose values quantiles are taken from
VALUES = 2**20  # that are computed at a time, so that they stay in the cache
CANDIDATE_NBYTES = 80  # with those that are sorted
SHOWN_DIRECTIONS, SHOWN_EXAMPLES = 5, 3  # in a notebook


@dataclass(frozen=True, eq=False)
class Activations(Framed):
    """The occurrences in which directions are most active, as `activations` returns them.

    `frame`: a line for each example: `direction`; `kind`, "top" or the quantile; `rank` among these, 0 the highest;
    `occurrence`, the row; `value`; around it in its context `rows`, their `pieces` of text, and `values` (null where a
    row is not written yet), in which it is number `center` itself. `summary`: of each direction the `count` of rows,
    the `share` of them above 0, `mean`, `highest`, and the value at each quantile.
    """

    frame: pl.DataFrame
    summary: pl.DataFrame
    layer: int

    def __repr__(self) -> str:
        kinds = ", ".join(self.frame["kind"].unique(maintain_order=True))
        counts = f"{len(self.summary):,} directions over {self.summary['count'][0]:,} rows"
        return f"<Activations of {counts} of layer {self.layer}: {kinds}>"

    def _repr_html_(self) -> str:
        """Show the best examples of the first directions, each subword shaded by its value."""
        lines = []
        for row in self.frame.filter(kind="top").to_dicts():
            if row["direction"] < SHOWN_DIRECTIONS and row["rank"] < SHOWN_EXAMPLES:
                highest = max(self.summary["highest"][row["direction"]], np.finfo(float).tiny)
                shades = [(value or 0) / highest for value in row["values"]]
                shown = html_shaded(row["pieces"], shades, row["center"])
                lines.append((f"{row['direction']}: {row['value']:.4g}", shown))
        return html_table(lines, repr(self).strip("<>"))


@checked
def activations(
    data: Store | Selection,
    directions: ArrayLike,
    *,
    k: Positive = 10,
    layers: Layers = "last",
    bias: ArrayLike | None = None,
    quantiles: Sequence[Share] = (),
    around: Count = 8,
) -> Activations:
    """Find in one scan the occurrences in which each of many directions is most active.

    The value of a direction d with bias b in a row x is x . d + b: what a sparse autoencoder relu(x W + b) has before
    the ReLU, for the directions W^T.

    Parameters
    ----------
    data : Store or Selection
        The occurrences; each counts once.
    directions : array [n, features], or [features] for one
        Compared with vectors as they are stored; not normalized.
    k : int
        How many rows with the highest values, and how many examples of each quantile, are found for a direction.
    layers : int or str
        One layer.
    bias : array [n] or number, optional
        Added to the values of each direction.
    quantiles : sequence of float
        Also the k rows next in rank to each of these quantiles of the values: of all rows or, of more than 65,536
        (fewer for many directions), of that many, one from each of as many equal stretches.
    around : int
        How many rows to the left and to the right in the same context are shown with their values.

    Returns
    -------
    Activations
        Its `frame` has the examples, its `summary` a line for each direction. The top rows are those of float64, equal
        values in the order of rows; quantiles and the share above 0 are those of float32.

    Raises
    ------
    InvalidValueError
        For arrays of another shape, several layers, and more directions than the memory of `es.config` has room for.
    MissingRowsError, NonFiniteError
        For rows that are not written yet or not finite.
    """
    layer, now, given = layer_of(data, layers), settings(), selected(data)
    store, rows = given.store, given.span if given.span is not None else np.unique(given.rows)
    matrix = as_matrix("directions", directions, single=True)
    if matrix.shape[1] != store.hidden_size:
        hint = ": give the transpose" if len(matrix) == store.hidden_size else ""
        raise InvalidValueError(f"directions must be [n, {store.hidden_size}] as vectors are, not {matrix.shape}{hint}")
    compared = checked_queries(matrix, store.hidden_size, Space("ip"))
    count, added = len(compared), np.asarray(0.0 if bias is None else bias)
    if added.dtype.kind not in "fiu" or added.shape not in ((), (count,)) or not np.isfinite(added).all():
        raise InvalidValueError(f"bias of shape {added.shape} is not allowed: give one finite number or {count:,}")
    threads, biases = thread_count(now.threads), np.broadcast_to(added, count).astype(np.float64)
    search = Search(StoreVectors(store, layer), compared, k, Space("ip"), rows, (), None, threads)
    needed = count * (16 * store.hidden_size + CANDIDATE_NBYTES * (search.n_candidates + threads))
    if needed > now.nbytes:
        raise InvalidValueError(
            f"{count:,} directions need {needed:,} bytes and memory is {now.nbytes:,}: give fewer at a time"
        )
    sampled = min(SAMPLE, max(k, now.nbytes // (16 * count)), len(rows)) if len(quantiles) else 1
    reducer = _Highest(search, biases, stretches(len(rows), sampled, 0))
    chosen = Selection(store, layers=layer, rows=slice(rows.start, rows.stop) if isinstance(rows, range) else rows)
    total = scan(chosen, {"total": reducer}, progress=now.progress)[layer]["total"]
    groups = [("top", search.decide(*reducer.candidates()).rows[:, : len(rows)])]
    summary = {"share": reducer.above / len(rows), "mean": compared @ (total / len(rows)) + biases}
    nearest = reducer.near(quantiles, k)
    for quantile, (near, values) in zip(quantiles, nearest, strict=True):
        groups.append((f"{quantile:g}", np.asarray(rows)[near]))
        summary[f"quantile_{quantile:g}"] = values + biases
    return Activations(*_frames(search, biases, groups, summary, around), layer)


class _Highest:
    """A reducer that sums vectors, and collects of each direction a few more rows than k with high values in float32.

    `above`: int64 [n], how many values are above 0 with the bias. `sample`: the positions whose values are all held.
    """

    def __init__(self, search: Search, bias: NDArray[np.float64], sample: NDArray[np.int64]) -> None:
        self._search, self._sample, self._lock = search, sample, Lock()
        self._directions = torch.from_numpy(search.queries32)
        self._zero = torch.from_numpy(-bias.astype(np.float32))[:, None]
        self.above, self._sampled = np.zeros(len(bias), np.int64), np.empty((len(bias), len(sample)), np.float32)
        # Of all threads: triples of directions, values and rows, and the lowest value of each direction that counts.
        self._found: list[tuple[NDArray[Any], ...]] = []
        self._n_new, self._least = 0, np.full((len(bias), 1), -np.inf, np.float32)

    def init(self, scope: Scope) -> NDArray[np.float64]:
        self._directions, self._zero = self._directions.to(scope.device), self._zero.to(scope.device)
        return np.zeros(scope.hidden_size)

    def merge(self, state: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
        return state + other

    def finish(self, state: NDArray[np.float64], scope: Scope) -> NDArray[np.float64]:
        return state

    def update(self, state: NDArray[np.float64], batch: Batch) -> NDArray[np.float64]:
        vectors, n_best = batch.vectors, self._search.n_candidates
        self._search.lengths.append(float(batch.norms.max()))
        left, right = np.searchsorted(self._sample, (batch.start, batch.start + len(batch)))
        sampled = torch.from_numpy(self._sample[left:right] - batch.start).to(vectors.device)
        step, ones = max(1, VALUES // len(batch)), vectors.new_ones(len(batch))
        buffers = vectors.new_empty(2, min(step, len(self.above)), len(batch))
        for start in range(0, len(self.above), step):
            part = slice(start, start + step)
            values = torch.mm(self._directions[part], vectors.T, out=buffers[0, : len(self.above[part])])
            # Sums of floats are ten times as fast as those of booleans, and exact up to 2**24.
            above = torch.gt(values, self._zero[part], out=buffers[1, : len(values)]) @ ones
            self._sampled[part, left:right] = values[:, sampled].cpu().numpy()
            least = torch.from_numpy(self._least[part]).to(vectors.device)
            if bool(least.isinf().any()):
                own = values.topk(min(n_best, len(batch)), 1).values[:, -1:]
                least = torch.maximum(least, own.nextafter(torch.full_like(own, -torch.inf)))
            numbers, places = (values > least).nonzero().T
            high = values[numbers, places].cpu().numpy()
            found = (numbers + start).cpu().numpy(), high, batch.rows[places.cpu().numpy()]
            with self._lock:
                self.above[part] += above.cpu().numpy().astype(np.int64)
                self._found.append(found)
                self._n_new += len(high)
                if self._n_new >= n_best * len(self.above):
                    self._select()
        state += vectors.sum(0, dtype=torch.float64).cpu().numpy()
        return state

    def _select(self) -> None:
        """Keep the highest values of each direction, and raise the lowest that counts."""
        numbers, values, rows = (np.concatenate(parts) for parts in zip(*self._found, strict=True))
        order = np.lexsort((rows, -values, numbers))
        rank = np.arange(len(order)) - np.searchsorted(numbers[order], numbers[order])
        last, order = order[rank == self._search.n_candidates - 1], order[rank < self._search.n_candidates]
        self._least[numbers[last], 0] = values[last]
        self._found, self._n_new = [(numbers[order], values[order], rows[order])], 0

    def candidates(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return values and rows [direction, n], of each direction as many."""
        self._select()
        ((_, values, rows),) = self._found
        return values.reshape(len(self.above), -1), rows.reshape(len(self.above), -1)

    def near(self, quantiles: Sequence[float], k: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Yield for each quantile the positions [direction, k] next in rank to it, highest first, and its values.

        Equal values are in the order of positions.
        """
        n = len(self._sample)
        centers = [round(quantile * (n - 1)) for quantile in quantiles]
        lows = [min(max(0, center - k // 2), max(0, n - k)) for center in centers]
        found = [np.empty((len(self.above), min(k, n)), np.int64) for _ in quantiles]
        for number, own in enumerate(self._sampled if quantiles else ()):
            ordered = np.sort(own)
            for low, near in zip(lows, found, strict=True):
                least, most = ordered[low], ordered[low + near.shape[1] - 1]
                some = np.flatnonzero((own >= least) & (own <= most))
                some = some[np.argsort(-own[some], kind="stable")]
                first = int(np.searchsorted(ordered, most, "right")) - low - near.shape[1]
                near[number] = some[first : first + near.shape[1]]
        for center, low, near in zip(centers, lows, found, strict=True):
            middle = near[:, [low + near.shape[1] - 1 - center]]
            yield self._sample[near], np.take_along_axis(self._sampled, middle, 1)[:, 0]


def _frames(
    search: Search,
    bias: NDArray[np.float64],
    groups: Sequence[tuple[str, NDArray[np.int64]]],
    summary: dict[str, NDArray[Any]],
    around: int,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return a line for each row of groups of rows [direction, n], and a line for each direction."""
    assert isinstance(search.vectors, StoreVectors)
    store, index, count = search.vectors.store, search.vectors.store.index, len(bias)
    rows = np.concatenate([rows for _, rows in groups], 1).ravel()
    owners = np.arange(count).repeat(len(rows) // count)
    number, indptr = np.asarray(index.sentence[rows]), index.indptr
    if index.contexts is not None:
        number, indptr = index.contexts.of_rows(rows), index.contexts.indptr
    first = np.maximum(indptr[number], rows - around)
    lengths = np.minimum(indptr[number + 1], rows + around + 1) - first
    bounds, shown, values = np.append(0, np.cumsum(lengths)), ragged_indices(first, lengths), list[NDArray[Any]]()
    step = max(1, RESCORED_NUMBERS // (store.hidden_size * int(lengths.max())))
    for start in range(0, len(rows), step):
        own = owners[start : start + step].repeat(lengths[start : start + step])
        wanted, places = np.unique(shown[bounds[start] :][: len(own)], return_inverse=True)
        vectors = store.vectors(wanted, layers=search.vectors.layer, missing="nan")
        values.append(search.pair_scores(vectors, own, places) + bias[own])
    every, (distinct, places) = np.concatenate(values), np.unique(shown, return_inverse=True)
    frame = pl.DataFrame(
        {
            "direction": owners,
            "kind": [name for name, some in groups for _ in range(some.shape[1])] * count,
            "rank": np.tile(np.concatenate([np.arange(some.shape[1]) for _, some in groups]), count),
            "occurrence": rows,
            "value": every[bounds[:-1] + rows - first],
            "center": rows - first,
        }
    )
    pieces = pl.Series(list(_pieces(index, distinct)), dtype=pl.String).gather(places)
    lists = pl.DataFrame({"rows": shown, "pieces": pieces, "values": pl.Series(every, nan_to_null=True)})
    by_row = lists.with_columns(own=np.arange(len(rows)).repeat(lengths)).group_by("own", maintain_order=True)
    lists = by_row.agg("rows", "pieces", "values").drop("own")
    best = frame.filter(kind="top", rank=0)["value"]
    about = pl.DataFrame({"direction": np.arange(count), "count": len(search.rows), "highest": best, **summary})
    return pl.concat([frame, lists], how="horizontal"), about


def _pieces(index: Index, rows: NDArray[np.int64]) -> Iterator[str]:
    """Yield the text of ascending rows: from the end of the row before, or its form where there is none.

    So white space belongs to the row after it, unless a row is white space itself.
    """
    number, text = -1, ""
    sentences, following = index.sentence[rows].tolist(), np.minimum(rows + 1, len(index.type) - 1)
    begins, ends = _begins(index, rows).tolist(), _begins(index, following).tolist()
    is_last = (index.sentence[following] != index.sentence[rows]) | (following == rows)
    for row, own, begin, end, last in zip(rows.tolist(), sentences, begins, ends, is_last.tolist(), strict=True):
        if own != number:
            number, text = own, index.text.pieces[own]
        yield text[begin : None if last else end] or index.words[int(index.type[row])]


def _begins(index: Index, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the character of the piece of text of its sentence with which the text of each row begins."""
    before = np.maximum(rows - 1, 0)
    (starts, _), (others, stops) = _characters(index, rows), _characters(index, before)
    has_before = (before < rows) & (index.sentence[before] == index.sentence[rows])
    return np.where(has_before, np.where(others == stops, starts, stops), 0)


def _characters(index: Index, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the characters of rows in the pieces of text, those of white space after its sentence too."""
    text, sentence = index.text, np.asarray(index.sentence[rows])
    starts, stops = (each + text.start[sentence] for each in index.spans(rows))
    if index.subword is None or text.subword_start is None:
        return starts, stops
    own = np.minimum(text.subword_indptr[sentence] + np.maximum(index.subword[rows], 0), len(text.ids) - 1)
    starts = np.where(starts == stops, np.maximum(starts, text.subword_start[own]), starts)
    return starts, np.maximum(starts, stops)
