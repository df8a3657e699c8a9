"""Search indexes on disk: their folders and metadata, whether they can be used, and how they are built.

A build trains the index on a sample and fills it block by block. It can be killed at any step and resumes from its last
checkpoint, if that matches its checksum.
"""

from __future__ import annotations

import io
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from dataclasses import fields as fields_of
from difflib import get_close_matches
from importlib.metadata import version
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from embstore.analysis.neighbors import index_kinds as kinds
from embstore.analysis.neighbors.sketch_codes import Rotation, write_codes
from embstore.analysis.neighbors.space import Space, space_of
from embstore.arguments import checked
from embstore.errors import (
    InvalidValueError,
    NonFiniteError,
    SearchIndexError,
    SearchIndexNotFoundError,
    quoted,
)
from embstore.store import Store
from embstore.store.backend import is_file
from embstore.store.layout import RESIDUAL
from embstore.store.metadata import canonical, document_crc32c
from embstore.store.storage.files import (
    crc32c_of_file,
    fsync_folder,
    make_folders,
    read_json,
    reading,
    regular_file,
    remove,
    replacing,
    storing,
)
from embstore.store.storage.location import ObjectPath
from embstore.store.storage.lock import ProcessLock
from embstore.store.zarr.format import INDEXES
from embstore.vectors.linalg import unit_rows

FORMAT_VERSION = 1
METADATA, SPACE, FAISS, SKETCH = "index.json", "space.npz", "index.faiss", "sketch.bin"
PROGRESS = "progress.json"  # while the index is built
BLOCK_ROWS = 8192  # rows added at a time; blocks always begin at a multiple of it


@dataclass(frozen=True)
class StoredFile:
    """The size of a file and the CRC32C of its bytes."""

    nbytes: int
    crc32c: int


@dataclass(frozen=True)
class IndexSettings:
    """Everything that determines an index: the state of the store (`digest`), the space and the parameters."""

    digest: str
    layer: int
    kind: str
    factory: str
    metric: str
    centered: bool
    n_components: int
    n_rows: int
    hidden_size: int
    n_train: int
    seed: int


@dataclass(frozen=True)
class IndexInfo:
    """The metadata of an index; `longest` is the length of its longest vector, as it is compared."""

    name: str
    settings: IndexSettings
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
    """An index of a store: `state` is ready, stale, damaged or building; `reason` says why it is not ready."""

    name: str
    state: str
    reason: str
    info: IndexInfo | None


def folder_of(store: Store) -> Path:
    """The folder of the indexes of a store: inside an array of a Zarr store, where no tool looks, or next to a file."""
    if not store.source.is_stored:
        raise InvalidValueError(
            f"{store.path} is a list of stores, which has no place for an index: write it into a file NAME.json, "
            "and open that"
        )
    if not isinstance(store.path, Path):
        raise InvalidValueError(
            f"{store.path} cannot have an index, which needs a store on a disk: search without one, or copy the store"
        )
    folder = store.path.with_name(f"{store.path.name}.index") if is_file(store.path) else store.path / INDEXES
    return folder if store.source.layout.site == RESIDUAL else folder / f".{store.source.layout.site}"


def building_folder(folder: Path) -> Path:
    """The folder in which an index is built before it gets its name."""
    return folder.with_name(f".{folder.name}.new")


def lock_file(folder: Path) -> Path:
    """The file that is locked while an index is built."""
    return folder.with_name(f".{folder.name}.lock")


