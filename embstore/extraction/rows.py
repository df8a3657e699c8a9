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
from embstore.extraction.windows import Overlap, Places, cut_texts
from embstore.models.encoder import Encoder, ragged_indices
from embstore.store import Index, Labels, Strings
from embstore.store.conditions import names_in, rows_where
from embstore.store.index import SPECIAL, Contexts, Field
from embstore.store.metadata import Dropped
from embstore.store.text import NO_ID, Text

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
        for some in rows_where(_index_of(content, None, cut, encoder), options.keep.where):
            matching[some] = True
    rows = _chosen_rows(content, options.keep, cut, matching)
    dropped = dict(content.dropped)
    n_units = content.spool.length("type")
    if rows is not None and len(rows) < n_units:
        dropped[NOT_CHOSEN] = Dropped(NOT_CHOSEN, n_units - len(rows), ())
    return _index_of(content, rows, cut, encoder, spelled=options.unit == "subword"), tuple(dropped.values())


def _index_of(
    content: Survey, rows: NDArray[np.int64] | None, cut: Cut | None, encoder: Encoder, *, spelled: bool = False
) -> Index:
    """Return the index of some units (None: all); `spelled`: whether their forms are the spellings of subwords."""
    columns = _Columns(content.spool)
    for name, dtype in (("subwords", np.int16), ("position", np.int32), ("first", np.int32)):
        columns.take(name, rows, dtype)
    for label in content.labels:
        columns.take(f"label/{label}", rows, np.int32)
    documents = None if cut is None else cut.documents
    sentences = columns.renumber("sentence", rows, content.n_sentences, np.int64, groups=documents)
    words: Iterable[str] = content.types
    if spelled:
        words = _spell(columns, rows, encoder)
    else:
        types = columns.renumber("type", rows, len(content.types), np.int32)
        if len(types) < len(content.types):
            names = list(content.types)
            words = [names[number] for number in types.tolist()]
    text = _text(columns, content, sentences, encoder)
    return Index.of(
        text=text,
        type=columns.read("type", np.int32),
        sentence=columns.read("sentence", np.int64),
        position=columns.read("position", np.int32),
        subword=columns.read("first", np.int32) if text.subword_start is not None else None,
        words=Strings.of(words),
        indptr=columns.add("sentence/indptr", _starts(columns.read("sentence", np.int64), len(sentences)), np.int64),
        source=sentences,
        contexts=None if cut is None or not len(sentences) else _contexts(columns, content, cut, sentences, text),
        subwords=columns.read("subwords", np.int16),
        labels={
            label: Labels(columns.read(f"label/{label}", np.int32), Strings.of(names))
            for label, names in content.labels.items()
        },
        **_documents(columns, content, sentences),
    )


def _spell(columns: _Columns, rows: NDArray[np.int64] | None, encoder: Encoder) -> list[str]:
    """Number the subwords of the rows in place of their types; returns the spellings of those in use."""
    columns.take("id", rows, np.int32)
    ids = columns.read("id", np.int32)
    occurs = _occurring(ids, 1 + max((int(ids[block].max()) for block in blocks_of(len(ids), BLOCK)), default=-1))
    new = np.cumsum(occurs, dtype=np.int32) - 1
    columns.replace("type", (new[ids[block]].astype(np.int32) for block in blocks_of(len(ids), BLOCK)))
    return [encoder.subword_text(number) for number in np.flatnonzero(occurs).tolist()]


