"""The index of a store: its words and sentences, and the word, sentence and position of each row, as columns."""

from __future__ import annotations

import hashlib
import os
import tempfile
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidValueError, quoted
from embstore.store.strings import Strings
from embstore.store.text import Text

_LOOKUPS_BEFORE_TABLE = 8
_SORT_ROWS = 1 << 22
LABELS, FIELDS = "occurrences/labels/", "documents/fields/"
SPECIAL = "special"  # the label column of special tokens, whose positions are before and after those of the words
KINDS: dict[str, Callable[[str], Any]] = {"bool": "true".__eq__, "int": int, "float": float, "str": str}  # of a field


@dataclass(frozen=True)
class Contexts:
    """What the model was given, where that is not each sentence: runs of subwords of consecutive sentences.

    `start`, `stop`: int64 [context], the subwords `[start, stop)`, counted over all sentences; both ascend. `indptr`:
    int64 [context + 1]; the vectors of the rows `indptr[i]` to `indptr[i + 1]` are from context i.
    """

    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    indptr: NDArray[np.int64]

    def of_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the context of each of some rows."""
        return np.searchsorted(self.indptr, rows, "right") - 1


class Labels:
    """One label column: `codes` int32 [occurrence] are positions in `names`, -1 for no label.

    Codes that take long to make may be given as a function, which is called when they are first used.
    """

    def __init__(self, codes: NDArray[np.int32] | Callable[[], NDArray[np.int32]], names: Strings) -> None:
        self._made_from = codes
        self.names = names

    def __repr__(self) -> str:
        return f"<Labels: {list(self.names.slice(0, 9))}>"

    @cached_property
    def codes(self) -> NDArray[np.int32]:
        return self._made_from() if callable(self._made_from) else self._made_from


def field_text(value: Any) -> str:
    """Return the text of a value of a field, as a store keeps it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Field:
    """A fact about documents: `codes` int32 [document] are positions in `names`, -1 for no value.

    `names`: the distinct values as text ("true" and "false" for bool), in ascending order of the values. `kind`: the
    type of the values, one of KINDS.
    """

    codes: NDArray[np.int32]
    names: Strings
    kind: str

    @cached_property
    def values(self) -> list[Any]:
        """The distinct values, ascending."""
        return [KINDS[self.kind](name) for name in self.names]


def _spread(field: Field, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.int32]:
    """Return the value of a field for each row; holds no index, which would keep its files open until a collection."""
    sentence, document = columns["occurrences/sentence"], columns.get("sentences/document")
    return np.asarray(field.codes[sentence if document is None else document[sentence]])


def _column(name: str) -> Any:
    """Return a property that reads a column of an index when it is first used."""
    return cached_property(lambda index: index._columns[name])


