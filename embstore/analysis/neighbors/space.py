"""The vectors that a search reads, and the space in which it compares them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.arguments import Range, as_matrix
from embstore.errors import NonFiniteError
from embstore.store import Selection, Store
from embstore.store.layout import Layer, resolve_layer
from embstore.store.reading.rows import DENSE, StoredRows

Metric = Literal["cosine", "ip", "l2"]  # the last two: inner product, and Euclidean distance
METRICS = get_args(Metric)
MAX_SEED = 2**63 - 1  # as tables hold it
Seed = Annotated[int, Range(0, MAX_SEED)]

# The numbers of dtypes in the kernels
KINDS = {np.dtype(name): number for number, name in enumerate(("float32", "float16", "uint16", "float64", "int8"))}

Stored = NDArray[np.float32] | NDArray[np.float16]
Block = tuple[NDArray[np.int64], Stored]
Rows = NDArray[np.int64] | range  # ascending; a range takes no memory


@dataclass(frozen=True)
class StoredBlock(StoredRows):
    """Some rows of one layer as they are stored; products and sums of int8 are rounded to float32.

    `rows`: the rows meant, ascending; None: those of all vectors. `spread`: the vectors of other rows lie between them.
    """

    rows: NDArray[np.int64] | None = None
    spread: bool = False

    @property
    def n_rows(self) -> int:
        return len(self.vectors) if self.rows is None else len(self.rows)

    def numbers(self, chosen: NDArray[np.integer]) -> NDArray[np.int64]:
        """The rows at these positions among the rows meant."""
        return np.asarray(chosen + self.first if self.rows is None else self.rows[chosen], np.int64)


class Vectors(Protocol):
    """Vectors that can be searched: `count` of them with `hidden_size` features.

    `stored` gives ascending rows in blocks, each of them read by the thread that calls it.
    """

    count: int
    hidden_size: int

    def gather(self, rows: NDArray[np.int64]) -> Stored: ...
    def blocks(self, rows: Rows, block_rows: int) -> Iterator[Block]: ...
    def stored(self, rows: Rows, block_rows: int) -> Iterator[Callable[[], StoredBlock]]: ...


class StoreVectors:
    """The vectors of one layer of a store, by row."""

    def __init__(self, store: Store, layer: Layer) -> None:
        self.store = store
        self.layer = resolve_layer(layer, store.layers)
        self.count = store.n_rows
        self.hidden_size = store.hidden_size

    def gather(self, rows: NDArray[np.int64]) -> Stored:
        vectors: Stored = self.store.vectors(rows, layers=self.layer)
        return vectors

    def blocks(self, rows: Rows, block_rows: int) -> Iterator[Block]:
        first, last = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
        if last - first == len(rows):
            for start, vectors in self.store.scan(self.layer, first, last, block_rows=block_rows, copy=False):
                yield np.arange(start, start + len(vectors)), vectors
            return
        chosen = Selection(self.store, layers=(self.layer,), rows=np.asarray(rows))
        for block in chosen.scan(block_rows=block_rows):
            yield block.rows, block.vectors

    def stored(self, rows: Rows, block_rows: int) -> Iterator[Callable[[], StoredBlock]]:
        first, last = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
        is_every = last - first == len(rows)
        if not is_every and (len(rows) <= DENSE * (last - first) or self.store.n_committed_rows < self.store.n_rows):
            for start in range(0, len(rows), block_rows):
                yield partial(self._gathered, np.asarray(rows[start : start + block_rows]))
            return
        for block in self.store.source.stored_blocks(self.layer, first, last, block_rows=block_rows):
            chosen = None
            if not is_every:
                left, right = np.searchsorted(rows, (block.first, block.first + len(block.vectors)))
                chosen = np.asarray(rows[left:right])
            yield partial(StoredBlock, **vars(block), rows=chosen, spread=chosen is not None)

    def _gathered(self, rows: NDArray[np.int64]) -> StoredBlock:
        out = np.empty((len(rows), self.hidden_size), np.uint16) if self.store.dtype == "bfloat16" else None
        return StoredBlock(0, self.store.vectors(rows, layers=self.layer, out=out), rows=rows)


class ArrayVectors:
    """Vectors in memory, float16 or float32 [n, feature]."""

    def __init__(self, array: ArrayLike) -> None:
        given = as_matrix("vectors", array)
        self._array: Stored = given if given.dtype in (np.float16, np.float32) else given.astype(np.float32)
        self.count, self.hidden_size = given.shape

    def gather(self, rows: NDArray[np.int64]) -> Stored:
        return self._array[rows]

    def blocks(self, rows: Rows, block_rows: int) -> Iterator[Block]:
        for start in range(0, len(rows), block_rows):
            part = np.asarray(rows[start : start + block_rows])
            first, last = int(part[0]), int(part[-1]) + 1
            yield part, self._array[first:last] if last - first == len(part) else self._array[part]

    def stored(self, rows: Rows, block_rows: int) -> Iterator[Callable[[], StoredBlock]]:
        array = np.ascontiguousarray(self._array)
        for start in range(0, len(rows), block_rows):
            part = rows[start : start + block_rows]
            first, last = int(part[0]), int(part[-1]) + 1
            chosen = None if last - first == len(part) else np.asarray(part)
            yield partial(StoredBlock, first, array[first:last], rows=chosen, spread=chosen is not None)


def stored_bytes(vectors: NDArray[Any]) -> tuple[NDArray[np.int8], int]:
    """Vectors as the kernels take them: their bytes, and the number of their dtype."""
    stored = np.ascontiguousarray(vectors)
    return stored.view(np.int8), KINDS[stored.dtype]


def refuse_vector(row: int, vector: Stored) -> None:
    """Raise the NonFiniteError for a vector that cannot be compared."""
    if not np.isfinite(vector).all():
        raise NonFiniteError(f"row {row} holds a value that is not finite: leave it out, or run embstore verify")
    raise NonFiniteError(f"row {row} is too long a vector for float32: choose the metric cosine, or scale it down")


@dataclass(frozen=True)
class Space:
    """How vectors are compared: by cosine, ip (inner product) or l2 (Euclidean distance), minus a `mean` if any."""

    metric: str = "cosine"
    mean: NDArray[np.float64] | None = None

    @property
    def ascending(self) -> bool:
        """Whether a lower score is nearer, as for a distance."""
        return self.metric == "l2"

    def transform(self, vectors: ArrayLike) -> NDArray[np.float64]:
        """Vectors minus the mean, not normalized: float64 [n, feature]."""
        transformed = np.array(vectors, np.float64, ndmin=2)
        if self.mean is not None:
            transformed -= self.mean
        return transformed


def space_of(
    data: Store | Selection | NDArray[np.float32],
    layer: int | None = None,
    *,
    metric: str = "cosine",
    centered: bool = False,
) -> Space:
    """The space of a layer, or of an array of vectors; `centered`: minus the mean of all vectors that `data` selects.

    Raises MissingRowsError, NonFiniteError.
    """
    if not centered:
        return Space(metric)
    if isinstance(data, np.ndarray):
        return Space(metric, data.mean(0, dtype=np.float64))
    from embstore.analysis.geometry.moments import Moments
    from embstore.analysis.scan import scan

    layers = scan(data, {"moments": Moments()}, layers=layer, device="cpu")
    return Space(metric, next(iter(layers.values()))["moments"].mean)
