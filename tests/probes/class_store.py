"""Small stores of words with classes, in one layer of which the class of an occurrence can be read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embstore.store import Index, Labels, Metadata, Store, StoreWriter, Strings, Text, create_store, open_store
from tests.store.example import encoded

CLASSES = ("animal", "food", "place")


@dataclass(frozen=True, eq=False)
class Made:
    """A store, and its contents: of each row word and class ("" for none), and `vectors` [layer, row, feature]."""

    store: Store
    words: list[str]
    classes: list[str]
    vectors: np.ndarray

    @property
    def lists(self) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        """Words of two lists, train and test, with their classes: every third word is a test word."""
        found: dict[str, set[str]] = {}
        for word, name in zip(self.words, self.classes, strict=True):
            if name:
                found.setdefault(word, set()).add(name)
        listed = {word: sorted(found[word]) for word in sorted(found)}
        test = {word: listed[word] for number, word in enumerate(listed) if number % 3 == 2}
        return {word: names for word, names in listed.items() if word not in test}, test


def write_rows(
    path: Path,
    vectors: np.ndarray,
    layers: tuple[int, ...],
    dtype: str = "float32",
    unit: str = "word",
    *,
    partition_rows: int = 256,
    model: str = "none",
    written: bool = True,
    **columns: Any,
) -> Store:
    """Write a store of `vectors` [layer, row, feature], all or not `written`; `columns`: of its index."""
    sentence, text = columns["sentence"], columns["text"]
    columns |= {"subwords": np.ones(len(sentence), np.int16), "source": np.arange(len(text), dtype=np.int64)}
    bounds = np.searchsorted(sentence, np.arange(len(text) + 1)).astype(np.int64)
    index = Index.of(**{**columns, "sentence": sentence.astype(np.int64), "indptr": bounds})
    stored, _, center = encoded(vectors.astype(np.float32), dtype)
    metadata = Metadata(
        n_rows=vectors.shape[1],
        layers=layers,
        hidden_size=vectors.shape[2],
        dtype=dtype,
        partition_rows=partition_rows,
        model={"name": model, "architecture": "none"},
        corpus={"name": "none", "sha256": "0" * 64},
        extraction={"unit": unit, "pooling": "mean"},
        fields={name: own.kind for name, own in index.fields.items()},
    )
    create_store(path, metadata=metadata, index=index, center=center)
    with StoreWriter(path) as writer:
        for partition in writer.missing()[: None if written else -1]:
            rows = slice(*metadata.layout.span(partition))
            writer.write(partition, {name: np.ascontiguousarray(array[:, rows]) for name, array in stored.items()})
        if written:
            writer.finish()
    return open_store(path)


def make(
    path: Path,
    *,
    words: int = 60,
    layers: tuple[int, ...] = (0, 1, 4),
    planted: int | None = 1,
    width: int = 8,
    dtype: str = "float32",
    labelled: bool = True,
    seed: int = 0,
) -> Made:
    """Write words of one or two classes, 1 to 9 occurrences of each; those of layer `planted` lie by their class."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[int, int]] = []
    for word in range(words):
        own = rng.permutation(len(CLASSES))[: 1 + (word % 4 == 0)]
        rows += [(word, int(rng.choice(own))) for _ in range(rng.integers(1, 10))]
        rows += [(word, -1)] * (word % 5 == 0)
    order = rng.permutation(len(rows))
    types, codes = np.array(rows, np.int32)[order].T
    count = len(rows)
    drawn = [np.random.default_rng((seed, layer)).normal(size=(count, width)) for layer in layers]
    vectors = np.stack(drawn).astype(np.float32)
    if planted is not None:
        places = 3 * np.random.default_rng(seed).normal(size=(len(CLASSES) + 1, width))
        vectors[layers.index(planted)] += places[codes].astype(np.float32)
    columns = {
        "type": types,
        "sentence": np.arange(count) // 3,
        "position": (np.arange(count) % 3).astype(np.int32),
        "words": Strings.of([f"word {number}" for number in range(words)]),
        "text": Text.of_words([["text", f"{number}"] for number in range((count + 2) // 3)]),
        "labels": {"class": Labels(codes, Strings.of(CLASSES))} if labelled else {},
    }
    return Made(
        write_rows(path, vectors, layers, dtype, **columns),
        [f"word {number}" for number in types.tolist()],
        ["" if code < 0 else CLASSES[code] for code in codes.tolist()],
        vectors.astype(dtype).astype(np.float32),
    )
