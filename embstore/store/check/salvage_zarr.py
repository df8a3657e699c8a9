"""Taking intact shards out of a damaged Zarr store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embstore.store.arrays import COMMIT_DTYPE, frozen_spec, payload_specs
from embstore.store.metadata import Metadata
from embstore.store.storage.files import crc32c_of_file
from embstore.store.zarr.format import FOLDED_FILE, chunk_file, commit_file, shard_file
from embstore.store.zarr.writer import ZarrWriter


def carry_over(old: Path, new: Path, metadata: Metadata, center: NDArray[np.float32] | None) -> set[int]:
    """Link into `new` every shard of `old` that matches a commit record, and commit it; returns the partitions."""
    if center is not None and not _has_center(old, center):
        return set()
    layout = metadata.layout
    specs = payload_specs(metadata)
    writer = ZarrWriter(new)
    kept = set()
    for partition in range(layout.n_partitions):
        start, stop = layout.span(partition)
        shards = {spec.path: old / shard_file(spec, partition) for spec in specs}
        crc = _crc32c_of_files(list(shards.values()))
        for record in _records(old, partition, layout.n_partitions):
            if record.tolist() == [stop - start, crc]:
                writer.adopt(partition, shards)
                writer.commit(partition, record)
                kept.add(partition)
                break
    return kept


def _has_center(old: Path, center: NDArray[np.float32]) -> bool:
    try:
        return (old / chunk_file(frozen_spec("center", center.shape))).read_bytes() == center.tobytes()
    except OSError:
        return False


def _crc32c_of_files(files: list[Path]) -> int | None:
    crc = 0
    try:
        for file in files:
            crc, _ = crc32c_of_file(file, crc)
    except OSError:
        return None
    return crc


def _records(old: Path, partition: int, partitions: int) -> Iterator[NDArray[np.uint64]]:
    """Give the records of a partition in either form, whichever can be read."""
    for name, place, count in ((FOLDED_FILE, partition, partitions), (commit_file(partition), 0, 1)):
        try:
            data = (old / name).read_bytes()
        except OSError:
            continue
        if len(data) == count * 2 * COMMIT_DTYPE.itemsize:
            yield np.frombuffer(data, COMMIT_DTYPE).reshape(count, 2)[place]
