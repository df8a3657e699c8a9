"""Check that the columns of an index are consistent with each other, one block at a time."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping
from itertools import count, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.store.index import SPECIAL, Index, Labels, field_text
from embstore.store.metadata import Metadata
from embstore.store.strings import Strings
from embstore.store.text import NO_ID, OPTIONAL, TEXT_COLUMNS

_BLOCK = 1 << 16  # elements that are compared at a time, which stay in the processor's cache
MAX_SPECIALS = 2**15  # before the words of a sentence


def column_faults(columns: Mapping[str, NDArray[Any]], metadata: Metadata) -> Iterator[str]:
    """Yield a line for each inconsistency of all columns of a store, by name, with its metadata and each other."""
    index = Index(columns, metadata.fields)
    faults = list(index_faults(index, metadata.n_rows))
    if set(index.fields) != set(metadata.fields):
        faults.append("documents/fields are not those that the metadata name")
    for name in index.fields:
        if f"occurrences/labels/{name}" in columns:
            faults.append(f"{name} is both a label column and a field of documents")
    if not faults:
        words = columns["types/indptr"], columns["types/occurrences"]
        if len(words[0]) != len(index.words) + 1 or len(words[1]) != metadata.n_rows:
            faults = ["types/indptr and types/occurrences do not fit the number of types and rows"]
        else:
            faults = list(occurrence_faults(index.type, len(index.words), *words))
    for name, layers in (("layer", metadata.layers), ("block", metadata.blocks)):
        if not np.array_equal(columns.get(name, layers), layers):
            faults.append(f"{name} does not hold the layers that the metadata names")
    yield from faults


def index_faults(index: Index, n_rows: int) -> Iterator[str]:
    """Yield a line for each inconsistency of the index of a store with `n_rows` rows."""
    for check in (
        _shape_faults,
        _value_faults,
        _text_faults,
        _relation_faults,
    ):  # each counts on what those before have checked
        faults = list(check(index, n_rows))
        yield from faults
        if faults:
            return


def _value_faults(index: Index, n_rows: int) -> Iterator[str]:
    yield from _strings_faults("types/form", index.words)
    yield from _strings_faults("sentences/text", index.text.pieces)
    ranges: list[tuple[str, NDArray[np.integer], int, int | None]] = [
        ("occurrences/type", index.type, 0, len(index.words)),
        ("occurrences/sentence", index.sentence, 0, len(index.text)),
        ("occurrences/position", index.position, -MAX_SPECIALS if SPECIAL in index.labels else 0, None),
        ("occurrences/subwords", index.subwords, 1, None),
        ("sentences/source", index.source, 0, None),
        ("words/subwords", index.text.word_subwords, 0, None),
        ("subwords/id", index.text.ids, NO_ID, None),
    ]
    if index.subword is not None:
        ranges.append(("occurrences/subword", index.subword, -MAX_SPECIALS if SPECIAL in index.labels else 0, None))
    for name, field in index.fields.items():
        yield from _strings_faults(f"documents/fields/{name}/name", field.names)
        ranges.append((f"documents/fields/{name}/codes", field.codes, -1, len(field.names)))
    for column, labels in index.own_labels.items():
        yield from labels_faults(column, labels, n_rows)
    for name, values, low, high in ranges:
        yield from _range_faults(name, values, low, high)


def _relation_faults(index: Index, n_rows: int) -> Iterator[str]:
    for name, field in index.fields.items():
        path = f"documents/fields/{name}/name"
        try:
            is_valid = all(map(_is_value, field.names, field.values))
            ascends = all(before < after for before, after in pairwise(field.values))
        except ValueError:
            is_valid = ascends = False
        if not is_valid:
            yield f"{path} holds a value that is not of kind {field.kind}"
        elif not ascends:
            yield f"{path} does not hold distinct values of kind {field.kind}, ascending"
    if not _ascends(index.sentence):
        yield "occurrences/sentence does not ascend: rows must be in corpus order"
    elif not _points_at(index.indptr, index.sentence, len(index.text)):
        yield "sentences/indptr does not give the rows of each sentence in occurrences/sentence"
    if index.contexts is not None:
        yield from _context_faults(index, n_rows)


def _context_faults(index: Index, n_rows: int) -> Iterator[str]:
    contexts = index.contexts
    assert contexts is not None
    start, stop, indptr = contexts.start, contexts.stop, contexts.indptr
    if not 0 < len(start) == len(stop) == len(indptr) - 1:
        yield "contexts/start, contexts/stop and contexts/indptr do not fit each other"
    elif not _ascends(start) or not _ascends(stop) or not (start < stop).all() or start[0] < 0:
        yield "contexts/start and contexts/stop are not ascending runs of subwords"
    elif stop[-1] > len(index.text.ids):
        yield "contexts/stop points beyond the subwords of the sentences"
    elif indptr[0] != 0 or indptr[-1] != n_rows or not (indptr[:-1] < indptr[1:]).all():
        yield "contexts/indptr does not give the rows of each context"


def labels_faults(column: str, labels: Labels, n_rows: int) -> Iterator[str]:
    """Yield a line for each inconsistency of a label column of a store with `n_rows` rows."""
    if len(labels.codes) != n_rows:
        yield f"occurrences/labels/{column} has {len(labels.codes)} rows and the store {n_rows}"
        return
    yield from _strings_faults(f"labels/{column}/name", labels.names)
    yield from _range_faults(f"occurrences/labels/{column}", labels.codes, -1, len(labels.names))


def occurrence_faults(
    types: NDArray[np.int32], n_types: int, indptr: NDArray[np.int64], occurrences: NDArray[np.int64]
) -> Iterator[str]:
    """Yield a line for each inconsistency of the rows of types: `indptr` and `occurrences` of a TypeIndex."""
    counts = np.zeros(n_types, np.int64)
    for block in _blocks(types):
        counts += np.bincount(block, minlength=n_types)
    if indptr[0] != 0 or not np.array_equal(np.diff(indptr), counts):
        yield "types/indptr does not count the rows of each type in occurrences/type"
        return
    yield from _range_faults("types/occurrences", occurrences, 0, len(types))
    for rows in _blocks(occurrences, overlap=1):
        if rows.min(initial=0) < 0 or rows.max(initial=0) >= len(types):
            return
        ids = types[rows]
        falls = (ids[1:] < ids[:-1]) | ((ids[1:] == ids[:-1]) & (rows[1:] <= rows[:-1]))
        if falls.any():
            yield "types/occurrences does not list the rows of each type in order"
            return


def _shape_faults(index: Index, n_rows: int) -> Iterator[str]:
    faults = []
    for name, array in index.arrays().items():
        if array.ndim != 1:
            faults.append(f"{name} has {array.ndim} dimensions, not 1")
        elif name.startswith("occurrences/") and len(array) != n_rows:
            faults.append(f"{name} has {len(array)} rows and the store {n_rows}")
        elif name.endswith(("_offsets", "indptr")) and len(array) < 1:
            faults.append(f"{name} is empty; it must begin with 0")
    if faults:  # what follows counts by these columns
        yield from faults
        return
    yield from _length_faults(index)
    if index.document is not None:
        if len(index.document) != len(index.text):
            yield "sentences/document does not fit the number of sentences"
            return
        steps = (block[1:] - block[:-1] for block in _blocks(index.document, overlap=1))
        if index.document[:1].any() or any(((step != 0) & (step != 1)).any() for step in steps):
            yield "sentences/document does not number the documents from 0 on, in the order of the sentences"
            return
    for name, field in index.fields.items():
        if len(field.codes) != index.n_documents:
            yield f"documents/fields/{name} has {len(field.codes)} values for {index.n_documents} documents"


def _length_faults(index: Index) -> Iterator[str]:
    text = index.text
    lengths = {"sentences": len(text.pieces), "words": len(text.word_start), "subwords": len(text.ids)}
    columns = {"sentences/source": index.source, "sentences/indptr": index.indptr}
    columns |= {path: getattr(text, name) for name, path in TEXT_COLUMNS.items() if getattr(text, name) is not None}
    for path, column in columns.items():
        group = path.split("/")[0]
        if len(column) != lengths[group] + path.endswith("indptr"):
            yield f"{path} does not fit the number of {group}"
    if len({index.subword is None, *(getattr(text, name) is None for name in OPTIONAL)}) > 1:
        yield "only some of occurrences/subword, subwords/start and subwords/stop are there"


def _text_faults(index: Index, n_rows: int) -> Iterator[str]:
    """Yield a line for each inconsistency of sentences, words and subwords as spans of the text."""
    text, lengths = index.text, index.text.pieces.n_characters()
    for name, indptr, total in (
        ("word", text.word_indptr, len(text.word_start)),
        ("subword", text.subword_indptr, len(text.ids)),
    ):
        if indptr[0] != 0 or indptr[-1] != total or not _ascends(indptr):
            yield f"sentences/{name}_indptr does not ascend from 0 to the number of {name}s"
            return
    columns = {
        "sentences": (np.arange(len(text) + 1), text.start, text.stop),
        "words": (text.word_indptr, text.word_start, text.word_stop),
    }
    if text.subword_start is not None and text.subword_stop is not None and index.subword is not None:
        columns["subwords"] = (text.subword_indptr, text.subword_start, text.subword_stop)
        counts, both = np.diff(text.subword_indptr), zip(_blocks(index.subword), _blocks(index.sentence), strict=True)
        if SPECIAL not in index.labels and any((own >= counts[sentence]).any() for own, sentence in both):
            yield "occurrences/subword points beyond the subwords of the sentence"
    for name, (indptr, starts, stops) in columns.items():
        for first, start, stop in zip(count(0, _BLOCK), _blocks(starts), _blocks(stops)):
            own = slice(first, first + len(start))
            sentence = np.searchsorted(indptr, np.arange(own.start, own.stop), "right") - 1
            most = start if name == "subwords" else stop  # a subword may go on in the next sentence
            if (start < 0).any() or (stop < start).any() or (most > lengths[sentence]).any():
                yield f"{name}/start and {name}/stop are not characters of sentences/text"
                break
            if name == "words" and ((np.diff(start) < 0) & (np.diff(sentence) == 0)).any():
                yield "words/start does not ascend in each sentence"
                break
            if name == "words":
                begin = text.subword_indptr[sentence] + text.word_subword[own]
                after = begin + text.word_subwords[own]
                if (begin < 0).any() or (after > text.subword_indptr[sentence + 1]).any():
                    yield "words/subword and words/subwords are not subwords of the sentences"
                    break


def _strings_faults(name: str, strings: Strings) -> Iterator[str]:
    offsets = strings.offsets
    if offsets[0] != 0 or offsets[-1] != len(strings.data) or not _ascends(offsets):
        yield f"{name}_offsets does not ascend from 0 to the number of bytes"
        return
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for block in _blocks(strings.data):
            decoder.decode(block.tobytes())
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        yield f"{name}_bytes is not UTF-8"
        return
    for firsts in _blocks(offsets):
        if (strings.data[firsts[firsts < len(strings.data)]] & 0xC0 == 0x80).any():
            yield f"{name}_offsets points into the middle of a character"
            return


def _is_value(name: str, value: Any) -> bool:
    fits = value == value and not (isinstance(value, int) and not -(2**63) <= value < 2**63)
    return fits and name == field_text(value)


def _range_faults(name: str, values: NDArray[np.integer], low: int, high: int | None) -> Iterator[str]:
    for block in _blocks(values):
        if block.min() < low or (high is not None and block.max() >= high):
            limit = f"from {low} on" if high is None else f"from {low} to {high - 1}"
            yield f"{name} holds a value that is not {limit}"
            return


def _blocks(values: NDArray[Any], *, overlap: int = 0) -> Iterator[NDArray[Any]]:
    for start in range(0, len(values), _BLOCK):
        yield values[start : start + _BLOCK + overlap]


def _ascends(values: NDArray[np.integer]) -> bool:
    return not any((block[1:] < block[:-1]).any() for block in _blocks(values, overlap=1))


def _points_at(indptr: NDArray[np.int64], values: NDArray[np.integer], count: int) -> bool:
    """Return whether `indptr` delimits the run of each number below `count` in ascending values."""
    if indptr[0] != 0 or indptr[-1] != len(values):
        return False
    for start in range(0, count, _BLOCK):
        stop = min(start + _BLOCK, count)
        expected = np.searchsorted(values, np.arange(start, stop), side="right")
        if not np.array_equal(indptr[start + 1 : stop + 1], expected):
            return False
    return True
