"""The arrays of a store (path, shape, dtype, dimension names, fill value) and its commit records, for both backends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidValueError, StoreDamagedError, quoted
from embstore.store.index import Index
from embstore.store.layout import CHUNK_ROWS, RESIDUAL, Layout
from embstore.store.metadata import Metadata, StoredArray
from embstore.store.storage.files import crc32c
from embstore.store.vectors import BFLOAT16_NAN, INT8_FILL, SCALE_DTYPE, STORAGE_DTYPE

COMMITS = "commits"
FINGERPRINTS = "fingerprints"
FINGERPRINT_SIZE = 2
COMMIT_DTYPE = np.dtype("<u8")
NOT_WRITTEN = 2**64 - 1
COLUMN_CHUNK = 65_536

Records = NDArray[np.uint64]

_LOW_BITS = 2**32 - 1
_Kinds = Mapping[str, tuple[str, tuple[str, ...]]]

_FROZEN: _Kinds = {
    "layer": ("<i4", ("layer",)),
    "block": ("<i4", ("block",)),
    "center": ("<f4", ("layer", "feature")),
    "occurrences/type": ("<i4", ("occurrence",)),
    "occurrences/sentence": ("<i8", ("occurrence",)),
    "occurrences/position": ("<i4", ("occurrence",)),
    "occurrences/subwords": ("<i2", ("occurrence",)),
    "occurrences/subword": ("<i4", ("occurrence",)),
    "types/form_offsets": ("<i8", ("type_bound",)),
    "types/form_bytes": ("|u1", ("form_byte",)),
    "types/indptr": ("<i8", ("type_bound",)),
    "types/occurrences": ("<i8", ("occurrence",)),
    "sentences/text_offsets": ("<i8", ("sentence_bound",)),
    "sentences/text_bytes": ("|u1", ("text_byte",)),
    "sentences/start": ("<i4", ("sentence",)),
    "sentences/stop": ("<i4", ("sentence",)),
    "sentences/word_indptr": ("<i8", ("sentence_bound",)),
    "sentences/subword_indptr": ("<i8", ("sentence_bound",)),
    "words/start": ("<i4", ("word",)),
    "words/stop": ("<i4", ("word",)),
    "words/subword": ("<i4", ("word",)),
    "words/subwords": ("<i2", ("word",)),
    "subwords/id": ("<i4", ("subword",)),
    "subwords/start": ("<i4", ("subword",)),
    "subwords/stop": ("<i4", ("subword",)),
    "sentences/indptr": ("<i8", ("sentence_bound",)),
    "sentences/source": ("<i8", ("sentence",)),
    "sentences/document": ("<i8", ("sentence",)),
    "contexts/start": ("<i8", ("context",)),
    "contexts/stop": ("<i8", ("context",)),
    "contexts/indptr": ("<i8", ("context_bound",)),
}
_LABEL: _Kinds = {
    "codes": ("<i4", ("occurrence",)),
    "name_offsets": ("<i8", ("name_bound",)),
    "name_bytes": ("|u1", ("name_byte",)),
}
_FIELD: _Kinds = {**_LABEL, "codes": ("<i4", ("document",))}


@dataclass(frozen=True)
class ArraySpec:
    """One array. `shard` and `chunk` are shapes; a frozen array that is one plain chunk has equal ones.

    `first`: the number of its first partition, for an array that is written a partition at a time.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    dims: tuple[str, ...]
    fill: int | float
    shard: tuple[int, ...]
    chunk: tuple[int, ...]
    attributes: Mapping[str, Any]
    first: int = 0

    @property
    def row_nbytes(self) -> int:
        """The bytes of one row of one layer, of an array that is written a partition at a time."""
        return self.dtype.itemsize * math.prod(self.shape[2:])

    @property
    def is_payload(self) -> bool:
        """Whether the array is written a partition at a time, each a shard."""
        return self.dims[0] in ("layer", "block") and "occurrence" in self.dims


