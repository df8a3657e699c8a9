"""From a survey to the index of a store: which units get a row, and in which order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from embstore.corpus import Keep
from embstore.corpus.keep import blocks_of
from embstore.extraction.spool import BLOCK, Spool
from embstore.extraction.survey import NOT_CHOSEN, Survey
from embstore.models.encoder import Encoder, ragged_indices
from embstore.store import Dropped, Index, Labels, Strings
from embstore.store.index import SPECIAL, Field

TEXT_BLOCK = 2**14


def make_index(found: Survey, *, keep: Keep, unit: str, encoder: Encoder) -> tuple[Index, tuple[Dropped, ...]]:
    """Choose the rows and renumber words and sentences, so that only those with a row are stored.

    Returns the index, its columns memory-mapped from the spool, and what was dropped.
    """
    rows = _chosen_rows(found, keep)
    dropped = dict(found.dropped)
    n_units = found.spool.length("type")
    if rows is not None and len(rows) < n_units:
        dropped[NOT_CHOSEN] = Dropped(NOT_CHOSEN, n_units - len(rows), ())
    columns = _Columns(found.spool)
    columns.take("subwords", rows, np.int16)
    columns.take("position", rows, np.int32)
    for label in found.labels:
        columns.take(f"label/{label}", rows, np.int32)
    sentences = columns.renumber("sentence", rows, found.n_sentences, np.int64)
    types = columns.renumber("type", rows, len(found.types), np.int32)
    words: Iterable[str] = found.types
    if len(types) < len(found.types):
        names = list(found.types)
        words = [names[number] for number in types.tolist()]
    if unit == "subword":
        words = _expand(columns, found, rows, encoder)
    index = Index(
        type=columns.read("type", np.int32),
        sentence=columns.read("sentence", np.int64),
        position=columns.read("position", np.int32),
        subwords=columns.read("subwords", np.int16),
        words=Strings.of(words),
        texts=_texts(columns, found, sentences),
        indptr=columns.add("sentence/indptr", _starts(columns.read("sentence", np.int64)), np.int64),
        source=sentences,
        labels={
            label: Labels(columns.read(f"label/{label}", np.int32), Strings.of(names))
            for label, names in found.labels.items()
        },
        **_documents(columns, found, sentences),
    )
    return index, tuple(dropped.values())


def _chosen_rows(found: Survey, keep: Keep) -> NDArray[np.int64] | None:
    """Return the units that get a row, ascending and memory-mapped; None for all of them."""
    if keep == Keep(seed=keep.seed):
        return None
    spool = found.spool
    labels = {name: spool.read(f"label/{name}", np.int32) for name in found.labels}
    mask = keep.mask(
        types=spool.read("type", np.int32),
        sentences=spool.read("sentence", np.int64),
        contexts=spool.read("context", np.uint64),
        labels={name: codes for name, codes in labels.items() if not (found.specials and name == SPECIAL)},
        forms=list(found.types),
    )
    if found.specials:  # those of every sentence that has another row
        kept, sentences = np.zeros(found.n_sentences, bool), spool.read("sentence", np.int64)
        for block in blocks_of(len(mask), BLOCK):
            is_special = labels[SPECIAL][block] >= 0
            kept[sentences[block][mask[block] & ~is_special]] = True
        for block in blocks_of(len(mask), BLOCK):
            is_special = labels[SPECIAL][block] >= 0
            mask[block] = np.where(is_special, kept[sentences[block]], mask[block])
    return _Columns(spool).add("rows", _true_positions(mask), np.int64)


class _Columns:
    """The chosen part of the columns of a survey: the column itself if all is chosen, else a new one next to it."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._own: set[str] = set()

    def read(self, name: str, dtype: DTypeLike) -> NDArray[Any]:
        return self._spool.read(f"chosen/{name}" if name in self._own else name, dtype)

    def replace(self, name: str, values: Iterable[NDArray[Any]]) -> None:
        """Replace a column by values that come in blocks and may be computed from the column itself."""
        for block in values:
            self._spool.append(f"new/{name}", block)
        self._spool.rename(f"new/{name}", f"chosen/{name}")
        self._own.add(name)

    def add(self, name: str, values: Iterable[NDArray[Any]], dtype: DTypeLike) -> NDArray[Any]:
        """Write a column and map it."""
        self.replace(name, values)
        return self.read(name, dtype)

    def take(self, name: str, rows: NDArray[np.int64] | None, dtype: DTypeLike) -> None:
        """Reduce a column to some rows."""
        if rows is not None:
            values = self._spool.read(name, dtype)
            self.replace(name, (values[rows[block]] for block in blocks_of(len(rows), BLOCK)))

    def renumber(self, name: str, rows: NDArray[np.int64] | None, size: int, dtype: DTypeLike) -> NDArray[np.int64]:
        """Reduce a column of numbers below `size` and renumber those that occur; returns them, ascending."""
        self.take(name, rows, dtype)
        values = self.read(name, dtype)
        occurs = _occurring(values, size)
        used = self.add(f"{name}/used", _true_positions(occurs), np.int64)
        if len(used) < size:
            new = self.add(f"{name}/new", _bounds(occurs[block] for block in blocks_of(size, BLOCK)), np.int64)
            self.replace(name, (new[values[block]].astype(dtype) for block in blocks_of(len(values), BLOCK)))
        return used


