"""The files of a Zarr store: their keys, and the zarr.json documents, which follow from the metadata byte for byte."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from embstore.store.arrays import COMMITS, ArraySpec, commits_spec, frozen_specs, group_paths, payload_specs
from embstore.store.metadata import Metadata, StoredArray, document

NODE = "zarr.json"
COMMITS_CHUNK = f"{COMMITS}/c/0/0"
TEMPORARY = "hidden_states/.tmp"  # inside an array, where Zarr tools do not look for members
INDEXES = "hidden_states/.index"  # search indexes, likewise; they are not part of the store
_BYTES = {"name": "bytes", "configuration": {"endian": "little"}}


def group_node(attributes: Mapping[str, Any]) -> bytes:
    """Return the zarr.json of a group."""
    return _encode({"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)})


def array_node(spec: ArraySpec) -> bytes:
    """Return the zarr.json of an array; shards hold uncompressed chunks and end with their index."""
    codecs: list[dict[str, Any]] = [_BYTES]
    if spec.shard != spec.chunk or spec.path in {"hidden_states", "scale"}:
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
    for spec in [*payload_specs(metadata), *frozen_specs(arrays), commits_spec(metadata.layout.n_partitions)]:
        nodes[f"{spec.path}/{NODE}"] = array_node(spec)
    nodes[NODE] = group_node({"embstore": document(metadata, arrays)})
    return nodes


def column_key(spec: ArraySpec) -> str:
    """Return the key of the one chunk of an array that is written once."""
    return f"{spec.path}/c/" + "/".join("0" for _ in spec.shape)


def shard_key(spec: ArraySpec, partition: int) -> str:
    """Return the key of the shard of one partition of `hidden_states` or `scale`."""
    return f"{spec.path}/c/" + "/".join(str(partition) if axis == 1 else "0" for axis in range(len(spec.shape)))


def _encode(node: Mapping[str, Any]) -> bytes:
    return (json.dumps(node, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
