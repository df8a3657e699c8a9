"""The text of a store: the sentences as they were written, and the words and subwords that are spans of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
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
PIECES = "sentences/text"
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
    subword_start: NDArray[np.int32] | None = None
    subword_stop: NDArray[np.int32] | None = None

    @classmethod
    def of_columns(cls, columns: Mapping[str, NDArray[Any]]) -> Text:
        """Return the text of the columns of a store."""
        pieces = Strings(columns[f"{PIECES}_offsets"], columns[f"{PIECES}_bytes"])
        return cls(pieces, **{name: columns.get(path) for name, path in TEXT_COLUMNS.items()})  # type: ignore[arg-type]

    @classmethod
    def of_words(cls, sentences: Iterable[Sequence[str]]) -> Text:
        """Return the text of sentences of words, joined by one space; a word is one subword without an id."""
        pieces, starts, stops, n_words = [], list[int](), list[int](), [0]
        for words in sentences:
            at = 0
            for word in words:
                starts.append(at)
                stops.append(at + len(word))
                at += len(word) + 1
            pieces.append(" ".join(words))
            n_words.append(len(starts))
        indptr = np.array(n_words, np.int64)
        return cls(
            pieces=Strings.of(pieces),
            start=np.zeros(len(pieces), np.int32),
            stop=np.array([len(piece) for piece in pieces], np.int32),
            word_indptr=indptr,
            subword_indptr=indptr,
            word_start=np.array(starts, np.int32),
            word_stop=np.array(stops, np.int32),
            word_subword=(np.arange(len(starts)) - np.repeat(indptr[:-1], np.diff(indptr))).astype(np.int32),
            word_subwords=np.ones(len(starts), np.int16),
            ids=np.full(len(starts), NO_ID, np.int32),
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

    def words(self, sentence: int) -> list[str]:
        """Return the words of a sentence."""
        return self.words_of(sentence, sentence + 1)[0]

    def words_of(self, first: int, last: int) -> list[list[str]]:
        """Return the words of each of the sentences `[first, last)`."""
        bounds = self.word_indptr[first : last + 1]
        some = slice(int(bounds[0]), int(bounds[-1]))
        starts, stops, ends = self.word_start[some].tolist(), self.word_stop[some].tolist(), (bounds - bounds[0]).tolist()
        found = []
        for number, piece in enumerate(self.pieces.slice(first, last)):
            own = slice(ends[number], ends[number + 1])
            found.append([piece[start:stop] for start, stop in zip(starts[own], stops[own], strict=True)])
        return found

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

    def subset(self, sentences: NDArray[np.int64]) -> Text:
        """Return some sentences (ascending), in memory."""
        words, word_indptr = _runs(self.word_indptr, sentences)
        subwords, subword_indptr = _runs(self.subword_indptr, sentences)
        parts: dict[str, Any] = {"pieces": self.pieces.subset(sentences), "word_indptr": word_indptr}
        for part in fields(self):
            column = getattr(self, part.name)
            if part.name in ("start", "stop"):
                parts[part.name] = column[sentences]
            elif part.name.startswith("word_") and part.name not in parts:
                parts[part.name] = column[words]
            elif column is not None and part.name in ("ids", *OPTIONAL):
                parts[part.name] = column[subwords]
        return replace(self, **parts, subword_indptr=subword_indptr)


def _runs(indptr: NDArray[np.int64], chosen: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return what is in the chosen runs, one after the other, and the bounds of these."""
    starts, lengths = indptr[chosen], indptr[chosen + 1] - indptr[chosen]
    bounds = np.append(0, np.cumsum(lengths)).astype(np.int64)
    return np.arange(bounds[-1]) + np.repeat(starts - bounds[:-1], lengths), bounds
