"""Verifying an HDF5 store: one CRC32C over everything that never changes, one per partition over its rows."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import EmbstoreError
from embstore.store.arrays import COMMITS, committed, frozen_spec, no_records, payload_specs, record_crc32c
from embstore.store.check.findings import Findings, check_attribute, check_index, check_records
from embstore.store.hdf5.addresses import (
    CHECKSUM,
    Addresses,
    find_addresses,
    frozen_crc32c,
    frozen_spans,
    padding_spans,
    payload_crc32c,
    read_span,
)
from embstore.store.hdf5.reader import open_file, read_attribute
from embstore.store.metadata import Metadata, StoredArray
from embstore.store.storage.files import MappedFile, crc32c_of_spans, opened

STRUCTURE = "HDF5 structure"


def verify_hdf5(path: Path, findings: Findings) -> int:
    """Verify a file; returns the number of its partitions, 0 where that cannot be known."""
    findings.total_nbytes = path.stat().st_size
    try:
        with open_file(path) as file:
            parsed = check_attribute(read_attribute(file), path, findings)
            if parsed is None:
                return 0
            metadata, arrays = parsed
            addresses = find_addresses(file, metadata, arrays)
    except EmbstoreError as error:
        findings.fault(STRUCTURE, str(error))
        return 0
    with opened(path) as descriptor:
        checks = _Checks(descriptor, MappedFile(path), metadata, addresses, findings)
        payload = [spec.path for spec in payload_specs(metadata)]
        unmapped = [name for name in [*arrays, COMMITS, CHECKSUM] if name not in addresses.spans]
        unmapped += [name for name in payload if name not in addresses.chunks]
        for name in unmapped:
            findings.fault(name, "was rewritten by another tool, or its description is damaged")
        columns = {name: checks.column(name, arrays[name]) for name in arrays if name not in unmapped}
        if not unmapped:
            checks.frozen()
            checks.partitions()
    complete = {name: column for name, column in columns.items() if column is not None}
    if len(complete) == len(arrays):
        check_index(complete, metadata, findings)
    return metadata.n_partitions


@dataclass(frozen=True)
class _Checks:
    """The checks of one open file, at the addresses that the library reports."""

    descriptor: int
    file: MappedFile
    metadata: Metadata
    addresses: Addresses
    findings: Findings

    def column(self, name: str, array: StoredArray) -> NDArray[Any] | None:
        """Check an array that is written once and return it, None where it is damaged."""
        start, stop = self.addresses.spans[name]
        crc, nbytes = crc32c_of_spans(self.descriptor, [(start, stop)])  # through the file: a map cannot report errors
        dtype = frozen_spec(name, {name: array}).dtype
        if crc != array.crc32c or nbytes != math.prod(array.shape) * dtype.itemsize:
            self.findings.fault(name, "was changed: its checksum differs")
            return None
        column: NDArray[Any] = self.file.bytes[start:stop].view(dtype).reshape(array.shape)
        return column

    def frozen(self) -> None:
        """Check everything that never changes: HDF5's own structures, the metadata, the index."""
        stored = read_span(self.descriptor, *self.addresses.spans[CHECKSUM])
        same = stored.tobytes() == frozen_crc32c(self.descriptor, self.addresses).to_bytes(4, "little")
        size = os.fstat(self.descriptor).st_size
        self.findings.checked(sum(stop - start for start, stop in frozen_spans(self.addresses, size)) + 4)
        if not same and not self.findings.faults:
            self.findings.fault(STRUCTURE, "was changed: its checksum differs")

    def partitions(self) -> None:
        """Check the commit records, the rows of every committed partition, and that nothing follows the last row."""
        layout = self.metadata.layout
        records = no_records(self.metadata.n_partitions)
        data = read_span(self.descriptor, *self.addresses.spans[COMMITS])
        if len(data) == records.nbytes:
            records = data.view(records.dtype).reshape(records.shape)
        self.findings.checked(len(data))
        check_records(records, layout, COMMITS, self.findings)
        for partition in np.flatnonzero(committed(records, layout)).tolist():
            specs = payload_specs(self.metadata, partition)
            crc, nbytes = payload_crc32c(self.descriptor, self.addresses, specs, layout, partition)
            self.findings.checked(nbytes)
            if crc != record_crc32c(records[partition]):
                names = " and ".join(spec.path for spec in specs)
                self.findings.fault(names, "its bytes do not match the commit record", partition=partition)
        for spec in payload_specs(self.metadata):
            spans = padding_spans(self.addresses, spec)
            self.findings.checked(sum(stop - start for start, stop in spans))
            if any(read_span(self.descriptor, *span).any() for span in spans):
                last = spec.first + layout.n_partitions - 1
                self.findings.fault(spec.path, "holds bytes beyond its last row", partition=last)
