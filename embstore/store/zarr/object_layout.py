"""Laying out a store in a bucket: object after object, none of them over another's, the root last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidValueError, StorageError
from embstore.store.arrays import frozen_spec, stored_arrays
from embstore.store.metadata import Metadata
from embstore.store.storage.files import as_bytes, crc32c
from embstore.store.storage.location import ObjectPath
from embstore.store.storage.objects import Objects
from embstore.store.zarr.format import NODE, chunk_file, commits_node, frozen_nodes
from embstore.store.zarr.object_commits import COMMITS_NODE
from embstore.store.zarr.object_shards import create, put_new
from embstore.store.zarr.writer import column_end

Pieces = list[NDArray[np.uint8]]


def lay_out(path: ObjectPath, metadata: Metadata, frozen: Mapping[str, NDArray[Any]]) -> None:
    """Write a whole store without rows at `path`; its root comes last, so that it is there only when it is whole.

    What an earlier call left there is gone on with. Raises InvalidValueError where a store stands at `path`, or
    something of another one.
    """
    objects = Objects.at(path)
    if objects.size(NODE) is not None:
        raise taken(path)
    _require_conditions(objects, COMMITS_NODE, commits_node(metadata.layout.n_partitions, folded=False))
    frozen = {**frozen, **_center(objects, frozen)}
    nodes = frozen_nodes(metadata, stored_arrays(frozen))
    root = nodes.pop(NODE)
    for name, node in nodes.items():
        _place(objects, name, [as_bytes(node)])
    for name, array in frozen.items():
        if array.size:
            _place(objects, *column_of(name, array))
    if not put_new(objects, NODE, root) and objects.get(NODE) != root:
        raise taken(path)


def taken(path: ObjectPath) -> InvalidValueError:
    return InvalidValueError(f"{path} exists already: choose another address, or remove it first")


def column_of(name: str, array: NDArray[Any]) -> tuple[str, Pieces]:
    """Return the object of a frozen array: its name and its bytes."""
    spec = frozen_spec(name, array.shape)
    return chunk_file(spec), [as_bytes(array), as_bytes(column_end(spec))]


def _require_conditions(objects: Objects, name: str, data: bytes) -> None:
    """Write the first object twice: a server that lets the second one pass would let two writers both win."""
    _place(objects, name, [as_bytes(data)])
    if put_new(objects, name, data):
        raise StorageError(
            f"cannot write {objects.path}: its server overwrites what should only be created (it does not know "
            "If-None-Match), so two writers could spoil a store; write it to a disk and copy it from there"
        )


def _center(objects: Objects, frozen: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Place the centre of int8 codes first, or take over what another maker of this store has placed.

    It is computed, so two makers of one plan may differ in its last bits; all else in a lay-out is the same for both.
    """
    if "center" not in frozen:
        return {}
    name, pieces = column_of("center", frozen["center"])
    if create(objects, name, pieces):
        return {}
    center = frozen["center"]
    held = objects.get(name)
    if len(held) != center.nbytes:
        raise _foreign(objects, name)
    standing = np.frombuffer(held, center.dtype).reshape(center.shape)
    if not np.allclose(standing, center, rtol=1e-2, atol=1e-2 * float(np.abs(center).max())):
        raise _foreign(objects, name)
    return {"center": standing}


def _place(objects: Objects, name: str, pieces: Pieces) -> None:
    """Write an object of a lay-out, or see that it is there already as it should be."""
    if not create(objects, name, pieces) and not holds(objects, name, pieces):
        raise _foreign(objects, name)


def holds(objects: Objects, name: str, pieces: Pieces) -> bool:
    """Tell whether an object is there and has these bytes."""
    size = sum(map(len, pieces))
    if objects.size(name) != size:
        return False
    expected = 0
    for piece in pieces:
        expected = crc32c(piece, expected)
    return objects.crc32c(name, size=size)[0] == expected


def _foreign(objects: Objects, name: str) -> InvalidValueError:
    if objects.size(NODE) is not None:
        return taken(objects.path)
    return InvalidValueError(
        f"{objects.url(name)} belongs to another store whose making was interrupted or is going on: remove what is "
        f"below {objects.path}, or choose another address"
    )
