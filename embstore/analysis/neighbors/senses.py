"""Whether the occurrences of an ambiguous word lie by their sense: nearest occurrences and their labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.errors import InvalidValueError
from embstore.store import Store


@dataclass(frozen=True)
class LabelledOccurrences:
    """A word's occurrences that have a label: `vectors` [layer, n, hidden_size], `labels` and `rows` of each."""

    word: str
    layers: tuple[int, ...]
    vectors: NDArray[np.float32]
    labels: list[str]
    rows: NDArray[np.int64]


def labelled_occurrences(store: Store, word: str, *, label: str) -> LabelledOccurrences:
    """Read a word's labelled occurrences; raises InvalidValueError where there are none."""
    selection = store.select(words=word, where=pl.col(label).is_not_null())
    if not len(selection.rows):
        raise InvalidValueError(f"{word!r} has no occurrence labelled in {label!r}: choose another word or column")
    return LabelledOccurrences(
        word=word,
        layers=selection.layers,
        vectors=selection.vectors(dtype="float32"),
        labels=selection.table()[label].cast(pl.String).to_list(),
        rows=selection.rows,
    )


def cosine_neighbors(vectors: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The nearest other vector of each by cosine: index and score, [layer, n] each; vectors [layer, n, hidden_size]."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit = vectors / np.where(norms > 0, norms, np.float32(1))
    scores = unit @ unit.transpose(0, 2, 1)
    scores[:, np.arange(scores.shape[1]), np.arange(scores.shape[1])] = -np.inf
    nearest = np.asarray(scores.argmax(-1), np.int64)
    best = np.take_along_axis(scores, nearest[..., None], -1)[..., 0]
    return nearest, best.astype(np.float32, copy=False)


def label_agreement(store: Store, words: list[str], *, label: str) -> pl.DataFrame:
    """How often a word's nearest other occurrence has the same label, by layer.

    One row a word and layer: `word, layer, count, labels, value, baseline`; `value` is the share of occurrences
    whose nearest other occurrence of the word (cosine) has their label, `baseline` the share expected of one drawn
    at random.
    """
    rows = []
    for word in words:
        found = labelled_occurrences(store, word, label=label)
        codes = np.unique(found.labels, return_inverse=True)[1]
        if len(codes) < 2:
            raise InvalidValueError(f"{word!r} has one occurrence labelled in {label!r}: two or more are needed")
        nearest, _ = cosine_neighbors(found.vectors)
        agree = (codes[nearest] == codes).mean(-1)
        counts = np.bincount(codes)
        chance = float((counts * (counts - 1)).sum() / (len(codes) * (len(codes) - 1)))
        for layer, value in zip(found.layers, agree.tolist(), strict=True):
            rows.append((word, layer, len(codes), len(counts), value, chance))
    return pl.DataFrame(rows, schema=["word", "layer", "count", "labels", "value", "baseline"], orient="row")
