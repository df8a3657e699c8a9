"""Reading a Zarr store on any storage: shards are mapped where they are local or cached, else read by ranges."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import EmbstoreError, StoreDamagedError, StoreFormatError, StoreNotFoundError
from embstore.store.arrays import (
    COMMIT_DTYPE,
    ArraySpec,
    Records,
    commits_spec,
    committed,
    frozen_spec,
    no_records,
    payload_specs,
    record_crc32c,
)
from embstore.store.layout import CHUNK_ROWS
from embstore.store.metadata import parse
from embstore.store.reading.mapped import (
    MAX_EXPANSION,
    LibraryRows,
    MappedLayer,
    MappedRows,
    RowSource,
    crc32c_of_rows,
    request,
    runs_of_chunks,
)
from embstore.store.storage.base import Expected, KeyNotFoundError, Storage
from embstore.store.storage.files import REPAIR_HINT, MappedFile, allow_files, crc32c
from embstore.store.storage.local import LocalStorage
from embstore.store.virtual.recomputed import Recomputed
from embstore.store.zarr.format import (
    APPENDED,
    COMMITS_CHUNK,
    NODE,
    array_node,
    column_key,
    index_nbytes,
    parse_index,
    shard_end,
    shard_key,
)
from embstore.store.zarr.remote import RemoteRows

MAX_CHUNK_NBYTES = 2**27  # of chunks that the zarr library decompresses

_PAYLOAD = ("hidden_states", "scale")
_COLUMNS_AT_ONCE = 8  # of about 15 that are read from a bucket


@dataclass(frozen=True)
class Shard:
    """A mapped shard of `n_chunks` [layer, chunk] of `chunk_nbytes` bytes."""

    file: MappedFile
    n_chunks: tuple[int, int]
    chunk_nbytes: int
    sources: dict[int, MappedRows] = field(default_factory=dict)  # of layers that were read

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """The byte at which each inner chunk begins [layer, chunk], -1 for one left out, read from the shard."""
        return parse_index(self.file.bytes, self.n_chunks, self.chunk_nbytes, name=self.file.path)


class ZarrReader:
    """The arrays of a Zarr store. Files are mapped, and columns read, when they are first needed.

    Each one is then known to belong to the store that was opened, or StoreDamagedError says that it was replaced.
    `remote`: reads rows by ranged requests; None where shards are mapped, which is when `rows` should be used. Of a
    virtual store the shards that it does not keep are mapped too, where they are computed again.
    """

    def __init__(self, storage: Storage, *, cache: Path | None = None) -> None:
        self.storage = storage
        self.path = storage.path
        self.cache = storage.cache
        self._is_folder = storage.is_mapped and storage.cache is None
        root = storage.submit(partial(storage.get_versioned, NODE))
        nodes = storage.get_many(f"{name}/{NODE}" for name in (*_PAYLOAD, APPENDED))
        try:
            self._root, self._version = root.result()
        except KeyNotFoundError:
            raise no_root(storage) from None
        self.metadata, self.arrays = parse(root_attribute(self._root, storage), path=str(self.path))
        self.appended = nodes.pop()  # names the stores that were appended
        self._nodes = dict(zip(_PAYLOAD, nodes, strict=True))
        self.specs = {spec.path: spec for spec in payload_specs(self.metadata)}
        others = [name for name in self.specs if name not in _PAYLOAD]
        self._nodes.update(zip(others, storage.get_many(f"{name}/{NODE}" for name in others), strict=True))
        rows = {name: self._chunk_rows_of(spec) for name, spec in self.specs.items()}
        self._chunk_rows = {name: count for name, count in rows.items() if count is not None}
        if not self._is_folder and (len(self._chunk_rows) < len(rows) or (self.cache and self.is_foreign)):
            raise self._rewritten(self.metadata.layout.vectors)
        self._recomputed: Recomputed | None = None
        if self.metadata.virtual:
            if self.is_foreign:
                raise self._rewritten(self.metadata.layout.vectors)
            self._recomputed = Recomputed(self, cache)
            self.cache = self._recomputed.folder
        self.remote: RemoteRows | None = None
        if not storage.is_mapped and self._recomputed is None:
            self.remote = RemoteRows(
                storage, self.metadata.layout, self.specs, self._chunk_rows, require_same=self.require_same
            )
        self._columns: dict[str, NDArray[Any]] = {}
        self._files: list[MappedFile] = []
        self._records: Records | None = None
        self._shards: dict[tuple[str, int, bool], Shard] = {}
        self._layers: dict[tuple[str, int], MappedLayer] = {}
        allow_files(8 * len(self.arrays))
        self._max_shards = max_mapped()
        if self._recomputed is not None:  # a file that is mapped takes space after it has left the cache
            self._max_shards = min(self._max_shards, self._recomputed.max_partitions)
        self._mutex = threading.Lock()

    @cached_property
    def is_foreign(self) -> bool:
        """Whether another tool has rewritten the vectors, so that the checksums of the commits do not apply."""
        return any(self._nodes[name] != array_node(spec) for name, spec in self.specs.items())

    def require_same(self) -> None:
        """Raise StoreDamagedError where another store is now at the path of the one that was opened."""
        if self.storage.version(NODE) == self._version:
            return
        try:
            root, version = self.storage.get_versioned(NODE)
        except KeyNotFoundError:
            root, version = b"", self._version
        if root != self._root:
            raise StoreDamagedError(f"{self.path} was replaced or removed since it was opened: open it again")
        self._version = version

    @contextmanager
    def _of_this_store(self, *, checksum: bool = False) -> Iterator[None]:
        """Check that what is read in the context belongs to the store that was opened; a `checksum` proves it too."""
        try:
            yield
        except (StoreDamagedError, KeyNotFoundError):
            self.require_same()
            raise
        if not checksum:
            self.require_same()

    def commits(self) -> Records:
        """Read the commit records [partition, 2]."""
        with self._of_this_store():
            self._records = read_records(self.storage, self.metadata.n_partitions)
        return self._records.copy()

    def is_tidy(self) -> bool:
        """Return whether no interrupted write has left anything behind."""
        return self.storage.is_tidy()

    def forget(self) -> None:
        """Drop mapped shards and their indexes, since another process may have replaced them."""
        with self._mutex:
            self._shards.clear()
            self._layers.clear()
        if self.remote is not None:
            self.remote.forget()

    def limit_files(self, most: int) -> None:
        """Map at most this many shards at a time."""
        self._max_shards = max(1, most)

    def release_columns(self) -> None:
        """Hold no file of a column open any more; columns that the caller has stay valid."""
        self._columns.clear()
        self._files.clear()

    def require_current(self, *, columns: bool) -> None:
        """Raise StoreDamagedError where a folder was replaced, or the file of a mapped column has become shorter.

        What is read from a bucket has a version or a checksum instead.
        """
        if self._is_folder:
            self.require_same()
        for file in self._files if columns else ():
            file.require_whole()

    def fetch_columns(self, names: Iterable[str]) -> None:
        """Read columns that are not local at the same time, so that `column` returns them at once."""
        if not self._is_folder:
            with ThreadPoolExecutor(_COLUMNS_AT_ONCE, "embstore-columns") as threads:
                list(threads.map(self.column, names))

    def column(self, name: str) -> NDArray[Any]:
        """Return an array that is written once, read-only: mapped, or read into memory and checked."""
        column = self._columns.get(name)
        if column is None:
            with self._of_this_store(checksum=not self._is_folder):
                column = self._open_column(frozen_spec(name, self.arrays))
            self._columns[name] = column
        return column

    def _open_column(self, spec: ArraySpec) -> NDArray[Any]:
        if self._is_folder:
            node = self.storage.get_or_none(f"{spec.path}/{NODE}")
            if node is None:
                raise StoreDamagedError(f"{self.storage.url(f'{spec.path}/{NODE}')} is missing: {REPAIR_HINT}")
            if node != array_node(spec):
                return self._column_by_zarr(spec)
        if 0 in spec.shape:
            return np.empty(spec.shape, spec.dtype)
        key, expected = column_key(spec), self.arrays[spec.path].crc32c
        nbytes = math.prod(spec.shape) * spec.dtype.itemsize
        if self.storage.is_mapped:
            request = Expected(spec.path, (key,), (nbytes,), expected, self.metadata.fingerprint)
            file = MappedFile(self.storage.files(request)[0])
            if len(file.bytes) < nbytes:
                raise StoreDamagedError(f"{file.path} is cut short: {REPAIR_HINT}")
            self._files.append(file)
            return file.bytes[:nbytes].view(spec.dtype).reshape(spec.shape)
        try:
            data = self.storage.read(key, nbytes)
        except KeyNotFoundError as error:
            raise StoreDamagedError(f"{error}, a column of the store: {REPAIR_HINT}") from None
        if crc32c(data) != expected:
            if self.storage.get_or_none(f"{spec.path}/{NODE}") != array_node(spec):
                raise self._rewritten(spec.path)
            raise StoreDamagedError(f"{self.storage.url(key)} was changed, its checksum differs: {REPAIR_HINT}")
        data.flags.writeable = False
        return data.view(spec.dtype).reshape(spec.shape)

    def most_mapped(self, array: str) -> int:
        """Return for how many partitions of an array `layer` may be called, 0 where its shards are not mapped."""
        return self._max_shards if self.remote is None and array in self._chunk_rows else 0

    def layer(self, array: str, position: int, partitions: Sequence[int]) -> tuple[MappedLayer, list[MappedFile]]:
        """Return a layer (by its position) for access to rows of some partitions, and their files.

        Not to be held from one access to the next: when too many shards are mapped, all are released.
        """
        layer = self._layers.get((array, position))
        if layer is None:
            layer = self._layers[array, position] = MappedLayer(self.specs[array], self._chunk_rows[array])
        files = layer.files
        for partition in partitions:
            if partition not in files:
                shard = self._shard(array, partition)
                offsets = shard.offsets[position]
                layer.place(partition * len(offsets), shard.file, offsets)
                files[partition] = shard.file
        return layer, [files[partition] for partition in partitions]

    def rows(self, array: str, position: int, partition: int) -> RowSource:
        """Return the rows of one layer (by its position) of a committed partition, whose shard is mapped."""
        spec, chunk_rows = self.specs[array], self._chunk_rows.get(array)
        start, stop = self.metadata.layout.span(partition)
        if chunk_rows is None:
            return LibraryRows(partial(self._library_array, spec), position, start)
        shard = self._shard(array, partition)
        source = shard.sources.get(position)
        if source is None:
            runs = runs_of_chunks(
                shard.file.bytes,
                shard.offsets[position],
                chunk_rows=chunk_rows,
                n_rows=stop - start,
                dtype=spec.dtype,
                row_shape=spec.shape[2:],
            )
            source = shard.sources[position] = MappedRows(shard.file, runs, spec.fill)
        return source

    def will_need(self, array: str, position: int, partition: int, start: int, stop: int) -> None:
        """Start reading rows of a layer of a shard, and its index, from the disk; returns at once.

        Where the rows are follows from the layout, so that the index need not be waited for.
        """
        if self._is_computed(array, partition):
            return
        if self.is_foreign or self._recomputed is not None:
            self.rows(array, position, partition).will_need(start, stop)
            return
        shard = self._shard(array, partition)
        first, last = self.metadata.layout.span(partition)
        row_nbytes = shard.chunk_nbytes // CHUNK_ROWS
        layer = position * -(-(last - first) // CHUNK_ROWS) * CHUNK_ROWS
        if "offsets" not in vars(shard):
            request(shard.file, shard.file.nbytes - index_nbytes(shard.n_chunks), shard.file.nbytes)
        request(shard.file, (layer + start) * row_nbytes, (layer + stop) * row_nbytes)

    def _is_computed(self, array: str, partition: int) -> bool:
        """Return whether a virtual store does not have a shard, or another of its partition, in its own folder."""
        return self._recomputed is not None and not self.has_shards(
            self.specs[array].first + partition % self.metadata.layout.n_partitions
        )

    def has_shards(self, number: int) -> bool:
        """Return whether all shards of a partition, counted over the store, are there, as files of their size."""
        start, stop = self.metadata.layout.span(number)
        return self._is_folder and all(
            self.storage.size(shard_key(spec, number)) == shard_end(spec, stop - start)[0]
            for spec in payload_specs(self.metadata, number)
        )

    def _shard(self, array: str, partition: int) -> Shard:
        spec = self.specs[array]
        again = self._is_computed(array, partition)
        key = array, partition, again
        if again and key not in self._shards:
            self._shard_file(spec, partition, again=True)  # takes long, and other threads may read meanwhile
        with self._mutex:
            shard = self._shards.get(key)
            if shard is None:
                try:
                    with self._of_this_store(checksum=not self._is_folder):
                        shard = self._open_shard(spec, partition, again=again)
                except StoreDamagedError:
                    if again or not self._is_computed(array, partition):
                        raise
                if shard is None or (not again and self._is_computed(array, partition)):
                    key = array, partition, True  # another process has thinned it meanwhile
                    shard = self._open_shard(spec, partition, again=True)
                if len(self._shards) >= self._max_shards:
                    self._shards.clear()
                    self._layers.clear()
                self._shards[key] = shard
        return shard

    def partition_crc32c(self, partition: int) -> int | None:
        """Return the CRC32C of a partition's bytes, None for objects that another tool has rewritten.

        In a folder, rows that another tool has rewritten count as the bytes that embstore writes for them. Raises
        StoreDamagedError where a shard has another size or index than the layout requires: the CRC32C of bytes
        that end with an index and its own checksum does not depend on the index.
        """
        crc = 0
        start, stop = self.metadata.layout.span(partition)
        if self.is_foreign:
            return self._crc32c_of_values(partition, stop - start) if self._is_folder else None
        if self._recomputed is not None and self.expected_again(partition) is not None:
            return self._recomputed.crc32c(partition)
        for spec in payload_specs(self.metadata, partition):
            storage, key, (nbytes, end) = self.storage, shard_key(spec, partition), shard_end(spec, stop - start)
            if self.storage.cache is not None:  # the local copy is what is read
                file = self._shard_file(spec, partition)
                storage, key = LocalStorage(file.parent), file.name
            size, url = storage.size(key), f"{storage.url(key)} of partition {partition}"
            if size is None:
                raise StoreDamagedError(f"{url} is missing: {REPAIR_HINT}")
            if size != nbytes or storage.get_range(key, nbytes - len(end), nbytes).tobytes() != end:
                raise StoreDamagedError(f"the size or index of {url} was changed: {REPAIR_HINT}")
            crc = storage.crc32c(key, size, crc)
        return crc

    def _crc32c_of_values(self, partition: int, n_rows: int) -> int:
        crc = 0
        for spec in payload_specs(self.metadata, partition):
            padding = np.full((-n_rows % CHUNK_ROWS, *spec.shape[2:]), spec.fill, spec.dtype)
            for layer in range(spec.shape[0]):
                crc = crc32c_of_rows(self.rows(spec.path, layer, partition), n_rows, spec, crc)
                crc = crc32c(padding, crc)
            crc = crc32c(np.frombuffer(shard_end(spec, n_rows)[1], np.uint8), crc)
        return crc

    def _shard_file(self, spec: ArraySpec, partition: int, *, again: bool = False) -> Path:
        """Return the local file of a shard; one checksum covers those of all arrays. `again`: it is computed again."""
        key = shard_key(spec, partition)
        if self._is_folder and not again:
            return Path(str(self.path), key)
        number = spec.first + partition % self.metadata.layout.n_partitions
        expected = self._expected(number)
        files = self._recomputed.files(number) if again and self._recomputed else self.storage.files(expected)
        return files[expected.keys.index(key)]

    def _expected(self, number: int) -> Expected:
        """Return what the shards of a partition, counted over the store, must be by its commit record."""
        records = self.commits() if self._records is None else self._records
        start, stop = self.metadata.layout.span(number)
        specs = payload_specs(self.metadata, number)
        keys = tuple(shard_key(spec, number) for spec in specs)
        sizes, ends = zip(*(shard_end(spec, stop - start) for spec in specs), strict=True)
        crc, version = record_crc32c(records[number]), self.metadata.fingerprint
        return Expected(f"partition {number}", keys, sizes, crc, version, ends)

    def expected_again(self, number: int) -> Expected | None:
        """Return what the shards of a partition must be, None unless it is committed and not complete in the store."""
        records = self.commits() if self._records is None else self._records
        if not committed(records, self.metadata.layout)[number]:
            return None
        return None if self.has_shards(number) else self._expected(number)

    def _open_shard(self, spec: ArraySpec, partition: int, *, again: bool = False) -> Shard:
        file = MappedFile(self._shard_file(spec, partition, again=again), random=True, of=f" of partition {partition}")
        chunk_rows = self._chunk_rows[spec.path]
        row_nbytes = spec.dtype.itemsize * math.prod(spec.shape[2:])
        return Shard(file, (spec.shape[0], spec.shard[1] // chunk_rows), chunk_rows * row_nbytes)

    def _chunk_rows_of(self, spec: ArraySpec) -> int | None:
        """Return the rows of an inner chunk, None where only the zarr library can read the array."""
        node, url = self._nodes[spec.path], self.storage.url(f"{spec.path}/{NODE}")
        if node is None:
            raise StoreDamagedError(f"{url} is missing: {REPAIR_HINT}")
        if node == array_node(spec):
            return spec.chunk[1]
        try:
            return foreign_chunk_rows(json.loads(node), spec)
        except RecursionError:
            raise StoreDamagedError(f"{url} cannot be read (nested too deeply): {REPAIR_HINT}") from None
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise StoreDamagedError(f"{url} cannot be read ({error}): {REPAIR_HINT}") from error

    def _rewritten(self, name: str) -> StoreFormatError:
        return StoreFormatError(
            f"{name} of {self.path} was rewritten by another tool in a form that can only be read from a disk: copy "
            "the store to one"
        )

    def _column_by_zarr(self, spec: ArraySpec) -> NDArray[Any]:
        nbytes = math.prod(spec.shape) * spec.dtype.itemsize
        with self._library_array(spec) as array:
            stored = sum(self.storage.sizes(spec.path).values())
            if nbytes > MAX_EXPANSION * max(stored, 1024):
                raise StoreDamagedError(f"{spec.path} of {self.path} expands {stored:,} bytes to {nbytes:,}")
            return np.asarray(array[...]).astype(spec.dtype, copy=False)

    @contextmanager
    def _library_array(self, spec: ArraySpec) -> Iterator[Any]:
        """Open an array with the zarr library, whose errors, in the context too, become StoreDamagedError."""
        import zarr

        path = Path(str(self.path), spec.path)
        try:
            array = zarr.open_array(str(path), mode="r")
            if array.shape != spec.shape or math.prod(array.chunks) * array.dtype.itemsize > MAX_CHUNK_NBYTES:
                raise ValueError(f"it has the shape {list(array.shape)} in chunks of {list(array.chunks)}")
            yield array
        except EmbstoreError:
            raise
        except Exception as error:
            what = (str(error).splitlines() or [type(error).__name__])[0]
            raise StoreDamagedError(f"the zarr library cannot read {path} ({what}): {REPAIR_HINT}") from error


def max_mapped() -> int:
    """Return how many shards are mapped at a time: each map holds a file open."""
    try:
        import resource
    except ImportError:  # Windows
        return 128
    return max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)


def foreign_chunk_rows(node: dict[str, Any], spec: ArraySpec) -> int | None:
    """Return the rows of an inner chunk where shards written by other tools have a form that can be mapped."""
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
    if min(chunk) < 1:
        raise ValueError(f"chunk_shape {chunk}")
    plain = spec.dtype.itemsize == 1 and inner["codecs"] == [{"name": "bytes"}]
    index_codecs = [{key: codec[key] for key in codec if codec[key] != {}} for codec in inner["index_codecs"]]
    mappable = (
        keys.get("name") == "default"
        and keys.get("configuration", {}).get("separator", "/") == "/"
        and (plain or inner["codecs"] == [little])
        and index_codecs == [little, {"name": "crc32c"}]
        and inner.get("index_location", "end") == "end"
        and chunk[0] == 1
        and shard[1] % chunk[1] == 0
        and tuple(chunk[2:]) == spec.shape[2:]
    )
    return int(chunk[1]) if mappable else None


def no_root(storage: Storage) -> EmbstoreError:
    """Return the error for a location without a root zarr.json."""
    if isinstance(storage.path, Path):
        inside = sorted(store.name for suffix in (".zarr", ".h5") for store in storage.path.glob("*" + suffix))
        better = f"; did you mean {storage.path / inside[0]}?" if inside else ""
        return StoreFormatError(f"{storage.path} is not a Zarr store: it has no {NODE}{better}")
    return StoreNotFoundError(f"there is no store at {storage.path}: embstore extract makes one")


def root_attribute(root: bytes | None, storage: Storage) -> Any:
    """Return the attribute "embstore" of a store's root zarr.json, None where it has none.

    Raises StoreNotFoundError or StoreFormatError without a zarr.json, StoreDamagedError where it is not JSON.
    """
    if root is None:
        raise no_root(storage)
    try:
        node = json.loads(root)
    except (ValueError, RecursionError):
        raise StoreDamagedError(f"{storage.url(NODE)} is not JSON: {REPAIR_HINT}") from None
    attributes = node.get("attributes") if isinstance(node, dict) else None
    return attributes.get("embstore") if isinstance(attributes, dict) else None


def read_records(storage: Storage, n_partitions: int) -> Records:
    """Read the commit records [partition, 2]; where their file is missing or of another size, nothing is committed.

    Raises StoreDamagedError where another tool has rewritten them.
    """
    data = storage.get_or_none(COMMITS_CHUNK)
    records = no_records(n_partitions)
    if data is not None and len(data) == records.nbytes:
        return np.frombuffer(data, COMMIT_DTYPE).reshape(n_partitions, 2).copy()
    spec = commits_spec(n_partitions)
    if storage.get_or_none(f"{spec.path}/{NODE}") != array_node(spec):
        raise StoreDamagedError(f"{storage.url(f'{spec.path}/{NODE}')} was changed: {REPAIR_HINT}")
    return records
