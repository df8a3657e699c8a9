"""Stores that exports begin with and what they come to, worked out without `export`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from embstore.store import Store, StoreWriter, bfloat16_bits, create_store, open_store, quantize
from tests.store_making import Made

SUFFIXES = [".zarr", ".h5"]
DTYPES = ["float32", "float16", "bfloat16", "int8"]


def encoded(vectors: np.ndarray, dtype: str, center: np.ndarray | None) -> dict[str, np.ndarray]:
    if dtype == "int8":
        assert center is not None
        return quantize(vectors, center)
    if dtype == "bfloat16":
        return {"hidden_states": bfloat16_bits(vectors)}
    return {"hidden_states": vectors.astype(dtype)}


def stored_as(made: Made, path: Path, dtype: str) -> Store:
    """The store again, its vectors kept as another dtype, written without `export`."""
    source = made.store
    center = made.vectors.mean(1) if dtype == "int8" else None
    metadata = source.metadata.__class__(**{**vars(source.metadata), "dtype": dtype})
    create_store(path, metadata=metadata, index=source.index, center=center)
    with StoreWriter(path) as writer:
        for partition in writer.missing():
            start, stop = metadata.layout.span(partition)
            writer.write(partition, encoded(np.ascontiguousarray(made.vectors[:, start:stop]), dtype, center))
        writer.finish()
    return open_store(path)


def values(store: Store) -> np.ndarray:
    return store.gather_layers(np.arange(store.n_rows))


def files(path: Path) -> dict[str, bytes]:
    if path.is_file():
        return {"": path.read_bytes()}
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
