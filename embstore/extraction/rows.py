"""From a survey to the index of a store: which units get a row, and in which order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from embstore.corpus import Keep
from embstore.corpus.keep import blocks_of
from embstore.extraction.options import ExtractionOptions
from embstore.extraction.survey import BLOCK, NOT_CHOSEN, Spool, Survey
from embstore.extraction.windows import Overlap, Units, cut_documents
from embstore.models.encoder import Encoder, indptr, ragged_indices
from embstore.spacing import split_words
from embstore.store import Index, Labels, Strings
from embstore.store.conditions import names_in, rows_where
from embstore.store.index import SPECIAL, Contexts, Field
from embstore.store.metadata import Dropped

TEXT_BLOCK = 2**14


def make_index(
    content: Survey, *, options: ExtractionOptions, encoder: Encoder, limit: int, overlap: Overlap
) -> tuple[Index, tuple[Dropped, ...]]:
    """Choose the rows and renumber words and sentences, so that only those with a row are stored.

    Where a context is not its sentence, all sentences of a document with a row are stored. Returns the index, its
    columns memory-mapped from the spool, and what was dropped.
    """
    cut = Cut.of(content, options, limit, overlap)
    matching = None
    if options.keep.where is not None:
        matching = np.zeros(content.spool.length("type"), bool)
        for some in rows_where(_index_of(content, None, cut), options.keep.where):
            matching[some] = True
    rows = _chosen_rows(content, options.keep, cut, matching)
    dropped = dict(content.dropped)
    n_units = content.spool.length("type")
    if rows is not None and len(rows) < n_units:
        dropped[NOT_CHOSEN] = Dropped(NOT_CHOSEN, n_units - len(rows), ())
    return _index_of(content, rows, cut, encoder if options.unit == "subword" else None), tuple(dropped.values())


def _index_of(
    content: Survey, rows: NDArray[np.int64] | None, cut: Cut | None, subwords: Encoder | None = None
) -> Index:
    """Return the index of some units (None: all), with a row a subword if an encoder spells its `subwords`."""
    columns = _Columns(content.spool)
    columns.take("subwords", rows, np.int16)
    columns.take("position", rows, np.int32)
    for label in content.labels:
        columns.take(f"label/{label}", rows, np.int32)
    documents = None if cut is None else cut.documents
    sentences = columns.renumber("sentence", rows, content.n_sentences, np.int64, groups=documents)
    types = columns.renumber("type", rows, len(content.types), np.int32)
    words: Iterable[str] = content.types
    if len(types) < len(content.types):
        names = list(content.types)
        words = [names[number] for number in types.tolist()]
    if subwords is not None:
        words = _expand(columns, content, rows, subwords)
    return Index.of(
        type=columns.read("type", np.int32),
        sentence=columns.read("sentence", np.int64),
        position=columns.read("position", np.int32),
        subwords=columns.read("subwords", np.int16),
        words=Strings.of(words),
        texts=_texts(columns, content, sentences),
        indptr=columns.add("sentence/indptr", _starts(columns.read("sentence", np.int64), len(sentences)), np.int64),
        source=sentences,
        contexts=None if cut is None or not len(sentences) else _contexts(columns, content, cut, sentences),
        labels={
            label: Labels(columns.read(f"label/{label}", np.int32), Strings.of(names))
            for label, names in content.labels.items()
        },
        **_documents(columns, content, sentences),
    )


@dataclass(frozen=True)
class Cut:
    """The contexts of a corpus, in the order of the corpus, where any is not its sentence.

    `start`, `stop`, `owned`: int64 [contexts], the words of each and the first that it owns, counted over the corpus.
    `subwords`: int64 [contexts], without special ones. `documents`: int64 [sentences], the document of each. `words`:
    int64 [sentences + 1], where each sentence begins.
    """

    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    owned: NDArray[np.int64]
    subwords: NDArray[np.int64]
    documents: NDArray[np.int64]
    words: NDArray[np.int64]

    @classmethod
    def of(cls, content: Survey, options: ExtractionOptions, limit: int, overlap: Overlap) -> Cut | None:
        """Cut the contexts of a corpus; None if each is its sentence."""
        documents = content.spool.read("document", np.int64)
        by_sentence = options.context == "sentence" or len(documents) == 0 or documents[-1] == content.n_sentences - 1
        if by_sentence and not content.any_long:
            return None
        columns = _Columns(content.spool)
        subwords, words, first = (
            columns.add(f"cut/{name}", _bounds(values[block] for block in blocks_of(len(values), BLOCK)), np.int64)
            for name in ("unit/subwords", "unit/words", "sentence/units")
            for values in (content.spool.read(name, np.int32),)
        )
        if by_sentence:
            documents = np.arange(content.n_sentences)
        starts = np.flatnonzero(np.diff(documents, prepend=-1, append=content.n_sentences))
        for part in cut_documents(Units(subwords, words, first[starts]), limit, overlap):
            for name, places in zip(("start", "stop", "owned"), part.T, strict=True):
                content.spool.append(f"cut/{name}", words[places])
            content.spool.append("cut/subwords", subwords[part[:, 1]] - subwords[part[:, 0]])
        made = {name: content.spool.read(f"cut/{name}", np.int64) for name in ("start", "stop", "owned", "subwords")}
        return cls(**made, documents=documents, words=words[first])

    def of_words(self, words: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the contexts that own some words."""
        return np.searchsorted(self.owned, words, "right") - 1

    def hashes(self, spool: Spool) -> NDArray[np.uint64]:
        """Return a hash of the words of each context, equal for equal ones."""
        data, lengths = spool.read("text", np.uint8), spool.read("text_bytes", np.int32)
        texts = Strings(indptr(lengths.astype(np.int64)), data)
        numbers = np.empty(len(self.start), np.uint64)
        for number, (start, stop) in enumerate(zip(self.start.tolist(), self.stop.tolist(), strict=True)):
            first, last = np.searchsorted(self.words, [start, stop - 1], "right") - 1
            words = [word for text in texts.slice(first, last + 1) for word in split_words(text)]
            begin = start - int(self.words[first])
            joined = " ".join(words[begin : begin + stop - start]).encode()
            numbers[number] = int.from_bytes(hashlib.blake2b(joined, digest_size=8).digest(), "little")
        return numbers


