"""What is searched: the vectors of a layer, or those of an array, in blocks and by row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.errors import InvalidValueError, NonFiniteError
from embstore.store import Selection, Store

Block = tuple[NDArray[np.int64], NDArray[np.float32] | NDArray[np.float16]]


class Vectors(Protocol):
    """What is searched: `count` vectors of `hidden_size` features, float16 or float32."""

    count: int
    hidden_size: int

    def gather(self, rows: NDArray[np.int64]) -> NDArray[np.float32] | NDArray[np.float16]: ...
    def blocks(self, rows: NDArray[np.int64], block_rows: int) -> Iterator[Block]: ...


class StoreVectors:
    """The vectors of one layer of a store, by its rows."""

    def __init__(self, store: Store, layer: int) -> None:
        self.store = store
        self.layer = store.select(layers=layer).layers[0]
        self.count = store.n_rows
        self.hidden_size = store.hidden_size

    def gather(self, rows: NDArray[np.int64]) -> NDArray[np.float32] | NDArray[np.float16]:
        return self.store.gather(rows, self.layer)

    def blocks(self, rows: NDArray[np.int64], block_rows: int) -> Iterator[Block]:
        first, last = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
        if last - first == len(rows):
            for start, vectors in self.store.scan(self.layer, first, last, block_rows=block_rows):
                yield np.arange(start, start + len(vectors)), vectors
            return
        chosen = Selection(self.store, layers=(self.layer,), rows=rows)
        for block in chosen.iter_blocks(block_rows=block_rows):
            yield block.rows, block.vectors


class ArrayVectors:
    """Vectors in memory, float16 or float32 [n, feature]."""

    def __init__(self, array: ArrayLike) -> None:
        held = np.asarray(array)
        if held.ndim != 2 or not held.size:
            raise InvalidValueError(f"vectors must be [n, feature] with one or more rows, not of shape {held.shape}")
        self._array = held if held.dtype in (np.float16, np.float32) else held.astype(np.float32)
        self.count, self.hidden_size = held.shape

    def gather(self, rows: NDArray[np.int64]) -> NDArray[np.float32] | NDArray[np.float16]:
        return self._array[rows]

    def blocks(self, rows: NDArray[np.int64], block_rows: int) -> Iterator[Block]:
        whole = len(rows) == self.count
        for start in range(0, len(rows), block_rows):
            part = rows[start : start + block_rows]
            yield part, self._array[start : start + block_rows] if whole else self._array[part]


def halves_or_floats(vectors: NDArray[Any]) -> tuple[NDArray[np.int16], NDArray[np.float32]]:
    """Vectors as the kernels take them: the bits of float16 or float32, the other empty."""
    held = np.ascontiguousarray(vectors)
    if held.dtype == np.float16:
        return held.view(np.int16), np.empty((0, held.shape[1]), np.float32)
    return np.empty((0, held.shape[1]), np.int16), held


def refuse(row: int, vector: NDArray[np.float32] | NDArray[np.float16]) -> None:
    if not np.isfinite(vector).all():
        raise NonFiniteError(f"row {row} holds a value that is not finite: leave it out, or run embstore verify")
    raise NonFiniteError(f"row {row} is too long a vector for float32: choose the metric cosine, or scale it down")
