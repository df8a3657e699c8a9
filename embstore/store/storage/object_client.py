"""Clients of buckets, made from the environment: their credentials, retries and time limits; imports obstore."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import lru_cache
from typing import Any

from embstore.errors import EmbstoreError, InvalidValueError, MissingPackageError, StorageError
from embstore.store.storage.location import ObjectPath
from embstore.store.storage.object_errors import told

IN_FLIGHT = 32

_LOOPBACK = re.compile(r"(localhost|127\.[0-9.]+|\[::1\])(:\d+)?")
_VARIABLES = ("AWS_", "GOOGLE_", "AZURE_", "EMBSTORE_")
_FIRST_PROCESS: list[int] = []


def obstore() -> Any:
    try:
        import obstore as package
    except ImportError as error:
        raise MissingPackageError(
            "stores at s3://, gs://, az:// and https:// need the package obstore: pip install 'embstore[objects]'"
        ) from error
    return package


def _environment() -> int:
    """Stands for the variables that clients are made from, so that changed ones make another client."""
    return hash(tuple(sorted(item for item in os.environ.items() if item[0].upper().startswith(_VARIABLES))))


def client(path: ObjectPath) -> Any:
    """Return the client of a bucket, made from the environment as it is now; one a bucket, process and environment."""
    return _client(path.scheme, path.bucket, os.getpid(), _environment())


@lru_cache(maxsize=32)
def _client(scheme: str, bucket: str, process: int, environment: int) -> Any:
    obstore()
    refuse_fork(*_FIRST_PROCESS[:1], process)
    _FIRST_PROCESS[:] = [process]
    from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

    retry: Any = {
        "max_retries": int(setting("EMBSTORE_RETRIES", 10)),
        "retry_timeout": timedelta(seconds=setting("EMBSTORE_RETRY_SECONDS", 180)),
        "backoff": {
            "init_backoff": timedelta(milliseconds=200),
            "max_backoff": timedelta(seconds=15),
            "base": 3,
        },
    }
    silence = setting("EMBSTORE_SILENCE_SECONDS", 60)
    limits: Any = {"connect_timeout": "10s", "read_timeout": f"{silence * 1000:.0f}ms", "timeout": "300s"}
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


def setting(variable: str, default: float) -> float:
    """Return the number that an environment variable holds."""
    text = os.environ.get(variable, "")
    try:
        number = float(text) if text else default
    except ValueError:
        number = -1.0
    if not 0 <= number < 10**6:
        raise InvalidValueError(f"{variable} must be a number from 0 on, not {text!r}")
    return number


def refuse_fork(*processes: int) -> None:
    """The client's threads do not outlive a fork, and a request would wait for them for ever."""
    if len(set(processes)) > 1:
        raise StorageError(
            "this process was forked from one that has opened a store in a bucket: start workers with 'spawn' instead"
        )


@lru_cache(maxsize=1)
def _pool_of(process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="embstore-objects")


def pool() -> ThreadPoolExecutor:
    return _pool_of(os.getpid())
