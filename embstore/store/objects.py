"""Objects of a bucket by name: whole, in ranges, in one put or not at all; the only importer of obstore.

Credentials, endpoint and region come from the client's own environment variables and are neither kept nor shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import (
    EmbstoreError,
    InvalidValueError,
    MissingPackageError,
    StorageError,
    StoreDamagedError,
    StoreNotFoundError,
)
from embstore.store.files import MEND, Bytes, as_bytes
from embstore.store.object_errors import bucket_of, told

if TYPE_CHECKING:
    from typing import TypeAlias

    Client: TypeAlias = Any

SCHEMES = ("s3", "gs", "az", "https", "http")
IN_FLIGHT = 32
PART_NBYTES = 16 * 2**20

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.S)
_MANGLED = re.compile(r"(s3|gs|az|https?):/(?!/)")
_LOOPBACK = re.compile(r"(localhost|127\.[0-9.]+|\[::1\])(:\d+)?")
_VARIABLES = ("AWS_", "GOOGLE_", "AZURE_", "EMBSTORE_")
_READ_TRIES = 3
_FIRST_PROCESS: list[int] = []


class ObjectExistsError(EmbstoreError, FileExistsError):
    """An object that should be created is there already; for writers only, never shown."""


class ObjectChangedError(EmbstoreError):
    """An object is not any more what should be replaced; for writers only, never shown."""


@dataclass(frozen=True, order=True)
class ObjectPath:
    """A place in an object store, `url` as "s3://bucket/prefix" without a slash at its end. Made by `place_of`."""

    url: str

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(f"{self.url}/{name.strip('/')}")

    @property
    def scheme(self) -> str:
        return self.url.partition("://")[0]

    @property
    def bucket(self) -> str:
        """The bucket, the container (az) or the host (https)."""
        return bucket_of(self.url)

    @property
    def key(self) -> str:
        """What follows the bucket, without the slash between."""
        return self.url.partition("://")[2].partition("/")[2]

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        return Path(self.name).suffix

    @property
    def stem(self) -> str:
        return Path(self.name).stem

    @property
    def parent(self) -> ObjectPath:
        """The place above; of a bucket itself, the bucket."""
        return ObjectPath(self.url.rpartition("/")[0]) if self.key else self

    def with_name(self, name: str) -> ObjectPath:
        return self.parent / name


def place_of(place: str | os.PathLike[str] | ObjectPath) -> Path | ObjectPath:
    """Tell the addresses of objects (s3://, gs://, az://, https://) from paths.

    Raises InvalidValueError for an address with another scheme, without a bucket, or with a credential in it.
    """
    if isinstance(place, ObjectPath):
        return place
    text = os.fspath(place)
    address = _ADDRESS.fullmatch(text)
    if address is None:
        if _MANGLED.match(text):
            raise InvalidValueError(f"{text} lost a slash on its way: give the address as text, not as a Path")
        return Path(text)
    scheme, rest = address[1].lower(), address[2].rstrip("/")
    bucket, _, key = rest.partition("/")
    if scheme not in SCHEMES:
        raise InvalidValueError(f"{scheme}:// is no place for a store: give a path, s3://, gs://, az:// or https://")
    if "@" in bucket or "?" in rest or "#" in rest:  # the message must not repeat what may be a password or signature
        raise InvalidValueError(
            f"a {scheme}:// address may hold no user name, ? or #: credentials come from the environment only"
        )
    if not bucket or any(part in ("", ".", "..") for part in (key.split("/") if key else ())):
        raise InvalidValueError(f"{text} is no address of a store, {scheme}://{bucket or 'bucket'}/name.zarr is")
    return ObjectPath(f"{scheme}://{rest}")


class Objects:
    """The objects below a place, by names relative to it; safe to use from many threads. Made by `Objects.at`.

    Failures that may pass (5xx, throttling, lost connections) are tried again, EMBSTORE_RETRIES times (10) within
    EMBSTORE_RETRY_SECONDS (180). What still fails is one line: StoreNotFoundError (no such bucket or object),
    StorageError (no right, other region, not to be reached), StoreDamagedError (fewer bytes than asked for).
    """

    def __init__(self, path: ObjectPath, client: Client) -> None:
        self.path = path
        self._client = client
        self._prefix = f"{path.key}/" if path.key else ""
        self._process = os.getpid()

    @classmethod
    def at(cls, path: ObjectPath) -> Objects:
        """Return the objects below `path`; nothing is asked of the server yet."""
        return cls(path, _client(path.scheme, path.bucket, os.getpid(), _environment()))

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
        return list(_pool().map(self.get_or_none, names))

    def get_ranges(self, name: str, starts: Sequence[int], stops: Sequence[int]) -> list[Bytes]:
        """Return the bytes `[start, stop)` of an object, one request each as given, made at the same time."""
        asked = [self.begin(name, start, stop) for start, stop in zip(starts, stops, strict=True)]
        return [answer.result() for answer in asked]

    def begin(self, name: str, start: int, stop: int) -> Future[Bytes]:
        """Ask for the bytes `[start, stop)` of an object and go on; IN_FLIGHT requests are made at a time."""
        return _pool().submit(self.get_range, name, start, stop)

    def get_range(self, name: str, start: int, stop: int) -> Bytes:
        """Return the bytes `[start, stop)` of an object by one request; StoreDamagedError where it ends before."""

        def read(key: str) -> Any:
            return _obstore().get_range(self._client, key, start=start, end=stop)

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
            answer = _obstore().get(self._client, key, options={"range": {"suffix": nbytes}})
            sizes.append(int(answer.meta["size"]))
            return _exact(answer.bytes(), min(nbytes, sizes[-1]))

        return self._read(name, read), sizes[-1]

    def size(self, name: str) -> int | None:
        """Return the bytes that an object has, None where there is none."""
        try:
            with self._telling("read", name):
                return int(_obstore().head(self._client, self._key(name))["size"])
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
                for page in _obstore().list(self._client, below, chunk_size=1000)
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
            _obstore().put(self._client, self._key(name), as_bytes(data), mode=mode, use_multipart=False)

    def put_large(self, name: str, pieces: Iterable[NDArray[Any] | bytes]) -> None:
        """Write an object piece after piece in parts of 16 MiB, whole or not at all.

        What the pieces raise ends the upload and is raised as it is.
        """
        self._refuse_web("write", name)
        flat = _Pieces(pieces)
        try:
            with self._telling("write", name):
                _obstore().put(
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
                answer = _obstore().get(self._client, self._key(name))
                tags = {key: answer.meta[key] for key in ("e_tag", "version") if answer.meta.get(key)}
                held = bytes(_exact(answer.bytes(), int(answer.meta["size"])))
            if held != before:
                return False
            with self._telling("write", name):
                _obstore().put(self._client, self._key(name), after, mode=tags, use_multipart=False)
        except (ObjectChangedError, NoSuchObjectError):
            return False
        return True

    def copy_new(self, source: str, name: str) -> None:
        """Copy an object, of at most 5 GiB, within the server. Raises ObjectExistsError where `name` is there."""
        self._refuse_web("write", name)
        with self._telling("copy", source):
            _obstore().copy(self._client, self._key(source), self._key(name), overwrite=False)

    def delete(self, name: str) -> None:
        """Remove an object, where there is one."""
        self._refuse_web("remove", name)
        try:
            with self._telling("remove", name):
                _obstore().delete(self._client, self._key(name))
        except NoSuchObjectError:
            pass

    def _key(self, name: str) -> str:
        return f"{self._prefix}{name}"

    def _whole(self, key: str) -> Any:
        answer = _obstore().get(self._client, key)
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
        from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

        _refuse_fork(self._process, os.getpid())
        try:
            yield
        except EmbstoreError:
            raise
        except AlreadyExistsError:
            raise ObjectExistsError(f"{self.url(name)} is there already") from None
        except PreconditionError:
            raise ObjectChangedError(f"{self.url(name)} was changed by another") from None
        except _Short as error:
            raise StoreDamagedError(f"{self.url(name)} is cut short: {error}; {MEND}") from None
        except (BaseError, FileNotFoundError, NotImplementedError) as error:
            text = str(error)
            if "error decoding response body" in text or "before message completed" in text:
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


def _obstore() -> Any:
    try:
        import obstore
    except ImportError as error:
        raise MissingPackageError(
            "stores at s3://, gs://, az:// and https:// need the package obstore: pip install 'embstore[objects]'"
        ) from error
    return obstore


def _environment() -> int:
    """Stands for the variables that clients are made from, so that changed ones make another client."""
    return hash(tuple(sorted(item for item in os.environ.items() if item[0].upper().startswith(_VARIABLES))))


@lru_cache(maxsize=32)
def _client(scheme: str, bucket: str, process: int, environment: int) -> Client:
    _obstore()
    _refuse_fork(*_FIRST_PROCESS[:1], process)
    _FIRST_PROCESS[:] = [process]
    from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

    retry: Any = {
        "max_retries": int(_number("EMBSTORE_RETRIES", 10)),
        "retry_timeout": timedelta(seconds=_number("EMBSTORE_RETRY_SECONDS", 180)),
        "backoff": {
            "init_backoff": timedelta(milliseconds=200),
            "max_backoff": timedelta(seconds=15),
            "base": 3,
        },
    }
    limits: Any = {"connect_timeout": "10s", "read_timeout": "60s", "timeout": "300s"}
    try:
        if scheme == "s3":
            copies = {} if "AWS_COPY_IF_NOT_EXISTS" in os.environ else {"copy_if_not_exists": "multipart"}
            return S3Store(bucket, config=limits | copies, retry_config=retry)
        if scheme == "gs":
            return GCSStore(bucket, config=limits, retry_config=retry)
        if scheme == "az":
            return AzureStore(bucket, config=limits, retry_config=retry)
        return HTTPStore(
            f"{scheme}://{bucket}",
            client_options=limits | {"allow_http": _http_allowed(scheme, bucket)},
            retry_config=retry,
        )
    except EmbstoreError:
        raise
    except Exception as error:
        raise told(error, "open", f"{scheme}://{bucket}") from None


def _http_allowed(scheme: str, host: str) -> bool:
    if scheme == "https" or _LOOPBACK.fullmatch(host) or os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("true", "1"):
        return scheme == "http"
    raise InvalidValueError(f"http://{host} is not encrypted: use https://, or set AWS_ALLOW_HTTP=true")


def _number(variable: str, default: float) -> float:
    text = os.environ.get(variable, "")
    try:
        number = float(text) if text else default
    except ValueError:
        number = -1.0
    if not 0 <= number < 10**6:
        raise InvalidValueError(f"{variable} must be a number from 0 on, not {text!r}")
    return number


def _refuse_fork(*processes: int) -> None:
    """The client's threads do not outlive a fork, and a request would wait for them for ever."""
    if len(set(processes)) > 1:
        raise StorageError(
            "this process was forked from one that has opened a store in a bucket: start workers with 'spawn' instead"
        )


@lru_cache(maxsize=1)
def _pool_of(process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="embstore-objects")


def _pool() -> ThreadPoolExecutor:
    return _pool_of(os.getpid())
