"""Sentences of a task found in a store by their words, and the rows of their spans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidValueError
from embstore.store import Store

SLICE = 4096  # texts read at a time
SHOWN = 100


@dataclass(frozen=True, eq=False)
class Joined:
    """A sentence of the store: rows `[start, ...)`, at `position` int32 [rows], never falling, of its words."""

    start: int
    position: NDArray[np.int32]

    def rows(self, span: tuple[int, int]) -> tuple[int, int]:
        """The rows `[start, stop)` of a span of words; empty where none of them has a row."""
        low, high = np.searchsorted(self.position, span).tolist()
        return self.start + low, self.start + high

    def whole(self, span: tuple[int, int]) -> bool:
        """Whether every word of the span has a row."""
        low, high = np.searchsorted(self.position, span)
        return len(np.unique(self.position[low:high])) == span[1] - span[0]


class StoredSentences:
    """The sentences of a store that some sentences of words are; only their places are held.

    Where the store has a text more than once, its first place is taken.
    """

    def __init__(self, store: Store, sentences: Iterable[Sequence[str]]) -> None:
        self._store = store
        self._index = store.index
        self._forms: dict[int, str] = {}
        self._by_word = store.metadata.extraction.get("unit", "word") == "word"
        wanted = {" ".join(words) for words in sentences}
        self._places: dict[str, int] = {}
        for start in range(0, len(self._index.texts), SLICE):
            stop = min(start + SLICE, len(self._index.texts))
            for number, text in enumerate(self._index.texts.slice(start, stop), start):
                if text in wanted:
                    self._places.setdefault(text, number)

    def find(self, words: Sequence[str], *, what: str) -> Joined:
        """The sentence of these words. Raises InvalidValueError, told as of `what`, where there is none."""
        text = " ".join(words)
        place = self._places.get(text)
        if place is None:
            raise InvalidValueError(
                f"{what}: {shown(text)} is not a sentence of {self._store.path}, where the nearest is "
                f"{shown(self._nearest(words))}: give the store of these sentences, split into the same words"
            )
        start, stop = self._index.indptr[place : place + 2].tolist()
        position = np.asarray(self._index.position[start:stop])
        if (np.diff(position) < 0).any() or position[-1:].max(initial=-1) >= len(words):
            raise InvalidValueError(f"{what}: {shown(text)}: the store's positions are not those of its words")
        if self._by_word:
            self._check_forms(start, position, words, what)
        return Joined(start, position)

    def _check_forms(self, start: int, position: NDArray[np.int32], words: Sequence[str], what: str) -> None:
        for number, place in enumerate(position.tolist(), start):
            form = self._form(int(self._index.type[number]))
            if form != words[place]:
                raise InvalidValueError(
                    f"{what}: word {place} of {shown(' '.join(words))} is {words[place]!r}, in the store {form!r}: "
                    "give the store of these sentences, split into the same words"
                )

    def _form(self, number: int) -> str:
        if number not in self._forms:
            self._forms[number] = self._index.words[number]
        return self._forms[number]

    def _nearest(self, words: Sequence[str]) -> str:
        """The text of the store with the most words in common with these: at its start first, then anywhere."""
        best, found = (-1, -1), ""
        bag = set(words)
        for start in range(0, len(self._index.texts), SLICE):
            for text in self._index.texts.slice(start, min(start + SLICE, len(self._index.texts))):
                other = text.split(" ")
                begun = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(words, other, strict=False)))
                score = begun, len(bag.intersection(other))
                if score > best:
                    best, found = score, text
        return found


def shown(text: str) -> str:
    """A text, quoted and not too long."""
    return repr(text if len(text) <= SHOWN else text[: SHOWN - 3] + "...")
