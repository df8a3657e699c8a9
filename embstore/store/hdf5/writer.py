"""Creating and writing an HDF5 store.

The library makes the file's structure, which is complete before the first row and never changes. Rows and commit
records go to their addresses in the file, without the library.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from embstore.store.arrays import (
    COMMIT_DTYPE,
    COMMITS,
    ArraySpec,
    Records,
    commits_spec,
    frozen_specs,
    no_records,
    payload_specs,
    stored_arrays,
)
from embstore.store.hdf5.reader import (
    CHECKSUM,
    attribute_name,
    changing_spans,
    checksum_spec,
    chunk_rows,
    find_addresses,
    frozen_crc32c,
    padding_spans,
    payload_crc32c,
    read_addresses,
    read_span,
    row_spans,
)
from embstore.store.metadata import Metadata, canonical, document
from embstore.store.storage.files import as_bytes, crc32c, opened, write_at

PAGE_NBYTES = 4096  # to which vectors are aligned, for the memory map
MAX_ATTRIBUTE_NBYTES = 60_000  # a header of the oldest format holds 64 KiB
NO_VARIABLE = "This is a netCDF dimension but not a netCDF variable."


def create(path: Path, metadata: Metadata, frozen: Mapping[str, NDArray[Any]]) -> None:
    """Create a store without rows in the new file `path`, which is not durable yet."""
    arrays = stored_arrays(frozen)
    with _new_file(path, [spec for spec in payload_specs(metadata) if len(spec.shape) == 3]) as file:
        _write_attribute(file, canonical(document(metadata, arrays)).decode())
        for spec in frozen_specs(arrays):
            _create(file, spec)
        _create(file, commits_spec(metadata.n_partitions))
        _create(file, checksum_spec())
        for spec in payload_specs(metadata):
            _create(file, spec, chunks=(1, chunk_rows(spec), *spec.shape[2:]))
        _add_scales(file, [*frozen_specs(arrays), commits_spec(metadata.n_partitions), *payload_specs(metadata)])
        addresses = find_addresses(file, metadata, arrays)
    with opened(path, os.O_RDWR) as descriptor:
        for name, array in frozen.items():
            write_at(descriptor, array, addresses.spans[name][0])
        write_at(descriptor, no_records(metadata.n_partitions), addresses.spans[COMMITS][0])
        checksum = frozen_crc32c(descriptor, addresses, metadata)
        write_at(descriptor, checksum.to_bytes(4, "little"), addresses.spans[CHECKSUM][0])


@contextmanager
def _new_file(path: Path, vectors: Sequence[ArraySpec]) -> Iterator[h5py.File]:
    """Create a file through the library; addresses of vectors are multiples of a page and, of one site, of a row."""
    row_nbytes = [spec.shape[2] * spec.dtype.itemsize for spec in vectors]
    file = h5py.File(
        path,
        "x",
        libver=("earliest", "v110"),
        alignment_threshold=chunk_rows(vectors[0]) * min(row_nbytes),
        alignment_interval=math.lcm(PAGE_NBYTES, row_nbytes[0]) if len(vectors) == 1 else PAGE_NBYTES,
        locking=False,
    )
    try:
        yield file
        file.close()
    except RuntimeError as error:  # raised by the library where the system fails as a file is closed
        raise OSError(str(error)) from error
    finally:
        for _ in range(2):  # where the disk is full, only a second close frees its space
            with suppress(Exception):
                file.close()


def _create(file: h5py.File, spec: ArraySpec, *, chunks: tuple[int, ...] | None = None, allocated: bool = True) -> None:
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if chunks:
        creation.set_chunk(chunks)
    else:
        creation.set_layout(h5py.h5d.CONTIGUOUS)
    creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY if allocated else h5py.h5d.ALLOC_TIME_LATE)
    creation.set_fill_value(np.array(spec.fill, spec.dtype))
    creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    creation.set_obj_track_times(False)
    parent, _, name = spec.path.rpartition("/")
    group = file.require_group(parent) if parent else file
    space = h5py.h5s.create_simple(spec.shape)
    kind = h5py.h5t.py_create(spec.dtype)
    dataset = h5py.Dataset(h5py.h5d.create(group.id, name.encode(), kind, space, creation))
    for axis, label in enumerate(spec.dims):
        dataset.dims[axis].label = label
    for key, value in spec.attributes.items():
        dataset.attrs[key] = value


def _add_scales(file: h5py.File, specs: Sequence[ArraySpec]) -> None:
    """Attach dimension scales, by which h5py, netCDF and xarray know that arrays share a dimension, and its name."""
    # A scale is the array of this name in the group (`layer`), else an empty dataset, as netCDF marks one without
    # values. All attributes are written once, for the library leaves gaps where it extends them.
    arrays = {spec.path for spec in specs}
    used: dict[str, list[tuple[h5py.Reference, int]]] = {}
    for spec in specs:
        group = spec.path.rpartition("/")[0]
        paths = [name if name in ("occurrence", "block") else f"{group}/{name}".lstrip("/") for name in spec.dims]
        for axis, (path, size) in enumerate(zip(paths, spec.shape, strict=True)):
            if path not in file:
                _create(file, ArraySpec(path, (size,), np.dtype(">f4"), (), 0, (), (), {}), allocated=False)
            used.setdefault(path, [])
            if path != spec.path:
                used[path].append((file[spec.path].ref, axis))
        if spec.path not in paths:
            scales = np.empty(len(paths), object)
            scales[:] = [np.array([file[path].ref], h5py.ref_dtype) for path in paths]
            file[spec.path].attrs.create("DIMENSION_LIST", scales, dtype=h5py.vlen_dtype(h5py.ref_dtype))
    for path, references in used.items():
        scale = file[path]
        scale.make_scale(path if path in arrays else f"{NO_VARIABLE}{len(scale):10d}")
        kind = np.dtype([("dataset", h5py.ref_dtype), ("dimension", "<i4")])
        scale.attrs.create("REFERENCE_LIST", np.array(references, kind))


def _write_attribute(file: h5py.File, text: str) -> None:
    """Store the metadata in the root's header, in strings of fixed length: long ones in several attributes."""
    size = len(text) if len(text.encode()) <= MAX_ATTRIBUTE_NBYTES else MAX_ATTRIBUTE_NBYTES // 4  # bytes a character
    for number, start in enumerate(range(0, len(text), size)):
        part = text[start : start + size].encode()
        file.attrs.create(attribute_name(number), part, dtype=h5py.string_dtype("utf-8", len(part)))


