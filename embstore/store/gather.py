"""Rows in any order from the map: grouped by partition, one take each, put back in the order asked for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidValueError, MissingRowsError
from embstore.store.backend import Reader
from embstore.store.layout import Layout
from embstore.store.vectors import (
    SCALE_DTYPE,
    STORAGE_DTYPE,
    VALUE_DTYPE,
    dequantize,
    float32_of_bfloat16,
)

_PIECE_NBYTES = 32 * 2**20
_PROBE_ROWS = 8
_COLD_SECONDS_A_ROW = 25e-6


class Gathering:
    """Gathers rows of a store whose `committed` partitions are those known at one moment."""

    def __init__(
        self,
        reader: Reader,
        layout: Layout,
        committed: NDArray[np.bool_],
        center: NDArray[np.float32] | None,
    ) -> None:
        self._reader = reader
        self._layout = layout
        self._committed = committed
        self._all_committed = bool(committed.all())
        self._center = center
        self._storage = STORAGE_DTYPE[layout.dtype]
        self._value = VALUE_DTYPE[layout.dtype]
        self._piece_rows = max(1024, _PIECE_NBYTES // (layout.hidden_size * self._storage.itemsize))

    def take(
        self, rows: NDArray[np.int64], places: Sequence[int], *, out: NDArray[Any] | None, nan: bool
    ) -> NDArray[Any]:
        """Return the vectors [layer, n, feature] of rows, for layers counted from 0."""
        shape = (len(places), len(rows), self._layout.hidden_size)
        if out is None:
            out = np.empty(shape, self._value)
        elif out.shape != shape or out.dtype != self._value or not out.flags.c_contiguous:
            raise InvalidValueError(f"out must be a C-contiguous {self._value} array of {shape[1:]}")
        if not self._all_committed:
            written = self._committed[rows // self._layout.partition_rows]
            if not written.all():
                self._take_written(rows, written, places, out, nan)
                return out
        for start in range(0, len(rows), self._piece_rows):
            stop = min(start + self._piece_rows, len(rows))
            self._take_piece(rows[start:stop], places, out[:, start:stop])
        return out

    def _take_written(
        self,
        rows: NDArray[np.int64],
        written: NDArray[np.bool_],
        places: Sequence[int],
        out: NDArray[Any],
        nan: bool,
    ) -> None:
        if not nan:
            raise MissingRowsError(
                f"{int((~written).sum()):,} of the {len(rows):,} rows asked for in {self._reader.path} are not written "
                "yet; run the same `embstore extract` command again to go on"
            )
        out[:, ~written] = np.nan
        out[:, written] = self.take(rows[written], places, out=None, nan=False)

    def _take_piece(self, rows: NDArray[np.int64], places: Sequence[int], out: NDArray[Any]) -> None:
        size = self._layout.partition_rows
        inverse = None
        if len(rows) > 1 and (rows[1:] < rows[:-1]).any():
            order = rows.argsort()
            inverse = np.empty(len(rows), np.int64)
            inverse[order] = np.arange(len(rows))
            rows = rows[order]
        parts = _split(rows, size)
        for place, target in zip(places, out, strict=True):
            stored = target
            if inverse is not None or self._storage != self._value or not target.flags.c_contiguous:
                stored = np.empty((len(rows), self._layout.hidden_size), self._storage)
            self._take_sorted("hidden_states", place, parts, stored)
            if inverse is not None and self._storage == self._value:
                stored.take(inverse, 0, target, "clip")
            elif stored is not target:
                values = self._decoded(place, parts, stored)
                target[...] = values if inverse is None else values[inverse]

    def _decoded(
        self, place: int, parts: list[tuple[int, int, int, NDArray[np.int64]]], stored: NDArray[Any]
    ) -> NDArray[Any]:
        if self._layout.dtype == "bfloat16":
            return float32_of_bfloat16(stored)
        if self._center is None:
            return stored
        scale = np.empty(len(stored), SCALE_DTYPE)
        self._take_sorted("scale", place, parts, scale)
        return dequantize(stored, scale, self._center[place])

    def _take_sorted(
        self, array: str, place: int, parts: list[tuple[int, int, int, NDArray[np.int64]]], out: NDArray[Any]
    ) -> None:
        """Take ascending rows, each partition in one; where the first few wait for the disk, ask ahead."""
        cold = None
        for partition, first, last, local in parts:
            source = self._reader.rows(array, place, partition)
            target = out[first:last]
            if cold is None and len(local) > 2 * _PROBE_ROWS:
                began = time.perf_counter()
                source.take(local[:_PROBE_ROWS], target[:_PROBE_ROWS])
                cold = time.perf_counter() - began > _PROBE_ROWS * _COLD_SECONDS_A_ROW
            if cold:
                source.prefetch(local)
            source.take(local, target)


def _split(rows: NDArray[np.int64], size: int) -> list[tuple[int, int, int, NDArray[np.int64]]]:
    """Cut ascending rows at partition edges: (partition, first, last, rows counted from the partition's first)."""
    low, high = int(rows[0]) // size, int(rows[-1]) // size
    if low == high:
        return [(low, 0, len(rows), rows - low * size if low else rows)]
    cuts = rows.searchsorted(np.arange(low + 1, high + 1) * size).tolist()
    parts = []
    for partition, first, last in zip(range(low, high + 1), [0, *cuts], [*cuts, len(rows)], strict=True):
        if first < last:
            parts.append((partition, first, last, rows[first:last] - partition * size))
    return parts
