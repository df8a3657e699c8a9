"""A storage in a bucket, or on a plain web server, through obstore.

Credentials, endpoint and region come from the client's own environment variables and are neither stored nor shown.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar

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
from embstore.store.storage.base import (
    MAX_GET_NBYTES,
    READ_NBYTES,
    KeyExistsError,
    KeyNotFoundError,
    Parts,
    Storage,
    Version,
)
from embstore.store.storage.files import REPAIR_HINT, Bytes, as_bytes
from embstore.store.storage.location import ObjectPath

READ_TIMEOUT = "60s"  # of silence, after which a request is repeated
IN_FLIGHT = 32  # requests at a time, with which one client fills a fast network

_LOOPBACK = re.compile(r"(localhost|127\.[0-9.]+|\[::1\])(:\d+)?")
_VARIABLES = ("AWS_", "GOOGLE_", "AZURE_", "EMBSTORE_")
_FIRST_PROCESS: list[int] = []

_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY; AWS_SKIP_SIGNATURE=true for a public bucket",
    "gs": "GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS; GOOGLE_SKIP_SIGNATURE=true for a public bucket",
    "az": "AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or another credential",
}
_NO_BUCKET = re.compile(r"NoSuchBucket|bucket does not exist|ContainerNotFound|container does not exist", re.I)
_OTHER_REGION = re.compile(
    r"AuthorizationHeaderMalformed|PermanentRedirect|IllegalLocationConstraint|without LOCATION|code: 301"
)
_STATUS = re.compile(r"status code: (\d{3}(?: [A-Za-z ]+)?)")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_RETRIES = re.compile(r"after (\d+) retries")
_CONNECTION = (
    ("ConnectionRefused", "connection refused"),
    ("dns error", "its name cannot be resolved"),
    ("certificate", "its certificate is not valid"),
    ("imed", "no answer in time"),
)
_INSTANCE = re.compile(r"169\.254\.|metadata\.google\.internal|fd00:ec2")
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|CREDENTIAL|PASSWORD|SIGNATURE|SAS", re.I)


def obstore() -> Any:
    try:
        import obstore as package
    except ImportError as error:
        raise MissingPackageError(
            "stores at s3://, gs://, az:// and https:// need the package obstore: pip install 'embstore[objects]'"
        ) from error
    return package


def client(path: ObjectPath) -> Any:
    """Return the client of a bucket: one per bucket, process and state of the environment variables."""
    environment = tuple(sorted(item for item in os.environ.items() if item[0].upper().startswith(_VARIABLES)))
    return _client(path.scheme, path.bucket, os.getpid(), hash(environment))


@lru_cache(maxsize=32)
def _client(scheme: str, bucket: str, process: int, environment: int) -> Any:
    obstore()
    refuse_fork(*_FIRST_PROCESS[:1], process)
    _FIRST_PROCESS[:] = [process]
    from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

    retry: Any = {
        "max_retries": int(setting("EMBSTORE_RETRIES", 10)),
        "retry_timeout": timedelta(seconds=180),
        "backoff": {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=15), "base": 3},
    }
    limits: Any = {"connect_timeout": "10s", "read_timeout": READ_TIMEOUT, "timeout": "300s"}
    try:
        if scheme == "s3":
            copies = {} if "AWS_COPY_IF_NOT_EXISTS" in os.environ else {"copy_if_not_exists": "multipart"}
            return S3Store(bucket, config=limits | copies, retry_config=retry)
        if scheme == "gs":
            return GCSStore(bucket, config=limits, retry_config=retry)
        if scheme == "az":
            return AzureStore(bucket, config=limits, retry_config=retry)
        allowed = _LOOPBACK.fullmatch(bucket) or os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("true", "1")
        if scheme == "http" and not allowed:
            raise InvalidValueError(f"http://{bucket} is not encrypted: use https://, or set AWS_ALLOW_HTTP=true")
        return HTTPStore(
            f"{scheme}://{bucket}", client_options=limits | {"allow_http": scheme == "http"}, retry_config=retry
        )
    except EmbstoreError:
        raise
    except Exception as error:
        raise translated(error, "open", ObjectPath(f"{scheme}://{bucket}"), "") from None


def setting(variable: str, default: float) -> float:
    """Return the number in an environment variable."""
    text = os.environ.get(variable, "")
    try:
        number = float(text) if text else default
    except ValueError:
        number = -1.0
    if not 0 <= number < 10**6:
        raise InvalidValueError(f"{variable} must be a number of at least 0, not {text!r}")
    return number


def refuse_fork(*processes: int) -> None:
    """Raise StorageError in a forked child: the client's threads do not survive a fork and requests would hang."""
    if len(set(processes)) > 1:
        raise StorageError(
            "this process was forked from one that has opened a store in a bucket: start workers with 'spawn' instead"
        )


