"""Open a store, or several as one: a list, a glob, a JSON file that lists them, or a store with appended parts."""

from __future__ import annotations

import glob
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal, TypeGuard

from embstore.errors import (
    InvalidValueError,
    StoreDamagedError,
    StoreFormatError,
    StoreNotFoundError,
    UnfinishedStoreWarning,
    quoted,
)
from embstore.store.backend import SUFFIXES, open_reader, zarr_storage
from embstore.store.collection import JoinedSource, merged_metadata
from embstore.store.merged import Member
from embstore.store.metadata import document_crc32c
from embstore.store.reading.rows import RESUME
from embstore.store.source import FileSource
from embstore.store.storage.base import KeyNotFoundError
from embstore.store.storage.files import replacing, storing
from embstore.store.storage.location import ObjectPath, parse_location, require_distinct
from embstore.store.store import Store
from embstore.store.zarr.format import APPENDED, NODE, group_node

APPENDED_VERSION = 1  # of the list of appended stores
LISTING = ".json"
AT_ONCE = 32  # remote members that are opened at the same time

Location = str | os.PathLike[str] | ObjectPath


def open_store(
    path: Location | Sequence[Location],
    *,
    verify: Literal["lazy"] | None = None,
    site: str | None = None,
) -> Store:
    """Open a store for reading, or several as one; an unfinished store is opened with an UnfinishedStoreWarning.

    `path`: a folder, a file, or a URL: s3://bucket/name.zarr, gs://, az://, https://. Several as a list, as a
    glob such as "decades/*.zarr", or as a file NAME.json with a list of paths relative to it, whose
    rows are those of the stores one after another. `site`: which vectors are read, see `Store.site`; it may also
    follow the path: "name.zarr#query". `verify`: with "lazy" the index, and each partition before a row of it is
    first read, are compared with their checksums; a remote partition is downloaded whole for it. By default a read
    does not look at the checksums of vectors: damaged bytes then read as other numbers, until `embstore.verify` is
    run.

    Example::

        store = es.open("demo.zarr")
        store.select(words="bank", layers="last").vectors()  # [1, n, hidden_size]

    Raises StoreNotFoundError, StoreFormatError for a path that is no store or one of a newer format,
    InvalidValueError for a site that is not stored, StoreMismatchError for stores that are not of the same kind of
    vectors, StoreDamagedError, StorageError.
    """
    if isinstance(path, str) and site is None and path.partition("#")[0].endswith((*SUFFIXES, LISTING)):
        path, _, site = path.partition("#")
    options: dict[str, Any] = {"verify": verify, "site": site or None}
    if isinstance(path, Sequence) and not isinstance(path, str):
        store = Store(_joined(members_at(path), options))
    else:
        location = parse_location(path)
        if is_glob(location):
            store = Store(_joined(members_at(location), options, path=location))
        elif location.suffix == LISTING:
            store = Store(_joined(members_at(location), options, path=location, is_stored=True))
        else:
            store = _opened(location, options)
    if store.n_committed_rows < store.n_rows:
        _warn_of_missing(store)
    return store


open = open_store


def next_part(store: Store) -> Path:
    """Return the path of the next part of a store on a disk."""
    return Path(str(store.path), APPENDED, _part(len(store.source.members())))


def add_part(store: Store, part: Path) -> None:
    """List a finished store in the folder of another as its last part, from when on it is read."""
    assert isinstance(store.path, Path)
    sources = [*store.source.members(), FileSource(open_reader(part))]
    merged_metadata(sources)  # raises for one that does not fit
    fields = {"version": APPENDED_VERSION, "fingerprints": [source.metadata.fingerprint for source in sources]}
    with storing(part), replacing(part.with_name(NODE)) as partial:
        partial.write_bytes(group_node({"embstore": {**fields, "crc32c": document_crc32c(fields)}}))


def _listed(path: Path | ObjectPath) -> list[Path | ObjectPath]:
    """Return the stores that a JSON file lists, a list of paths relative to it or URLs."""
    try:
        names = json.loads(zarr_storage(path.parent).get(path.name))
        if not isinstance(names, list) or not names:
            raise ValueError("it lists none")
        return [_relative(name, path.parent) for name in names]
    except KeyNotFoundError:
        raise StoreNotFoundError(f"there is no collection at {path}: it is a JSON list of paths of stores") from None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise StoreFormatError(f"{path} is not a JSON list of paths of stores ({quoted(str(error))})") from None


def _appended(node: bytes, location: Path | ObjectPath) -> dict[Path | ObjectPath, str]:
    """Return the members of a store with appended ones, itself first, and the fingerprint of each.

    Where they are follows from their number: the list has no paths.
    """
    name = f"{location}/{APPENDED}/{NODE}"
    try:
        fields = json.loads(node)["attributes"]["embstore"]
        if fields["version"] > APPENDED_VERSION:
            raise StoreFormatError(f"{name} has version {quoted(fields['version'])}: upgrade embstore")
        if fields["crc32c"] != document_crc32c(fields) or not fields["fingerprints"]:
            raise ValueError("its checksum differs")
        paths = [location, *(location / APPENDED / _part(number) for number in range(1, len(fields["fingerprints"])))]
        return dict(zip(paths, map(str, fields["fingerprints"]), strict=True))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise StoreDamagedError(
            f"{name} was changed ({type(error).__name__}: {quoted(str(error))}): put it back from a copy"
        ) from None


