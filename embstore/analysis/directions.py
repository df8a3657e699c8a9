"""Directions in hidden states: the occurrences in which each is most active, with its values along their contexts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from embstore.analysis.neighbors.exact import RESCORED_NUMBERS, Search, checked_queries
from embstore.analysis.neighbors.space import Space, StoreVectors
from embstore.analysis.projection import stretches
from embstore.analysis.scan import Batch, Scope, layer_of, scan, selected
from embstore.arguments import Count, Positive, Share, as_matrix, checked
from embstore.config import settings
from embstore.devices import choose_device, thread_count
from embstore.errors import InvalidValueError
from embstore.html import html_shaded, html_table
from embstore.models.encoder import ragged_indices
from embstore.store import Index, Selection, Store
from embstore.store.framed import Framed
from embstore.store.layout import Layers

if TYPE_CHECKING:
    import polars as pl

_Triples = tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]  # directions, values and rows
_Near = tuple[
    NDArray[np.int64], int
]  # positions [direction, k], the highest first, and the number of that at a quantile
TOP = "top"
SAMPLE = 2**16  # rows whose values quantiles are taken from
TRIPLE_NBYTES = 20
NUMBERS = {
    "cpu": (2**20, 2**20),
    "cuda": (2**25, 2**27),
    "xpu": (2**22, 2**24),
}  # of the vectors of a block, and of values at a time
SHOWN_DIRECTIONS, SHOWN_EXAMPLES = 5, 3  # in a notebook


@dataclass(frozen=True, eq=False)
class Activations(Framed):
    """The occurrences in which directions are most active, as `activations` returns them.

    `frame`: a line for each example: `direction`; `kind`, "top" or the quantile; `rank` among these, 0 the highest;
    `occurrence`, the row; `value`; of the rows around it in its context, itself included, `rows`, `pieces` (their text
    with the white space between them) and `values` (null where a row is not written yet); and `center`, the number of
    the row itself in these lists. `summary`: a line for each direction: `count` of rows, `share` of them above 0,
    `mean`, `highest`, and the value at each quantile.
    """

    frame: pl.DataFrame
    summary: pl.DataFrame
    layer: int

    def __repr__(self) -> str:
        kinds = ", ".join(self.frame["kind"].unique(maintain_order=True).to_list())
        count = f"{len(self.summary):,} directions over {self.summary['count'][0]:,} rows"
        return f"<Activations of {count} of layer {self.layer}: {kinds}>"

    def _repr_html_(self) -> str:
        """Show the best examples of the first directions, each subword shaded by its value."""
        import polars as pl

        lines = []
        for about in self.summary.head(SHOWN_DIRECTIONS).to_dicts():
            number, highest = about["direction"], about["highest"]
            chosen = (pl.col("direction") == number) & (pl.col("kind") == TOP) & (pl.col("rank") < SHOWN_EXAMPLES)
            for row in self.frame.filter(chosen).to_dicts():
                shades = [0.0 if value is None else value / highest if highest > 0 else 0.0 for value in row["values"]]
                share = "" if row["rank"] else f", {about['share']:.2%} of rows above 0"
                name = f"{number}: {row['value']:.3g}{share}"
                lines.append((name, html_shaded(row["pieces"], shades, row["center"])))
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

    The value of direction d with bias b in a row x is x . d + b: what the encoder of a sparse autoencoder,
    relu(x W + b), has before the ReLU, for the directions W^T.

    Parameters
    ----------
    data : Store or Selection
        The occurrences; each counts once.
    directions : array [n, features], or [features] for one
        As vectors are stored, not normalized.
    k : int
        How many rows with the highest values, and how many examples of each quantile, are found for a direction.
    layers : int or str
        One layer.
    bias : array [n] or number, optional
        Added to the values of each direction.
    quantiles : sequence of float
        Also the k rows next in rank to each of these quantiles of the values of a direction: of all rows or, of more
        than 65,536 (fewer where memory is short), of that many, one from each of as many equal stretches.
    around : int
        How many rows to the left and to the right in the same context are shown with their values.

    Returns
    -------
    Activations
        Its `frame` has the examples, its `summary` a line for each direction. The rows of `top` are those of float64,
        equal values in the order of rows; quantiles and the share above 0 are those of float32.

    Raises
    ------
    InvalidValueError
        For arrays of another shape, several layers, and more directions than fit into the memory of `es.config`.
    MissingRowsError, NonFiniteError
        For rows that are not written yet or not finite.

    Example::

        found = es.activations(store, weights.T, bias=bias, layers=6, quantiles=[0.5, 0.99])
        found.frame.filter(pl.col("direction") == 17)
    """
    layer, now, given = layer_of(data, layers), settings(), selected(data)
    store, rows = given.store, given.span if given.span is not None else np.unique(given.rows)
    compared = checked_queries(_checked_directions(directions, store), store.hidden_size, Space("ip"))
    biases = _checked_bias(bias, len(compared))
    search = Search(StoreVectors(store, layer), compared, k, Space("ip"), rows, (), None, thread_count(now.threads))
    _require_memory(search, now.nbytes)
    most = min(SAMPLE, max(k, now.nbytes // (16 * len(compared))))
    sample = stretches(len(rows), most, 0) if len(quantiles) else np.empty(0, np.int64)
    device = choose_device(now.device, float64=True)
    reducer = _Highest(search, biases, sample, device)
    options: dict[str, Any] = {"device": now.device, "threads": search.threads, "progress": now.progress}
    options |= {"block_rows": max(1, NUMBERS[device.type][0] // store.hidden_size), "max_states": search.threads + 2}
    chosen = slice(rows.start, rows.stop) if isinstance(rows, range) else rows
    found: _Found = scan(Selection(store, layers=layer, rows=chosen), {"": reducer}, **options)[layer][""]
    search.lengths.append(found.longest)
    hits = search.decide(*reducer.candidates(found))
    columns, kinds, ranks = [hits.rows[:, : len(rows)]], [TOP] * min(k, len(rows)), [np.arange(min(k, len(rows)))]
    centers = dict[str, int]()  # the column of the row at each quantile
    nearest = _near_quantiles(reducer.sampled, quantiles, k)
    for quantile, (near, center) in zip(quantiles, nearest, strict=True):
        centers[f"{quantile:g}"] = len(kinds) + center
        columns.append(np.asarray(rows)[sample[near]])
        kinds += [f"{quantile:g}"] * near.shape[1]
        ranks.append(np.arange(near.shape[1]))
    frame, values = _examples(search, biases, np.concatenate(columns, 1), kinds, np.concatenate(ranks), around, layer)
    return Activations(frame, _summary(compared, biases, found, len(rows), values, centers), layer)


def _checked_directions(directions: ArrayLike, store: Store) -> NDArray[Any]:
    array = as_matrix("directions", directions, single=True)
    if array.shape[1] != store.hidden_size:
        hint = ": give the transpose" if array.shape[0] == store.hidden_size else ""
        raise InvalidValueError(f"directions must be [n, {store.hidden_size}] as vectors are, not {array.shape}{hint}")
    return array


def _checked_bias(bias: ArrayLike | None, count: int) -> NDArray[np.float64]:
    """Return the bias of each direction, float64 [n]."""
    given = np.asarray(0.0 if bias is None else bias)
    if given.dtype.kind not in "fiu" or given.shape not in ((), (count,)) or not np.isfinite(given).all():
        raise InvalidValueError(f"bias of shape {given.shape} is not allowed: give {count:,} finite numbers, or one")
    return np.broadcast_to(given, count).astype(np.float64)


def _require_memory(search: Search, nbytes: int) -> None:
    """Raise InvalidValueError for more directions than the candidates of all threads have memory for."""
    candidates = 4 * TRIPLE_NBYTES * search.n_candidates * (search.threads + 1)
    needed = len(search.queries) * (16 * search.vectors.hidden_size + candidates)
    if needed > nbytes:
        raise InvalidValueError(
            f"{len(search.queries):,} directions need {needed:,} bytes, and memory is {nbytes:,}: give fewer at a time"
        )


class _Found:
    """What a part of the rows has: of each direction the rows above 0, and triples of a direction, value and row.

    `n_new`: the triples since the last selection of the highest.
    """

    def __init__(self, count: int, hidden_size: int) -> None:
        self.above, self.total, self.longest = np.zeros(count, np.int64), np.zeros(hidden_size), 0.0
        self.triples: list[_Triples] = []
        self.n_new = 0

    def add(self, triples: _Triples) -> None:
        self.triples.append(triples)
        self.n_new += len(triples[0])


class _Highest:
    """A reducer that collects somewhat more than the k rows with the highest values of each direction, in float32.

    `sampled`: float32 [direction, n], the values of the rows at the positions `sample`.
    """

    def __init__(
        self, search: Search, bias: NDArray[np.float64], sample: NDArray[np.int64], device: torch.device
    ) -> None:
        self._directions = torch.from_numpy(search.queries32).to(device)
        self._zero = torch.from_numpy(-bias.astype(np.float32)).to(device)[:, None]
        self._n_best, self._sample, self._lock = search.n_candidates, sample, Lock()
        self.sampled = np.empty((len(bias), len(sample)), np.float32)
        # Threads share the lowest useful value of each direction; that of any part of the rows is a valid bound.
        self._least = torch.full_like(self._zero, -torch.inf)

    def init(self, scope: Scope) -> _Found:
        return _Found(len(self._zero), scope.hidden_size)

    def update(self, state: _Found, batch: Batch) -> _Found:
        vectors = batch.vectors
        state.longest = max(state.longest, float(batch.norms.max()))
        state.total += vectors.sum(0, dtype=torch.float64).cpu().numpy()
        left, right = np.searchsorted(self._sample, (batch.start, batch.start + len(batch)))
        chosen = torch.from_numpy(self._sample[left:right] - batch.start).to(vectors.device)
        step = max(1, NUMBERS[vectors.device.type][1] // len(batch))
        is_above, ones = vectors.new_empty(min(step, len(self._zero)), len(batch)), vectors.new_ones(len(batch))
        for start in range(0, len(self._zero), step):
            part = slice(start, start + step)
            values = self._directions[part] @ vectors.T
            # Sums of floats are ten times as fast as those of booleans, and exact for numbers as small as these.
            above = torch.gt(values, self._zero[part], out=is_above[: len(values)]) @ ones
            state.above[part] += above.cpu().numpy().astype(np.int64)
            if len(chosen):
                self.sampled[part, left:right] = values[:, chosen].cpu().numpy()
            numbers, high, places = _above(values, self._least[part], self._n_best)
            state.add((numbers + start, high, batch.rows[places]))
        if state.n_new >= self._n_best * len(self._zero):
            self._select(state)
        return state

    def merge(self, state: _Found, other: _Found) -> _Found:
        state.above += other.above
        state.total += other.total
        state.longest = max(state.longest, other.longest)
        for triples in other.triples:
            state.add(triples)
        self._select(state)
        return state

    def finish(self, state: _Found, scope: Scope) -> _Found:
        self._select(state)
        return state

    def _select(self, state: _Found) -> None:
        """Keep the highest triples of each direction, and raise the lowest useful value."""
        numbers, values, rows = (np.concatenate(parts) for parts in zip(*state.triples, strict=True))
        order = np.lexsort((rows, -values, numbers))
        first = np.searchsorted(numbers[order], np.arange(len(self._zero)))
        rank = np.arange(len(order)) - first[numbers[order]]
        kept = order[rank < self._n_best]
        state.triples, state.n_new = [(numbers[kept], values[kept], rows[kept])], 0
        last = order[rank == self._n_best - 1]
        least = np.full((len(self._zero), 1), -np.inf, np.float32)
        least[numbers[last], 0] = values[last]
        with self._lock:
            self._least = torch.maximum(self._least, torch.from_numpy(least).to(self._least.device))

    def candidates(self, found: _Found) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return values and rows [direction, n] of all that was found; each direction has as many."""
        ((_, values, rows),) = found.triples
        return values.reshape(len(self._zero), -1), rows.reshape(len(self._zero), -1)


def _above(values: torch.Tensor, least: torch.Tensor, n_best: int) -> _Triples:
    """Return directions, values and positions of what is above `least` [n, 1], of `values` [n, position]."""
    if bool(torch.isinf(least).any()):
        high, places = values.topk(min(n_best, values.shape[1]), 1, sorted=False)
        numbers = np.arange(len(values)).repeat(high.shape[1])
        return numbers, high.cpu().numpy().ravel(), places.cpu().numpy().ravel()
    mask = values > least
    if values.device.type == "cpu":
        numbers, columns = np.divmod(np.flatnonzero(mask.numpy()), values.shape[1])
        return numbers, values.numpy()[numbers, columns], columns
    numbers, columns = mask.nonzero().cpu().numpy().T
    return numbers, values[mask].cpu().numpy(), columns


def _near_quantiles(values: NDArray[np.float32], quantiles: Sequence[float], k: int) -> Iterator[_Near]:
    """Yield for each quantile the positions next in rank to it in each line of `values` [direction, n].

    Equal values are in the order of positions.
    """
    n = values.shape[1]
    centers = [round(quantile * (n - 1)) for quantile in quantiles]
    lows = [min(max(0, center - k // 2), max(0, n - k)) for center in centers]
    found = [np.empty((len(values), min(k, n)), np.int64) for _ in quantiles]
    for number, own in enumerate(values):
        ordered = np.sort(own)
        for low, near in zip(lows, found, strict=True):
            high = low + near.shape[1]
            some = np.flatnonzero((own >= ordered[low]) & (own <= ordered[high - 1]))
            some = some[np.argsort(-own[some], kind="stable")]
            n_above = n - int(np.searchsorted(ordered, ordered[high - 1], "right"))
            near[number] = some[n - high - n_above :][: near.shape[1]]
    for center, low, near in zip(centers, lows, found, strict=True):
        yield near, low + near.shape[1] - 1 - center


def _examples(
    search: Search,
    bias: NDArray[np.float64],
    rows: NDArray[np.int64],
    kinds: Sequence[str],
    ranks: NDArray[np.int64],
    around: int,
    layer: int,
) -> tuple[pl.DataFrame, NDArray[np.float64]]:
    """Return a line for each of the rows [direction, n], and their values [direction, n]."""
    import polars as pl

    assert isinstance(search.vectors, StoreVectors)
    store, size = search.vectors.store, search.vectors.hidden_size
    owners, flat = np.arange(len(rows)).repeat(rows.shape[1]), rows.ravel()
    first, stop = _context_of(store.index, flat)
    first, stop = np.maximum(first, flat - around), np.minimum(stop, flat + around + 1)
    lengths = stop - first
    shown, values = ragged_indices(first, lengths), []
    bounds = np.append(0, np.cumsum(lengths))
    step = max(1, RESCORED_NUMBERS // (size * int(lengths.max())))
    for begin in range(0, len(flat), step):
        part = slice(begin, begin + step)
        wanted, numbers = np.unique(shown[bounds[begin] : bounds[min(begin + step, len(flat))]], return_inverse=True)
        own = owners[part].repeat(lengths[part])
        vectors = store.vectors(wanted, layers=layer, missing="nan")[0]
        values.append(search.pair_scores(vectors, own, numbers) + bias[own])
    every, center = np.concatenate(values), flat - first
    distinct, numbers = np.unique(shown, return_inverse=True)
    lists = pl.DataFrame(
        {
            "example": np.arange(len(flat)).repeat(lengths),
            "rows": shown,
            "pieces": pl.Series(list(_pieces(store.index, distinct)), dtype=pl.String).gather(numbers),
            "values": pl.Series(every, nan_to_null=True),
        }
    )
    own_values = every[bounds[:-1] + center]
    frame = pl.DataFrame(
        {
            "direction": owners,
            "kind": pl.Series(list(kinds)).gather(np.tile(np.arange(len(kinds)), len(rows))),
            "rank": np.tile(ranks, len(rows)),
            "occurrence": flat,
            "value": own_values,
        }
    )
    context = lists.group_by("example", maintain_order=True).agg("pieces", "values", "rows").drop("example")
    frame = pl.concat([frame, context], how="horizontal").with_columns(center=center)
    return frame, own_values.reshape(rows.shape)


def _context_of(index: Index, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first row of the context of each row, and the one after its last."""
    if index.contexts is None:
        indptr, number = index.indptr, np.asarray(index.sentence[rows])
    else:
        indptr, number = index.contexts.indptr, index.contexts.of_rows(rows)
    return np.asarray(indptr[number]), np.asarray(indptr[number + 1])


def _pieces(index: Index, rows: NDArray[np.int64]) -> Iterator[str]:
    """Yield the text of ascending rows: up to the next row's, so that the pieces of a sentence are its text.

    White space belongs to the row after it, unless a row is white space itself. A special token is spelled.
    """
    n_rows = len(index.type)
    around = np.clip(rows + np.array([[-1], [0], [1]]), 0, n_rows - 1)
    sentences = np.asarray(index.sentence[around])
    starts, stops = _characters(index, around, sentences)
    has_before, has_next = sentences[[0, 2]] == sentences[1]
    has_before &= rows > 0
    has_next &= rows < n_rows - 1
    begin = np.where(has_before, np.where(starts[0] == stops[0], starts[1], stops[0]), 0)
    end = np.where(has_next, np.where(starts[1] == stops[1], starts[2], stops[1]), np.iinfo(np.int64).max)
    n_words = index.text.word_indptr[sentences[1] + 1] - index.text.word_indptr[sentences[1]]
    is_special = (index.position[rows] < 0) | (index.position[rows] >= n_words)
    last, text = -1, ""
    for row, sentence, special, left, right in zip(
        rows.tolist(), sentences[1].tolist(), is_special.tolist(), begin.tolist(), end.tolist(), strict=True
    ):
        if sentence != last:
            last, text = sentence, index.text.pieces[sentence]
        yield index.words[int(index.type[row])] if special else text[left:right]


def _characters(
    index: Index, rows: NDArray[np.int64], sentences: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the characters of rows, counted from the beginning of the piece of text of their sentence."""
    text = index.text
    if index.subword is None or text.subword_start is None or text.subword_stop is None:
        starts, stops = (each.reshape(rows.shape) for each in index.spans(rows.ravel()))
        return starts + text.start[sentences], stops + text.start[sentences]
    own = np.minimum(text.subword_indptr[sentences] + np.maximum(index.subword[rows], 0), len(text.ids) - 1)
    return np.asarray(text.subword_start[own], np.int64), np.asarray(text.subword_stop[own], np.int64)


def _summary(
    directions: NDArray[np.float64],
    bias: NDArray[np.float64],
    found: _Found,
    n_rows: int,
    values: NDArray[np.float64],
    centers: dict[str, int],
) -> pl.DataFrame:
    import polars as pl

    return pl.DataFrame(
        {
            "direction": np.arange(len(bias)),
            "count": np.full(len(bias), n_rows),
            "share": found.above / n_rows,
            "mean": directions @ (found.total / n_rows) + bias,
            "highest": values[:, 0],
            **{f"quantile_{name}": values[:, column] for name, column in centers.items()},
        }
    )
