"""Search indexes of a layer, stored with its store: those of faiss, and sketches, by which exact search reads less.

An index is a folder that appears whole: the file of faiss or of the sketch, the space in which vectors are compared,
and index.json, which has a checksum of both and of itself.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore import kernels
from embstore.analysis.neighbors.exact import Exclusion, Hits, Search, checked_queries, checked_rows, exact_search
from embstore.analysis.neighbors.sketch import SearchLimits, SketchHits, sketch_search
from embstore.analysis.neighbors.sketch_codes import (
    Codes,
    Layout,
    MappedCodes,
    Rotation,
    Sketch,
    StoredCodes,
    write_codes,
)
from embstore.analysis.neighbors.space import Metric, Rows, Seed, Space, StoreVectors, space_of
from embstore.arguments import Count, Positive, checked
from embstore.config import settings as configured
from embstore.devices import thread_count
from embstore.errors import (
    InvalidValueError,
    MissingPackageError,
    MissingRowsError,
    NonFiniteError,
    SearchIndexError,
    SearchIndexNotFoundError,
    StorageError,
    StoreDamagedError,
    quoted,
)
from embstore.html import html_table
from embstore.progress import reporting
from embstore.store import Store
from embstore.store.backend import is_file, zarr_storage
from embstore.store.layout import RESIDUAL, Layers, one_layer
from embstore.store.metadata import canonical, document_crc32c
from embstore.store.storage.base import KeyNotFoundError
from embstore.store.storage.files import (
    crc32c,
    crc32c_of_file,
    make_folders,
    read_json,
    reading,
    remove,
    replacing,
    storing,
)
from embstore.store.zarr.format import INDEXES
from embstore.vectors.linalg import unit_rows

FORMAT_VERSION = 1
METADATA, SPACE, FAISS, SKETCH_FILE = "index.json", "space.npz", "index.faiss", "sketch.bin"
SKETCH = "sketch"  # the kind that needs no faiss
KINDS = ("flat", "ivf", "ivfpq", "rabitq", "hnsw", SKETCH)
BLOCK_ROWS = 8192  # rows added at a time; the links of an HNSW graph depend on it
FLAT_ROWS = 50_000  # up to this number a flat index answers in a few milliseconds
SKETCH_SAMPLE, SKETCH_POINTS = 20_000, 16  # rows that principal components are learned from at least, and a feature
HALF_LIMIT = 65504.0  # the largest float16
LINKS, EF_CONSTRUCTION = 32, 128  # of an HNSW graph; faiss's 40 builds in a third of the time and finds less
RABITQ_BITS = 4  # of a code of each feature; with fewer, recall falls below that of ivfpq
POINTS_PER_LIST, LEAST_POINTS = 50, 39  # of the training sample for each list of an IVF index; faiss requires 39
POINTS_PER_CODE = 64  # of the training sample for each code of ivfpq; 256 would dominate the build time
MIN_PROBED, EF = 8, 64  # the default effort of a search: lists of an IVF index at least, candidates of an HNSW one
FEW_ROWS = 10_000  # up to this number of allowed rows, all are compared
MAX_FETCHED = 2048  # candidates of a query; beyond it, reading the layer is as fast
EXTRA = 2  # candidates beyond k of an index that keeps vectors; of one that keeps codes, 4 k
EFFORTS = (0.25, 0.5, 1, 2, 4)  # of the default effort, for `measure_recall`
EQUAL = 1e-12  # scores that differ by less are equal up to rounding
_DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, StoreDamagedError)


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
    """What index.json says; `files`: of each its `nbytes` and `crc32c`; `longest`: the length of the longest vector."""

    name: str
    settings: IndexSettings
    parameters: Mapping[str, int]
    longest: float
    files: Mapping[str, Mapping[str, int]]
    software: Mapping[str, str] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    @property
    def nbytes(self) -> int:
        return sum(file["nbytes"] for file in self.files.values())


@dataclass(frozen=True)
class IndexState:
    """An index of a store: `state` is ready, stale or damaged; `reason` says why it is not ready."""

    name: str
    state: str
    reason: str
    info: IndexInfo | None

    @property
    def kind(self) -> str | None:
        return None if self.info is None else self.info.settings.kind

    @property
    def layer(self) -> int | None:
        return None if self.info is None else self.info.settings.layer


def folder_of(store: Store) -> Path:
    """The folder of the indexes of a store: inside an array of a Zarr store, where no tool looks, or next to a file."""
    if not store.source.is_stored or not isinstance(store.path, Path):
        raise InvalidValueError(
            f"{store.path} has no place for an index, which is for one store on a disk: write a list into a file "
            "NAME.json and open that, copy a remote store, or search without an index"
        )
    folder = store.path.with_name(f"{store.path.name}.index") if is_file(store.path) else store.path / INDEXES
    return folder if store.source.layout.site == RESIDUAL else folder / f".{store.source.layout.site}"


def checked_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}", name):
        raise InvalidValueError(
            f"name {name!r} is not allowed: give up to 100 letters, digits, _, ., + or -, not starting with . + or -"
        )
    return name


def _existing(store: Store, name: str) -> Path:
    """The folder of an index; raises SearchIndexNotFoundError."""
    folder = folder_of(store) / checked_name(name)
    with reading(folder):
        is_there = folder.is_dir()
    if not is_there:
        names = ", ".join(state.name for state in list_indexes(store))
        raise SearchIndexNotFoundError(f"{store.path} has no index {name!r}: it has {names or 'none'}")
    return folder


@checked
def build_index(
    data: Store,
    layers: Layers = -1,
    *,
    kind: str = "auto",
    metric: Metric = "cosine",
    centered: bool = False,
    n_components: Count = 0,
    name: str | None = None,
    seed: Seed = 0,
) -> LayerIndex:
    """Build an index of a layer for fast search, store it with the store, and open it; an existing one is only opened.

    Parameters
    ----------
    data : Store
        A finished store on a disk.
    layers : int or str
        One layer.
    kind : str
        "auto" (flat for up to 50,000 rows, else ivf), "flat", "ivf", "ivfpq", "rabitq", "hnsw", or a string of faiss's
        index_factory; or "sketch", by which exact search reads a small part of the layer, without faiss.
    metric : str
        "cosine", "ip" or "l2"; a sketch serves all.
    centered, n_components
        Subtract the mean of the layer, and remove its first principal components.
    name : str, optional
        By default made of the layer, the kind and the space.
    seed : int
        Of the rows that the index is trained on.

    Returns
    -------
    LayerIndex
        With one thread the same call always writes the same bytes; with more, an HNSW graph differs.

    Raises
    ------
    MissingRowsError, InvalidValueError, NonFiniteError, StorageError, MissingPackageError
    """
    settings = _settings_of(data, one_layer(layers, data.layers), kind, metric, centered, n_components, seed)
    space = f"-less{n_components}" if n_components else "-centered" if centered else ""
    plain = re.sub(r"[^A-Za-z0-9_.+-]+", "-", kind if kind != "auto" else settings.kind).strip("-.")
    default = f"layer{settings.layer}-{SKETCH if kind == SKETCH else f'{plain}-{metric}{space}'}"
    name = checked_name(default[:100] if name is None else name)
    folder = folder_of(data) / name
    with storing(folder):
        is_built = _is_built(data, folder, settings)
    if is_built:
        return open_index(data, name=name, check=False)
    with (
        storing(folder),
        reporting(configured().progress, total=data.n_rows, unit="rows", label="index") as report,
        _faiss_threads() if settings.kind != SKETCH else nullcontext(),
    ):
        make_folders(folder.parent)
        try:
            with replacing(folder, move=_replace_folder) as new:
                new.mkdir()
                build = _write_sketch if settings.kind == SKETCH else _write_faiss
                parameters, longest = build(data, settings, new, report)
                software = {"embstore": version("embstore")}
                if settings.kind != SKETCH:
                    software["faiss"] = str(_faiss().__version__)
                measured = {file.name: crc32c_of_file(file) for file in new.iterdir()}
                files = {name: {"nbytes": nbytes, "crc32c": crc} for name, (crc, nbytes) in measured.items()}
                data.source.refresh()
                if not data.finished or data.digest != settings.digest:
                    raise SearchIndexError(f"{data.path} changed while it was indexed: run the same command again")
                info = IndexInfo(name, settings, parameters, longest, files, software)
                document = json.loads(canonical(asdict(info)))
                document["crc32c"] = document_crc32c(document)
                (new / METADATA).write_text(json.dumps(document, indent=2, sort_keys=True) + "\n", "utf-8")
        finally:
            if not os.listdir(folder.parent):
                folder.parent.rmdir()
    return open_index(data, name=name, check=False)


def _replace_folder(new: Path, folder: Path) -> None:
    remove(folder)  # a folder that is not empty cannot be replaced in one step
    os.rename(new, folder)


def _settings_of(
    data: Store, layer: int, kind: str, metric: str, centered: bool, n_components: int, seed: int
) -> IndexSettings:
    """Check the options of `build_index` and choose the parameters of the index."""
    rows, size = data.n_rows, data.hidden_size
    if n_components >= size:
        raise InvalidValueError(f"n_components {n_components} is not allowed: give 0 to {size - 1:,}")
    if kind == SKETCH and (metric, centered, n_components) != ("cosine", False, 0):
        raise InvalidValueError(
            "metric, centered and n_components are not for a sketch, which serves any metric, as stored or centered: "
            "leave them out, and name the space when you search"
        )
    if not data.finished:
        raise MissingRowsError(
            f"{data.path} is not finished, and only a finished store can have an index: "
            "run the same `embstore extract` command again to resume"
        )
    centered = centered or n_components > 0
    if kind == SKETCH:
        n_train = min(rows, max(SKETCH_SAMPLE, SKETCH_POINTS * size))
        return IndexSettings(data.digest, layer, SKETCH, SKETCH, "any", True, 0, rows, size, n_train, seed)
    if kind == "auto":
        kind = "flat" if rows <= FLAT_ROWS else "ivf"
    half = metric == "cosine" or (data.dtype == "float16" and not centered)
    codes, nlist = "SQfp16" if half else "Flat", max(1, min(round(4 * rows**0.5), rows // LEAST_POINTS))
    bits, n_points = 8 if rows >= LEAST_POINTS * 2**8 else 4, POINTS_PER_LIST * nlist
    if kind == "ivfpq" and rows < LEAST_POINTS * 2**bits:
        raise InvalidValueError(
            f"{data.path} has too few rows to train ivfpq: {rows:,} of {LEAST_POINTS * 2**bits} or more; "
            "choose flat or ivf"
        )
    code_nbytes = next((parts for parts in range(max(1, size // 4), 0, -1) if size % parts == 0), 1)
    factory = {
        "flat": codes,
        "ivf": f"IVF{nlist},{codes}",
        "ivfpq": f"IVF{nlist},PQ{code_nbytes}x{bits}",
        "rabitq": f"IVF{nlist},RaBitQ{RABITQ_BITS}",
        "hnsw": f"HNSW{LINKS},SQfp16" if half else f"HNSW{LINKS}",
    }.get(kind, kind)
    index = _new_index(factory, size, metric)
    if kind == "ivfpq" or kind == factory:
        n_points = max(POINTS_PER_LIST * _parameters_of(index).get("nlist", 0), 2 * LEAST_POINTS * 2**8, n_points)
    most = max(LEAST_POINTS, configured().nbytes // (4 * 4 * size))
    n_train = 0 if index.is_trained else min(rows, n_points, most)
    return IndexSettings(data.digest, layer, kind, factory, metric, centered, n_components, rows, size, n_train, seed)


def _is_built(store: Store, folder: Path, settings: IndexSettings) -> bool:
    """Whether a usable index exists; raises InvalidValueError if it was built with other settings."""
    try:
        info = _require_fresh(store, _read_info(folder, folder / METADATA))
        _check_files(folder, info, checksums=True)
    except SearchIndexError:
        return False
    for key, value in asdict(settings).items():
        if (existing := getattr(info.settings, key)) != value:
            raise InvalidValueError(
                f"{store.path} has an index {folder.name} with another {key} ({existing}, not {value}): "
                f"choose another name, or remove it first (--remove {folder.name})"
            )
    return True


def _write_sketch(
    store: Store, settings: IndexSettings, folder: Path, progress: Callable[[int], object]
) -> tuple[dict[str, int], float]:
    """Write the files of a sketch; returns its parameters and the length of the longest vector."""
    mean = space_of(store, settings.layer, centered=True).mean
    assert mean is not None
    rows = np.random.default_rng(settings.seed).choice(store.n_rows, settings.n_train, replace=False)
    rotation = Rotation.learn(StoreVectors(store, settings.layer).gather(np.sort(rows).astype(np.int64)), mean)
    (folder / SPACE).write_bytes(rotation.as_bytes())

    def blocks() -> Iterator[tuple[int, NDArray[np.floating]]]:
        for start, vectors in store.scan(settings.layer, block_rows=BLOCK_ROWS):
            yield start, vectors
            progress(start + len(vectors))

    longest = write_codes(folder / SKETCH_FILE, blocks(), settings.n_rows, rotation, f"layer {settings.layer}")
    return {"levels": rotation.n_levels}, longest


def _write_faiss(
    store: Store, settings: IndexSettings, folder: Path, progress: Callable[[int], object]
) -> tuple[dict[str, int], float]:
    """Train, fill and write an index of faiss; returns its parameters and the length of the longest vector."""
    faiss, longest, vectors_of = _faiss(), 0.0, StoreVectors(store, settings.layer)
    space = space_of(
        store, settings.layer, metric=settings.metric, centered=settings.centered, n_components=settings.n_components
    )
    if space.mean is not None:
        components = {} if space.components is None else {"components": space.components}
        np.savez(folder / SPACE, mean=space.mean, **components)  # type: ignore[arg-type]

    def compared(vectors: NDArray[np.floating], rows: NDArray[np.int64]) -> NDArray[np.float32]:
        with np.errstate(over="ignore"):
            values: NDArray[Any] = (
                vectors if space.metric != "cosine" and space.mean is None else space.transform(vectors)
            )
            values = np.ascontiguousarray(unit_rows(values) if space.metric == "cosine" else values, np.float32)
        if not np.isfinite(values).all():
            row = int(rows[~np.isfinite(values).all(1)][0])
            raise NonFiniteError(
                f"layer {settings.layer}, row {row} holds a value that is not finite or too large for float32: "
                "run embstore verify"
            )
        return values

    index = _new_index(settings.factory, settings.hidden_size, settings.metric)
    lists, graph = faiss.try_extract_index_ivf(index), _graph(index)
    if settings.kind == "hnsw":
        graph.hnsw.efConstruction = EF_CONSTRUCTION
    codes = None if lists is None else getattr(faiss.downcast_index(lists), "pq", None)
    for part in (lists, codes):
        if part is not None:
            part.cp.seed = settings.seed % 2**31
            part.cp.min_points_per_centroid = 1  # faiss would only warn of fewer than 39
    if lists is not None:
        # The default of faiss is spherical for ip too, which puts most vectors of an anisotropic layer in a few lists.
        lists.cp.spherical = settings.metric == "cosine"
    if codes is not None:
        codes.cp.max_points_per_centroid = POINTS_PER_CODE
    with _refused(InvalidValueError, f"faiss cannot build {settings.factory} of {settings.n_rows:,} rows"):
        if not index.is_trained:
            rng = np.random.default_rng(settings.seed)
            drawn = np.sort(rng.choice(settings.n_rows, settings.n_train, replace=False)).astype(np.int64)
            parts = np.split(drawn, range(BLOCK_ROWS, len(drawn), BLOCK_ROWS))
            index.train(np.concatenate([compared(vectors_of.gather(part), part) for part in parts]))
        for start, vectors in store.scan(settings.layer, block_rows=BLOCK_ROWS):
            block = compared(vectors, np.arange(start, start + len(vectors)))
            if "SQfp16" in settings.factory and float(np.abs(block).max()) > HALF_LIMIT:
                raise InvalidValueError(
                    f"layer {settings.layer} holds values beyond {HALF_LIMIT:,.0f}, the limit of float16: "
                    f"give {settings.factory.replace('SQfp16', 'Flat')!r} as the kind"
                )
            if graph is not None:  # random numbers that depend on the position and the seed alone
                graph.hnsw.rng = faiss.RandomGenerator((settings.seed * 1_000_003 + index.ntotal) % 2**31)
            index.add(block)
            longest = max(longest, float(np.sqrt(np.square(block, dtype=np.float64).sum(1).max())))
            progress(start + len(block))
    if index.ntotal != settings.n_rows:
        raise InvalidValueError(f"kind {settings.factory!r} is not allowed: such an index does not hold all rows")
    # Through Python's file: of a disk that is full at the last bytes faiss's own would only print a line.
    with _refused(StorageError, f"cannot write {folder / FAISS}"), open(folder / FAISS, "wb") as file:
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write, 2**24))
    return _parameters_of(index), longest


@checked
def open_index(data: Store, layers: Layers = None, *, name: str | None = None, check: bool = True) -> LayerIndex:
    """Open an index by its name, or the only one of a layer; faiss maps it into memory.

    Parameters
    ----------
    data : Store
        The store; of one in a bucket, only sketches can be opened.
    layers : int or str, optional
        One layer.
    name : str, optional
        The name of the index.
    check : bool
        Compare its files with their checksums before faiss reads them. An index is trusted data: one that was made by
        hand can stop or crash the process even so.

    Raises
    ------
    SearchIndexNotFoundError
    SearchIndexError
        For an index that is stale, damaged or of another store.
    """
    number = None if layers is None else one_layer(layers, data.layers)
    if name is None:
        name = _only_index(data, number)
    if not isinstance(data.path, Path):
        return _stored_sketch(data, name)
    folder = _existing(data, name)
    info = _require_fresh(data, _read_info(folder, folder / METADATA))
    settings = info.settings
    if number not in (None, settings.layer):
        raise InvalidValueError(f"the index {name} has layer {settings.layer}, not {number}: give another name")
    _check_files(folder, info, checksums=check)
    if settings.kind == SKETCH:
        with _damaged(folder):
            layout = Layout(settings.n_rows, info.parameters["levels"])
            state = (folder / SPACE).stat()
            rotation = _read_rotation(folder / SPACE, state.st_ino, state.st_mtime_ns, data.hidden_size, layout)
            return _sketch_of(data, info, folder, rotation, MappedCodes(folder / SKETCH_FILE, layout))
    faiss = _faiss()
    with _refused(SearchIndexError, f"the index {folder} is damaged: {_remedy(name)}"):
        index = faiss.read_index(str(folder / FAISS), getattr(faiss, "IO_FLAG_MMAP_IFC", faiss.IO_FLAG_MMAP))
    arrays: dict[str, NDArray[np.float64]] = {}
    if settings.centered:
        with _damaged(folder), np.load(folder / SPACE, allow_pickle=False) as stored:
            arrays = dict(stored)
    return LayerIndex(data, info, Space(settings.metric, **arrays), folder, index)


@checked
def list_indexes(data: Store) -> list[IndexState]:
    """List the indexes of a store by name; reads only their metadata and the sizes of files."""
    if not isinstance(data.path, Path) or not data.source.is_stored:
        return []
    states, root = [], folder_of(data)
    for entry in sorted(os.listdir(root)) if root.is_dir() else []:
        if entry.startswith(".") or not (root / entry).is_dir():
            continue
        info, state, reason = None, "ready", ""
        try:
            info = _read_info(root / entry, root / entry / METADATA)
            _check_files(root / entry, _require_fresh(data, info), checksums=False)
        except SearchIndexError as error:
            state = "damaged" if info is None or info.settings.digest == data.digest else "stale"
            reason = str(error)
        states.append(IndexState(entry, state, reason, info))
    return states


@checked
def remove_index(data: Store, name: str) -> None:
    """Remove an index of a store. Raises SearchIndexNotFoundError, StorageError."""
    folder = _existing(data, name)
    with storing(folder):
        remove(folder)
        if not os.listdir(folder.parent):
            folder.parent.rmdir()


def find_sketch(data: Store, layer: int) -> LayerSketch | None:
    """The sketch of a layer, if there is one of the present state of the store, and the extension that reads it."""
    if not data.finished or kernels.compiled_name() is None:
        return None
    if not isinstance(data.path, Path):
        with suppress(SearchIndexError, StorageError):
            return _stored_sketch(data, f"layer{layer}-{SKETCH}")
        return None
    for state in list_indexes(data):
        if state.state == "ready" and (state.kind, state.layer) == (SKETCH, layer):
            return open_index(data, name=state.name, check=False)  # type: ignore[return-value]
    return None


def _only_index(store: Store, layer: int | None) -> str:
    """The name of the one index of a layer, a sketch only if there is no other."""
    states = [state for state in list_indexes(store) if state.info and layer in (None, state.layer)]
    ready = [state for state in states if state.state == "ready"]
    ready = [state for state in ready if state.kind != SKETCH] or ready
    if len(ready) > 1:
        names = ", ".join(state.name for state in ready)
        raise InvalidValueError(f"{store.path} has several such indexes: give the name, one of {names}")
    if not ready and states:
        raise SearchIndexError(states[0].reason)
    if not ready:
        of = "" if layer is None else f" of layer {layer}"
        raise SearchIndexNotFoundError(f"{store.path} has no index{of}: build one with embstore index")
    return ready[0].name


@dataclass(repr=False)
class LayerIndex:
    """An open index of one layer, returned by `build_index` and `open_index`."""

    store: Store
    info: IndexInfo
    space: Space
    path: Path
    _faiss: Any

    def __repr__(self) -> str:
        settings = self.info.settings
        return (
            f"<LayerIndex {self.name} of {self.store.path}: layer {self.layer}, {settings.factory}, {settings.metric}, "
            f"{settings.n_rows:,} rows>"
        )

    def _repr_html_(self) -> str:
        own = self.info.settings
        cells = {"layer": str(own.layer), "kind": own.factory, "metric": own.metric, "rows": f"{own.n_rows:,}"}
        return html_table(cells.items(), f"Index {self.name} of {self.store.path}")

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def layer(self) -> int:
        return self.info.settings.layer

    @cached_property
    def vectors(self) -> StoreVectors:
        """The stored vectors that the index is over."""
        return StoreVectors(self.store, self.layer)

    @checked
    def search(
        self,
        queries: ArrayLike,
        *,
        k: Positive = 10,
        nprobe: Positive | None = None,
        ef: Positive | None = None,
        rows: Rows | None = None,
        exclude: Sequence[Exclusion] = (),
    ) -> Hits:
        """Find k near vectors of each query; their scores are of the stored vectors, in float64.

        `queries`: [q, feature] or [feature], as stored. `nprobe`: lists to search (ivf, ivfpq). `ef`: candidates to
        keep (hnsw). `rows` (ascending) and `exclude` hold exactly: if the index finds fewer than k allowed rows, the
        search widens and finally reads the layer; -1 where there are no more rows.

        Raises InvalidValueError, NonFiniteError.
        """
        own = self.info.parameters
        for option, value in (("nprobe", nprobe), ("ef", ef)):
            if value is not None and option not in own:
                factory = self.info.settings.factory
                raise InvalidValueError(f"{option} is not for the index {self.name}: it is {factory}")
        nprobe = own.get("nprobe") if nprobe is None else nprobe
        ef = None if nprobe is not None else own.get("ef") if ef is None else ef
        compared, n_rows = checked_queries(queries, self.store.hidden_size, self.space), self.store.n_rows
        allowed = None if rows is None else checked_rows(self.vectors, rows)
        mask: NDArray[np.bool_] | None = None
        if allowed is not None and len(allowed) < n_rows:
            mask = np.zeros(n_rows, bool)
            mask[allowed] = True
        n_allowed = n_rows if allowed is None else len(allowed)
        keeps_vectors = re.fullmatch(r"((IVF|HNSW)\d+(,|$))?(Flat|SQfp16)?", self.info.settings.factory)
        # Where all rows are compared by their vectors, reading the layer is as fast, and nothing is rounded.
        is_exhaustive = bool(keeps_vectors) and ef is None and (nprobe or 0) >= own.get("nlist", 0)
        n_fetched = min(k + (EXTRA if keeps_vectors else 4 * k) + (EXTRA if exclude else 0), n_allowed)
        out = Hits(np.full((len(compared), k), -1), np.full((len(compared), k), np.nan))
        pending = np.arange(len(compared))
        reads = is_exhaustive or k >= n_allowed or (mask is not None and n_allowed <= FEW_ROWS)
        with _faiss_threads():
            while len(pending) and n_fetched <= min(MAX_FETCHED, n_allowed) and not reads:
                some = tuple(Exclusion(each.of_rows, each.of_queries[pending]) for each in exclude)
                candidates = self._candidates(compared[pending], n_fetched, nprobe, ef, mask)
                if candidates is None:
                    break
                for group in some:
                    query = group.of_queries[:, None]
                    candidates = np.where((group.of_rows[candidates] == query) & (query >= 0), -1, candidates)
                scoring = Search(self.vectors, compared[pending], k, self.space, range(n_rows), some, None)
                hits = scoring.hits(candidates)
                enough = hits.rows[:, -1] >= 0
                out.rows[pending[enough]], out.scores[pending[enough]] = hits.rows[enough], hits.scores[enough]
                pending = pending[~enough]
                n_fetched, nprobe, ef = 4 * n_fetched, nprobe and 2 * nprobe, ef and 2 * ef
        if len(pending):
            hits = exact_search(
                self.vectors,
                np.asarray(queries).reshape(compared.shape)[pending],
                k=k,
                space=self.space,
                rows=allowed,
                exclude=[Exclusion(each.of_rows, each.of_queries[pending]) for each in exclude],
                device="cpu",
                threads=configured().threads,
            )
            out.rows[pending], out.scores[pending] = hits.rows, hits.scores
        assert mask is None or mask[out.rows[out.rows >= 0]].all(), "a row filter is never ignored"
        return out

    def _candidates(
        self,
        queries: NDArray[np.float64],
        n_fetched: int,
        nprobe: int | None,
        ef: int | None,
        mask: NDArray[np.bool_] | None,
    ) -> NDArray[np.int64] | None:
        """Rows [q, n_fetched] by the index, -1 for none and those not allowed; None if it cannot search among some."""
        faiss, options = _faiss(), {}
        if mask is not None:
            options["sel"] = faiss.IDSelectorBitmap(np.packbits(mask, bitorder="little"))
        parameters = faiss.SearchParameters(**options) if options else None
        if nprobe is not None:
            parameters = faiss.SearchParametersIVF(nprobe=min(nprobe, self.info.parameters["nlist"]), **options)
        elif ef is not None:
            parameters = faiss.SearchParametersHNSW(efSearch=max(ef, n_fetched), **options)
        outer = faiss.downcast_index(self._faiss)
        if parameters is not None and hasattr(outer, "base_index"):
            parameters = faiss.IndexRefineSearchParameters(k_factor=outer.k_factor, base_index_params=parameters)
        try:
            with _refused(SearchIndexError, f"faiss cannot search the index {self.name}: {_remedy(self.name)}"):
                rows = self._faiss.search(queries.astype(np.float32), n_fetched, params=parameters)[1]
        except SearchIndexError:
            if mask is None:
                raise
            return None
        return rows if mask is None else np.where(mask[rows] & (rows >= 0), rows, -1)


@dataclass(repr=False)
class LayerSketch(LayerIndex):
    """An open sketch of one layer, by which exact search reads a small part of it."""

    sketch: Sketch

    def search(  # type: ignore[override]
        self,
        queries: ArrayLike,
        *,
        k: int = 10,
        space: Space | None = None,
        rows: Rows | None = None,
        exclude: Sequence[Exclusion] = (),
        limits: SearchLimits | None = None,
    ) -> SketchHits:
        """Find the k nearest vectors of each query, exactly, as `embstore.neighbors` does without a sketch.

        `space`: how they are compared, cosine by default; one with a mean that is not that of the layer, or with
        components, is searched by reading the layer, and `scanned` of the result says so.
        """
        space = Space() if space is None else space
        compared = checked_queries(queries, self.store.hidden_size, space)
        candidates, threads = checked_rows(self.vectors, rows), thread_count(configured().threads)
        search = Search(self.vectors, compared, k, space, candidates, tuple(exclude), None, threads=threads)
        return sketch_search(search, self.sketch, limits or SearchLimits())


def _stored_sketch(data: Store, name: str) -> LayerSketch:
    """Open a sketch in a bucket, of which only the parts that a search needs are read."""
    storage = zarr_storage(data.path)
    site = () if data.source.layout.site == RESIDUAL else (f".{data.source.layout.site}",)
    folder = "/".join((INDEXES, *site, checked_name(name)))
    try:
        document = storage.get_versioned(f"{folder}/{METADATA}")[0]
    except KeyNotFoundError:
        raise SearchIndexNotFoundError(f"{data.path} has no index {name!r}") from None
    info = _require_fresh(data, _read_info(data.path / folder, bytes(document)))
    if info.settings.kind != SKETCH:
        raise SearchIndexError(f"the index {name} of {data.path} is no sketch, and others are not read from a bucket")
    with _damaged(data.path / folder):
        layout = Layout(info.settings.n_rows, info.parameters["levels"])
        content = bytes(storage.get_range(f"{folder}/{SPACE}", 0, info.files[SPACE]["nbytes"]))
        if crc32c(content) != info.files[SPACE]["crc32c"]:
            raise ValueError(f"{SPACE} was changed")
        rotation = Rotation.read(BytesIO(content), data.hidden_size, layout.n_levels)
        codes = StoredCodes(storage, f"{folder}/{SKETCH_FILE}", layout)
        return _sketch_of(data, info, data.path / folder, rotation, codes)


def _sketch_of(data: Store, info: IndexInfo, path: Any, rotation: Rotation, codes: Codes) -> LayerSketch:
    if info.files[SKETCH_FILE]["nbytes"] != codes.layout.nbytes:
        raise ValueError(f"{SKETCH_FILE} has another size")
    vector_nbytes = data.source.layout.row_nbytes // len(data.layers)
    sketch = Sketch(rotation, codes, codes.layout, float(info.longest), vector_nbytes)
    return LayerSketch(data, info, Space("cosine", rotation.mean), path, None, sketch)


@lru_cache(4)
def _read_rotation(path: Path, inode: int, modified: int, hidden_size: int, layout: Layout) -> Rotation:
    """The rotation in this state of a file: reading it takes milliseconds, which each search would."""
    crc = read_json(path.with_name(METADATA))["files"][SPACE]["crc32c"]
    if crc32c_of_file(path)[0] != crc:
        raise ValueError(f"{SPACE} was changed")
    return Rotation.read(BytesIO(path.read_bytes()), hidden_size, layout.n_levels)


def _read_info(folder: Any, document: Path | bytes) -> IndexInfo:
    """Parse index.json; raises SearchIndexError if it is damaged or of a newer format."""
    with _damaged(folder):
        fields = read_json(document) if isinstance(document, Path) else json.loads(document)
        if fields["format_version"] > FORMAT_VERSION:
            raise SearchIndexError(
                f"the index {folder} has format {fields['format_version']}; this version reads up to "
                f"{FORMAT_VERSION}: upgrade embstore"
            )
        if document_crc32c(fields) != fields.pop("crc32c"):
            raise ValueError(f"the checksum of {METADATA} differs")
        info = IndexInfo(**{**fields, "settings": IndexSettings(**fields["settings"])})
        if info.name != folder.name:
            raise ValueError(f"it was built as {quoted(info.name)}")
    return info


def _require_fresh(store: Store, info: IndexInfo) -> IndexInfo:
    """The metadata again; raises SearchIndexError unless the index is of the present state of this store."""
    own = info.settings
    if (own.n_rows, own.hidden_size) != (store.n_rows, store.hidden_size) or own.layer not in store.layers:
        what = f"is of another store ({own.n_rows} rows of {own.hidden_size}, layer {own.layer})"
    elif own.digest != store.digest:
        what = f"is stale: {store.path} has changed since, or is another store"
    else:
        return info
    raise SearchIndexError(f"the index {info.name} {what}: {_remedy(info.name)}")


def _check_files(folder: Path, info: IndexInfo, *, checksums: bool) -> None:
    """Check the sizes of the files of an index and, with `checksums`, their bytes. Raises SearchIndexError."""
    with _damaged(folder):
        for name, file in info.files.items():
            nbytes = (folder / name).stat().st_size
            if nbytes != file["nbytes"] or (checksums and crc32c_of_file(folder / name)[0] != file["crc32c"]):
                raise ValueError(f"{name} was changed: it has {nbytes:,} bytes of {file['nbytes']:,}")


@contextmanager
def _damaged(folder: Any) -> Iterator[None]:
    """Raise SearchIndexError for an index whose files cannot be read as they were written."""
    try:
        yield
    except SearchIndexError:
        raise
    except _DAMAGE as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise SearchIndexError(f"the index {folder} is damaged ({reason}): {_remedy(folder.name)}") from None


def _remedy(name: str) -> str:
    return f"build it again with embstore index (--name {name}), or remove it (--remove {name})"


@contextmanager
def _refused(kind: type[Exception], message: str) -> Iterator[None]:
    """Raise an error of ours for a RuntimeError of faiss."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        cause = " ".join(str(error).rpartition("Error: ")[2].split())[:120] or "no cause given"
        raise kind(f"{message} ({cause})") from None


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise MissingPackageError(
            "indexes need faiss, which is not installed: pip install 'embstore[faiss-cpu]', or search without an index"
        ) from None
    return faiss


