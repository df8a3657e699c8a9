"""The zarr.json files of a store, each the same bytes for the same metadata."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from embstore.store.arrays import (
    ArraySpec,
    commits_spec,
    frozen_specs,
    group_paths,
    payload_specs,
)
from embstore.store.metadata import Metadata, StoredArray, document

NODE = "zarr.json"
TEMPORARY = "commits/.tmp"  # inside an array, where no Zarr tool looks for members
INDEXES = "hidden_states/.index"  # the search indexes, likewise; they are no part of the store
_BYTES = {"name": "bytes", "configuration": {"endian": "little"}}


def group_node(attributes: Mapping[str, Any]) -> bytes:
    return _encode({"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)})


def array_node(spec: ArraySpec, *, separator: str = "/") -> bytes:
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
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": separator}},
            "fill_value": "NaN" if math.isnan(spec.fill) else spec.fill,
            "codecs": codecs,
            "attributes": dict(spec.attributes),
            "dimension_names": list(spec.dims),
        }
    )


def commits_node(partitions: int, *, folded: bool) -> bytes:
    """Return the zarr.json of the commits; the two forms have different chunk names, so one rename is the switch."""
    return array_node(commits_spec(partitions, folded=folded), separator="." if folded else "/")


def frozen_nodes(metadata: Metadata, arrays: Mapping[str, StoredArray]) -> dict[str, bytes]:
    """Return every zarr.json but that of the commits, by its path in the store."""
    nodes = {}
    for path in group_paths(arrays):
        attributes = {"embstore": document(metadata, arrays)} if path == "" else {}
        nodes[f"{path}/{NODE}".lstrip("/")] = group_node(attributes)
    for spec in [*payload_specs(metadata), *frozen_specs(arrays)]:
        nodes[f"{spec.path}/{NODE}"] = array_node(spec)
    return nodes


def chunk_file(spec: ArraySpec) -> str:
    """Return the one chunk file of a frozen array."""
    return f"{spec.path}/c/" + "/".join("0" for _ in spec.shape)


def shard_file(spec: ArraySpec, partition: int) -> str:
    """Return the file of one partition of `hidden_states` or `scale`."""
    return f"{spec.path}/c/" + "/".join(str(partition) if axis == 1 else "0" for axis in range(len(spec.shape)))


COMMITS_FOLDER = "commits/c"


def commit_file(partition: int) -> str:
    return f"{COMMITS_FOLDER}/{partition}/0"


FOLDED_FILE = "commits/c.0.0"


def _encode(node: Mapping[str, Any]) -> bytes:
    return (json.dumps(node, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
