"""Copying intact rows out of a damaged HDF5 store, even one that the HDF5 library cannot open."""

from __future__ import annotations

from collections.abc import Iterator
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
    """Copy into `new` every partition of `old` that matches its commit record; returns their numbers. Not durable yet.

    The same layout gives the same addresses, so those of the new file apply to the old one; where the old file
    reports others, these are tried too.
    """
    layout = metadata.layout
    candidates = [read_addresses(new)[2]]
    with suppress(EmbstoreError, OSError):
        candidates.append(read_addresses(old)[2])
    copied: set[int] = set()
    writer = HDF5Writer(new, durable=False)
    try:
        with opened(old) as descriptor:
            for addresses in candidates:
                if center is not None and not _has_center(descriptor, addresses, center):
                    continue
                for partition, record in _intact(descriptor, addresses, metadata):
                    if partition not in copied:
                        span = layout.span(partition)
                        specs = payload_specs(metadata, partition)
                        arrays = {spec.path: _read_rows(descriptor, addresses, spec, *span) for spec in specs}
                        writer.write(partition, arrays)
                        writer.commit(partition, record)
                        copied.add(partition)
    finally:
        writer.close()
    return copied


def _has_center(descriptor: int, addresses: Addresses, center: NDArray[np.float32]) -> bool:
    spans = addresses.spans
    return "center" in spans and read_span(descriptor, *spans["center"]).tobytes() == center.tobytes()


def _intact(descriptor: int, addresses: Addresses, metadata: Metadata) -> Iterator[tuple[int, NDArray[np.uint64]]]:
    """Yield each partition whose rows at these addresses match its commit record, with the record."""
    layout = metadata.layout
    if any(spec.path not in addresses.chunks for spec in payload_specs(metadata)) or COMMITS not in addresses.spans:
        return
    data = read_span(descriptor, *addresses.spans[COMMITS])
    if len(data) != metadata.n_partitions * 2 * COMMIT_DTYPE.itemsize:
        return
    records = data.view(COMMIT_DTYPE).reshape(-1, 2)
    for partition in np.flatnonzero(committed(records, layout)).tolist():
        crc, _ = payload_crc32c(descriptor, addresses, payload_specs(metadata, partition), layout, partition)
        if crc == record_crc32c(records[partition]):
            yield partition, records[partition]


def _read_rows(descriptor: int, addresses: Addresses, spec: ArraySpec, start: int, stop: int) -> NDArray[Any]:
    """Return rows `[start, stop)` of all layers; [layer, n, ...]."""
    rows = np.empty((spec.shape[0], stop - start, *spec.shape[2:]), spec.dtype)
    for layer, out in enumerate(rows):
        spans = row_spans(addresses, spec, layer, start, stop)
        out.reshape(-1).view(np.uint8)[...] = np.concatenate([read_span(descriptor, *span) for span in spans])
    return rows
