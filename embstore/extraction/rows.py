"""From a survey to the index of a store: which candidates get a row, and which row."""

from __future__ import annotations

from collections.abc import Iterable
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
        texts=_texts(found, chosen),
        indptr=_indptr(columns.read("sentence", np.int64), len(chosen)),
        source=chosen,
        labels={
            label: Labels(columns.read(f"label/{label}", np.int32), Strings.of(names))
            for label, names in found.labels.items()
        },
    )
    return index, tuple(dropped.values())


def _kept_rows(found: Survey, keep: Keep) -> NDArray[np.int64] | None:
    """The candidates that get a row, ascending; None for all of them."""
    if keep == Keep(seed=keep.seed):
        return None
    spool = found.spool
    return keep.rows(
        type=spool.read("type", np.int32),
        sentence=spool.read("sentence", np.int64),
        context=spool.read("context", np.uint64),
        labels={name: spool.read(f"label/{name}", np.int32) for name in found.labels},
        forms=list(found.types),
    )


class _Columns:
    """The kept part of a survey's columns, written beside them under names of their own."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool

    def read(self, name: str, dtype: DTypeLike) -> NDArray[Any]:
        return self._spool.read(f"kept/{name}", dtype)

    def replace(self, name: str, values: Iterable[NDArray[Any]]) -> None:
        for block in values:
            self._spool.append(f"new/{name}", block)
        self._spool.rename(f"new/{name}", f"kept/{name}")

    def take(self, name: str, rows: NDArray[np.int64] | None, dtype: DTypeLike) -> None:
        """Keep the rows of a column."""
        values = self._spool.read(name, dtype)
        for start in range(0, len(values) if rows is None else len(rows), BLOCK):
            block = slice(start, start + BLOCK)
            self._spool.append(f"kept/{name}", values[block] if rows is None else values[rows[block]])

    def renumber(self, name: str, rows: NDArray[np.int64] | None, numbers: int, dtype: DTypeLike) -> NDArray[np.int64]:
        """Keep the rows of a column of numbers, counted anew over those that occur; returns these, ascending."""
        self.take(name, rows, dtype)
        values = self.read(name, dtype)
        occurs = np.zeros(numbers, bool)
        for start in range(0, len(values), BLOCK):
            occurs[values[start : start + BLOCK]] = True
        used = np.flatnonzero(occurs).astype(np.int64)
        if len(used) < numbers:
            anew = np.cumsum(occurs) - 1
            blocks = (anew[values[start : start + BLOCK]].astype(dtype) for start in range(0, len(values), BLOCK))
            self.replace(name, blocks)
        return used


def _chosen(types: Iterable[str], used: NDArray[np.int64]) -> list[str]:
    names = list(types)
    return [names[number] for number in used.tolist()]


def _expand(columns: _Columns, found: Survey, rows: NDArray[np.int64] | None, encoder: Encoder) -> list[str]:
    """Give every subword of the kept words a row of its own; returns the spellings of the subwords in use."""
    many = columns.read("subwords", np.int16).astype(np.int64)
    stop = np.cumsum(found.spool.read("subwords", np.int16), dtype=np.int64)
    stop = stop if rows is None else stop[rows]
    ids = found.spool.read("ids", np.int32)[ranges(stop - many, stop)]
    used, types = np.unique(ids, return_inverse=True)
    for name, dtype in (("sentence", np.int64), ("position", np.int32)):
        columns.replace(name, [np.repeat(columns.read(name, dtype), many)])
    for label in found.labels:
        columns.replace(f"label/{label}", [np.repeat(columns.read(f"label/{label}", np.int32), many)])
    columns.replace("type", [types.astype(np.int32)])
    columns.replace("subwords", [np.ones(len(ids), np.int16)])
    return [encoder.piece(int(number)) for number in used]


def _texts(found: Survey, chosen: NDArray[np.int64]) -> Strings:
    lengths = found.spool.read("text_bytes", np.int32)
    data = found.spool.read("text", np.uint8)
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    if len(chosen) == found.sentences:
        return Strings(ends, data)
    offsets = np.zeros(len(chosen) + 1, np.int64)
    np.cumsum(lengths[chosen], out=offsets[1:])
    step = 2**14
    for first in range(0, len(chosen), step):
        part = chosen[first : first + step]
        found.spool.append("kept/text", data[ranges(ends[part], ends[part + 1])])
    return Strings(offsets, found.spool.read("kept/text", np.uint8))


def _indptr(sentence: NDArray[np.int64], sentences: int) -> NDArray[np.int64]:
    counts = np.zeros(sentences, np.int64)
    for start in range(0, len(sentence), BLOCK):
        block = sentence[start : start + BLOCK]
        if len(block):
            counts[block[0] : block[-1] + 1] += np.bincount(block - block[0])
    indptr = np.zeros(sentences + 1, np.int64)
    np.cumsum(counts, out=indptr[1:])
    return indptr
