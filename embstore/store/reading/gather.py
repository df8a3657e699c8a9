"""Gather rows in any order: of a local store they are copied from mapped files straight into that order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidValueError, MissingRowsError
from embstore.kernels import partitions_of
from embstore.store.conditions import require_rows
from embstore.store.reading.scan import Snapshot, take_stored
from embstore.store.storage.base import wait_all
from embstore.store.vectors import BFLOAT16_NAN, SCALE_DTYPE, STORAGE_DTYPE, VALUE_DTYPE, decode
from embstore.store.zarr.remote import RemoteRows, parts_of

RESUME = "resume the extraction by repeating the call or the `embstore extract` command that began it"

_BATCH_NBYTES = 32 * 2**20  # of rows that are requested from a remote store at a time
_LINE_NBYTES = 64
_ALIGNED_NBYTES = 2**16  # smaller arrays gain less than it takes
_QUICK_ROWS = 1024  # copied from all layers before a file could be cut short
_DECODED_NBYTES = 2**18  # of stored rows that are decoded at a time, while they are in the cache


class Gatherer:
    """Gathers rows of a store, of those that are committed in a snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        layout = snapshot.layout
        self._reader = snapshot.reader
        self._remote = self._reader.remote
        self._layout = layout
        self._checksums = snapshot.checksums
        self._committed = snapshot.committed.view(np.uint8)
        self._center = snapshot.center
        self._vectors = layout.vectors
        self._storage = STORAGE_DTYPE[layout.dtype]
        self._value = VALUE_DTYPE[layout.dtype]

    def take(
        self, rows: NDArray[np.integer], layers: Sequence[int], *, out: NDArray[Any] | None, nan: bool
    ) -> NDArray[Any]:
        """Return the vectors [layer, n, feature] of rows; `layers` are positions among the stored layers.

        Raises InvalidValueError for a row that does not exist and for an `out` of another shape or dtype,
        MissingRowsError for rows that are not committed, unless `nan`.
        """
        layout = self._layout
        out = checked_out(out, (len(layers), len(rows), layout.hidden_size), layout.dtype)
        numbers = np.ascontiguousarray(rows, np.int64)
        partitions, missing = partitions_of(numbers, layout.n_rows, layout.partition_rows, self._committed)
        if missing < 0:
            require_rows(rows, layout.n_rows)
        if missing:
            written = self._committed.view(bool)[numbers // layout.partition_rows]
            if not nan:
                raise MissingRowsError(
                    f"{missing:,} of the {len(rows):,} rows requested from {self._reader.path} are "
                    f"not written yet, the first is row {numbers[written.argmin()]}: {RESUME}"
                )
            found = np.empty((len(layers), int(written.sum()), layout.hidden_size), out.dtype)
            out[:, ~written] = BFLOAT16_NAN if out.dtype == np.uint16 else np.nan
            out[:, written] = self.take(numbers[written], layers, out=found, nan=False)
            return out
        if self._checksums is not None:
            self._checksums.require(partitions)
        if self._remote is not None:
            self._take_remote(self._remote, numbers, layers, out)
            return out
        for number, layer in enumerate(layers):
            if self._storage == out.dtype:
                checks = not number or len(rows) > _QUICK_ROWS
                take_stored(self._reader, self._vectors, layer, numbers, partitions, out[number], checks=checks)
            else:
                self._take_decoded(numbers, partitions, layer, out[number])
        return out

    def _take_decoded(self, rows: NDArray[np.int64], partitions: list[int], layer: int, out: NDArray[Any]) -> None:
        stored = np.empty((len(rows), self._layout.hidden_size), self._storage)
        take_stored(self._reader, self._vectors, layer, rows, partitions, stored)
        scale = None
        if self._center is not None:
            scale = np.empty(len(rows), SCALE_DTYPE)
            take_stored(self._reader, "scale", layer, rows, partitions, scale)
        step = max(1, _DECODED_NBYTES // (self._layout.hidden_size * self._value.itemsize))
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            self._decoded(layer, stored[part], None if scale is None else scale[part], out[part])

    def _take_remote(
        self, remote: RemoteRows, rows: NDArray[np.int64], layers: Sequence[int], out: NDArray[Any]
    ) -> None:
        """Request the rows of all layers and partitions at once, then decode."""
        step = max(1024, _BATCH_NBYTES // (self._layout.hidden_size * self._storage.itemsize))
        for start in range(0, len(rows), step):
            order = rows[start : start + step].argsort(kind="stable")
            some = rows[start : start + step][order]
            parts = parts_of(some, some // self._layout.partition_rows, self._layout.partition_rows)
            stored = np.empty((len(layers), len(some), self._layout.hidden_size), self._storage)
            begun = remote.begin(self._vectors, layers, parts, stored)
            scales = None
            if self._center is not None:
                scales = np.empty(stored.shape[:2], SCALE_DTYPE)
                begun += remote.begin("scale", layers, parts, scales)
            wait_all(begun)
            for number, layer in enumerate(layers):
                scale = None if scales is None else scales[number]
                values = stored[number] if self._storage == out.dtype else self._decoded(layer, stored[number], scale)
                out[number, start + order] = values

    def _decoded(
        self, layer: int, stored: NDArray[Any], scale: NDArray[np.float32] | None, out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        center = None if self._center is None else self._center[layer]
        return decode(stored, self._layout.dtype, scale=scale, center=center, out=out)


def checked_out(out: NDArray[Any] | None, shape: tuple[int, int, int], dtype: str) -> NDArray[Any]:
    """Return the array that receives vectors of a stored dtype: a new one, or the one given.

    Raises InvalidValueError for one of another shape or dtype; for bfloat16 it may be of uint16, for the bits.
    """
    value = VALUE_DTYPE[dtype]
    if out is None:
        return _aligned(shape, value)
    kinds = (value, STORAGE_DTYPE[dtype]) if dtype == "bfloat16" else (value,)
    is_array = isinstance(out, np.ndarray) and out.shape == shape and out.dtype in kinds
    if not is_array or not out.flags.c_contiguous or not out.flags.writeable:
        raise InvalidValueError(f"out must be a C-contiguous {value} array of shape {shape[1:]} per layer")
    return out


def _aligned(shape: tuple[int, int, int], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array that begins at a line of the cache: rows then take a tenth less time to copy into it."""
    nbytes = shape[0] * shape[1] * shape[2] * dtype.itemsize
    if nbytes < _ALIGNED_NBYTES:
        return np.empty(shape, dtype)
    held = np.empty(nbytes + _LINE_NBYTES, np.uint8)
    start = -held.ctypes.data % _LINE_NBYTES
    return held[start : start + nbytes].view(dtype).reshape(shape)
