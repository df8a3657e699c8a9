"""Searching a layer through an index kept with its store, answers scored again from the stored vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.analysis.neighbors.exact import Exclusion, Hits, Search, StoreVectors, checked_queries, exact_search
from embstore.analysis.neighbors.index_build import Progress, make_index
from embstore.analysis.neighbors.index_files import (
    CHECKED_NBYTES,
    FAISS,
    SPACE,
    IndexInfo,
    IndexState,
    check_files,
    checked_name,
    folder_of,
    list_indexes,
    not_found,
    read_info,
    read_space,
    remove_index,
    require_fresh,
)
from embstore.analysis.neighbors.index_kinds import (
    Effort,
    faiss_threads,
    halves,
    keeps_vectors,
    on_device,
    read_index,
    search_parameters,
)
from embstore.analysis.neighbors.space import Space
from embstore.errors import InvalidValueError, SearchIndexError, SearchIndexNotFoundError
from embstore.store import Store

__all__ = ["IndexInfo", "IndexState", "LayerIndex", "build_index", "list_indexes", "open_index", "remove_index"]

FEW_NUMBERS = 2**18  # in vectors that are scored again: no more need no kernel
FEW_ROWS = 10_000  # so few candidates are compared one by one
MOST_FETCHED = 2048  # candidates of a query, beyond which reading the layer is as good
MORE = 2  # candidates beyond k
MANY_MORE = 64  # where these are to show that nothing nearer was left out


def build_index(
    store: Store,
    layer: int,
    *,
    kind: str = "auto",
    metric: str = "cosine",
    center: bool = False,
    components: int = 0,
    name: str | None = None,
    train_sample: int | None = None,
    seed: int = 0,
    memory: int | None = None,
    threads: int | None = None,
    checkpoint_seconds: float = 60.0,
    device: str = "cpu",
    progress: Progress | None = None,
) -> LayerIndex:
    """Build an index of a layer, keep it with the store, and open it; one that is there already is only opened.

    `kind`: auto, flat, ivf, ivfpq, hnsw, or a string of faiss's index_factory. `center`, `components`: the layer's
    mean and first principal components are taken away first. `train_sample`: rows that it learns from, drawn with
    `seed`. `memory`: bytes that it may take. A build that was killed goes on from its last checkpoint, one every
    `checkpoint_seconds`. `progress` is called with (rows done, rows in all). With one thread the same call always
    makes the same bytes; an HNSW graph differs with more.

    Raises MissingRowsError for a store that is not finished, InvalidValueError, NonFiniteError, StoreBusyError,
    StorageError, MissingPackageError.
    """
    made = make_index(
        store,
        layer,
        kind=kind,
        metric=metric,
        center=center,
        components=components,
        name=name,
        train_sample=train_sample,
        seed=seed,
        memory=memory,
        threads=threads,
        checkpoint_seconds=checkpoint_seconds,
        progress=progress,
    )
    return open_index(store, layer, name=made, device=device)


def open_index(
    store: Store,
    layer: int | None = None,
    *,
    name: str | None = None,
    kind: str | None = None,
    metric: str | None = None,
    device: str = "cpu",
    check: bool | None = None,
) -> LayerIndex:
    """Open an index by name, or the only one of that layer, kind and metric; mapped into memory.

    `check`: hold its file against its checksum (by default where it has a GiB or less). `device`: cpu, auto, cuda or
    cuda:N. Raises SearchIndexNotFoundError, SearchIndexError (stale, damaged, of another store).
    """
    if name is None:
        name = _only(store, layer, kind, metric)
    folder = folder_of(store) / checked_name(name)
    if not folder.is_dir():
        raise not_found(store, name)
    info = read_info(folder)
    if info.name != name:
        raise SearchIndexError(f"the index {folder} was made as {info.name}: give it that name again")
    recipe = info.recipe
    for option, wanted, found in (("layer", layer, recipe.layer), ("kind", kind, recipe.kind)):
        if wanted is not None and wanted != found:
            raise InvalidValueError(f"the index {name} has {option} {found}, not {wanted}: give another name")
    if metric not in (None, recipe.metric):
        raise InvalidValueError(f"the index {name} has metric {recipe.metric}, not {metric}: give another name")
    require_fresh(store, info)
    check_files(folder, info, whole=info.nbytes <= CHECKED_NBYTES if check is None else check)
    index = on_device(read_index(str(folder / FAISS), mapped=True), device)
    if (index.ntotal, index.d) != (recipe.rows, recipe.hidden_size):
        raise SearchIndexError(f"the index {folder} is damaged: it holds {index.ntotal:,} vectors of {index.d}")
    return LayerIndex(store, info, read_space(folder / SPACE, recipe), folder, index)


def _only(store: Store, layer: int | None, kind: str | None, metric: str | None) -> str:
    """The name of the one index that fits; where only unusable ones do, says why of the first."""
    fitting = []
    for state in list_indexes(store):
        recipe = None if state.info is None else state.info.recipe
        if recipe is None or any(
            wanted not in (None, found)
            for wanted, found in ((layer, recipe.layer), (kind, recipe.kind), (metric, recipe.metric))
        ):
            continue
        fitting.append(state)
    ready = [state.name for state in fitting if state.state == "ready"]
    if len(ready) > 1:
        raise InvalidValueError(f"{store.path} has several such indexes: give the name, one of {', '.join(ready)}")
    if not ready and fitting:
        raise SearchIndexError(fitting[0].what)
    if not ready:
        wanted = {"layer": layer, "kind": kind, "metric": metric}
        of = ", ".join(f"{key} {value}" for key, value in wanted.items() if value is not None)
        raise SearchIndexNotFoundError(f"{store.path} has no index{of and f' of {of}'}: make one with embstore index")
    return ready[0]


@dataclass
class LayerIndex:
    """An open index of one layer, made by `build_index` or `open_index`."""

    store: Store
    info: IndexInfo
    space: Space
    path: Path
    _faiss: Any

    def __repr__(self) -> str:
        recipe = self.info.recipe
        return (
            f"<LayerIndex {self.info.name} of {self.store.path}: layer {recipe.layer}, {recipe.factory}, "
            f"{recipe.metric}, {recipe.rows:,} rows>"
        )

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def layer(self) -> int:
        return self.info.recipe.layer

    @property
    def kind(self) -> str:
        return self.info.recipe.kind

    @property
    def metric(self) -> str:
        return self.info.recipe.metric

    @cached_property
    def vectors(self) -> StoreVectors:
        """The vectors that are searched, as they are stored."""
        return StoreVectors(self.store, self.layer)

    def effort(self, *, nprobe: int | None = None, ef: int | None = None) -> Effort:
        """How hard to search, with the index's defaults. Raises InvalidValueError for what it does not have."""
        own = self.info.parameters
        for option, value, kinds in (("nprobe", nprobe, "ivf and ivfpq"), ("ef", ef, "hnsw")):
            if value is not None and option not in own:
                raise InvalidValueError(f"{option} is for {kinds}: the index {self.name} is {self.info.recipe.factory}")
            if value is not None and value < 1:
                raise InvalidValueError(f"{option} {value} is not allowed: give 1 or more")
        probed = own.get("nprobe") if nprobe is None else min(nprobe, own["nlist"])
        return Effort(probed, None if probed is not None else own.get("ef") if ef is None else ef)

    def search(
        self,
        queries: ArrayLike,
        *,
        k: int,
        nprobe: int | None = None,
        ef: int | None = None,
        rows: NDArray[np.int64] | None = None,
        exclude: Sequence[Exclusion] = (),
        rescore: bool = True,
        threads: int | None = None,
    ) -> Hits:
        """Find k near vectors of each query; the nearest for flat and for ivf with all lists, else most of them.

        `queries`: [q, feature] or [feature], as they are stored. `nprobe`: lists searched (ivf, ivfpq). `ef`:
        candidates kept (hnsw). `rows` (ascending) and `exclude` hold exactly: where the index finds fewer than k that
        are allowed it searches harder, and reads the layer at last; -1 where there are no more. `rescore`: score the
        candidates in float64 from the stored vectors and order by that; without, the index's own scores and order are
        returned, which saves reading k vectors a query.

        Raises InvalidValueError, NonFiniteError.
        """
        effort = self.effort(nprobe=nprobe, ef=ef)
        if k < 1:
            raise InvalidValueError(f"k {k} is not allowed: give 1 or more")
        asked = checked_queries(queries, self.store.hidden_size, self.space)
        given = np.asarray(queries).reshape(asked.shape)
        with faiss_threads(threads):
            return _Run(self, given, asked, k, rows, tuple(exclude), rescore, threads).run(effort)


