"""Finding the sentences of a task in a store by their words, and the rows of their spans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidValueError
from embstore.store import Store

N_TEXTS = 4096  # texts read at a time
MAX_SHOWN = 100  # characters of a text in a message


@dataclass(frozen=True, eq=False)
class StoredSentence:
    """A sentence of the store: its rows from `start`, and the word `position` int32 [rows] of each, ascending."""

    start: int
    position: NDArray[np.int32]

    def rows(self, span: tuple[int, int]) -> tuple[int, int]:
        """Return the rows [start, stop) of a span of words; empty if no word of it has a row."""
        low, high = np.searchsorted(self.position, span).tolist()
        return self.start + low, self.start + high

    def is_complete(self, span: tuple[int, int]) -> bool:
        """Return whether every word of the span has a row."""
        low, high = np.searchsorted(self.position, span)
        return len(np.unique(self.position[low:high])) == span[1] - span[0]


class StoredSentences:
    """Find sentences of a store by their words; of a text that occurs several times, the first occurrence."""

    def __init__(self, store: Store, sentences: Iterable[Sequence[str]]) -> None:
        self._store = store
        self._index = store.index
        self._forms: dict[int, str] = {}
        self._rows_are_words = store.metadata.extraction.get("unit", "word") == "word"
        wanted = {" ".join(words) for words in sentences}
        self._numbers: dict[str, int] = {}
        for start in range(0, len(self._index.texts), N_TEXTS):
            stop = min(start + N_TEXTS, len(self._index.texts))
            for number, text in enumerate(self._index.texts.slice(start, stop), start):
                if text in wanted:
                    self._numbers.setdefault(text, number)

    def find(self, words: Sequence[str], *, what: str) -> StoredSentence:
        """Return the stored sentence with exactly these words; `what` names the task in the error.

        Raises InvalidValueError if there is none, or if its words or positions differ.
        """
        text = " ".join(words)
        number = self._numbers.get(text)
        if number is None:
            raise InvalidValueError(
                f"{what}: {shown(text)} is not a sentence of {self._store.path}, where the nearest is "
                f"{shown(self._nearest(words))}: give the store of these sentences, split into the same words"
            )
        start, stop = self._index.indptr[number : number + 2].tolist()
        position = np.asarray(self._index.position[start:stop])
        if (np.diff(position) < 0).any() or position[-1:].max(initial=-1) >= len(words):
            raise InvalidValueError(f"{what}: {shown(text)}: the store's positions are not those of its words")
        if self._rows_are_words:
            for row, place in enumerate(position.tolist(), start):
                form = self.form(int(self._index.type[row]))
                if form != words[place]:
                    raise InvalidValueError(
                        f"{what}: word {place} of {shown(text)} is {words[place]!r}, in the store {form!r}: give the "
                        "store of these sentences, split into the same words"
                    )
        return StoredSentence(start, position)

    def form(self, number: int) -> str:
        """Return the form of a type."""
        if number not in self._forms:
            self._forms[number] = self._index.words[number]
        return self._forms[number]

    def _nearest(self, words: Sequence[str]) -> str:
        """Return the text with the longest common beginning, and of these the one with most words in common."""
        best, nearest = (-1, -1), ""
        bag = set(words)
        for start in range(0, len(self._index.texts), N_TEXTS):
            for text in self._index.texts.slice(start, min(start + N_TEXTS, len(self._index.texts))):
                other = text.split(" ")
                same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(words, other, strict=False)))
                score = same, len(bag.intersection(other))
                if score > best:
                    best, nearest = score, text
        return nearest


def shown(text: str) -> str:
    """Return a text in quotes, shortened for a message."""
    return repr(text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "...")
