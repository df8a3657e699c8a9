"""Exact search: the k nearest of any number of vectors, straight from the store, in blocks, with no copy of it.

Blocks are multiplied in float32 and each query keeps somewhat more than k candidates; these are scored again in
float64. What float32 cannot decide (rows whose score lies within its rounding of the k-th, such as equal vectors) is
decided by a second reading, so that the answer is that of float64, equals by their row.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.analysis.neighbors.searched import ArrayVectors as ArrayVectors
from embstore.analysis.neighbors.searched import StoreVectors as StoreVectors
from embstore.analysis.neighbors.searched import Vectors as Vectors
from embstore.analysis.neighbors.searched import halves_or_floats, refuse
from embstore.analysis.neighbors.space import Space, unit_rows
from embstore.errors import InvalidValueError, NonFiniteError

FEW_QUERIES = 12  # up to so many, rows are multiplied as they are read
FEW_WITHOUT_TORCH = 64  # which takes longer to load than to do without
BLOCK_NBYTES = 2**21  # of float32
QUERY_TILE = 128
ROOM = 256  # candidates that wait until the best of them are chosen
RESCORED_NBYTES = 2**26
MORE = 48  # candidates beyond k: the more, the rarer a second reading
_METRIC = {"cosine": 0, "ip": 1, "l2": 2}
_UNSURE, _BAD = 1, 2


@dataclass(frozen=True)
class Hits:
    """Of each query the nearest rows, int64 [q, k], best first and equals by row; -1 where there are no more.

    `scores`: float64 [q, k], nan there.
    """

    rows: NDArray[np.int64]
    scores: NDArray[np.float64]


@dataclass(frozen=True)
class Exclusion:
    """Leaves out the rows of a query's own group: `of_rows` int64 [n], `of_queries` int64 [q], -1 for none."""

    of_rows: NDArray[np.int64]
    of_queries: NDArray[np.int64]


