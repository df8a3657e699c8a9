"""Search through an index of a layer that is stored with its store; hits are scored again from the stored vectors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike, NDArray

from embstore.analysis.neighbors import index_kinds as kinds
from embstore.analysis.neighbors.exact import (
    MAX_K,
    Exclusion,
    Hits,
    Search,
    checked_queries,
    checked_rows,
    exact_search,
)
from embstore.analysis.neighbors.index_files import (
    FAISS,
    METADATA,
    SKETCH,
    SPACE,
    IndexInfo,
    IndexSettings,
    StoredFile,
    check_files,
    checked_name,
    ensure_index,
    folder_of,
    list_indexes,
    not_found,
    read_info,
    read_space,
    remedy,
    require_fresh,
)
from embstore.analysis.neighbors.sketch import SketchHits, sketch_search
from embstore.analysis.neighbors.sketch_codes import Codes, Layout, MappedCodes, Rotation, Sketch, StoredCodes
from embstore.analysis.neighbors.space import MAX_SEED, METRICS, Rows, Space, StoreVectors
from embstore.arguments import checked
from embstore.devices import thread_count
from embstore.errors import (
    InvalidValueError,
    MissingRowsError,
    SearchIndexError,
    SearchIndexNotFoundError,
    StorageError,
    StoreDamagedError,
    check_choice,
    check_whole,
)
from embstore.html import html_table
from embstore.progress import Progress, reporting
from embstore.sizes import parse_nbytes
from embstore.store import Store
from embstore.store.backend import zarr_storage
from embstore.store.layout import RESIDUAL, Layer, resolve_layer
from embstore.store.storage.base import KeyNotFoundError
from embstore.store.storage.files import crc32c, reading, regular_file
from embstore.store.zarr.format import INDEXES

FEW_ROWS = 10_000  # up to this number of candidates, all are compared
ANY_METRIC = "any"  # of a sketch
MAX_FETCHED = 2048  # candidates of a query; beyond it, reading the layer is as fast
EXTRA = 2  # candidates beyond k
EXTRA_TO_PROVE = 64  # candidates beyond k if they are to prove that nothing nearer was missed


@checked
def build_index(
    data: Store,
    *,
    layer: Layer = -1,
    kind: str = "auto",
    metric: str = "cosine",
    centered: bool = False,
    n_components: int = 0,
    name: str | None = None,
    train_sample: int | None = None,
    seed: int = 0,
    memory: int | str | None = None,
    threads: int | None = None,
    checkpoint_seconds: float = 60.0,
    device: str = "cpu",
    progress: Progress = None,
) -> LayerIndex:
    """Build an index of a layer for fast search, store it with the store, and open it; an existing one is only opened.

    `kind`: auto, flat, ivf, ivfpq, rabitq, hnsw, or a string of faiss's index_factory; or sketch, by which exact search
    reads a small part of the layer (any metric, as stored or centered; without faiss). `centered`, `n_components`:
    subtract the mean of the layer and remove its first principal components. `train_sample`: rows that it is trained
    on, drawn with `seed`. `memory`: what the index may take, bytes or a text such as "4GiB" (default half of the
    machine's). An interrupted build resumes from its last checkpoint, written every `checkpoint_seconds`; that of a
    sketch starts again. With one thread the same call always writes the same bytes; with more, an HNSW graph differs.
    `progress(done, total)` counts rows.

    Example::

        es.build_index(store, layer=4, kind="sketch")
        es.neighbors(store, occurrence=17, layer=4)  # reads a part of the layer, where that is enough

    Raises MissingRowsError for an unfinished store, InvalidValueError, NonFiniteError, StoreBusyError, StorageError,
    MissingPackageError.
    """
    thread_count(threads)
    settings = _settings_of(data, layer, kind, metric, centered, n_components, train_sample, seed, memory)
    with reporting(progress, total=data.n_rows, unit="rows", label="index") as report:
        name = ensure_index(
            data, settings, name, threads=threads, checkpoint_seconds=checkpoint_seconds, progress=report
        )
    return open_index(data, name=name, check=False, device=device)  # checked as it was built or found


def _settings_of(
    data: Store,
    layer: Layer,
    kind: str,
    metric: str,
    centered: bool,
    n_components: int,
    train_sample: int | None,
    seed: int,
    memory: int | str | None,
) -> IndexSettings:
    """Check the options of `build_index` and choose the parameters of the index."""
    check_whole("seed", seed, 0, MAX_SEED)
    if train_sample is not None:
        check_whole("train_sample", train_sample, 1)
    check_choice("metric", metric, METRICS)
    check_whole("n_components", n_components, 0, data.hidden_size - 1)
    number = resolve_layer(layer, data.layers)
    if kind == kinds.SKETCH:
        given = {"metric": (metric, "cosine"), "centered": (centered, False), "n_components": (n_components, 0)}
        for option, (value, default) in given.items():
            if value != default:
                raise InvalidValueError(
                    f"{option} {value} is not for a sketch, which serves any metric, as stored or centered: leave it "
                    "out, and name the space when you search"
                )
        metric, centered = ANY_METRIC, True
    if not data.finished:
        raise MissingRowsError(
            f"{data.path} is not finished, and only a finished store can have an index: "
            "run the same `embstore extract` command again to resume"
        )
    centered = centered or n_components > 0
    nbytes = None if memory is None else parse_nbytes(memory, name="memory")
    chosen = kinds.choose_kind(
        data, kind=kind, metric=metric, centered=centered, train_sample=train_sample, memory=nbytes
    )
    if train_sample is not None and not chosen.n_train:
        raise InvalidValueError(f"train_sample {train_sample} is not for {chosen.factory}, which needs no training")
    return IndexSettings(
        digest=data.digest,
        layer=number,
        kind=chosen.kind,
        factory=chosen.factory,
        metric=metric,
        centered=centered,
        n_components=n_components,
        n_rows=data.n_rows,
        hidden_size=data.hidden_size,
        n_train=chosen.n_train,
        seed=seed,
    )


@checked
def open_index(
    data: Store,
    *,
    layer: Layer | None = None,
    name: str | None = None,
    kind: str | None = None,
    metric: str | None = None,
    device: str = "cpu",
    check: bool = True,
) -> LayerIndex:
    """Open an index by name, or the only one with this layer, kind and metric; it is mapped into memory.

    `check`: compare its files with their checksums before faiss reads them; False saves reading a large index that was
    checked before. An index is trusted data: one that was made by hand can stop or crash the process even so.
    `device`: cpu, auto, cuda or cuda:N.

    Raises SearchIndexNotFoundError, SearchIndexError (stale, damaged, of another store).
    """
    number = None if layer is None else resolve_layer(layer, data.layers)
    wanted = {
        option: value for option, value in (("layer", number), ("kind", kind), ("metric", metric)) if value is not None
    }
    if name is None:
        name = _only_index(data, wanted)
    if not isinstance(data.path, Path):
        return _stored_sketch(data, name)
    folder = folder_of(data) / checked_name(name)
    with reading(folder):
        if not folder.is_dir():
            raise not_found(data, name)
    info = read_info(folder)
    if info.name != name:
        raise SearchIndexError(f"the index {folder} was built as {info.name}: rename its folder to that")
    settings = info.settings
    for option, value in wanted.items():
        if value != getattr(settings, option):
            raise InvalidValueError(
                f"the index {name} has {option} {getattr(settings, option)}, not {value}: give another name"
            )
    require_fresh(data, info)
    check_files(folder, info, checksums=check)
    if settings.kind == kinds.SKETCH:
        layout = Layout(settings.n_rows, info.parameters["levels"])
        if info.files[SKETCH].nbytes != layout.nbytes:
            raise SearchIndexError(f"the index {folder} is damaged: {SKETCH} has another size; {remedy(folder)}")
        file = regular_file(folder / SPACE)
        state = file.stat()
        with _not_damaged(folder):
            rotation = _read_rotation(
                file, state.st_ino, state.st_mtime_ns, info.files[SPACE], data.hidden_size, layout
            )
        return _sketch_of(data, info, folder, rotation, MappedCodes(folder / SKETCH, layout))
    index = kinds.on_device(kinds.read_index(str(folder / FAISS), mapped=True), device)
    if (index.ntotal, index.d) != (settings.n_rows, settings.hidden_size):
        raise SearchIndexError(f"the index {folder} is damaged: it holds {index.ntotal:,} vectors of {index.d}")
    made = kinds.new_index(settings.factory, settings.hidden_size, settings.metric)
    if index.metric_type != made.metric_type:
        raise SearchIndexError(f"the index {folder} is damaged: its metric is not {settings.metric}")
    return LayerIndex(data, info, read_space(folder / SPACE, settings), folder, index)


def _only_index(store: Store, wanted: dict[str, Any]) -> str:
    """The name of the one index that fits; if only unusable ones do, raises the error of the first."""
    fitting = [
        state
        for state in list_indexes(store)
        if state.info is not None
        and all(getattr(state.info.settings, option) == value for option, value in wanted.items())
    ]
    ready = [state.name for state in fitting if state.state == "ready"]
    others = [state.name for state in fitting if state.info is not None and state.info.settings.kind != kinds.SKETCH]
    ready = [name for name in ready if name in others] or ready
    if len(ready) > 1:
        raise InvalidValueError(f"{store.path} has several such indexes: give the name, one of {', '.join(ready)}")
    if not ready and fitting:
        raise SearchIndexError(fitting[0].reason)
    if not ready:
        of = ", ".join(f"{option} {value}" for option, value in wanted.items())
        raise SearchIndexNotFoundError(f"{store.path} has no index{of and f' of {of}'}: build one with embstore index")
    return ready[0]


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
            f"<LayerIndex {self.name} of {self.store.path}: layer {self.layer}, {settings.factory}, {self.metric}, "
            f"{settings.n_rows:,} rows>"
        )

    def _repr_html_(self) -> str:
        settings = self.info.settings
        cells = {
            "layer": str(self.layer),
            "kind": settings.factory,
            "metric": self.metric,
            "rows": f"{settings.n_rows:,}",
        }
        return html_table(cells.items(), f"Index {self.name} of {self.store.path}")

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def layer(self) -> int:
        return self.info.settings.layer

    @property
    def kind(self) -> str:
        return self.info.settings.kind

    @property
    def metric(self) -> str:
        return self.info.settings.metric

    @cached_property
    def vectors(self) -> StoreVectors:
        """The stored vectors that the index is over."""
        return StoreVectors(self.store, self.layer)

    def effort(self, *, nprobe: int | None = None, ef: int | None = None) -> kinds.Effort:
        """How much of the index to search, with its defaults; raises InvalidValueError for a foreign option."""
        own = self.info.parameters
        for option, value, names in (("nprobe", nprobe, "ivf and ivfpq"), ("ef", ef, "hnsw")):
            if value is not None and option not in own:
                raise InvalidValueError(
                    f"{option} is for {names}: the index {self.name} is {self.info.settings.factory}"
                )
            if value is not None:
                check_whole(option, value, 1)
        probed = own.get("nprobe") if nprobe is None else min(nprobe, own["nlist"])
        return kinds.Effort(probed, None if probed is not None else own.get("ef") if ef is None else ef)

    def search(
        self,
        queries: ArrayLike,
        *,
        k: int = 10,
        nprobe: int | None = None,
        ef: int | None = None,
        rows: npt.NDArray[np.int64] | None = None,
        exclude: Sequence[Exclusion] = (),
        rescore: bool = True,
        threads: int | None = None,
    ) -> Hits:
        """Find k near vectors of each query: the nearest for flat and for ivf with all lists, otherwise most of them.

        `queries`: [q, feature] or [feature], as stored. `nprobe`: lists to search (ivf, ivfpq). `ef`: candidates to
        keep (hnsw). `rows` (ascending) and `exclude` hold exactly: if the index finds fewer than k allowed rows, the
        search widens and finally reads the layer; -1 where there are no more rows. `rescore`: score the candidates in
        float64 from the stored vectors and order by that; without it, scores and order are those of the index, which
        saves reading k vectors per query.

        Raises InvalidValueError, NonFiniteError.
        """
        effort = self.effort(nprobe=nprobe, ef=ef)
        check_whole("k", k, 1, MAX_K)
        compared = checked_queries(queries, self.store.hidden_size, self.space)
        given = np.asarray(queries).reshape(compared.shape)
        with kinds.faiss_threads(threads):
            return _IndexSearch(self, given, compared, k, rows, tuple(exclude), rescore, threads).run(effort)


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
        threads: int | None = None,
    ) -> SketchHits:
        """Find the k nearest vectors of each query, exactly, as `embstore.neighbors` does without a sketch.

        `space`: how they are compared, cosine by default; one with a mean that is not that of the layer, or with
        components, is searched by reading the layer, and `scanned` of the result says so. Others: as for LayerIndex.
        """
        space = Space() if space is None else space
        check_whole("k", k, 1, MAX_K)
        candidates = checked_rows(self.vectors, rows)
        compared = checked_queries(queries, self.store.hidden_size, space)
        search = Search(
            self.vectors, compared, k, space, candidates, tuple(exclude), None, threads=thread_count(threads)
        )
        return sketch_search(search, self.sketch)


def find_sketch(data: Store, layer: int) -> LayerSketch | None:
    """The sketch of a layer, if there is one that belongs to the present state of the store."""
    if not data.finished:
        return None
    if not isinstance(data.path, Path):
        with suppress(SearchIndexError, StorageError):
            return _stored_sketch(data, f"layer{layer}-{kinds.SKETCH}")
        return None
    for state in list_indexes(data):
        own = state.info.settings if state.info is not None and state.state == "ready" else None
        if own is not None and (own.kind, own.layer) == (kinds.SKETCH, layer):
            found = open_index(data, name=state.name, check=False)
            return found if isinstance(found, LayerSketch) else None
    return None


def _stored_sketch(data: Store, name: str) -> LayerSketch:
    """Open a sketch in a bucket, of which only the parts that a search needs are read."""
    storage = zarr_storage(data.path)
    site = () if data.source.layout.site == RESIDUAL else (f".{data.source.layout.site}",)
    folder = "/".join((INDEXES, *site, checked_name(name)))
    try:
        document = storage.get_versioned(f"{folder}/{METADATA}")[0]
    except KeyNotFoundError:
        raise SearchIndexNotFoundError(f"{data.path} has no index {name!r}") from None
    info = read_info(data.path / folder, lambda: json.loads(document))
    require_fresh(data, info)
    settings = info.settings
    layout = Layout(settings.n_rows, info.parameters.get("levels", 0))
    if settings.kind != kinds.SKETCH or info.files[SKETCH].nbytes != layout.nbytes:
        raise SearchIndexError(f"the index {name} of {data.path} is no sketch, and others are not read from a bucket")
    content = bytes(storage.get_range(f"{folder}/{SPACE}", 0, info.files[SPACE].nbytes))
    with _not_damaged(data.path / folder):
        rotation = _checked_rotation(content, info.files[SPACE], data.hidden_size, layout)
    return _sketch_of(data, info, data.path / folder, rotation, StoredCodes(storage, f"{folder}/{SKETCH}", layout))


def _sketch_of(data: Store, info: IndexInfo, path: Any, rotation: Rotation, codes: Codes) -> LayerSketch:
    vector_nbytes = data.source.layout.row_nbytes // len(data.layers)
    sketch = Sketch(rotation, codes, codes.layout, info.longest, vector_nbytes)
    return LayerSketch(data, info, Space("cosine", rotation.mean), path, None, sketch)


@lru_cache(4)
def _read_rotation(
    path: Path, inode: int, modified: int, expected: StoredFile, hidden_size: int, layout: Layout
) -> Rotation:
    """The rotation in this state of a file: reading and checking it takes milliseconds, which each search would."""
    return _checked_rotation(path.read_bytes(), expected, hidden_size, layout)


def _checked_rotation(content: bytes, expected: StoredFile, hidden_size: int, layout: Layout) -> Rotation:
    if crc32c(content) != expected.crc32c:
        raise StoreDamagedError(f"{SPACE} was changed")
    return Rotation.read(BytesIO(content), hidden_size, layout.n_levels)


@contextmanager
def _not_damaged(path: Any) -> Iterator[None]:
    """Raise SearchIndexError for the index at a path where its rotation is damaged."""
    try:
        yield
    except StoreDamagedError as error:
        raise SearchIndexError(f"the index {path} is damaged ({error}): {remedy(path)}") from None


class _IndexSearch:
    """One search: rounds with more and more candidates for the queries that have fewer than k allowed rows."""

    def __init__(
        self,
        index: LayerIndex,
        given: NDArray[Any],
        queries: NDArray[np.float64],
        k: int,
        rows: NDArray[np.int64] | None,
        exclude: tuple[Exclusion, ...],
        rescore: bool,
        threads: int | None,
    ) -> None:
        self.index, self.given, self.queries = index, given, queries
        self.k, self.exclude, self.rescore, self.threads = k, exclude, rescore, threads
        self.rows = None if rows is None else np.asarray(rows, np.int64)
        self.n_allowed = index.store.n_rows if self.rows is None else len(self.rows)
        self.queries32 = queries.astype(np.float32)
        self.keeps_vectors = kinds.keeps_vectors(index._faiss)
        self.mask: NDArray[np.bool_] | None = None
        if self.rows is not None:
            self.mask = np.zeros(index.store.n_rows, bool)
            self.mask[self.rows] = True

    def run(self, effort: kinds.Effort) -> Hits:
        n_queries = len(self.queries)
        out = Hits(np.full((n_queries, self.k), -1), np.full((n_queries, self.k), np.nan))
        pending = np.arange(n_queries)
        n_fetched = self.first_fetch(effort)
        if self.k >= self.n_allowed or (self.rows is not None and self.n_allowed <= FEW_ROWS):
            self.read_layer(pending, out)
            return out
        while len(pending) and n_fetched <= min(MAX_FETCHED, self.n_allowed):
            found = self.candidates(pending, n_fetched, effort)
            if found is None:
                break
            hits, enough = self.choose(pending, *found, exhaustive=self.is_exhaustive(effort))
            out.rows[pending[enough]], out.scores[pending[enough]] = hits.rows[enough], hits.scores[enough]
            pending = pending[~enough]
            n_fetched, effort = 4 * n_fetched, effort.doubled()
        if len(pending):
            self.read_layer(pending, out)
        return out

    def first_fetch(self, effort: kinds.Effort) -> int:
        """The number of candidates of the first round."""
        extra = 0
        if self.rescore:
            extra = EXTRA_TO_PROVE if self.is_exhaustive(effort) else EXTRA if self.keeps_vectors else 4 * self.k
        if self.exclude:
            extra += EXTRA
        return min(self.k + extra, self.n_allowed)

    def is_exhaustive(self, effort: kinds.Effort) -> bool:
        """Whether this effort compares every row by its vector, and not by a code of it."""
        n_lists = self.index.info.parameters.get("nlist", 0)
        return self.rescore and self.keeps_vectors and effort.ef is None and (effort.nprobe or 0) >= n_lists

    def candidates(
        self, pending: NDArray[np.int64], n_fetched: int, effort: kinds.Effort
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]] | None:
        """The scores and rows of the index [q, n_fetched]; None if it cannot search among chosen rows."""
        if effort.ef is not None:
            effort = kinds.Effort(ef=max(effort.ef, n_fetched))
        queries = self.queries32 if len(pending) == len(self.queries) else self.queries32[pending]
        parameters = kinds.search_parameters(self.index._faiss, effort, self.mask)
        try:
            scores, rows = self.index._faiss.search(queries, n_fetched, params=parameters)
        except RuntimeError as error:
            if self.mask is not None:
                return None
            raise SearchIndexError(
                f"faiss cannot search the index {self.index.name} ({kinds.cause_of(error)}): {remedy(self.index.path)}"
            ) from None
        return scores, rows

    def choose(
        self, pending: NDArray[np.int64], scores: NDArray[np.float32], rows: NDArray[np.int64], *, exhaustive: bool
    ) -> tuple[Hits, NDArray[np.bool_]]:
        """The k best of the allowed candidates, and the queries for which these are enough."""
        last, is_exhausted = scores[:, -1].astype(np.float64), rows[:, -1] < 0
        for group in self.exclude:
            own = group.of_queries[pending][:, None]
            rows = np.where((group.of_rows[rows] == own) & (own >= 0), -1, rows)
        if not self.rescore:
            return self.as_found(scores, rows)
        exclude = tuple(Exclusion(group.of_rows, group.of_queries[pending]) for group in self.exclude)
        candidates = np.empty(0, np.int64) if self.rows is None else self.rows
        scoring = Search(self.index.vectors, self.queries[pending], self.k, self.index.space, candidates, exclude, None)
        hits = scoring.hits(rows)
        enough = hits.rows[:, -1] >= 0
        if exhaustive:
            enough = is_exhausted | (enough & self.is_proven(pending, hits, last))
        return hits, enough

    def as_found(self, scores: NDArray[np.float32], rows: NDArray[np.int64]) -> tuple[Hits, NDArray[np.bool_]]:
        """Hits with the scores and the order of the index."""
        values = scores.astype(np.float64)
        if self.index.space.ascending:
            values = np.sqrt(np.maximum(values, 0))
        if self.exclude:
            order = np.argsort(rows < 0, axis=1, kind="stable")
            rows, values = np.take_along_axis(rows, order, 1), np.take_along_axis(values, order, 1)
        rows, values = rows[:, : self.k], values[:, : self.k]
        values[rows < 0] = np.nan
        return Hits(rows, values), rows[:, -1] >= 0

    def is_proven(self, pending: NDArray[np.int64], hits: Hits, last: NDArray[np.float64]) -> NDArray[np.bool_]:
        """For which queries no row that was not fetched can be as near as the k-th, given the rounding of the index.

        `last`: the score in the index of the last row fetched, [q]; a squared distance for l2.
        """
        size, longest = self.index.store.hidden_size, self.index.info.longest
        lengths = np.linalg.norm(self.queries[pending], axis=1)
        rounding = (size + 16) * 2.0**-23
        error = 0.0
        if kinds.is_float16(self.index._faiss):
            error = 2 * (2.0**-11 * longest + size**0.5 * 2.0**-25)  # twice: lists hold differences from their center
        kth = hits.scores[:, -1]
        if self.index.space.ascending:
            slack = error * (2 * (lengths + longest) + error) + 2 * rounding * (lengths + longest) ** 2
            return np.asarray(np.square(kth) < last - slack)
        return np.asarray(kth > last + lengths * (error + rounding * longest))

    def read_layer(self, pending: NDArray[np.int64], out: Hits) -> None:
        """Search exactly for some queries."""
        hits = exact_search(
            self.index.vectors,
            self.given[pending],
            k=self.k,
            space=self.index.space,
            rows=self.rows,
            exclude=[Exclusion(group.of_rows, group.of_queries[pending]) for group in self.exclude],
            device="cpu",
            threads=self.threads,
        )
        out.rows[pending], out.scores[pending] = hits.rows, hits.scores
