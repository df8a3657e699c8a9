"""Maps of vectors in two dimensions that keep neighbours together."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.analysis.neighbors.space import unit_rows
from embstore.errors import InvalidValueError, MissingPackageError

LEAST = 4


def umap_plane(vectors: NDArray[Any], *, seed: int = 0, neighbors: int = 15) -> NDArray[np.float64]:
    """Lay vectors [n, features] out in the plane by UMAP (McInnes et al. 2018) of their cosines; float64 [n, 2].

    Unlike principal components its axes and distances mean nothing, only who is near whom. Needs umap-learn (the extra
    `umap`). Raises InvalidValueError for fewer than four vectors, MissingPackageError.
    """
    if len(vectors) < LEAST:
        raise InvalidValueError(f"UMAP of {len(vectors)} vectors is not possible: give {LEAST} or more, or choose pca")
    try:
        from umap import UMAP
    except ImportError as error:
        raise MissingPackageError('a UMAP map needs umap-learn: pip install "embstore[umap]", or choose pca') from error
    start = "random" if len(vectors) < 12 else "spectral"  # the spectral start needs more vectors than dimensions
    layout = UMAP(n_neighbors=min(neighbors, len(vectors) - 1), random_state=seed, n_jobs=1, init=start)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(layout.fit_transform(unit_rows(np.asarray(vectors, np.float64))), np.float64)
