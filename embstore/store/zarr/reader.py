"""Reading a Zarr store: its own files are mapped; what other writers laid out otherwise is read by zarr."""

from __future__ import annotations

import json
import mmap
import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import StoreDamagedError, StoreFormatError
from embstore.store.arrays import (
    COMMIT_DTYPE,
    NOT_WRITTEN,
    ArraySpec,
    frozen_spec,
    payload_specs,
)
from embstore.store.metadata import parse
from embstore.store.reading.mapped import MappedRows, Read, RowSource, TakeSource, runs_of_chunks
from embstore.store.storage.files import MEND, map_file, reading
from embstore.store.zarr.format import (
    COMMITS_FOLDER,
    FOLDED_FILE,
    NODE,
    TEMPORARY,
    array_node,
    chunk_file,
    commits_node,
    shard_file,
)
from embstore.store.zarr.shards import parse_index


class ZarrReader:
    """The arrays of a Zarr store; files are mapped when they are first needed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata, self.arrays = parse(read_root_attribute(path), path=str(path))
        self._specs = {spec.path: spec for spec in payload_specs(self.metadata)}
        self._chunk_rows = {name: self._chunk_rows_of(spec) for name, spec in self._specs.items()}
        self._shards: OrderedDict[tuple[str, int], list[RowSource]] = OrderedDict()
        self._most_shards = most_mapped()
        self._mutex = threading.Lock()

    def commits(self) -> NDArray[np.uint64]:
        return read_commits(self.path, self.metadata.layout.n_partitions)

    def settled(self) -> bool:
        """Whether the commits are folded and nothing temporary is left."""
        folded = self._node("commits") == commits_node(self.metadata.layout.n_partitions, folded=True)
        return folded and not any((self.path / name).exists() for name in (TEMPORARY, COMMITS_FOLDER))

    def forget(self) -> None:
        """Let go of the mapped shards, since another process may have replaced them."""
        with self._mutex:
            self._shards.clear()

    def column(self, name: str) -> NDArray[Any]:
        """Map a frozen array, read-only."""
        spec = frozen_spec(name, self.arrays[name].shape)
        if self._node(name) != array_node(spec):
            return self._column_by_zarr(spec)
        if 0 in spec.shape:
            return np.empty(spec.shape, spec.dtype)
        file = self.path / chunk_file(spec)
        with reading(file):
            mapped = map_file(file)
        count = int(np.prod(spec.shape))
        if mapped is None or len(mapped) < count * spec.dtype.itemsize:
            raise StoreDamagedError(f"{file} is cut short: {MEND}")
        return np.frombuffer(mapped, spec.dtype, count).reshape(spec.shape)

    def layer(self, array: str, layer: int) -> TakeSource | None:
        """Return the rows of all partitions at once, where they stand in one file; None elsewhere."""
        return self.rows(array, layer, 0) if self.metadata.layout.n_partitions == 1 else None

    def rows(self, array: str, layer: int, partition: int) -> RowSource:
        """Return the rows of stored layer number `layer` (counted from 0) of a committed partition."""
        key = (array, partition)
        with self._mutex:
            sources = self._shards.get(key)
            if sources is None:
                sources = self._shards[key] = self._open_shard(self._specs[array], partition)
                if len(self._shards) > self._most_shards:
                    self._shards.popitem(last=False)
            else:
                self._shards.move_to_end(key)
        return sources[layer]

    def _open_shard(self, spec: ArraySpec, partition: int) -> list[RowSource]:
        start, stop = self.metadata.layout.span(partition)
        layers = range(spec.shape[0])
        chunk_rows = self._chunk_rows[spec.path]
        if chunk_rows is None:
            return [ZarrRows(self.path / spec.path, layer, start) for layer in layers]
        file = self.path / shard_file(spec, partition)
        return map_shard(file, spec, chunk_rows=chunk_rows, rows=stop - start, partition=partition)

    def _node(self, name: str) -> bytes:
        return _read(self.path / name / NODE)

    def _chunk_rows_of(self, spec: ArraySpec) -> int | None:
        """The rows of an inner chunk, None where the array cannot be mapped."""
        node = self._node(spec.path)
        if node == array_node(spec):
            return spec.chunk[1]
        try:
            return foreign_chunk_rows(json.loads(node), spec)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise StoreDamagedError(f"{self.path / spec.path / NODE} cannot be read ({error}): {MEND}") from error

    def _column_by_zarr(self, spec: ArraySpec) -> NDArray[Any]:
        array = np.asarray(_zarr_array(self.path / spec.path)[...])
        if array.shape != spec.shape:
            raise StoreDamagedError(f"{spec.path} of {self.path} has the shape {list(array.shape)}: {MEND}")
        return array.astype(spec.dtype, copy=False)


def map_shard(file: Path, spec: ArraySpec, *, chunk_rows: int, rows: int, partition: int) -> list[RowSource]:
    """Map the shard of a partition of `rows` rows and return the rows of each layer."""
    with reading(file, f" of partition {partition}"):
        mapped = map_file(file, advice=mmap.MADV_RANDOM)
    if mapped is None:
        raise StoreDamagedError(f"{file} of partition {partition} is empty: {MEND}")
    data = np.frombuffer(mapped, np.uint8)
    row_shape = spec.shape[2:]
    row_nbytes = spec.dtype.itemsize * int(np.prod(row_shape, dtype=np.int64))
    chunks = (spec.shape[0], spec.shard[1] // chunk_rows)
    offsets = parse_index(data, chunks, chunk_rows * row_nbytes, name=str(file))
    return [
        MappedRows(
            str(file),
            mapped,
            runs_of_chunks(
                data,
                offsets[layer],
                chunk_rows=chunk_rows,
                n_rows=rows,
                dtype=spec.dtype,
                row_shape=row_shape,
                fill=spec.fill,
            ),
        )
        for layer in range(spec.shape[0])
    ]


def most_mapped() -> int:
    """How many shards are mapped at a time: a map holds a file open."""
    return max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)


class ZarrRows:
    """A RowSource through the zarr library, for shards that cannot be mapped; `start` is the partition's."""

    def __init__(self, path: Path, layer: int, start: int) -> None:
        self._array = _zarr_array(path)
        self._layer = layer
        self._start = start

    def take(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        distinct, places = np.unique(rows, return_inverse=True)
        found = np.asarray(self._array.oindex[(self._layer, distinct + self._start)])
        out[...] = found.reshape(len(distinct), *out.shape[1:])[places]

    def prefetch(self, rows: NDArray[np.int64]) -> None:
        pass

    @contextmanager
    def reading(self) -> Iterator[Read]:
        yield self._read

    def _read(self, start: int, stop: int, out: NDArray[Any]) -> None:
        out[...] = self._array[self._layer, self._start + start : self._start + stop]


def _zarr_array(path: Path) -> Any:
    import zarr

    try:
        return zarr.open_array(str(path), mode="r")
    except Exception as error:
        raise StoreDamagedError(f"{path} cannot be opened by zarr ({str(error).splitlines()[0]}): {MEND}") from error


def foreign_chunk_rows(node: dict[str, Any], spec: ArraySpec) -> int | None:
    """Return the rows of an inner chunk where shards written by others have a form that can be mapped."""
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    if tuple(node["shape"]) != spec.shape or node["data_type"] != spec.dtype.name:
        raise ValueError(f"shape {node['shape']} of {node['data_type']}")
    keys = node.get("chunk_key_encoding", {})
    shard = node["chunk_grid"]["configuration"]["chunk_shape"]
    codecs = node["codecs"]
    if len(codecs) != 1 or codecs[0]["name"] != "sharding_indexed" or tuple(shard) != spec.shard:
        return None
    inner = codecs[0]["configuration"]
    chunk = inner["chunk_shape"]
    plain = spec.dtype.itemsize == 1 and inner["codecs"] == [{"name": "bytes"}]
    index_codecs = [{key: codec[key] for key in codec if codec[key] != {}} for codec in inner["index_codecs"]]
    mappable = (
        keys.get("name") == "default"
        and keys.get("configuration", {}).get("separator", "/") == "/"
        and (plain or inner["codecs"] == [little])
        and index_codecs == [little, {"name": "crc32c"}]
        and inner.get("index_location", "end") == "end"
        and chunk[0] == 1
        and tuple(chunk[2:]) == spec.shape[2:]
    )
    return int(chunk[1]) if mappable else None


def read_root_attribute(path: Path) -> Any:
    """Return the attribute "embstore" of a Zarr group. Raises StoreFormatError where there is no such group."""
    node = path / NODE
    if path.is_dir() and os.access(path, os.X_OK) and not node.exists():
        raise StoreFormatError(f"{path} is not a Zarr store: it has no {NODE}")
    try:
        root = json.loads(_read(node))
    except (ValueError, RecursionError):
        raise StoreDamagedError(f"{node} is not JSON: {MEND}") from None
    attributes = root.get("attributes") if isinstance(root, dict) else None
    return attributes.get("embstore") if isinstance(attributes, dict) else None


def read_commits(path: Path, partitions: int) -> NDArray[np.uint64]:
    """Return the commit records [partition, 2] in whichever form they are; one cut short counts as not written."""
    node = _read(path / "commits" / NODE)
    while True:
        if node == commits_node(partitions, folded=True):
            records = _folded_commits(path, partitions)
        elif node == commits_node(partitions, folded=False):
            records = _single_commits(path, partitions)
        else:
            raise StoreDamagedError(f"{path}/commits/{NODE} is not what was written: {MEND}")
        before, node = node, _read(path / "commits" / NODE)
        if node == before:  # else a writer changed the form as we read
            return records


def _folded_commits(path: Path, partitions: int) -> NDArray[np.uint64]:
    records = np.full((partitions, 2), NOT_WRITTEN, COMMIT_DTYPE)
    data = _read_or_none(path / FOLDED_FILE)
    if data is not None and len(data) == records.nbytes:
        records[...] = np.frombuffer(data, COMMIT_DTYPE).reshape(partitions, 2)
    return records


def _single_commits(path: Path, partitions: int) -> NDArray[np.uint64]:
    """Read the records that are there: one listing, and not a file opened for a partition without one."""
    records = np.full((partitions, 2), NOT_WRITTEN, COMMIT_DTYPE)
    folder = path / COMMITS_FOLDER
    for partition in _numbered(folder, partitions):
        data = _small_file(f"{folder}/{partition}/0", most=records[partition].nbytes + 1)
        if data is not None and len(data) == records[partition].nbytes:
            records[partition] = np.frombuffer(data, COMMIT_DTYPE)
    return records


def _numbered(folder: Path, count: int) -> list[int]:
    """The numbers below `count` that stand as names in a folder, ascending."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    numbers = {int(name) for name in names if name.isascii() and name.isdecimal() and name == str(int(name))}
    return sorted(number for number in numbers if number < count)


def _small_file(name: str, *, most: int) -> bytes | None:
    """The first bytes of a file, None where it is not there; a store of many partitions reads as many of these."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return os.read(descriptor, most)
    finally:
        os.close(descriptor)


def _read_or_none(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _read(path: Path) -> bytes:
    with reading(path):
        return path.read_bytes()
