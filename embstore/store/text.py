"""The text of a store: the sentences as they were written, and the words and subwords that are spans of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.corpus.sentence import Sentence
from embstore.store.strings import Strings

# The columns of a store with the parts of `Text`; those of `OPTIONAL` are only in stores of subwords.
TEXT_COLUMNS = {
    "start": "sentences/start",
    "stop": "sentences/stop",
    "word_indptr": "sentences/word_indptr",
    "subword_indptr": "sentences/subword_indptr",
    "word_start": "words/start",
    "word_stop": "words/stop",
    "word_subword": "words/subword",
    "word_subwords": "words/subwords",
    "ids": "subwords/id",
    "subword_start": "subwords/start",
    "subword_stop": "subwords/stop",
}
OPTIONAL = ("subword_start", "subword_stop")
REQUIRED = [path for name, path in TEXT_COLUMNS.items() if name not in OPTIONAL]
PIECES = "sentences/text"
DIGESTED = 2**13  # sentences that are read together
SPACED_BLOCK = 1024  # sentences whose characters are put in order together: about 2 MB
NO_ID = -1  # of a subword of a model without a vocabulary


@dataclass(frozen=True, eq=False)
class Text:
    """The sentences of a store with their words and subwords; arrays may be memory-mapped.

    A document is divided into pieces, one for each sentence: from the end of the piece before to the beginning of the
    next sentence. So the pieces of all sentences of a document, joined, are its text as it was read. Characters are
    those of Python strings, counted from the beginning of the piece.

    `pieces`: [sentence]. `start`, `stop`: int32 [sentence], the characters of the sentence itself, without the white
    space around it. `word_indptr`, `subword_indptr`: int64 [sentence + 1], sentence i has the words (subwords)
    `indptr[i]` to `indptr[i + 1]`. `word_start`, `word_stop`: int32 [word], the characters of a word; none of the empty
    word between the two texts of a pair. `word_subword`: int32 [word], its first subword, counted from the first one of
    its sentence: negative where it begins in the sentence before; `word_subwords`: int16 [word], how many it has. Words
    may share a subword, and there are subwords of no word. `ids`: int32 [subword], the numbers in the vocabulary of the
    model, NO_ID for a model without one. `subword_start`, `subword_stop`: int32 [subword], the characters of a subword
    without the white space before it, none of one that is white space; None where no row is a subword.
    """

    pieces: Strings
    start: NDArray[np.int32]
    stop: NDArray[np.int32]
    word_indptr: NDArray[np.int64]
    subword_indptr: NDArray[np.int64]
    word_start: NDArray[np.int32]
    word_stop: NDArray[np.int32]
    word_subword: NDArray[np.int32]
    word_subwords: NDArray[np.int16]
    ids: NDArray[np.int32]
    subword_start: NDArray[np.int32] | None = field(default_factory=lambda: None)  # no attribute of the class
    subword_stop: NDArray[np.int32] | None = field(default_factory=lambda: None)

    @classmethod
    def of_columns(cls, columns: Mapping[str, NDArray[Any]]) -> Text:
        """Return the text of the columns of a store, each read when it is first used."""
        text = cls.__new__(cls)
        vars(text)["_columns"] = columns
        return text

    def __getattr__(self, name: str) -> Any:
        columns = vars(self).get("_columns")
        if columns is None or (name not in TEXT_COLUMNS and name != "pieces"):
            raise AttributeError(name)
        if name == "pieces":
            value: Any = Strings(columns[f"{PIECES}_offsets"], columns[f"{PIECES}_bytes"])
        else:
            value = columns.get(TEXT_COLUMNS[name]) if name in OPTIONAL else columns[TEXT_COLUMNS[name]]
        vars(self)[name] = value
        return value

    @classmethod
    def of_words(cls, sentences: Iterable[Sequence[str]]) -> Text:
        """Return the text of sentences of words, joined by one space; a word is one subword without an id."""
        sentences = list(sentences)
        lengths = np.array([len(word) for words in sentences for word in words], np.int32)
        return cls.of_joined(Strings.of(map(" ".join, sentences)), np.array([*map(len, sentences)], np.int64), lengths)

    @classmethod
    def of_joined(cls, pieces: Strings, counts: NDArray[np.int64], lengths: NDArray[np.int32]) -> Text:
        """Return the text of sentences that are words joined by one space: `lengths` of the words, `counts` of each."""
        indptr = np.append(0, np.cumsum(counts)).astype(np.int64)
        ends = np.append(0, np.cumsum(lengths + 1, dtype=np.int64))
        number = np.arange(len(lengths)) - np.repeat(indptr[:-1], counts)
        start = (ends[:-1] - np.repeat(ends[indptr[:-1]], counts)).astype(np.int32)
        return cls(
            pieces=pieces,
            start=np.zeros(len(counts), np.int32),
            stop=np.maximum(ends[indptr[1:]] - ends[indptr[:-1]] - 1, 0).astype(np.int32),
            word_indptr=indptr,
            subword_indptr=indptr,
            word_start=start,
            word_stop=start + lengths,
            word_subword=number.astype(np.int32),
            word_subwords=np.ones(len(lengths), np.int16),
            ids=np.full(len(lengths), NO_ID, np.int32),
        )

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the columns of a store."""
        found = {path: getattr(self, name) for name, path in TEXT_COLUMNS.items() if getattr(self, name) is not None}
        return {f"{PIECES}_offsets": self.pieces.offsets, f"{PIECES}_bytes": self.pieces.data, **found}

    def __len__(self) -> int:
        return len(self.start)

    def __repr__(self) -> str:
        return f"<Text: {len(self):,} sentences, {len(self.word_start):,} words, {len(self.ids):,} subwords>"

    def __getitem__(self, sentence: int) -> str:
        """Return a sentence as it was written, without the white space around it."""
        return self.pieces[sentence][int(self.start[sentence]) : int(self.stop[sentence])]

    def __iter__(self) -> Iterator[str]:
        return iter(self.slice(0, len(self)))

    def slice(self, first: int, last: int) -> list[str]:
        """Return the sentences `[first, last)`."""
        bounds = zip(self.start[first:last].tolist(), self.stop[first:last].tolist(), strict=True)
        pieces = self.pieces.slice(first, last)
        return [piece[start:stop] for piece, (start, stop) in zip(pieces, bounds, strict=True)]

    def take(self, sentences: NDArray[np.int64]) -> list[str]:
        """Return some sentences, ascending and distinct."""
        if len(sentences) == len(self):
            return list(self)
        bounds = zip(self.start[sentences].tolist(), self.stop[sentences].tolist(), strict=True)
        return [piece[start:stop] for piece, (start, stop) in zip(self.pieces.take(sentences), bounds, strict=True)]

    def words(self, sentence: int) -> list[str]:
        """Return the words of a sentence."""
        some = slice(int(self.word_indptr[sentence]), int(self.word_indptr[sentence + 1]))
        bounds = zip(self.word_start[some].tolist(), self.word_stop[some].tolist(), strict=True)
        piece = self.pieces[sentence]
        return [piece[start:stop] for start, stop in bounds]

    def words_of(self, first: int, last: int) -> list[list[str]]:
        """Return the words of each of the sentences `[first, last)`."""
        return [text.split(" ") for text in self.spaced(first, last)]

    def spaced(self, first: int, last: int) -> Iterator[str]:
        """Yield the words of each of the sentences `[first, last)` joined by one space, by which they are found."""
        for block in range(first, last, SPACED_BLOCK):
            bounds = self.word_indptr[block : min(block + SPACED_BLOCK, last) + 1]
            pieces, some = self.pieces.slice(block, block + len(bounds) - 1), slice(int(bounds[0]), int(bounds[-1]))
            begins = np.append(0, np.cumsum([len(piece) for piece in pieces], dtype=np.int64))
            sizes = self.word_stop[some] - self.word_start[some] + 1  # of a word and the space after it
            ends = np.append(0, np.cumsum(sizes, dtype=np.int64))
            shifts = np.repeat(begins[:-1], np.diff(bounds)) + self.word_start[some] - ends[:-1]
            chars = np.frombuffer(f"{''.join(pieces)} ".encode("utf-32-le"), np.uint32)
            chars = chars[np.arange(ends[-1]) + np.repeat(shifts, sizes)]
            chars[ends[1:] - 1] = ord(" ")
            text = chars.tobytes().decode("utf-32-le")
            yield from (text[start : stop - 1] for start, stop in pairwise(ends[bounds - bounds[0]].tolist()))

    def sentence(self, number: int) -> Sentence:
        """Return a sentence as a corpus has it, without labels."""
        starts = self.word_start[int(self.word_indptr[number]) : int(self.word_indptr[number + 1])].tolist()
        start, stop = int(self.start[number]), int(self.stop[number])
        return Sentence(self.words(number), text=self.pieces[number], starts=starts, start=start, stop=stop)

    def document(self, first: int, last: int) -> str:
        """Return the text of a document, which has the sentences `[first, last)`, as it was read."""
        return "".join(self.pieces.slice(first, last))

    @cached_property
    def pairs(self) -> NDArray[np.int64]:
        """The empty words, each between the two texts that its sentence is a pair of."""
        return np.flatnonzero(np.asarray(self.word_start) == self.word_stop)

    @cached_property
    def distinct(self) -> NDArray[np.int64]:
        """The first sentence that is equal to each but for white space, by digests of 128 bits; int64 [n]."""
        digests = np.empty(len(self), "S16")
        for start in range(0, len(self), DIGESTED):
            texts = map(str.strip, self.slice(start, start + DIGESTED))
            plain = (each if each.isprintable() and "  " not in each else " ".join(each.split()) for each in texts)
            joined = b"".join(blake2b(each.encode(), digest_size=16).digest() for each in plain)
            digests[start : start + DIGESTED] = np.frombuffer(joined, "S16")
        _, firsts, numbers = np.unique(digests, return_index=True, return_inverse=True)
        return firsts[numbers]

    def subset(self, sentences: NDArray[np.int64]) -> Text:
        """Return some sentences (ascending), in memory."""
        words, word_indptr = _runs(self.word_indptr, sentences)
        subwords, subword_indptr = _runs(self.subword_indptr, sentences)
        part = self._part(self.pieces.subset(sentences), (sentences, words, subwords), word_indptr, subword_indptr)
        return part._cut(self, sentences)

    def range(self, first: int, last: int) -> Text:
        """Return the sentences `[first, last)`, whose columns are parts of the same arrays but for the bounds."""
        bounds = [indptr[first : last + 1] for indptr in (self.word_indptr, self.subword_indptr, self.pieces.offsets)]
        words, subwords, data = (slice(int(each[0]), int(each[-1])) for each in bounds)
        word_indptr, subword_indptr, offsets = (np.asarray(each - each[0]) for each in bounds)
        pieces = Strings(offsets, self.pieces.data[data])
        part = self._part(pieces, (slice(first, last), words, subwords), word_indptr, subword_indptr)
        return part._cut(self, np.arange(first, last))

    def _part(
        self,
        pieces: Strings,
        chosen: tuple[Any, Any, Any],
        word_indptr: NDArray[np.int64],
        subword_indptr: NDArray[np.int64],
    ) -> Text:
        """Return the chosen sentences, words and subwords."""
        sentences, words, subwords = chosen
        has_spans = self.subword_start is not None and self.subword_stop is not None
        return Text(
            pieces=pieces,
            start=self.start[sentences],
            stop=self.stop[sentences],
            word_indptr=word_indptr,
            subword_indptr=subword_indptr,
            word_start=self.word_start[words],
            word_stop=self.word_stop[words],
            word_subword=self.word_subword[words],
            word_subwords=self.word_subwords[words],
            ids=self.ids[subwords],
            subword_start=self.subword_start[subwords] if has_spans else None,  # type: ignore[index]
            subword_stop=self.subword_stop[subwords] if has_spans else None,  # type: ignore[index]
        )

    def _cut(self, whole: Text, sentences: NDArray[np.int64]) -> Text:
        """Return the text without subwords of words that are in sentences which `whole` has before the chosen ones."""
        words = np.flatnonzero(self.word_subword < 0)
        own = np.searchsorted(self.word_indptr, words, "right") - 1
        subword = whole.subword_indptr[sentences[own]] + self.word_subword[words]
        before = np.searchsorted(whole.subword_indptr, subword, "right") - 1  # the sentence that it is in
        left_out = np.isin(before, sentences, invert=True)
        if not left_out.any():
            return self
        words = words[left_out]
        first, count = self.word_subword.copy(), self.word_subwords.copy()
        count[words] = np.maximum(count[words] + first[words], 0)
        first[words] = 0
        return replace(self, word_subword=first, word_subwords=count)


def _runs(indptr: NDArray[np.int64], chosen: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return what is in the chosen runs, one after the other, and the bounds of these."""
    starts, lengths = indptr[chosen], indptr[chosen + 1] - indptr[chosen]
    return ragged_indices(starts, lengths), np.append(0, np.cumsum(lengths)).astype(np.int64)


def ragged_indices(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the indices of the runs `[start, start + length)`, one run after the other."""
    ends = np.cumsum(lengths)
    indices = np.arange(int(ends[-1]) if len(ends) else 0, dtype=np.int64)
    indices += np.repeat(starts - (ends - lengths), lengths)
    return indices
