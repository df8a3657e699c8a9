"""Maps of a layer: occurrences in two dimensions by PCA or UMAP, mirrored so that the maps of all layers agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from embstore.analysis.geometry.moments import LayerMoments, Moments
from embstore.analysis.neighbors.senses import umap_plane
from embstore.analysis.scan import Batch, Scope, layer_of, scan, selected
from embstore.arguments import Count, Range, checked
from embstore.config import settings
from embstore.errors import InvalidValueError
from embstore.progress import reporting
from embstore.store import Selection, Store
from embstore.store.framed import Framed
from embstore.store.layout import Layers

AXES_ROWS = 200_000  # the principal axes of more rows are learned from this many of them
ANCHORS = 1000  # rows whose maps at all layers are computed to mirror each layer like the one before
_ITERATIONS = 300  # of subspace iteration; spectra of hidden states need about 20
_SUBSPACE = 10  # vectors, more than the two that are wanted, so that close eigenvalues part sooner
_TOLERANCE = 1e-13  # of the largest eigenvalue


@dataclass(frozen=True, eq=False)
class Projection(Framed):
    """Occurrences of one layer in two dimensions: `rows` int64 [n], ascending, and `points` float32 [n, 2].

    `explained`: the share of the variance of these vectors along each axis, the greater first, None for UMAP.
    `n_selected`: how many occurrences the rows were drawn from. `axes_rows`: how many rows gave the principal axes.
    """

    layer: int
    method: str
    rows: NDArray[np.int64]
    points: NDArray[np.float32]
    explained: tuple[float, float] | None
    n_selected: int
    axes_rows: int

    @property
    def frame(self) -> pl.DataFrame:
        """One line for each occurrence: `occurrence` (the row), `x`, `y`."""
        return pl.DataFrame({"occurrence": self.rows, "x": self.points[:, 0], "y": self.points[:, 1]})

    def __repr__(self) -> str:
        return f"<Projection of layer {self.layer} by {self.method}: {len(self.rows):,} of {self.n_selected:,} rows>"


@checked
def project(
    data: Store | Selection,
    *,
    layers: Layers = -1,
    method: Literal["pca", "umap"] = "pca",
    sample: Annotated[int, Range(3)] | None = 100_000,
    seed: Count = 0,
    n_neighbors: Annotated[int, Range(2)] = 15,
) -> Projection:
    """Map the occurrences of a layer to two dimensions, in step with the maps of the other layers.

    PCA maps of `ANCHORS` of the rows are mirrored layer by layer so that each axis is like that of the layer before,
    and the map of a layer like that of its anchors; the map by UMAP is turned like that by PCA (orthogonal Procrustes:
    the R with R^T R = I that minimizes |X R - Y|_F). The result does not depend on which layers were mapped before.

    Parameters
    ----------
    data : Store or Selection
        The occurrences.
    layers : int
        One layer.
    method : {"pca", "umap"}
        `pca`: the first two principal components, in memory that does not grow with the rows but for their coordinates;
        the axes of more than 200,000 rows are learned from that many. `umap`: UMAP (McInnes et al. 2018) of the
        cosines, which starts from the map by PCA; needs umap-learn (the extra `umap`). Its distances are not distances:
        only who is near whom counts.
    sample : int or None
        At most this many rows, one from each of as many equal stretches of the selection; the same at every layer. None
        for all.
    seed : int
        Of the sample and of UMAP.
    n_neighbors : int
        The main setting of UMAP.

    Raises
    ------
    InvalidValueError
        For a layer that is not stored and fewer than three rows (four for UMAP).
    MissingPackageError, MissingRowsError, NonFiniteError
    """
    number, selection = layer_of(data, layers), selected(data)
    rows = sample_rows(selection, sample, seed)
    if len(rows) < 3:
        raise InvalidValueError(f"a map of {len(rows)} occurrences is not possible: select three or more")
    store = selection.store
    total = 1 if method == "pca" else None
    with reporting(settings().progress, total=total, unit="epochs", label=method) as report:
        points, explained, axes_rows = _principal(store, rows, number)
        anchors = stretches(len(rows), ANCHORS, seed)
        points *= mirror(points[anchors], anchor_maps(store, rows[anchors], number)[number])
        share = np.einsum("ij,ij->j", points, points, dtype=np.float64)
        share = explained * share / max(float(share.sum()), np.finfo(np.float64).tiny)
        if method == "pca":
            report(1)
            shares = float(share[0]), float(share[1])
            return Projection(number, method, rows, points, shares, len(selection), axes_rows)
        vectors = np.asarray(store.vectors(rows, layers=number), np.float32)
        plane = umap_plane(vectors, seed=seed, n_neighbors=n_neighbors, start=points, report=report)
        plane -= plane.mean(0)
        plane = (plane @ turn(plane, points)).astype(np.float32)
        return Projection(number, method, rows, plane, None, len(selection), axes_rows)


def stretches(total: int, count: int, seed: int) -> NDArray[np.int64]:
    """Draw one number from each of `count` equal stretches of range(total): ascending; all if there are no more."""
    if count >= total:
        return np.arange(total)
    edges = np.arange(count + 1, dtype=np.int64) * total // count
    return edges[:-1] + (np.random.default_rng(seed).random(count) * np.diff(edges)).astype(np.int64)


def sample_rows(selection: Selection, sample: int | None, seed: int) -> NDArray[np.int64]:
    """The rows of a sample of a selection, ascending; int64 [n]."""
    chosen = stretches(len(selection), len(selection) if sample is None else sample, seed)
    return chosen + selection.span.start if selection.span is not None else np.sort(selection.rows)[chosen]


def mirror(points: NDArray[Any], like: NDArray[Any]) -> NDArray[Any]:
    """The signs [2] that minimize |points * signs - like|."""
    return np.where(np.einsum("ij,ij->j", points, like) < 0, -1, 1).astype(points.dtype)


def turn(points: NDArray[Any], like: NDArray[Any]) -> NDArray[Any]:
    """The rotation or reflection R [2, 2] that minimizes |points R - like| (orthogonal Procrustes, Schönemann 1966)."""
    left, _, right = np.linalg.svd(np.asarray(points, np.float64).T @ np.asarray(like, np.float64))
    return np.asarray(left @ right, points.dtype)


def anchor_maps(store: Store, rows: NDArray[np.int64], last: int) -> dict[int, NDArray[np.float64]]:
    """The maps of a few rows at each layer up to `last`, each mirrored like the layer before: {layer: [n, 2]}."""
    maps: dict[int, NDArray[np.float64]] = {}
    before: NDArray[np.float64] | None = None
    for layer in store.layers[: store.layers.index(last) + 1]:
        vectors = np.asarray(store.vectors(rows, layers=layer), np.float64)
        vectors = np.nan_to_num(vectors - vectors.mean(0))
        points = vectors @ _leading(lambda others: vectors.T @ (vectors @ others), vectors.shape[1])  # noqa: B023, called at once
        before = maps[layer] = points if before is None else points * mirror(points, before)
    return maps


def _principal(store: Store, rows: NDArray[np.int64], layer: int) -> tuple[NDArray[np.float32], float, int]:
    """The first two principal components of rows, the share of the variance in both, and how many gave the axes."""
    some = rows[stretches(len(rows), AXES_ROWS, 0)]
    moments: LayerMoments = _scan(store, some, layer, Moments())
    scatter = moments.scatter / max(float(np.trace(moments.scatter)), np.finfo(np.float64).tiny)  # or squares vanish
    axes = _leading(lambda vectors: scatter @ vectors, len(scatter))
    points = np.empty((len(rows), 2), np.float32)
    total = float(_scan(store, rows, layer, _Coordinates(points, moments.mean, axes)))
    inside = float(np.einsum("ij,ij->", points, points, dtype=np.float64))
    points -= points.mean(0, dtype=np.float64).astype(np.float32)
    return points, inside / total if total > 0 else 0.0, len(some)


def _scan(store: Store, rows: NDArray[np.int64], layer: int, reducer: Any) -> Any:
    """Reduce ascending rows of a layer; rows without a gap are a slice, so that the layer is scanned."""
    first, stop = int(rows[0]), int(rows[-1]) + 1
    some = Selection(store, layers=layer, rows=slice(first, stop) if stop - first == len(rows) else rows)
    return scan(some, {"only": reducer})[layer]["only"]


class _Coordinates:
    """A reducer that writes the coordinates of each vector along some axes; its result is the sum of |x - mean|^2."""

    def __init__(self, points: NDArray[Any], mean: NDArray[np.float64], axes: NDArray[np.float64]) -> None:
        self._points = points
        self._mean = torch.from_numpy(np.asarray(mean, np.float32))
        self._axes = torch.from_numpy(np.asarray(axes, np.float32))

    def init(self, scope: Scope) -> float:
        return 0.0

    def update(self, state: float, batch: Batch) -> float:
        centered = batch.vectors - self._mean.to(batch.vectors.device)
        most = float(np.finfo(self._points.dtype).max)
        self._points[batch.positions] = (centered @ self._axes.to(centered.device)).clamp(-most, most).cpu().numpy()
        return state + float(centered.square().sum(dtype=torch.float64))

    def merge(self, state: float, other: float) -> float:
        return state + other

    def finish(self, state: float, scope: Scope) -> float:
        return state


def _leading(product: Callable[[NDArray[np.float64]], NDArray[np.float64]], size: int) -> NDArray[np.float64]:
    """The two leading eigenvectors [size, 2] of the positive semidefinite matrix that `product` multiplies with."""
    basis, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((size, min(_SUBSPACE, size))))
    before = np.zeros(2)
    for _ in range(_ITERATIONS):
        moved = product(basis)
        every, mixed = np.linalg.eigh((basis.T @ moved + moved.T @ basis) / 2)
        values, vectors = every[:-3:-1], basis @ mixed[:, :-3:-1]
        if np.abs(values - before[: len(values)]).max() <= _TOLERANCE * values[0]:
            break
        before = values
        basis, _ = np.linalg.qr(moved)
    if size == 1:
        vectors = np.append(vectors, [[0.0]], 1)
    return np.asarray(vectors * np.where(vectors[np.abs(vectors).argmax(0), [0, 1]] < 0, -1, 1))