def frozen_kind(path: str) -> tuple[np.dtype[Any], tuple[str, ...]]:
    """Return the dtype and the dimensions of an array that is written once."""
    name = path
    kinds = _FROZEN
    parts = path.split("/")
    if path.startswith("occurrences/labels/") and len(parts) == 3 and _is_name(parts[2]):
        name, kinds = "codes", _LABEL
    elif parts[0] == "labels" and len(parts) == 3 and _is_name(parts[1]):
        name, kinds = parts[2], _LABEL
    elif path.startswith("documents/fields/") and len(parts) == 4 and _is_name(parts[2]):
        name, kinds = parts[3], _FIELD
    if name not in kinds:
        raise StoreDamagedError(f"the metadata names an unknown array {quoted(path)}")
    dtype, dims = kinds[name]
    return np.dtype(dtype), dims


def frozen_spec(path: str, arrays: Mapping[str, Any]) -> ArraySpec:
    """Return the spec of an array that is written once: of the index, the layers or the center."""
    shape = arrays[path].shape
    dtype, dims = frozen_kind(path)
    if len(dims) != len(shape):
        raise StoreDamagedError(f"the metadata gives the array {quoted(path)} an invalid shape {list(shape)}")
    shard = chunk = tuple(max(size, 1) for size in shape)
    if len(shape) == 1 and shape[0] > COLUMN_CHUNK:
        chunk = (COLUMN_CHUNK,)
        shard = (-(-shape[0] // COLUMN_CHUNK) * COLUMN_CHUNK,)
    fill: int | float = np.nan if dtype.kind == "f" else 0 if dtype.kind == "u" else -1
    return ArraySpec(path, shape, dtype, dims, fill, shard, chunk, {})


def payload_specs(metadata: Metadata, partition: int | None = None) -> list[ArraySpec]:
    """Return the specs of the arrays that are written a partition at a time, or of those that one partition is of."""
    layouts = metadata.layouts
    if partition is not None:
        layouts = (layouts[partition // layouts[0].n_partitions],)
    return [spec for layout in layouts for spec in _site_specs(metadata, layout)]


def _site_specs(metadata: Metadata, layout: Layout) -> list[ArraySpec]:
    layers, rows, features = len(layout.layers), layout.n_rows, layout.hidden_size
    is_residual, dtype = layout.site == RESIDUAL, layout.dtype
    fill: int | float = {"bfloat16": BFLOAT16_NAN, "int8": INT8_FILL}.get(dtype, np.nan)
    vectors = ArraySpec(
        path=layout.vectors,
        shape=(layers, rows, features),
        dtype=STORAGE_DTYPE[dtype],
        dims=("layer", "occurrence", "feature") if is_residual else ("block", "occurrence", f"{layout.site}_feature"),
        fill=fill,
        shard=(layers, metadata.partition_rows, features),
        chunk=(1, CHUNK_ROWS, features),
        attributes={"embstore_dtype": dtype, "embstore_fingerprint": metadata.fingerprint},
        first=layout.first,
    )
    if dtype != "int8":
        return [vectors]
    shape, shard = (layers, rows), (layers, metadata.partition_rows)
    return [
        vectors,
        ArraySpec("scale", shape, SCALE_DTYPE, ("layer", "occurrence"), np.nan, shard, (1, CHUNK_ROWS), {}),
    ]


def commits_spec(n_partitions: int) -> ArraySpec:
    """Return the spec of the commit records, which are one chunk of 16 bytes per partition."""
    shape = (n_partitions, 2)
    return ArraySpec(COMMITS, shape, COMMIT_DTYPE, ("partition", "record"), NOT_WRITTEN, shape, shape, {})


def virtual_specs(metadata: Metadata) -> list[ArraySpec]:
    """Return the specs of the arrays that only a virtual store has, each one chunk that is written in place."""
    if not metadata.virtual:
        return []
    shape = (len(metadata.layouts), metadata.n_rows, FINGERPRINT_SIZE)
    dims = ("site", "occurrence", "fingerprint")
    return [ArraySpec(FINGERPRINTS, shape, np.dtype("|i1"), dims, 0, shape, shape, {})]


def no_records(n_partitions: int) -> Records:
    """Return the records [partition, 2] of a store without rows: all bits are set."""
    return np.full((n_partitions, 2), NOT_WRITTEN, COMMIT_DTYPE)


def commit_record(n_rows: int, crc: int) -> Records:
    """Return the record [2] that commits a partition: its rows; its CRC32C, with the complement in the high 32 bits.

    Records are written in place over 16 bytes whose bits are all set. Wherever such a write is torn, each bit is
    either the record's or still set; a CRC32C and its complement then differ in every bit only if both are complete.
    So a torn record never counts as committed.
    """
    return np.array([n_rows, crc | (crc ^ _LOW_BITS) << 32], COMMIT_DTYPE)


def committed(records: Records, layout: Layout) -> NDArray[np.bool_]:
    """Return which partitions are committed: their records [partition, 2] are complete and have their rows."""
    n_rows = np.full(len(records), layout.partition_rows, np.uint64)
    start, stop = layout.span(layout.n_partitions - 1)
    n_rows[layout.n_partitions - 1 :: layout.n_partitions] = stop - start
    crc, complement = records[:, 1] & np.uint64(_LOW_BITS), records[:, 1] >> np.uint64(32)
    complete: NDArray[np.bool_] = (records[:, 0] == n_rows) & (crc ^ complement == _LOW_BITS)
    return complete


def record_crc32c(record: Records) -> int:
    """Return the CRC32C of a record [2]."""
    return int(record[1]) & _LOW_BITS


def frozen_specs(arrays: Mapping[str, StoredArray]) -> list[ArraySpec]:
    return [frozen_spec(path, arrays) for path in sorted(arrays)]


def group_paths(arrays: Mapping[str, StoredArray]) -> list[str]:
    """Return the groups that hold the arrays, but for the root."""
    groups: set[str] = set()
    for path in arrays:
        parts = path.split("/")[:-1]
        groups.update("/".join(parts[: depth + 1]) for depth in range(len(parts)))
    return sorted(groups)


def frozen_arrays(
    metadata: Metadata,
    index: Index,
    words: tuple[NDArray[np.int64], NDArray[np.int64]],
    center: NDArray[np.float32] | None,
) -> dict[str, NDArray[Any]]:
    """Return all arrays that are written once, in their stored dtypes; `words` is (indptr, occurrences)."""
    arrays = index.arrays()
    arrays["layer"] = np.array(metadata.layers, np.int32)
    if set(metadata.sites) - {RESIDUAL}:
        arrays["block"] = np.array(metadata.blocks, np.int32)
    arrays["types/indptr"], arrays["types/occurrences"] = words
    if center is not None:
        arrays["center"] = center
    return {path: _as_stored(path, arrays[path]) for path in sorted(arrays)}


def _as_stored(path: str, array: NDArray[Any]) -> NDArray[Any]:
    dtype, dims = frozen_kind(path)
    if array.ndim != len(dims) or not np.can_cast(array.dtype, dtype, "safe"):
        raise InvalidValueError(
            f"the column {path} must be {dtype.name} of {len(dims)} dimensions, not {array.dtype} of {array.ndim}"
        )
    return array if array.dtype == dtype else array.astype(dtype)


def stored_arrays(arrays: Mapping[str, NDArray[Any]]) -> dict[str, StoredArray]:
    return {path: StoredArray(array.shape, crc32c(array)) for path, array in arrays.items()}


def check_center(metadata: Metadata, center: NDArray[np.float32] | None) -> None:
    """Raise InvalidValueError for a center that is missing, superfluous or of another shape."""
    shape = (len(metadata.layers), metadata.hidden_size)
    if (center is not None) != (metadata.dtype == "int8"):
        raise InvalidValueError("a center [layer, feature] is required for int8, and for int8 only")
    if center is not None and (center.shape != shape or not np.isfinite(center).all()):
        raise InvalidValueError(f"the center must be finite and of the shape {shape}, not {center.shape}")


def check_columns(columns: Iterable[str]) -> None:
    """Raise InvalidValueError for names of label columns that cannot be the name of a file or an array."""
    for column in columns:
        if not _is_name(column):
            raise InvalidValueError(
                f"a label column cannot be named {column!r}: use a printable name without '/' that starts with "
                "neither '.' nor '__'"
            )


def _is_name(column: str) -> bool:
    reserved = column.startswith((".", "__")) or column == "zarr.json"
    return bool(column) and not reserved and "/" not in column and column.isprintable() and len(column.encode()) <= 200
