"""From a survey to the index of a store: which candidates get a row, and which row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from embstore.corpus.keep import Keep
from embstore.extraction.spool import BLOCK, Spool
from embstore.extraction.survey import NOT_CHOSEN, Survey, ranges
from embstore.models.encoder import Encoder
from embstore.store.index import Index, Labels, Strings
from embstore.store.metadata import Dropped


def index_of(found: Survey, *, keep: Keep, unit: str, encoder: Encoder) -> tuple[Index, tuple[Dropped, ...]]:
    """Choose the rows and number words and sentences anew, so that only those with a row are in the store.

    Returns the index, its columns memory-mapped from the spool, and what was dropped.
    """
    rows = _kept_rows(found, keep)
    dropped = dict(found.dropped)
    left_out = found.spool.length("type") - (found.spool.length("type") if rows is None else len(rows))
    if left_out:
        dropped[NOT_CHOSEN] = Dropped(NOT_CHOSEN, left_out, ())
    columns = _Columns(found.spool)
    columns.take("subwords", rows, np.int16)
    columns.take("position", rows, np.int32)
    for label in found.labels:
        columns.take(f"label/{label}", rows, np.int32)
    chosen = columns.renumber("sentence", rows, found.sentences, np.int64)
    used = columns.renumber("type", rows, len(found.types), np.int32)
    words: Iterable[str] = found.types if len(used) == len(found.types) else _chosen(found.types, used)
    if unit == "subword":
        words = _expand(columns, found, rows, encoder)
    index = Index(
        type=columns.read("type", np.int32),
        sentence=columns.read("sentence", np.int64),
        position=columns.read("position", np.int32),
        subwords=columns.read("subwords", np.int16),
        words=Strings.of(words),
        texts=_texts(columns, found, chosen),
        indptr=columns.made("sentence/indptr", _starts(columns.read("sentence", np.int64)), np.int64),
        source=chosen,
        labels={
            label: Labels(columns.read(f"label/{label}", np.int32), Strings.of(names))
            for label, names in found.labels.items()
        },
    )
    return index, tuple(dropped.values())


def _kept_rows(found: Survey, keep: Keep) -> NDArray[np.int64] | None:
    """The candidates that get a row, ascending, memory-mapped; None for all of them."""
    if keep == Keep(seed=keep.seed):
        return None
    spool = found.spool
    kept = keep.mask(
        types=spool.read("type", np.int32),
        sentences=spool.read("sentence", np.int64),
        contexts=spool.read("context", np.uint64),
        labels={name: spool.read(f"label/{name}", np.int32) for name in found.labels},
        forms=list(found.types),
    )
    return _Columns(spool).made("rows", _places(kept), np.int64)


class _Columns:
    """The kept part of a survey's columns: theirs where all is kept, else beside them under names of their own."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._own: set[str] = set()

    def read(self, name: str, dtype: DTypeLike) -> NDArray[Any]:
        return self._spool.read(f"kept/{name}" if name in self._own else name, dtype)

    def replace(self, name: str, values: Iterable[NDArray[Any]]) -> None:
        """Put values that come block after block, and may come from the column itself, in its place."""
        for block in values:
            self._spool.append(f"new/{name}", block)
        self._spool.rename(f"new/{name}", f"kept/{name}")
        self._own.add(name)

    def made(self, name: str, values: Iterable[NDArray[Any]], dtype: DTypeLike) -> NDArray[Any]:
        """Make a column and map it."""
        self.replace(name, values)
        return self.read(name, dtype)

    def take(self, name: str, rows: NDArray[np.int64] | None, dtype: DTypeLike) -> None:
        """Keep the rows of a column."""
        if rows is not None:
            values = self._spool.read(name, dtype)
            self.replace(name, (values[rows[block]] for block in _blocks(len(rows))))

    def renumber(self, name: str, rows: NDArray[np.int64] | None, numbers: int, dtype: DTypeLike) -> NDArray[np.int64]:
        """Keep the rows of a column of numbers, counted anew over those that occur; returns these, ascending."""
        self.take(name, rows, dtype)
        values = self.read(name, dtype)
        occurs = _occurring(values, numbers)
        used = self.made(f"{name}/used", _places(occurs), np.int64)
        if len(used) < numbers:
            anew = self.made(f"{name}/anew", _bounds(occurs[block] for block in _blocks(numbers)), np.int64)
            self.replace(name, (anew[values[block]].astype(dtype) for block in _blocks(len(values))))
        return used


