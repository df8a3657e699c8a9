"""Writing an HDF5 store: rows and commit records go to their addresses in the file, without the HDF5 library."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from embstore.errors import StoreFormatError
from embstore.store.arrays import COMMIT_DTYPE, COMMITS, Records, no_records, payload_specs
from embstore.store.hdf5.addresses import padding_spans, read_span, row_offsets
from embstore.store.hdf5.reader import read_addresses
from embstore.store.storage.files import crc32c, write_at


class HDF5Writer:
    """The parts of an HDF5 store that change: rows and commit records.

    Any number of processes may call `write`. The methods below it are for the one process that commits.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata, _, self._addresses = read_addresses(path)
        self._specs = payload_specs(self.metadata)
        chunks = self._addresses.chunks
        if any(spec.path not in chunks or (chunks[spec.path] < 0).any() for spec in self._specs):
            raise StoreFormatError(f"{path} was rewritten by another tool: it can be read, but not written")
        self._descriptor = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))

    def write(self, partition: int, arrays: Mapping[str, NDArray[Any]]) -> int:
        """Write the rows of a partition, durably, and return the CRC32C of their bytes in C order."""
        crc = 0
        start, stop = self.metadata.layout.span(partition)
        for spec in self._specs:
            for layer, rows in enumerate(arrays[spec.path]):
                offsets, step = row_offsets(self._addresses, spec, layer, start, stop)
                for number, offset in enumerate(offsets.tolist()):
                    write_at(self._descriptor, rows[number * step : (number + 1) * step], offset)
                crc = crc32c(rows, crc)
            if stop == self.metadata.n_rows:
                for first, last in padding_spans(self._addresses, spec):
                    write_at(self._descriptor, bytes(last - first), first)
        os.fsync(self._descriptor)
        return crc

    def recover(self) -> None:
        """Begin committing; an interrupted write leaves nothing that must be removed."""

    def commits(self) -> Records:
        """Return the commit records [partition, 2]."""
        records = read_span(self._descriptor, *self._addresses.spans[COMMITS])
        return records.view(COMMIT_DTYPE).reshape(self.metadata.layout.n_partitions, 2)

    def commit(self, partition: int, record: Records) -> None:
        """Record in place that a partition is written."""
        data = record.astype(COMMIT_DTYPE)
        write_at(self._descriptor, data, self._addresses.spans[COMMITS][0] + partition * data.nbytes)
        os.fsync(self._descriptor)

    def discard(self, partitions: Iterable[int]) -> None:
        """Erase the records of partitions; their rows stay until they are overwritten."""
        for partition in partitions:
            self.commit(partition, no_records(1)[0])

    def flush(self) -> None:
        """Does nothing: records are written at once."""

    def finish(self) -> None:
        """Make everything durable."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)
