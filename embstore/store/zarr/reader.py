"""Reading a Zarr store on any storage: shards are mapped where they are local or cached, else read by ranges."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
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
from embstore.store.metadata import parse
from embstore.store.reading.mapped import MappedLayer, request
from embstore.store.storage.base import KeyNotFoundError, Storage
from embstore.store.storage.cache import Expected
from embstore.store.storage.files import REPAIR_HINT, MappedFile, allow_files, crc32c
from embstore.store.virtual.recomputed import Recomputed
from embstore.store.zarr.format import COMMITS_CHUNK, NODE, ShardShape, array_node, column_key, shard_key, shard_shape
from embstore.store.zarr.remote import RemoteRows
from embstore.store.zarr.rewritten import MAX_DECODED, decode

_PAYLOAD = ("hidden_states", "scale")
_COLUMNS_AT_ONCE = 8  # of about 15 that are read from a bucket


@dataclass(frozen=True)
class Shard:
    """A mapped shard."""

    file: MappedFile
    shape: ShardShape

    @cached_property
    def is_whole(self) -> bool:
        """Whether its size and index are those of the layout; the file is read for it, once."""
        shape, file = self.shape, self.file
        return file.nbytes == shape.nbytes and file.bytes[-shape.end_nbytes :].tobytes() == shape.end


class ZarrReader:
    """The arrays of a Zarr store. Files are mapped, and columns read, when they are first needed.

    Each one is then known to belong to the store that was opened, or StoreDamagedError says that it was replaced.
    `remote`: reads rows by ranged requests; None where shards are mapped. `recomputed`: the shards that a virtual store
    does not keep, which are mapped where they are computed again; None for other stores.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.path = storage.path
        self._is_folder = storage.is_in_place
        root = storage.submit(partial(storage.get_versioned, NODE))
        nodes = storage.get_many(f"{name}/{NODE}" for name in _PAYLOAD)
        try:
            self._root, self._version = root.result()
        except KeyNotFoundError:
            raise no_root(storage) from None
        self.metadata, self.arrays = parse(root_attribute(self._root, storage), path=str(self.path))
        stored = dict(zip(_PAYLOAD, nodes, strict=True))
        self.specs = {spec.path: spec for spec in payload_specs(self.metadata)}
        others = [name for name in self.specs if name not in _PAYLOAD]
        stored.update(zip(others, storage.get_many(f"{name}/{NODE}" for name in others), strict=True))
        self._rewritten: set[str] = set()  # arrays whose rows the Zarr library reads
        for name, spec in self.specs.items():
            if self._is_folder and stored[name] not in (None, array_node(spec)):
                self._rewritten.add(name)
            elif not self._is_folder or stored[name] is None:
                self._require_node(spec, stored[name])
        self.recomputed = Recomputed(self) if self.metadata.virtual else None
        self.remote: RemoteRows | None = None
        if not self._is_folder and self.recomputed is None:
            self.remote = RemoteRows(storage, self.metadata.layout, self.specs, require_same=self.require_same)
        self._columns: dict[str, NDArray[Any]] = {}
        self._files: list[MappedFile] = []
        self._records: Records | None = None
        self._shards: dict[tuple[str, int, bool], Shard] = {}
        self.mapped_layers: dict[tuple[str, int], MappedLayer] = {}
        allow_files(8 * len(self.arrays))
        self.max_mapped = max_mapped()  # shards at a time
        if self.recomputed is not None:  # a file that is mapped takes space after it has left the cache
            self.max_mapped = min(self.max_mapped, self.recomputed.max_partitions)
        if self._rewritten:
            self.max_mapped = MAX_DECODED
        self._mutex = threading.Lock()

    def _require_node(self, spec: ArraySpec, node: bytes | None) -> None:
        """Raise StoreDamagedError where the zarr.json of an array is not the one that embstore writes."""
        url = self.storage.url(f"{spec.path}/{NODE}")
        if node != array_node(spec):
            what = "is missing" if node is None else "was changed, or another tool has rewritten the array"
            raise StoreDamagedError(f"{url} {what}: {REPAIR_HINT}")

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
            self.mapped_layers.clear()
        if self.remote is not None:
            self.remote.forget()

    def release_columns(self) -> None:
        """Hold no file of a column open any more; columns that the caller has stay valid."""
        self._columns.clear()
        self._files.clear()

    def require_current(self, *, columns: bool) -> None:
        """Raise StoreDamagedError where a folder was replaced, or the file of a mapped column has become shorter."""
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
        key, expected = column_key(spec), self.arrays[spec.path].crc32c
        nbytes = math.prod(spec.shape) * spec.dtype.itemsize
        if self._is_folder:
            self._require_node(spec, self.storage.get_or_none(f"{spec.path}/{NODE}"))
        if not nbytes:
            return np.empty(spec.shape, spec.dtype)
        if self._is_folder:
            file = MappedFile(Path(str(self.path), key))
            if file.nbytes < nbytes:
                raise StoreDamagedError(f"{file.path} is cut short: {REPAIR_HINT}")
            self._files.append(file)
            return file.bytes[:nbytes].view(spec.dtype).reshape(spec.shape)
        try:
            data = self.storage.read(key, nbytes)
        except KeyNotFoundError as error:
            raise StoreDamagedError(f"{error}, a column of the store: {REPAIR_HINT}") from None
        if crc32c(data) != expected:
            self._require_node(spec, self.storage.get_or_none(f"{spec.path}/{NODE}"))
            raise StoreDamagedError(f"{self.storage.url(key)} was changed, its checksum differs: {REPAIR_HINT}")
        data.flags.writeable = False
        return data.view(spec.dtype).reshape(spec.shape)

    def layer(self, array: str, position: int, partitions: Sequence[int]) -> tuple[MappedLayer, list[MappedFile]]:
        """Return a layer (by its position) for access to rows of at most `max_mapped` partitions, and their files.

        Not to be held from one access to the next: when too many shards are mapped, all are released.
        """
        layer = self.mapped_layers.get((array, position))
        if layer is None:  # the rows of a layer follow each other in a shard
            spec = self.specs[array]
            layer = self.mapped_layers[array, position] = MappedLayer(spec, self.metadata.partition_rows)
        files = layer.files
        for partition in partitions:
            if partition not in files:
                shard = self._shard(array, partition)
                if not shard.is_whole:
                    shard = self._decoded(array, partition)
                layer.place(partition, shard.file, np.array([position * shard.shape.layer_nbytes]))
                files[partition] = shard.file
        return layer, [files[partition] for partition in partitions]

    def will_need(self, array: str, position: int, partition: int, start: int, stop: int) -> None:
        """Start reading rows of a layer of a shard, counted from its first, and its index from the disk."""
        if self._is_computed(array, partition):
            return
        shard = self._shard(array, partition)
        row_nbytes = self.specs[array].row_nbytes
        if "is_whole" not in vars(shard):
            request(shard.file, shard.file.nbytes - shard.shape.end_nbytes, shard.file.nbytes)
        first = position * shard.shape.layer_nbytes
        request(shard.file, first + start * row_nbytes, first + stop * row_nbytes)

    def _is_computed(self, array: str, partition: int) -> bool:
        """Return whether a virtual store does not have a shard, or another of its partition, in its own folder."""
        return self.recomputed is not None and not self.has_shards(
            self.specs[array].first + partition % self.metadata.layout.n_partitions
        )

    def has_shards(self, number: int) -> bool:
        """Return whether all shards of a partition, counted over the store, are there, as files of their size."""
        start, stop = self.metadata.layout.span(number)
        return self._is_folder and all(
            self.storage.size(shard_key(spec, number)) == shard_shape(spec, stop - start).nbytes
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
                if len(self._shards) >= self.max_mapped:
                    self._shards.clear()
                    self.mapped_layers.clear()
                self._shards[key] = shard
        return shard

    def _shard_file(self, spec: ArraySpec, partition: int, *, again: bool) -> Path:
        """Return the local file of a shard. `again`: it is computed again."""
        key = shard_key(spec, partition)
        if not again or self.recomputed is None:
            return Path(str(self.path), key)
        number = spec.first + partition % self.metadata.layout.n_partitions
        return self.recomputed.files(number)[self._expected(number).keys.index(key)]

    def _open_shard(self, spec: ArraySpec, partition: int, *, again: bool) -> Shard:
        if spec.path in self._rewritten:
            return self._decoded(spec.path, partition)
        start, stop = self.metadata.layout.span(partition)
        shape, path = shard_shape(spec, stop - start), self._shard_file(spec, partition, again=again)
        nbytes = shape.nbytes if again else None
        is_held = 2 * self.metadata.n_partitions <= self.max_mapped  # no more descriptors in all
        of = f" of partition {partition}"
        return Shard(MappedFile(path, random=True, nbytes=nbytes, of=of, is_held=is_held), shape)

    def _decoded(self, array: str, partition: int) -> Shard:
        """Return a shard whose bytes are not those that embstore writes, once its values are those of its record."""
        spec, records = self.specs[array], self.commits() if self._records is None else self._records
        shard = self._decode(spec, partition)
        number = spec.first + partition % self.metadata.layout.n_partitions
        if self.partition_crc32c(number) != record_crc32c(records[number]):
            raise StoreDamagedError(
                f"the size or index of {shard_key(spec, partition)} of {self.path} was changed: {REPAIR_HINT}"
            )
        self.max_mapped = MAX_DECODED
        self._shards[array, partition, False] = shard
        return shard

    def _decode(self, spec: ArraySpec, partition: int) -> Shard:
        start, stop = self.metadata.layout.span(partition)
        shape = shard_shape(spec, stop - start)
        shard = Shard(decode(Path(str(self.path)), spec, (start, stop), shape), shape)
        vars(shard)["is_whole"] = True
        return shard

    def partition_crc32c(self, partition: int) -> int | None:
        """Return the CRC32C of a partition's bytes, None for rows that are computed again with other last bits.

        Raises StoreDamagedError where a shard has another size or index than the layout requires: the CRC32C of bytes
        that end with an index and its own checksum does not depend on the index.
        """
        crc = 0
        start, stop = self.metadata.layout.span(partition)
        if self.recomputed is not None and self.expected_again(partition) is not None:
            return self.recomputed.crc32c(partition)
        for spec in payload_specs(self.metadata, partition):
            key, shape = shard_key(spec, partition), shard_shape(spec, stop - start)
            fault = shape.fault(self.storage, key)
            if fault and self._is_folder:
                crc = crc32c(shape.end, crc32c(self._decode(spec, partition).file.bytes, crc))
            elif fault:
                raise StoreDamagedError(f"{self.storage.url(key)} of partition {partition} {fault}: {REPAIR_HINT}")
            else:
                crc = self.storage.crc32c(key, shape.nbytes, crc)
        return crc

    def _expected(self, number: int) -> Expected:
        """Return what the shards of a partition, counted over the store, must be by its commit record."""
        records = self.commits() if self._records is None else self._records
        start, stop = self.metadata.layout.span(number)
        specs = payload_specs(self.metadata, number)
        keys = tuple(shard_key(spec, number) for spec in specs)
        sizes = tuple(shard_shape(spec, stop - start).nbytes for spec in specs)
        return Expected(keys, sizes, record_crc32c(records[number]), self.metadata.fingerprint)

    def expected_again(self, number: int) -> Expected | None:
        """Return what the shards of a partition must be, None unless it is committed and not complete in the store."""
        records = self.commits() if self._records is None else self._records
        if not committed(records, self.metadata.layout)[number]:
            return None
        return None if self.has_shards(number) else self._expected(number)


def max_mapped() -> int:
    """Return how many shards are mapped at a time: each map holds a file open."""
    try:
        import resource
    except ImportError:  # Windows
        return 128
    return max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)


