"""Static vectors as a store with one row per word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidValueError
from embstore.store import Index, Layout, Metadata, Store
from embstore.store.convert.filling import fill_store, require_free_path
from embstore.store.index import IndexBuilder
from embstore.vectors import WordVectors


def write_static_store(
    vectors: WordVectors | Mapping[int, WordVectors],
    path: str | Path,
    *,
    source: Store,
    layer: int | None = None,
    made: Mapping[str, Any],
) -> Store:
    """Write static vectors as a float32 store, so that they can be analysed like contextual ones.

    The store has one row per word; each word is a sentence of its own. `vectors`: those of one layer, with its number
    in `layer`, or a mapping of layers to vectors of the same words. `made`: how they were made (JSON: method and
    options), stored in the metadata under `extraction.static` with the name and fingerprint of `source`. An unfinished
    store of the same vectors is resumed. Raises InvalidValueError for a path that is in use, StorageError if the disk
    is full.
    """
    path = Path(path)
    by_layer = _by_layer(vectors, layer)
    words = next(iter(by_layer.values())).words
    if any(other.words != words for other in by_layer.values()):
        raise InvalidValueError("the layers have vectors of different words: a store needs the same words in each")
    require_free_path(path)
    metadata = _metadata(by_layer, source, made)
    layout = metadata.layout

    def arrays_of(partition: int) -> dict[str, NDArray[np.float32]]:
        start, stop = layout.span(partition)
        return {"hidden_states": np.stack([each.vectors[start:stop] for each in by_layer.values()])}

    return fill_store(path, metadata=metadata, index=_index(words), center=None, arrays_of=arrays_of, progress=None)


def _by_layer(vectors: WordVectors | Mapping[int, WordVectors], layer: int | None) -> dict[int, WordVectors]:
    if isinstance(vectors, WordVectors):
        if layer is None:
            raise InvalidValueError("the layer of the vectors is not given: a store records its number")
        return {layer: vectors}
    if layer is not None or not vectors:
        raise InvalidValueError("give either vectors and their layer, or a mapping of one or more layers to vectors")
    return dict(sorted(vectors.items()))


def _metadata(by_layer: Mapping[int, WordVectors], source: Store, made: Mapping[str, Any]) -> Metadata:
    vectors = next(iter(by_layer.values()))
    layout = Layout.of(n_rows=len(vectors), layers=tuple(by_layer), hidden_size=vectors.dimensions, dtype="float32")
    origin = {"name": source.path.name, "fingerprint": source.metadata.fingerprint}
    return replace(
        source.metadata,
        n_rows=layout.n_rows,
        layers=layout.layers,
        hidden_size=layout.hidden_size,
        dtype=layout.dtype,
        partition_rows=layout.partition_rows,
        extraction={**source.metadata.extraction, "static": {**made, "source": origin}},
        dropped=(),
    )


def _index(words: tuple[str, ...]) -> Index:
    builder = IndexBuilder()
    for number, word in enumerate(words):
        builder.add(number, [word])
    return builder.build()
