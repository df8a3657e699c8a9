"""Reading a Zarr store in a bucket: rows by ranged requests, those near each other by one, all of them at once."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore.errors import StoreDamagedError, StoreFormatError, StoreNotFoundError
from embstore.store.arrays import ArraySpec, frozen_spec, payload_specs
from embstore.store.metadata import parse
from embstore.store.reading.mapped import Read
from embstore.store.storage.files import MEND, Bytes, crc32c
from embstore.store.storage.object_client import setting
from embstore.store.storage.objects import NoSuchObjectError, ObjectPath, Objects
from embstore.store.zarr.format import (
    COMMITS_FOLDER,
    NODE,
    TEMPORARY,
    array_node,
    chunk_file,
    shard_file,
)
from embstore.store.zarr.object_commits import is_folded, read_commits
from embstore.store.zarr.object_scan import ReadAhead
from embstore.store.zarr.reader import foreign_chunk_rows
from embstore.store.zarr.remote_rows import Part, end_all
from embstore.store.zarr.shards import index_nbytes, parse_index

GAP_KIB = 128  # reading so much that nobody asked for costs less than another request
RUN_NBYTES = 4 * 2**20  # longer runs are cut, so that the parts come side by side
MOST_SHARDS = 2**16  # indexes kept, a few KiB each


class RemoteStore:
    """What every reader of a store in a bucket has: the metadata, the commits and the frozen arrays."""

    def __init__(self, path: ObjectPath) -> None:
        self.path = path
        self.objects = Objects.at(path)
        payload = ("hidden_states", "scale")
        root, *nodes = self.objects.get_many([NODE, *(f"{name}/{NODE}" for name in payload)])
        if root is None:
            raise StoreNotFoundError(f"there is no store at {path}: embstore extract makes one")
        self.metadata, self.arrays = parse(_attribute(root, path), path=str(path))
        self.specs = {spec.path: spec for spec in payload_specs(self.metadata)}
        self._nodes = dict(zip(payload, nodes, strict=True))
        self.chunk_rows = {name: self._chunk_rows_of(spec, self._nodes[name]) for name, spec in self.specs.items()}
        self._columns: dict[str, NDArray[Any]] = {}
        self._mutex = Lock()

    def commits(self) -> NDArray[np.uint64]:
        return read_commits(self.objects, self.metadata.layout.n_partitions)

    def settled(self) -> bool:
        """Whether the commits are folded and nothing temporary is left, as far as the server tells."""
        if not is_folded(self.objects, self.metadata.layout.n_partitions):
            return False
        return not self.objects.listed or not any(self.objects.names(name) for name in (TEMPORARY, COMMITS_FOLDER))

    def column(self, name: str) -> NDArray[Any]:
        """Return a frozen array, held against its checksum when it is fetched, once."""
        if name not in self._columns:
            self.fetch_columns([name])
        return self._columns[name]

    def fetch_columns(self, names: Iterable[str]) -> None:
        """Fetch frozen arrays, those not at hand yet, at the same time."""
        rooms = {}
        begun: list[Future[None]] = []
        for name in names:
            if name not in self._columns:
                spec = frozen_spec(name, self.arrays[name].shape)
                rooms[name] = np.empty(int(np.prod(spec.shape)) * spec.dtype.itemsize, np.uint8)
                begun += self.objects.begin_into(chunk_file(spec), rooms[name])
        try:
            end_all(begun)
        except NoSuchObjectError as error:
            raise StoreDamagedError(f"{error}, a column of the store: {MEND}") from None
        for name, data in rooms.items():
            self._columns[name] = self._checked(name, data)

    def _checked(self, name: str, data: Bytes) -> NDArray[Any]:
        spec = frozen_spec(name, self.arrays[name].shape)
        if crc32c(data) != self.arrays[name].crc32c:
            if self.objects.get_or_none(f"{name}/{NODE}") != array_node(spec):
                raise self.stored_anew(name)
            file = self.objects.url(chunk_file(spec))
            raise StoreDamagedError(f"{file} is not what was written, its checksum differs: {MEND}")
        data.flags.writeable = False
        return data.view(spec.dtype).reshape(spec.shape)

    @property
    def foreign(self) -> bool:
        """Whether another tool has stored the rows anew, so that the commits' checksums are of other bytes."""
        return any(self._nodes[name] != array_node(spec) for name, spec in self.specs.items())

    def crc32c(self, partition: int) -> int | None:
        """Read a partition's objects whole, in pieces, and return their CRC32C; None where another tool wrote them."""
        if self.foreign:
            return None
        crc = 0
        for spec in self.specs.values():
            crc, _ = self.objects.crc32c(shard_file(spec, partition), crc)
        return crc

    def stored_anew(self, name: str) -> StoreFormatError:
        return StoreFormatError(
            f"{name} of {self.path} was stored anew by another tool, in a form that is only read from a disk: copy the "
            "store to one"
        )

    def _chunk_rows_of(self, spec: ArraySpec, node: bytes | None) -> int:
        name = f"{self.path}/{spec.path}/{NODE}"
        if node is None:
            raise StoreDamagedError(f"{name} is missing: {MEND}")
        if node == array_node(spec):
            return spec.chunk[1]
        try:
            rows = foreign_chunk_rows(json.loads(node), spec)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise StoreDamagedError(f"{name} cannot be read ({error}): {MEND}") from error
        if rows is None:
            raise self.stored_anew(spec.path)
        return rows


