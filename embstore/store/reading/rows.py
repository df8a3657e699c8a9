"""Rows of one store: in order, requested from the disk ahead, or gathered in any order straight from mapped files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import EmbstoreError, InvalidValueError, MissingRowsError, StoreDamagedError
from embstore.kernels import is_resident
from embstore.store.arrays import Records, record_crc32c
from embstore.store.backend import Reader
from embstore.store.conditions import require_rows
from embstore.store.layout import Layout
from embstore.store.storage.base import wait_all
from embstore.store.storage.files import REPAIR_HINT, MappedFile, read_at, reads_far_ahead
from embstore.store.vectors import BFLOAT16_NAN, SCALE_DTYPE, STORAGE_DTYPE, VALUE_DTYPE, decode
from embstore.store.zarr.remote import ReadAhead, RemoteRows, parts_of

BLOCK_NBYTES = 2**20
AHEAD_NBYTES = 16 * 2**20  # of a local layer that are requested from the disk before they are read
_WINDOW_NBYTES = 4 * 2**20
DENSE = 0.1  # above this share of the rows, reading everything in order is faster than gathering


class Checksums:
    """Compares each partition with its commit record [partition, 2] once, before it is first read."""

    def __init__(self, reader: Reader, records: Records, *, first: int) -> None:
        self._reader = reader
        self._first = first
        self._records = records
        self._intact: set[int] = set()

    def require(self, partitions: Iterable[int]) -> None:
        """Raise StoreDamagedError for a partition whose bytes were changed."""
        for partition in partitions:
            if partition not in self._intact:
                number = self._first + partition
                found = self._reader.partition_crc32c(number)
                if found is not None and found != record_crc32c(self._records[partition]):
                    raise StoreDamagedError(
                        f"the rows of partition {number} of {self._reader.path} were changed: {REPAIR_HINT}"
                    )
                self._intact.add(partition)


def take_stored(
    reader: Reader,
    rows: NDArray[np.int64],
    partitions: Sequence[int],
    array: str,
    position: int,
    out: NDArray[Any],
    checks: bool = True,
) -> bool:
    """Copy committed rows of one array and layer of a local store, in any order, into `out`; returns True.

    `partitions`: those of the rows, ascending. `out` is C-contiguous: as they are stored, or float32 for float16.
    `checks`: look whether a file was cut short.
    """
    if not len(rows):
        return True
    most = reader.max_mapped
    if len(partitions) <= most:
        layer, files = reader.layer(array, position, partitions)
        layer.take(rows, files if checks else (), out)
        return True
    size = reader.metadata.layout.partition_rows
    order = rows.argsort(kind="stable")
    ordered = rows[order]
    for number in range(0, len(partitions), most):
        some = partitions[number : number + most]
        first, last = ordered.searchsorted((some[0] * size, (some[-1] + 1) * size)).tolist()
        taken = np.empty((last - first, *out.shape[1:]), out.dtype)
        layer, files = reader.layer(array, position, some)
        layer.take(ordered[first:last], files, taken)
        out[order[first:last]] = taken
    return True


@dataclass(frozen=True)
class Snapshot:
    """The vectors of a store as of one moment: rows committed later are not seen.

    `committed`: bool [partition]. `center`: float32 [layer, feature] for int8, None for other dtypes. `checksums`:
    what compares partitions with theirs before they are read, None where they are read as they are.
    """

    reader: Reader
    layout: Layout
    committed: NDArray[np.bool_]
    center: NDArray[np.float32] | None
    checksums: Checksums | None


class SequentialReader:
    """Read ascending committed rows of one array and layer as they are stored, across partitions.

    `layer`: the position of the layer among those stored. `stop`: no row from there on is read, so that nothing is
    read ahead of it (None: the whole layer). A context manager.
    """

    def __init__(self, snapshot: Snapshot, array: str, layer: int, stop: int | None = None) -> None:
        self._reader = snapshot.reader
        self._checksums = snapshot.checksums
        self._partition_rows = snapshot.layout.partition_rows
        self._array = array
        self._layer = layer
        self._remote = self._reader.remote
        self._ahead: ReadAhead | None = None
        self._stop = snapshot.layout.n_rows if stop is None else stop
        self._committed = snapshot.committed
        self._requested, self._leaves_to_system = 0, reads_far_ahead(self._reader.path)
        self._held: tuple[int, NDArray[Any], MappedFile | None] = 0, np.empty(0), None  # rows that follow each other
        self._is_resident = False
        self._opened = ExitStack()
        self._descriptor: int | None = None  # of the file that holds them
        row_nbytes = snapshot.layout.hidden_size * STORAGE_DTYPE[snapshot.layout.dtype].itemsize
        self._ahead_rows = 0 if array == "scale" else AHEAD_NBYTES // row_nbytes
        self._window_rows = max(1, _WINDOW_NBYTES // row_nbytes)

    def __enter__(self) -> SequentialReader:
        return self

    def __exit__(self, *exception: object) -> None:
        self._opened.close()
        if self._ahead is not None:
            self._ahead.close()

    def read(self, start: int, stop: int, out: NDArray[Any]) -> None:
        """Read rows `[start, stop)` into `out` [n, ...], which is contiguous and has the stored dtype."""
        size = self._partition_rows
        if self._checksums is not None:
            self._checksums.require(range(start // size, -(-stop // size)))
        if self._remote is not None:
            if self._ahead is None:
                self._ahead = ReadAhead(self._remote, self._array, self._layer, self._stop)
            self._ahead.read(start, stop, out)
            return
        row = start
        while row < stop:
            if not (self._leaves_to_system or self._is_resident):
                self._request(row, stop)
            rows, file = self._mapped(row, stop)
            self._copy(rows, file, out[row - start : row - start + len(rows)])
            row += len(rows)

    def _copy(self, rows: NDArray[Any], file: MappedFile, out: NDArray[Any]) -> None:
        """Copy mapped rows; what is not in memory by a call of the system, which reads farther ahead in order."""
        if self._descriptor is None and not self._is_resident:
            with suppress(StoreDamagedError):  # where it was replaced, what is mapped is still the one that was opened
                self._descriptor = self._opened.enter_context(file.reopened())
        if self._descriptor is None:
            out[...] = rows
            return
        place = rows.ctypes.data - file.address
        if read_at(self._descriptor, out.reshape(-1).view(np.uint8), place) < out.nbytes:
            raise StoreDamagedError(f"{file.path} is cut short since it was opened: {REPAIR_HINT}")

    def view(self, start: int, stop: int) -> NDArray[Any] | None:
        """Return rows from `start` up to `stop`, or fewer, as a read-only view of their file where it is in memory."""
        if self._remote is not None:
            return None
        rows, file = self._mapped(start, stop)
        if not file.is_own:
            self._request(start, stop)
        return rows if self._is_resident else None

    def _mapped(self, start: int, stop: int) -> tuple[NDArray[Any], MappedFile]:
        """Return rows from `start` up to `stop`, or fewer, as a view of their file, and the file."""
        first, held, file = self._held
        if file is not None and first <= start < first + len(held):
            file.require_whole()
        else:
            partition, first = start // self._partition_rows, start
            if self._checksums is not None:
                self._checksums.require([partition])
            layer, [file] = self._reader.layer(self._array, self._layer, [partition])
            held = layer.view(file, start, min(self._stop, (partition + 1) * self._partition_rows))
            self._opened.close()
            self._held, self._descriptor = (first, held, file), None
            is_known = file.is_file and file.is_own  # Linux does not tell of files of others
            self._is_resident = not is_known or is_resident(held.ctypes.data, held.nbytes)
        return held[start - first : stop - first], file

    def _request(self, start: int, stop: int) -> None:
        """Have the disk read ahead of rows `[start, stop)`, into the next partitions too."""
        row = max(start, self._requested)
        end = min(stop + self._ahead_rows, self._stop)
        if end < row + self._window_rows and end < self._stop:
            return
        while row < end:
            partition, inside = divmod(row, self._partition_rows)
            last = min(inside + end - row, self._partition_rows)
            if self._committed[partition]:
                with suppress(EmbstoreError):
                    self._reader.will_need(self._array, self._layer, partition, inside, last)
            row += last - inside
        self._requested = row

    def read_rows(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Read distinct ascending rows into `out`."""
        first, last = int(rows[0]), int(rows[-1]) + 1
        if last - first == len(rows):
            self.read(first, last, out)
        else:
            partitions = np.unique(rows // self._partition_rows).tolist()
            if self._checksums is not None:
                self._checksums.require(partitions)
            if self._remote is not None:
                parts = parts_of(rows, rows // self._partition_rows, self._partition_rows)
                wait_all(self._remote.begin(self._array, [self._layer], parts, out[None]))
            else:
                take_stored(self._reader, rows, partitions, self._array, self._layer, out)


def scan_blocks(
    snapshot: Snapshot, layer: int, start: int, stop: int, *, block_rows: int | None, nan: bool, copy: bool
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield (first row, vectors) over rows `[start, stop)`; rows not committed are NaN with `nan`, else left out."""
    layout = snapshot.layout
    value, storage = VALUE_DTYPE[layout.dtype], STORAGE_DTYPE[layout.dtype]
    row_nbytes = layout.hidden_size * value.itemsize
    block_rows = min(block_rows or max(BLOCK_NBYTES // row_nbytes, 1), max(stop - start, 1))
    buffers = _Buffers((block_rows, layout.hidden_size), value)
    is_direct = storage == value
    codes = np.empty((0 if is_direct else block_rows, layout.hidden_size), storage)
    with _readers(snapshot, layer, stop) as (vectors, scales):
        for first, last, written in _runs(snapshot, start, stop):
            row = first
            while row < last and (written or nan):
                end = min(row + block_rows, last)
                if is_direct and written and not copy and (view := vectors.view(row, end)) is not None:
                    yield row, view
                    row += len(view)
                    continue
                out = buffers.next(end - row)
                if not written:
                    out.fill(np.nan)
                elif is_direct:
                    vectors.read(row, end, out)
                else:
                    stored = vectors.view(row, end)
                    if stored is None or len(stored) < end - row:
                        stored = codes[: end - row]
                        vectors.read(row, end, stored)
                    scale, center = _scale(snapshot, scales, layer, row, end)
                    decode(stored, layout.dtype, scale=scale, center=center, out=out)
                yield row, out
                del out  # or the buffer would count as in use
                row = end


@dataclass(frozen=True)
class StoredRows:
    """Rows of one layer as they are stored, from row `first` on.

    `vectors` [n, feature]: float32, float16, the bits of bfloat16 (uint16) or int8 codes, whose values are
    code * `scales` [n] + `center` [feature].
    """

    first: int
    vectors: NDArray[Any]
    scales: NDArray[np.float32] | None = None
    center: NDArray[np.float32] | None = None


def stored_blocks(snapshot: Snapshot, layer: int, start: int, stop: int, *, block_rows: int) -> Iterator[StoredRows]:
    """Yield committed rows `[start, stop)` as they are stored."""
    layout = snapshot.layout
    with _readers(snapshot, layer, stop) as (vectors, scales):
        row = start
        while row < stop:
            end = min(row + block_rows, stop)
            stored = vectors.view(row, end)
            if stored is None:
                stored = np.empty((end - row, layout.hidden_size), STORAGE_DTYPE[layout.dtype])
                vectors.read(row, end, stored)
            yield StoredRows(row, stored, *_scale(snapshot, scales, layer, row, row + len(stored)))
            row += len(stored)


@contextmanager
def _readers(snapshot: Snapshot, layer: int, stop: int) -> Iterator[tuple[SequentialReader, SequentialReader]]:
    """Yield what reads the vectors and the scales of a layer in order."""
    vectors = SequentialReader(snapshot, snapshot.layout.vectors, layer, stop)
    with vectors, SequentialReader(snapshot, "scale", layer, stop) as scales:
        yield vectors, scales


def _scale(
    snapshot: Snapshot, scales: SequentialReader, layer: int, start: int, stop: int
) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
    """Return the scales of rows and the center of their layer, None where the dtype has none."""
    if snapshot.center is None:
        return None, None
    scale = np.empty(stop - start, SCALE_DTYPE)
    scales.read(start, stop, scale)
    return scale, snapshot.center[layer]


class _Buffers:
    """Two buffers handed out in turn; one that the caller still holds is replaced by a new one."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._buffers = [np.empty(shape, dtype) for _ in range(2)]
        self._free_count = sys.getrefcount(self._buffers[0])
        self._turn = 0

    def next(self, n_rows: int) -> NDArray[Any]:
        """Return the first rows of the next buffer."""
        self._turn ^= 1
        if sys.getrefcount(self._buffers[self._turn]) > self._free_count:
            self._buffers[self._turn] = np.empty_like(self._buffers[self._turn])
        return self._buffers[self._turn][:n_rows]


def _runs(snapshot: Snapshot, start: int, stop: int) -> Iterator[tuple[int, int, bool]]:
    """Split rows `[start, stop)` into runs (first row, last row, whether committed)."""
    size = snapshot.layout.partition_rows
    first = start // size
    flags = snapshot.committed[first : -(-stop // size)]
    edges = np.flatnonzero(np.diff(flags)) + 1
    for left, right in pairwise([0, *edges.tolist(), len(flags)]):
        if left < right:
            yield max((first + left) * size, start), min((first + right) * size, stop), bool(flags[left])


RESUME = "resume the extraction by repeating the call or the `embstore extract` command that began it"

_BATCH_NBYTES = 32 * 2**20  # of rows that are requested from a remote store at a time
_LINE_NBYTES = 64
_ALIGNED_NBYTES = 2**16  # smaller arrays gain less than it takes
_QUICK_ROWS = 1024  # copied from all layers before a file could be cut short
_Copied = Callable[[str, int, NDArray[Any], bool], bool]
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
        """Return the vectors [layer, n, feature] of rows; `layers` are positions among the stored layers."""
        layout = self._layout
        out = checked_out(out, (len(layers), len(rows), layout.hidden_size), layout.dtype)
        numbers = np.ascontiguousarray(rows, np.int64)
        if self._checksums is None and self._taken(partial(self._copied, numbers), layers, out):
            return out
        require_rows(rows, layout.n_rows)
        of_rows = numbers // layout.partition_rows
        partitions = np.flatnonzero(np.bincount(of_rows)).tolist()
        if not self._committed[partitions].all():
            written = self._committed.view(bool)[of_rows]
            if not nan:
                raise MissingRowsError(
                    f"{len(rows) - written.sum():,} of the {len(rows):,} rows requested from {self._reader.path} are "
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
        self._taken(partial(take_stored, self._reader, numbers, partitions), layers, out)
        return out

    def _copied(self, rows: NDArray[np.int64], array: str, position: int, *out: Any) -> bool:
        """Copy rows from files that are mapped already as `take_stored` does; False where that takes more than this."""
        layer, layout = self._reader.mapped_layers.get((array, position)), self._layout
        return layer is not None and layer.copied(rows, layout.n_rows, layout.partition_rows, self._committed, *out)

    def _taken(self, copied: _Copied, layers: Sequence[int], out: NDArray[Any]) -> bool:
        """Fill `out` by a function that copies rows of an array and a layer; False once it returns that."""
        is_direct = self._storage == out.dtype or self._storage == np.float16  # which the copy makes float32
        for number, layer in enumerate(layers):
            checks = not number or out.shape[1] > _QUICK_ROWS
            if is_direct:
                if not copied(self._vectors, layer, out[number], checks):
                    return False
                continue
            stored = np.empty(out.shape[1:], self._storage)
            scale = None if self._center is None else np.empty(len(stored), SCALE_DTYPE)
            parts = ((self._vectors, stored),) if scale is None else ((self._vectors, stored), ("scale", scale))
            if not all(copied(array, layer, into, checks) for array, into in parts):
                return False
            step = max(1, _DECODED_NBYTES // (self._layout.hidden_size * self._value.itemsize))
            for start in range(0, len(stored), step):
                part = slice(start, start + step)
                self._decoded(layer, stored[part], None if scale is None else scale[part], out[number, part])
        return True

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
    """Return the array that receives vectors of a stored dtype: a new one, or the one given."""
    value = VALUE_DTYPE[dtype]
    if out is None:
        return _aligned(shape, value)
    kinds = {"bfloat16": (value, STORAGE_DTYPE[dtype]), "float16": (value, np.float32)}.get(dtype, (value,))
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
