"""The index of a store: its words and sentences, and the word, sentence and position of each row, as columns."""

from __future__ import annotations

import hashlib
import os
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidValueError, quoted
from embstore.spacing import ATTACHED, join_marked, marked_words, natural, split_marked

_LOOKUPS_BEFORE_TABLE = 8
_SORT_ROWS = 1 << 22
LABELS, FIELDS = "occurrences/labels/", "documents/fields/"
SPECIAL = "special"  # the label column of special tokens, whose positions are before and after those of the words
KINDS: dict[str, Callable[[str], Any]] = {"bool": "true".__eq__, "int": int, "float": float, "str": str}  # of a field


@dataclass(frozen=True)
class Contexts:
    """What the model was given, where that is not each sentence: runs of words of consecutive sentences.

    `start`, `stop`: int64 [context], the words `[start, stop)`, counted over all sentences; both ascend. `indptr`:
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

    `type`: int32 [occurrence], the word, a position in `words`. `sentence`: int64 [occurrence], a position in `texts`,
    ascending. `position`: int32 [occurrence], the index of the (first) word in its sentence. `subwords`: int16
    [occurrence], how many were pooled. `words`: the distinct forms; a form of several words is joined by single spaces
    and covers as many words from `position` on. `texts`: the words of each sentence that has a row, joined by one
    space, or by U+001F before a word that follows without a space (see `embstore.spacing`). `indptr`: int64
    [sentences + 1], sentence i has the rows `indptr[i]` to `indptr[i + 1]`. `source`: int64 [sentences], the number of
    the sentence in the corpus. `document`: int64 [sentences], the document of each sentence, which counts from 0 on
    without a gap; None: each sentence is a document of its own. `fields`: facts about documents. `contexts`: what the
    model was given; None: each sentence on its own. `labels`: the label columns; each field is one of them too. Where
    the unit is the subword, forms are spellings of subwords, and the subwords of one word follow each other with the
    word's position.
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
        texts: Strings,
        indptr: NDArray[np.int64],
        source: NDArray[np.int64],
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
            "sentences/text_offsets": texts.offsets,
            "sentences/text_bytes": texts.data,
            "sentences/indptr": indptr,
            "sentences/source": source,
        }
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
        names: tuple[str, ...] = ("type", "sentence", "position", "subwords", "words", "texts", "indptr", "source")
        names += ("document", "fields", "contexts")
        return Index.of(**{"labels": self.own_labels, **{name: getattr(self, name) for name in names}, **parts})

    def with_labels(self, labels: Mapping[str, Labels]) -> Index:
        """Return the index with other label columns."""
        return Index(self._columns, self._kinds, labels, self._rows_of_type)

    def __repr__(self) -> str:
        counts = f"{len(self.type):,} rows, {len(self.words):,} words, {len(self.texts):,} sentences"
        return f"<Index of {counts}, labels {[*self.labels]}>"

    @cached_property
    def words(self) -> Strings:
        return self._strings("types/form")

    @cached_property
    def texts(self) -> Strings:
        return self._strings("sentences/text")

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
        return len(self.texts) if self.document is None else int(self.document[-1]) + 1

    @cached_property
    def word_indptr(self) -> NDArray[np.int64]:
        """The words of sentence i are `word_indptr[i]` to `word_indptr[i + 1]` of all: int64 [sentences + 1]."""
        return np.append(0, np.cumsum(self.texts.n_words()))

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
        texts = {number: natural(self.texts[number]) for number in set(sentences)}
        documents = self.document_of(self.sentence[rows])
        columns: dict[str, list[Any]] = {
            "occurrence": rows.tolist(),
            "word": [words[number] for number in types],
            "sentence": sentences,
            "position": self.position[rows].tolist(),
            "subwords": self.subwords[rows].tolist(),
            "source": self.source[self.sentence[rows]].tolist(),
            "document": documents.tolist(),
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

    def concordance(self, rows: NDArray[np.int64]) -> list[tuple[str, str, str]]:
        """Return for each row the three parts of its sentence: before the word or phrase, it, and after it."""
        lines = []
        for row in rows.tolist():
            text, start = self.texts[int(self.sentence[row])], int(self.position[row])
            words, form = split_marked(text), self.words[int(self.type[row])]
            if not 0 <= start < len(words):  # a special token
                lines.append(("", form, f" {natural(text)}") if start < 0 else (f"{natural(text)} ", form, ""))
                continue
            stop = start + form.count(" ") + 1
            before, found, after = (
                natural(join_marked(part)) for part in (words[:start], words[start:stop], words[stop:])
            )
            before += " " if start and not words[start].startswith(ATTACHED) else ""
            after = " " + after if after and not words[stop].startswith(ATTACHED) else after
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
            texts=self.texts.subset(texts),
            indptr=np.append(np.searchsorted(sentences, texts), len(rows)).astype(np.int64),
            source=self.source[texts],
            labels={name: Labels(labels.codes[rows], labels.names) for name, labels in self.own_labels.items()},
            contexts=None if contexts is None else self._subset_contexts(contexts, texts, rows),
            document=None if len(documents) == len(texts) else document.astype(np.int64),
            fields={name: replace(own, codes=own.codes[documents]) for name, own in self.fields.items()},
        )

    def sentences_of(self, contexts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return all sentences that some contexts have words of, ascending."""
        assert self.contexts is not None
        inside = np.zeros(len(self.texts) + 1, np.int64)
        np.add.at(inside, np.searchsorted(self.word_indptr, self.contexts.start[contexts], "right") - 1, 1)
        np.add.at(inside, np.searchsorted(self.word_indptr, self.contexts.stop[contexts]), -1)
        return np.flatnonzero(np.cumsum(inside))

    def _subset_contexts(
        self, contexts: NDArray[np.int64], texts: NDArray[np.int64], rows: NDArray[np.int64]
    ) -> Contexts:
        assert self.contexts is not None
        start, stop, bounds = self.contexts.start[contexts], self.contexts.stop[contexts], self.word_indptr
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
    """Builds the index of a store in which every word of every sentence has a row.

    Sentences are added in corpus order; about 8 bytes a word and the text are held in memory.
    """

    def __init__(self) -> None:
        self._types: dict[str, int] = {}
        self._type = array("i")
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

    def add(self, number: int, words: Sequence[str], attached: Sequence[int] = ()) -> None:
        """Add a sentence of at least one word; `number`: in the corpus; `attached`: as of a `Sentence`."""
        types = self._types
        self._type.extend([types.setdefault(word, len(types)) for word in words])
        self._counts.append(len(words))
        self._source.append(number)
        self._text += join_marked(marked_words(words, attached)).encode()
        self._ends.append(len(self._text))

    def build(self) -> Index:
        """Return the index of the sentences added."""
        counts = np.frombuffer(self._counts, np.int64)
        indptr = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=indptr[1:])
        sentence = np.repeat(np.arange(len(counts)), counts)
        return Index.of(
            type=np.frombuffer(self._type, np.int32),
            sentence=sentence,
            position=(np.arange(self.n_rows) - indptr[sentence]).astype(np.int32),
            subwords=np.ones(self.n_rows, np.int16),
            words=Strings.of(self._types),
            texts=Strings(np.frombuffer(self._ends, np.int64), np.frombuffer(self._text, np.uint8)),
            indptr=indptr,
            source=np.frombuffer(self._source, np.int64),
        )
