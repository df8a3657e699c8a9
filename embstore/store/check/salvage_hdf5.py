"""Copying intact rows out of a damaged HDF5 store, even one that the HDF5 library cannot open."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import EmbstoreError
from embstore.store.arrays import COMMIT_DTYPE, COMMITS, ArraySpec, committed, payload_specs, record_crc32c
from embstore.store.hdf5.addresses import Addresses, payload_crc32c, read_span, row_spans
from embstore.store.hdf5.reader import read_addresses
from embstore.store.hdf5.writer import HDF5Writer
from embstore.store.metadata import Metadata
from embstore.store.storage.files import opened


def copy_intact(old: Path, new: Path, metadata: Metadata, center: NDArray[np.float32] | None) -> set[int]:
    """Copy into `new` every partition of `old` that matches its commit record; returns their numbers.

    The same layout gives the same addresses, so those of the new file apply to the old one; where the old file
    reports others, these are tried too.
    """
    _, _, ours = read_addresses(new)
    candidates = [ours]
    with suppress(EmbstoreError, OSError):
        candidates.append(read_addresses(old)[2])
    intact: set[int] = set()
    writer = HDF5Writer(new)
    try:
        with opened(old) as descriptor:
            for addresses in candidates:
                if center is None or _has_center(descriptor, addresses, center):
                    _copy(descriptor, addresses, metadata, writer, intact)
    finally:
        writer.close()
    return intact


def _has_center(descriptor: int, addresses: Addresses, center: NDArray[np.float32]) -> bool:
    spans = addresses.spans
    return "center" in spans and read_span(descriptor, *spans["center"]).tobytes() == center.tobytes()


def _copy(descriptor: int, addresses: Addresses, metadata: Metadata, writer: HDF5Writer, intact: set[int]) -> None:
    layout = metadata.layout
    specs = payload_specs(metadata)
    if any(spec.path not in addresses.chunks for spec in specs) or COMMITS not in addresses.spans:
        return
    records = read_span(descriptor, *addresses.spans[COMMITS])
    if len(records) != layout.n_partitions * 2 * COMMIT_DTYPE.itemsize:
        return
    table = records.view(COMMIT_DTYPE).reshape(-1, 2)
    for partition in set(np.flatnonzero(committed(table, layout)).tolist()) - intact:
        crc, _ = payload_crc32c(descriptor, addresses, specs, layout, partition)
        if crc == record_crc32c(table[partition]):
            arrays = {spec.path: _read_rows(descriptor, addresses, spec, *layout.span(partition)) for spec in specs}
            writer.write(partition, arrays)
            writer.commit(partition, table[partition])
            intact.add(partition)


def _read_rows(descriptor: int, addresses: Addresses, spec: ArraySpec, start: int, stop: int) -> NDArray[Any]:
    """Return rows `[start, stop)` of all layers; [layer, n, ...]."""
    rows = np.empty((spec.shape[0], stop - start, *spec.shape[2:]), spec.dtype)
    for layer, out in enumerate(rows):
        spans = row_spans(addresses, spec, layer, start, stop)
        out.reshape(-1).view(np.uint8)[...] = np.concatenate([read_span(descriptor, *span) for span in spans])
    return rows
