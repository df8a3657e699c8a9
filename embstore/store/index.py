"""The index of a store: its words and sentences, and the word, sentence and position of each row, as columns."""

from __future__ import annotations

import hashlib
import os
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidValueError, quoted

_LOOKUPS_BEFORE_TABLE = 8
_SORT_ROWS = 1 << 22
SPECIAL = "special"  # the label column of special tokens, whose positions are before and after those of the words
_FIND_BLOCK = 1 << 20


@dataclass(frozen=True)
class Strings:
    """A column of strings in two arrays, as in Arrow: `offsets` int64 [n + 1] into `data`, uint8 UTF-8 bytes."""

    offsets: NDArray[np.int64]
    data: NDArray[np.uint8]

    @classmethod
    def of(cls, strings: Iterable[str]) -> Strings:
        encoded = [string.encode() for string in strings]
        offsets = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(item) for item in encoded], out=offsets[1:])
        return cls(offsets, np.frombuffer(b"".join(encoded), np.uint8))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError(f"string {index} of {len(self)}")
        return self.data[self.offsets[index] : self.offsets[index + 1]].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        return iter(self.slice(0, len(self)))

    def slice(self, start: int, stop: int) -> list[str]:
        """Return the strings `[start, stop)`, decoded from one contiguous read."""
        offsets = self.offsets[start : stop + 1].tolist()
        if len(offsets) < 2:
            return []
        text = self.data[offsets[0] : offsets[-1]].tobytes()
        base = offsets[0]
        return [text[left - base : right - base].decode() for left, right in pairwise(offsets)]

    def find(self, string: str) -> int | None:
        """Return the position of the first equal string, or None; compares bytes without decoding them."""
        try:
            wanted = np.frombuffer(string.encode(), np.uint8)
        except UnicodeEncodeError:  # half of a character, which no UTF-8 text holds
            return None
        for start in range(0, len(self), _FIND_BLOCK):
            offsets = self.offsets[start : start + _FIND_BLOCK + 1]
            candidates = np.flatnonzero(np.diff(offsets) == len(wanted))
            for position, byte in enumerate(wanted):
                if not len(candidates):
                    break
                candidates = candidates[self.data[offsets[candidates] + position] == byte]
            if len(candidates):
                return start + int(candidates[0])
        return None

    def subset(self, chosen: NDArray[np.int64]) -> Strings:
        """Return some of the strings (positions, ascending); neighbours are copied together."""
        starts, stops = self.offsets[chosen], self.offsets[chosen + 1]
        offsets = np.zeros(len(chosen) + 1, np.int64)
        np.cumsum(stops - starts, out=offsets[1:])
        data = np.empty(offsets[-1], np.uint8)
        firsts = np.flatnonzero(np.diff(chosen, prepend=-2) != 1)
        lasts = np.append(firsts, len(chosen))[1:]
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            data[offsets[first] : offsets[last]] = self.data[starts[first] : stops[last - 1]]
        return Strings(offsets, data)


@dataclass(frozen=True)
class Labels:
    """One label column: `codes` int32 [occurrence] are positions in `names`, -1 for no label."""

    codes: NDArray[np.int32]
    names: Strings