def exact_search(
    vectors: Vectors,
    queries: ArrayLike,
    *,
    k: int,
    space: Space | None = None,
    rows: NDArray[np.int64] | None = None,
    exclude: Sequence[Exclusion] = (),
    device: str = "cpu",
    threads: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> Hits:
    """Find the k nearest vectors of each query, exactly.

    `queries`: [q, feature] or [feature], as they are stored: mean and components are taken from them too. `rows`:
    the candidates, ascending; all if not given. `exclude`: what each query leaves out of them. `progress`: is told
    how many candidates have been read.

    Raises InvalidValueError, MissingRowsError for rows not yet written, NonFiniteError.
    """
    space = Space() if space is None else space
    asked = checked_queries(queries, vectors.hidden_size, space)
    if k < 1:
        raise InvalidValueError(f"k {k} is not allowed: give 1 or more")
    candidates = np.arange(vectors.count) if rows is None else np.asarray(rows, np.int64)
    if (candidates[1:] <= candidates[:-1]).any():
        raise InvalidValueError("rows must ascend, each given once: sort them")
    search = Search(vectors, asked, k, space, candidates, tuple(exclude), progress)
    if not len(candidates):
        return search.hits(np.full((len(asked), 1), -1))
    if device == "cpu":  # no torch is loaded for a few queries: it takes longer than they do
        return search.decided(*search.candidates(threads))
    from embstore.analysis.neighbors.exact_torch import torch_candidates
    from embstore.devices import choose_device

    chosen = choose_device(device)
    found = search.candidates(threads) if chosen.type == "cpu" else torch_candidates(search, chosen)
    return search.decided(*found)


def checked_queries(queries: ArrayLike, hidden_size: int, space: Space) -> NDArray[np.float64]:
    array = np.asarray(queries, np.float64)
    array = array[None] if array.ndim == 1 else array
    if array.ndim != 2 or array.shape[1] != hidden_size:
        raise InvalidValueError(f"queries must be [q, {hidden_size}] as what is searched, not of shape {array.shape}")
    wrong = np.flatnonzero(~np.isfinite(array).all(1))
    if len(wrong):
        raise NonFiniteError(f"query {int(wrong[0])} holds a value that is not finite: leave it out")
    placed = space.place(array)
    return unit_rows(placed) if space.metric == "cosine" else placed


@dataclass
class Search:
    """One call: the queries as they are compared (placed; at length one for cosine), float64 [q, feature]."""

    vectors: Vectors
    queries: NDArray[np.float64]
    k: int
    space: Space
    rows: NDArray[np.int64]
    exclude: tuple[Exclusion, ...]
    progress: Callable[[int], object] | None

    def __post_init__(self) -> None:
        size = self.vectors.hidden_size
        empty = np.empty((0, size))
        mean = np.zeros(size) if self.space.components is not None else None
        mean = self.space.mean if self.space.mean is not None else mean
        self.mean = np.empty(0, np.float32) if mean is None else mean.astype(np.float32)
        self.mean_length = 0.0 if mean is None else float(np.linalg.norm(mean))
        self.components = empty if self.space.components is None else np.ascontiguousarray(self.space.components)
        self.queries32 = self.queries.astype(np.float32)
        if not np.isfinite(self.queries32).all():
            raise NonFiniteError("a query is too long for float32: scale it down")
        self.kept = min(self.k + max(MORE, self.k // 2), len(self.rows))
        self.query_groups = np.array([group.of_queries for group in self.exclude], np.int64).reshape(
            len(self.exclude), len(self.queries)
        )
        # No part needs what lies below the best of another; whichever writes last, it is no more than the truth.
        self.least = np.full(len(self.queries), -np.inf, np.float32)
        self.unsure: list[NDArray[np.int64]] = []
        self.lengths = [0.0]  # the longest vector of each block; a list, which threads may add to at once
        self._done = 0

    @property
    def few(self) -> bool:
        """Whether rows are multiplied as they are read."""
        return len(self.queries) <= (FEW_QUERIES if "torch" in sys.modules else FEW_WITHOUT_TORCH)

    def row_groups(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.array([group.of_rows[rows] for group in self.exclude], np.int64).reshape(len(self.exclude), len(rows))

    def advance(self, count: int) -> None:
        self._done += count
        if self.progress is not None:
            self.progress(min(self._done, len(self.rows)))

    def candidates(self, threads: int | None) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The best in float32 of each query, in no order: scores and rows [q, kept]."""
        parts = self._parts(threads)
        if len(parts) == 1:
            found = [_best_of_part(self, *parts[0])]
        else:
            with (
                _one_thread_each(self.few) as begin,
                ThreadPoolExecutor(len(parts), "embstore-search", begin) as pool,
            ):
                found = [future.result() for future in [pool.submit(_best_of_part, self, *part) for part in parts]]
        scores, rows = (np.concatenate(arrays, 1) for arrays in zip(*found, strict=True))
        if scores.shape[1] > self.kept:
            best = np.argpartition(-scores, self.kept - 1, axis=1)[:, : self.kept]
            scores, rows = np.take_along_axis(scores, best, 1), np.take_along_axis(rows, best, 1)
        return scores, rows

    def _parts(self, threads: int | None) -> list[tuple[int, int]]:
        if threads is not None and threads < 1:
            raise InvalidValueError(f"threads is {threads}; it must be 1 or more")
        wanted = min(threads or _cores(), max(1, len(self.rows) // 4096))
        edges = [len(self.rows) * part // wanted for part in range(wanted + 1)]
        return list(pairwise(edges))

    def decided(self, scores: NDArray[np.float32], rows: NDArray[np.int64]) -> Hits:
        """The hits among candidates, and beyond them where float32 leaves a doubt."""
        least = scores.min(1)
        if scores.shape[1] > self.k:  # who float32 has far below the k-th is not among the k
            kth = np.partition(scores, -self.k, axis=1)[:, -self.k]
            rows = np.where(scores >= (kth - 2 * self.rounding)[:, None], rows, -1)
        unsure = np.concatenate([np.empty(0, np.int64), *self.unsure])
        if len(unsure):
            rows = np.concatenate([rows, np.where(_excluded(self, unsure), -1, unsure)], 1)
        hits = self.hits(rows)
        last = hits.rows[:, -1] >= 0
        worst = np.where(last, self.comparable(hits.scores[:, -1]), -np.inf)
        doubtful = np.flatnonzero((least > -np.inf) & (least.astype(np.float64) + self.rounding >= worst))
        if self.kept == len(self.rows) or not len(doubtful):
            return hits
        return self._read_again(hits, doubtful, worst)

    @property
    def rounding(self) -> NDArray[np.float64]:
        """What a product in float32 may be off by, of each query; [q]."""
        size = self.vectors.hidden_size
        unit = float(np.finfo(np.float32).eps) / 2
        if self.space.metric == "cosine":
            return np.full(len(self.queries), (size + 8 + (512 if len(self.mean) else 0)) * unit)
        longest = max(self.lengths) + 2 * self.mean_length
        bias = longest**2 if self.space.metric == "l2" else 0.0
        return np.asarray((size + 8) * unit * (np.linalg.norm(self.queries, axis=1) * longest + bias) + 1e-37)

    def comparable(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Scores as they are kept in float32: more is nearer; for a distance (|q|^2 - distance^2)/2."""
        if self.space.metric != "l2":
            return scores
        return np.asarray((np.square(self.queries).sum(1) - np.square(scores)) / 2)

    def hits(self, rows: NDArray[np.int64]) -> Hits:
        """The k best of candidate rows [q, c] (-1: none, and none twice but -1), scored in float64."""
        scores = self.rescored(rows)
        return self._best(rows, scores, self.k)

    def rescored(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """The score of each query with its own rows, float64 [q, c]; nan for -1."""
        out = np.full(rows.shape, np.nan)
        step = max(1, RESCORED_NBYTES // (8 * max(1, rows.shape[1]) * self.vectors.hidden_size))
        for start in range(0, len(rows), step):
            known = rows[start : start + step] >= 0
            if known.any():
                wanted, places = np.unique(rows[start : start + step][known], return_inverse=True)
                owners = np.nonzero(known)[0] + start
                out[start : start + step][known] = self.pair_scores(self.vectors.gather(wanted), owners, places)
        return out

    def pair_scores(
        self, vectors: NDArray[Any], owners: NDArray[np.int64], places: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """The scores of queries `owners` with vectors `places`, pair by pair."""
        if len(self.mean):
            return self.space.pair_scores(self.queries[owners], self.space.place(vectors)[places])
        scores = np.empty(len(owners))
        row = np.empty(self.vectors.hidden_size, np.float32)
        score_pairs: Any = _kernels().score_pairs
        block = halves_or_floats(vectors)
        score_pairs(*block, _METRIC[self.space.metric], self.queries, owners, places, row, scores)
        return scores

    def _best(self, rows: NDArray[np.int64], scores: NDArray[np.float64], k: int) -> Hits:
        key = np.where(np.isnan(scores), np.inf, scores if self.space.ascending else -scores)
        order = np.lexsort((rows, key), axis=1)[:, :k]
        best = Hits(np.take_along_axis(rows, order, 1), np.take_along_axis(scores, order, 1))
        lacking = k - order.shape[1]
        if lacking <= 0:
            return best
        width = ((0, 0), (0, lacking))
        return Hits(np.pad(best.rows, width, constant_values=-1), np.pad(best.scores, width, constant_values=np.nan))

    def _read_again(self, hits: Hits, doubtful: NDArray[np.int64], worst: NDArray[np.float64]) -> Hits:
        """Read all once more for the queries in doubt; whatever may be among their k best is scored in float64."""
        again = Search(
            self.vectors, self.queries[doubtful], self.k, self.space, self.rows,
            tuple(Exclusion(group.of_rows, group.of_queries[doubtful]) for group in self.exclude), None,
        )  # fmt: skip
        limit = (worst - self.rounding)[doubtful]
        found = Hits(hits.rows[doubtful], hits.scores[doubtful])
        for rows, scores in _products(again, self.rows):
            near = scores >= limit[:, None]
            near &= ~_excluded(again, rows)
            for query in np.flatnonzero(near.any(1)).tolist():
                fresh = rows[near[query]]
                fresh = fresh[~np.isin(fresh, found.rows[query])]
                if not len(fresh):
                    continue
                one = Search(self.vectors, again.queries[query][None], self.k, self.space, self.rows, (), None)
                both = np.concatenate([found.rows[query], fresh])[None]
                known = np.concatenate([found.scores[query][None], one.rescored(fresh[None])], 1)
                best = one._best(both, known, self.k)
                found.rows[query], found.scores[query] = best.rows[0], best.scores[0]
        hits.rows[doubtful], hits.scores[doubtful] = found.rows, found.scores
        return hits


def _excluded(search: Search, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    out = np.zeros((len(search.queries), len(rows)), bool)
    for of_rows, of_queries in zip(search.row_groups(rows), search.query_groups, strict=True):
        out |= (of_rows[None] == of_queries[:, None]) & (of_queries[:, None] >= 0)
    return out


def _best_of_part(search: Search, start: int, stop: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """What may be among the `kept` best of some rows: scores and rows [q, room], -inf and -1 for none."""
    keep_best: Any = _kernels().keep_best
    count = len(search.queries)
    room = min(search.kept + ROOM, max(stop - start, search.kept) + 1)
    scores = np.full((count, room), -np.inf, np.float32)
    rows = np.full(scores.shape, -1)
    filled = np.zeros(count, np.int64)
    for tile, block_rows, products, bias, state in _blocks(search, search.rows[start:stop]):
        groups = search.row_groups(block_rows), np.ascontiguousarray(search.query_groups[:, tile])
        own = bias if search.space.metric == "l2" else bias[:0]
        found = scores[tile], rows[tile], filled[tile], search.least[tile]
        keep_best(products, own, state, block_rows, *groups, search.kept, *found)
    spent = np.arange(room) >= filled[:, None]
    scores[spent], rows[spent] = -np.inf, -1
    return scores, rows


def _products(search: Search, rows: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Rows and their scores in float32 with all queries, block by block; -inf for those left to float64."""
    waiting: list[NDArray[np.float32]] = []
    for tile, block_rows, products, bias, state in _blocks(search, rows):
        waiting.append(np.where(state == 0, products.T - bias, -np.inf).astype(np.float32))
        if tile.stop >= len(search.queries):
            yield block_rows, np.concatenate(waiting)
            waiting = []


def _blocks(
    search: Search, rows: NDArray[np.int64]
) -> Iterator[tuple[slice, NDArray[np.int64], NDArray[np.float32], NDArray[np.float32], NDArray[np.uint8]]]:
    """Yield (queries, rows, products float32 [n, q], bias [n], state [n]), all queries of a block after each other."""
    size, count = search.vectors.hidden_size, len(search.queries)
    few = search.few
    multiply_block: Any = _kernels().multiply_block
    place_block: Any = _kernels().place_block
    block_rows = min(max(1, BLOCK_NBYTES // (4 * size)), max(1, len(rows)))
    placed = np.empty((1 if few else block_rows, size), np.float32)
    bias, state = np.empty(block_rows, np.float32), np.empty(block_rows, np.uint8)
    products = np.empty((block_rows, count if few else min(count, QUERY_TILE)), np.float32)
    torch: Any = None if few else _torch()
    settings = (_METRIC[search.space.metric], search.mean, np.float32(search.mean_length), search.components)
    for held, stored in search.vectors.blocks(rows, block_rows):
        n, block = len(held), halves_or_floats(stored)
        if few:
            square = multiply_block(*block, *settings, placed[0], bias, state, search.queries32, products[:n])
        else:
            square = place_block(*block, *settings, placed, bias, state)
        if state[:n].any():
            bad = np.flatnonzero(state[:n] == _BAD)
            if len(bad):
                refuse(int(held[bad[0]]), stored[bad[0]])
            search.unsure.append(held[state[:n] == _UNSURE])
        search.lengths.append(float(square) ** 0.5)
        if few:
            yield slice(0, count), held, products[:n], bias[:n], state[:n]
        else:
            for start in range(0, count, QUERY_TILE):
                tile = slice(start, min(start + QUERY_TILE, count))
                width = tile.stop - start
                out = products[:n] if width == products.shape[1] else np.empty((n, width), np.float32)
                torch.mm(*map(torch.from_numpy, (placed[:n], search.queries32[tile].T)), out=torch.from_numpy(out))
                yield tile, held, out, bias[:n], state[:n]
        search.advance(n)


def _cores() -> int:
    """How many threads work side by side: as many as torch takes, where it is loaded."""
    if "torch" in sys.modules:
        return int(_torch().get_num_threads())
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdecimal() and int(asked) else os.cpu_count() or 1


@contextmanager
def _one_thread_each(few: bool) -> Iterator[Callable[[], None] | None]:
    """Threads side by side multiply with one each; yields what each of them begins with."""
    if few:
        yield None
        return
    threads = _torch().get_num_threads()
    try:
        yield partial(_torch().set_num_threads, 1)
    finally:
        _torch().set_num_threads(threads)  # threads made later, and this one, take what was set last


def _torch() -> Any:
    import torch

    return torch


def _kernels() -> Any:
    from embstore.analysis.neighbors import kernels as search_kernels

    return search_kernels
