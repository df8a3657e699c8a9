"""From stored numbers to values, and from values to the numbers of another dtype, refused where they do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidValueError, NonFiniteError
from embstore.store.layout import Layout
from embstore.store.vectors import (
    DTYPES,
    SCALE_DTYPE,
    STORAGE_DTYPE,
    bfloat16_bits,
    dequantize,
    float32_of_bfloat16,
    quantize,
)

LARGEST = {
    "float32": float(np.finfo(np.float32).max),
    "float16": 65504.0,
    "bfloat16": float(np.array([0x7F7F0000], np.uint32).view(np.float32)[0]),
    "int8": float(np.finfo(np.float32).max),
}
CENTER_ROWS = 4096


def require_dtype(dtype: str) -> None:
    """Raise InvalidValueError for a dtype that no store has."""
    if dtype not in DTYPES:
        raise InvalidValueError(f"dtype {dtype!r} is not known: choose one of {', '.join(DTYPES)}")


def decode(
    stored: NDArray[Any],
    *,
    dtype: str,
    scale: NDArray[np.float32] | None = None,
    center: NDArray[np.float32] | None = None,
) -> NDArray[Any]:
    """Return the values of rows [n, feature] of one layer; those of bfloat16 and int8 as float32."""
    if dtype == "bfloat16":
        return float32_of_bfloat16(stored)
    if scale is not None and center is not None:
        return dequantize(stored, scale, center)
    return stored


def require_storable(values: NDArray[Any], *, dtype: str, layer: int, where: Callable[[int], str]) -> None:
    """Raise NonFiniteError, naming layer and row, for a value that is not finite or beyond the dtype.

    `values`: floats [n, feature]; `where` says which row it is, given its number here.
    """
    largest = LARGEST[dtype]
    if not values.size or (-largest <= float(values.min()) and float(values.max()) <= largest):
        return
    row, feature = np.argwhere(~(np.abs(values.astype(np.float64)) <= largest))[0].tolist()
    value = float(values[row, feature])
    place = f"layer {layer}, {where(row)}"
    if not np.isfinite(value):
        raise NonFiniteError(f"{place}: {value} is not finite and cannot be stored")
    wider = {"float16": "choose float32 or bfloat16", "bfloat16": "choose float32"}.get(dtype, "no dtype holds it")
    raise NonFiniteError(f"{place}: {value:,.6g} is beyond {dtype}'s {largest:,.6g}: {wider}")


class PartitionBuffer:
    """Room for the arrays of one partition of a store, filled layer by layer from values; used again for the next.

    `center`: float32 [layer, feature], for int8 only.
    """

    def __init__(self, layout: Layout, *, center: NDArray[np.float32] | None) -> None:
        self._layout = layout
        self._center = center
        rows = min(layout.partition_rows, layout.n_rows)
        shape = (len(layout.layers), rows, layout.hidden_size)
        self._arrays = {"hidden_states": np.empty(shape, STORAGE_DTYPE[layout.dtype])}
        if layout.dtype == "int8":
            self._arrays["scale"] = np.empty(shape[:2], SCALE_DTYPE)

    def stored(self, array: str, place: int, start: int, stop: int) -> NDArray[Any]:
        """The room of rows `[start, stop)` of one layer, for numbers that are copied as they are stored."""
        return self._arrays[array][place, start:stop]

    def put(self, place: int, start: int, values: NDArray[Any], *, where: Callable[[int], str]) -> None:
        """Encode values [n, feature] of one layer into rows from `start` on. Raises NonFiniteError."""
        layout = self._layout
        require_storable(values, dtype=layout.dtype, layer=layout.layers[place], where=where)
        stop = start + len(values)
        target = self._arrays["hidden_states"][place, start:stop]
        if layout.dtype == "bfloat16":
            target[...] = bfloat16_bits(values.astype(np.float32, copy=False))
        elif self._center is None:
            target[...] = values
        else:
            coded = quantize(values.astype(np.float32, copy=False)[None], self._center[place : place + 1])
            target[...] = coded["hidden_states"][0]
            self._arrays["scale"][place, start:stop] = coded["scale"][0]

    def arrays(self, rows: int) -> dict[str, NDArray[Any]]:
        """The first `rows` rows as a StoreWriter takes them."""
        return {name: array[:, :rows] for name, array in self._arrays.items()}


def sample_of(rows: int) -> NDArray[np.int64]:
    """Up to 4,096 rows of so many, evenly spread, from which the centre of int8 is taken; int64 [n]."""
    return np.unique(np.linspace(0, rows - 1, min(rows, CENTER_ROWS)).astype(np.int64))