@dataclass(frozen=True)
class Index:
    """All columns of a store except its vectors; arrays may be memory-mapped.

    `type`: int32 [occurrence], the word, a position in `words`. `sentence`: int64 [occurrence], a position in `texts`,
    ascending. `position`: int32 [occurrence], the index of the (first) word in its sentence. `subwords`: int16
    [occurrence], how many were pooled. `words`: the distinct forms; a form of several words is joined by single spaces
    and covers as many words from `position` on. `texts`: the words of each sentence that has a row, joined by one
    space. `indptr`: int64 [sentences + 1], sentence i has the rows `indptr[i]` to `indptr[i + 1]`. `source`: int64
    [sentences], the number of the sentence in the corpus. Where the unit is the subword, forms are spellings of
    subwords, and the subwords of one word follow each other with the word's position.
    """

    type: NDArray[np.int32]
    sentence: NDArray[np.int64]
    position: NDArray[np.int32]
    subwords: NDArray[np.int16]
    words: Strings
    texts: Strings
    indptr: NDArray[np.int64]
    source: NDArray[np.int64]
    labels: Mapping[str, Labels] = field(default_factory=dict)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the columns by the names that they have in a store."""
        arrays: dict[str, NDArray[Any]] = {
            "occurrences/type": self.type,
            "occurrences/sentence": self.sentence,
            "occurrences/position": self.position,
            "occurrences/subwords": self.subwords,
            "types/form_offsets": self.words.offsets,
            "types/form_bytes": self.words.data,
            "sentences/text_offsets": self.texts.offsets,
            "sentences/text_bytes": self.texts.data,
            "sentences/indptr": self.indptr,
            "sentences/source": self.source,
        }
        for column, labels in self.labels.items():
            arrays[f"occurrences/labels/{column}"] = labels.codes
            arrays[f"labels/{column}/name_offsets"] = labels.names.offsets
            arrays[f"labels/{column}/name_bytes"] = labels.names.data
        return arrays

    def occurrences(self, rows: NDArray[np.int64]) -> list[dict[str, Any]]:
        """Return the occurrence table of some rows as dicts, as `Selection.table` describes it."""
        types, sentences = self.type[rows].tolist(), self.sentence[rows].tolist()
        words = {number: self.words[number] for number in set(types)}
        texts = {number: self.texts[number] for number in set(sentences)}
        columns: dict[str, list[Any]] = {
            "occurrence": rows.tolist(),
            "word": [words[number] for number in types],
            "sentence": sentences,
            "position": self.position[rows].tolist(),
            "subwords": self.subwords[rows].tolist(),
            "source": self.source[self.sentence[rows]].tolist(),
        }
        for column, labels in self.labels.items():
            codes = labels.codes[rows].tolist()
            names = {code: labels.names[code] for code in set(codes) if code >= 0}
            columns[column] = [names.get(code) for code in codes]
        columns["text"] = [texts[number] for number in sentences]
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Index:
        """Return the index with these columns, the inverse of `arrays`; other names are ignored."""
        prefix = "occurrences/labels/"
        columns = [path[len(prefix) :] for path in sorted(arrays) if path.startswith(prefix)]
        return cls(
            type=arrays["occurrences/type"],
            sentence=arrays["occurrences/sentence"],
            position=arrays["occurrences/position"],
            subwords=arrays["occurrences/subwords"],
            words=Strings(arrays["types/form_offsets"], arrays["types/form_bytes"]),
            texts=Strings(arrays["sentences/text_offsets"], arrays["sentences/text_bytes"]),
            indptr=arrays["sentences/indptr"],
            source=arrays["sentences/source"],
            labels={
                column: Labels(
                    arrays[prefix + column],
                    Strings(arrays[f"labels/{column}/name_offsets"], arrays[f"labels/{column}/name_bytes"]),
                )
                for column in columns
            },
        )

    def subset(self, rows: NDArray[np.int64]) -> Index:
        """Return the index of some rows (ascending, distinct), in memory.

        Words and sentences without a row are left out, the others keep their order; `source` stays the number in the
        corpus, and label columns keep all their names.
        """
        types, sentences = self.type[rows], self.sentence[rows]
        words = np.flatnonzero(np.bincount(types, minlength=len(self.words)))
        texts = np.unique(sentences)
        numbers = np.empty(len(self.words), np.int32)
        numbers[words] = np.arange(len(words))
        return Index(
            type=numbers[types],
            sentence=np.searchsorted(texts, sentences).astype(np.int64),
            position=self.position[rows],
            subwords=self.subwords[rows],
            words=self.words.subset(words),
            texts=self.texts.subset(texts),
            indptr=np.append(np.searchsorted(sentences, texts), len(rows)).astype(np.int64),
            source=self.source[texts],
            labels={name: Labels(labels.codes[rows], labels.names) for name, labels in self.labels.items()},
        )


class TypeIndex:
    """Finds words and their rows: type t has the rows `rows[indptr[t]:indptr[t + 1]]`, ascending.

    `load_words`: returns the forms; it is called when a form is first looked up.
    """

    def __init__(self, load_words: Callable[[], Strings], indptr: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        self._load_words = load_words
        self._indptr = indptr
        self._rows = rows
        self._table: dict[str, int] | None = None
        self._lookups = 0

    @cached_property
    def words(self) -> Strings:
        return self._load_words()

    def find(self, form: str) -> int | None:
        """Return the type with this spelling, None where there is none."""
        if not isinstance(form, str):
            raise InvalidValueError(f"a word must be a string, not {quoted(form)}")
        if self._table is None:
            self._lookups += 1
            if self._lookups <= _LOOKUPS_BEFORE_TABLE:
                return self.words.find(form)
            self._table = {word: number for number, word in enumerate(self.words)}
        return self._table.get(form)

    def rows_of(self, type_id: int) -> NDArray[np.int64]:
        """Return the rows of a type, ascending. Raises InvalidValueError for a type that does not exist."""
        if not isinstance(type_id, int | np.integer) or not 0 <= type_id < len(self._indptr) - 1:
            raise InvalidValueError(f"there is no type {type_id}: the store has types 0 to {len(self._indptr) - 2}")
        return self._rows[self._indptr[type_id] : self._indptr[type_id + 1]]

    def rows_of_all(self, type_ids: Iterable[int]) -> NDArray[np.int64]:
        """Return the distinct rows of several types, ascending."""
        return np.sort(np.concatenate([np.empty(0, np.int64), *map(self.rows_of, sorted(set(type_ids)))]))


@contextmanager
def rows_by_type(
    types: NDArray[np.int32], n_types: int, folder: Path, *, block_rows: int = _SORT_ROWS
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Sort rows by type in bounded memory: gives the `indptr` and `rows` of a TypeIndex.

    A counting sort, block by block; beyond one block the result is in an unnamed file in `folder`, which exists while
    the context lasts.
    """
    indptr = np.zeros(n_types + 1, np.int64)
    for start in range(0, len(types), block_rows):
        indptr[1:] += np.bincount(types[start : start + block_rows], minlength=n_types)
    np.cumsum(indptr, out=indptr)
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

    def add(self, number: int, words: Sequence[str]) -> None:
        """Add a sentence of at least one word; `number` is its number in the corpus."""
        types = self._types
        self._type.extend([types.setdefault(word, len(types)) for word in words])
        self._counts.append(len(words))
        self._source.append(number)
        self._text += " ".join(words).encode()
        self._ends.append(len(self._text))

    def build(self) -> Index:
        """Return the index of the sentences added."""
        counts = np.frombuffer(self._counts, np.int64)
        indptr = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=indptr[1:])
        sentence = np.repeat(np.arange(len(counts)), counts)
        return Index(
            type=np.frombuffer(self._type, np.int32),
            sentence=sentence,
            position=(np.arange(self.n_rows) - indptr[sentence]).astype(np.int32),
            subwords=np.ones(self.n_rows, np.int16),
            words=Strings.of(self._types),
            texts=Strings(np.frombuffer(self._ends, np.int64), np.frombuffer(self._text, np.uint8)),
            indptr=indptr,
            source=np.frombuffer(self._source, np.int64),
        )