class Index:
    """All columns of a store except its vectors; arrays may be memory-mapped, and are read when they are first used.

    `type`: int32 [occurrence], the word, a position in `words`. `sentence`: int64 [occurrence], a position in `text`,
    ascending. `position`: int32 [occurrence], the index of the (first) word in its sentence. `subwords`: int16
    [occurrence], how many were pooled. `subword`: int32 [occurrence], the row's subword, counted from the first one of
    its sentence; None where no row is a subword. `words`: the distinct forms; a form of several words is joined by
    single spaces and covers as many words from `position` on. `text`: the sentences that have a row, or are part of
    what the model was given, with their words and subwords. `indptr`: int64 [sentences + 1], sentence i has the rows
    `indptr[i]` to `indptr[i + 1]`. `source`: int64 [sentences], the number of the sentence in the corpus. `document`:
    int64 [sentences], the document of each sentence, which counts from 0 on without a gap; None: each sentence is a
    document of its own. `fields`: facts about documents. `contexts`: what the model was given; None: each sentence on
    its own. `labels`: the label columns; each field is one of them too. Where the unit is the subword, forms are
    spellings of subwords, and `position` is the word in which a subword begins.
    """

    type: cached_property[NDArray[np.int32]] = _column("occurrences/type")
    sentence: cached_property[NDArray[np.int64]] = _column("occurrences/sentence")
    position: cached_property[NDArray[np.int32]] = _column("occurrences/position")
    subwords: cached_property[NDArray[np.int16]] = _column("occurrences/subwords")
    indptr: cached_property[NDArray[np.int64]] = _column("sentences/indptr")
    source: cached_property[NDArray[np.int64]] = _column("sentences/source")

    def __init__(
        self,
        columns: Mapping[str, NDArray[Any]],
        kinds: Mapping[str, str] | None = None,
        labels: Mapping[str, Labels] | None = None,
        rows_of_type: Callable[[int], NDArray[np.int64]] | None = None,
    ) -> None:
        """Make the index of columns by the names that they have in a store.

        `kinds`: of the fields. `labels`: the label columns, those of the columns by default. `rows_of_type`: finds the
        rows of one type where to sort all rows by their types takes long.
        """
        self._columns = columns
        self._kinds = dict(kinds or {})
        self._given_labels = labels
        self._rows_of_type = rows_of_type
        self._types: dict[str, int] | None = None
        self._lookups = 0

    @classmethod
    def of(
        cls,
        *,
        type: NDArray[np.int32],
        sentence: NDArray[np.int64],
        position: NDArray[np.int32],
        subwords: NDArray[np.int16],
        words: Strings,
        text: Text,
        indptr: NDArray[np.int64],
        source: NDArray[np.int64],
        subword: NDArray[np.int32] | None = None,
        labels: Mapping[str, Labels] | None = None,
        document: NDArray[np.int64] | None = None,
        fields: Mapping[str, Field] | None = None,
        contexts: Contexts | None = None,
    ) -> Index:
        """Make an index of its parts."""
        columns: dict[str, NDArray[Any]] = {
            "occurrences/type": type,
            "occurrences/sentence": sentence,
            "occurrences/position": position,
            "occurrences/subwords": subwords,
            "types/form_offsets": words.offsets,
            "types/form_bytes": words.data,
            "sentences/indptr": indptr,
            "sentences/source": source,
            **text.columns(),
        }
        if subword is not None:
            columns["occurrences/subword"] = subword
        if document is not None:
            columns["sentences/document"] = document
        if contexts is not None:
            columns |= {f"contexts/{name}": column for name, column in vars(contexts).items()}
        for name, own in (fields or {}).items():
            columns[f"{FIELDS}{name}/codes"] = own.codes
            columns[f"{FIELDS}{name}/name_offsets"] = own.names.offsets
            columns[f"{FIELDS}{name}/name_bytes"] = own.names.data
        own_labels = {name: column for name, column in (labels or {}).items() if name not in (fields or {})}
        return cls(columns, {name: own.kind for name, own in (fields or {}).items()}, own_labels)

    def changed(self, **parts: Any) -> Index:
        """Return the index with other parts, named as in `of`."""
        names: tuple[str, ...] = ("type", "sentence", "position", "subwords", "words", "text", "indptr", "source")
        names += ("subword", "document", "fields", "contexts")
        return Index.of(**{"labels": self.own_labels, **{name: getattr(self, name) for name in names}, **parts})

    def with_labels(self, labels: Mapping[str, Labels]) -> Index:
        """Return the index with other label columns."""
        return Index(self._columns, self._kinds, labels, self._rows_of_type)

    def __repr__(self) -> str:
        counts = f"{len(self.type):,} rows, {len(self.words):,} words, {len(self.text):,} sentences"
        return f"<Index of {counts}, labels {[*self.labels]}>"

    @cached_property
    def words(self) -> Strings:
        return self._strings("types/form")

    @cached_property
    def text(self) -> Text:
        return Text.of_columns(self._columns)

    @cached_property
    def subword(self) -> NDArray[np.int32] | None:
        return self._columns.get("occurrences/subword")

    @cached_property
    def document(self) -> NDArray[np.int64] | None:
        return self._columns.get("sentences/document")

    @cached_property
    def contexts(self) -> Contexts | None:
        if "contexts/start" not in self._columns:
            return None
        return Contexts(*(self._columns[f"contexts/{name}"] for name in ("start", "stop", "indptr")))

    @cached_property
    def fields(self) -> dict[str, Field]:
        names = dict.fromkeys(path.split("/")[2] for path in sorted(self._columns) if path.startswith(FIELDS))
        return {name: self._field(name) for name in names}

    def _field(self, name: str) -> Field:
        path = f"{FIELDS}{name}"
        return Field(self._columns[f"{path}/codes"], self._strings(f"{path}/name"), self._kinds.get(name, "str"))

    @cached_property
    def own_labels(self) -> dict[str, Labels]:
        """The label columns that are not fields."""
        if self._given_labels is not None:
            return dict(self._given_labels)
        paths = [path for path in sorted(self._columns) if path.startswith(LABELS)]
        names = [path.removeprefix(LABELS) for path in paths]
        return {
            name: Labels(partial(self._columns.__getitem__, path), self._strings(f"labels/{name}/name"))
            for name, path in zip(names, paths, strict=True)
            if name not in self.fields
        }

    @cached_property
    def labels(self) -> dict[str, Labels]:
        spread = {name: Labels(partial(_spread, own, self._columns), own.names) for name, own in self.fields.items()}
        return {**self.own_labels, **spread}

    def _strings(self, name: str) -> Strings:
        return Strings(self._columns[f"{name}_offsets"], self._columns[f"{name}_bytes"])

    @cached_property
    def by_type(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows of every type: `(indptr, rows)`, type t has `rows[indptr[t]:indptr[t + 1]]`, ascending."""
        if "types/indptr" in self._columns:
            return self._columns["types/indptr"], self._columns["types/occurrences"]
        with rows_by_type(self.type, len(self.words), Path(tempfile.gettempdir())) as found:
            return found

    def type_of(self, form: str) -> int | None:
        """Return the type with this spelling, None where there is none."""
        if not isinstance(form, str):
            raise InvalidValueError(f"a word must be a string, not {quoted(form)}")
        if self._types is None:
            self._lookups += 1
            if self._lookups <= _LOOKUPS_BEFORE_TABLE:
                return self.words.find(form)
            self._types = {word: number for number, word in enumerate(self.words)}
        return self._types.get(form)

    def rows_of(self, type_id: int) -> NDArray[np.int64]:
        """Return the rows of a type, a position in `words`, ascending; int64 [n].

        Raises InvalidValueError for a type that does not exist.
        """
        if not isinstance(type_id, int | np.integer) or not 0 <= type_id < len(self.words):
            raise InvalidValueError(f"there is no type {type_id}: the store has types 0 to {len(self.words) - 1}")
        if self._rows_of_type is not None and self._lookups <= _LOOKUPS_BEFORE_TABLE and "by_type" not in vars(self):
            self._lookups += 1
            return self._rows_of_type(int(type_id))
        indptr, rows = self.by_type
        return rows[indptr[type_id] : indptr[type_id + 1]]

    @property
    def n_documents(self) -> int:
        return len(self.text) if self.document is None else int(self.document[-1]) + 1

    @cached_property
    def n_words(self) -> NDArray[np.int64]:
        """How many words each form has, int64 [form]."""
        return self.words.n_words()

    @property
    def word_indptr(self) -> NDArray[np.int64]:
        """The words of sentence i are `word_indptr[i]` to `word_indptr[i + 1]` of all: int64 [sentences + 1]."""
        return self.text.word_indptr

    def document_of(self, sentences: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the documents of some sentences."""
        return sentences if self.document is None else self.document[sentences]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the columns by the names that they have in a store, without what is derived from them."""
        other = ("types/indptr", "types/occurrences", "layer", "block", "center")
        names = [name for name in self._columns if name not in other and not name.startswith((LABELS, "labels/"))]
        arrays = {name: self._columns[name] for name in names}
        for name, labels in self.own_labels.items():
            arrays[LABELS + name] = labels.codes
            arrays[f"labels/{name}/name_offsets"] = labels.names.offsets
            arrays[f"labels/{name}/name_bytes"] = labels.names.data
        return arrays

    def to_dicts(self, rows: NDArray[np.int64]) -> list[dict[str, Any]]:
        """Return the occurrence table of some rows as dicts, as `Selection.table` describes it."""
        types, sentences = self.type[rows].tolist(), self.sentence[rows].tolist()
        words = {number: self.words[number] for number in set(types)}
        texts = {number: self.text[number] for number in set(sentences)}
        start, stop = self.spans(rows)
        documents = self.document_of(self.sentence[rows])
        columns: dict[str, list[Any]] = {
            "occurrence": rows.tolist(),
            "word": [words[number] for number in types],
            "sentence": sentences,
            "position": self.position[rows].tolist(),
            "subwords": self.subwords[rows].tolist(),
            "source": self.source[self.sentence[rows]].tolist(),
            "document": documents.tolist(),
            "start": start.tolist(),
            "stop": stop.tolist(),
        }
        coded: list[tuple[str, list[int], Strings, Callable[[str], Any]]] = [
            *((name, own.codes[documents].tolist(), own.names, KINDS[own.kind]) for name, own in self.fields.items()),
            *((name, own.codes[rows].tolist(), own.names, str) for name, own in self.own_labels.items()),
        ]
        for column, codes, strings, parse in coded:
            names = {code: parse(strings[code]) for code in set(codes) if code >= 0}
            columns[column] = [names.get(code) for code in codes]
        columns["text"] = [texts[number] for number in sentences]
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def spans(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the characters `[start, stop)` of some rows in their sentences, `text[sentence]`: int64 [n] each.

        A row of several words is all from its first to its last one. White space and special tokens have no character:
        those before the words of a sentence are at its beginning, those after them at its end.
        """
        text, sentence = self.text, np.asarray(self.sentence[rows])
        shift = np.asarray(text.start[sentence], np.int64)
        if self.subword is not None and text.subword_start is not None and text.subword_stop is not None:
            own = text.subword_indptr[sentence] + np.maximum(self.subword[rows], 0)
            own = np.minimum(own, max(len(text.ids) - 1, 0))
            start, stop = text.subword_start[own], text.subword_stop[own]
        else:
            first, last = self._words_of(rows, sentence)
            start, stop = text.word_start[first], text.word_stop[last]
        end = np.asarray(text.stop[sentence], np.int64)
        place = np.where(self.position[rows] < 0, shift, end)
        is_special = self.is_special(rows, sentence)
        starts, stops = (np.where(is_special, place, np.clip(each, shift, end)) - shift for each in (start, stop))
        return starts, stops

    def is_special(self, rows: NDArray[np.int64], sentence: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which rows are special tokens, whose positions are before and after those of the words."""
        bounds, position = self.text.word_indptr, self.position[rows]
        special: NDArray[np.bool_] = (position < 0) | (position >= bounds[sentence + 1] - bounds[sentence])
        return special

    def _words_of(
        self, rows: NDArray[np.int64], sentence: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first and the last word of rows, counted over all sentences; of special tokens the next word."""
        types = self.type[rows]
        if len(types) < len(self.words):  # few rows of a store of many forms
            some, inverse = np.unique(types, return_inverse=True)
            n_words = self.words.subset(some.astype(np.int64)).n_words()[inverse]
        else:
            n_words = self.n_words[types]
        begin, end = self.text.word_indptr[sentence], self.text.word_indptr[sentence + 1] - 1
        first = np.clip(begin + self.position[rows], begin, end)
        return first, np.minimum(first + n_words - 1, end)

    def subword_spans(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the subwords `[start, stop)` of some rows, counted over all sentences: int64 [n] each.

        A special token is counted as a subword before or after those of its sentence.
        """
        text, sentence, position = self.text, np.asarray(self.sentence[rows]), self.position[rows]
        bounds = text.subword_indptr
        begin = np.asarray(bounds[sentence])
        if self.subword is not None:
            start = begin + self.subword[rows]
            stop = start + 1
        else:
            first, last = self._words_of(rows, sentence)
            start, stop = begin + text.word_subword[first], begin + text.word_subword[last] + text.word_subwords[last]
        n_words = text.word_indptr[sentence + 1] - text.word_indptr[sentence]
        special = np.where(position < 0, begin + position, bounds[sentence + 1] + position - n_words)
        is_special = self.is_special(rows, sentence)
        return np.where(is_special, special, start), np.where(is_special, special + 1, stop)

    def concordance(self, rows: NDArray[np.int64]) -> list[tuple[str, str, str]]:
        """Return for each row the three parts of its sentence: before the word or phrase, it, and after it."""
        sentences = np.asarray(self.sentence[rows])
        starts, stops = self.spans(rows)
        special = self.is_special(rows, sentences)
        if self.subword is None:
            special |= starts == stops  # between the two texts of a pair
        lines = []
        for row, sentence, start, stop, is_special in zip(
            rows.tolist(), sentences.tolist(), starts.tolist(), stops.tolist(), special.tolist(), strict=True
        ):
            before, found, after = (text := self.text[sentence])[:start], text[start:stop], text[stop:]
            if is_special:
                found = self.words[int(self.type[row])]
                before, after = before and f"{before} ", after and f" {after}"
            lines.append((before, found, after))
        return lines

    def subset(self, rows: NDArray[np.int64]) -> Index:
        """Return the index of some rows (ascending, distinct), in memory.

        Words, sentences and documents without a row are left out, the others keep their order; `source` stays the
        number in the corpus, and label columns and fields keep all their names.
        """
        types, sentences = self.type[rows], self.sentence[rows]
        words = np.flatnonzero(np.bincount(types, minlength=len(self.words)))
        contexts = None if self.contexts is None else np.unique(self.contexts.of_rows(rows))
        texts = np.unique(sentences) if contexts is None else self.sentences_of(contexts)
        numbers = np.empty(len(self.words), np.int32)
        numbers[words] = np.arange(len(words))
        documents, document = np.unique(self.document_of(texts), return_inverse=True)
        return Index.of(
            type=numbers[types],
            sentence=np.searchsorted(texts, sentences).astype(np.int64),
            position=self.position[rows],
            subwords=self.subwords[rows],
            words=self.words.subset(words),
            text=self.text.subset(texts),
            subword=None if self.subword is None else self.subword[rows],
            indptr=np.append(np.searchsorted(sentences, texts), len(rows)).astype(np.int64),
            source=self.source[texts],
            labels={name: Labels(labels.codes[rows], labels.names) for name, labels in self.own_labels.items()},
            contexts=None if contexts is None else self._subset_contexts(contexts, texts, rows),
            document=None if len(documents) == len(texts) else document.astype(np.int64),
            fields={name: replace(own, codes=own.codes[documents]) for name, own in self.fields.items()},
        )

    def sentences_of(self, contexts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return all sentences that some contexts have subwords of, ascending."""
        assert self.contexts is not None
        bounds = self.text.subword_indptr
        inside = np.zeros(len(bounds), np.int64)
        np.add.at(inside, np.searchsorted(bounds, self.contexts.start[contexts], "right") - 1, 1)
        np.add.at(inside, np.searchsorted(bounds, self.contexts.stop[contexts]), -1)
        return np.flatnonzero(np.cumsum(inside))

    def _subset_contexts(
        self, contexts: NDArray[np.int64], texts: NDArray[np.int64], rows: NDArray[np.int64]
    ) -> Contexts:
        assert self.contexts is not None
        start, stop, bounds = self.contexts.start[contexts], self.contexts.stop[contexts], self.text.subword_indptr
        begins = np.append(0, np.cumsum(np.diff(bounds)[texts]))
        first = np.searchsorted(bounds, start, "right") - 1
        shift = begins[np.searchsorted(texts, first)] - bounds[first]
        starts = np.searchsorted(rows, self.contexts.indptr[contexts])
        return Contexts(start + shift, stop + shift, np.append(starts, len(rows)))


def indptr_by_type(types: NDArray[np.int32], n_types: int, *, block_rows: int = _SORT_ROWS) -> NDArray[np.int64]:
    """Count the rows of each type, block by block: the `indptr` of `Index.by_type`."""
    indptr = np.zeros(n_types + 1, np.int64)
    for start in range(0, len(types), block_rows):
        indptr[1:] += np.bincount(types[start : start + block_rows], minlength=n_types)
    return np.cumsum(indptr, out=indptr)


@contextmanager
def rows_by_type(
    types: NDArray[np.int32], n_types: int, folder: Path, *, block_rows: int = _SORT_ROWS
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Sort rows by type in bounded memory: gives `Index.by_type`.

    A counting sort, block by block; beyond one block the result is in an unnamed file in `folder`, which exists while
    the context lasts.
    """
    indptr = indptr_by_type(types, n_types, block_rows=block_rows)
    if len(types) <= block_rows:
        yield indptr, np.argsort(types, kind="stable").astype(np.int64, copy=False)
        return
    with tempfile.TemporaryFile(dir=folder) as file:
        nbytes = len(types) * 8
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, nbytes)  # a full disk must be an error here, not a SIGBUS below
        else:
            file.truncate(nbytes)
        rows: NDArray[np.int64] = np.memmap(file, np.int64, "r+", shape=(len(types),))
        free = indptr[:-1].copy()
        for start in range(0, len(types), block_rows):
            block = np.asarray(types[start : start + block_rows])
            order = np.argsort(block, kind="stable")
            ordered = block[order]
            first = np.flatnonzero(np.diff(ordered, prepend=-1))
            counts = np.diff(first, append=len(ordered))
            rank = np.arange(len(ordered)) - np.repeat(first, counts)
            rows[free[ordered] + rank] = order + start
            free[ordered[first]] += counts
        yield indptr, rows


class IndexBuilder:
    """Builds the index of a store in which every word or phrase of every sentence has a row.

    Sentences are added in corpus order; about 8 bytes a word and the text are held in memory.
    """

    def __init__(self) -> None:
        self._types: dict[str, int] = {}
        self._type = array("i")
        self._lengths = array("i")
        self._counts = array("q")
        self._source = array("q")
        self._text = bytearray()
        self._ends = array("q", [0])

    @property
    def n_rows(self) -> int:
        return len(self._type)

    @property
    def text_sha256(self) -> str:
        """The SHA-256 of the sentences and of their lengths in bytes."""
        digest = hashlib.sha256(self._ends.tobytes())
        digest.update(self._text)
        return digest.hexdigest()

    def add(self, number: int, words: Sequence[str]) -> None:
        """Add a sentence of at least one word or phrase, joined by a space in its text; `number`: in the corpus."""
        types, text = self._types, " ".join(words)
        self._type.extend([types.setdefault(word, len(types)) for word in words])
        parts = text.split(" ")
        self._lengths.extend(map(len, parts))
        self._counts.append(len(parts))
        self._source.append(number)
        self._text += text.encode()
        self._ends.append(len(self._text))

    def build(self) -> Index:
        """Return the index of the sentences added; a word is one subword without an id."""
        pieces = Strings(np.frombuffer(self._ends, np.int64), np.frombuffer(self._text, np.uint8))
        counts, lengths = np.frombuffer(self._counts, np.int64), np.frombuffer(self._lengths, np.int32)
        text, words, types = Text.of_joined(pieces, counts, lengths), Strings.of(self._types), self._type
        sizes = words.n_words()[np.frombuffer(types, np.int32)]
        begins = np.cumsum(sizes) - sizes
        sentence = np.searchsorted(text.word_indptr, begins, "right") - 1
        return Index.of(
            type=np.frombuffer(types, np.int32),
            sentence=sentence,
            position=(begins - text.word_indptr[sentence]).astype(np.int32),
            subwords=sizes.astype(np.int16),
            words=words,
            text=text,
            indptr=np.searchsorted(begins, text.word_indptr),
            source=np.frombuffer(self._source, np.int64),
        )
