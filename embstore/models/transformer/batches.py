"""How sentences are laid into the rows of batches: packed, padded, only with others of their length, or end to end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Batching = Literal["packed", "padded", "equal", "varlen"]
BATCHINGS: tuple[Batching, ...] = get_args(Batching)
ROW_CAPACITY = {"cpu": 64, "cuda": 128}

_Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """One rectangle of subwords.

    `sentences`: int64 [n], which sentences are in it (indices of the lengths given to `lay_out`).
    `rows`, `columns`: int64 [n], where each one's first subword stands. `shape`: rows and columns.
    """

    sentences: _Indices
    rows: _Indices
    columns: _Indices
    shape: tuple[int, int]

    @property
    def positions(self) -> int:
        """How many subwords it has room for."""
        return self.shape[0] * self.shape[1]


def lay_out(lengths: _Indices, *, how: Batching, batch_subwords: int, row_capacity: int = 64) -> Iterator[Batch]:
    """Lay sentences of `lengths` subwords (specials counted) into batches of about `batch_subwords` positions.

    Longest first, so that a batch too large for the memory fails at once. Depends on the arguments alone.
    """
    if how == "packed":
        return _packed(lengths, batch_subwords, row_capacity)
    if how == "varlen":
        return _end_to_end(lengths, batch_subwords)
    return _rows_of_one(lengths, batch_subwords, equal=how == "equal")


def halves(
    batch: Batch, lengths: _Indices, *, how: Batching, batch_subwords: int, row_capacity: int = 64
) -> list[Batch]:
    """Lay the sentences of a batch out again in two halves, each of one batch or more of at most `batch_subwords`.

    `lengths`: those given to `lay_out`. A batch of one sentence is returned as it is.
    """
    if len(batch.sentences) < 2:
        return [batch]
    inside = np.cumsum(lengths[batch.sentences])
    middle = min(max(1, int(np.searchsorted(inside, inside[-1] // 2, side="right"))), len(inside) - 1)
    made = []
    for half in (batch.sentences[:middle], batch.sentences[middle:]):
        for part in lay_out(lengths[half], how=how, batch_subwords=batch_subwords, row_capacity=row_capacity):
            made.append(Batch(half[part.sentences], part.rows, part.columns, part.shape))
    return made


def _packed(lengths: _Indices, batch_subwords: int, row_capacity: int) -> Iterator[Batch]:
    rows, columns, capacities = pack(lengths, row_capacity)
    by_row = np.lexsort((columns, rows))
    first_of_row = np.searchsorted(rows[by_row], np.arange(len(capacities) + 1))
    used = np.zeros(len(capacities), np.int64)
    np.maximum.at(used, rows, columns + lengths)
    start = 0
    while start < len(capacities):
        capacity = int(capacities[start])
        same = int(np.searchsorted(-capacities, -capacity, side="right"))
        stop = min(start + max(1, batch_subwords // capacity), same)
        sentences = by_row[first_of_row[start] : first_of_row[stop]]
        shape = (stop - start, int(used[start:stop].max()))
        yield Batch(sentences, rows[sentences] - start, columns[sentences], shape)
        start = stop


def pack(lengths: _Indices, row_capacity: int) -> tuple[_Indices, _Indices, _Indices]:
    """Pack sentences best-fit-decreasing into rows of `row_capacity`, doubled for those that are longer.

    Returns row and column of each sentence, and the capacity of each row, descending. Sentences of one
    length are placed together, so the work grows with the distinct lengths, not with the sentences.
    """
    rows = np.empty(len(lengths), np.int64)
    columns = np.empty(len(lengths), np.int64)
    capacities: list[_Indices] = []
    opened = 0
    free: dict[int, list[_Indices]] = {}  # space left -> the rows that have it
    capacity_of = np.empty(0, np.int64)
    order = np.argsort(-lengths, kind="stable")
    if not len(order):
        return rows, columns, capacity_of
    distinct, starts = np.unique(-lengths[order], return_index=True)
    for length, start, stop in zip(-distinct, starts, np.append(starts[1:], len(order)), strict=True):
        waiting = order[start:stop]
        for space in sorted(space for space in free if space >= length):
            open_rows = np.concatenate(free.pop(space))
            each = space // length
            taken = min(len(open_rows), -(-len(waiting) // each))
            placed, waiting = waiting[: taken * each], waiting[taken * each :]
            ends = capacity_of[open_rows[:taken]] - space
            _place(placed, open_rows[:taken], ends, int(length), each, rows, columns)
            _record(free, open_rows[:taken], space, int(length), len(placed), each)
            if taken < len(open_rows):
                free.setdefault(space, []).insert(0, open_rows[taken:])
                break
        if len(waiting):
            capacity = fitting_capacity(int(length), row_capacity)
            each = capacity // length
            fresh = np.arange(opened, opened + -(-len(waiting) // each))
            opened += len(fresh)
            capacities.append(np.full(len(fresh), capacity))
            capacity_of = np.concatenate([capacity_of, capacities[-1]])
            _place(waiting, fresh, np.zeros(len(fresh), np.int64), int(length), each, rows, columns)
            _record(free, fresh, capacity, int(length), len(waiting), each)
    return rows, columns, capacity_of


def fitting_capacity(length: int, row_capacity: int) -> int:
    """Return `row_capacity` doubled until a sentence of `length` fits."""
    capacity = row_capacity
    while capacity < length:
        capacity *= 2
    return capacity


def _place(
    sentences: _Indices, into: _Indices, ends: _Indices, length: int, each: int, rows: _Indices, columns: _Indices
) -> None:
    """Put `each` sentences of one length into every row, from where the row ends so far."""
    slot = np.arange(len(sentences))
    rows[sentences] = into[slot // each]
    columns[sentences] = ends[slot // each] + slot % each * length


def _record(free: dict[int, list[_Indices]], into: _Indices, space: int, length: int, placed: int, each: int) -> None:
    """Note what space is left in rows that took `each` sentences each, the last of them perhaps fewer."""
    full = placed // each
    if full:
        free.setdefault(space - each * length, []).append(into[:full])
    if placed > full * each:
        free.setdefault(space - (placed - full * each) * length, []).append(into[full:])


def _rows_of_one(lengths: _Indices, batch_subwords: int, *, equal: bool) -> Iterator[Batch]:
    order = np.argsort(-lengths, kind="stable")
    ordered = lengths[order]
    start = 0
    while start < len(order):
        longest = int(ordered[start])
        stop = min(start + max(1, batch_subwords // longest), len(order))
        if equal:
            stop = min(stop, int(np.searchsorted(-ordered, -longest, side="right")))
        count = stop - start
        yield Batch(order[start:stop], np.arange(count), np.zeros(count, np.int64), (count, longest))
        start = stop


def _end_to_end(lengths: _Indices, batch_subwords: int) -> Iterator[Batch]:
    """One row a batch, with nothing between its sentences; those of one length are neighbours."""
    order = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    start = 0
    while start < len(order):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + batch_subwords, side="right")))
        columns = ends[start:stop] - lengths[order[start:stop]] - before
        yield Batch(order[start:stop], np.zeros(stop - start, np.int64), columns, (1, int(ends[stop - 1]) - before))
        start = stop
