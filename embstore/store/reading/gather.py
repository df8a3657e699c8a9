"""Gather rows in any order: rows are grouped by partition, taken from each mapped file, and put back in order."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidValueError, MissingRowsError
from embstore.store.reading.mapped import TakeSource
from embstore.store.reading.scan import Snapshot
from embstore.store.storage.base import wait_all
from embstore.store.vectors import SCALE_DTYPE, STORAGE_DTYPE, VALUE_DTYPE, decode
from embstore.store.zarr.remote import Part, RemoteRows, parts_of

RESUME = "resume the extraction by repeating the call or the `embstore extract` command that began it"

_BATCH_NBYTES = 32 * 2**20
_PROBE_ROWS = 8
_COLD_SECONDS_A_ROW = 25e-6


class Gatherer:
    """Gathers rows of a store, of those that are committed in a snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        layout = snapshot.layout
        self._reader = snapshot.reader
        self._remote = self._reader.remote
        self._layout = layout
        self._checksums = snapshot.checksums
        self._committed = snapshot.committed
        self._all_committed = bool(snapshot.committed.all())
        self._center = snapshot.center
        self._storage = STORAGE_DTYPE[layout.dtype]
        self._value = VALUE_DTYPE[layout.dtype]
        self._arrays = ("hidden_states", "scale") if layout.dtype == "int8" else ("hidden_states",)
        self._partition_dtype = (
            np.uint8 if layout.n_partitions <= 2**8 else np.uint16 if layout.n_partitions <= 2**16 else np.int64
        )
        self._batch_rows = max(1024, _BATCH_NBYTES // (layout.hidden_size * self._storage.itemsize))

    def take(
        self, rows: NDArray[np.int64], layers: Sequence[int], *, out: NDArray[Any] | None, nan: bool
    ) -> NDArray[Any]:
        """Return the vectors [layer, n, feature] of rows; `layers` are positions among the stored layers.

        Raises MissingRowsError for rows that are not committed, unless `nan`, InvalidValueError for an `out` of
        another shape or dtype.
        """
        shape = (len(layers), len(rows), self._layout.hidden_size)
        if out is None:
            out = np.empty(shape, self._value)
        elif (
            not isinstance(out, np.ndarray)
            or out.shape != shape
            or out.dtype != self._value
            or not out.flags.c_contiguous
        ):
            raise InvalidValueError(f"out must be a C-contiguous {self._value} array of shape {shape[1:]} per layer")
        if not self._all_committed:
            written = self._committed[rows // self._layout.partition_rows]
            if not written.all():
                if not nan:
                    raise MissingRowsError(
                        f"{int((~written).sum()):,} of the {len(rows):,} rows requested from {self._reader.path} are "
                        f"not written yet: {RESUME}"
                    )
                out[:, ~written] = np.nan
                out[:, written] = self.take(rows[written], layers, out=None, nan=False)
                return out
        if self._checksums is not None:
            self._checksums.require(np.unique(rows // self._layout.partition_rows).tolist())
        for start in range(0, len(rows), self._batch_rows):
            stop = min(start + self._batch_rows, len(rows))
            if self._remote is None:
                self._take_local(rows[start:stop], layers, out[:, start:stop])
            else:
                self._take_remote(self._remote, rows[start:stop], layers, out[:, start:stop])
        return out

    def _take_local(self, rows: NDArray[np.int64], layers: Sequence[int], out: NDArray[Any]) -> None:
        whole = all(self._reader.layer(name, layer) is not None for name in self._arrays for layer in layers)
        parts, inverse = ([Part(-1, 0, len(rows), rows)], None) if whole else self._split(rows)
        for layer, target in zip(layers, out, strict=True):
            stored = target
            if inverse is not None or self._storage != self._value:
                stored = np.empty((len(rows), self._layout.hidden_size), self._storage)
            self._take_parts("hidden_states", layer, parts, stored)
            scale = None
            if self._center is not None:
                scale = np.empty(len(stored), SCALE_DTYPE)
                self._take_parts("scale", layer, parts, scale)
            values = self._decoded(layer, stored, scale)
            if inverse is not None:
                values.take(inverse, 0, target, "clip")
            elif values is not target:
                target[...] = values

    def _take_remote(
        self, remote: RemoteRows, rows: NDArray[np.int64], layers: Sequence[int], out: NDArray[Any]
    ) -> None:
        """Request the rows of all layers and partitions at once, then decode."""
        parts, inverse = self._split(rows)
        stored = np.empty((len(layers), len(rows), self._layout.hidden_size), self._storage)
        begun = remote.begin("hidden_states", layers, parts, stored)
        scales = None
        if self._center is not None:
            scales = np.empty(stored.shape[:2], SCALE_DTYPE)
            begun += remote.begin("scale", layers, parts, scales)
        wait_all(begun)
        for number, layer in enumerate(layers):
            values = self._decoded(layer, stored[number], None if scales is None else scales[number])
            out[number] = values if inverse is None else values[inverse]

    def _decoded(self, layer: int, stored: NDArray[Any], scale: NDArray[np.float32] | None) -> NDArray[Any]:
        center = None if self._center is None else self._center[layer]
        return decode(stored, self._layout.dtype, scale=scale, center=center)

    def _split(self, rows: NDArray[np.int64]) -> tuple[list[Part], NDArray[np.int64] | None]:
        """Group rows by partition; also return the new position of each row, None where the order is unchanged."""
        partitions: NDArray[np.integer] = (rows // self._layout.partition_rows).astype(self._partition_dtype)
        inverse = None
        if (partitions[1:] < partitions[:-1]).any():
            order = partitions.argsort(kind="stable")  # a radix sort for these small dtypes
            inverse = np.empty(len(rows), np.int64)
            inverse[order] = np.arange(len(rows))
            rows, partitions = rows[order], partitions[order]
        return parts_of(rows, partitions, self._layout.partition_rows), inverse

    def _take_parts(self, array: str, layer: int, parts: list[Part], out: NDArray[Any]) -> None:
        """Take the rows of each partition at once; prefetch the others where the first few wait for the disk."""
        cold = None
        for partition, first, last, local in parts:
            whole: TakeSource | None = self._reader.layer(array, layer) if partition < 0 else None
            source = whole or self._reader.rows(array, layer, partition)
            target = out[first:last]
            if cold is None and len(local) > 2 * _PROBE_ROWS:
                began = time.perf_counter()
                source.take(local[:_PROBE_ROWS], target[:_PROBE_ROWS])
                cold = time.perf_counter() - began > _PROBE_ROWS * _COLD_SECONDS_A_ROW
            if cold:
                source.prefetch(local)
            source.take(local, target)
