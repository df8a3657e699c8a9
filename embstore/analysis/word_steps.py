"""A query word by word as a step: done here, or in groups of words by an executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embstore.analysis.steps import one_thread
from embstore.analysis.word_batches import Computing, word_groups
from embstore.analysis.words import WordRows
from embstore.store import Store


class OfWords(Protocol):
    """Something of each word of a layer, [words, ...]: the same of some words as of all, where each thread is one."""

    def __call__(
        self, store: Store, layer: int, words: WordRows, computing: Computing, progress: Callable[[int], object], /
    ) -> NDArray[Any]: ...


@dataclass(frozen=True)
class SomeWords:
    """Some words of a layer and all their rows, in which no worker needs the index of the store."""

    layer: int
    words: WordRows
    made: OfWords
    precision: str
    device: str
    memory: int

    @property
    def rows(self) -> int:
        return len(self.words.rows)

    def do(self, store: Store) -> NDArray[Any]:
        computing = Computing.of(self.precision, self.device, self.memory, threads=1)
        with one_thread():
            return self.made(store, self.layer, self.words, computing, lambda done: None)


class WordsStep:
    """The step of a query that makes something of each word of a layer, [words, ...] in the order of `words`.

    `memory`: bytes that each worker may work in. `local`: whether it is done here, on the device.
    """

    def __init__(
        self,
        store: Store,
        layer: int,
        words: WordRows,
        made: OfWords,
        *,
        precision: str,
        device: str,
        memory: int | None,
        local: bool = True,
    ) -> None:
        self._store = store
        self._layer = layer
        self._words = words
        self._made = made
        self._device = device
        self._precision = precision
        self._computing = Computing.of(precision, device if local else "cpu", memory)
        self._groups = [] if local else word_groups(store, words, self._computing)

    @property
    def count(self) -> int:
        return len(self._groups)

    def here(self, progress: Callable[[int], object]) -> NDArray[Any]:
        return self._made(self._store, self._layer, self._words, self._computing, progress)

    def tasks(self) -> Iterator[SomeWords]:
        for places in self._groups:
            own = self._words.some(places)
            yield SomeWords(self._layer, own, self._made, self._precision, self._device, self._computing.memory)

    def taken(self, found: Iterator[Any], /) -> NDArray[Any]:
        out: NDArray[Any] | None = None
        for places in self._groups:
            values = next(found)
            if out is None:
                out = np.empty((len(self._words.types), *values.shape[1:]), values.dtype)
            out[places] = values
        assert out is not None
        return out