def _part(number: int) -> str:
    return f"{number:04}.zarr"


def _relative(name: str, folder: Path | ObjectPath) -> Path | ObjectPath:
    """Return the location that a name means in a folder; it may be a URL or lead out of the folder."""
    if "://" in name:
        return parse_location(name)
    if isinstance(folder, Path):
        return parse_location(os.path.normpath(folder / name))
    for part in name.split("/"):
        folder = folder.parent if part == ".." else folder if part == "." else folder / part
    return parse_location(str(folder))


def _matching(pattern: Path) -> list[Path]:
    """Return the stores that a glob names, in the order of their names."""
    found = [Path(each) for each in sorted(glob.glob(str(pattern))) if each.endswith(SUFFIXES)]
    if not found:
        raise StoreNotFoundError(f"no store matches {pattern}: give a glob of .zarr or .h5, such as 'decades/*.zarr'")
    return found


def _joined(
    paths: Sequence[Path | ObjectPath] | Mapping[Path | ObjectPath, str],
    options: Mapping[str, Any],
    *,
    path: Path | ObjectPath | None = None,
    is_stored: bool = False,
) -> JoinedSource:
    """Open several stores as one; `paths`: the fingerprint that each must have, if that is known."""
    known, paths = paths if isinstance(paths, Mapping) else {}, list(paths)
    require_distinct(paths)
    is_remote = any(isinstance(each, ObjectPath) for each in paths)
    with ThreadPoolExecutor(AT_ONCE) if is_remote else nullcontext() as pool:
        sources = list((map if pool is None else pool.map)(lambda each: FileSource(open_reader(each)), paths))
    for source in sources:
        if source.metadata.fingerprint != known.get(source.path, source.metadata.fingerprint):
            raise StoreDamagedError(f"{source.path} is another store than the one that was appended: put that one back")
    if path is None:
        ends = dict.fromkeys([sources[0].path.stem, sources[-1].path.stem])
        path = Path(("+" if len(sources) < 3 else "...").join(ends))
    members = [Member.of(source) for source in sources]
    return JoinedSource(path, merged_metadata(sources), members, is_stored=is_stored, **options)


def members_at(path: Location | Sequence[Location]) -> list[Path | ObjectPath]:
    """Return the stores that `open_store` would read, without opening them."""
    if isinstance(path, Sequence) and not isinstance(path, str):
        if not path:
            raise InvalidValueError("a collection needs one store or more: give a list of paths, or a glob")
        return [member for each in path for member in members_at(each)]
    location = parse_location(path)
    if is_glob(location):
        return members_at(_matching(location))
    if location.suffix == LISTING:
        return _listed(location)
    node = None if location.suffix == ".h5" else zarr_storage(location).get_or_none(f"{APPENDED}/{NODE}")
    return [location] if node is None else list(_appended(node, location))


def is_glob(location: Path | ObjectPath) -> TypeGuard[Path]:
    """Return whether a path is a pattern of several."""
    return isinstance(location, Path) and glob.has_magic(str(location)) and not os.path.lexists(location)


def _opened(location: Path | ObjectPath, options: Mapping[str, Any]) -> Store:
    """Open one store, with what was appended to it."""
    reader = open_reader(location)
    members = {} if reader.appended is None else _appended(reader.appended, location)
    if isinstance(location, Path) and os.path.isdir(folder := location / APPENDED):
        named = {path.name for path in members}
        for name in sorted(os.listdir(folder)):
            if name.endswith(".zarr") and not name.startswith(".") and name not in named:
                warnings.warn(
                    f"{folder / name} is not finished, its rows are left out: resume it by the "
                    "`embstore extract --append` command that began it, or remove it",
                    UnfinishedStoreWarning,
                    stacklevel=4,
                )
    if members:
        return Store(_joined(members, options, path=location, is_stored=True))
    return Store(FileSource(reader, **options))


def _warn_of_missing(store: Store) -> None:
    source = store.source
    if isinstance(source, JoinedSource):
        some = [each for each in source.members() if each.n_committed_rows < each.metadata.n_rows]
        where = f"in {', '.join(str(each.path) for each in some[:3])}{' and others' if len(some) > 3 else ''}"
    else:
        n_missing = int((~source.members()[0].committed).sum())
        where = f"{n_missing} of {source.layout.n_partitions} partitions"
    warnings.warn(
        f"{store.path} is not finished: {store.n_rows - store.n_committed_rows:,} of {store.n_rows:,} rows "
        f"({where}) are not written yet: {RESUME}",
        UnfinishedStoreWarning,
        stacklevel=3,
    )
