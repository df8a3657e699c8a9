"""The commit records of a store in a bucket, in whichever of their two forms they stand."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embstore.errors import StoreDamagedError
from embstore.store.arrays import COMMIT_DTYPE, NOT_WRITTEN
from embstore.store.storage.files import MEND
from embstore.store.storage.objects import Objects
from embstore.store.zarr.format import COMMITS_FOLDER, FOLDED_FILE, NODE, commit_file, commits_node

COMMITS_NODE = f"commits/{NODE}"

Records = NDArray[np.uint64]


def read_commits(objects: Objects, partitions: int) -> Records:
    """Return the records [partition, 2]; one that is not there or cut short counts as not written."""
    folded = is_folded(objects, partitions)
    while True:
        records = _folded(objects, partitions) if folded else _single(objects, partitions)
        before, folded = folded, is_folded(objects, partitions)
        if folded == before:  # else a writer changed the form as we read
            return records


def is_folded(objects: Objects, partitions: int) -> bool:
    """Tell the form by the zarr.json of the commits. Raises StoreDamagedError where it is neither."""
    node = objects.get(COMMITS_NODE)
    if node == commits_node(partitions, folded=True):
        return True
    if node == commits_node(partitions, folded=False):
        return False
    raise StoreDamagedError(f"{objects.url(COMMITS_NODE)} is not what was written: {MEND}")


def single_commits(objects: Objects, partitions: int) -> list[int]:
    """The partitions of which there is, or where nothing is listed may be, a record of its own, ascending."""
    if not objects.listed:
        return list(range(partitions))
    names = set(objects.names(COMMITS_FOLDER))
    return [partition for partition in range(partitions) if commit_file(partition) in names]


def record_of(data: bytes | None) -> Records:
    """Return the record [2] that an object holds."""
    record = np.full(2, NOT_WRITTEN, COMMIT_DTYPE)
    if data is not None and len(data) == record.nbytes:
        record[...] = np.frombuffer(data, COMMIT_DTYPE)
    return record


def _folded(objects: Objects, partitions: int) -> Records:
    records = np.full((partitions, 2), NOT_WRITTEN, COMMIT_DTYPE)
    data = objects.get_or_none(FOLDED_FILE)
    if data is not None and len(data) == records.nbytes:
        records[...] = np.frombuffer(data, COMMIT_DTYPE).reshape(partitions, 2)
    return records


def _single(objects: Objects, partitions: int) -> Records:
    records = np.full((partitions, 2), NOT_WRITTEN, COMMIT_DTYPE)
    there = single_commits(objects, partitions)
    for partition, data in zip(there, objects.get_many(map(commit_file, there)), strict=True):
        records[partition] = record_of(data)
    return records