def _contexts(columns: _Columns, content: Survey, cut: Cut, sentences: NDArray[np.int64]) -> Contexts:
    """Return the contexts that own rows, in words of the stored `sentences`."""
    lengths = np.diff(cut.words)[sentences]
    begins = indptr(lengths)
    sentence, position = columns.read("sentence", np.int64), columns.read("position", np.int32)
    word = columns.add(  # that of each row; special subwords go with the first or the last one of the sentence
        "word",
        (
            begins[sentence[block]] + np.clip(position[block], 0, lengths[sentence[block]] - 1)
            for block in blocks_of(len(sentence), BLOCK)
        ),
        np.int64,
    )
    of_context = np.searchsorted(cut.words, cut.owned, "right") - 1
    place = np.minimum(np.searchsorted(sentences, of_context), len(sentences) - 1)
    stored = np.flatnonzero(sentences[place] == of_context)
    shift = begins[place[stored]] - cut.words[of_context[stored]]
    first_row = np.searchsorted(word, cut.owned[stored] + shift)
    own = np.flatnonzero(np.diff(first_row, append=len(word)))
    stored, shift = stored[own], shift[own]
    content.context_subwords = cut.subwords[stored]
    content.longest = int(content.context_subwords.max(initial=0))
    return Contexts(cut.start[stored] + shift, cut.stop[stored] + shift, np.append(first_row[own], len(word)))


def _chosen_rows(
    content: Survey, keep: Keep, cut: Cut | None, matching: NDArray[np.bool_] | None
) -> NDArray[np.int64] | None:
    """Return the units that get a row, ascending and memory-mapped; None for all of them.

    `matching`: bool [units], for which the condition is true; None without one.
    """
    if keep == Keep(seed=keep.seed):
        return None
    spool = content.spool
    numbers, contexts = spool.read("sentence", np.int64), spool.read("context", np.uint64)
    if cut is not None and keep.min_contexts > 1:
        words = cut.words[numbers] + np.maximum(spool.read("position", np.int32), 0)
        numbers, contexts = cut.of_words(words), cut.hashes(spool)
    labels = {name: spool.read(f"label/{name}", np.int32) for name in content.labels}
    mask = keep.mask(
        types=spool.read("type", np.int32),
        sentences=numbers,
        contexts=contexts,
        labels={name: codes for name, codes in labels.items() if not (content.specials and name == SPECIAL)},
        forms=list(content.types),
        chosen=matching,
    )
    if content.specials and matching is not None and SPECIAL in names_in(keep.where or ""):
        mask = np.where(labels[SPECIAL] >= 0, matching, mask)
    elif content.specials:  # those of every sentence that has another row
        kept, sentences = np.zeros(content.n_sentences, bool), spool.read("sentence", np.int64)
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

    def renumber(
        self,
        name: str,
        rows: NDArray[np.int64] | None,
        size: int,
        dtype: DTypeLike,
        *,
        groups: NDArray[np.int64] | None = None,
    ) -> NDArray[np.int64]:
        """Reduce a column of numbers below `size` and renumber those that occur; returns them, ascending.

        `groups`: int64 [size]; if one number of a group occurs, all of it are kept.
        """
        self.take(name, rows, dtype)
        values = self.read(name, dtype)
        occurs = _occurring(values, size)
        if groups is not None:
            occurs = _occurring(groups[occurs], size)[groups]
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


