"""Indexes on disk: where they stand beside a store, what they say of themselves, and which are to be trusted."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from embstore.analysis.neighbors.space import Space
from embstore.errors import InvalidValueError, SearchIndexError, SearchIndexNotFoundError, StoreBusyError
from embstore.store import Store
from embstore.store.metadata import canonical, document_crc32c
from embstore.store.storage.files import crc32c_of_file, fsync_folder, remove, storing, write_file
from embstore.store.zarr.format import INDEXES

FORMAT_VERSION = 1
CHECKED_NBYTES = 2**30  # up to so many a file is held against its checksum whenever it is opened
METADATA, SPACE, FAISS = "index.json", "space.npz", "index.faiss"
RECIPE, LONGEST = "recipe.json", "longest.json"  # while it is built


@dataclass(frozen=True)
class StoredFile:
    """A file's size and the CRC32C of its bytes."""

    nbytes: int
    crc32c: int


@dataclass(frozen=True)
class Recipe:
    """All that decides an index: the store's state (`digest`), the space and the parameters."""

    digest: str
    layer: int
    kind: str
    factory: str
    metric: str
    center: bool
    components: int
    rows: int
    hidden_size: int
    train_rows: int
    seed: int


@dataclass(frozen=True)
class IndexInfo:
    """What an index says of itself; `longest`: the length of the longest vector in it, as it is compared."""

    name: str
    recipe: Recipe
    parameters: Mapping[str, int]
    longest: float
    files: Mapping[str, StoredFile]
    software: Mapping[str, str] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for file in self.files.values())


@dataclass(frozen=True)
class IndexState:
    """An index beside a store: `state` is ready, stale, damaged or building, `what` says why it is not ready."""

    name: str
    state: str
    what: str
    info: IndexInfo | None


def folder_of(store: Store) -> Path:
    """Where a store's indexes stand: in an array of a Zarr store, where no tool looks for members; beside a file."""
    if not isinstance(store.path, Path):
        raise InvalidValueError(
            f"{store.path} can have no index, which stands beside a store on a disk: search without, or copy the store"
        )
    return store.path / INDEXES if store.path.is_dir() else store.path.with_name(f"{store.path.name}.index")


