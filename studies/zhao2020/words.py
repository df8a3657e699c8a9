"""Words in their sentences and among their neighbours: Tables 1 and 9, and the examples of sections 4.2.3 and 4.3.1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.models import Encoder
from embstore.spacing import split_words
from embstore.store import Store
from embstore.vectors import read_vectors

N_NEIGHBORS = 7  # as in Table 1
EPSILON = 1e-12
WIDTH = 10  # words shown on each side of a target
N_AMBIGUOUS, N_CLASSES, N_CONTEXTS = 2, 3, 2  # as in Table 9


@dataclass(frozen=True)
class Sentences:
    """The occurrences of a store by word and class, with their sentences."""

    store: Store
    label: str

    @cached_property
    def _rows(self) -> dict[tuple[str, str], list[int]]:
        index, column = self.store.index, self.store.index.labels[self.label]
        words, names = list(index.words), list(column.names)
        rows: dict[tuple[str, str], list[int]] = {}
        for row, (word, code) in enumerate(zip(index.type.tolist(), column.codes.tolist(), strict=True)):
            if code >= 0:
                rows.setdefault((words[word], names[code]), []).append(row)
        return rows

    def of(self, word: str, name: str, count: int, width: int = WIDTH) -> list[str]:
        """Return the first different sentences of a word-class pair, around the word in brackets."""
        index = self.store.index
        shown: dict[str, None] = {}
        for row in self._rows.get((word, name), ()):
            text = split_words(index.texts[int(index.sentence[row])])
            shown[excerpt(text, int(index.position[row]), len(word.split(" ")), width)] = None
            if len(shown) == count:
                break
        return list(shown)

    def ambiguous(self) -> list[tuple[str, list[str]]]:
        """Return the words of most classes, each with its most frequent classes.

        A class counts if it has N_CONTEXTS occurrences. Of two words with as many classes the one with more
        occurrences is first, then the one that is first in the alphabet.
        """
        classes: dict[str, list[tuple[int, str]]] = {}
        for (word, name), rows in self._rows.items():
            if len(rows) >= N_CONTEXTS:
                classes.setdefault(word, []).append((-len(rows), name))
        several = [(word, sorted(own)) for word, own in classes.items() if len(own) > 1]
        several.sort(key=lambda each: (-len(each[1]), sum(count for count, _ in each[1]), each[0]))
        return [(word, [name for _, name in own[:N_CLASSES]]) for word, own in several[:N_AMBIGUOUS]]


def excerpt(words: Sequence[str], position: int, length: int, width: int = WIDTH) -> str:
    """Return some words around a target in brackets; what is left out is three dots."""
    first, stop = max(0, position - width), min(len(words), position + length + width)
    shown = [
        *(["..."] if first else []),
        *words[first:position],
        f"[{' '.join(words[position : position + length])}]",
        *words[position + length : stop],
        *(["..."] if stop < len(words) else []),
    ]
    return " ".join(shown)


def pieces(encoder: Encoder, word: str) -> str:
    """Return the subwords of a word or phrase."""
    return " ".join(encoder.subword_text(number) for number in encoder.tokenize([word.split(" ")]).ids.tolist())


def neighbors(words: Sequence[str], subwords: Encoder, vectors: Mapping[str, str | Path]) -> pl.DataFrame:
    """Return the nearest neighbors by cosine of words in tables of vectors: `word, table, rank, neighbor, value`.

    The tables are the model's subwords, named BERT, and the files of `vectors`. A word has neighbors in a table only if
    it is one entry of it.
    """
    rows: list[tuple[str, str, int, str, float]] = []

    def search(name: str, entry: Mapping[str, int], matrix: NDArray[np.float32], spelling: Any) -> None:
        units = matrix / np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), EPSILON)
        for word, number in entry.items():
            cosines = units @ units[number]
            best = (each for each in np.argsort(-cosines, kind="stable").tolist() if each != number and spelling(each))
            for rank, each in enumerate(islice(best, N_NEIGHBORS), 1):
                rows.append((word, name, rank, spelling(each), float(cosines[each])))

    for name, file in vectors.items():
        table = read_vectors(file)
        entry = {word: row for word in words if (row := table.row_of(word)) is not None}
        search(name, entry, table.vectors, table.words.__getitem__)
    ids = {word: subwords.tokenize([[word]]).ids.tolist() for word in words}
    matrix = subwords.table.matrix.float().cpu().numpy()  # type: ignore[attr-defined]  # of a StaticEncoder
    search("BERT", {word: each[0] for word, each in ids.items() if len(each) == 1}, matrix, subwords.subword_text)
    schema = {"word": pl.String, "table": pl.String, "rank": pl.Int64, "neighbor": pl.String, "value": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")
