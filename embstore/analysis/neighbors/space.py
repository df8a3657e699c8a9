"""The vectors that a search reads, and the space in which it compares them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.arguments import as_matrix
from embstore.errors import NonFiniteError, check_choice, check_whole
from embstore.store import Selection, Store
from embstore.store.layout import resolve_layer
from embstore.vectors.kmeans import unit_rows

METRICS = ("cosine", "ip", "l2")
MAX_SEED = 2**63 - 1  # as tables hold it

Stored = NDArray[np.float32] | NDArray[np.float16]
Block = tuple[NDArray[np.int64], Stored]


class Vectors(Protocol):
    """Vectors that can be searched: `count` of them with `hidden_size` features, float16 or float32."""

    count: int
    hidden_size: int

    def gather(self, rows: NDArray[np.int64]) -> Stored: ...
    def blocks(self, rows: NDArray[np.int64], block_rows: int) -> Iterator[Block]: ...


class StoreVectors:
    """The vectors of one layer of a store, by row."""

    def __init__(self, store: Store, layer: int | str) -> None:
        self.store = store
        self.layer = resolve_layer(layer, store.layers)
        self.count = store.n_rows
        self.hidden_size = store.hidden_size

    def gather(self, rows: NDArray[np.int64]) -> Stored:
        return self.store.gather(rows, self.layer)

    def blocks(self, rows: NDArray[np.int64], block_rows: int) -> Iterator[Block]:
        first, last = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
        if last - first == len(rows):
            for start, vectors in self.store.scan(self.layer, first, last, block_rows=block_rows, copy=False):
                yield np.arange(start, start + len(vectors)), vectors
            return
        chosen = Selection(self.store, layers=(self.layer,), rows=rows)
        for block in chosen.iter_blocks(block_rows=block_rows):
            yield block.rows, block.vectors


class ArrayVectors:
    """Vectors in memory, float16 or float32 [n, feature]."""

    def __init__(self, array: ArrayLike) -> None:
        given = as_matrix("vectors", array)
        self._array: Stored = given if given.dtype in (np.float16, np.float32) else given.astype(np.float32)
        self.count, self.hidden_size = given.shape

    def gather(self, rows: NDArray[np.int64]) -> Stored:
        return self._array[rows]

    def blocks(self, rows: NDArray[np.int64], block_rows: int) -> Iterator[Block]:
        is_all = len(rows) == self.count
        for start in range(0, len(rows), block_rows):
            part = rows[start : start + block_rows]
            yield part, self._array[start : start + block_rows] if is_all else self._array[part]


def stored_bytes(vectors: NDArray[Any]) -> tuple[NDArray[np.int8], int]:
    """Vectors as the kernels take them: their bytes, and the number of their dtype (float16, float32 or float64)."""
    stored = np.ascontiguousarray(vectors)
    return stored.view(np.int8), {"float32": 0, "float16": 1, "float64": 3}[stored.dtype.name]


def refuse_vector(row: int, vector: Stored) -> None:
    """Raise the NonFiniteError for a vector that cannot be compared."""
    if not np.isfinite(vector).all():
        raise NonFiniteError(f"row {row} holds a value that is not finite: leave it out, or run embstore verify")
    raise NonFiniteError(f"row {row} is too long a vector for float32: choose the metric cosine, or scale it down")


@dataclass(frozen=True)
class Space:
    """How vectors are compared: by a metric, after subtracting a mean and removing some directions.

    `metric`: cosine, ip (inner product) or l2 (Euclidean distance). `mean`: float64 [feature]. `components`: float64
    [c, feature], orthonormal directions that are projected out (all but the top; Mu and Viswanath 2018).
    """

    metric: str = "cosine"
    mean: NDArray[np.float64] | None = None
    components: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        check_choice("metric", self.metric, METRICS)

    @property
    def ascending(self) -> bool:
        """Whether a lower score is nearer, as for a distance."""
        return self.metric == "l2"

    @property
    def name(self) -> str:
        """The space in words: "cosine", "cosine, centered", "cosine, 2 components out"."""
        if self.components is not None:
            n_components = len(self.components)
            return f"{self.metric}, {n_components} component{'s' if n_components > 1 else ''} out"
        return self.metric if self.mean is None else f"{self.metric}, centered"

    def transform(self, vectors: ArrayLike) -> NDArray[np.float64]:
        """Vectors minus mean and components, not normalized: float64 [n, feature]."""
        transformed = np.array(vectors, np.float64, ndmin=2)
        if self.mean is not None:
            transformed -= self.mean
        if self.components is not None:
            transformed -= transformed @ self.components.T @ self.components
        return transformed

    def scores(self, queries: ArrayLike, vectors: ArrayLike) -> NDArray[np.float64]:
        """The score of every query with every vector, float64 [q, n]; a zero vector has cosine 0 with all."""
        transformed = self.transform(vectors)
        scores = [self.pair_scores(query, transformed) for query in self.transform(queries)]
        return np.array(scores).reshape(-1, len(transformed))

    def pair_scores(self, query: NDArray[np.float64], transformed: NDArray[np.float64]) -> NDArray[np.float64]:
        """Scores of transformed vectors [..., feature] with a transformed query that they broadcast with.

        Each score is summed separately, so that equal vectors have equal scores; a matrix product does not ensure it.
        """
        if self.metric == "l2":
            return np.asarray(np.sqrt(np.square(transformed - query).sum(-1)))
        if self.metric == "cosine":
            query, transformed = unit_rows(query), unit_rows(transformed)
        return np.asarray((transformed * query).sum(-1))


def space_of(
    data: Store | Selection | NDArray[np.float32],
    layer: int | None = None,
    *,
    metric: str = "cosine",
    centered: bool = False,
    n_components: int = 0,
) -> Space:
    """Learn the space of a layer, or of an array of vectors, from all vectors that `data` selects.

    `centered`: subtract their mean. `n_components`: remove this many principal components of the centered vectors,
    which implies `centered`. A layer is read once if there is something to learn. Raises InvalidValueError,
    MissingRowsError, NonFiniteError.
    """
    check_choice("metric", metric, METRICS)
    store = data.store if isinstance(data, Selection) else data
    hidden_size = store.shape[1] if isinstance(store, np.ndarray) else store.hidden_size
    check_whole("n_components", n_components, 0, hidden_size - 1)
    if not centered and not n_components:
        return Space(metric)
    if isinstance(data, np.ndarray):
        mean: NDArray[np.float64] = data.mean(0, dtype=np.float64)
        deviations = data - mean
        scatter = deviations.T @ deviations if n_components else mean
    else:
        from embstore.analysis.geometry.moments import Moments
        from embstore.analysis.scan import reduce

        found = reduce(data, {"moments": Moments()}, layers=layer, device="cpu", progress=False)
        moments = next(iter(found.values()))["moments"]
        mean, scatter = moments.mean, moments.scatter
    if not n_components:
        return Space(metric, mean)
    directions = np.linalg.eigh(scatter)[1][:, ::-1][:, :n_components].T
    return Space(metric, mean, np.ascontiguousarray(directions))