def _new_index(factory: str, size: int, metric: str) -> Any:
    """An empty index; raises InvalidValueError if faiss cannot make one of this factory string and metric."""
    faiss = _faiss()
    with _refused(InvalidValueError, f"unknown kind {factory!r}: allowed are auto, {', '.join(KINDS)} and strings of "
                  f"faiss's index_factory for {size} features and {metric}"):  # fmt: skip
        return faiss.index_factory(size, factory, faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT)


def _graph(index: Any) -> Any:
    """The HNSW index inside an index; None without one."""
    faiss = _faiss()
    index = faiss.downcast_index(index)
    while hasattr(index, "base_index") or isinstance(index, faiss.IndexPreTransform):
        index = faiss.downcast_index(index.base_index if hasattr(index, "base_index") else index.index)
    return index if hasattr(index, "hnsw") else None


def _parameters_of(index: Any) -> dict[str, int]:
    """The parameters of an index, including the default effort of a search."""
    lists, graph = _faiss().try_extract_index_ivf(index), _graph(index)
    parameters: dict[str, int] = {}
    if lists is not None:
        parameters |= {"nlist": lists.nlist, "nprobe": min(lists.nlist, max(MIN_PROBED, lists.nlist // 32))}
    if graph is not None:
        links = graph.hnsw.nb_neighbors(1)
        parameters |= {"links": links, "ef_construction": graph.hnsw.efConstruction, "ef": EF}
    return parameters


@contextmanager
def _faiss_threads() -> Iterator[None]:
    """Let faiss use the threads of `es.config` inside the block."""
    faiss = _faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(thread_count(configured().threads))
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


@checked
def measure_recall(
    index: LayerIndex,
    *,
    k: Positive = 10,
    n_queries: Positive = 1000,
    seed: Seed = 0,
) -> Any:
    """Compare an index with exact search over the same vectors: `setting, recall, queries_per_second, k`.

    The queries are `n_queries` occurrences drawn with `seed`, which do not find themselves. `recall` is the mean share
    of the k nearest that are found; a row as near as the k-th counts. The settings are a quarter of the index's own to
    four times it. The last row is exact search.
    """
    import time

    import polars as pl

    data, own = index.store, index.info.parameters
    if data.n_rows < 2:
        raise InvalidValueError(f"{data.path} has a single row: there is nothing to find")
    option = "nprobe" if "nprobe" in own else "ef"
    efforts = {min(own.get("nlist", 2**20), max(1, round(own.get(option, 0) * effort))) for effort in EFFORTS}
    tried: list[dict[str, Any]] = [{option: value} for value in sorted(efforts)] if option in own else [{}]
    drawn = np.random.default_rng(seed).choice(data.n_rows, min(n_queries, data.n_rows), replace=False)
    rows = np.sort(drawn).astype(np.int64)
    queries, k = index.vectors.gather(rows), min(k, data.n_rows - 1)
    exclude, threads = (Exclusion(np.arange(data.n_rows), rows),), configured().threads
    exact_search(index.vectors, queries[:1], k=1, space=index.space, device="cpu")  # maps the files
    began = time.perf_counter()
    exact = exact_search(index.vectors, queries, k=k, space=index.space, exclude=exclude, device="cpu", threads=threads)
    measured = [("exact search", 1.0, len(rows) / (time.perf_counter() - began), k)]
    sign, is_hit = 1 if index.space.ascending else -1, exact.rows >= 0  # with the sign, lower is nearer
    limit = np.where(is_hit, sign * exact.scores, -np.inf).max(1, keepdims=True)
    for setting in reversed(tried):
        index.search(queries[:1], k=1, **setting)
        began = time.perf_counter()
        hits = index.search(queries, k=k, exclude=exclude, **setting)
        seconds = time.perf_counter() - began
        name = ", ".join(f"{key}={value}" for key, value in setting.items()) or index.info.settings.kind
        near = (sign * hits.scores <= limit + EQUAL * np.maximum(1, np.abs(limit))) & (hits.rows >= 0)
        recall = float((np.minimum(near.sum(1), is_hit.sum(1)) / is_hit.sum(1)).mean())
        measured.append((name, recall, len(rows) / seconds, k))
    columns = ["setting", "recall", "queries_per_second", "k"]
    return pl.DataFrame(measured[::-1], schema=columns, orient="row")
