"""Encodings of stored vectors: float32 and float16 as they are, bfloat16 as its bits, int8 with a scale per row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore import kernels
from embstore.errors import InvalidValueError, NonFiniteError
from embstore.kernels import compiled_name as compiled_name
from embstore.store.layout import ITEM_NBYTES

DTYPES = tuple(ITEM_NBYTES)
STORAGE_DTYPE: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),
    "int8": np.dtype("i1"),
}
VALUE_DTYPE: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<f4"),
    "int8": np.dtype("<f4"),
}
BFLOAT16_NAN = 0x7FC0
INT8_FILL = -128
SCALE_DTYPE = np.dtype("<f4")


def bfloat16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the bits of float32 values rounded to bfloat16, to nearest with ties to even; NaN stays NaN."""
    values = np.ascontiguousarray(values, np.float32)
    bits = values.view(np.uint32)
    rounded = (bits >> 16) & 1
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def float32_of_bfloat16(bits: NDArray[np.uint16], out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """Return bfloat16 bits as float32, exactly."""
    if out is None:
        out = np.empty(bits.shape, np.float32)
    np.left_shift(bits, np.uint32(16), out=out.view(np.uint32), dtype=np.uint32)
    return out


def all_finite(values: NDArray[Any]) -> bool:
    """Return whether no value of a C-contiguous float16 or float32 array is infinite or NaN."""
    return kernels.all_finite(values.reshape(-1).view(np.int8), values.itemsize == 2)


def quantize(vectors: NDArray[np.float32], center: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    """Encode vectors as int8: subtract the center and scale each row to codes in [-127, 127].

    `vectors` float32 [layer, n, feature], `center` float32 [layer, feature]. Returns the arrays of a partition:
    "hidden_states" int8 [layer, n, feature] and "scale" float32 [layer, n]; a value is `center + scale * code`, with
    an error of at most half the scale. Raises NonFiniteError for NaN, infinities and differences beyond float32.
    """
    if vectors.ndim != 3 or center.shape != (vectors.shape[0], vectors.shape[2]):
        raise InvalidValueError(f"a center of shape {center.shape} does not fit vectors of shape {vectors.shape}")
    with np.errstate(over="ignore", invalid="ignore"):
        residual = np.subtract(vectors, center[:, None, :], dtype=np.float32)
    peak = np.abs(residual).max(axis=2, initial=0)
    if not np.isfinite(peak).all():
        layer, row = np.argwhere(~np.isfinite(peak))[0]
        raise NonFiniteError(f"row {row} of stored layer {layer} is not finite and cannot be stored as int8")
    scale = (peak / np.float32(127)).astype(np.float32)
    scale[scale < np.finfo(np.float32).tiny] = 0
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    residual *= inverse[:, :, None]
    np.rint(residual, out=residual)
    np.clip(residual, -127, 127, out=residual)
    return {"hidden_states": residual.astype(np.int8), "scale": scale}


def dequantize(
    codes: NDArray[np.int8],
    scale: NDArray[np.float32],
    center: NDArray[np.float32],
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Return `center + scale * code` of one layer: codes [n, feature], scale [n], center [feature]."""
    if out is None:
        out = np.empty(codes.shape, np.float32)
    np.multiply(codes, scale[:, None], out=out, dtype=np.float32)
    out += center
    return out


def decode(
    stored: NDArray[Any],
    dtype: str,
    *,
    scale: NDArray[np.float32] | None = None,
    center: NDArray[np.float32] | None = None,
    out: NDArray[np.float32] | None = None,
) -> NDArray[Any]:
    """Return the values of stored rows [n, feature] of one layer; `scale` and `center` for int8 only."""
    if dtype == "bfloat16":
        return float32_of_bfloat16(stored, out)
    if scale is None or center is None:
        return stored
    return dequantize(stored, scale, center, out)
