"""From a survey to the index of a store: which units get a row, and in which order."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.corpus import Keep
from embstore.corpus.keep import blocks_of
from embstore.extraction.options import ExtractionOptions
from embstore.extraction.survey import BLOCK, NOT_CHOSEN, Column, Survey
from embstore.extraction.windows import Overlap, Places, cut_texts
from embstore.models.encoder import Encoder, ragged_indices
from embstore.store import Index, Labels, Strings
from embstore.store.conditions import names_in, rows_where
from embstore.store.index import SPECIAL, Contexts, Field
from embstore.store.metadata import Dropped
from embstore.store.text import NO_ID, TEXT_COLUMNS, Text

TEXT_BLOCK = 2**14
_Numbers = NDArray[np.int64]


def make_index(
    content: Survey, *, options: ExtractionOptions, encoder: Encoder, limit: int, overlap: Overlap
) -> tuple[Index, tuple[Dropped, ...]]:
    """Choose the rows and renumber words and sentences, so that only those with a row are stored.

    Where a context is not its sentence, all sentences of a document with a row are stored. Returns the index, its
    columns memory-mapped from files, and what was dropped.
    """
    cut = Cut.of(content, options, limit, overlap)
    matching = None
    if options.keep.where is not None:
        matching = np.zeros(content.n_units, bool)
        for some in rows_where(_index_of(content, None, cut, encoder), options.keep.where):
            matching[some] = True
    rows = _chosen_rows(content, options.keep, cut, matching)
    dropped = dict(content.dropped)
    if rows is not None and len(rows) < content.n_units:
        dropped[NOT_CHOSEN] = Dropped(NOT_CHOSEN, content.n_units - len(rows), ())
    index = _index_of(content, rows, cut, encoder, spelled=options.unit == "subword")
    if index.contexts is not None:
        content.longest = int((index.contexts.stop - index.contexts.start).max(initial=0))
    return index, tuple(dropped.values())


def _index_of(
    content: Survey, rows: _Numbers | None, cut: Cut | None, encoder: Encoder, *, spelled: bool = False
) -> Index:
    """Return the index of some units (None: all); `spelled`: whether their forms are the spellings of subwords."""
    position, first, subwords = (_taken(content[name], rows) for name in ("position", "first", "subwords"))
    documents = None if cut is None else cut.documents
    sentence, sentences = _renumbered(_taken(content["sentence"], rows), content.n_sentences, documents)
    types = _taken(content["id" if spelled else "type"], rows)
    if spelled:
        ids, blocks = types, blocks_of(len(types), BLOCK)
        used = np.array(sorted({number for some in blocks for number in np.unique(ids[some]).tolist()}), np.int32)
        types = _by_block(len(ids), lambda some: np.searchsorted(used, ids[some]).astype(np.int32))
        words = list(map(encoder.subword_text, used.tolist()))
    else:
        types, numbers = _renumbered(types, len(content.types))
        names = list(content.types)
        words = [names[number] for number in numbers.tolist()]
    text = _text(content, sentences, encoder)
    contexts = None
    if cut is not None and len(sentences):
        contexts, subwords = cut.contexts(sentences, text.subword_indptr, sentence, first, subwords)
    return Index.of(
        text=text,
        type=types,
        sentence=sentence,
        position=position,
        subword=first if text.subword_start is not None else None,
        words=Strings.of(words),
        indptr=_bounds(np.bincount(sentence, minlength=len(sentences))),
        source=sentences,
        contexts=contexts,
        subwords=subwords,
        labels={
            label: Labels(_taken(content[f"label/{label}"], rows), Strings.of(names))
            for label, names in content.all_labels.items()
        },
        **_documents(content, sentences),
    )


@dataclass(frozen=True)
class Cut:
    """The contexts of a corpus, in the order of the corpus, where any is not its sentence.

    `start`, `stop`, `owned`: int64 [contexts], the subwords of each and the first that it owns, counted over the
    corpus. `bounds`: int64 [sentences + 1], the subwords of each sentence. `documents`: int64 [sentences], the document
    of each.
    """

    start: _Numbers
    stop: _Numbers
    owned: _Numbers
    bounds: _Numbers
    documents: _Numbers

    @classmethod
    def of(cls, content: Survey, options: ExtractionOptions, limit: int, overlap: Overlap) -> Cut | None:
        """Cut the contexts of a corpus; None if each is its sentence."""
        documents = content.documents.number.values
        if options.pack is not None:
            start = np.arange(0, content.n_subwords, limit)
            bounds = _bounds(content["n_subwords"])
            together = np.zeros(content.n_sentences, np.int64)  # all sentences are stored where one is
            return cls(start, np.minimum(start + limit, content.n_subwords), start, bounds, together)
        by_sentence = options.context == "sentence" or documents[-1] == content.n_sentences - 1
        if by_sentence and not content.any_long:
            return None
        bounds, word_indptr = _bounds(content["n_subwords"]), _bounds(content["n_words"])
        starts = np.arange(content.n_sentences + 1)
        if not by_sentence:
            starts = np.flatnonzero(np.diff(documents, prepend=-1, append=content.n_sentences))
        firsts, sizes, whole = (content[name] for name in ("word_subword", "word_subwords", "whole"))

        def words(text: int) -> Places:
            sentences = slice(starts[text], starts[text + 1])
            own = slice(word_indptr[sentences.start], word_indptr[sentences.stop])
            counts = np.diff(word_indptr[sentences.start : sentences.stop + 1])
            first = firsts[own] + np.repeat(bounds[sentences], counts)
            return Places(first, first + sizes[own])

        def parts() -> Iterator[_Numbers]:
            for part in cut_texts(bounds[starts], limit, overlap, words):
                if by_sentence:  # what is never divided is cut: the first block is all
                    sentence = np.searchsorted(bounds, part[:, 2], "right") - 1
                    part = part[~whole[sentence] | (part[:, 0] == bounds[sentence])]
                yield part.ravel()

        start, stop, owned = Column(parts()).values.reshape(-1, 3).T
        return cls(start, stop, owned, bounds, np.arange(content.n_sentences) if by_sentence else documents)

    def contexts(
        self, sentences: _Numbers, begins: _Numbers, sentence: _Numbers, first: NDArray[Any], sizes: NDArray[Any]
    ) -> tuple[Contexts, NDArray[np.int16]]:
        """Return the contexts that own rows, in subwords of the stored `sentences`, and the `sizes` of rows in them.

        `begins`: int64 [stored sentences + 1], their subwords. `sentence`, `first`: of each row.
        """

        def first_subwords(some: slice) -> _Numbers:  # special ones go with the first or the last of the sentence
            own = sentence[some]
            return np.asarray(np.clip(begins[own] + first[some], 0, np.maximum(begins[own + 1] - 1, 0)))

        place = _by_block(len(sentence), first_subwords)
        of_context = np.searchsorted(self.bounds, self.owned, "right") - 1
        number = np.minimum(np.searchsorted(sentences, of_context), len(sentences) - 1)
        stored = np.flatnonzero(sentences[number] == of_context)
        shift = begins[number[stored]] - self.bounds[of_context[stored]]
        first_row = np.searchsorted(place, self.owned[stored] + shift)
        own = np.flatnonzero(np.diff(first_row, append=len(place)))
        stored, shift = stored[own], shift[own]
        start, stop = self.start[stored] + shift, self.stop[stored] + shift
        contexts = Contexts(start, stop, np.append(first_row[own], len(place)))

        def cut_sizes(some: slice) -> NDArray[Any]:
            ends = stop[contexts.of_rows(np.arange(some.start, some.stop))]
            return np.asarray(np.minimum(sizes[some], ends - place[some]), np.int16)

        return contexts, _by_block(len(place), cut_sizes)


def _chosen_rows(content: Survey, keep: Keep, cut: Cut | None, matching: NDArray[np.bool_] | None) -> _Numbers | None:
    """Return the units that get a row, ascending and memory-mapped; None for all of them.

    `matching`: bool [units], for which the condition is true; None without one.
    """
    if keep == Keep(seed=keep.seed):
        return None
    sentences = numbers = content["sentence"]
    contexts = content["context"]
    if cut is not None and keep.min_contexts > 1:
        places = cut.bounds[sentences] + np.maximum(content["first"], 0)
        numbers, contexts = np.searchsorted(cut.owned, places, "right") - 1, _hashes(cut, content["ids"])
    mask = keep.mask(
        types=content["type"],
        sentences=numbers,
        contexts=contexts,
        labels={name: content[f"label/{name}"] for name in content.labels},
        forms=list(content.types),
        chosen=matching,
    )
    if content.specials is not None:  # those of every sentence that has another row, or those that a condition names
        is_special = content[f"label/{SPECIAL}"] >= 0
        kept = np.zeros(content.n_sentences, bool)
        for block in blocks_of(len(mask), BLOCK):
            kept[sentences[block][mask[block] & ~is_special[block]]] = True
        is_named = matching is not None and SPECIAL in names_in(keep.where or "")
        mask = np.where(is_special, matching if is_named else kept[sentences], mask)  # type: ignore[arg-type]
    return _true_positions(mask)


def _hashes(cut: Cut, ids: NDArray[np.int32]) -> NDArray[np.uint64]:
    """Return a hash of the subwords of each context, equal for equal ones."""
    runs = zip(cut.start.tolist(), cut.stop.tolist(), strict=True)
    hashes = (hashlib.blake2b(ids[start:stop].tobytes(), digest_size=8).digest() for start, stop in runs)
    return np.frombuffer(b"".join(hashes), "<u8")


def _by_block(length: int, of: Callable[[slice], NDArray[Any]]) -> NDArray[Any]:
    """Return a column, memory-mapped, of which `of` makes a block at a time."""
    return Column(map(of, list(blocks_of(length, BLOCK)) or [slice(0, 0)])).values


def _taken(values: NDArray[Any], rows: _Numbers | None) -> NDArray[Any]:
    """Return some rows of a column, ascending and each once; None: all."""
    if rows is None or len(rows) == len(values):
        return values
    return _by_block(len(rows), lambda some: values[rows[some]])


def _renumbered(values: NDArray[Any], size: int, groups: _Numbers | None = None) -> tuple[NDArray[Any], _Numbers]:
    """Renumber those numbers below `size` that occur, and also return them, ascending.

    `groups`: int64 [size]; if one number of a group occurs, all of it are kept.
    """
    occurs = _occurring(values, size)
    if groups is not None:
        occurs = _occurring(groups[occurs], size)[groups]
    used = _true_positions(occurs)
    if len(used) == size:
        return values, used
    new = _bounds(occurs)
    return _by_block(len(values), lambda some: new[values[some]].astype(values.dtype)), used


def _true_positions(mask: NDArray[np.bool_]) -> _Numbers:
    return _by_block(len(mask), lambda some: np.flatnonzero(mask[some]) + some.start)


def _occurring(values: NDArray[np.integer], size: int) -> NDArray[np.bool_]:
    """Return for each number below `size` whether it is among the values."""
    occurs = np.zeros(size, bool)
    for block in blocks_of(len(values), BLOCK):
        occurs[values[block]] = True
    return occurs


def _bounds(counts: NDArray[Any]) -> _Numbers:
    """Return 0 and the cumulative sums of numbers, memory-mapped."""

    def sums() -> Iterator[_Numbers]:
        last = np.zeros(1, np.int64)
        yield last
        for block in blocks_of(len(counts), BLOCK):
            own = np.cumsum(counts[block], dtype=np.int64) + last
            last = own[-1:]
            yield own

    return Column(sums()).values


def _text(content: Survey, sentences: _Numbers, encoder: Encoder) -> Text:
    """Return the text of some sentences of the corpus, ascending."""
    counts = {part: content[f"n_{part}"] for part in ("words", "subwords", "bytes")}
    parts = {name: path.split("/")[0] for name, path in TEXT_COLUMNS.items() if name in content.columns}
    parts["pieces"] = "bytes"
    columns = {name: content[name] for name in parts}
    if len(sentences) < content.n_sentences:
        bounds = {part: _bounds(each) for part, each in counts.items()}
        bounds["sentences"] = np.arange(content.n_sentences + 1)
        columns = {name: Column(_runs(content[name], bounds[part], sentences)).values for name, part in parts.items()}
        counts = {part: _taken(each, sentences) for part, each in counts.items()}
    bounds = {part: _bounds(each) for part, each in counts.items()}
    if not encoder.has_vocabulary:
        columns["ids"] = _by_block(len(columns["ids"]), lambda some: np.full(some.stop - some.start, NO_ID, np.int32))
    pieces = Strings(bounds["bytes"], columns.pop("pieces"))
    return Text(pieces=pieces, word_indptr=bounds["words"], subword_indptr=bounds["subwords"], **columns)


def _runs(values: NDArray[Any], bounds: _Numbers, sentences: _Numbers) -> Iterator[NDArray[Any]]:
    """Yield what some sentences have of a column with the `bounds` of each sentence."""
    yield values[:0]
    for some in blocks_of(len(sentences), TEXT_BLOCK):
        starts = bounds[sentences[some]]
        yield values[ragged_indices(starts, bounds[sentences[some] + 1] - starts)]


def _documents(content: Survey, sentences: _Numbers) -> dict[str, Any]:
    """Return the document of each sentence (None: each is its own), and the fields of the documents that have one."""
    documents = content.documents
    if not documents.any_given:
        return {}
    number, used = _renumbered(_taken(documents.number.values, sentences), documents.n)
    return {
        "document": None if len(used) == len(sentences) else number,
        "fields": {name: Field(_taken(own.codes, used), own.names, own.kind) for name, own in documents.fields.items()},
    }
