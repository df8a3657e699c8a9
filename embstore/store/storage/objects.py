"""Objects of a bucket by name: whole, in ranges, in one put or not at all.

Credentials, endpoint and region come from the client's own environment variables and are neither kept nor shown.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from embstore.errors import EmbstoreError, InvalidValueError, StorageError, StoreDamagedError, StoreNotFoundError
from embstore.store.storage.files import MEND, Bytes, as_bytes, crc32c
from embstore.store.storage.location import ObjectPath as ObjectPath
from embstore.store.storage.location import place_of as place_of
from embstore.store.storage.object_client import client, obstore, pool, refuse_fork
from embstore.store.storage.object_errors import told

PART_NBYTES = 16 * 2**20
PIECE_NBYTES = 8 * 2**20
PIECES_AHEAD = 4

_READ_TRIES = 3
_LOST = ("error decoding response body", "request or response body error", "before message completed")

T = TypeVar("T")


class ObjectExistsError(EmbstoreError, FileExistsError):
    """An object that should be created is there already; for writers only, never shown."""


class ObjectChangedError(EmbstoreError):
    """An object is not any more what should be replaced; for writers only, never shown."""


class Objects:
    """The objects below a place, by names relative to it; safe to use from many threads. Made by `Objects.at`.

    Failures that may pass (5xx, throttling, lost connections, a silence of EMBSTORE_SILENCE_SECONDS, 60) are tried
    again, EMBSTORE_RETRIES times (10) within EMBSTORE_RETRY_SECONDS (180). What still fails is one line:
    StoreNotFoundError (no such bucket or object), StorageError (no right, other region, not to be reached),
    StoreDamagedError (fewer bytes than asked for).
    """

    def __init__(self, path: ObjectPath, client: Any) -> None:
        self.path = path
        self._client = client
        self._prefix = f"{path.key}/" if path.key else ""
        self._process = os.getpid()

    @classmethod
    def at(cls, path: ObjectPath) -> Objects:
        """Return the objects below `path`; nothing is asked of the server yet."""
        return cls(path, client(path))

    def __reduce__(self) -> tuple[Any, ...]:
        return Objects.at, (self.path,)

    @property
    def listed(self) -> bool:
        """Whether the server can be asked for names; plain web servers cannot."""
        return self.path.scheme not in ("https", "http")

    def url(self, name: str) -> str:
        return f"{self.path}/{name}" if name else str(self.path)

    def get(self, name: str) -> bytes:
        """Return a whole object. Raises StoreNotFoundError where there is none."""
        return bytes(self._read(name, lambda key: self._whole(key)))

    def get_or_none(self, name: str) -> bytes | None:
        try:
            return self.get(name)
        except NoSuchObjectError:
            return None

    def get_many(self, names: Iterable[str]) -> list[bytes | None]:
        """Return whole objects, fetched at the same time; None for those that are not there."""
        return list(pool().map(self.get_or_none, names))

    def get_ranges(self, name: str, starts: Sequence[int], stops: Sequence[int]) -> list[Bytes]:
        """Return the bytes `[start, stop)` of an object, one request each as given, made at the same time."""
        asked = [self.begin(name, start, stop) for start, stop in zip(starts, stops, strict=True)]
        return [answer.result() for answer in asked]

    def begin(self, name: str, start: int, stop: int) -> Future[Bytes]:
        """Ask for the bytes `[start, stop)` of an object and go on; IN_FLIGHT requests are made at a time."""
        return pool().submit(self.get_range, name, start, stop)

    def begin_into(self, name: str, out: Bytes, start: int = 0) -> list[Future[None]]:
        """Begin to read the bytes from `start` on into the whole of `out`, by requests of at most 8 MiB."""

        def read(first: int) -> None:
            last = min(first + PIECE_NBYTES, len(out))
            out[first:last] = self.get_range(name, start + first, start + last)

        return [self.submit(partial(read, first)) for first in range(0, len(out), PIECE_NBYTES)]

    def pieces(self, name: str, size: int) -> Iterator[Bytes]:
        """Yield an object of `size` bytes in pieces of at most 8 MiB, the next few on their way meanwhile."""
        ahead: deque[Future[Bytes]] = deque()
        for start in range(0, size, PIECE_NBYTES):
            ahead.append(self.begin(name, start, min(start + PIECE_NBYTES, size)))
            if len(ahead) > PIECES_AHEAD:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()

    def crc32c(self, name: str, crc: int = 0, size: int | None = None) -> tuple[int, int]:
        """Extend a CRC32C by an object's bytes, read in bounded memory; returns it with the object's size.

        Raises StoreNotFoundError where it is not there.
        """
        size = self.size(name) if size is None else size
        if size is None:
            raise self._missing(name)
        for piece in self.pieces(name, size):
            crc = crc32c(piece, crc)
        return crc, size

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Do something that asks for objects beside other such work; it may wait for nothing submitted here."""
        return pool().submit(work)

    def get_range(self, name: str, start: int, stop: int) -> Bytes:
        """Return the bytes `[start, stop)` of an object by one request; StoreDamagedError where it ends before."""

        def read(key: str) -> Any:
            return obstore().get_range(self._client, key, start=start, end=stop)

        return self._read(name, read, stop - start)

    def tail(self, name: str, nbytes: int) -> tuple[Bytes, int]:
        """Return the last bytes of an object, all where it has fewer, and the object's size; one request."""
        if self.path.scheme == "az":  # Azure takes no ranges from the end
            size = self.size(name)
            if size is None:
                raise self._missing(name)
            start = max(size - nbytes, 0)
            return (self.get_range(name, start, size) if size else np.empty(0, np.uint8)), size
        sizes = []

        def read(key: str) -> Any:
            answer = obstore().get(self._client, key, options={"range": {"suffix": nbytes}})
            sizes.append(int(answer.meta["size"]))
            return _exact(answer.bytes(), min(nbytes, sizes[-1]))

        return self._read(name, read), sizes[-1]

    def size(self, name: str) -> int | None:
        """Return the bytes that an object has, None where there is none."""
        try:
            with self._telling("read", name):
                return int(obstore().head(self._client, self._key(name))["size"])
        except NoSuchObjectError:
            return None

    def names(self, prefix: str = "") -> list[str]:
        """Return the names of all objects below the folder `prefix`, in order."""
        return sorted(self.sizes(prefix))

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Return the size of every object below the folder `prefix` by its name."""
        if not self.listed:
            raise StorageError(f"cannot list {self.url(prefix)}: a web server does not tell what it has")
        below = self._key(prefix).rstrip("/") or None
        with self._telling("list", prefix):
            return {
                found["path"][len(self._prefix) :]: int(found["size"])
                for page in obstore().list(self._client, below, chunk_size=1000)
                for found in page
            }

    def put(self, name: str, data: NDArray[Any] | bytes, *, create: bool = False) -> None:
        """Write a whole object by one request.

        `create`: raise ObjectExistsError where it is there already. The server decides between two writers; a
        request that was repeated after its answer was lost can meet its own object.
        """
        mode = "create" if create else "overwrite"
        self._refuse_web("write", name)
        with self._telling("write", name):
            obstore().put(self._client, self._key(name), as_bytes(data), mode=mode, use_multipart=False)

    def put_large(self, name: str, pieces: Iterable[NDArray[Any] | bytes]) -> None:
        """Write an object piece after piece in parts of 16 MiB, whole or not at all.

        What the pieces raise ends the upload and is raised as it is.
        """
        self._refuse_web("write", name)
        flat = _Pieces(pieces)
        try:
            with self._telling("write", name):
                obstore().put(
                    self._client, self._key(name), flat, use_multipart=True, chunk_size=PART_NBYTES, max_concurrency=4
                )
        except Exception:
            if flat.error is not None:
                raise flat.error from None
            raise

    def replace(self, name: str, before: bytes, after: bytes) -> bool:
        """Write an object that holds the bytes `before`; False where it does not, or no more when the server looks."""
        self._refuse_web("write", name)
        try:
            with self._telling("read", name):
                answer = obstore().get(self._client, self._key(name))
                tags = {key: answer.meta[key] for key in ("e_tag", "version") if answer.meta.get(key)}
                held = bytes(_exact(answer.bytes(), int(answer.meta["size"])))
            if held != before:
                return False
            with self._telling("write", name):
                obstore().put(self._client, self._key(name), after, mode=tags, use_multipart=False)
        except (ObjectChangedError, NoSuchObjectError):
            return False
        return True

    def copy_new(self, source: str, name: str) -> None:
        """Copy an object, of at most 5 GiB, within the server. Raises ObjectExistsError where `name` is there."""
        self._refuse_web("write", name)
        with self._telling("copy", source):
            obstore().copy(self._client, self._key(source), self._key(name), overwrite=False)

    def delete(self, name: str) -> None:
        """Remove an object, where there is one."""
        self._refuse_web("remove", name)
        try:
            with self._telling("remove", name):
                obstore().delete(self._client, self._key(name))
        except NoSuchObjectError:
            pass

    def _key(self, name: str) -> str:
        return f"{self._prefix}{name}"

    def _whole(self, key: str) -> Any:
        answer = obstore().get(self._client, key)
        return _exact(answer.bytes(), int(answer.meta["size"]))

    def _read(self, name: str, read: Any, nbytes: int | None = None) -> Bytes:
        """Read by one request, again where the body is lost on its way; never fewer bytes than asked for."""
        for left in reversed(range(_READ_TRIES)):
            try:
                with self._telling("read", name):
                    body = read(self._key(name))
                    return np.frombuffer(body if nbytes is None else _exact(body, nbytes), np.uint8)
            except (CutShortError, StoreDamagedError):
                if not left:
                    raise
        raise AssertionError

    @contextmanager
    def _telling(self, verb: str, name: str) -> Iterator[None]:
        raised = obstore().exceptions
        refuse_fork(self._process, os.getpid())
        try:
            yield
        except EmbstoreError:
            raise
        except raised.AlreadyExistsError:
            raise ObjectExistsError(f"{self.url(name)} is there already") from None
        except raised.PreconditionError:
            raise ObjectChangedError(f"{self.url(name)} was changed by another") from None
        except _Short as error:
            raise StoreDamagedError(f"{self.url(name)} is cut short: {error}; {MEND}") from None
        except (raised.BaseError, FileNotFoundError, NotImplementedError) as error:
            text = str(error)
            if any(sign in text for sign in _LOST):
                raise CutShortError(f"cannot {verb} {self.url(name)}: the connection is lost in the middle") from None
            translated = told(error, verb, self.url(name))
            if isinstance(error, FileNotFoundError) and not isinstance(translated, StoreNotFoundError):
                translated = self._missing(name)
            raise translated from None

    def _missing(self, name: str) -> NoSuchObjectError:
        return NoSuchObjectError(f"there is nothing at {self.url(name)}")

    def _refuse_web(self, verb: str, name: str) -> None:
        if not self.listed:
            raise InvalidValueError(f"cannot {verb} {self.url(name)}: stores at {self.path.scheme}:// can only be read")


class NoSuchObjectError(StoreNotFoundError):
    """There is a bucket, but not the object."""


class CutShortError(StorageError):
    """The connection broke in the middle of a body."""


class _Short(Exception):
    pass


class _Pieces:
    """Hands pieces to the client as flat bytes and remembers what they raise."""

    def __init__(self, pieces: Iterable[NDArray[Any] | bytes]) -> None:
        self._pieces = iter(pieces)
        self.error: BaseException | None = None

    def __iter__(self) -> _Pieces:
        return self

    def __next__(self) -> Bytes:
        try:
            return as_bytes(next(self._pieces))
        except StopIteration:
            raise
        except BaseException as error:
            self.error = error
            raise


def _exact(body: Any, nbytes: int) -> Any:
    if len(body) != nbytes:
        raise _Short(f"{len(body):,} bytes came, not {nbytes:,}")
    return body
