"""The interface of a storage: bytes by key, on which a Zarr store is read, written and verified."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from embstore.errors import EmbstoreError, StoreDamagedError, StoreNotFoundError
from embstore.store.storage.files import REPAIR_HINT, Bytes, crc32c
from embstore.store.storage.location import ObjectPath

READ_NBYTES = 8 * 2**20  # of one request: long enough to hide its latency, short enough for many at a time
MAX_GET_NBYTES = 2**26  # of what `get` reads into memory: metadata and commit records

T = TypeVar("T")
Parts = Sequence[NDArray[Any] | bytes]
Version = tuple[object, ...]  # of a key; another one where its bytes may be others


class KeyNotFoundError(StoreNotFoundError):
    """The storage exists, but has nothing at this key."""


class KeyExistsError(EmbstoreError, FileExistsError):
    """A key that should be created exists; never shown."""


class Storage(ABC):
    """Bytes by key below one location: a folder, or a prefix of a bucket.

    Keys are relative paths with slashes. Methods may be called from many threads. A key that does not exist raises
    KeyNotFoundError, any other failure StorageError; fewer bytes than requested raise StoreDamagedError.
    """

    path: Path | ObjectPath
    is_in_place = False  # whether the keys are local files, which can be mapped and overwritten in place
    can_list = True

    @abstractmethod
    def get_versioned(self, key: str) -> tuple[bytes, Version]:
        """Return all bytes of a key, at most 64 MiB, and their version."""

    @abstractmethod
    def version(self, key: str) -> Version | None:
        """Return the version of a key, None where it does not exist."""

    @abstractmethod
    def get_range(self, key: str, start: int, stop: int, version: Version | None = None) -> Bytes:
        """Return the bytes `[start, stop)` of a key by one request; in a bucket, only those of a given version."""

    @abstractmethod
    def size(self, key: str) -> int | None:
        """Return the number of bytes of a key, None where it does not exist."""

    @abstractmethod
    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Return the size of every key below the folder `prefix`."""

    @abstractmethod
    def put(self, key: str, parts: Parts) -> None:
        """Write a key, replacing what it held; it is complete and durable when this returns, or unchanged."""

    @abstractmethod
    def put_new(self, key: str, parts: Parts) -> bool:
        """Write a key that does not exist yet; False, with nothing changed, where it does. Atomic."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove a key, if it exists."""

    def write_at(self, key: str, data: bytes, offset: int) -> None:
        """Overwrite bytes of an existing key in place, durably; only where `is_in_place`."""
        raise NotImplementedError

    def finish(self) -> None:  # noqa: B027
        """Remove what interrupted writes left behind."""

    def is_tidy(self) -> bool:
        """Return whether no interrupted write has left anything behind."""
        return True

    def url(self, key: str) -> str:
        """Return the full address of a key, for messages."""
        return f"{self.path}/{key}" if key else str(self.path)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run a function that makes requests, where possible at the same time as others."""
        return run_now(work)

    def get(self, key: str) -> bytes:
        """Return all bytes of a key, at most 64 MiB."""
        return self.get_versioned(key)[0]

    def get_or_none(self, key: str) -> bytes | None:
        """Return all bytes of a key, None where it does not exist."""
        try:
            return self.get(key)
        except KeyNotFoundError:
            return None

    def get_many(self, keys: Iterable[str]) -> list[bytes | None]:
        """Return all bytes of several keys, requested at the same time; None for those that do not exist."""
        futures = [self.submit(lambda key=key: self.get_or_none(key)) for key in keys]  # type: ignore[misc]
        return [future.result() for future in futures]

    def read(self, key: str, size: int) -> Bytes:
        """Return the first `size` bytes of a key as an array, requested in parts of 8 MiB at the same time."""
        if size > READ_NBYTES and (stored := self.size(key)) is not None and stored < size:
            raise StoreDamagedError(f"{self.url(key)} is cut short: {REPAIR_HINT}")
        out = np.empty(size, np.uint8)

        def read_part(start: int) -> None:
            stop = min(start + READ_NBYTES, size)
            out[start:stop] = self.get_range(key, start, stop)

        wait_all([self.submit(lambda start=start: read_part(start)) for start in range(0, size, READ_NBYTES)])  # type: ignore[misc]
        return out

    def iter_parts(self, key: str, size: int) -> Iterator[Bytes]:
        """Yield the first `size` bytes of a key in parts of at most 8 MiB, in bounded memory."""
        for start in range(0, size, READ_NBYTES):
            yield self.get_range(key, start, min(start + READ_NBYTES, size))

    def tail(self, key: str, nbytes: int) -> tuple[Bytes, int, Version]:
        """Return the last `nbytes` bytes of a key (all where it has fewer), the key's size and version."""
        version, size = self.version(key), self.size(key)
        if size is None or version is None:
            raise KeyNotFoundError(f"{self.url(key)} does not exist")
        start = max(size - nbytes, 0)
        return (self.get_range(key, start, size, version) if size else np.empty(0, np.uint8)), size, version

    def crc32c(self, key: str, size: int, crc: int = 0) -> int:
        """Extend a CRC32C by the first `size` bytes of a key, read in bounded memory."""
        for part in self.iter_parts(key, size):
            crc = crc32c(part, crc)
        return crc

    def holds(self, key: str, parts: Parts) -> bool:
        """Return whether a key exists with exactly these bytes, by size and CRC32C."""
        size = sum(len(part) if isinstance(part, bytes) else part.nbytes for part in parts)
        if self.size(key) != size:
            return False
        expected = 0
        for part in parts:
            expected = crc32c(part, expected)
        return self.crc32c(key, size) == expected


def run_now(work: Callable[[], T]) -> Future[T]:
    """Run a function in this thread; returns a future that is complete."""
    future: Future[T] = Future()
    try:
        future.set_result(work())
    except Exception as error:
        future.set_exception(error)
    return future


def wait_all(futures: Sequence[Future[Any]]) -> None:
    """Wait for all futures; where one fails, cancel those not yet started and raise its error."""
    try:
        wait(futures, return_when=FIRST_EXCEPTION)
    finally:  # an interrupt must not leave thousands of requests to make before the process can exit
        for future in futures:
            future.cancel()
    wait(futures)
    for future in futures:
        if not future.cancelled():
            future.result()
