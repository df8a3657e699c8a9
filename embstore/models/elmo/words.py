"""ELMo's words: numbered in the order in which they are seen, and spelled in characters, the bytes of UTF-8."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from itertools import chain
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from embstore.corpus.sentence import Sentence
from embstore.models.encoder import Split, ragged_indices, word_characters

BEGIN, END = 0, 1  # the numbers of the words before and after a sentence
SENTENCE_WORDS = ("<S>", "</S>")
# The ids of characters: the published ids plus one, because 0 means no character.
FIRST_BYTE, BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PADDING = 1, 257, 258, 259, 260, 261


def spell(words: Sequence[str], *, width: int) -> NDArray[np.int64]:
    """Return the characters of words: int64 [n_words, width], each word cut to `width - 2` bytes.

    A word is a begin mark, its bytes, an end mark and padding. The words <S> and </S> are the begin and the end of a
    sentence at any position, as in the published code.
    """
    spelled = [word.encode("utf-8", "ignore")[: width - 2] for word in words]
    lengths = np.fromiter(map(len, spelled), np.int64, count=len(spelled))
    ids = np.full((len(spelled), width), PADDING, np.int64)
    ids[:, 0] = BEGIN_WORD
    starts = np.arange(len(spelled)) * width + 1
    letters = np.frombuffer(b"".join(spelled), np.uint8).astype(np.int64)
    ids.ravel()[ragged_indices(starts, lengths)] = letters + FIRST_BYTE
    ids.ravel()[starts + lengths] = END_WORD
    for boundary, character in zip(SENTENCE_WORDS, (BEGIN_SENTENCE, END_SENTENCE), strict=True):
        rows = [row for row, word in enumerate(words) if word == boundary]
        ids[rows, 1:] = PADDING
        ids[rows, 1:3] = character, END_WORD
    return ids


def spelled_lengths(words: Sequence[str], *, width: int) -> NDArray[np.int64]:
    """Return how many bytes of each word are spelled."""
    return np.fromiter((min(len(word.encode("utf-8", "ignore")), width - 2) for word in words), np.int64, len(words))


class WordNumbers(dict[str, int]):
    """Numbers each word that is looked up, in the order in which words are first seen; each word is one subword.

    Numbers never change, so the table grows with the distinct words of a corpus.
    """

    def __init__(self) -> None:
        super().__init__()
        self._words: list[str] = []
        self._growing = Lock()  # text is tokenized in another thread than the forward passes
        self.numbers(SENTENCE_WORDS, 2)

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self._words)
        self._words.append(word)
        return number

    def tokenize(self, sentences: Sequence[Sentence]) -> Split:
        """Make every word one subword, whose id is its number."""
        bounds, starts, stops = word_characters(sentences)
        ids = self.numbers(chain.from_iterable(sentence.words for sentence in sentences), len(starts))
        each = np.arange(len(ids) + 1, dtype=np.int64)
        return Split(ids, bounds, bounds, each[:-1], each[1:], starts.astype(np.int32), stops.astype(np.int32))

    def word(self, number: int) -> str:
        """Return the word of a number."""
        return self._words[number]

    def sha256(self, *, width: int) -> str:
        """Return a hash of everything that decides how a word becomes characters."""
        ids = [FIRST_BYTE, BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PADDING]
        rules = {"encoding": "utf-8", "width": width, "characters": ids, "sentence_words": SENTENCE_WORDS}
        return hashlib.sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()

    def numbers(self, words: Iterable[str], total: int) -> NDArray[np.int32]:
        """Return the numbers of `total` words."""
        with self._growing:
            return np.fromiter(map(self.__getitem__, words), np.int32, count=total)
