"""Verifying an HDF5 store: one CRC32C over everything that never changes, one per partition over its rows."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import EmbstoreError
from embstore.store.arrays import (
    COMMIT_DTYPE,
    COMMITS,
    ArraySpec,
    committed,
    frozen_spec,
    no_records,
    payload_specs,
    record_crc32c,
)
from embstore.store.check.common import check_attribute, check_index, check_records
from embstore.store.check.report import Findings
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
from embstore.store.hdf5.format import read_attribute
from embstore.store.hdf5.reader import open_file
from embstore.store.metadata import Metadata, StoredArray
from embstore.store.storage.files import crc32c, opened

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
        _Checks(descriptor, metadata, arrays, addresses, findings).run()
    return metadata.layout.n_partitions


class _Checks:
    """The checks of one open file, at the addresses that the library reports."""

    def __init__(
        self,
        descriptor: int,
        metadata: Metadata,
        arrays: Mapping[str, StoredArray],
        addresses: Addresses,
        findings: Findings,
    ) -> None:
        self._descriptor = descriptor
        self._metadata = metadata
        self._arrays = arrays
        self._addresses = addresses
        self._findings = findings

    def run(self) -> None:
        specs = payload_specs(self._metadata)
        needed = [*self._arrays, COMMITS, CHECKSUM]
        unmapped = [name for name in needed if name not in self._addresses.spans]
        unmapped += [spec.path for spec in specs if spec.path not in self._addresses.chunks]
        for name in unmapped:
            self._findings.fault(name, "was rewritten by another tool, or its description is damaged")
        columns = self._columns()
        if not unmapped:
            self._check_frozen()
            self._check_partitions(specs)
        if len(columns) == len(self._arrays):
            check_index(columns, self._metadata, self._findings)

    def _columns(self) -> dict[str, NDArray[Any]]:
        columns = {}
        for name, array in self._arrays.items():
            if name not in self._addresses.spans:
                continue
            data = read_span(self._descriptor, *self._addresses.spans[name])
            dtype = frozen_spec(name, array.shape).dtype
            if crc32c(data) != array.crc32c or len(data) != math.prod(array.shape) * dtype.itemsize:
                self._findings.fault(name, "was changed: its checksum differs")
            else:
                columns[name] = data.view(dtype).reshape(array.shape)
        return columns

    def _check_frozen(self) -> None:
        stored = read_span(self._descriptor, *self._addresses.spans[CHECKSUM])
        same = stored.tobytes() == frozen_crc32c(self._descriptor, self._addresses).to_bytes(4, "little")
        size = os.fstat(self._descriptor).st_size
        self._findings.checked(sum(stop - start for start, stop in frozen_spans(self._addresses, size)) + 4)
        if not same and not self._findings.faults:
            self._findings.fault(STRUCTURE, "was changed: its checksum differs")

    def _check_partitions(self, specs: list[ArraySpec]) -> None:
        layout = self._metadata.layout
        records = no_records(layout.n_partitions)
        data = read_span(self._descriptor, *self._addresses.spans[COMMITS])
        if len(data) == records.nbytes:
            records = data.view(COMMIT_DTYPE).reshape(records.shape)
        self._findings.checked(len(data))
        check_records(records, layout, COMMITS, self._findings)
        for partition in np.flatnonzero(committed(records, layout)).tolist():
            crc, nbytes = payload_crc32c(self._descriptor, self._addresses, specs, layout, partition)
            self._findings.checked(nbytes)
            if crc != record_crc32c(records[partition]):
                names = " and ".join(spec.path for spec in specs)
                self._findings.fault(names, "its bytes do not match the commit record", partition=partition)
        for spec in specs:
            spans = padding_spans(self._addresses, spec)
            self._findings.checked(sum(stop - start for start, stop in spans))
            if any(read_span(self._descriptor, *span).any() for span in spans):
                last = layout.n_partitions - 1
                self._findings.fault(spec.path, "holds bytes beyond its last row", partition=last)
