"""Verifying an HDF5 store: one CRC32C over everything that never changes, one per partition over its rows."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from embstore.errors import EmbstoreError
from embstore.store.arrays import COMMITS, frozen_spec, no_records, payload_specs, record_crc32c
from embstore.store.check.verify import Checks
from embstore.store.hdf5.addresses import (
    CHECKSUM,
    find_addresses,
    frozen_crc32c,
    frozen_spans,
    padding_spans,
    payload_crc32c,
    read_span,
)
from embstore.store.hdf5.reader import open_file, read_attribute
from embstore.store.storage.files import MappedFile, crc32c_of_spans, opened

STRUCTURE = "HDF5 structure"


def verify_hdf5(path: Path, checks: Checks) -> None:
    """Check a file at the addresses that the library reports."""
    checks.total_nbytes = path.stat().st_size
    try:
        with open_file(path) as file:
            parsed = checks.attribute(read_attribute(file))
            if parsed is None:
                return
            metadata, arrays = parsed
            addresses = find_addresses(file, metadata, arrays)
    except EmbstoreError as error:
        checks.n_partitions = 0
        checks.fault(STRUCTURE, str(error))
        return
    layout, specs = metadata.layout, payload_specs(metadata)
    with opened(path) as descriptor:
        mapped = MappedFile(path)

        def column(name: str) -> NDArray[Any] | None:
            """Check an array that is written once, through the file: a map cannot report errors."""
            start, stop = addresses.spans[name]
            crc, nbytes = crc32c_of_spans(descriptor, [(start, stop)])
            dtype, shape = frozen_spec(name, arrays).dtype, arrays[name].shape
            if crc != arrays[name].crc32c or nbytes != math.prod(shape) * dtype.itemsize:
                checks.fault(name, "was changed: its checksum differs")
                return None
            return mapped.bytes[start:stop].view(dtype).reshape(shape)

        columns = {name: column(name) for name in arrays}
        stored = read_span(descriptor, *addresses.spans[CHECKSUM])
        same = stored.tobytes() == frozen_crc32c(descriptor, addresses, metadata).to_bytes(4, "little")
        frozen = frozen_spans(addresses, metadata, os.fstat(descriptor).st_size)
        checks.checked(sum(stop - start for start, stop in frozen) + 4)
        if not same and not checks.faults:
            checks.fault(STRUCTURE, "was changed: its checksum differs")
        records = no_records(metadata.n_partitions)
        data = read_span(descriptor, *addresses.spans[COMMITS])
        if len(data) == records.nbytes:
            records = data.view(records.dtype).reshape(records.shape)
        checks.checked(len(data))
        for partition in checks.records(records, layout, COMMITS):
            of_partition = payload_specs(metadata, partition)
            crc, nbytes = payload_crc32c(descriptor, addresses, of_partition, layout, partition)
            checks.checked(nbytes)
            if crc != record_crc32c(records[partition]):
                names = " and ".join(spec.path for spec in of_partition)
                checks.fault(names, "its bytes do not match the commit record", partition=partition)
        for spec in specs:
            spans = padding_spans(addresses, spec)
            checks.checked(sum(stop - start for start, stop in spans))
            if any(read_span(descriptor, *span).any() for span in spans):
                last = spec.first + layout.n_partitions - 1
                checks.fault(spec.path, "holds bytes beyond its last row", partition=last)
        checks.index(columns, metadata)
