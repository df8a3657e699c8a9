"""Stores with one row for each word, which is a sentence of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.store.convert.filling import PartitionBuffer, fill_store
from embstore.store.index import IndexBuilder
from embstore.store.layout import Layout
from embstore.store.metadata import Metadata
from embstore.store.store import Store


def word_metadata(source: Metadata, layout: Layout, *, made: Mapping[str, Any]) -> Metadata:
    """Return the metadata of a store of words; `source`: of their occurrences; `made`: how (JSON), recorded there."""
    return replace(
        source,
        n_rows=layout.n_rows,
        layers=layout.layers,
        hidden_size=layout.hidden_size,
        dtype=layout.dtype,
        partition_rows=layout.partition_rows,
        extraction={**source.extraction, "static": dict(made)},
        dropped=(),
        sites={},
        fields={},
        virtual=False,
    )


def fill_words(
    path: Path, words: Iterable[str], metadata: Metadata, vectors: Callable[[int, slice], NDArray[np.float32]]
) -> Store:
    """Write a store of words, or complete one; see `fill_store`.

    `vectors(layer, rows)`: those of a slice of the words in a layer.
    """
    index = IndexBuilder()
    for number, word in enumerate(words):
        index.add(number, [word])

    def fill(buffer: PartitionBuffer, start: int, stop: int) -> None:
        for position, layer in enumerate(metadata.layers):
            buffer.stored("hidden_states", position, 0, stop - start)[...] = vectors(layer, slice(start, stop))

    return fill_store(path, metadata=metadata, index=index.build(), center=None, fill=fill)
