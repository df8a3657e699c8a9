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
from embstore.store.reading.mapped import TakeSource
from embstore.store.vectors import (
    SCALE_DTYPE,
    STORAGE_DTYPE,
    VALUE_DTYPE,
    dequantize,
    float32_of_bfloat16,
)
from embstore.store.zarr.remote_rows import FarRows, Part, end_all

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
        self._far = reader if isinstance(reader, FarRows) else None
        self._layout = layout
        self._committed = committed
        self._all_committed = bool(committed.all())
        self._center = center
        self._storage = STORAGE_DTYPE[layout.dtype]
        self._value = VALUE_DTYPE[layout.dtype]
        self._arrays = ("hidden_states", "scale") if layout.dtype == "int8" else ("hidden_states",)
        self._home_dtype = (
            np.uint8 if layout.n_partitions <= 2**8 else np.uint16 if layout.n_partitions <= 2**16 else np.int64
        )
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
            if self._far is None:
                self._take_piece(rows[start:stop], places, out[:, start:stop])
            else:
                self._take_far(self._far, rows[start:stop], places, out[:, start:stop])
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
        whole = all(self._reader.layer(name, place) is not None for name in self._arrays for place in places)
        parts, inverse = ([Part(-1, 0, len(rows), rows)], None) if whole else self._split(rows)
        for place, target in zip(places, out, strict=True):
            stored = target
            if inverse is not None or self._storage != self._value:
                stored = np.empty((len(rows), self._layout.hidden_size), self._storage)
            self._take_parts("hidden_states", place, parts, stored)
            values = self._decoded(place, parts, stored)
            if inverse is not None:
                values.take(inverse, 0, target, "clip")
            elif values is not target:
                target[...] = values

    def _take_far(self, far: FarRows, rows: NDArray[np.int64], places: Sequence[int], out: NDArray[Any]) -> None:
        """Ask for the rows of all layers and partitions at once, then decode."""
        parts, inverse = self._split(rows)
        stored = np.empty((len(places), len(rows), self._layout.hidden_size), self._storage)
        begun = far.begin("hidden_states", places, parts, stored)
        scales = None
        if self._center is not None:
            scales = np.empty(stored.shape[:2], SCALE_DTYPE)
            begun += far.begin("scale", places, parts, scales)
        end_all(begun)
        for number, place in enumerate(places):
            values = stored[number]
            if self._layout.dtype == "bfloat16":
                values = float32_of_bfloat16(values)
            elif scales is not None and self._center is not None:
                values = dequantize(values, scales[number], self._center[place])
            out[number] = values if inverse is None else values[inverse]

    def _split(self, rows: NDArray[np.int64]) -> tuple[list[Part], NDArray[np.int64] | None]:
        """Group rows by partition; also returns where each row then stands, None where that is as it was."""
        homes: NDArray[np.integer] = (rows // self._layout.partition_rows).astype(self._home_dtype)
        inverse = None
        if (homes[1:] < homes[:-1]).any():
            order = homes.argsort(kind="stable")  # a radix sort, for so small a dtype
            inverse = np.empty(len(rows), np.int64)
            inverse[order] = np.arange(len(rows))
            rows, homes = rows[order], homes[order]
        edges = ((homes[1:] != homes[:-1]).nonzero()[0] + 1).tolist()
        parts = []
        for first, last in zip([0, *edges], [*edges, len(rows)], strict=True):
            partition = int(homes[first])
            local = rows[first:last] - partition * self._layout.partition_rows
            parts.append(Part(partition, first, last, local))
        return parts, inverse

    def _decoded(self, place: int, parts: list[Part], stored: NDArray[Any]) -> NDArray[Any]:
        if self._layout.dtype == "bfloat16":
            return float32_of_bfloat16(stored)
        if self._center is None:
            return stored
        scale = np.empty(len(stored), SCALE_DTYPE)
        self._take_parts("scale", place, parts, scale)
        return dequantize(stored, scale, self._center[place])

    def _take_parts(self, array: str, place: int, parts: list[Part], out: NDArray[Any]) -> None:
        """Take each partition's rows in one; where the first few wait for the disk, ask ahead for the others."""
        cold = None
        for partition, first, last, local in parts:
            source = self._source(array, place, partition)
            target = out[first:last]
            if cold is None and len(local) > 2 * _PROBE_ROWS:
                began = time.perf_counter()
                source.take(local[:_PROBE_ROWS], target[:_PROBE_ROWS])
                cold = time.perf_counter() - began > _PROBE_ROWS * _COLD_SECONDS_A_ROW
            if cold:
                source.prefetch(local)
            source.take(local, target)

    def _source(self, array: str, place: int, partition: int) -> TakeSource:
        whole = self._reader.layer(array, place) if partition < 0 else None
        return whole or self._reader.rows(array, place, partition)
