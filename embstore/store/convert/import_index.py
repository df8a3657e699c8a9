"""The index of an imported store, from sentences one after the other."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

import numpy as np

from embstore.store.index import Index, Strings


class IndexBuilder:
    """Takes sentences in corpus order; every word gets a row. About 8 bytes a word and the text are held."""

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
        """The SHA-256 of the sentences, each with the bytes of its end before it, so that borders count."""
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