class _FewPairs(Search):
    """Scores few pairs without the kernels, which take longer to load than to do without."""

    def pair_scores(
        self, vectors: NDArray[Any], owners: NDArray[np.int64], places: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        return self.space.pair_scores(self.queries[owners], self.space.place(vectors)[places])


class _Run:
    """One search: rounds of ever more candidates for the queries that still lack some."""

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
        self.allowed = index.store.n_rows if self.rows is None else len(self.rows)
        self.queries32 = queries.astype(np.float32)
        self.whole = keeps_vectors(index._faiss)
        self.selected: NDArray[np.bool_] | None = None
        if self.rows is not None:
            self.selected = np.zeros(index.store.n_rows, bool)
            self.selected[self.rows] = True

    def run(self, effort: Effort) -> Hits:
        count = len(self.queries)
        out = Hits(np.full((count, self.k), -1), np.full((count, self.k), np.nan))
        pending = np.arange(count)
        fetch = self.first_fetch(effort)
        few = self.rows is not None and self.allowed <= FEW_ROWS
        if few or self.k >= self.allowed:
            pending = self.read_layer(pending, out)
        while len(pending):
            found = self.candidates(pending, fetch, effort)
            if found is None:
                break
            hits, enough = self.chosen(pending, *found, complete=self.complete(effort))
            out.rows[pending[enough]], out.scores[pending[enough]] = hits.rows[enough], hits.scores[enough]
            pending = pending[~enough]
            fetch, effort = 4 * fetch, effort.doubled()
            if fetch > min(MOST_FETCHED, self.allowed):
                break
        if len(pending):
            self.read_layer(pending, out)
        return out

    def first_fetch(self, effort: Effort) -> int:
        extra = 0
        if self.rescore:
            extra = MANY_MORE if self.complete(effort) else MORE if self.whole else 4 * self.k
        if self.exclude:
            extra += MORE
        return min(self.k + extra, self.allowed)

    def complete(self, effort: Effort) -> bool:
        """Whether so much effort looks at every row, at its vector and not at a code of it."""
        lists = self.index.info.parameters.get("nlist", 0)
        return self.rescore and self.whole and effort.ef is None and (effort.nprobe or 0) >= lists

    def candidates(
        self, pending: NDArray[np.int64], fetch: int, effort: Effort
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]] | None:
        """The index's own scores and rows [q, fetch]; None where it cannot search so."""
        if effort.ef is not None:
            effort = Effort(ef=max(effort.ef, fetch))
        asked = self.queries32 if len(pending) == len(self.queries) else self.queries32[pending]
        parameters = search_parameters(self.index._faiss, effort, self.selected)
        try:
            scores, rows = self.index._faiss.search(asked, fetch, params=parameters)
        except RuntimeError:
            if self.selected is None:
                raise
            return None  # a kind, or a GPU, that cannot choose among rows
        return scores, rows

    def chosen(
        self, pending: NDArray[np.int64], scores: NDArray[np.float32], rows: NDArray[np.int64], *, complete: bool
    ) -> tuple[Hits, NDArray[np.bool_]]:
        """The k best of the candidates that are allowed, and for which queries these are enough."""
        last, exhausted = scores[:, -1].astype(np.float64), rows[:, -1] < 0
        for group in self.exclude:
            own = group.of_queries[pending][:, None]
            rows = np.where((group.of_rows[rows] == own) & (own >= 0), -1, rows)
        if not self.rescore:
            return self.as_found(scores, rows)
        hits = self.scoring(pending, rows.size).hits(rows)
        enough = hits.rows[:, -1] >= 0
        if complete:
            enough = exhausted | (enough & self.certain(pending, hits, last))
        return hits, enough

    def scoring(self, pending: NDArray[np.int64], pairs: int) -> Search:
        groups = tuple(Exclusion(group.of_rows, group.of_queries[pending]) for group in self.exclude)
        rows = np.empty(0, np.int64) if self.rows is None else self.rows
        kind = _FewPairs if pairs * self.index.store.hidden_size <= FEW_NUMBERS else Search
        return kind(self.index.vectors, self.queries[pending], self.k, self.index.space, rows, groups, None)

    def as_found(self, scores: NDArray[np.float32], rows: NDArray[np.int64]) -> tuple[Hits, NDArray[np.bool_]]:
        values = scores.astype(np.float64)
        if self.index.space.ascending:
            values = np.sqrt(np.maximum(values, 0))
        if self.exclude:
            order = np.argsort(rows < 0, axis=1, kind="stable")
            rows, values = np.take_along_axis(rows, order, 1), np.take_along_axis(values, order, 1)
        rows, values = rows[:, : self.k], values[:, : self.k]
        values[rows < 0] = np.nan
        return Hits(rows, values), rows[:, -1] >= 0

    def certain(self, pending: NDArray[np.int64], hits: Hits, last: NDArray[np.float64]) -> NDArray[np.bool_]:
        """For which queries no row that was not fetched can be as near as the k-th, for all the index has rounded.

        `last`: the index's own score of the last that was fetched, [q]; a squared distance for l2.
        """
        size, longest = self.index.store.hidden_size, self.index.info.longest
        lengths = np.linalg.norm(self.queries[pending], axis=1)
        rounding = (size + 16) * 2.0**-23
        error = 0.0
        if halves(self.index._faiss):
            error = 2 * (2.0**-11 * longest + size**0.5 * 2.0**-25)  # twice: lists keep what their centre leaves
        kth = hits.scores[:, -1]
        if self.index.space.ascending:
            slack = error * (2 * (lengths + longest) + error) + 2 * rounding * (lengths + longest) ** 2
            return np.asarray(np.square(kth) < last - slack)
        return np.asarray(kth > last + lengths * (error + rounding * longest))

    def read_layer(self, pending: NDArray[np.int64], out: Hits) -> NDArray[np.int64]:
        """Search exactly for some queries; none is left then."""
        groups = [Exclusion(group.of_rows, group.of_queries[pending]) for group in self.exclude]
        hits = exact_search(
            self.index.vectors,
            self.given[pending],
            k=self.k,
            space=self.index.space,
            rows=self.rows,
            exclude=groups,
            threads=self.threads,
        )
        out.rows[pending], out.scores[pending] = hits.rows, hits.scores
        return np.empty(0, np.int64)
