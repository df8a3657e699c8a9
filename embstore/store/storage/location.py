"""Locations of stores: local paths and object-store URLs; none ever holds a credential."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from embstore.errors import InvalidValueError, quoted

SCHEMES = ("s3", "gs", "az", "https", "http")

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.S)
_ONE_SLASH = re.compile(r"(s3|gs|az|https?):/(?!/)")


@dataclass(frozen=True, order=True)
class ObjectPath:
    """The URL of an object or a prefix, such as "s3://bucket/prefix", without a slash at its end."""

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
        return self.url.partition("://")[2].partition("/")[0]

    @property
    def key(self) -> str:
        """What follows the bucket, without the slash between."""
        return self.url.partition("://")[2].partition("/")[2]

    @property
    def name(self) -> str:
        return Path(self.key).name

    @property
    def suffix(self) -> str:
        return Path(self.key).suffix

    @property
    def stem(self) -> str:
        return Path(self.key).stem

    @property
    def parent(self) -> ObjectPath:
        """The prefix above; of a bucket, the bucket itself."""
        return ObjectPath(self.url.rpartition("/")[0]) if self.key else self

    def with_name(self, name: str) -> ObjectPath:
        return self.parent / name


def parse_location(location: str | os.PathLike[str] | ObjectPath) -> Path | ObjectPath:
    """Parse a local path or an object-store URL (s3://, gs://, az://, https://).

    A path that is a symbolic link becomes what it points to: a store, its lock and its repair are in one place,
    whatever name they are given. Raises InvalidValueError for anything else, and for a URL with another scheme,
    without a bucket, or with a credential in it.
    """
    if isinstance(location, ObjectPath):
        return location
    if not isinstance(location, str | os.PathLike):
        raise InvalidValueError(f"a store is named by its path or URL, not by {quoted(location)}")
    text = os.fsdecode(location)
    try:
        is_path = bool(text) and b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:  # half of a surrogate pair
        is_path = False
    if not is_path:
        raise InvalidValueError(f"{quoted(text)} cannot be the path of a store")
    url = _URL.fullmatch(text)
    if url is None:
        if _ONE_SLASH.match(text):
            raise InvalidValueError(f"{text} has only one slash: pass a URL as a string, not as a Path")
        return Path(os.path.realpath(text)) if os.path.islink(text) else Path(text)
    scheme, rest = url[1].lower(), url[2].rstrip("/")
    bucket, _, key = rest.partition("/")
    if scheme not in SCHEMES:
        raise InvalidValueError(f"{scheme}:// is not supported: use a path, s3://, gs://, az:// or https://")
    if "@" in bucket or "?" in rest or "#" in rest:  # the message must not repeat what may be a password or signature
        raise InvalidValueError(
            f"a {scheme}:// URL may not contain a user name, ? or #: credentials come from the environment only"
        )
    if not bucket or any(part in ("", ".", "..") for part in (key.split("/") if key else ())):
        raise InvalidValueError(f"{text} is not the URL of a store; expected {scheme}://{bucket or 'bucket'}/name.zarr")
    return ObjectPath(f"{scheme}://{rest}")


def exists_already(path: Path | ObjectPath) -> InvalidValueError:
    """Return the error for a path at which no store can be created, since something is there."""
    return InvalidValueError(f"{path} exists already: choose another path, or remove it first")


def require_distinct(locations: Iterable[str | os.PathLike[str] | ObjectPath]) -> None:
    """Raise InvalidValueError if two paths or URLs of stores name one place, by whatever spelling or link."""
    known: dict[str, object] = {}
    for location in locations:
        path = parse_location(location)
        place = os.path.realpath(path) if isinstance(path, Path) else str(path)
        if place in known:
            spelled = "" if str(known[place]) == str(location) else f", once as {known[place]}"
            raise InvalidValueError(f"the store {location} is given twice{spelled}: give each once")
        known[place] = location


def member_names(paths: Sequence[Path | ObjectPath]) -> list[str]:
    """Return the names of members: those of their files without the ending, with as many folders as they differ in.

    Where only the endings distinguish two members, as a.zarr and a.h5, all names have theirs.
    """
    for with_ending in (False, True):
        parts = [[*str(path).split("/")[:-1], path.name if with_ending else path.stem] for path in paths]
        for depth in range(1, max(map(len, parts)) + 1):
            names = ["/".join(each[-depth:]) for each in parts]
            if len(set(names)) == len(names):
                return names
    return [str(path) for path in paths]
