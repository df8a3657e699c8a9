"""The files of a Zarr store: their keys, the zarr.json documents, and the bytes of a shard.

All follow from the metadata byte for byte. A shard is its inner chunks one after the other, then their index, then
a checksum of the index.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import StoreDamagedError
from embstore.store.arrays import (
    COMMITS,
    ArraySpec,
    commits_spec,
    frozen_specs,
    group_paths,
    payload_specs,
    virtual_specs,
)
from embstore.store.layout import CHUNK_ROWS
from embstore.store.metadata import Metadata, StoredArray, document
from embstore.store.storage.files import REPAIR_HINT, Bytes, crc32c

NODE = "zarr.json"
COMMITS_CHUNK = f"{COMMITS}/c/0/0"
TEMPORARY = "hidden_states/.tmp"  # inside an array, where Zarr tools do not look for members
APPENDED = "appended"  # the group of stores that were appended
INDEXES = "hidden_states/.index"  # search indexes, likewise; they are not part of the store
LABELS = "hidden_states/.labels"  # label columns that were added, likewise
ABSENT = 2**64 - 1
_PAIR_NBYTES = 16
_CRC_NBYTES = 4
_BYTES = {"name": "bytes", "configuration": {"endian": "little"}}


def group_node(attributes: Mapping[str, Any]) -> bytes:
    """Return the zarr.json of a group."""
    return _encode({"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)})


def array_node(spec: ArraySpec) -> bytes:
    """Return the zarr.json of an array; shards hold uncompressed chunks and end with their index."""
    codecs: list[dict[str, Any]] = [_BYTES]
    if spec.shard != spec.chunk or spec.is_payload:
        codecs = [
            {
                "name": "sharding_indexed",
                "configuration": {
                    "chunk_shape": list(spec.chunk),
                    "codecs": [_BYTES],
                    "index_codecs": [_BYTES, {"name": "crc32c"}],
                    "index_location": "end",
                },
            }
        ]
    return _encode(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(spec.shape),
            "data_type": spec.dtype.name,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(spec.shard)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": "NaN" if math.isnan(spec.fill) else spec.fill,
            "codecs": codecs,
            "attributes": dict(spec.attributes),
            "dimension_names": list(spec.dims),
        }
    )


def all_nodes(metadata: Metadata, arrays: Mapping[str, StoredArray]) -> dict[str, bytes]:
    """Return every zarr.json of a store by its key, the root's last."""
    nodes = {}
    for path in group_paths(arrays):
        if path:
            nodes[f"{path}/{NODE}"] = group_node({})
    commits = commits_spec(metadata.n_partitions)
    for spec in [*payload_specs(metadata), *frozen_specs(arrays), commits, *virtual_specs(metadata)]:
        nodes[f"{spec.path}/{NODE}"] = array_node(spec)
    nodes[NODE] = group_node({"embstore": document(metadata, arrays)})
    return nodes


def column_key(spec: ArraySpec) -> str:
    """Return the key of the one chunk of an array that is written once."""
    return f"{spec.path}/c/" + "/".join("0" for _ in spec.shape)