@lru_cache(maxsize=1)
def pool(process: int) -> ThreadPoolExecutor:
    """Return the threads that make requests, one pool per process."""
    return ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="embstore-objects")


def translated(error: Exception, verb: str, path: ObjectPath, key: str) -> EmbstoreError:
    """Return the one-line error for what the client raised when it tried to `verb` (read, write ...) an object."""
    text, url = str(error), f"{path}/{key}" if key else str(path)
    failed, names = f"cannot {verb} {url}", _CREDENTIALS.get(path.scheme)
    status, code, retries = _STATUS.search(text), _CODE.search(text), _RETRIES.search(text)
    answer = " ".join([*(status[1].split() if status else ()), *(code.groups() if code else ())])
    number = int(status[1][:3]) if status else 0
    tries = f", {int(retries[1]) + 1} tries" if retries else ""
    if _NO_BUCKET.search(text):
        return StoreNotFoundError(f"there is no bucket {path.bucket!r} for {url}: check the name and the endpoint")
    if _OTHER_REGION.search(text):
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "not set: us-east-1"
        return StorageError(f"{failed}: its bucket is in another region than AWS_REGION ({region}): set AWS_REGION")
    if _INSTANCE.search(text):
        return StorageError(f"{failed}: there are no credentials in the environment: set {names}")
    if verb == "open":  # no request was made: the environment does not suffice to make one
        return StorageError(f"{failed}: {cleaned(text)}; set {names}")
    if type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError") or number in (401, 403):
        check = f"the environment's {names}" if names else "that it is public: credentials are not sent over https://"
        return StorageError(f"{failed}: permission denied ({answer or 'refused'}); check {check}")
    if type(error).__name__ == "NotSupportedError" and "ange" in text:
        return StorageError(f"{failed}: the server does not serve ranges of files, which reading rows needs")
    if number == 416 or "Invalid range" in text:
        return StoreDamagedError(f"{url} is cut short: {REPAIR_HINT}")
    if number >= 500 or number in (408, 429):
        return StorageError(f"{failed}: the server answers {answer}{tries}; run the same command again later")
    if "BadScheme" in text:
        return StorageError(f"{failed}: its endpoint is http://, not https://; AWS_ALLOW_HTTP=true allows it")
    if not status and ("error sending request" in text or "HTTP error" in text):
        reason = next((reason for sign, reason in _CONNECTION if sign in text), "the connection is lost")
        return StorageError(f"{failed}: the server cannot be reached, {reason}{tries}")
    return StorageError(f"{failed}: " + (f"the server answers {answer}" if answer else cleaned(text)))


def cleaned(text: str) -> str:
    """Return the first line of a message without query strings, user names of URLs and values of secret variables."""
    line = text.splitlines()[0] if text else "no reason given"
    line = re.sub(r"(\w+://)[^\s/@]*@", r"\1", line)
    line = re.sub(r"\?\S*", "", line)
    for name, value in os.environ.items():
        if len(value) >= 4 and _SECRET_NAME.search(name):
            line = line.replace(value, "***")
    return line[:300]


PART_NBYTES = 16 * 2**20  # 10,000 parts, which S3 allows, are then 156 GiB
LARGE_NBYTES = PART_NBYTES  # a larger object is uploaded in parts
COPY_NBYTES = 5 * 2**30  # what a server copies in one step
TRIES = 6  # of a conditional write whose answer is lost, over 1.5 seconds

_PARTS_AHEAD = 4  # of 8 MiB each while an object is read from its beginning to its end
_READ_TRIES = 3  # of a body that breaks off; the client itself repeats the rest
_FIRST_WAIT = 0.05  # seconds; doubled with each try
_LOST = ("error decoding response body", "request or response body error", "before message completed")

T = TypeVar("T")


