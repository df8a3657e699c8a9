"""Search indexes of a layer, stored with its store: sketches, by which exact search reads less, and those of faiss.

An index is a folder that appears whole: the files of the sketch or of faiss, and index.json, which has a checksum of
each of them and of itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore import kernels
from embstore.analysis.neighbors.exact import Exclusion, Hits, Search, checked_queries, checked_rows
from embstore.analysis.neighbors.sketch import SketchHits, sketch_search
from embstore.analysis.neighbors.sketch_codes import (
    ROTATION,
    SKETCH_FILE,
    Codes,
    Layout,
    Rotation,
    Sketch,
    release,
    write_sketch,
)
from embstore.analysis.neighbors.space import Metric, Rows, Space, StoreVectors
from embstore.arguments import Positive, checked
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
from embstore.progress import reporting
from embstore.store import Store
from embstore.store.backend import zarr_storage
from embstore.store.layout import RESIDUAL, Layers, one_layer
from embstore.store.metadata import canonical, document_crc32c
from embstore.store.storage.base import KeyNotFoundError
from embstore.store.storage.files import crc32c_of_file, make_folders, read_json, reading, remove, replacing, storing
from embstore.store.zarr.format import INDEXES
from embstore.vectors.linalg import unit_rows

Kind = Literal["sketch", "ivf", "ivfpq", "hnsw"]
FORMAT_VERSION = 1
METADATA, FAISS, SKETCH = "index.json", "index.faiss", "sketch"
BLOCK_ROWS = 8192  # rows added at a time; the links of an HNSW graph depend on it
LINKS, EF_CONSTRUCTION = 32, 128  # of an HNSW graph; faiss's 40 builds in a third of the time and finds less
POINTS_PER_LIST, LEAST_POINTS = 50, 39  # of the training sample for each list of an IVF index; faiss requires 39
POINTS_PER_CODE = 64  # of the training sample for each code of ivfpq; 256 would dominate the build time
MIN_PROBED, EF = 8, 64  # the effort of a search: lists of an IVF index at least, candidates of an HNSW one
FEW_ROWS = 10_000  # up to this number of allowed rows, all are compared
MAX_FETCHED = 2048  # candidates of a query; beyond it, reading the layer is as fast
EXTRA = 2  # candidates beyond k of an index that keeps vectors; of one that keeps codes, 4 k
_DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, StoreDamagedError)


@dataclass(frozen=True)
class IndexInfo:
    """What index.json says: of which layer and state of a store (`digest`) an index is, and how it was built.

    `files`: of each its `nbytes` and `crc32c`; `longest`: of a sketch, the length of the longest vector.
    """

    layer: int
    kind: str
    metric: str
    digest: str
    n_rows: int
    parameters: Mapping[str, int]
    longest: float
    files: Mapping[str, Mapping[str, int]]
    software: Mapping[str, str] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    @property
    def name(self) -> str:
        return _name_of(self.layer, self.kind, self.metric)

    @property
    def nbytes(self) -> int:
        return sum(file["nbytes"] for file in self.files.values())


def _name_of(layer: int, kind: str, metric: str) -> str:
    return f"layer{layer}-{kind}" + ("" if kind == SKETCH else f"-{metric}")


@dataclass(frozen=True)
class IndexState:
    """An index of a store: `state` is ready, stale or damaged; `reason` says why it is not ready."""

    name: str
    state: str
    reason: str
    info: IndexInfo | None


def folder_of(store: Store) -> Path:
    """The folder of the indexes of a store: inside an array of a Zarr store, where no tool looks, or next to a file."""
    if not store.source.is_stored or not isinstance(store.path, Path):
        raise InvalidValueError(
            f"{store.path} has no place for an index, which is for one store on a disk: write a list into a file "
            "NAME.json and open that, copy a remote store, or search without an index"
        )
    with reading(store.path):
        folder = store.path.with_name(f"{store.path.name}.index") if store.path.is_file() else store.path / INDEXES
    return folder if store.source.layout.site == RESIDUAL else folder / f".{store.source.layout.site}"


def _existing(store: Store, name: str) -> Path:
    """The folder of an index; raises SearchIndexNotFoundError."""
    root = folder_of(store)
    with reading(root):
        names = _names(root)
    if name not in names:
        raise SearchIndexNotFoundError(f"{store.path} has no index {name!r}: it has {', '.join(names) or 'none'}")
    return root / name


def _names(root: Path) -> list[str]:
    entries = sorted(os.listdir(root)) if root.is_dir() else []
    return [entry for entry in entries if not entry.startswith(".") and (root / entry).is_dir()]


@checked
def build_index(data: Store, layers: Layers = -1, *, kind: Kind = "sketch", metric: Metric = "cosine") -> LayerIndex:
    """Build an index of a layer for fast search, store it with the store, and open it; an existing one is only opened.

    Parameters
    ----------
    data : Store
        A finished store on a disk.
    layers : int or str
        One layer.
    kind : str
        "sketch", by which exact search reads a small part of the layer; or an approximate index of faiss: "ivf" (lists
        of vectors), "ivfpq" (lists of codes, the smallest) or "hnsw" (a graph, the fastest, slow to build).
    metric : str
        "cosine", "ip" or "l2"; a sketch serves all.

    Returns
    -------
    LayerIndex
        With one thread the same call always writes the same bytes; with more, an HNSW graph differs.

    Raises
    ------
    MissingRowsError, InvalidValueError, NonFiniteError, StorageError, MissingPackageError
    """
    layer = one_layer(layers, data.layers)
    if kind == SKETCH and metric != "cosine":
        raise InvalidValueError("a sketch serves every metric: leave metric out, and give it when you search")
    if not data.finished:
        raise MissingRowsError(
            f"{data.path} is not finished, and only a finished store can have an index: "
            "run the same `embstore extract` command again to resume"
        )
    name, digest = _name_of(layer, kind, metric), data.digest
    folder = folder_of(data) / name
    with suppress(SearchIndexError):
        return open_index(data, name=name)
    progress = reporting(configured().progress, total=data.n_rows, unit="rows", label="index")
    with storing(folder), progress as report:
        make_folders(folder.parent)
        try:
            with replacing(folder, move=_replace_folder) as new:
                new.mkdir()
                software = {"embstore": version("embstore")}
                if kind == SKETCH:
                    parameters, longest = write_sketch(StoreVectors(data, layer), new, report)
                else:
                    parameters, longest = _write_faiss(data, layer, kind, metric, new, report), 0.0
                    software["faiss"] = str(_faiss().__version__)
                measured = {file.name: crc32c_of_file(file) for file in new.iterdir()}
                files = {name: {"nbytes": nbytes, "crc32c": crc} for name, (crc, nbytes) in measured.items()}
                data.source.refresh()
                if not data.finished or data.digest != digest:
                    raise SearchIndexError(f"{data.path} changed while it was indexed: run the same command again")
                metric_of = "any" if kind == SKETCH else metric
                info = IndexInfo(layer, kind, metric_of, digest, data.n_rows, parameters, longest, files, software)
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


def _write_faiss(
    store: Store, layer: int, kind: str, metric: str, folder: Path, progress: Callable[[int], object]
) -> dict[str, int]:
    """Train, fill and write an index of faiss; returns its parameters, and the effort of a search."""
    faiss, size, n_rows = _faiss(), store.hidden_size, store.n_rows
    codes = "SQfp16" if metric == "cosine" or store.dtype == "float16" else "Flat"
    n_lists = max(1, min(round(4 * n_rows**0.5), n_rows // LEAST_POINTS))
    n_bits = 8 if n_rows >= LEAST_POINTS * 256 else 4
    if kind == "ivfpq":
        if n_rows < LEAST_POINTS * 2**n_bits:
            raise InvalidValueError(
                f"{store.path} has too few rows to train ivfpq: {n_rows:,} of {LEAST_POINTS * 2**n_bits} or more; "
                "choose ivf"
            )
        codes = f"PQ{next(parts for parts in range(max(1, size // 4), 0, -1) if size % parts == 0)}x{n_bits}"
    factory = f"HNSW{LINKS},{codes}" if kind == "hnsw" else f"IVF{n_lists},{codes}"
    index = faiss.index_factory(size, factory, faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT)
    if kind == "hnsw":
        index.hnsw.efConstruction = EF_CONSTRUCTION
        parameters = {"links": LINKS, "ef_construction": EF_CONSTRUCTION, "ef": EF}
    else:
        for part in (index, index.pq) if kind == "ivfpq" else (index,):
            part.cp.seed = 0
            part.cp.min_points_per_centroid = 1  # faiss would only warn of fewer than 39
        # The default of faiss is spherical for ip too, which puts most vectors of an anisotropic layer in a few lists.
        index.cp.spherical = metric == "cosine"
        if kind == "ivfpq":
            index.pq.cp.max_points_per_centroid = POINTS_PER_CODE
        parameters = {"nlist": n_lists, "nprobe": min(n_lists, max(MIN_PROBED, n_lists // 32))}

    def compared(vectors: NDArray[np.floating], rows: NDArray[np.int64]) -> NDArray[np.float32]:
        with np.errstate(over="ignore"):
            values = np.ascontiguousarray(unit_rows(vectors) if metric == "cosine" else vectors, np.float32)
        if not np.isfinite(values).all():
            row = int(rows[~np.isfinite(values).all(1)][0])
            raise NonFiniteError(
                f"layer {layer}, row {row} holds a value that is not finite or too large for float32: "
                "run embstore verify"
            )
        return values

    with _faiss_threads():
        if not index.is_trained:
            n_points = max(POINTS_PER_LIST * n_lists, 2 * LEAST_POINTS * 2**8 if kind == "ivfpq" else 0)
            n_points = min(n_rows, n_points, max(LEAST_POINTS, configured().nbytes // (4 * 4 * size)))
            drawn = np.sort(np.random.default_rng(0).choice(n_rows, n_points, replace=False)).astype(np.int64)
            parts = np.split(drawn, range(BLOCK_ROWS, len(drawn), BLOCK_ROWS))
            index.train(np.concatenate([compared(StoreVectors(store, layer).gather(part), part) for part in parts]))
        for start, vectors in store.scan(layer, block_rows=BLOCK_ROWS):
            if kind == "hnsw":  # random numbers that depend on the position alone
                index.hnsw.rng = faiss.RandomGenerator(start % 2**31)
            index.add(compared(vectors, np.arange(start, start + len(vectors))))
            progress(start + len(vectors))
    # Through Python's file: of a disk that is full at the last bytes faiss's own would only print a line.
    with _refused(StorageError, f"cannot write {folder / FAISS}"), open(folder / FAISS, "wb") as file:
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write, 2**24))
    return parameters


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
    if number not in (None, info.layer):
        raise InvalidValueError(f"the index {name} has layer {info.layer}, not {number}: give another name")
    _check_files(folder, info, checksums=check)
    if info.kind == SKETCH:
        return _sketch_of(data, info, folder)
    faiss = _faiss()
    with _refused(SearchIndexError, f"the index {folder} is damaged: {_remedy(name)}"):
        index = faiss.read_index(str(folder / FAISS), getattr(faiss, "IO_FLAG_MMAP_IFC", faiss.IO_FLAG_MMAP))
    return LayerIndex(data, info, folder, index)


@checked
def list_indexes(data: Store) -> list[IndexState]:
    """List the indexes of a store by name; reads only their metadata and the sizes of files."""
    if not isinstance(data.path, Path) or not data.source.is_stored:
        return []
    states, root = [], folder_of(data)
    for name in _names(root):
        info, state, reason = None, "ready", ""
        try:
            info = _read_info(root / name, root / name / METADATA)
            _check_files(root / name, _require_fresh(data, info), checksums=False)
        except SearchIndexError as error:
            state = "damaged" if info is None or info.digest == data.digest else "stale"
            reason = str(error)
        states.append(IndexState(name, state, reason, info))
    return states


@checked
def remove_index(data: Store, name: str) -> None:
    """Remove an index of a store. Raises SearchIndexNotFoundError, StorageError."""
    folder = _existing(data, name)
    release()
    with storing(folder):
        remove(folder)
        if not os.listdir(folder.parent):
            folder.parent.rmdir()


def find_sketch(data: Store, layer: int) -> LayerSketch | None:
    """The sketch of a layer, if there is one of the present state of the store, and the extension that reads it."""
    if not data.finished or kernels.compiled_name() is None:
        return None
    name = _name_of(layer, SKETCH, "")
    if not isinstance(data.path, Path):
        with suppress(SearchIndexError, StorageError):
            return _stored_sketch(data, name)
    elif data.source.is_stored and (folder := folder_of(data) / name).is_dir():
        try:
            info = _require_fresh(data, _read_info(folder, folder / METADATA))
            _check_files(folder, info, checksums=False)
        except SearchIndexError:  # which `list_indexes` describes
            return None
        return _sketch_of(data, info, folder)
    return None


def _only_index(store: Store, layer: int | None) -> str:
    """The name of the one index of a layer, a sketch only if there is no other."""
    states = [state for state in list_indexes(store) if state.info and layer in (None, state.info.layer)]
    ready = [state.info for state in states if state.info and state.state == "ready"]
    ready = [info for info in ready if info.kind != SKETCH] or ready
    if len(ready) > 1:
        names = ", ".join(info.name for info in ready)
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
    path: Path
    _faiss: Any

    def __repr__(self) -> str:
        return f"<LayerIndex {self.name} of {self.store.path}: {self.info.n_rows:,} rows>"

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def layer(self) -> int:
        return self.info.layer

    @cached_property
    def vectors(self) -> StoreVectors:
        """The stored vectors that the index is over."""
        return StoreVectors(self.store, self.layer)

    @checked
    def search(
        self, queries: ArrayLike, *, k: Positive = 10, rows: Rows | None = None, exclude: Sequence[Exclusion] = ()
    ) -> Hits:
        """Find k near vectors of each query; their scores are of the stored vectors, in float64.

        `queries`: [q, feature] or [feature], as stored. `rows` (ascending) and `exclude` hold exactly: if the index
        finds fewer than k allowed rows, the search widens and finally reads the layer; -1 where there are no more rows.

        Raises InvalidValueError, NonFiniteError.
        """
        kind, space, n_rows = self.info.kind, Space(self.info.metric), self.store.n_rows
        compared, allowed = checked_queries(queries, self.store.hidden_size, space), checked_rows(self.vectors, rows)
        search = Search(self.vectors, compared, k, space, allowed, tuple(exclude), None)
        mask = None
        if len(allowed) < n_rows:
            mask = np.zeros(n_rows, bool)
            mask[np.asarray(allowed, np.int64)] = True
        effort, most = self.info.parameters["ef" if kind == "hnsw" else "nprobe"], min(MAX_FETCHED, len(allowed))
        n_fetched = min(k + (4 * k if kind == "ivfpq" else EXTRA) + (EXTRA if exclude else 0), len(allowed))
        out = Hits(np.full((len(compared), k), -1), np.full((len(compared), k), np.nan))
        pending = np.arange(len(compared))
        # Where all rows are compared by their vectors, reading the layer is as fast, and nothing is rounded.
        is_exhaustive = kind == "ivf" and effort >= self.info.parameters["nlist"]
        if is_exhaustive or (mask is not None and len(allowed) <= FEW_ROWS):
            most = 0
        with _faiss_threads():
            while len(pending) and n_fetched <= most and k < len(allowed):
                part = search.part(pending)
                found = self._candidates(part.queries, n_fetched, effort, mask)
                hits = part.hits(np.where(part.excluded(found), -1, found))
                enough = hits.rows[:, -1] >= 0
                out.rows[pending[enough]], out.scores[pending[enough]] = hits.rows[enough], hits.scores[enough]
                pending = pending[~enough]
                n_fetched, effort = 4 * n_fetched, 2 * effort
        if len(pending):
            hits = search.part(pending).scan("cpu", configured().threads)
            out.rows[pending], out.scores[pending] = hits.rows, hits.scores
        assert mask is None or mask[out.rows[out.rows >= 0]].all(), "a row filter is never ignored"
        return out

    def _candidates(
        self, queries: NDArray[np.float64], n_fetched: int, effort: int, mask: NDArray[np.bool_] | None
    ) -> NDArray[np.int64]:
        """Rows [q, n_fetched] by the index, -1 for none and those not allowed."""
        faiss = _faiss()
        options = {} if mask is None else {"sel": faiss.IDSelectorBitmap(np.packbits(mask, bitorder="little"))}
        if self.info.kind == "hnsw":
            parameters = faiss.SearchParametersHNSW(efSearch=max(effort, n_fetched), **options)
        else:
            parameters = faiss.SearchParametersIVF(nprobe=min(effort, self.info.parameters["nlist"]), **options)
        with _refused(SearchIndexError, f"faiss cannot search the index {self.name}: {_remedy(self.name)}"):
            rows: NDArray[np.int64] = self._faiss.search(queries.astype(np.float32), n_fetched, params=parameters)[1]
        return rows if mask is None else np.where(mask[rows] & (rows >= 0), rows, -1)


@dataclass(repr=False)
class LayerSketch(LayerIndex):
    """An open sketch of one layer, by which exact search reads a small part of it."""

    sketch: Sketch

    def search(
        self,
        queries: ArrayLike,
        *,
        k: int = 10,
        space: Space | None = None,
        rows: Rows | None = None,
        exclude: Sequence[Exclusion] = (),
    ) -> SketchHits:
        """Find the k nearest vectors of each query, exactly, as `embstore.neighbors` does without a sketch.

        `space`: how they are compared, cosine by default; one with a mean that is not that of the layer is searched by
        reading the layer, and `scanned` of the result says so.
        """
        space = Space() if space is None else space
        compared = checked_queries(queries, self.store.hidden_size, space)
        candidates, threads = checked_rows(self.vectors, rows), thread_count(configured().threads)
        search = Search(self.vectors, compared, k, space, candidates, tuple(exclude), None, threads=threads)
        return sketch_search(search, self.sketch)


def _stored_sketch(data: Store, name: str) -> LayerSketch:
    """Open a sketch in a bucket, of which only the parts that a search needs are read."""
    storage = zarr_storage(data.path)
    site = () if data.source.layout.site == RESIDUAL else (f".{data.source.layout.site}",)
    folder = "/".join((INDEXES, *site, name))
    try:
        if name not in (_name_of(layer, SKETCH, "") for layer in data.layers):
            raise KeyNotFoundError(name)
        document = storage.get_versioned(f"{folder}/{METADATA}")[0]
    except KeyNotFoundError:
        raise SearchIndexNotFoundError(f"{data.path} has no sketch {name!r}, and others are not read there") from None
    info = _require_fresh(data, _read_info(data.path / folder, bytes(document)))
    return _sketch_of(data, info, data.path / folder, storage, folder)


def _sketch_of(data: Store, info: IndexInfo, path: Any, storage: Any = None, place: str = "") -> LayerSketch:
    """Open a sketch in a folder on a disk, or at a place of a storage."""
    with _damaged(path):
        layout, rotated = Layout(info.n_rows, info.parameters["levels"]), info.files[ROTATION]
        if info.files[SKETCH_FILE]["nbytes"] != layout.nbytes:
            raise ValueError(f"{SKETCH_FILE} has another size")
        shape = rotated["crc32c"], data.hidden_size, layout.n_levels
        if storage is None:
            rotation, codes = Rotation.of_file(path / ROTATION, *shape), Codes.mapped(path / SKETCH_FILE, layout)
        else:
            rotation = Rotation.read(bytes(storage.get_range(f"{place}/{ROTATION}", 0, rotated["nbytes"])), *shape)
            codes = Codes.stored(storage, f"{place}/{SKETCH_FILE}", layout)
        return LayerSketch(data, info, path, None, Sketch(rotation, codes, layout, float(info.longest)))


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
        info = IndexInfo(**fields)
        if info.name != folder.name:
            raise ValueError(f"it was built as {quoted(info.name)}")
    return info


def _require_fresh(store: Store, info: IndexInfo) -> IndexInfo:
    """The metadata again; raises SearchIndexError unless the index is of the present state of this store."""
    if info.digest != store.digest:
        raise SearchIndexError(
            f"the index {info.name} is stale: {store.path} has changed since, or is another store: {_remedy(info.name)}"
        )
    return info


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
    return f"build it again with embstore index, or remove it (--remove {name})"


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
            "this index needs faiss, which is not installed: pip install 'embstore[faiss-cpu]', or build a sketch"
        ) from None
    return faiss


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
