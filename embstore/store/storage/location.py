"""Addresses of objects, told from paths; none holds a credential."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from embstore.errors import InvalidValueError
from embstore.store.storage.object_errors import bucket_of

SCHEMES = ("s3", "gs", "az", "https", "http")

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.S)
_MANGLED = re.compile(r"(s3|gs|az|https?):/(?!/)")


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