class ConnectionLostError(StorageError):
    """The connection broke in the middle of a request or an answer, so that it may have been done."""


class _TooShortError(Exception):
    pass


class ObjectStorage(Storage):
    """The objects below a URL, by names relative to it. Made by `ObjectStorage.at`.

    Failures that may pass (5xx, throttling, lost connections, silence of a minute) are retried EMBSTORE_RETRIES times
    (10). `temporary`: the prefix below which large objects are uploaded before they are copied to their name.
    """

    def __init__(self, path: ObjectPath, client: Any, *, temporary: str = ".tmp") -> None:
        self.path: ObjectPath = path
        self.can_list = path.scheme not in ("https", "http")  # a plain web server does not list its files
        self._client = client
        self._prefix = f"{path.key}/" if path.key else ""
        self._temporary = temporary
        self._process = os.getpid()

    @classmethod
    def at(cls, path: ObjectPath, *, temporary: str = ".tmp") -> ObjectStorage:
        """Return the storage of a URL; makes no request yet."""
        return cls(path, client(path), temporary=temporary)

    def get_versioned(self, key: str) -> tuple[bytes, Version]:
        body, meta = self._read(key, lambda nbytes: nbytes)
        return body.tobytes(), _version(meta)

    def version(self, key: str) -> Version | None:
        meta = self._head(key)
        return None if meta is None else _version(meta)

    def get_range(self, key: str, start: int, stop: int, version: Version | None = None) -> Bytes:
        tag = version[0] if version else None
        options = {"range": (start, stop), **({"if_match": tag} if tag else {})}
        return self._read(key, lambda nbytes: stop - start, options)[0]

    def tail(self, key: str, nbytes: int) -> tuple[Bytes, int, Version]:
        if self.path.scheme == "az":  # Azure takes no ranges from the end
            return super().tail(key, nbytes)
        body, meta = self._read(key, lambda size: min(nbytes, size), {"range": {"suffix": nbytes}})
        return body, int(meta["size"]), _version(meta)

    def size(self, key: str) -> int | None:
        meta = self._head(key)
        return None if meta is None else int(meta["size"])

    def _head(self, key: str) -> Any:
        try:
            with self._translating("read", key):
                return obstore().head(self._client, self._prefix + key)
        except KeyNotFoundError:
            return None

    def sizes(self, prefix: str = "") -> dict[str, int]:
        if not self.can_list:
            raise StorageError(f"cannot list {self.url(prefix)}: a web server does not list its files")
        below = (self._prefix + prefix).rstrip("/") or None
        with self._translating("list", prefix):
            return {
                entry["path"][len(self._prefix) :]: int(entry["size"])
                for page in obstore().list(self._client, below, chunk_size=1000)
                for entry in page
            }

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run a function in the pool of 32 request threads; it must not wait for another one submitted here."""
        return pool(os.getpid()).submit(work)

    def iter_parts(self, key: str, size: int) -> Iterator[Bytes]:
        ahead: deque[Future[Bytes]] = deque()
        for start in range(0, size, READ_NBYTES):
            stop = min(start + READ_NBYTES, size)
            ahead.append(self.submit(lambda start=start, stop=stop: self.get_range(key, start, stop)))  # type: ignore[misc]
            if len(ahead) > _PARTS_AHEAD:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()

    def put(self, key: str, parts: Parts) -> None:
        self._refuse_web("write", key)
        flat = [as_bytes(part) for part in parts]
        if sum(map(len, flat)) > LARGE_NBYTES:
            self._upload(key, flat)
            return
        with self._translating("write", key):
            obstore().put(self._client, self._prefix + key, np.concatenate(flat), use_multipart=False)

    def put_new(self, key: str, parts: Parts) -> bool:
        """Write an object that does not exist yet; False where it does, which may be one's own after a lost answer.

        Servers decide this for one request of at most 16 MiB. A larger object is uploaded in parts to a temporary
        name and copied from there, which the server decides likewise.
        """
        self._refuse_web("write", key)
        flat = [as_bytes(part) for part in parts]
        nbytes = sum(map(len, flat))
        if nbytes <= LARGE_NBYTES:
            body, options = np.concatenate(flat), {"mode": "create", "use_multipart": False}
            return self._create("write", key, lambda name: obstore().put(self._client, name, body, **options))
        if self.size(key) is not None:
            return False
        if nbytes > COPY_NBYTES:  # an index column of 6 * 10^8 words and more: no shard is so large
            self._upload(key, flat)
            return True
        temporary = f"{self._temporary}/{uuid.uuid4().hex}"
        try:
            self._upload(temporary, flat)
            source = self._prefix + temporary
            return self._create("copy", key, lambda name: obstore().copy(self._client, source, name, overwrite=False))
        finally:
            with suppress(EmbstoreError):  # what remains is removed by `finish`
                self.delete(temporary)

    def delete(self, key: str) -> None:
        self._refuse_web("remove", key)
        with suppress(KeyNotFoundError), self._translating("remove", key):
            obstore().delete(self._client, self._prefix + key)

    def finish(self) -> None:
        for key in self.sizes(self._temporary):
            self.delete(key)

    def is_tidy(self) -> bool:
        return not self.can_list or not self.sizes(self._temporary)

    def _upload(self, key: str, flat: Iterable[NDArray[Any]]) -> None:
        """Write an object in parts of 16 MiB, four at a time."""
        with self._translating("write", key):
            options = {"use_multipart": True, "chunk_size": PART_NBYTES, "max_concurrency": 4}
            obstore().put(self._client, self._prefix + key, iter(flat), **options)

    def _create(self, verb: str, key: str, write: Callable[[str], object]) -> bool:
        """Run a conditional write, again where its answer was lost: the client itself does not repeat it."""
        for trial in range(TRIES):
            try:
                with self._translating(verb, key):
                    write(self._prefix + key)
                return True
            except KeyExistsError:
                return False
            except ConnectionLostError:
                if trial == TRIES - 1:
                    raise
                time.sleep(_FIRST_WAIT * 2**trial)
        raise AssertionError

    def _read(self, key: str, expected: Callable[[int], int], options: Any = None) -> tuple[Bytes, Any]:
        """Read by one request, or again; `expected`: returns how many bytes are due from an object of a size."""
        for trial in range(_READ_TRIES):
            try:
                with self._translating("read", key):
                    answer = obstore().get(self._client, self._prefix + key, options=options)
                    size = int(answer.meta["size"])
                    if options is None and size > MAX_GET_NBYTES:
                        raise StoreDamagedError(f"{self.url(key)} has {size:,} bytes: {REPAIR_HINT}")
                    body = np.frombuffer(answer.bytes(), np.uint8)
                    if len(body) != expected(size):
                        raise _TooShortError(f"{len(body):,} bytes received, expected {expected(size):,}")
                    return body, answer.meta
            except (ConnectionLostError, StoreDamagedError):
                if trial == _READ_TRIES - 1:
                    raise
        raise AssertionError

    @contextmanager
    def _translating(self, verb: str, key: str) -> Iterator[None]:
        """Raise one-line errors in place of the client's own."""
        raised = obstore().exceptions
        refuse_fork(self._process, os.getpid())
        try:
            yield
        except EmbstoreError:
            raise
        except raised.AlreadyExistsError:
            raise KeyExistsError(f"{self.url(key)} exists already") from None
        except raised.PreconditionError:
            raise StoreDamagedError(f"{self.url(key)} was replaced since it was opened: open the store again") from None
        except _TooShortError as error:
            raise StoreDamagedError(f"{self.url(key)} is cut short: {error}; {REPAIR_HINT}") from None
        except (raised.BaseError, FileNotFoundError, NotImplementedError) as error:
            if any(sign in str(error) for sign in _LOST):
                lost = f"cannot {verb} {self.url(key)}: the connection was lost; run the same command again"
                raise ConnectionLostError(lost) from None
            known = translated(error, verb, self.path, key)
            if isinstance(error, FileNotFoundError) and not isinstance(known, StoreNotFoundError):
                known = KeyNotFoundError(f"{self.url(key)} does not exist")
            raise known from None

    def _refuse_web(self, verb: str, key: str) -> None:
        if not self.can_list:
            raise InvalidValueError(f"cannot {verb} {self.url(key)}: stores at {self.path.scheme}:// are read-only")


def _version(meta: Any) -> Version:
    """Return the ETag of an object from its metadata; without one to compare with, its size and time."""
    tag = meta["e_tag"]
    return (tag,) if tag and not tag.startswith("W/") else (None, int(meta["size"]), str(meta["last_modified"]))