class HDF5Writer:
    """The parts of an HDF5 store that change: rows and commit records."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata, _, self._addresses = read_addresses(path)
        self._descriptor = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))

    def write(self, partition: int, arrays: Mapping[str, NDArray[Any]]) -> int:
        """Write the rows of a partition, durably, and return the CRC32C of their bytes in C order."""
        crc = 0
        start, stop = self.metadata.layout.span(partition)
        for spec in payload_specs(self.metadata, partition):
            for layer, rows in enumerate(arrays[spec.path]):
                data = as_bytes(rows)
                for first, last in row_spans(self._addresses, spec, layer, start, stop):
                    write_at(self._descriptor, data[: last - first], first)
                    data = data[last - first :]
                crc = crc32c(rows, crc)
            if stop == self.metadata.n_rows:
                for first, last in padding_spans(self._addresses, spec):
                    write_at(self._descriptor, bytes(last - first), first)
        self._sync()
        return crc

    def recover(self) -> None:
        """Begin committing; an interrupted write leaves nothing that must be removed."""

    def commits(self) -> Records:
        """Return the commit records [partition, 2]."""
        records = read_span(self._descriptor, *self._addresses.spans[COMMITS])
        return records.view(COMMIT_DTYPE).reshape(self.metadata.n_partitions, 2)

    def commit(self, partition: int, record: Records) -> None:
        """Record in place that a partition is written."""
        self._put_record(partition, record)
        self._sync()

    def is_intact(self, partition: int, crc: int) -> bool:
        """Return whether the rows of a partition have this CRC32C, and nothing but zeros follows the last row."""
        layout, specs = self.metadata.layout, payload_specs(self.metadata, partition)
        if layout.span(partition)[1] == self.metadata.n_rows:
            spans = [span for spec in specs for span in padding_spans(self._addresses, spec)]
            if any(read_span(self._descriptor, *span).any() for span in spans):
                return False
        return payload_crc32c(self._descriptor, self._addresses, specs, layout, partition)[0] == crc

    def discard(self, partitions: Iterable[int]) -> None:
        """Erase the records of partitions, durably; their rows stay until they are overwritten."""
        self.erase(partitions)
        self._sync()

    def erase(self, partitions: Iterable[int]) -> None:
        """Erase the records of partitions, in a file that is not durable yet."""
        for partition in partitions:
            self._put_record(partition, no_records(1)[0])

    def flush(self) -> None:
        """Does nothing: records are written at once."""

    def finish(self) -> None:
        """Does nothing: rows and records are durable already."""

    def close(self) -> None:
        os.close(self._descriptor)

    def _put_record(self, partition: int, record: Records) -> None:
        data = record.astype(COMMIT_DTYPE)
        write_at(self._descriptor, data, self._addresses.spans[COMMITS][0] + partition * data.nbytes)

    def _sync(self) -> None:
        os.fsync(self._descriptor)


def copy_rows(old: Path, new: Path, center: NDArray[np.float32] | None) -> None:
    """Copy rows and commit records from a damaged file into a new one without rows; not durable yet.

    The same layout gives the same addresses, so those of the new file apply to the old one, which the library may not
    be able to open. Nothing is copied where the old file has another `center`, to which its int8 codes are relative.
    """
    metadata, _, addresses = read_addresses(new)
    with opened(old) as source, opened(new, os.O_RDWR) as target:
        if center is not None and read_span(source, *addresses.spans["center"]).tobytes() != center.tobytes():
            return
        for start, stop in changing_spans(addresses, metadata).tolist():
            if (start, stop) != addresses.spans[CHECKSUM]:
                write_at(target, read_span(source, start, stop), start)
