"""The client of a bucket: made from the environment, with its retries, time limits and one-line errors."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import lru_cache
from typing import Any

from embstore.errors import (
    EmbstoreError,
    InvalidValueError,
    MissingPackageError,
    StorageError,
    StoreDamagedError,
    StoreNotFoundError,
)
from embstore.store.storage.files import REPAIR_HINT
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
            f"{scheme}://{bucket}",
            client_options=limits | {"allow_http": scheme == "http"},
            retry_config=retry,
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
    """Return the one-line error for what the client raised when it tried to `verb` (read, write ...) an object.

    The message never contains a credential.
    """
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
