"""Small stores, with the values they must return computed in plain numpy."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.store import Index, Labels, Metadata, Store, StoreWriter, Strings, Text, create_store, open_store
from embstore.store.metadata import Dropped
from tests.store_making import Made

SUFFIXES = [".zarr", ".h5"]
DTYPES = ["float32", "float16", "bfloat16", "int8"]
FORMS = ["bank", "river", "der", "évident", "the New York", "x", "", "字"]


@dataclass(frozen=True)
class Example:
    """The contents of a store: `arrays` in the storage dtype, and `values` as they must be read."""

    metadata: Metadata
    index: Index
    arrays: dict[str, NDArray[Any]]
    values: NDArray[Any]
    center: NDArray[np.float32] | None

    def partition(self, number: int) -> dict[str, NDArray[Any]]:
        start, stop = self.metadata.layout.span(number)
        return {name: np.ascontiguousarray(array[:, start:stop]) for name, array in self.arrays.items()}

    def create(self, path: Path) -> Path:
        create_store(path, metadata=self.metadata, index=self.index, center=self.center)
        return path

    def fill(self, path: Path, partitions: Iterable[int] | None = None) -> None:
        with StoreWriter(path) as writer:
            for number in writer.missing() if partitions is None else partitions:
                writer.write(number, self.partition(number))
            if partitions is None:
                writer.finish()

    def make(self, path: Path) -> Store:
        self.fill(self.create(path))
        return open_store(path)


def example(
    *,
    rows: int = 700,
    layers: tuple[int, ...] = (0, 3, 5),
    hidden_size: int = 16,
    dtype: str = "float16",
    partition_rows: int = 256,
    seed: int = 0,
    labels: bool = True,
) -> Example:
    random = np.random.default_rng(seed)
    metadata = Metadata(
        n_rows=rows,
        layers=layers,
        hidden_size=hidden_size,
        dtype=dtype,
        partition_rows=partition_rows,
        model={"name": "tiny", "num_hidden_layers": 6, "max_subwords": None},
        corpus={"name": "corpus.txt", "format": "text", "n_sentences": rows},
        extraction={"unit": "word", "pooling": "mean", "seed": seed, "context_window": None, "ratio": 0.1},
        dropped=(Dropped("no subword", 2, ("'\u200b' in sentence 3", "'\ufe0f' in sentence 9")),),
        software={"embstore": "0"},
    )
    shape = (len(layers), rows, hidden_size)
    arrays, values, center = encoded(random.normal(scale=3, size=shape).astype(np.float32), dtype)
    return Example(metadata, an_index(random, rows, labels=labels), arrays, values, center)


def encoded(
    vectors: NDArray[np.float32], dtype: str
) -> tuple[dict[str, NDArray[Any]], NDArray[Any], NDArray[np.float32] | None]:
    """Return the arrays to store and the values to read, by the definitions, without embstore."""
    if dtype in ("float32", "float16"):
        stored: NDArray[Any] = vectors.astype(dtype)
        return {"hidden_states": stored}, stored, None
    if dtype == "bfloat16":
        bits = (vectors.view(np.uint32) >> 16).astype(np.uint16)
        return {"hidden_states": bits}, (bits.astype(np.uint32) << 16).view(np.float32), None
    center = vectors.mean(axis=1)
    scale = (np.abs(vectors - center[:, None]).max(axis=2) / 127).astype(np.float32)
    residual = (vectors - center[:, None]) / np.where(scale, scale, 1)[..., None]
    codes = np.rint(residual).clip(-127, 127).astype(np.int8)
    values = codes.astype(np.float32) * scale[..., None] + center[:, None]
    return {"hidden_states": codes, "scale": scale}, values, center


def an_index(random: np.random.Generator, rows: int, *, labels: bool) -> Index:
    """Return sentences of one to nine rows with random types, and labels with some missing."""
    lengths: list[int] = []
    while sum(lengths) < rows:
        lengths.append(min(int(random.integers(1, 10)), rows - sum(lengths)))
    columns = {}
    if labels:
        columns = {
            "upos": Labels(random.integers(-1, 3, rows).astype(np.int32), Strings.of(["NOUN", "VERB", "ADJ"])),
            "nothing": Labels(np.full(rows, -1, np.int32), Strings.of([])),
        }
    return Index.of(
        type=random.integers(0, len(FORMS), rows).astype(np.int32),
        sentence=np.repeat(np.arange(len(lengths)), lengths).astype(np.int64),
        position=np.concatenate([np.arange(length) for length in lengths]).astype(np.int32),
        subwords=random.integers(1, 5, rows).astype(np.int16),
        words=Strings.of(FORMS),
        text=Text.of_words(["wörd"] * length for length in lengths),
        indptr=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        source=np.arange(len(lengths), dtype=np.int64) * 2,
        labels=columns,
    )


def stored_as(made: Made, path: Path, dtype: str) -> Store:
    """Write the contents of a float32 store again as another dtype, without `export`."""
    metadata = replace(made.store.metadata, dtype=dtype)
    arrays, values, center = encoded(made.vectors, dtype)
    return Example(metadata, made.store.index, arrays, values, center).make(path)


def values(store: Store) -> np.ndarray:
    return store.vectors(np.arange(store.n_rows))


def table(store: Store) -> list[dict[str, Any]]:
    return [dict(row) for row in store.table().to_dicts()]


def all_files(path: Path) -> dict[str, bytes]:
    """Return the bytes of every file of a store, which is a folder or a file, by name."""
    if path.is_file():
        return {"": path.read_bytes()}
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def flip(file: Path, offset: int, bit: int = 0) -> None:
    """Flip one bit; an offset below zero counts from the end."""
    with file.open("r+b") as opened:
        opened.seek(offset, os.SEEK_END if offset < 0 else os.SEEK_SET)
        place = opened.tell()
        byte = opened.read(1)[0]
        opened.seek(place)
        opened.write(bytes([byte ^ 1 << bit]))
