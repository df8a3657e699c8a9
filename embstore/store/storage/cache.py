"""Shards of a bucket kept in a folder: each downloaded whole once, held against its commit, then mapped."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embstore.errors import StoreDamagedError
from embstore.store.arrays import ArraySpec, frozen_spec
from embstore.store.layout import CHUNK_ROWS
from embstore.store.reading.mapped import RowSource, TakeSource
from embstore.store.storage.files import MEND, Bytes, as_bytes, crc32c, crc32c_of_file, map_file, storing, write_all
from embstore.store.storage.location import ObjectPath
from embstore.store.storage.object_client import setting
from embstore.store.storage.objects import NoSuchObjectError
from embstore.store.zarr.format import shard_file
from embstore.store.zarr.object_reader import RemoteStore
from embstore.store.zarr.reader import map_shard, most_mapped
from embstore.store.zarr.shards import index_nbytes

SIZE_GIB = 64.0
_KEPT = re.compile(r"[0-9a-f]{64}\.kept")
_PARTIAL = re.compile(r"[0-9a-f]{64}\.[a-z0-9_]+\.partial")
_STALE_SECONDS = 86_400


class KeptFiles:
    """Files in a folder by what they hold, at most `nbytes` of them in all; those used longest ago go first.

    A file appears whole, by one rename. Processes may share the folder: a file that one removes stays with another
    that has it mapped.
    """

    def __init__(self, folder: Path, nbytes: int) -> None:
        self.folder = folder
        self._nbytes = nbytes

    def find(self, what: str, nbytes: int) -> Path | None:
        """Return the file of `what`, None where it is not there with all its bytes."""
        path = self._path(what)
        try:
            if path.stat().st_size != nbytes:
                return None
            os.utime(path)
        except OSError:
            return None
        return path

    def keep(self, files: Iterable[tuple[str, int]], write: Callable[[list[int]], object]) -> None:
        """Make the files of (what, bytes) with what `write` puts into their descriptors; none where it fails."""
        wanted = [(self._path(what), nbytes) for what, nbytes in files]
        temporary: list[Path] = []
        descriptors: list[int] = []
        with storing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._make_room(sum(nbytes for _, nbytes in wanted))
            try:
                for path, _ in wanted:
                    descriptor, name = tempfile.mkstemp(".partial", f"{path.stem}.", self.folder)
                    descriptors.append(descriptor)
                    temporary.append(Path(name))
                write(descriptors)
                for descriptor, (path, _) in zip(descriptors, wanted, strict=True):
                    os.fsync(descriptor)
                    os.rename(temporary.pop(0), path)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
                for left in temporary:
                    left.unlink(missing_ok=True)

    def _path(self, what: str) -> Path:
        return self.folder / f"{hashlib.sha256(what.encode()).hexdigest()}.kept"

    def _make_room(self, nbytes: int) -> None:
        kept = []
        for entry in os.scandir(self.folder):
            try:
                status = entry.stat()
            except FileNotFoundError:
                continue
            if _KEPT.fullmatch(entry.name):
                kept.append((status.st_mtime_ns, status.st_size, entry.path))
            elif _PARTIAL.fullmatch(entry.name) and time.time() - status.st_mtime > _STALE_SECONDS:
                Path(entry.path).unlink(missing_ok=True)
        total = sum(size for _, size, _ in kept) + nbytes
        for _, size, path in sorted(kept):
            if total <= self._nbytes:
                break
            Path(path).unlink(missing_ok=True)
            total -= size


class CachedReader(RemoteStore):
    """The arrays of a Zarr store in a bucket; what is read of it is kept in the folder `cache` and mapped from there.

    A file is named by the recipe of the store and the commit of its bytes, so one that was written anew is another.
    EMBSTORE_CACHE_GIB bounds the folder (64).
    """

    def __init__(self, path: ObjectPath, cache: Path) -> None:
        super().__init__(path)
        if self.foreign:
            raise self.stored_anew("hidden_states")
        self.cache = cache
        self._kept = KeptFiles(cache, int(setting("EMBSTORE_CACHE_GIB", SIZE_GIB) * 2**30))
        self._records = super().commits()
        self._shards: OrderedDict[tuple[str, int], list[RowSource]] = OrderedDict()
        self._most_shards = most_mapped()
        self._mutex = threading.Lock()

    def commits(self) -> NDArray[np.uint64]:
        self._records = super().commits()
        return self._records.copy()

    def forget(self) -> None:
        """Let go of the mapped shards, since a writer may have replaced them."""
        with self._mutex:
            self._shards.clear()

    def fetch_columns(self, names: Iterable[str]) -> None:
        """Map frozen arrays that are kept; fetch the others and keep them."""
        lacking = []
        for name in names:
            if name not in self._columns and not self._map_column(name):
                lacking.append(name)
        super().fetch_columns(lacking)
        for name in lacking:
            column = self._columns[name]
            if column.nbytes:
                self._keep_column(name, as_bytes(column))

    def _keep_column(self, name: str, data: Bytes) -> None:
        self._kept.keep([self._column(name)], lambda descriptors: write_all(descriptors[0], data, 0))
        self._map_column(name)

    def _column(self, name: str) -> tuple[str, int]:
        stored = self.arrays[name]
        spec = frozen_spec(name, stored.shape)
        nbytes = int(np.prod(spec.shape)) * spec.dtype.itemsize
        return f"{self.metadata.recipe_sha256} {name} {list(stored.shape)} {stored.crc32c}", nbytes

    def _map_column(self, name: str) -> bool:
        what, nbytes = self._column(name)
        path = self._kept.find(what, nbytes)
        mapped = map_file(path) if path is not None else None
        if mapped is None:
            return False
        spec = frozen_spec(name, self.arrays[name].shape)
        self._columns[name] = np.frombuffer(mapped, spec.dtype).reshape(spec.shape)
        return True

    def layer(self, array: str, layer: int) -> TakeSource | None:
        """Return the rows of all partitions at once, where they stand in one file; None elsewhere."""
        return self.rows(array, layer, 0) if self.metadata.layout.n_partitions == 1 else None

    def rows(self, array: str, layer: int, partition: int) -> RowSource:
        """Return the rows of stored layer number `layer` (counted from 0) of a committed partition."""
        key = (array, partition)
        with self._mutex:
            sources = self._shards.get(key)
            if sources is None:
                sources = self._shards[key] = self._open_shard(array, partition)
                if len(self._shards) > self._most_shards:
                    self._shards.popitem(last=False)
            else:
                self._shards.move_to_end(key)
        return sources[layer]

    def _open_shard(self, array: str, partition: int) -> list[RowSource]:
        start, stop = self.metadata.layout.span(partition)
        spec = self.specs[array]
        return map_shard(
            self.file(array, partition), spec, chunk_rows=self.chunk_rows[array], rows=stop - start, partition=partition
        )

    def file(self, array: str, partition: int) -> Path:
        """Return the file of a shard, downloaded where it is not kept yet."""
        wanted = self._wanted(array, partition)
        for _ in range(2):
            path = self._kept.find(*wanted)
            if path is not None:
                return path
            self._download(partition)
        raise StoreDamagedError(f"{self.cache} has lost what was written there just now: choose another folder")

    def crc32c(self, partition: int) -> int | None:
        """Return the CRC32C of a partition's bytes; they are kept from then on."""
        crc = 0
        for name in self.specs:
            crc, _ = crc32c_of_file(self.file(name, partition), crc)
        return crc

    def _wanted(self, array: str, partition: int) -> tuple[str, int]:
        rows, crc = self._records[partition].tolist()
        start, stop = self.metadata.layout.span(partition)
        what = f"{self.metadata.recipe_sha256} {array} {partition} {rows} {crc}"
        return what, shard_nbytes(self.specs[array], stop - start)

    def _download(self, partition: int) -> None:
        """Fetch a partition's objects into files, as one: the commit's checksum is over all of them."""
        wanted = [self._wanted(array, partition) for array in self.specs]

        def write(descriptors: list[int]) -> None:
            crc = 0
            for spec, descriptor, (_, nbytes) in zip(self.specs.values(), descriptors, wanted, strict=True):
                offset = 0
                for piece in self.objects.pieces(shard_file(spec, partition), nbytes):
                    offset = write_all(descriptor, piece, offset)
                    crc = crc32c(piece, crc)
            if crc != self._records[partition, 1]:
                raise StoreDamagedError(f"the rows of partition {partition} of {self.path} were changed: {MEND}")

        try:
            self._kept.keep(wanted, write)
        except NoSuchObjectError as error:
            raise StoreDamagedError(f"{error}, a shard of partition {partition}: {MEND}") from None


def shard_nbytes(spec: ArraySpec, rows: int) -> int:
    """Return the bytes of a shard of ours that holds `rows` rows."""
    written = -(-rows // CHUNK_ROWS)
    row_nbytes = spec.dtype.itemsize * int(np.prod(spec.shape[2:], dtype=np.int64))
    chunks = (spec.shape[0], spec.shard[1] // CHUNK_ROWS)
    return spec.shape[0] * written * CHUNK_ROWS * row_nbytes + index_nbytes(chunks)