@dataclass(frozen=True)
class Cut:
    """The contexts of a corpus, in the order of the corpus, where any is not its sentence.

    `start`, `stop`, `owned`: int64 [contexts], the subwords of each and the first that it owns, counted over the
    corpus. `bounds`: int64 [sentences + 1], the subwords of each sentence. `documents`: int64 [sentences], the document
    of each.
    """

    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    owned: NDArray[np.int64]
    bounds: NDArray[np.int64]
    documents: NDArray[np.int64]

    @classmethod
    def of(cls, content: Survey, options: ExtractionOptions, limit: int, overlap: Overlap) -> Cut | None:
        """Cut the contexts of a corpus; None if each is its sentence."""
        spool = content.spool
        documents = spool.read("document", np.int64)
        by_sentence = options.context == "sentence" or len(documents) == 0 or documents[-1] == content.n_sentences - 1
        if by_sentence and not content.any_long:
            return None
        columns = _Columns(spool)
        bounds, word_indptr = (
            columns.add(f"cut/{name}", _bounds(values[block] for block in blocks_of(len(values), BLOCK)), np.int64)
            for name in ("n_subwords", "words")
            for values in (spool.read(name, np.int32),)
        )
        starts = np.arange(content.n_sentences + 1)
        if not by_sentence:
            starts = np.flatnonzero(np.diff(documents, prepend=-1, append=content.n_sentences))
        firsts, sizes = spool.read("word/subword", np.int32), spool.read("word/subwords", np.int16)

        def words(text: int) -> Places:
            sentences = slice(starts[text], starts[text + 1])
            own = slice(word_indptr[sentences.start], word_indptr[sentences.stop])
            counts = np.diff(word_indptr[sentences.start : sentences.stop + 1])
            first = firsts[own] + np.repeat(bounds[sentences], counts)
            return Places(first, first + sizes[own])

        whole = spool.read("whole", np.bool_)
        for part in cut_texts(bounds[starts], limit, overlap, words):
            if by_sentence:  # what is never divided is cut: the first block is all
                sentence = np.searchsorted(bounds, part[:, 2], "right") - 1
                part = part[~whole[sentence] | (part[:, 0] == bounds[sentence])]
            for name, places in zip(("start", "stop", "owned"), part.T, strict=True):
                spool.append(f"cut/{name}", places)
        start, stop, owned = (spool.read(f"cut/{name}", np.int64) for name in ("start", "stop", "owned"))
        return cls(start, stop, owned, bounds, np.arange(content.n_sentences) if by_sentence else documents)

    def of_subwords(self, subwords: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the contexts that own some subwords."""
        return np.searchsorted(self.owned, subwords, "right") - 1

    def hashes(self, spool: Spool) -> NDArray[np.uint64]:
        """Return a hash of the subwords of each context, equal for equal ones."""
        ids, numbers = spool.read("ids", np.int32), np.empty(len(self.start), np.uint64)
        for number, (start, stop) in enumerate(zip(self.start.tolist(), self.stop.tolist(), strict=True)):
            digest = hashlib.blake2b(ids[start:stop].tobytes(), digest_size=8).digest()
            numbers[number] = int.from_bytes(digest, "little")
        return numbers


def _contexts(columns: _Columns, content: Survey, cut: Cut, sentences: NDArray[np.int64], text: Text) -> Contexts:
    """Return the contexts that own rows, in subwords of the stored `sentences`; rows are cut to their context."""
    sentence, first = columns.read("sentence", np.int64), columns.read("first", np.int32)
    begins = text.subword_indptr
    place = columns.add(  # the first subword of each row; special ones go with the first or the last of the sentence
        "place",
        (
            np.clip(begins[sentence[some]] + first[some], 0, np.maximum(begins[sentence[some] + 1] - 1, 0))
            for some in blocks_of(len(sentence), BLOCK)
        ),
        np.int64,
    )
    of_context = np.searchsorted(cut.bounds, cut.owned, "right") - 1
    number = np.minimum(np.searchsorted(sentences, of_context), len(sentences) - 1)
    stored = np.flatnonzero(sentences[number] == of_context)
    shift = begins[number[stored]] - cut.bounds[of_context[stored]]
    first_row = np.searchsorted(place, cut.owned[stored] + shift)
    own = np.flatnonzero(np.diff(first_row, append=len(place)))
    stored, shift = stored[own], shift[own]
    start, stop = cut.start[stored] + shift, cut.stop[stored] + shift
    content.context_subwords = stop - start
    content.longest = int(content.context_subwords.max(initial=0))
    contexts = Contexts(start, stop, np.append(first_row[own], len(place)))
    sizes = columns.read("subwords", np.int16)
    columns.replace(
        "subwords",
        (
            np.minimum(sizes[some], stop[contexts.of_rows(np.arange(some.start, some.stop))] - place[some]).astype(
                np.int16
            )
            for some in blocks_of(len(place), BLOCK)
        ),
    )
    return contexts


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
        numbers = cut.of_subwords(cut.bounds[numbers] + np.maximum(spool.read("first", np.int32), 0))
        contexts = cut.hashes(spool)
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


def _text(columns: _Columns, content: Survey, sentences: NDArray[np.int64], encoder: Encoder) -> Text:
    """Return the text of some sentences of the corpus, ascending."""
    spool = content.spool
    names = {"start": "start", "stop": "stop", "words": "word", "n_subwords": "subword", "piece_bytes": "piece"}
    bounds = {
        what: columns.add(f"text/{what}", _bounds(counts[some] for some in blocks_of(len(counts), BLOCK)), np.int64)
        for name, what in names.items()
        if name not in ("start", "stop")
        for counts in (spool.read(name, np.int32),)
    }
    parts: dict[str, tuple[str, DTypeLike]] = {
        "word/start": ("word", np.int32),
        "word/stop": ("word", np.int32),
        "word/subword": ("word", np.int32),
        "word/subwords": ("word", np.int16),
        "ids": ("subword", np.int32),
        "piece": ("piece", np.uint8),
    }
    if spool.length("subword/start"):
        parts |= {"subword/start": ("subword", np.int32), "subword/stop": ("subword", np.int32)}
    if len(sentences) < content.n_sentences:
        for name in ("start", "stop"):
            columns.take(name, sentences, np.int32)
        for name, (what, dtype) in parts.items():
            columns.replace(name, _of_sentences(spool.read(name, dtype), bounds[what], sentences))
        for what, all_bounds in bounds.items():
            sizes = (
                all_bounds[sentences[some] + 1] - all_bounds[sentences[some]]
                for some in blocks_of(len(sentences), BLOCK)
            )
            bounds[what] = columns.add(f"text/{what}", _bounds(sizes), np.int64)
    if not encoder.has_vocabulary:
        n_subwords = int(bounds["subword"][-1])
        columns.replace(
            "ids", (np.full(some.stop - some.start, NO_ID, np.int32) for some in blocks_of(n_subwords, BLOCK))
        )
    read = {name: columns.read(name, dtype) for name, (_, dtype) in parts.items()}
    return Text(
        pieces=Strings(bounds["piece"], read["piece"]),
        start=columns.read("start", np.int32),
        stop=columns.read("stop", np.int32),
        word_indptr=bounds["word"],
        subword_indptr=bounds["subword"],
        word_start=read["word/start"],
        word_stop=read["word/stop"],
        word_subword=read["word/subword"],
        word_subwords=read["word/subwords"],
        ids=read["ids"],
        subword_start=read.get("subword/start"),
        subword_stop=read.get("subword/stop"),
    )


def _of_sentences(
    values: NDArray[Any], bounds: NDArray[np.int64], sentences: NDArray[np.int64]
) -> Iterator[NDArray[Any]]:
    """Yield what some sentences have of a column with the `bounds` of each sentence."""
    for some in blocks_of(len(sentences), TEXT_BLOCK):
        starts = bounds[sentences[some]]
        yield values[ragged_indices(starts, bounds[sentences[some] + 1] - starts)]


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
