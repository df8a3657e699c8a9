"""Where occurrences are: the words and subwords before and after them in a sentence, a document, a context."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.store.index import Index

POSITION, FROM_END = "_position", "_from_end"
TOKEN = "token"
PLACES = (
    TOKEN,
    "length",
    "from_end",
    *(scope + end for scope in ("document", "context") for end in (POSITION, FROM_END)),
)
STEP = 2**12  # rows that are looked at for the end of a run of labels, then twice as many
_Numbers = NDArray[np.int64]


def place_names(index: Index) -> list[str]:
    """Return the names of the places that occurrences of an index have; labels and fields of the same name go first."""
    runs = [name + end for name in index.own_labels for end in (POSITION, FROM_END)]
    return [name for name in (*PLACES, *runs) if name not in index.labels]


def place(index: Index, name: str, rows: _Numbers) -> _Numbers:
    """Return one of `place_names` for some rows, int64 [n].

    `token`: the number of the occurrence's subword in the vocabulary, -1 where it has several. `length`: the words of
    its sentence. The others count what is before it (`_position`) or after it (`_from_end`): words in its sentence and
    document, subwords in its context, occurrences in its run of equal labels.
    """
    is_position = name.endswith(POSITION)
    scope = name.removesuffix(POSITION if is_position else FROM_END)
    if name not in PLACES:
        return _run_place(index, scope, rows, from_end=not is_position)
    if name == TOKEN:
        start, stop = index.subword_spans(rows)
        is_one = (stop == start + 1) & ~index.is_special(rows, np.asarray(index.sentence[rows]))
        return np.where(is_one, index.text.ids[np.where(is_one, start, 0)], -1).astype(np.int64) if len(rows) else start
    sentence, bounds = np.asarray(index.sentence[rows]), index.text.word_indptr
    if name == "length":
        return np.asarray(bounds[sentence + 1] - bounds[sentence])
    if scope == "context":
        return _context_place(index, rows, sentence, is_position=is_position)
    word = bounds[sentence] + index.position[rows]
    first, last = sentence, sentence + 1
    if scope == "document" and index.document is not None:
        document = index.document[sentence]
        first, last = (np.searchsorted(index.document, document, side) for side in ("left", "right"))
    return np.asarray(word - bounds[first] if is_position else bounds[last] - word - index.n_words[index.type[rows]])


def _context_place(index: Index, rows: _Numbers, sentence: _Numbers, *, is_position: bool) -> _Numbers:
    """Return how many subwords of its context are before, or after, each occurrence."""
    start, stop = index.subword_spans(rows)
    if index.contexts is None:
        begin, end = index.text.subword_indptr[sentence], index.text.subword_indptr[sentence + 1]
    else:
        context = index.contexts.of_rows(rows)
        begin, end = index.contexts.start[context], index.contexts.stop[context]
    return np.asarray(start - begin if is_position else end - stop)


def _run_place(index: Index, label: str, rows: _Numbers, *, from_end: bool) -> _Numbers:
    """Return how many occurrences of the same run of labels in a document are before, or after, each one."""
    if not len(rows):
        return rows
    low, high, n_rows = int(rows.min()), int(rows.max()) + 1, len(index.type)
    first, last = low, high
    while first > 0 and not _changes(index, label, first, low + 1).any():
        first = max(0, first - STEP - (low - first))
    while last < n_rows and not _changes(index, label, high, last).any():
        last = min(n_rows, last + STEP + (last - high))
    begins = _changes(index, label, first, last)
    bounds = np.append(np.flatnonzero(begins), last - first)
    own = rows - first
    run = np.cumsum(begins)[own] - 1
    places: _Numbers = bounds[run + 1] - own - 1 if from_end else own - bounds[run]
    return places


def _changes(index: Index, label: str, first: int, last: int) -> NDArray[np.bool_]:
    """Return which of the rows `[first, last)` differ from the row before in label or document."""
    both: Any = slice(max(first - 1, 0), last)
    codes, documents = index.own_labels[label].codes[both], index.document_of(np.asarray(index.sentence[both]))
    changed = (np.diff(codes) != 0) | (np.diff(documents) != 0)
    return changed if first else np.append(np.ones(min(last, 1), bool), changed)
