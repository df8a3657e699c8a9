"""Exact search: the k nearest vectors of any number of queries, read from the store in blocks without a copy.

A compiled loop multiplies rows with all queries in float32, and each query collects somewhat more than k candidates,
which are scored again in float64. Rows that float32 cannot decide, because their score is within rounding of the k-th
(equal vectors, for example), are decided by a second pass. The result is that of float64 brute force, with equal scores
ordered by row.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache, partial
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.analysis.neighbors.space import Rows, Space, StoredBlock, Vectors, refuse_vector, stored_bytes
from embstore.arguments import as_matrix
from embstore.config import settings
from embstore.errors import InvalidValueError, NonFiniteError, check_whole
from embstore.kernels import Candidates, pack_queries, padded_queries, rank_rows, score_pairs
from embstore.vectors.linalg import unit_rows

MAX_K = 2**31 - 1
SMALL = 2**35  # multiplications up to which a GPU is not looked for, which would load torch
THREAD_ROWS = 4096  # fewer rows are not worth another thread
BLOCKS_A_THREAD = 8  # blocks of a search by several threads, so that they end together; but
LEAST_NUMBERS, MOST_NUMBERS = 2**19, 2**23  # numbers in a block
GPU_BLOCK_NBYTES = 2**28
SECOND_PASS_SCORES = 2**22
SPARE_CANDIDATES = 64  # collected at least before the best are selected, or as many as are kept
EXTRA_CANDIDATES = 48  # candidates beyond k: with more of them a second pass is rarer
RESCORED_NUMBERS, RESCORED_PAIRS = 2**25, 2**21  # of the vectors that are scored again at a time, and with the queries
FEW_PAIRS = 2**13  # up to this number of queries times rows, all are scored in float64 alone
_METRIC = {"cosine": 0, "ip": 1, "l2": 2}
_UNSURE, _BAD = 1, 2
_CANCELLED = 64.0
_LONGEST = 1e19  # a vector whose squared length is known to fit float32


@dataclass(frozen=True)
class Hits:
    """The nearest rows of each query, int64 [q, k], best first and equal scores by row; -1 where there are no more.

    `scores`: float64 [q, k], NaN where there is no row.
    """

    rows: NDArray[np.int64]
    scores: NDArray[np.float64]


@dataclass(frozen=True)
class Exclusion:
    """Rows that a query must not find: those of its own group.

    `of_rows`: int64 or int32 [n], the group of each row of the store, None where each has its own, of its number;
    `of_queries`: int64 [q], that of each query; -1: none.
    """

    of_rows: NDArray[np.integer] | None
    of_queries: NDArray[np.int64]

    def of(self, rows: NDArray[np.int64]) -> NDArray[np.integer]:
        """The groups of some rows."""
        return rows if self.of_rows is None else self.of_rows[rows]


def exact_search(
    vectors: Vectors,
    queries: ArrayLike,
    *,
    k: int,
    space: Space | None = None,
    rows: Rows | None = None,
    exclude: Sequence[Exclusion] = (),
    progress: Callable[[int], object] | None = None,
) -> Hits:
    """Find the k nearest vectors of each query, exactly, on the device and with the threads of `es.config`.

    `queries`: [q, feature] or [feature] as stored: the mean is subtracted from them too. `rows`: the
    candidates, ascending; all by default. `exclude`: rows that a query must not find. `progress` is called with the
    number of candidates read.

    Raises InvalidValueError, MissingRowsError for rows not yet written, NonFiniteError.
    """
    space = Space() if space is None else space
    compared = checked_queries(queries, vectors.hidden_size, space)
    check_whole("k", k, 1, MAX_K)
    candidates = checked_rows(vectors, rows)
    search = Search(vectors, compared, k, space, candidates, tuple(exclude), progress)
    return search.scan(settings().device, settings().threads)


def checked_rows(vectors: Vectors, rows: Rows | None) -> Rows:
    """The candidates of a search, all for None; raises InvalidValueError."""
    candidates: Rows = range(vectors.count) if rows is None else rows
    if not isinstance(candidates, range):
        candidates = np.ascontiguousarray(candidates, np.int64)
    if not isinstance(candidates, range) and (candidates[1:] <= candidates[:-1]).any():
        raise InvalidValueError("rows must be ascending, each given once: sort them")
    if len(candidates) and not 0 <= candidates[0] <= candidates[-1] < vectors.count:
        raise InvalidValueError(f"rows must be between 0 and {vectors.count - 1:,}, those of the searched vectors")
    return candidates


def checked_queries(queries: ArrayLike, hidden_size: int, space: Space) -> NDArray[np.float64]:
    """The queries as they are compared, float64 [q, feature]; raises InvalidValueError and NonFiniteError."""
    array = as_matrix("queries", queries, single=True).astype(np.float64, order="C")
    if array.shape[1] != hidden_size:
        raise InvalidValueError(f"queries must be [q, {hidden_size}] like the searched vectors, not {array.shape}")
    invalid = np.flatnonzero(~np.isfinite(array).all(1))
    if len(invalid):
        raise NonFiniteError(f"query {int(invalid[0])} holds a value that is not finite: leave it out")
    transformed = space.transform(array)
    return unit_rows(transformed) if space.metric == "cosine" else transformed


@dataclass
class Search:
    """One search: the queries as they are compared, float64 [q, feature], and the candidate `rows`."""

    vectors: Vectors
    queries: NDArray[np.float64]
    k: int
    space: Space
    rows: Rows
    exclude: tuple[Exclusion, ...]
    progress: Callable[[int], object] | None
    threads: int = 1

    def __post_init__(self) -> None:
        mean = self.space.mean
        self.mean = None if mean is None else np.ascontiguousarray(mean, np.float32)
        self.mean_length = 0.0 if mean is None else float(np.linalg.norm(mean))
        self.queries32 = self.queries.astype(np.float32)
        if not np.isfinite(self.queries32).all():
            raise NonFiniteError("a query is too long for float32: scale it down")
        self.n_candidates = min(self.k + max(EXTRA_CANDIDATES, self.k // 16), len(self.rows))
        self.query_groups = np.array([group.of_queries for group in self.exclude], np.int64).reshape(
            len(self.exclude), len(self.queries)
        )
        columns = [group.of_rows for group in self.exclude]
        if any(column is not None and len(column) != self.vectors.count for column in columns):
            raise InvalidValueError(f"an exclusion needs the group of each of the {self.vectors.count:,} vectors")
        self.unsure: list[NDArray[np.int64]] = []
        self.lengths = [0.0]  # the longest vector of each block; threads append to the list
        self._done = 0

    def scan(self, device: str, threads: int | None) -> Hits:
        """Search by reading all candidates."""
        if not len(self.rows):
            return self.hits(np.full((len(self.queries), 1), -1))
        if device in ("auto", "cpu") and len(self.rows) * len(self.queries) <= FEW_PAIRS:
            found = self.every_pair()
            if found is not None:
                return found
        if device != "cpu" and not (device == "auto" and len(self.rows) * self.queries.size <= SMALL):
            from embstore.devices import choose_device

            chosen = choose_device(device, float64=True)
            if chosen.type != "cpu":
                return self.decide(*_gpu_candidates(self, chosen))
        from embstore.devices import thread_count

        self.threads = thread_count(threads)
        return self.decide(*self.candidates())

    def advance(self, n_rows: int) -> None:
        self._done += n_rows
        if self.progress is not None:
            self.progress(min(self._done, len(self.rows)))

    def every_pair(self) -> Hits | None:
        """The hits, all candidates scored in float64; None where one may have to be refused or transformed."""
        if self.mean is not None:
            return None
        rows, n_queries = np.asarray(self.rows, np.int64), len(self.queries)
        vectors = self.vectors.gather(rows)
        longest = 0.0 if vectors.dtype == np.float16 or self.space.metric == "cosine" else float(np.abs(vectors).max())
        if not longest * len(vectors[0]) ** 0.5 < _LONGEST:
            return None
        owners, numbers = np.arange(n_queries).repeat(len(rows)), np.tile(np.arange(len(rows)), n_queries)
        scores = self.pair_scores(vectors, owners, numbers).reshape(n_queries, -1)
        if not np.isfinite(scores).all():
            return None
        found = np.where(self.excluded(rows), -1, rows) if self.exclude else rows[None].repeat(n_queries, 0)
        self.advance(len(rows))
        return self.best(scores, found)

    def candidates(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The best rows of each query in float32, not ordered: scores and rows [q, n_candidates or more]."""
        n_threads = min(self.threads, max(1, len(self.rows) // THREAD_ROWS))
        # Threads share the lowest useful score of each query; any value that one of them writes is a valid bound.
        least = self.least_of(np.full(len(self.queries), -np.inf))
        packed = pack_queries(self.queries32)
        capacity = self.n_candidates + max(SPARE_CANDIDATES, self.n_candidates)
        found = [Found(self, packed, least, min(capacity, len(self.rows) + 1)) for _ in range(n_threads)]
        blocks = _Blocks(self, n_threads)
        at_once([partial(one.add_all, blocks) for one in found])
        scores, rows = found[0].best()
        if n_threads > 1:
            scores, rows = (np.concatenate(arrays, 1) for arrays in zip(*(one.best() for one in found), strict=True))
        return scores, rows

    def least_of(self, scores: NDArray[np.float64]) -> NDArray[np.float32]:
        """Scores [q] below which no row is a candidate, in float32; infinite for the queries that fill a panel."""
        least = np.full(padded_queries(len(scores)), np.inf, np.float32)
        least[: len(scores)] = np.nextafter(scores.astype(np.float32), np.float32(-np.inf))
        return least

    def part(self, numbers: NDArray[np.int64]) -> Search:
        """The search of some of the queries."""
        exclude = tuple(Exclusion(group.of_rows, group.of_queries[numbers]) for group in self.exclude)
        given = self.vectors, self.queries[numbers], self.k, self.space, self.rows, exclude, None
        return Search(*given, threads=self.threads)

    def decide(self, scores: NDArray[np.float32], rows: NDArray[np.int64]) -> Hits:
        """Select the hits among the candidates, and among further rows where float32 leaves a doubt."""
        rounding, n_best = self.rounding, min(self.k, self.n_candidates)
        ordered = np.partition(scores, (-n_best, -self.n_candidates), axis=1)
        kth, least = ordered[:, -n_best], ordered[:, -self.n_candidates]
        if scores.shape[1] > self.k:  # rows that are far below the k-th in float32 need no float64
            rows = np.where(scores >= (kth - 2 * rounding)[:, None], rows, -1)
        if self.unsure:
            unsure = np.concatenate(self.unsure)
            rows = np.concatenate([rows, np.where(self.excluded(unsure), -1, unsure)], 1)
        hits = self.hits(rows)
        if (least == -np.inf).all():
            return hits
        is_full = hits.rows[:, -1] >= 0
        worst = np.where(is_full, self.comparable(hits.scores[:, -1]), -np.inf)
        doubtful = np.flatnonzero((least > -np.inf) & (least.astype(np.float64) + rounding >= worst))
        return self._second_pass(hits, doubtful, worst) if len(doubtful) else hits

    @property
    def rounding(self) -> NDArray[np.float64]:
        """A bound on the error of a product in float32, for each query; [q]."""
        size = self.vectors.hidden_size
        unit = float(np.finfo(np.float32).eps) / 2
        if self.space.metric == "cosine":
            return np.full(len(self.queries), (size + 8 + (512 if self.mean is not None else 0)) * unit)
        longest = max(self.lengths) + 2 * self.mean_length
        lengths = np.linalg.norm(self.queries, axis=1)
        # Of a distance, `comparable` is rounded too, by the squares of both lengths in float64.
        bias = longest**2 + lengths**2 * 2.0**-27 if self.space.metric == "l2" else 0.0
        return np.asarray((size + 8) * unit * (lengths * longest + bias) + 1e-37)

    def comparable(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Scores on the scale of the float32 products: higher is nearer; for a distance (|q|^2 - distance^2)/2."""
        if self.space.metric != "l2":
            return scores
        return np.asarray((np.square(self.queries).sum(1) - np.square(scores)) / 2)

    def hits(self, rows: NDArray[np.int64]) -> Hits:
        """The k best of candidate rows [q, c] (-1 for none; other rows at most once), scored in float64."""
        most = RESCORED_NUMBERS // (self.threads * self.vectors.hidden_size * (1 if self.mean is None else 4))
        step = max(1, (RESCORED_PAIRS if len(self.rows) <= most else most) // rows.shape[1])
        step = min(step, -(-len(rows) // (self.threads if rows.size > FEW_PAIRS else 1)))
        parts = [slice(start, start + step) for start in range(0, len(rows), step)]
        if len(parts) == 1:
            return self.best(self.rescored(rows), rows)
        out = Hits(np.empty((len(rows), self.k), np.int64), np.empty((len(rows), self.k)))

        def work(first: int) -> None:
            for part in parts[first :: self.threads]:
                hits = self.best(self.rescored(rows[part], part.start), rows[part])
                out.rows[part], out.scores[part] = hits.rows, hits.scores

        at_once([partial(work, first) for first in range(min(self.threads, len(parts)))])
        return out

    def rescored(self, rows: NDArray[np.int64], first: int = 0) -> NDArray[np.float64]:
        """The score of each query from number `first` on with its own rows, float64 [q, c]; NaN for -1."""
        known = rows >= 0
        wanted = rows[known]
        out = np.full(rows.shape, np.nan)
        if len(wanted):
            numbers = np.arange(len(wanted))
            if len(rows) > 1:
                wanted, numbers = _distinct(wanted, self.vectors.count)
            out[known] = self.pair_scores(self.vectors.gather(wanted), known.nonzero()[0] + first, numbers)
        return out

    def pair_scores(
        self, vectors: NDArray[Any], owners: NDArray[np.int64], numbers: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """The scores of queries `owners` with vectors `numbers`, pair by pair."""
        vectors = vectors if self.mean is None else self.space.transform(vectors)
        scores = np.empty(len(owners))
        score_pairs(*stored_bytes(vectors), _METRIC[self.space.metric], self.queries, owners, numbers, scores)
        return scores

    def excluded(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which rows each query excludes, bool [q, n]; `rows`: [n], or those of each query [q, n]."""
        out = np.zeros((len(self.queries), rows.shape[-1]), bool)
        for group in self.exclude:
            out |= (group.of(rows) == group.of_queries[:, None]) & (group.of_queries[:, None] >= 0)
        return out

    def best(self, scores: NDArray[np.float64], rows: NDArray[np.int64]) -> Hits:
        """The k best of rows and their scores [q, c]."""
        given = np.ascontiguousarray(scores), np.ascontiguousarray(rows, np.int64)
        return Hits(*rank_rows(*given, self.k, self.space.ascending))

    def _second_pass(self, hits: Hits, doubtful: NDArray[np.int64], worst: NDArray[np.float64]) -> Hits:
        """Read all rows again for the doubtful queries; rows that may be among their k best are scored in float64."""
        again = self.part(doubtful)
        best = Hits(hits.rows[doubtful], hits.scores[doubtful])
        least = again.least_of((worst - self.rounding)[doubtful])
        packed = pack_queries(again.queries32)
        for read in self.vectors.stored(self.rows, max(1, SECOND_PASS_SCORES // len(doubtful))):
            block = read()
            near = Found(again, packed, least, block.n_rows + 1)
            near.add(block)
            new = near.best()[1][:, : near.filled.max()]
            for query in np.flatnonzero(near.filled).tolist():
                new[query, np.isin(new[query], best.rows[query])] = -1
            if (new >= 0).any():
                scores = np.concatenate([best.scores, again.rescored(new)], 1)
                best = again.best(scores, np.concatenate([best.rows, new], 1))
        hits.rows[doubtful], hits.scores[doubtful] = best.rows, best.scores
        return hits


class Found:
    """The candidates of each query: `scores` and `rows` [q, capacity], of which `filled` [q] are set."""

    def __init__(self, search: Search, packed: Any, least: NDArray[np.float32], capacity: int) -> None:
        self._search = search
        self.scores = np.empty((len(search.queries), capacity), np.float32)
        self.rows = np.empty(self.scores.shape, np.int64)
        self.filled, self.least = np.zeros(len(self.scores), np.int64), least
        metric, n_best = _METRIC[search.space.metric], min(search.n_candidates, capacity - 1)
        compared = (search.queries32, packed, metric, search.mean, search.mean_length)
        groups = ([one.of_rows for one in search.exclude], search.query_groups)
        self.kernel = Candidates(*compared, *groups, n_best, self.scores, self.rows, self.filled, least)

    def add(self, block: StoredBlock) -> None:
        """Add the rows of a block that are above the lowest useful score; raises NonFiniteError."""
        state = np.empty(block.n_rows, np.uint8)
        vectors, kind = stored_bytes(block.vectors)
        n_other, square = self.kernel.add(
            vectors, kind, state, block.first, block.rows, block.spread, block.scales, block.center
        )
        if n_other:
            bad = block.numbers(np.flatnonzero(state == _BAD))
            if len(bad):
                refuse_vector(int(bad[0]), self._search.vectors.gather(bad[:1])[0])
            self._search.unsure.append(block.numbers(np.flatnonzero(state == _UNSURE)))
        self._search.lengths.append(square**0.5)

    def add_all(self, blocks: _Blocks) -> None:
        """Add blocks until there are no more, or one cannot be added."""
        try:
            while (read := blocks.next()) is not None:
                block = read()
                self.add(block)
                blocks.done(block.n_rows)
        except BaseException:
            blocks.stop()
            raise

    def best(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The candidates: scores and rows [q, capacity], -inf and -1 for none."""
        unused = np.arange(self.scores.shape[1]) >= self.filled[:, None]
        self.scores[unused], self.rows[unused] = -np.inf, -1
        return self.scores, self.rows


class _Blocks:
    """The blocks of a search, which several threads take in turn, so that files are read in order."""

    def __init__(self, search: Search, n_threads: int) -> None:
        size = search.vectors.hidden_size
        even = len(search.rows) // (BLOCKS_A_THREAD * n_threads if n_threads > 1 else 1)
        block_rows = max(1, LEAST_NUMBERS // size, min(even, MOST_NUMBERS // size))
        self._search, self._lock = search, Lock()
        self._left: Iterator[Callable[[], StoredBlock]] = search.vectors.stored(search.rows, block_rows)

    def next(self) -> Callable[[], StoredBlock] | None:
        with self._lock:
            return next(self._left, None)

    def done(self, n_rows: int) -> None:
        with self._lock:
            self._search.advance(n_rows)

    def stop(self) -> None:
        """Give out no more blocks."""
        with self._lock:
            self._left = iter(())


@lru_cache(1)
def _pool(process: int) -> ThreadPoolExecutor:
    """The threads of all searches; those of another process do not survive a fork."""
    from embstore.devices import MAX_THREADS

    return ThreadPoolExecutor(MAX_THREADS, "embstore-search")


def at_once(calls: Sequence[Callable[[], None]]) -> None:
    """Make calls at the same time, the first one in this thread."""
    others = [_pool(os.getpid()).submit(call) for call in calls[1:]]
    try:
        calls[0]()
    finally:
        wait(others)
    for other in others:
        other.result()


def _distinct(rows: NDArray[np.int64], count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct rows of `count`, ascending, and the position of each among them; like np.unique, faster for many."""
    if len(rows) < count // 16:
        return np.unique(rows, return_inverse=True)
    held = np.zeros(count, bool)
    held[rows] = True
    return held.nonzero()[0], (held.cumsum() - 1)[rows]


def _gpu_candidates(search: Search, device: Any) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The best rows of each query in float32 on a GPU, not ordered: scores and rows [q, n_candidates]."""
    import torch

    size = search.vectors.hidden_size
    queries = torch.from_numpy(search.queries32).to(device)
    best = torch.full((len(queries), search.n_candidates), -torch.inf, device=device)
    best_rows = torch.full(best.shape, -1, device=device)
    for rows, read in search.vectors.blocks(search.rows, max(1, GPU_BLOCK_NBYTES // (4 * size))):
        vectors = torch.from_numpy(np.ascontiguousarray(read)).to(device).float()
        squares = vectors if search.space.metric == "cosine" else vectors.square().sum(1, keepdim=True)
        if not bool(torch.isfinite(squares).all()):
            invalid = int(torch.nonzero(~torch.isfinite(squares).all(1))[0])
            refuse_vector(int(rows[invalid]), read[invalid])
        transformed, bias, unsure = _gpu_transform(search, vectors)
        if bool(unsure.any()):
            search.unsure.append(rows[unsure.cpu().numpy()])
        scores = queries @ transformed.T - bias
        scores.masked_fill_(unsure, -torch.inf)
        for one in search.exclude:
            group, own = (torch.from_numpy(each).to(device) for each in (one.of(rows), one.of_queries))
            scores.masked_fill_((group[None] == own[:, None]) & (own >= 0)[:, None], -torch.inf)
        best, order = torch.cat([best, scores], 1).topk(search.n_candidates, 1, sorted=False)
        numbers = torch.from_numpy(rows).to(device).expand(len(queries), -1)
        best_rows = torch.cat([best_rows, numbers], 1).gather(1, order)
        search.advance(len(rows))
    best_rows[best == -torch.inf] = -1
    return best.cpu().numpy(), best_rows.cpu().numpy()


def _gpu_transform(search: Search, vectors: Any) -> tuple[Any, Any, Any]:
    """Vectors as they are compared, their bias [n], and which of them are left to float64 [n]."""
    import torch

    device = vectors.device
    if search.space.metric == "cosine" and search.mean is None:
        largest = vectors.abs().amax(1, keepdim=True)
        vectors = vectors / torch.where(largest > 0, largest, 1)
    if search.mean is not None:
        vectors = vectors - torch.from_numpy(search.mean).to(device)
    subtracted = torch.linalg.vector_norm(vectors, dim=1) + 2 * search.mean_length
    lengths = torch.linalg.vector_norm(vectors, dim=1)
    zero = torch.zeros_like(lengths)
    if search.space.metric != "cosine":
        search.lengths.append(float(lengths.max()))
        bias = lengths.square() / 2 if search.space.metric == "l2" else zero
        return vectors, bias, zero.bool()
    unsure = subtracted > _CANCELLED * lengths if search.mean is not None else zero.bool()
    return vectors / torch.where(lengths > 0, lengths, 1)[:, None], zero, unsure
