"""Mending a store in a bucket: what is not vectors is put in place again, and no commit stays that its shard denies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import StoreNotFoundError
from embstore.store.arrays import payload_specs, stored_arrays
from embstore.store.metadata import Metadata
from embstore.store.storage.files import as_bytes
from embstore.store.storage.location import ObjectPath
from embstore.store.storage.objects import Objects
from embstore.store.writer import committed
from embstore.store.zarr.format import (
    COMMITS_FOLDER,
    FOLDED_FILE,
    INDEXES,
    NODE,
    TEMPORARY,
    commits_node,
    frozen_nodes,
    shard_file,
)
from embstore.store.zarr.object_commits import COMMITS_NODE
from embstore.store.zarr.object_layout import Pieces, column_of, holds
from embstore.store.zarr.object_shards import create, read_metadata
from embstore.store.zarr.object_writer import ObjectWriter


def stored_metadata(path: ObjectPath) -> Metadata:
    """Return the metadata of a store. Raises StoreNotFoundError where nothing is there, and what reading raises."""
    objects = Objects.at(path)
    if not objects.names():
        raise StoreNotFoundError(f"there is no store at {path}: embstore extract makes one")
    return read_metadata(objects)


def names_recipe(path: ObjectPath, planned: Metadata) -> bool:
    """Look for the digest of the recipe that stands beside the vectors."""
    node = Objects.at(path).get_or_none(f"hidden_states/{NODE}")
    return node is not None and planned.recipe_sha256.encode() in node


def mend(path: ObjectPath, metadata: Metadata, frozen: Mapping[str, NDArray[Any]]) -> list[int]:
    """Make a store what was laid out, keeping what is so already; returns the partitions that are to be written.

    Objects that are no store's are removed. int8 codes are kept only where the old centre is, bit for bit, `frozen`'s.
    """
    objects = Objects.at(path)
    nodes = frozen_nodes(metadata, stored_arrays(frozen))
    nodes[f"commits/{NODE}"] = _form(objects, metadata.layout.n_partitions)
    right: dict[str, Pieces] = {name: [as_bytes(node)] for name, node in nodes.items()}
    right.update(column_of(name, array) for name, array in frozen.items() if array.size)
    right[NODE] = right.pop(NODE)  # the root comes last
    kept = "center" not in frozen or holds(objects, *column_of("center", frozen["center"]))
    _remove_others(objects, metadata, set(right))
    for name, pieces in right.items():
        if not holds(objects, name, pieces):
            objects.delete(name)
            create(objects, name, pieces)
    return _uncommit(ObjectWriter(path), every=not kept)


def _form(objects: Objects, partitions: int) -> bytes:
    """Return the zarr.json of the commits in the form in which they stand."""
    forms = [commits_node(partitions, folded=folded) for folded in (False, True)]
    node = objects.get_or_none(COMMITS_NODE)
    if node is not None and node in forms:
        return node
    return forms[objects.size(FOLDED_FILE) is not None and not objects.names(COMMITS_FOLDER)]


def _remove_others(objects: Objects, metadata: Metadata, known: set[str]) -> None:
    partitions = range(metadata.layout.n_partitions)
    known |= {shard_file(spec, partition) for spec in payload_specs(metadata) for partition in partitions}
    known.add(FOLDED_FILE)
    ours = (f"{COMMITS_FOLDER}/", f"{TEMPORARY}/", f"{INDEXES}/")
    for name in objects.names():
        if name not in known and not name.startswith(ours):
            objects.delete(name)


def _uncommit(writer: ObjectWriter, *, every: bool) -> list[int]:
    """Discard what is committed but not so in its shards, or `every` partition."""
    records = writer.commits()
    whole = committed(records, writer.metadata.layout)
    wrong = [number for number in np.flatnonzero(whole).tolist() if every or not _stands(writer, number, records)]
    if wrong:
        writer.discard(wrong)
        whole[wrong] = False
    return np.flatnonzero(~whole).tolist()


def _stands(writer: ObjectWriter, partition: int, records: NDArray[np.uint64]) -> bool:
    record = writer.record(partition)
    return record is not None and np.array_equal(record, records[partition])
