"""Taking intact rows out of a damaged HDF5 store, even one that the HDF5 library cannot open."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import EmbstoreError
from embstore.store.arrays import COMMIT_DTYPE, COMMITS, ArraySpec, payload_specs
from embstore.store.hdf5.offsets import Places, read_span, row_spans
from embstore.store.hdf5.reader import read_places
from embstore.store.hdf5.writer import HDF5Writer
from embstore.store.layout import Layout
from embstore.store.metadata import Metadata
from embstore.store.storage.files import crc32c


def carry_over(old: Path, new: Path, metadata: Metadata, center: NDArray[np.float32] | None) -> set[int]:
    """Copy into `new` every partition of `old` that matches its commit record; returns these.

    The same layout gives the same addresses, so those of the new file are good for the old one; where the old
    one names others, these are tried too.
    """
    try:
        descriptor = os.open(old, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return set()
    kept: set[int] = set()
    writer = HDF5Writer(new)
    try:
        for places in _candidates(old, new):
            if center is None or _has_center(descriptor, places, center):
                _copy(descriptor, places, metadata, writer, kept)
    finally:
        writer.close()
        os.close(descriptor)
    return kept


def _candidates(old: Path, new: Path) -> list[Places]:
    _, _, places = read_places(new)
    try:
        return [places, read_places(old)[2]]
    except (EmbstoreError, OSError):
        return [places]


def _has_center(descriptor: int, places: Places, center: NDArray[np.float32]) -> bool:
    return "center" in places.spans and read_span(descriptor, *places.spans["center"]).tobytes() == center.tobytes()


def _copy(descriptor: int, places: Places, metadata: Metadata, writer: HDF5Writer, kept: set[int]) -> None:
    layout = metadata.layout
    specs = payload_specs(metadata)
    if any(spec.path not in places.chunks for spec in specs) or COMMITS not in places.spans:
        return
    records = read_span(descriptor, *places.spans[COMMITS])
    if len(records) != layout.n_partitions * 2 * COMMIT_DTYPE.itemsize:
        return
    for partition, record in enumerate(records.view(COMMIT_DTYPE).reshape(-1, 2)):
        start, stop = layout.span(partition)
        if partition in kept or record[0] != stop - start:
            continue
        arrays = _read_partition(descriptor, places, specs, layout, partition)
        if arrays is not None and _crc32c_of(arrays, specs) == record[1]:
            writer.write(partition, arrays)
            writer.commit(partition, record)
            kept.add(partition)


def _read_partition(
    descriptor: int, places: Places, specs: list[ArraySpec], layout: Layout, partition: int
) -> dict[str, NDArray[Any]] | None:
    start, stop = layout.span(partition)
    arrays: dict[str, NDArray[Any]] = {}
    for spec in specs:
        rows = np.empty((spec.shape[0], stop - start, *spec.shape[2:]), spec.dtype)
        for layer in range(spec.shape[0]):
            spans = row_spans(places, spec, layer, start, stop)
            data = np.concatenate([read_span(descriptor, *span) for span in spans])
            if len(data) != rows[layer].nbytes:
                return None
            rows[layer] = data.view(spec.dtype).reshape(rows[layer].shape)
        arrays[spec.path] = rows
    return arrays


def _crc32c_of(arrays: Mapping[str, NDArray[Any]], specs: list[ArraySpec]) -> int:
    crc = 0
    for spec in specs:
        crc = crc32c(arrays[spec.path], crc)
    return crc