def no_root(storage: Storage) -> EmbstoreError:
    """Return the error for a location without a root zarr.json."""
    if isinstance(storage.path, Path):
        inside = sorted(store.name for suffix in (".zarr", ".h5") for store in storage.path.glob("*" + suffix))
        better = f"; did you mean {storage.path / inside[0]}?" if inside else ""
        if storage.path.suffix != ".zarr":
            better = better or ": give NAME.zarr or NAME.h5"
            return StoreNotFoundError(f"{storage.path} is a folder, not a store{better}")
        return StoreFormatError(f"{storage.path} is not a Zarr store: it has no {NODE}{better}")
    return StoreNotFoundError(f"there is no store at {storage.path}: embstore extract makes one")


def root_attribute(root: bytes | None, storage: Storage) -> Any:
    """Return the attribute "embstore" of a store's root zarr.json, None where it has none."""
    if root is None:
        raise no_root(storage)
    try:
        node = json.loads(root)
    except (ValueError, RecursionError):
        raise StoreDamagedError(f"{storage.url(NODE)} is not JSON: {REPAIR_HINT}") from None
    attributes = node.get("attributes") if isinstance(node, dict) else None
    return attributes.get("embstore") if isinstance(attributes, dict) else None


def read_records(storage: Storage, n_partitions: int) -> Records:
    """Read the commit records [partition, 2]; where their file is missing or of another size, nothing is committed."""
    data = storage.get_or_none(COMMITS_CHUNK)
    records = no_records(n_partitions)
    if data is not None and len(data) == records.nbytes:
        return np.frombuffer(data, COMMIT_DTYPE).reshape(n_partitions, 2).copy()
    spec = commits_spec(n_partitions)
    if storage.get_or_none(f"{spec.path}/{NODE}") != array_node(spec):
        raise StoreDamagedError(f"{storage.url(f'{spec.path}/{NODE}')} was changed: {REPAIR_HINT}")
    return records