def _old_folder(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.old")


def checked_name(name: str) -> str:
    """Return the name of an index; raises InvalidValueError unless it is a plain name of a folder."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}", name):
        raise InvalidValueError(
            f"name {name!r} is not allowed: give up to 100 letters, digits, _, ., + or -, not starting with . + or -"
        )
    return name


def default_name(settings: IndexSettings) -> str:
    """The name made of layer, kind, metric and space; a sketch serves all metrics, as stored and centered."""
    if settings.kind == kinds.SKETCH:
        return f"layer{settings.layer}-{kinds.SKETCH}"
    kind = re.sub(r"[^A-Za-z0-9_.+-]+", "-", settings.kind).strip("-.")
    space = f"-less{settings.n_components}" if settings.n_components else "-centered" if settings.centered else ""
    return checked_name(f"layer{settings.layer}-{kind}-{settings.metric}{space}"[:100])


@checked
def list_indexes(data: Store) -> list[IndexState]:
    """List the indexes of a store by name, finished or not; reads only their metadata and the sizes of files."""
    found: dict[str, IndexState] = {}
    if not isinstance(data.path, Path) or not data.source.is_stored:
        return []
    root = folder_of(data)
    for entry in sorted(os.listdir(root)) if root.is_dir() else []:
        unfinished = re.fullmatch(r"\.(.+)\.new", entry)
        if unfinished:
            found.setdefault(unfinished[1], IndexState(unfinished[1], "building", "it is not finished", None))
        elif not entry.startswith(".") and (root / entry).is_dir():
            found[entry] = _state(data, root / entry)
    return [found[name] for name in sorted(found)]


def _state(store: Store, folder: Path) -> IndexState:
    info = None
    try:
        info = read_info(folder)
        require_fresh(store, info)
        check_files(folder, info, checksums=False)
    except SearchIndexError as error:
        state = "damaged" if info is None or info.settings.digest == store.digest else "stale"
        return IndexState(folder.name, state, str(error), info)
    return IndexState(folder.name, "ready", "", info)


@checked
def remove_index(data: Store, name: str) -> None:
    """Remove an index of a store, finished or not. Raises SearchIndexNotFoundError, StorageError."""
    folder = folder_of(data) / checked_name(name)
    new = building_folder(folder)
    if not folder.is_dir() and not new.is_dir():
        raise not_found(data, name)
    with storing(folder):
        remove(new)
        remove(_old_folder(folder))
        remove(folder)
        if not os.listdir(folder.parent):
            folder.parent.rmdir()


def not_found(store: Store, name: str) -> SearchIndexNotFoundError:
    """The error for an index that does not exist; it names similar or existing ones."""
    names = [found.name for found in list_indexes(store)]
    near = get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(names)}" if names else "it has none"
    return SearchIndexNotFoundError(f"{store.path} has no index {name!r}: {hint}")


def read_info(folder: Path | ObjectPath, read: Callable[[], dict[str, Any]] | None = None) -> IndexInfo:
    """Read the metadata of an index; raises SearchIndexError if it is damaged or of a newer format.

    `read` returns its JSON, by default that of the file in the folder.
    """
    try:
        fields = read() if read is not None else read_json(Path(str(folder)) / METADATA)
        if fields["format_version"] > FORMAT_VERSION:
            raise SearchIndexError(
                f"the index {folder} has format {fields['format_version']}; this version reads up to "
                f"{FORMAT_VERSION}: upgrade embstore"
            )
        if document_crc32c(fields) != fields.pop("crc32c"):
            raise ValueError("its checksum differs")
        files = {name: StoredFile(**file) for name, file in fields.pop("files").items()}
        info = IndexInfo(settings=IndexSettings(**fields.pop("settings")), files=files, **fields)
        for each in (info, info.settings, *files.values()):
            require_types(each)
        if not all(isinstance(value, int) for value in info.parameters.values()):
            raise ValueError(f"parameters are {quoted(info.parameters)}")
        own = SKETCH if info.settings.kind == kinds.SKETCH else FAISS
        if set(files) != {own, *([SPACE] if info.settings.centered else [])}:
            raise ValueError(f"its files are {', '.join(files) or 'none'}")
        return info
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, SearchIndexError):
            raise
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise SearchIndexError(f"the index {folder} is damaged ({METADATA}: {reason}): {remedy(folder)}") from None


def require_types(document: Any) -> None:
    """Raise ValueError if a member of a dataclass that was read from JSON is not of the type of its annotation."""
    kinds: dict[str, Any] = {"str": str, "int": int, "float": (float, int), "bool": bool}
    for each in fields_of(document):
        value = getattr(document, each.name)
        kind = kinds.get(str(each.type), object)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ValueError(f"{each.name} is {quoted(value)}")


def remedy(folder: Path | ObjectPath) -> str:
    """What to do about an index that cannot be used."""
    return f"build it again with embstore index (--set name={folder.name}), or remove it (--remove {folder.name})"


def require_fresh(store: Store, info: IndexInfo) -> None:
    """Raise SearchIndexError if an index does not belong to the present state of this store."""
    settings = info.settings
    expected = (store.n_rows, store.hidden_size)
    if (settings.n_rows, settings.hidden_size) != expected or settings.layer not in store.layers:
        what = f"is of another store ({settings.n_rows:,} rows of {settings.hidden_size}, layer {settings.layer})"
    elif settings.digest != store.digest:
        what = f"is stale: {store.path} has changed since, or is another store"
    else:
        return
    raise SearchIndexError(f"the index {info.name} {what}: {remedy(Path(info.name))}")


def check_files(folder: Path, info: IndexInfo, *, checksums: bool) -> None:
    """Check the sizes of the files of an index and, with `checksums`, their bytes. Raises SearchIndexError."""
    for name, expected in info.files.items():
        try:
            nbytes = regular_file(folder / name).stat().st_size
            crc = crc32c_of_file(folder / name)[0] if checksums and nbytes == expected.nbytes else expected.crc32c
        except OSError as error:
            what = f"{name}: {os.strerror(error.errno or 0)}"
            raise SearchIndexError(f"the index {folder} is damaged ({what}): {remedy(folder)}") from None
        if nbytes != expected.nbytes or crc != expected.crc32c:
            fault = f"has {nbytes:,} bytes, not {expected.nbytes:,}" if nbytes != expected.nbytes else "was changed"
            raise SearchIndexError(f"the index {folder} is damaged ({name} {fault}): {remedy(folder)}")


def read_space(path: Path, settings: IndexSettings) -> Space:
    """Read the mean and components of an index; raises SearchIndexError for anything else."""
    if not settings.centered and not settings.n_components:
        return Space(settings.metric)
    size = settings.hidden_size
    shapes = {"mean": (size,)} | ({"components": (settings.n_components, size)} if settings.n_components else {})
    try:
        with np.load(regular_file(path), allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in shapes}
    except (OSError, ValueError, KeyError, EOFError, MemoryError, AttributeError, TypeError, BadZipFile) as error:
        raise SearchIndexError(f"{path} cannot be read ({quoted(error)}): {remedy(path.parent)}") from None
    for name, shape in shapes.items():
        if found[name].shape != shape or found[name].dtype != np.float64 or not np.isfinite(found[name]).all():
            raise SearchIndexError(f"{path} is damaged: {name} is not {shape} of finite float64; {remedy(path.parent)}")
    return Space(settings.metric, **found)


def write_document(path: Path, document: object) -> None:
    """Write a dataclass as JSON with a checksum over itself, atomically and durably."""
    fields: dict[str, Any] = json.loads(canonical(asdict(document)))  # type: ignore[call-overload]
    fields["crc32c"] = document_crc32c(fields)
    text = json.dumps(dict(sorted(fields.items())), indent=2, ensure_ascii=False) + "\n"
    with replacing(path) as partial:
        partial.write_bytes(text.encode())


def stored_file(path: Path) -> StoredFile:
    """Return the size and checksum of a file."""
    crc, nbytes = crc32c_of_file(path)
    return StoredFile(nbytes, crc)


@contextmanager
def building(folder: Path) -> Iterator[Path]:
    """Create or find the folder in which an index is built, locked by one process. Raises StoreBusyError."""
    new = building_folder(folder)
    busy = f"another process is building the index {folder.name}; wait until it ends, or stop it"
    with storing(new):
        make_folders(folder.parent)
        try:
            with ProcessLock(lock_file(folder), busy):
                make_folders(folder.parent)  # removed by another process in the meantime
                new.mkdir(exist_ok=True)
                yield new
        finally:
            if folder.parent.is_dir() and not os.listdir(folder.parent):
                folder.parent.rmdir()


def put_in_place(folder: Path) -> None:
    """Give a finished index its name, replacing an earlier one."""
    tidy(folder)
    if folder.is_dir():
        os.rename(folder, _old_folder(folder))
    os.rename(building_folder(folder), folder)
    fsync_folder(folder.parent)
    tidy(folder)


def tidy(folder: Path) -> None:
    """Remove what a finished index does not need, and the index that it replaced."""
    remove(_old_folder(folder))
    remove(folder / PROGRESS)


def ensure_index(
    store: Store,
    settings: IndexSettings,
    name: str | None,
    *,
    threads: int | None,
    checkpoint_seconds: float,
    progress: Callable[[int], object],
) -> str:
    """Build an index unless it exists already, and return its name."""
    name = default_name(settings) if name is None else checked_name(name)
    folder = folder_of(store) / name
    if _exists(store, folder, settings):
        with storing(folder):
            tidy(folder)
            remove(lock_file(folder))  # left by a build that was killed at its end
        return name
    with building(folder) as new, kinds.faiss_threads(threads), storing(new):
        try:
            _Build(store, settings, new, checkpoint_seconds, progress).run(name)
            store.source.refresh()
            if not store.finished or store.digest != settings.digest:
                raise SearchIndexError(f"{store.path} changed while it was indexed: run the same command again")
        except (InvalidValueError, NonFiniteError, SearchIndexError):  # resuming would fail in the same way
            remove(new)
            raise
        put_in_place(folder)
    return name


def _exists(store: Store, folder: Path, settings: IndexSettings) -> bool:
    """Whether a usable index exists; raises InvalidValueError if it was built with other settings."""
    with reading(folder):
        if not folder.is_dir():
            return False
    try:
        info = read_info(folder)
        require_fresh(store, info)
        check_files(folder, info, checksums=True)
    except SearchIndexError:
        return False
    existing = asdict(info.settings)
    for key, value in asdict(settings).items():
        if existing[key] != value:
            raise InvalidValueError(
                f"{store.path} has an index {folder.name} with another {key} ({existing[key]}, not {value}): "
                f"choose another name, or remove it first (--remove {folder.name})"
            )
    return True


@dataclass(frozen=True)
class _Progress:
    """How far a build is: the longest vector so far, and what its files are, or were before they were last replaced."""

    settings: dict[str, Any]
    longest: float
    files: dict[str, list[dict[str, int]]]


@dataclass
class _Build:
    """The build of one index in the folder `new`, which may hold the work of an interrupted run."""

    store: Store
    settings: IndexSettings
    new: Path
    checkpoint_seconds: float
    progress: Callable[[int], object]
    longest: float = 0.0
    files: dict[str, StoredFile] = field(default_factory=dict)

    def run(self, name: str) -> None:
        """Build the index or resume, and write its metadata."""
        if not self._resumed():
            self.files = {}
            for leftover in list(self.new.iterdir()):
                remove(leftover)
        if self.settings.kind == kinds.SKETCH:
            self._write_sketch(name)
            return
        if self.settings.centered and SPACE not in self.files:
            self._write_space()
        space = read_space(self.new / SPACE, self.settings)
        stored = str(self.new / FAISS)
        index = kinds.read_index(stored, mapped=False) if FAISS in self.files else self._new_index(space)
        self._fill(index, space)
        kinds.require_rows(index, self.settings.n_rows, self.settings.factory)
        info = IndexInfo(
            name=name,
            settings=self.settings,
            parameters=kinds.parameters_of(index),
            longest=self.longest,
            files=self.files,
            software={"embstore": version("embstore"), "faiss": str(kinds.faiss_package().__version__)},
        )
        write_document(self.new / METADATA, info)

    def _resumed(self) -> bool:
        """Take up an interrupted run with these settings; False if there is none whose files match their checksums."""
        try:
            fields = read_json(self.new / PROGRESS)
            if fields.pop("crc32c") != document_crc32c(fields) or fields["settings"] != asdict(self.settings):
                return False
            for name, allowed in _Progress(**fields).files.items():
                if (self.new / name).exists():
                    self.files[name] = stored_file(regular_file(self.new / name))
                    if asdict(self.files[name]) not in allowed:
                        return False
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return False
        self.longest = fields["longest"]
        return not self.settings.centered or SPACE in self.files

    def _put(self, name: str, write: Callable[[Path], object]) -> None:
        """Write a file of the index atomically; its checksum, and that of the file it replaces, are on disk before."""
        with replacing(self.new / name) as partial:
            write(partial)
            before = self.files.get(name)
            self.files[name] = stored_file(partial)
            allowed = {name: [asdict(file)] for name, file in self.files.items()}
            allowed[name] += [asdict(before)] if before else []
            write_document(self.new / PROGRESS, _Progress(asdict(self.settings), self.longest, allowed))

    def _write_sketch(self, name: str) -> None:
        """Write the sketch of the layer, always from its first row, and its metadata."""
        settings, store = self.settings, self.store
        mean = space_of(store, settings.layer, centered=True).mean
        assert mean is not None
        rows = np.random.default_rng(settings.seed).choice(store.n_rows, settings.n_train, replace=False)
        rotation = Rotation.learn(store.vectors(np.sort(rows).astype(np.int64), layers=settings.layer)[0], mean)
        for name_of, write in (
            (SPACE, lambda path: path.write_bytes(rotation.as_bytes())),
            (SKETCH, self._write_codes(rotation)),
        ):
            with replacing(self.new / name_of) as partial:
                write(partial)
                self.files[name_of] = stored_file(partial)
        software = {"embstore": version("embstore")}
        parameters = {"levels": rotation.n_levels}
        write_document(self.new / METADATA, IndexInfo(name, settings, parameters, self.longest, self.files, software))

    def _blocks(self) -> Iterator[tuple[int, NDArray[np.floating]]]:
        for start, vectors in self.store.scan(self.settings.layer, block_rows=BLOCK_ROWS):
            yield start, vectors
            self.progress(start + len(vectors))

    def _write_codes(self, rotation: Rotation) -> Callable[[Path], None]:
        def write(path: Path) -> None:
            n_rows, what = self.settings.n_rows, f"layer {self.settings.layer}"
            self.longest = write_codes(path, self._blocks(), n_rows, rotation, what)

        return write

    def _write_space(self) -> None:
        """Write mean and components, float64."""
        options = {"metric": self.settings.metric, "n_components": self.settings.n_components}
        space = space_of(self.store, self.settings.layer, centered=True, **options)  # type: ignore[arg-type]
        arrays = {"mean": space.mean, "components": space.components}
        buffer = io.BytesIO()
        np.savez(buffer, **{name: array for name, array in arrays.items() if array is not None})  # type: ignore[arg-type]
        self._put(SPACE, lambda partial: partial.write_bytes(buffer.getvalue()))

    def _new_index(self, space: Space) -> Any:
        """An empty index, trained if its kind needs it."""
        settings = self.settings
        index = kinds.new_index(settings.factory, settings.hidden_size, settings.metric)
        kinds.prepare(index, settings.kind)
        if not index.is_trained:
            rng = np.random.default_rng(settings.seed)
            rows = np.sort(rng.choice(settings.n_rows, settings.n_train, replace=False)).astype(np.int64)
            sample = np.empty((len(rows), settings.hidden_size), np.float32)
            for start in range(0, len(rows), BLOCK_ROWS):
                part = rows[start : start + BLOCK_ROWS]
                vectors = self.store.vectors(part, layers=settings.layer)[0]
                sample[start : start + len(part)] = self._comparable(space, vectors, part)
            kinds.train(index, sample, metric=settings.metric, seed=settings.seed)
        self._checkpoint(index)
        return index

    def _fill(self, index: Any, space: Space) -> None:
        """Add the rows that are missing, and note the length of the longest of all vectors."""
        settings = self.settings
        done: int = index.ntotal
        due = time.monotonic() + self.checkpoint_seconds
        for start, vectors in self.store.scan(settings.layer, done, block_rows=BLOCK_ROWS):
            compared = self._comparable(space, vectors, np.arange(start, start + len(vectors)))
            if kinds.is_float16(index) and float(np.abs(compared).max()) > kinds.HALF_LIMIT:
                raise InvalidValueError(
                    f"layer {settings.layer} holds values beyond {kinds.HALF_LIMIT:,.0f}, the limit of float16: "
                    f"give {settings.factory.replace('SQfp16', 'Flat')!r} as the kind"
                )
            kinds.add(index, compared, settings.seed)
            self.longest = max(self.longest, float(np.sqrt(np.square(compared, dtype=np.float64).sum(1).max())))
            done += len(compared)
            if time.monotonic() >= due or done == settings.n_rows:
                began = time.monotonic()
                self._checkpoint(index)
                writing = time.monotonic() - began
                due = time.monotonic() + (self.checkpoint_seconds and max(self.checkpoint_seconds, 10 * writing))
            self.progress(done)

    def _comparable(self, space: Space, vectors: NDArray[np.floating], rows: NDArray[np.int64]) -> NDArray[np.float32]:
        with np.errstate(over="ignore"):
            compared = as_compared(space, vectors)
        invalid = np.flatnonzero(~np.isfinite(compared).all(1))
        if len(invalid):
            raise NonFiniteError(
                f"layer {self.settings.layer}, row {int(rows[invalid[0]])} holds a value that is not finite or too "
                "large for float32: run embstore verify"
            )
        return compared

    def _checkpoint(self, index: Any) -> None:
        self._put(FAISS, lambda partial: kinds.write_index(index, str(partial)))


def as_compared(space: Space, vectors: NDArray[np.floating]) -> NDArray[np.float32]:
    """Vectors as an index holds them: transformed, at unit length for cosine, float32."""
    if space.metric != "cosine" and space.mean is None:
        return np.ascontiguousarray(vectors, np.float32)
    transformed = space.transform(vectors)
    return np.ascontiguousarray(unit_rows(transformed) if space.metric == "cosine" else transformed, np.float32)
