"""Open a store, or several as one: a list, a glob, a JSON file that lists them, or a store with appended parts."""

from __future__ import annotations

import glob
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Literal, TypeGuard

from embstore.errors import (
    InvalidValueError,
    StoreDamagedError,
    StoreFormatError,
    StoreNotFoundError,
    UnfinishedStoreWarning,
    check_type,
    quoted,
)
from embstore.store.backend import SUFFIXES, Reader, open_reader, zarr_storage
from embstore.store.collection import JoinedSource, merged_metadata
from embstore.store.merged import Member
from embstore.store.metadata import canonical, document_crc32c
from embstore.store.reading.rows import RESUME
from embstore.store.source import FileSource
from embstore.store.storage.base import KeyNotFoundError
from embstore.store.storage.files import REPAIR_HINT, make_folders, replacing, storing
from embstore.store.storage.location import ObjectPath, parse_location, require_distinct
from embstore.store.storage.lock import StoreLock
from embstore.store.store import Store
from embstore.store.zarr.format import APPENDED, APPENDED_NODE, NODE, PARTS, group_node

APPENDED_VERSION = 1  # of the list of appended stores
LIST = f"{PARTS}/parts.json"
LISTING = ".json"
AT_ONCE = 32  # remote members that are opened at the same time

Location = str | os.PathLike[str] | ObjectPath
Members = list[tuple[Path | ObjectPath, str | None]]  # the fingerprint that each must have, where that is known


