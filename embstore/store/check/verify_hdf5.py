"""Verifying an HDF5 store: one CRC32C over all that never changes, one a partition over its rows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import EmbstoreError
from embstore.store.arrays import COMMIT_DTYPE, COMMITS, NOT_WRITTEN, ArraySpec, frozen_spec, payload_specs
from embstore.store.check.report import Findings
from embstore.store.check.verify import check_attribute, check_index, check_record
from embstore.store.hdf5.format import read_attribute
from embstore.store.hdf5.offsets import (
    CHECKSUM,
    Places,
    find_places,
    frozen_crc32c,
    frozen_spans,
    padding_spans,
    payload_crc32c,
    read_span,
)
from embstore.store.hdf5.reader import open_file
from embstore.store.layout import Layout
from embstore.store.metadata import Metadata, StoredArray
from embstore.store.storage.files import crc32c
from embstore.store.writer import committed

STRUCTURE = "HDF5 structure"


def verify_hdf5(path: Path, findings: Findings) -> int:
    """Verify a file and return how many partitions it has, 0 where that cannot be known."""
    findings.total_nbytes = path.stat().st_size
    try:
        with open_file(path) as file:
            parsed = check_attribute(read_attribute(file), path, findings)
            if parsed is None:
                return 0
            metadata, arrays = parsed
            places = find_places(file, metadata, arrays)
    except EmbstoreError as error:
        findings.fault(STRUCTURE, str(error))
        return 0
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _Inspection(descriptor, metadata, arrays, places, findings).run()
    finally:
        os.close(descriptor)
    return metadata.layout.n_partitions


class _Inspection:
    """The checks of one open file, at the places that the library has named."""

    def __init__(
        self,
        descriptor: int,
        metadata: Metadata,
        arrays: Mapping[str, StoredArray],
        places: Places,
        findings: Findings,
    ) -> None:
        self._descriptor = descriptor
        self._metadata = metadata
        self._arrays = arrays
        self._places = places
        self._findings = findings

    def run(self) -> None:
        specs = payload_specs(self._metadata)
        needed = [*self._arrays, COMMITS, CHECKSUM]
        elsewhere = [name for name in needed if name not in self._places.spans]
        elsewhere += [spec.path for spec in specs if spec.path not in self._places.chunks]
        for name in elsewhere:
            self._findings.fault(name, "was stored anew by another tool, or its description is damaged")
        columns = self._columns()
        if not elsewhere:
            self._check_frozen()
            self._check_partitions(specs, self._metadata.layout)
        if len(columns) == len(self._arrays):
            check_index(columns, self._metadata, self._findings)

    def _columns(self) -> dict[str, NDArray[Any]]:
        columns = {}
        for name, array in self._arrays.items():
            if name not in self._places.spans:
                continue
            start, stop = self._places.spans[name]
            data = read_span(self._descriptor, start, stop)
            if crc32c(data) != array.crc32c:
                self._findings.fault(name, "is not what was written: its checksum differs")
            else:
                columns[name] = data.view(frozen_spec(name, array.shape).dtype).reshape(array.shape)
        return columns

    def _check_frozen(self) -> None:
        start, stop = self._places.spans[CHECKSUM]
        stored = int.from_bytes(os.pread(self._descriptor, stop - start, start), "little")
        same = frozen_crc32c(self._descriptor, self._places) == stored
        size = os.fstat(self._descriptor).st_size
        self._findings.checked(sum(stop - start for start, stop in frozen_spans(self._places, size)) + 4)
        if not same and not self._findings.faults:
            self._findings.fault(STRUCTURE, "is not what was written: its checksum differs")

    def _check_partitions(self, specs: list[ArraySpec], layout: Layout) -> None:
        start, stop = self._places.spans[COMMITS]
        records = np.full((layout.n_partitions, 2), NOT_WRITTEN, COMMIT_DTYPE)
        found = os.pread(self._descriptor, stop - start, start)
        if len(found) == records.nbytes:
            records[...] = np.frombuffer(found, COMMIT_DTYPE).reshape(records.shape)
        self._findings.checked(len(found))
        whole = committed(records, layout)
        for partition, record in enumerate(records):
            if whole[partition]:
                self._check_rows(specs, layout, partition, int(record[1]))
            elif (record == NOT_WRITTEN).all():
                self._findings.missing.append(partition)
            else:
                check_record(record, partition, layout, COMMITS, self._findings)
        for spec in specs:
            self._check_padding(spec)

    def _check_rows(self, specs: list[ArraySpec], layout: Layout, partition: int, expected: int) -> None:
        crc, nbytes = payload_crc32c(self._descriptor, self._places, specs, layout, partition)
        self._findings.checked(nbytes)
        if crc != expected:
            what = "its bytes are not those of the commit record"
            self._findings.fault(" and ".join(spec.path for spec in specs), what, partition=partition)

    def _check_padding(self, spec: ArraySpec) -> None:
        spans = padding_spans(self._places, spec)
        self._findings.checked(sum(stop - start for start, stop in spans))
        if any(read_span(self._descriptor, *span).any() for span in spans):
            last = self._metadata.layout.n_partitions - 1
            self._findings.fault(spec.path, "holds bytes past its last row", partition=last)
