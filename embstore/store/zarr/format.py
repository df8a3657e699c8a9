"""The files of a Zarr store: their keys, the zarr.json documents, and the bytes of a shard.

All follow from the metadata byte for byte. A shard is its inner chunks one after the other, then their index, then
a checksum of the index.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
from embstore.store.storage.base import Storage
from embstore.store.storage.files import crc32c

NODE = "zarr.json"
COMMITS_CHUNK = f"{COMMITS}/c/0/0"
TEMPORARY = "hidden_states/.tmp"  # inside an array, where Zarr tools do not look for members
APPENDED = "appended"  # the group of stores that were appended
APPENDED_NODE = f"{APPENDED}/zarr.json"
INDEXES = "hidden_states/.index"  # search indexes, likewise; they are not part of the store
LABELS = "hidden_states/.labels"  # label columns that were added, likewise
PARTS = "hidden_states/.appended"  # the list of appended stores, which is not lost with them
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
    nodes = {f"{path}/{NODE}": group_node({}) for path in group_paths(arrays)}
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
    return [*parts, shard_shape(spec, n_rows).end]


@dataclass(frozen=True)
class ShardShape:
    """The bytes of a shard: of a layer, of all layers with the index, and those of the index, which may be many."""

    layer_nbytes: int
    nbytes: int
    end_nbytes: int
    _arguments: tuple[Any, ...]

    @cached_property
    def end(self) -> bytes:
        """The last bytes: the index with its checksum."""
        return shard_index(*self._arguments)

    def fault(self, storage: Storage, key: str) -> str | None:
        """Return what is wrong with the size or the index of a shard, None where both are those of the layout."""
        if (size := storage.size(key)) != self.nbytes:
            return "is missing" if size is None else "was changed, it has another size"
        is_same = storage.get_range(key, self.nbytes - self.end_nbytes, self.nbytes).tobytes() == self.end
        return None if is_same else "was changed, it has another index"


def shard_shape(spec: ArraySpec, n_rows: int) -> ShardShape:
    """Return the shape of a shard of `n_rows` rows."""
    written, chunks = -(-n_rows // CHUNK_ROWS), (spec.shape[0], spec.shard[1] // CHUNK_ROWS)
    chunk_nbytes = math.prod(spec.chunk) * spec.dtype.itemsize
    end_nbytes = math.prod(chunks) * _PAIR_NBYTES + _CRC_NBYTES
    nbytes = spec.shape[0] * written * chunk_nbytes + end_nbytes
    return ShardShape(written * chunk_nbytes, nbytes, end_nbytes, (chunks, written, chunk_nbytes))


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