def open_store(
    path: Location | Sequence[Location], *, verify: Literal["lazy"] | None = None, site: str | None = None
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
        store.select(words="bank", layers="last").vectors()  # [n, hidden_size]

    Raises StoreNotFoundError, StoreFormatError for a path that is no store or one of a newer format,
    InvalidValueError for a site that is not stored, StoreMismatchError for stores that are not of the same kind of
    vectors, StoreDamagedError, StorageError.
    """
    check_type("site", site, (str, type(None)), "the name of a site")
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


def part_path(path: Path, number: int) -> Path:
    """Return the path of a part of a store on a disk, from 1 on."""
    return path / APPENDED / _part(number)


def write_list(path: Path, sources: Sequence[FileSource]) -> None:
    """List a store on a disk and its finished parts, from when on they are read; also before the first is begun."""
    merged_metadata(sources)  # raises for one that does not fit
    fields = {"version": APPENDED_VERSION, "fingerprints": [source.metadata.fingerprint for source in sources]}
    listed = canonical({**fields, "crc32c": document_crc32c(fields)})
    for file, data in ((path / APPENDED_NODE, group_node({})), (path / LIST, listed)):
        with storing(file):
            make_folders(file.parent)
        with replacing(file) as new:
            new.write_bytes(data)


def restore_list(path: Path | ObjectPath) -> None:
    """List the finished parts of a store on a disk again, where their list is missing, damaged or older than they."""
    if isinstance(path, ObjectPath) or path.suffix == ".h5" or not (path / APPENDED).is_dir():
        return
    with StoreLock(path):
        with suppress(StoreDamagedError):
            members_at(path)
            return
        sources = [FileSource(open_reader(path))]
        while (part := part_path(path, len(sources))).is_dir():
            sources.append(FileSource(open_reader(part)))
        write_list(path, sources if len(sources) == 1 or sources[-1].finished else sources[:-1])


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


def _parts_of(location: Path | ObjectPath) -> Members:
    """Return a store with what was appended to it; where that is follows from its number: the list has no paths."""
    if location.suffix == ".h5":
        return [(location, None)]
    storage = zarr_storage(location)

    def damaged(what: str) -> StoreDamagedError:
        name = f"{storage.url(LIST)}, the list of what was appended,"
        return StoreDamagedError(f"{name} {what}: put it back from a copy, or {REPAIR_HINT}")

    first = storage.submit(lambda: storage.size(f"{APPENDED}/{_part(1)}/{NODE}"))
    listed = storage.get_or_none(LIST)
    if listed is None:
        if first.result() is not None:
            raise damaged("is missing")
        return [(location, None)]
    try:
        fields = json.loads(listed)
        if fields["version"] > APPENDED_VERSION:
            raise StoreFormatError(f"{storage.url(LIST)} has version {quoted(fields['version'])}: upgrade embstore")
        if fields["crc32c"] != document_crc32c(fields) or not fields["fingerprints"]:
            raise ValueError("its checksum differs")
        fingerprints = list(map(str, fields["fingerprints"]))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise damaged(f"was changed ({type(error).__name__}: {quoted(str(error))})") from None
    later = f"{APPENDED}/{_part(len(fingerprints) + 1)}"  # than the one that may have been begun
    if storage.size(f"{later}/{NODE}") is not None:
        raise damaged(f"is older than {later}")
    parts = [location / APPENDED / _part(number) for number in range(1, len(fingerprints))]
    return list(zip([location, *parts], fingerprints, strict=True))


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
    paths: Members, options: Mapping[str, Any], *, path: Path | ObjectPath | None = None, is_stored: bool = False
) -> JoinedSource:
    require_distinct(each for each, _ in paths)
    is_remote = any(isinstance(each, ObjectPath) for each, _ in paths)
    with ThreadPoolExecutor(AT_ONCE) if is_remote else nullcontext() as pool:
        sources = list((map if pool is None else pool.map)(lambda each: FileSource(member_reader(*each)), paths))
    _warn_of_begun(paths)
    if path is None:
        ends = dict.fromkeys([sources[0].path.stem, sources[-1].path.stem])
        path = Path(("+" if len(sources) < 3 else "...").join(ends))
    members = [Member.of(source) for source in sources]
    return JoinedSource(path, merged_metadata(sources), members, is_stored=is_stored, **options)


def member_reader(path: Path | ObjectPath, fingerprint: str | None) -> Reader:
    """Open a member, which where it was appended must be the store that was."""
    try:
        reader = open_reader(path)
    except (StoreNotFoundError, StoreFormatError, StoreDamagedError) as error:
        if fingerprint is None or path.parent.name != APPENDED:
            raise
        repair = "put it back from a copy, or extract its corpus to this path again with --repair"
        raise StoreDamagedError(f"{path}, which was appended, is missing or damaged ({error}): {repair}") from None
    if fingerprint not in (None, reader.metadata.fingerprint):
        raise StoreDamagedError(
            f"{path} is another store than the list of appended parts ({LIST}) names: put that store, or the list, "
            "back from a copy"
        )
    return reader


def members_at(path: Location | Sequence[Location]) -> Members:
    """Return the stores that `open_store` would read, without opening them."""
    if isinstance(path, Sequence) and not isinstance(path, str):
        if not path:
            raise InvalidValueError("a collection needs one store or more: give a list of paths, or a glob")
        return _each(members_at, path)
    location = parse_location(path)
    if is_glob(location):
        return _each(_parts_of, _matching(location))
    if location.suffix == LISTING:
        return _each(_parts_of, _listed(location))
    return _parts_of(location)


def _each(find: Callable[[Any], Members], paths: Sequence[Any]) -> Members:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [member for members in pool.map(find, paths) for member in members]


def is_glob(location: Path | ObjectPath) -> TypeGuard[Path]:
    """Return whether a path is a pattern of several."""
    return isinstance(location, Path) and glob.has_magic(str(location)) and not os.path.lexists(location)


def _opened(location: Path | ObjectPath, options: Mapping[str, Any]) -> Store:
    """Open one store, with what was appended to it."""
    if isinstance(location, Path):
        reader, members = open_reader(location), _parts_of(location)
    else:
        with ThreadPoolExecutor(1) as pool:  # a bucket is asked at the same time
            found = pool.submit(_parts_of, location)
            reader = open_reader(location)
        members = found.result()
    if len(members) > 1:
        return Store(_joined(members, options, path=location, is_stored=True))
    _warn_of_begun(members)
    return Store(FileSource(reader, **options))


def _warn_of_begun(members: Members) -> None:
    known = {path for path, _ in members}
    for folder in [path / APPENDED for path in known if isinstance(path, Path)]:
        for part in sorted(folder.glob("[!.]*.zarr")):
            if part not in known:
                warnings.warn(
                    f"{part} is not finished, its rows are left out: resume it by the `embstore extract --append` "
                    "command that began it, or remove it",
                    UnfinishedStoreWarning,
                    stacklevel=4,
                )


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
