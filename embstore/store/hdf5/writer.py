"""Writing an HDF5 store: rows and commits go to their places in the file, past the HDF5 library."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import StoreFormatError
from embstore.store.arrays import COMMIT_DTYPE, COMMITS, NOT_WRITTEN, payload_specs
from embstore.store.hdf5.offsets import padding_spans, place_rows
from embstore.store.hdf5.reader import read_places
from embstore.store.storage.files import crc32c, write_all


class HDF5Writer:
    """The changing parts of an HDF5 store: rows and commits. One a store, under its lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata, _, self._places = read_places(path)
        self.partitions = self.metadata.layout.n_partitions
        self._specs = payload_specs(self.metadata)
        chunks = self._places.chunks
        if any(spec.path not in chunks or (chunks[spec.path] < 0).any() for spec in self._specs):
            raise StoreFormatError(f"{path} was stored anew by another tool and can be read, but not written")
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def commits(self) -> NDArray[np.uint64]:
        start, stop = self._places.spans[COMMITS]
        records = os.pread(self._descriptor, stop - start, start)
        return np.frombuffer(records, COMMIT_DTYPE).reshape(self.partitions, 2).copy()

    def write(self, partition: int, arrays: Mapping[str, NDArray[Any]]) -> int:
        """Write the rows of a partition, lasting, and return the CRC32C of their bytes in C order."""
        crc = 0
        start, stop = self.metadata.layout.span(partition)
        for spec in self._specs:
            for layer, rows in enumerate(arrays[spec.path]):
                offsets, step = place_rows(self._places, spec, layer, start, stop)
                for number, offset in enumerate(offsets.tolist()):
                    write_all(self._descriptor, rows[number * step : (number + 1) * step], offset)
                crc = crc32c(rows, crc)
            if stop == self.metadata.n_rows:
                for first, last in padding_spans(self._places, spec):
                    write_all(self._descriptor, b"\0" * (last - first), first)
        os.fsync(self._descriptor)
        return crc

    def commit(self, partition: int, record: NDArray[np.uint64]) -> None:
        data = record.astype(COMMIT_DTYPE).tobytes()
        write_all(self._descriptor, data, self._places.spans[COMMITS][0] + partition * len(data))
        os.fsync(self._descriptor)

    def discard(self, partitions: Iterable[int]) -> None:
        """Drop the records of partitions; their rows stay until they are written again."""
        for partition in partitions:
            self.commit(partition, np.full(2, NOT_WRITTEN, np.uint64))

    def fold(self) -> None:
        """The commits are one piece from the start."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)