def _expand(columns: _Columns, content: Survey, rows: NDArray[np.int64] | None, encoder: Encoder) -> list[str]:
    """Give every subword of the chosen units a row of its own; returns the spellings of the subwords in use."""
    sizes = columns.read("subwords", np.int16)
    all_sizes = content.spool.read("subwords", np.int16)
    bounds = columns.add(
        "ids/bounds", _bounds(all_sizes[block] for block in blocks_of(len(all_sizes), BLOCK)), np.int64
    )
    all_ids = content.spool.read("ids", np.int32)

    def ids_of(block: slice) -> NDArray[np.int32]:
        units = np.arange(block.start, block.stop) if rows is None else rows[block]
        return np.asarray(all_ids[ragged_indices(bounds[units], bounds[units + 1] - bounds[units])])

    ids = columns.add("ids", (ids_of(block) for block in blocks_of(len(sizes), BLOCK)), np.int32)
    occurs = _occurring(ids, 1 + max((int(ids[block].max()) for block in blocks_of(len(ids), BLOCK)), default=-1))
    new = np.cumsum(occurs, dtype=np.int32) - 1
    columns.replace("type", (new[ids[block]].astype(np.int32) for block in blocks_of(len(ids), BLOCK)))
    repeated = [
        ("sentence", np.int64),
        ("position", np.int32),
        *((f"label/{name}", np.int32) for name in content.labels),
    ]
    for name, dtype in repeated:
        values = columns.read(name, dtype)
        columns.replace(name, (np.repeat(values[block], sizes[block]) for block in blocks_of(len(sizes), BLOCK)))
    columns.replace("subwords", (np.ones(block.stop - block.start, np.int16) for block in blocks_of(len(ids), BLOCK)))
    return [encoder.subword_text(number) for number in np.flatnonzero(occurs).tolist()]


def _texts(columns: _Columns, content: Survey, sentences: NDArray[np.int64]) -> Strings:
    lengths = content.spool.read("text_bytes", np.int32)
    data = content.spool.read("text", np.uint8)
    bounds = columns.add("text/bounds", _bounds(lengths[block] for block in blocks_of(len(lengths), BLOCK)), np.int64)
    if len(sentences) == content.n_sentences:
        return Strings(bounds, data)
    offsets = _bounds(lengths[sentences[block]] for block in blocks_of(len(sentences), BLOCK))
    parts = (sentences[block] for block in blocks_of(len(sentences), TEXT_BLOCK))
    columns.replace("text", (data[ragged_indices(bounds[part], bounds[part + 1] - bounds[part])] for part in parts))
    return Strings(columns.add("text/offsets", offsets, np.int64), columns.read("text", np.uint8))


def _documents(columns: _Columns, content: Survey, sentences: NDArray[np.int64]) -> dict[str, Any]:
    """Return the document of each sentence (None: each is its own), and the fields of the documents that have one."""
    documents = content.documents
    if not documents.any_given:
        return {}
    chosen = None if len(sentences) == content.n_sentences else sentences
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


def _starts(sentence: NDArray[np.int64], n_sentences: int) -> Iterator[NDArray[np.int64]]:
    """Yield the first row of each sentence, in ascending order, and the number of rows."""
    for block in blocks_of(n_sentences, BLOCK):
        yield np.searchsorted(sentence, np.arange(block.start, block.stop))
    yield np.array([len(sentence)])
