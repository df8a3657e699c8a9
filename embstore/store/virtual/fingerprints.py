"""Fingerprints of rows: two numbers by which a row that was computed again is recognized where its last bits differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.store.arrays import FINGERPRINT_SIZE, ArraySpec
from embstore.store.vectors import decode

STEP = 0.02  # of the numbers of a fingerprint; rows whose numbers differ by at most one step count as the same

_ROWS_AT_ONCE = 4096  # whose float32 copies take a few MiB
_LEAST = 1e-30  # instead of the norm of a row of zeros


def fingerprints(spec: ArraySpec, arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.int8]:
    """Return the fingerprints of the rows of a partition, int8 [n, 2]; `spec`: of its vectors [layer, n, feature].

    With u_l the direction of a row's vector v_l in stored layer l, of L, and s_l and t_l vectors of fixed random signs,
    they are sum_l s_l . u_l / sqrt(L) and sum_l t_l . u_l / sqrt(L) + mean_l log2 |v_l|, in steps of STEP modulo 256.
    Each sum has variance 1 over signs. Vectors of int8 are relative to the center.
    """
    vectors = arrays[spec.path]
    n_layers, n_rows, n_features = vectors.shape
    projected, norms = np.zeros((n_rows, FINGERPRINT_SIZE)), np.zeros(n_rows)
    for layer, sign in enumerate(signs(n_layers, n_features)):
        for start in range(0, n_rows, _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            values = decode(vectors[layer, rows], spec.attributes["embstore_dtype"]).astype(np.float32)
            if "scale" in arrays:
                values *= arrays["scale"][layer, rows, None]
            largest = np.maximum(np.abs(values).max(1, initial=0), _LEAST)
            values /= largest[:, None]  # or squares may overflow
            norm = np.maximum(np.sqrt(np.einsum("nd,nd->n", values, values)), _LEAST)
            projected[rows] += (values @ sign.T) / norm[:, None]
            norms[rows] += np.log2(norm.astype(np.float64) * largest)
    projected /= np.sqrt(n_layers)
    projected[:, 1] += norms / n_layers
    return np.rint(projected / STEP).astype(np.int64).astype(np.int8)


def signs(n_layers: int, n_features: int) -> NDArray[np.float32]:
    """Return the signs, float32 [layer, 2, feature]: 1 where a bit of numpy's PCG64(0) is 0, -1 where it is 1."""
    count = n_layers * FINGERPRINT_SIZE * n_features
    words = np.random.PCG64(0).random_raw(-(-count // 64)).astype("<u8")
    bits = np.unpackbits(words.view(np.uint8), bitorder="little", count=count)
    return (1 - 2 * bits.astype(np.float32)).reshape(n_layers, FINGERPRINT_SIZE, n_features)


def difference(stored: NDArray[np.int8], computed: NDArray[np.int8]) -> float:
    """Return the largest difference of two arrays of fingerprints [n, 2], the shorter way around 256 steps."""
    return STEP * float(np.abs((stored - computed).astype(np.int64)).max(initial=0))