def shard_key(spec: ArraySpec, partition: int) -> str:
    """Return the key of the shard of one partition, counted over the store or over the array."""
    number = partition % -(-spec.shape[1] // spec.shard[1])
    return f"{spec.path}/c/" + "/".join(str(number) if axis == 1 else "0" for axis in range(len(spec.shape)))


def _encode(node: Mapping[str, Any]) -> bytes:
    return (json.dumps(node, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def shard_parts(spec: ArraySpec, rows: NDArray[Any]) -> list[NDArray[Any] | bytes]:
    """Return the bytes of a shard of `rows` [layer, n, ...] in parts: each layer with its padding, then the index."""
    n_rows = rows.shape[1]
    padding = np.full((-n_rows % CHUNK_ROWS, *rows.shape[2:]), spec.fill, spec.dtype)
    parts: list[NDArray[Any] | bytes] = []
    for layer in rows:
        parts += [layer, padding] if len(padding) else [layer]
    return [*parts, shard_end(spec, n_rows)[1]]


def shard_end(spec: ArraySpec, n_rows: int) -> tuple[int, bytes]:
    """Return the number of bytes of a shard of `n_rows` rows, and its last bytes: its index with the checksum."""
    written = -(-n_rows // CHUNK_ROWS)
    chunk_nbytes = int(np.prod(spec.chunk, dtype=np.int64)) * spec.dtype.itemsize
    end = shard_index((spec.shape[0], spec.shard[1] // CHUNK_ROWS), written, chunk_nbytes)
    return spec.shape[0] * written * chunk_nbytes + len(end), end


def column_parts(spec: ArraySpec, array: NDArray[Any]) -> list[NDArray[Any] | bytes]:
    """Return the bytes of the one chunk of an array that is written once."""
    end = column_end(spec)
    return [array, end] if end else [array]


def column_end(spec: ArraySpec) -> bytes:
    """Return what follows the elements of an array that is written once: padding and index, where it is sharded."""
    if spec.shard == spec.chunk:
        return b""
    chunks = spec.shard[0] // spec.chunk[0]
    padding = np.full(spec.shard[0] - spec.shape[0], spec.fill, spec.dtype)
    return padding.tobytes() + shard_index((1, chunks), chunks, spec.chunk[0] * spec.dtype.itemsize)


def shard_index(chunks: tuple[int, int], written: int, chunk_nbytes: int) -> bytes:
    """Return the index of a shard of `chunks` (outer, inner) chunks of which the first `written` inner ones exist.

    Chunks follow each other in C order without gaps. The index has (offset, nbytes) per chunk as uint64, then the
    CRC32C of these pairs.
    """
    outer, inner = chunks
    pairs = np.full((outer, inner, 2), ABSENT, "<u8")
    numbers = np.arange(outer * written, dtype=np.uint64).reshape(outer, written)
    pairs[:, :written, 0] = numbers * np.uint64(chunk_nbytes)
    pairs[:, :written, 1] = chunk_nbytes
    index = pairs.tobytes()
    return index + crc32c(index).to_bytes(_CRC_NBYTES, "little")


def index_nbytes(chunks: tuple[int, int]) -> int:
    """Return the number of bytes of a shard's index with its checksum."""
    return chunks[0] * chunks[1] * _PAIR_NBYTES + _CRC_NBYTES


def parse_index(
    shard: Bytes, chunks: tuple[int, int], chunk_nbytes: int, *, name: str, size: int | None = None
) -> NDArray[np.int64]:
    """Return the offset of each inner chunk [outer, inner] of a shard, -1 where it is left out.

    `shard`: its bytes, or only the last of its `size`. Raises StoreDamagedError where the checksum differs or
    a chunk does not fit.
    """
    nbytes = index_nbytes(chunks) - _CRC_NBYTES
    size = len(shard) if size is None else size
    if len(shard) < nbytes + _CRC_NBYTES:
        raise StoreDamagedError(f"{name} is cut short: {len(shard)} bytes hold no index of {nbytes}: {REPAIR_HINT}")
    index = shard[len(shard) - nbytes - _CRC_NBYTES : len(shard) - _CRC_NBYTES]
    stored = int.from_bytes(shard[-_CRC_NBYTES:].tobytes(), "little")
    if crc32c(index) != stored:
        raise StoreDamagedError(f"the index of {name} is damaged, its checksum differs: {REPAIR_HINT}")
    pairs: NDArray[Any] = np.frombuffer(index.tobytes(), "<u8").reshape(*chunks, 2)
    offsets, sizes = pairs[..., 0], pairs[..., 1]
    absent = (offsets == ABSENT) & (sizes == ABSENT)
    limit = size - nbytes - _CRC_NBYTES
    fits = (sizes == chunk_nbytes) & (offsets <= max(limit - chunk_nbytes, 0)) & (limit >= chunk_nbytes)
    if not (absent | fits).all():
        raise StoreDamagedError(f"the index of {name} names bytes beyond its end: {REPAIR_HINT}")
    return np.where(absent, np.uint64(0), offsets).astype(np.int64) - absent  # type: ignore[no-any-return]
