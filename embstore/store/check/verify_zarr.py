"""Verifying a Zarr store: every file is either regenerated and compared, or held against a CRC32C."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.store.arrays import COMMIT_DTYPE, NOT_WRITTEN, ArraySpec, frozen_spec, payload_specs
from embstore.store.check.report import Findings
from embstore.store.check.verify import check_attribute, check_index, check_record
from embstore.store.check.verify_files import StoreFiles, files_of, unreadable
from embstore.store.layout import CHUNK_ROWS, Layout
from embstore.store.metadata import StoredArray
from embstore.store.storage.files import crc32c
from embstore.store.storage.location import ObjectPath
from embstore.store.writer import committed
from embstore.store.zarr.format import (
    FOLDED_FILE,
    NODE,
    TEMPORARY,
    chunk_file,
    commit_file,
    commits_node,
    frozen_nodes,
    shard_file,
)
from embstore.store.zarr.shards import shard_index
from embstore.store.zarr.writer import column_end


def verify_zarr(path: Path | ObjectPath, findings: Findings) -> int:
    """Verify a folder or a store in a bucket; returns how many partitions it has, 0 where that cannot be known."""
    source = files_of(path)
    files = source.sizes()
    findings.total_nbytes = sum(files.values())
    root = _read(source, NODE, findings)
    parsed = check_attribute(_attribute(root), path, findings)
    if parsed is None:
        return 0
    metadata, arrays = parsed
    layout = metadata.layout
    known = {NODE}
    for name, node in frozen_nodes(metadata, arrays).items():
        known.add(name)
        found = root if name == NODE else _read(source, name, findings)
        if found is not None and found != node:
            findings.fault(name, "is not what was written")
    columns = {name: _column(source, name, array, files, known, findings) for name, array in arrays.items()}
    whole = {name: column for name, column in columns.items() if column is not None}
    if len(whole) == len(arrays):
        check_index(whole, metadata, findings)
    records = _check_commits(source, layout, files, known, findings)
    specs = payload_specs(metadata)
    known.update(shard_file(spec, partition) for spec in specs for partition in range(layout.n_partitions))
    _check_shards(source, specs, layout, records, files, findings)
    for name in sorted(set(files) - known):
        findings.fault(name, "does not belong to the store")
    return layout.n_partitions


def _read(source: StoreFiles, name: str, findings: Findings) -> bytes | None:
    try:
        data = source.read(name)
    except OSError as error:
        findings.fault(name, unreadable(error))
        return None
    findings.checked(len(data))
    return data


def _attribute(root: bytes | None) -> Any:
    try:
        return json.loads(root or b"null")["attributes"]["embstore"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _column(
    source: StoreFiles, name: str, array: StoredArray, files: Mapping[str, int], known: set[str], findings: Findings
) -> NDArray[Any] | None:
    """Check the chunk file of a frozen array and return the array, None where it is damaged."""
    spec = frozen_spec(name, array.shape)
    if 0 in array.shape:
        return np.empty(array.shape, spec.dtype)
    file = chunk_file(spec)
    known.add(file)
    if file not in files:
        findings.fault(file, "is missing")
        return None
    nbytes = int(np.prod(array.shape)) * spec.dtype.itemsize
    end = column_end(spec)
    if files[file] != nbytes + len(end):
        findings.fault(file, f"has {files[file]} bytes, not {nbytes + len(end)}")
        return None
    try:
        data = source.flat(file, files[file])
        same = crc32c(data[:nbytes]) == array.crc32c and data[nbytes:].tobytes() == end
    except OSError as error:
        findings.fault(file, unreadable(error))
        return None
    findings.checked(files[file])
    if not same:
        findings.fault(file, "is not what was written: its checksum differs")
        return None
    return data[:nbytes].view(spec.dtype).reshape(spec.shape)


def _check_commits(
    source: StoreFiles, layout: Layout, files: Mapping[str, int], known: set[str], findings: Findings
) -> NDArray[np.uint64]:
    """Return the records [partition, 2] of the form that is valid; what a killed writer left is no fault."""
    name = f"commits/{NODE}"
    singles = [commit_file(partition) for partition in range(layout.n_partitions)]
    known.update({name, FOLDED_FILE, *singles})
    known.update(file for file in files if file.startswith(f"{TEMPORARY}/"))
    node = _read(source, name, findings)
    if node == commits_node(layout.n_partitions, folded=True):
        return _folded(source, layout, files, findings)
    records = np.full((layout.n_partitions, 2), NOT_WRITTEN, COMMIT_DTYPE)
    if node != commits_node(layout.n_partitions, folded=False):
        if node is not None:
            findings.fault(name, "is not what was written")
        return records
    for partition, file in enumerate(singles):
        data = _read(source, file, findings) if file in files else None
        if data is None:
            if file not in files:
                findings.missing.append(partition)
        elif len(data) != records[partition].nbytes:
            findings.fault(file, "is no commit record of 16 bytes", partition=partition)
        else:
            records[partition] = np.frombuffer(data, COMMIT_DTYPE)
            check_record(records[partition], partition, layout, file, findings)
    return records


def _folded(source: StoreFiles, layout: Layout, files: Mapping[str, int], findings: Findings) -> NDArray[np.uint64]:
    records = np.full((layout.n_partitions, 2), NOT_WRITTEN, COMMIT_DTYPE)
    data = _read(source, FOLDED_FILE, findings) if FOLDED_FILE in files else None
    if data is None or len(data) != records.nbytes:
        for partition in range(layout.n_partitions):
            findings.fault(FOLDED_FILE, "is missing or cut short", partition=partition)
        return records
    records[...] = np.frombuffer(data, COMMIT_DTYPE).reshape(-1, 2)
    for partition, record in enumerate(records):
        check_record(record, partition, layout, FOLDED_FILE, findings)
        single = commit_file(partition)  # a fold that was killed leaves the records it came from
        if single in files and _read(source, single, findings) != record.tobytes():
            findings.fault(single, "does not belong to the store")
    return records


def _check_shards(
    source: StoreFiles,
    specs: list[ArraySpec],
    layout: Layout,
    records: NDArray[np.uint64],
    files: Mapping[str, int],
    findings: Findings,
) -> None:
    for partition in np.flatnonzero(committed(records, layout)).tolist():
        crc = 0
        wrong = False
        for name in (shard_file(spec, partition) for spec in specs):
            try:
                if name not in files:
                    raise FileNotFoundError
                crc, size = source.crc32c(name, files[name], crc)
                findings.checked(size)
            except OSError as error:
                what = "is missing" if name not in files else unreadable(error)
                findings.fault(name, what, partition=partition)
                wrong = True
        if not wrong and crc != records[partition, 1]:
            for name, what in _why(source, specs, layout, partition, files):
                findings.fault(name, what, partition=partition)


def _why(
    source: StoreFiles, specs: list[ArraySpec], layout: Layout, partition: int, files: Mapping[str, int]
) -> Iterator[tuple[str, str]]:
    """Say what is wrong with a partition whose bytes are not those committed, as closely as can be told."""
    start, stop = layout.span(partition)
    told = False
    for spec in specs:
        name = shard_file(spec, partition)
        row_nbytes = int(np.prod(spec.shape[2:], dtype=np.int64)) * spec.dtype.itemsize
        written = -(-(stop - start) // CHUNK_ROWS)
        chunks = (spec.shape[0], spec.shard[1] // CHUNK_ROWS)
        end = shard_index(chunks, written, CHUNK_ROWS * row_nbytes)
        size = chunks[0] * written * CHUNK_ROWS * row_nbytes + len(end)
        if files[name] != size:
            told = True
            yield name, f"has {files[name]} bytes, not {size}"
        elif source.tail(name, len(end)) != end:
            told = True
            yield name, "its index is not what was written"
    if not told:
        yield shard_file(specs[0], partition), "its bytes are not those of the commit record"