def building_folder(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.new")


def checked_name(name: str) -> str:
    """Refuse a name that is no plain name of a folder."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}", name):
        raise InvalidValueError(
            f"name {name!r} is not allowed: give letters, digits, _, ., + or -, 100 at most, no . or - first"
        )
    return name


def default_name(recipe: Recipe) -> str:
    kind = re.sub(r"[^A-Za-z0-9_.+-]+", "-", recipe.kind).strip("-.")
    space = f"-less{recipe.components}" if recipe.components else "-centered" if recipe.center else ""
    return checked_name(f"layer{recipe.layer}-{kind}-{recipe.metric}{space}"[:100])


def list_indexes(store: Store) -> list[IndexState]:
    """The indexes of a store by name, finished or not; nothing but their metadata and the sizes of files is read."""
    found: dict[str, IndexState] = {}
    if not isinstance(store.path, Path):
        return []
    root = folder_of(store)
    for entry in sorted(os.listdir(root)) if root.is_dir() else []:
        building = re.fullmatch(r"\.(.+)\.new", entry)
        if building:
            found.setdefault(building[1], IndexState(building[1], "building", "it is not finished", None))
        elif not entry.startswith(".") and (root / entry).is_dir():
            found[entry] = _state(store, root / entry)
    return [found[name] for name in sorted(found)]


def _state(store: Store, folder: Path) -> IndexState:
    info = None
    try:
        info = read_info(folder)
        require_fresh(store, info)
        check_files(folder, info, whole=False)
    except SearchIndexError as error:
        state = "damaged" if info is None or info.recipe.digest == store.digest else "stale"
        return IndexState(folder.name, state, str(error), info)
    return IndexState(folder.name, "ready", "", info)


def remove_index(store: Store, name: str) -> None:
    """Remove an index, finished or not. Raises SearchIndexNotFoundError, StorageError."""
    folder = folder_of(store) / checked_name(name)
    building = building_folder(folder)
    if not folder.is_dir() and not building.is_dir():
        raise not_found(store, name)
    with storing(folder):
        remove(building)
        remove(_old(folder))
        discard(folder)


def not_found(store: Store, name: str) -> SearchIndexNotFoundError:
    names = [found.name for found in list_indexes(store)]
    near = get_close_matches(name, names, n=1)
    there = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(names)}" if names else "it has none"
    return SearchIndexNotFoundError(f"{store.path} has no index {name!r}: {there}")


def read_info(folder: Path) -> IndexInfo:
    """Read what an index says of itself. Raises SearchIndexError where that is not what was written."""
    try:
        fields = json.loads((folder / METADATA).read_bytes())
        if fields["format_version"] > FORMAT_VERSION:
            raise SearchIndexError(
                f"the index {folder} has format {fields['format_version']}, newer than {FORMAT_VERSION}, the newest "
                "that this version reads: upgrade embstore"
            )
        if document_crc32c(fields) != fields.pop("crc32c"):
            raise ValueError("its checksum differs")
        files = {name: StoredFile(**file) for name, file in fields.pop("files").items()}
        info = IndexInfo(recipe=Recipe(**fields.pop("recipe")), files=files, **fields)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise SearchIndexError(f"the index {folder} is damaged ({METADATA}: {reason}): {again(folder)}") from None
    return info


def again(folder: Path) -> str:
    """What to do about an index that cannot be used."""
    return f"build it again with embstore index (--name {folder.name}), or remove it (--remove {folder.name})"


def require_fresh(store: Store, info: IndexInfo) -> None:
    """Raise SearchIndexError where an index is not of this store as it is now."""
    folder = folder_of(store) / info.name
    recipe = info.recipe
    if recipe.rows != store.n_rows or recipe.hidden_size != store.hidden_size or recipe.layer not in store.layers:
        what = f"is of another store ({recipe.rows:,} rows of {recipe.hidden_size}, layer {recipe.layer})"
    elif recipe.digest != store.digest:
        what = f"is stale: {store.path} was written again since, or is another store"
    else:
        return
    raise SearchIndexError(f"the index {info.name} {what}: {again(folder)}")


def check_files(folder: Path, info: IndexInfo, *, whole: bool) -> None:
    """Hold the files of an index against their sizes and, if `whole`, their checksums. Raises SearchIndexError."""
    for name, expected in info.files.items():
        try:
            nbytes = (folder / name).stat().st_size
            crc = crc32c_of_file(folder / name)[0] if whole and nbytes == expected.nbytes else expected.crc32c
        except OSError as error:
            what = f"{name}: {os.strerror(error.errno or 0)}"
            raise SearchIndexError(f"the index {folder} is damaged ({what}): {again(folder)}") from None
        if nbytes != expected.nbytes or crc != expected.crc32c:
            fault = f"has {nbytes:,} bytes, not {expected.nbytes:,}" if nbytes != expected.nbytes else "was changed"
            raise SearchIndexError(f"the index {folder} is damaged ({name} {fault}): {again(folder)}")


def read_space(path: Path, recipe: Recipe) -> Space:
    if not recipe.center and not recipe.components:
        return Space(recipe.metric)
    with np.load(path) as held:
        return Space(recipe.metric, held["mean"], held["components"] if recipe.components else None)


def write_space(path: Path, space: Space) -> None:
    """Write mean and components, float64, where there are any."""
    held = {"mean": space.mean, "components": space.components}
    arrays = {name: array for name, array in held.items() if array is not None}
    if arrays:
        partial = path.with_name(f".{path.name}")
        with open(partial, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)


def write_info(folder: Path, info: IndexInfo) -> None:
    fields: dict[str, Any] = json.loads(canonical(asdict(info)))
    fields["crc32c"] = document_crc32c(fields)
    text = json.dumps(dict(sorted(fields.items())), indent=2, ensure_ascii=False) + "\n"
    place_file(folder / METADATA, text.encode())


def place_file(path: Path, data: bytes) -> None:
    """Write a file under another name, lasting, then rename it."""
    partial = path.with_name(f".{path.name}")
    write_file(partial, [data])
    os.replace(partial, path)
    fsync_folder(path.parent)


def stored_file(path: Path) -> StoredFile:
    crc, nbytes = crc32c_of_file(path)
    return StoredFile(nbytes, crc)


@contextmanager
def building(folder: Path) -> Iterator[Path]:
    """Make or find the folder in which an index is built, held by one process. Raises StoreBusyError."""
    new = building_folder(folder)
    with storing(new):
        new.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(new, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not new.exists() or not os.path.samestat(os.fstat(descriptor), os.stat(new)):
                raise BlockingIOError
            yield new
        except BlockingIOError:
            raise StoreBusyError(
                f"another process is building the index {folder.name}; wait until it ends, or stop it"
            ) from None
        finally:
            os.close(descriptor)


def put_in_place(folder: Path) -> None:
    """Give a built index its name, in place of one that was there."""
    tidy(folder)
    if folder.is_dir():
        os.rename(folder, _old(folder))
    os.rename(building_folder(folder), folder)
    fsync_folder(folder.parent)
    tidy(folder)


def tidy(folder: Path) -> None:
    """Remove what is of no use once an index is built, and the index that stood in its place."""
    remove(_old(folder))
    for name in (RECIPE, LONGEST):
        remove(folder / name)


def discard(folder: Path) -> None:
    """Remove a folder, and that of all indexes where it was the last."""
    remove(folder)
    if not os.listdir(folder.parent):
        folder.parent.rmdir()


def _old(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.old")