def _blocks(length: int) -> Iterator[slice]:
    for start in range(0, length, BLOCK):
        yield slice(start, min(start + BLOCK, length))


def _places(mask: NDArray[np.bool_]) -> Iterator[NDArray[np.int64]]:
    for block in _blocks(len(mask)):
        yield np.flatnonzero(mask[block]) + block.start


def _occurring(values: NDArray[np.integer], numbers: int) -> NDArray[np.bool_]:
    """Say of each number below `numbers` whether it is among the values."""
    occurs = np.zeros(numbers, bool)
    for block in _blocks(len(values)):
        occurs[values[block]] = True
    return occurs


def _bounds(blocks: Iterable[NDArray[Any]]) -> Iterator[NDArray[np.int64]]:
    """0, and then what numbers that come block after block add up to by each of them."""
    total = 0
    yield np.zeros(1, np.int64)
    for block in blocks:
        sums = np.cumsum(block, dtype=np.int64) + total
        total = int(sums[-1]) if len(sums) else total
        yield sums


def _chosen(types: Iterable[str], used: NDArray[np.int64]) -> list[str]:
    names = list(types)
    return [names[number] for number in used.tolist()]


def _expand(columns: _Columns, found: Survey, rows: NDArray[np.int64] | None, encoder: Encoder) -> list[str]:
    """Give every subword of the kept words a row of its own; returns the spellings of the subwords in use."""
    many = columns.read("subwords", np.int16)
    of_all = found.spool.read("subwords", np.int16)
    bounds = columns.made("ids/bounds", _bounds(of_all[block] for block in _blocks(len(of_all))), np.int64)
    all_ids = found.spool.read("ids", np.int32)

    def ids_of(block: slice) -> NDArray[np.int32]:
        first = np.arange(block.start, block.stop) if rows is None else rows[block]
        return all_ids[ranges(bounds[first], bounds[first + 1])]

    ids = columns.made("ids", (ids_of(block) for block in _blocks(len(many))), np.int32)
    occurs = _occurring(ids, 1 + max((int(ids[block].max()) for block in _blocks(len(ids))), default=-1))
    anew = np.cumsum(occurs, dtype=np.int32) - 1
    columns.replace("type", (anew[ids[block]].astype(np.int32) for block in _blocks(len(ids))))
    spread = [("sentence", np.int64), ("position", np.int32), *((f"label/{label}", np.int32) for label in found.labels)]
    for name, dtype in spread:
        values = columns.read(name, dtype)
        columns.replace(name, (np.repeat(values[block], many[block]) for block in _blocks(len(many))))
    columns.replace("subwords", (np.ones(block.stop - block.start, np.int16) for block in _blocks(len(ids))))
    return [encoder.subword_text(number) for number in np.flatnonzero(occurs).tolist()]


def _texts(columns: _Columns, found: Survey, chosen: NDArray[np.int64]) -> Strings:
    lengths = found.spool.read("text_bytes", np.int32)
    data = found.spool.read("text", np.uint8)
    bounds = columns.made("text/bounds", _bounds(lengths[block] for block in _blocks(len(lengths))), np.int64)
    if len(chosen) == found.sentences:
        return Strings(bounds, data)
    kept = _bounds(lengths[chosen[block]] for block in _blocks(len(chosen)))
    step = 2**14
    parts = (chosen[first : first + step] for first in range(0, len(chosen), step))
    columns.replace("text", (data[ranges(bounds[part], bounds[part + 1])] for part in parts))
    return Strings(columns.made("text/offsets", kept, np.int64), columns.read("text", np.uint8))


def _starts(sentence: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """The first row of each sentence, and the number of rows; sentences ascend from 0 and each has a row."""
    before = -1
    for block in _blocks(len(sentence)):
        numbers = sentence[block]
        yield np.flatnonzero(np.diff(numbers, prepend=before)) + block.start
        before = int(numbers[-1])
    yield np.array([len(sentence)])
