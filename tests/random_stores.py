"""Stores of random vectors, to measure with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.store import Index, Metadata, StoreWriter, Strings, create_store
from embstore.store.layout import Layout

SENTENCE_WORDS = 20
N_TYPES = 30_000


def metadata_of(layout: Layout) -> Metadata:
    return Metadata(
        n_rows=layout.n_rows,
        layers=layout.layers,
        hidden_size=layout.hidden_size,
        dtype=layout.dtype,
        partition_rows=layout.partition_rows,
        model={"name": "synthetic", "architecture": "None", "num_hidden_layers": layout.layers[-1]},
        corpus={
            "name": "synthetic",
            "n_sentences": -(-layout.n_rows // SENTENCE_WORDS),
            "n_words": layout.n_rows,
            "sha256": "0" * 64,
        },
        extraction={"unit": "word", "pooling": "mean"},
        software={"embstore": version("embstore")},
    )


def index_of(n_rows: int, *, seed: int, n_types: int = N_TYPES, types: NDArray[np.int32] | None = None) -> Index:
    """Sentences of 20 words drawn from a Zipf law over `n_types` words, or of the words `types`."""
    if types is None:
        drawn = np.random.default_rng(seed).zipf(1.1, n_rows)
        types = np.minimum(drawn - 1, n_types - 1).astype(np.int32)
    sentence = np.arange(n_rows, dtype=np.int64) // SENTENCE_WORDS
    n_sentences = int(sentence[-1]) + 1
    words = [f"w{number}" for number in range(n_types)]
    texts = (
        " ".join(words[type_] for type_ in types[start : start + SENTENCE_WORDS])
        for start in range(0, n_rows, SENTENCE_WORDS)
    )
    return Index.of(
        type=types,
        sentence=sentence,
        position=(np.arange(n_rows) % SENTENCE_WORDS).astype(np.int32),
        subwords=np.ones(n_rows, np.int16),
        words=Strings.of(words),
        texts=Strings.of(texts),
        indptr=np.minimum(np.arange(n_sentences + 1, dtype=np.int64) * SENTENCE_WORDS, n_rows),
        source=np.arange(n_sentences, dtype=np.int64),
    )


def partitions_of(layout: Layout, *, seed: int) -> Iterator[tuple[int, NDArray[Any]]]:
    rng = np.random.default_rng(seed)
    for partition in range(layout.n_partitions):
        start, stop = layout.span(partition)
        shape = (len(layout.layers), stop - start, layout.hidden_size)
        yield partition, rng.standard_normal(shape, np.float32).astype(layout.dtype)


def write_stores(
    paths: list[Path],
    *,
    n_rows: int,
    n_layers: int,
    hidden_size: int,
    dtype: str = "float16",
    seed: int = 0,
    n_types: int = N_TYPES,
    types: NDArray[np.int32] | None = None,
) -> None:
    """Write the same random vectors to every path; `types`: the word of each row."""
    layout = Layout.of(n_rows=n_rows, layers=tuple(range(n_layers)), hidden_size=hidden_size, dtype=dtype)
    index = index_of(n_rows, seed=seed, n_types=n_types, types=types)
    for path in paths:
        create_store(path, metadata=metadata_of(layout), index=index)
    with ExitStack() as stack:
        writers = [stack.enter_context(StoreWriter(path)) for path in paths]
        for partition, vectors in partitions_of(layout, seed=seed):
            for writer in writers:
                writer.write(partition, {"hidden_states": vectors})
        for writer in writers:
            writer.finish()
