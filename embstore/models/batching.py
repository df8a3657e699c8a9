"""Arrange sentences in batches: packed into rows, padded, only with others of their length, or end to end."""

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

    `sentences`: int64 [n], the sentences in it (indices of the lengths given to `make_batches`). `rows`, `columns`:
    int64 [n], the position of each one's first subword. `shape`: numbers of rows and columns.
    """

    sentences: _Indices
    rows: _Indices
    columns: _Indices
    shape: tuple[int, int]

    @property
    def positions(self) -> int:
        """Return the number of positions, padding included."""
        return self.shape[0] * self.shape[1]


def make_batches(lengths: _Indices, *, how: Batching, batch_subwords: int, row_capacity: int = 64) -> Iterator[Batch]:
    """Arrange sentences of `lengths` subwords (special ones included) in batches of about `batch_subwords` positions.

    The longest come first, so that a batch too large for the memory fails at once. Depends on the arguments alone.
    """
    if how == "packed":
        return _packed_batches(lengths, batch_subwords, row_capacity)
    if how == "varlen":
        return _end_to_end_batches(lengths, batch_subwords)
    return _padded_batches(lengths, batch_subwords, equal=how == "equal")


def split_batch(
    batch: Batch, lengths: _Indices, *, how: Batching, batch_subwords: int, row_capacity: int = 64
) -> list[Batch]:
    """Arrange the sentences of a batch in two halves, each of one or more batches of at most `batch_subwords`.

    `lengths`: those given to `make_batches`. A batch of one sentence is returned unchanged.
    """
    if len(batch.sentences) < 2:
        return [batch]
    ends = np.cumsum(lengths[batch.sentences])
    middle = min(max(1, int(np.searchsorted(ends, ends[-1] // 2, side="right"))), len(ends) - 1)
    parts = []
    for half in (batch.sentences[:middle], batch.sentences[middle:]):
        for part in make_batches(lengths[half], how=how, batch_subwords=batch_subwords, row_capacity=row_capacity):
            parts.append(Batch(half[part.sentences], part.rows, part.columns, part.shape))
    return parts


def fitting_capacity(length: int, row_capacity: int) -> int:
    """Return `row_capacity`, doubled until a sentence of `length` fits."""
    capacity = row_capacity
    while capacity < length:
        capacity *= 2
    return capacity


def pack(lengths: _Indices, row_capacity: int) -> tuple[_Indices, _Indices, _Indices]:
    """Pack sentences best-fit-decreasing into rows of `row_capacity`, doubled for longer sentences.

    Returns the row and the column of each sentence, and the capacity of each row, descending. Sentences of one length
    are placed together, so the time grows with the number of distinct lengths, not of sentences.
    """
    rows, columns = np.empty(len(lengths), np.int64), np.empty(len(lengths), np.int64)
    capacity_of = np.empty(0, np.int64)
    free: dict[int, list[_Indices]] = {}  # free positions -> the rows that have them
    order = np.argsort(-lengths, kind="stable")
    if not len(order):
        return rows, columns, capacity_of
    distinct, starts = np.unique(-lengths[order], return_index=True)

    def place(sentences: _Indices, into: _Indices, space: int, length: int) -> None:
        """Put as many sentences of one length as fit into each row, after what the row already holds."""
        each = space // length
        slot = np.arange(len(sentences))
        rows[sentences] = into[slot // each]
        columns[sentences] = (capacity_of[into] - space)[slot // each] + slot % each * length
        full = len(sentences) // each
        if full:
            free.setdefault(space - each * length, []).append(into[:full])
        if len(sentences) > full * each:
            free.setdefault(space - (len(sentences) - full * each) * length, []).append(into[full:])

    for length, start, stop in zip((-distinct).tolist(), starts, np.append(starts[1:], len(order)), strict=True):
        waiting = order[start:stop]
        for space in sorted(space for space in free if space >= length):
            open_rows = np.concatenate(free.pop(space))
            taken = min(len(open_rows), -(-len(waiting) // (space // length)))
            placed, waiting = np.split(waiting, [taken * (space // length)])
            place(placed, open_rows[:taken], space, length)
            if taken < len(open_rows):
                free.setdefault(space, []).insert(0, open_rows[taken:])
                break
        if len(waiting):
            capacity = fitting_capacity(length, row_capacity)
            n_new = -(-len(waiting) // (capacity // length))
            new_rows = np.arange(len(capacity_of), len(capacity_of) + n_new)
            capacity_of = np.concatenate([capacity_of, np.full(n_new, capacity)])
            place(waiting, new_rows, capacity, length)
    return rows, columns, capacity_of


def _packed_batches(lengths: _Indices, batch_subwords: int, row_capacity: int) -> Iterator[Batch]:
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


def _padded_batches(lengths: _Indices, batch_subwords: int, *, equal: bool) -> Iterator[Batch]:
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


def _end_to_end_batches(lengths: _Indices, batch_subwords: int) -> Iterator[Batch]:
    """Yield batches of one row without padding; sentences of one length are neighbors."""
    order = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    start = 0
    while start < len(order):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + batch_subwords, side="right")))
        columns = ends[start:stop] - lengths[order[start:stop]] - before
        yield Batch(order[start:stop], np.zeros(stop - start, np.int64), columns, (1, int(ends[stop - 1]) - before))
        start = stop
