"""Shards of a store in a bucket, which several writers may write at once: each is created once and never changed."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from embstore.errors import EmbstoreError, StorageError, StoreDamagedError, StoreNotFoundError
from embstore.store.arrays import ArraySpec, payload_specs
from embstore.store.layout import CHUNK_ROWS
from embstore.store.metadata import Metadata, parse
from embstore.store.storage.files import MEND, as_bytes, crc32c
from embstore.store.storage.location import ObjectPath
from embstore.store.storage.objects import (
    PART_NBYTES,
    CutShortError,
    NoSuchObjectError,
    ObjectExistsError,
    Objects,
)
from embstore.store.zarr.format import NODE, TEMPORARY, commit_file, shard_file
from embstore.store.zarr.object_commits import record_of
from embstore.store.zarr.shards import shard_index
from embstore.store.zarr.writer import shard_pieces

TRIES = 6
COPY_NBYTES = 5 * 2**30  # what a server copies in one step

_AT_ONCE = 16
_FIRST_WAIT = 0.05

Item = TypeVar("Item")
Result = TypeVar("Result")


class ObjectShards:
    """Writes shards of the store at `path` and needs nothing but that: no lock, no tidying. Made in any process."""

    def __init__(self, path: ObjectPath) -> None:
        self.path = path
        self._objects = Objects.at(path)
        self.metadata = read_metadata(self._objects)
        self._specs = payload_specs(self.metadata)

    def write(self, partition: int, arrays: Mapping[str, NDArray[Any]]) -> int:
        """Write the shards of a partition and return the CRC32C of their bytes, one after the other.

        Where another writer's shard is there already it stays, and the CRC32C is that of its bytes.
        """
        start, stop = self.metadata.layout.span(partition)
        done = record_of(self._objects.get_or_none(commit_file(partition)))
        if done[0] == stop - start:
            return int(done[1])
        first, *others = self._specs
        pieces = [as_bytes(piece) for piece in shard_pieces(first, arrays[first.path])]
        own = _crc32c_of(pieces)
        for _ in range(TRIES):
            for spec in others:
                put_new(self._objects, _proposal(spec, partition, own), _joined(spec, arrays[spec.path]))
            if create(self._objects, shard_file(first, partition), pieces):
                crc: int | None = own
            else:
                crc = self._standing(first, partition)
            if crc is not None and (whole := self._complete(partition, crc)) is not None:
                return whole
        raise self._restless(partition)

    def record(self, partition: int) -> NDArray[np.uint64] | None:
        """Return the commit record [2] that the shards of a partition ask for, None where they are not whole."""
        crc = self._standing(self._specs[0], partition)
        whole = None if crc is None else self._complete(partition, crc)
        start, stop = self.metadata.layout.span(partition)
        return None if whole is None else np.array([stop - start, whole], np.uint64)

    def remove(self, partition: int) -> None:
        """Remove the shards of a partition, the first of them first, since the others follow from it."""
        for spec in self._specs:
            self._objects.delete(shard_file(spec, partition))
        for name in self._objects.names(TEMPORARY) if len(self._specs) > 1 else []:
            if name.startswith(f"{TEMPORARY}/{partition}-"):
                self._objects.delete(name)

    def _standing(self, spec: ArraySpec, partition: int) -> int | None:
        """Return the CRC32C of a shard that another writer made; what is none is removed, and None returned."""
        name = shard_file(spec, partition)
        size = self._objects.size(name)
        if size is None:
            return None
        nbytes, end = _shape(spec, self.metadata, partition)
        if size == nbytes:
            try:
                if self._objects.get_range(name, nbytes - len(end), nbytes).tobytes() == end:
                    return self._objects.crc32c(name, size=nbytes)[0]
            except (NoSuchObjectError, StoreDamagedError):
                return None  # removed, or written anew, as it was read
        self._objects.delete(name)
        return None

    def _complete(self, partition: int, crc: int) -> int | None:
        """Put the shards beside the first one that belong to it, and extend its CRC32C by theirs.

        They are what the first one's writer proposed under its CRC32C before. None where another changes them too,
        or where nothing says what belongs to the first one, which is removed then.
        """
        first = crc
        for spec in self._specs[1:]:
            name = shard_file(spec, partition)
            standing = self._objects.get_or_none(name)
            wanted = self._objects.get_or_none(_proposal(spec, partition, first))
            if wanted is None:
                wanted = standing  # proposals are tidied away once all is committed
            if wanted is None:
                self._objects.delete(shard_file(self._specs[0], partition))
                return None
            if standing != wanted and not hold(self._objects, name, wanted):
                return None
            crc = crc32c(wanted, crc)
        return crc

    def _restless(self, partition: int) -> StorageError:
        return StorageError(
            f"partition {partition} of {self.path} is changed by others again and again: let one `embstore extract` "
            "run at a time"
        )


def read_metadata(objects: Objects) -> Metadata:
    """Read what made the store. Raises StoreNotFoundError, StoreFormatError, StoreDamagedError."""
    try:
        root = json.loads(objects.get(NODE))
    except NoSuchObjectError:
        raise StoreNotFoundError(f"there is no store at {objects.path}: embstore extract makes one") from None
    except (ValueError, RecursionError):
        raise StoreDamagedError(f"{objects.url(NODE)} is not JSON: {MEND}") from None
    attributes = root.get("attributes") if isinstance(root, dict) else None
    fields = attributes.get("embstore") if isinstance(attributes, dict) else None
    return parse(fields, path=str(objects.path))[0]


def create(objects: Objects, name: str, pieces: Iterable[NDArray[Any] | bytes]) -> bool:
    """Write an object that is not there, whole or not at all; False where there is one already, perhaps our own.

    Servers decide that for one request of at most 16 MiB. More goes in parts to a temporary name and is copied from
    there, which the server decides likewise.
    """
    flat = [as_bytes(piece) for piece in pieces]
    nbytes = sum(map(len, flat))
    if nbytes <= PART_NBYTES:
        return put_new(objects, name, np.concatenate(flat))
    if objects.size(name) is not None:
        return False
    if nbytes > COPY_NBYTES:  # an index column of 6 * 10^8 words and more: no shard is so large
        objects.put_large(name, flat)
        return True
    temporary = f"{TEMPORARY}/{uuid.uuid4().hex}"
    try:
        objects.put_large(temporary, flat)
        return _copied(objects, temporary, name)
    finally:
        with suppress(EmbstoreError):  # what is left is removed with the commits' folding
            objects.delete(temporary)


def hold(objects: Objects, name: str, data: bytes) -> bool:
    """Have a small object hold `data`, whatever it holds now; False where others change it again and again."""
    for _ in range(TRIES):
        if put_new(objects, name, data):
            return True
        standing = objects.get_or_none(name)
        if standing == data:
            return True
        if standing is not None:
            with suppress(CutShortError):  # then it is looked at again
                objects.replace(name, standing, data)
    return False


def put_new(objects: Objects, name: str, data: NDArray[Any] | bytes) -> bool:
    """Write a small object that is not there; False where there is one already, perhaps our own."""
    return _new(lambda: objects.put(name, data, create=True))


def _copied(objects: Objects, temporary: str, name: str) -> bool:
    try:
        return _new(lambda: objects.copy_new(temporary, name))
    except NoSuchObjectError:  # another writer has folded the commits and tidied up
        if objects.size(name) is None:
            raise
        return False


def _new(write: Callable[[], None]) -> bool:
    """Try again where the answer was lost: the client itself repeats no request that may have done its work."""
    for wait in _waits():
        try:
            write()
        except ObjectExistsError:
            return False
        except CutShortError:
            if wait is None:
                raise
            time.sleep(wait)
        else:
            return True
    raise AssertionError


def _waits() -> list[float | None]:
    return [*(_FIRST_WAIT * 2**turn for turn in range(TRIES - 1)), None]


def at_once(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Do independent requests at the same time."""
    with ThreadPoolExecutor(_AT_ONCE, "embstore-requests") as pool:
        return list(pool.map(work, items))


def _proposal(spec: ArraySpec, partition: int, crc: int) -> str:
    return f"{TEMPORARY}/{partition}-{crc:08x}.{spec.path}"


def _joined(spec: ArraySpec, rows: NDArray[Any]) -> NDArray[np.uint8]:
    return np.concatenate([as_bytes(piece) for piece in shard_pieces(spec, rows)])


def _crc32c_of(pieces: Iterable[NDArray[np.uint8]]) -> int:
    crc = 0
    for piece in pieces:
        crc = crc32c(piece, crc)
    return crc


def _shape(spec: ArraySpec, metadata: Metadata, partition: int) -> tuple[int, bytes]:
    """Return how many bytes a shard has, and its end."""
    start, stop = metadata.layout.span(partition)
    written = -(-(stop - start) // CHUNK_ROWS)
    chunk_nbytes = int(np.prod(spec.chunk, dtype=np.int64)) * spec.dtype.itemsize
    end = shard_index((spec.shape[0], spec.shard[1] // CHUNK_ROWS), written, chunk_nbytes)
    return spec.shape[0] * written * chunk_nbytes + len(end), end