def _true_positions(mask: NDArray[np.bool_]) -> Iterator[NDArray[np.int64]]:
    for block in blocks_of(len(mask), BLOCK):
        yield np.flatnonzero(mask[block]) + block.start


def _occurring(values: NDArray[np.integer], size: int) -> NDArray[np.bool_]:
    """Return for each number below `size` whether it is among the values."""
    occurs = np.zeros(size, bool)
    for block in blocks_of(len(values), BLOCK):
        occurs[values[block]] = True
    return occurs


def _bounds(blocks: Iterable[NDArray[Any]]) -> Iterator[NDArray[np.int64]]:
    """Yield 0 and the cumulative sums of numbers that come in blocks."""
    total = 0
    yield np.zeros(1, np.int64)
    for block in blocks:
        sums = np.cumsum(block, dtype=np.int64) + total
        total = int(sums[-1]) if len(sums) else total
        yield sums


def _expand(columns: _Columns, found: Survey, rows: NDArray[np.int64] | None, encoder: Encoder) -> list[str]:
    """Give every subword of the chosen units a row of its own; returns the spellings of the subwords in use."""
    sizes = columns.read("subwords", np.int16)
    all_sizes = found.spool.read("subwords", np.int16)
    bounds = columns.add(
        "ids/bounds", _bounds(all_sizes[block] for block in blocks_of(len(all_sizes), BLOCK)), np.int64
    )
    all_ids = found.spool.read("ids", np.int32)

    def ids_of(block: slice) -> NDArray[np.int32]:
        units = np.arange(block.start, block.stop) if rows is None else rows[block]
        return np.asarray(all_ids[ragged_indices(bounds[units], bounds[units + 1] - bounds[units])])

    ids = columns.add("ids", (ids_of(block) for block in blocks_of(len(sizes), BLOCK)), np.int32)
    occurs = _occurring(ids, 1 + max((int(ids[block].max()) for block in blocks_of(len(ids), BLOCK)), default=-1))
    new = np.cumsum(occurs, dtype=np.int32) - 1
    columns.replace("type", (new[ids[block]].astype(np.int32) for block in blocks_of(len(ids), BLOCK)))
    repeated = [("sentence", np.int64), ("position", np.int32), *((f"label/{name}", np.int32) for name in found.labels)]
    for name, dtype in repeated:
        values = columns.read(name, dtype)
        columns.replace(name, (np.repeat(values[block], sizes[block]) for block in blocks_of(len(sizes), BLOCK)))
    columns.replace("subwords", (np.ones(block.stop - block.start, np.int16) for block in blocks_of(len(ids), BLOCK)))
    return [encoder.subword_text(number) for number in np.flatnonzero(occurs).tolist()]


def _texts(columns: _Columns, found: Survey, sentences: NDArray[np.int64]) -> Strings:
    lengths = found.spool.read("text_bytes", np.int32)
    data = found.spool.read("text", np.uint8)
    bounds = columns.add("text/bounds", _bounds(lengths[block] for block in blocks_of(len(lengths), BLOCK)), np.int64)
    if len(sentences) == found.n_sentences:
        return Strings(bounds, data)
    offsets = _bounds(lengths[sentences[block]] for block in blocks_of(len(sentences), BLOCK))
    parts = (sentences[block] for block in blocks_of(len(sentences), TEXT_BLOCK))
    columns.replace("text", (data[ragged_indices(bounds[part], bounds[part + 1] - bounds[part])] for part in parts))
    return Strings(columns.add("text/offsets", offsets, np.int64), columns.read("text", np.uint8))


def _documents(columns: _Columns, found: Survey, sentences: NDArray[np.int64]) -> dict[str, Any]:
    """Return the document of each sentence (None: each is its own), and the fields of the documents that have one."""
    documents = found.documents
    if not documents.any_given:
        return {}
    chosen = None if len(sentences) == found.n_sentences else sentences
    used = columns.renumber("document", chosen, documents.n, np.int64)
    some = None if len(used) == documents.n else used
    for name in documents.values:
        columns.take(f"field/{name}", some, np.int32)
    return {
        "document": None if len(used) == len(sentences) else columns.read("document", np.int64),
        "fields": {
            name: Field(columns.read(f"field/{name}", np.int32), values, documents.kinds[name])
            for name, values in documents.values.items()
        },
    }


def _starts(sentence: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield the first row of each sentence, and the number of rows; sentences ascend from 0 and each has a row."""
    before = -1
    for block in blocks_of(len(sentence), BLOCK):
        numbers = sentence[block]
        yield np.flatnonzero(np.diff(numbers, prepend=before)) + block.start
        before = int(numbers[-1])
    yield np.array([len(sentence)])