class Shard(NamedTuple):
    """An object of rows: where each inner chunk [layer, chunk] starts, -1 where it is left out."""

    name: str
    offsets: NDArray[np.int64]


class ObjectReader(RemoteStore):
    """The arrays of a Zarr store in a bucket, of which no more is read than is asked for.

    Rows no further apart than EMBSTORE_GAP_KIB (128) come with what lies between, by one request.
    """

    def __init__(self, path: ObjectPath) -> None:
        super().__init__(path)
        self._shards: OrderedDict[tuple[str, int], Shard] = OrderedDict()
        self._gap = int(setting("EMBSTORE_GAP_KIB", GAP_KIB) * 2**10)

    def forget(self) -> None:
        """Let go of the shards' indexes, since a writer may have replaced them."""
        with self._mutex:
            self._shards.clear()

    def layer(self, array: str, layer: int) -> None:
        """No rows are at hand at once."""

    def rows(self, array: str, layer: int, partition: int) -> ObjectRows:
        """Return the rows of stored layer number `layer` (counted from 0) of a committed partition."""
        return ObjectRows(self, array, layer, partition)

    def ahead(self, array: str, place: int, stop: int) -> ReadAhead:
        def begin(partition: int, start: int, end: int) -> Future[Bytes]:
            return self.objects.submit(partial(self.read_rows, array, place, partition, start, end))

        return ReadAhead(begin, self.metadata.layout.partition_rows, self._row_nbytes(array), stop)

    def begin(self, array: str, places: Sequence[int], parts: Sequence[Part], out: NDArray[Any]) -> list[Future[None]]:
        """Begin to read rows of layers into `out` [layer, row, ...], near ones of a shard by one request."""
        if not out.size:
            return []
        shards = self._opened(array, [part.partition for part in parts])
        row_nbytes = self._row_nbytes(array)
        chunk_rows = self.chunk_rows[array]
        target = out.reshape(len(places) * out.shape[1], -1).view(np.uint8)
        begun = []
        for part, shard in zip(parts, shards, strict=True):
            chunks, inside = np.divmod(part.local, chunk_rows)
            offsets = shard.offsets[np.asarray(places)[:, None], chunks]
            starts, absent = offsets + inside * row_nbytes, offsets < 0
            into = np.arange(len(places))[:, None] * out.shape[1] + np.arange(part.first, part.last)
            if absent.any():
                target[into[absent]] = self._fill(array)
                starts, into = starts[~absent], into[~absent]
            begun += self._begin_runs(shard.name, starts.reshape(-1), into.reshape(-1), row_nbytes, target)
        return begun

    def _begin_runs(
        self, name: str, starts: NDArray[np.int64], into: NDArray[np.int64], row_nbytes: int, target: Bytes
    ) -> list[Future[None]]:
        order = starts.argsort(kind="stable")
        starts, into = starts[order], into[order]
        return [
            self.objects.submit(partial(self._read_run, name, starts[first:last], into[first:last], row_nbytes, target))
            for first, last in runs_of(starts, row_nbytes, self._gap)
        ]

    def _read_run(
        self, name: str, starts: NDArray[np.int64], into: NDArray[np.int64], row_nbytes: int, target: Bytes
    ) -> None:
        begin = int(starts[0])
        body = self.objects.get_range(name, begin, int(starts[-1]) + row_nbytes)
        places, rest = np.divmod(starts - begin, row_nbytes)
        if rest.any():
            target[into] = body[(starts - begin)[:, None] + np.arange(row_nbytes)]
        else:
            target[into] = body.reshape(-1, row_nbytes)[places]

    def read_rows(self, array: str, place: int, partition: int, start: int, stop: int) -> Bytes:
        """Return rows `[start, stop)` of a partition, by one request where they stand one after the other."""
        shard = self._opened(array, [partition])[0]
        row_nbytes = self._row_nbytes(array)
        chunk_rows = self.chunk_rows[array]
        offsets = shard.offsets[place, start // chunk_rows : -(-stop // chunk_rows)]
        if (offsets >= 0).all() and (np.diff(offsets) == chunk_rows * row_nbytes).all():
            begin = int(offsets[0]) + start % chunk_rows * row_nbytes
            return self.objects.get_range(shard.name, begin, begin + (stop - start) * row_nbytes)
        rows = np.empty((1, stop - start, row_nbytes), np.uint8)
        self._read_scattered(array, place, shard, np.arange(start, stop), rows[0])
        return rows.reshape(-1)

    def _read_scattered(self, array: str, place: int, shard: Shard, rows: NDArray[np.int64], out: Bytes) -> None:
        chunks, inside = np.divmod(rows, self.chunk_rows[array])
        offsets = shard.offsets[place, chunks]
        out[offsets < 0] = self._fill(array)
        into = np.flatnonzero(offsets >= 0)
        starts = offsets[into] + inside[into] * out.shape[1]
        order = starts.argsort(kind="stable")
        starts, into = starts[order], into[order]
        for first, last in runs_of(starts, out.shape[1], self._gap):
            self._read_run(shard.name, starts[first:last], into[first:last], out.shape[1], out)

    def _opened(self, array: str, partitions: Sequence[int]) -> list[Shard]:
        """The shards of partitions; the indexes of those not yet known are fetched at the same time."""
        with self._mutex:
            known = {partition: self._shards.get((array, partition)) for partition in partitions}
        lacking = [partition for partition, shard in known.items() if shard is None]
        if len(lacking) == 1:
            known[lacking[0]] = self._open_shard(array, lacking[0])
        elif lacking:
            begun = [self.objects.submit(partial(self._open_shard, array, partition)) for partition in lacking]
            end_all(begun)
            known.update(zip(lacking, (each.result() for each in begun), strict=True))
        return [shard for partition in partitions if (shard := known[partition]) is not None]

    def _open_shard(self, array: str, partition: int) -> Shard:
        spec = self.specs[array]
        chunk_rows = self.chunk_rows[array]
        chunks = (spec.shape[0], spec.shard[1] // chunk_rows)
        name = shard_file(spec, partition)
        try:
            end, size = self.objects.tail(name, index_nbytes(chunks))
        except NoSuchObjectError:
            raise StoreDamagedError(f"{self.path}/{name} of partition {partition} is missing: {MEND}") from None
        chunk_nbytes = chunk_rows * self._row_nbytes(array)
        shard = Shard(name, parse_index(end, chunks, chunk_nbytes, name=f"{self.path}/{name}", size=size))
        with self._mutex:
            self._shards[array, partition] = shard
            if len(self._shards) > MOST_SHARDS:
                self._shards.popitem(last=False)
        return shard

    def _row_nbytes(self, array: str) -> int:
        spec = self.specs[array]
        return spec.dtype.itemsize * int(np.prod(spec.shape[2:], dtype=np.int64))

    def _fill(self, array: str) -> Bytes:
        """The bytes of a row of a chunk that was left out."""
        spec = self.specs[array]
        return np.full(spec.shape[2:], spec.fill, spec.dtype).reshape(-1).view(np.uint8)


class ObjectRows:
    """A RowSource by requests."""

    def __init__(self, reader: ObjectReader, array: str, layer: int, partition: int) -> None:
        self._reader = reader
        self._array = array
        self._layer = layer
        self._partition = partition

    def take(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        part = Part(self._partition, 0, len(rows), rows)
        end_all(self._reader.begin(self._array, [self._layer], [part], out[None]))

    def prefetch(self, rows: NDArray[np.int64]) -> None:
        """Nothing is asked for twice."""

    @contextmanager
    def reading(self) -> Iterator[Read]:
        yield self._read

    def _read(self, start: int, stop: int, out: NDArray[Any]) -> None:
        body = self._reader.read_rows(self._array, self._layer, self._partition, start, stop)
        out.reshape(-1).view(np.uint8)[...] = body


def runs_of(starts: NDArray[np.int64], row_nbytes: int, gap_nbytes: int) -> list[tuple[int, int]]:
    """Cut ascending rows of an object into runs, each worth one request: small gaps, and not too long in all."""
    if not len(starts):
        return []
    far = np.diff(starts) > row_nbytes + gap_nbytes
    edges = [0, *(np.flatnonzero(far) + 1).tolist(), len(starts)]
    runs = []
    for first, last in pairwise(edges):
        while first < last:
            end = int(np.searchsorted(starts[first:last], starts[first] + max(RUN_NBYTES - row_nbytes, 0) + 1))
            runs.append((first, first + end))
            first += end
    return runs


def _attribute(root: bytes, path: ObjectPath) -> Any:
    try:
        attributes = json.loads(root).get("attributes")
    except (ValueError, RecursionError, AttributeError):
        raise StoreDamagedError(f"{path}/{NODE} is not JSON: {MEND}") from None
    return attributes.get("embstore") if isinstance(attributes, dict) else None
