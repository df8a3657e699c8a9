"""In which space vectors are compared: the metric, and what is taken from them first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.errors import InvalidValueError
from embstore.store import Selection, Store

METRICS = ("cosine", "ip", "l2")


@dataclass(frozen=True)
class Space:
    """A metric (cosine, ip: inner product, l2: Euclidean distance) over vectors less their mean and some directions.

    `mean`: float64 [feature], taken away first. `components`: float64 [c, feature], orthonormal directions that are
    projected out then (all but the top; Mu and Viswanath 2018).
    """

    metric: str = "cosine"
    mean: NDArray[np.float64] | None = None
    components: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise InvalidValueError(f"unknown metric {self.metric!r}; allowed are {', '.join(METRICS)}")

    @property
    def ascending(self) -> bool:
        """Whether less is nearer, as for a distance."""
        return self.metric == "l2"

    def place(self, vectors: ArrayLike) -> NDArray[np.float64]:
        """Vectors less mean and components, not normalised: float64 [n, feature]."""
        placed = np.array(vectors, np.float64, ndmin=2)
        if self.mean is not None:
            placed -= self.mean
        if self.components is not None:
            placed -= placed @ self.components.T @ self.components
        return placed

    def scores(self, queries: ArrayLike, vectors: ArrayLike) -> NDArray[np.float64]:
        """The score of every query with every vector, float64 [q, n]; a zero vector has cosine 0 with all."""
        placed = self.place(vectors)
        return np.array([self.pair_scores(query, placed) for query in self.place(queries)]).reshape(-1, len(placed))

    def pair_scores(self, query: NDArray[np.float64], placed: NDArray[np.float64]) -> NDArray[np.float64]:
        """Scores of placed vectors [..., feature] with a placed query that they broadcast with.

        Each is summed by itself, so that equal vectors have equal scores, which a matrix product does not promise.
        """
        if self.metric == "l2":
            return np.asarray(np.sqrt(np.square(placed - query).sum(-1)))
        if self.metric == "cosine":
            query, placed = unit_rows(query), unit_rows(placed)
        return np.asarray((placed * query).sum(-1))


def unit_rows(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Vectors at length one, those of length zero as they are; exact for the smallest and largest."""
    largest = np.abs(vectors).max(-1, keepdims=True)
    scaled = vectors / np.where(largest > 0, largest, 1)
    lengths = np.sqrt(np.square(scaled).sum(-1, keepdims=True))
    return np.asarray(scaled / np.where(lengths > 0, lengths, 1))


def space_of(
    source: Store | Selection, layer: int, *, metric: str = "cosine", center: bool = False, components: int = 0
) -> Space:
    """The space of a layer, its mean (`center`) and its first principal components learnt from what is selected.

    Components are those of the centred vectors, so that `components` above 0 centres too. Reads the layer once where
    there is something to learn. Raises InvalidValueError, MissingRowsError, NonFiniteError.
    """
    if metric not in METRICS:
        raise InvalidValueError(f"unknown metric {metric!r}; allowed are {', '.join(METRICS)}")
    if components < 0:
        raise InvalidValueError(f"components {components} is not allowed: give 0 or more")
    if not center and not components:
        return Space(metric)
    from embstore.analysis.geometry.moments import Moments
    from embstore.analysis.parts import reduce

    found = reduce(source, {"moments": Moments()}, layers=layer)[layer]["moments"]
    if components >= len(found.mean):
        raise InvalidValueError(f"components {components} is not allowed: the vectors have {len(found.mean)} features")
    if not components:
        return Space(metric, found.mean)
    directions = np.linalg.eigh(found.scatter)[1][:, ::-1][:, :components].T
    return Space(metric, found.mean, np.ascontiguousarray(directions))
