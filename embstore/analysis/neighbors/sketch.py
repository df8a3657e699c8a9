"""Exact search through a sketch: bounds from a few bits of each vector say which vectors need be read.

The score of a query with a vector is at most that with its codes, plus the product of the lengths of what the codes
leave out. A first pass over the first level finds likely neighbours, whose scores in float64 set a limit; a second pass
leaves out all rows whose bound is below it, level by level, and scores the rest in float64. The result is that of
float64 brute force, with equal scores ordered by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.analysis.neighbors.exact import Found, Hits, Search, at_once
from embstore.analysis.neighbors.sketch_codes import GROUP, LEVEL, ROW_NBYTES, SLACK, Sketch
from embstore.kernels.compiled import pack_queries, padded_queries

FEW_ROWS = 2**14  # up to this number of rows, reading them is as fast
SPARSE = 16  # a search among fewer than one row in this many reads the vectors
FIRST_ROWS, MOST_ROWS = 2**14, 2**18  # of a block; the first are small, to see early whether the bounds decide
BLOCK_SCORES = 2**22  # of a block and all queries
MOST_QUERIES = 1024  # at a time
UNDECIDED = 16  # a query of which more than one row in this many must be scored reads the layer instead, but
LEAST_UNDECIDED = 2048  # not before this number
ROUNDING = 2.0**-16  # of the lengths that are multiplied: above the rounding of all sums in float32
TINY, UNDERFLOW = 1e-36, 1e-30  # added where float32 may underflow; weights of a query that are all below are 0
TOO_LONG = 1e30  # products beyond it are left to float64
TERMS = np.dtype(
    [(name, "f4") for name in ("base", "step", "spread", "of_error", "of_tail", "of_norm", "of_square")]
    + [("offset", "i4"), ("divides", "i4")]
)


@dataclass(frozen=True)
class SketchHits(Hits):
    """Hits found through a sketch. `scanned` bool [q]: the queries that it could not decide, for which the layer was
    read; `nbytes`: how much of the sketch and of the vectors was read otherwise."""

    scanned: NDArray[np.bool_]
    nbytes: int


def can_decide(search: Search, sketch: Sketch) -> bool:
    """Whether the sketch is of the space of a search, and may save time in it."""
    rows, mean = search.rows, search.space.mean
    n_rows, spread = len(rows), int(rows[-1]) - int(rows[0]) + 1 if len(rows) else 0
    longest = float(np.linalg.norm(search.queries, axis=1).max(initial=0.0))
    return (
        n_rows > FEW_ROWS
        and search.k <= n_rows // UNDECIDED
        and n_rows * SPARSE >= spread
        and not len(search.components)
        and (mean is None or np.array_equal(mean, sketch.rotation.mean))
        and max(1.0, longest) * max(1.0, sketch.longest) < TOO_LONG
    )


def sketch_search(search: Search, sketch: Sketch) -> SketchHits:
    """The k nearest rows of each query of a search, exactly."""
    n_queries = len(search.queries)
    if not len(search.rows):
        hits = search.hits(np.full((n_queries, 1), -1))
        return SketchHits(hits.rows, hits.scores, np.zeros(n_queries, bool), 0)
    if not can_decide(search, sketch):
        hits = search.decide(*search.candidates())
        return SketchHits(hits.rows, hits.scores, np.ones(n_queries, bool), 0)
    found = []
    for first in range(0, n_queries, MOST_QUERIES):
        part = search.part(np.arange(first, min(n_queries, first + MOST_QUERIES)))
        found.append(_SketchSearch(part, sketch).run())
    rows, scores, scanned = (
        np.concatenate([getattr(each, name) for each in found]) for name in ("rows", "scores", "scanned")
    )
    return SketchHits(rows, scores, scanned, sum(each.nbytes for each in found))


@dataclass
class _SketchSearch:
    """One search of up to MOST_QUERIES queries; `best`: their nearest rows so far, of all that were scored."""

    search: Search
    sketch: Sketch
    best: Hits = field(init=False)
    nbytes: int = 0
    lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        search, sketch = self.search, self.sketch
        self.centered = search.mean is not None
        self.products = search.queries @ sketch.rotation.directions.T
        self.squares = np.square(search.queries).sum(1)
        self.lengths = np.sqrt(self.squares)
        self.weights, self.levels = [], []
        left = self.squares.copy()
        for level in range(sketch.layout.n_levels):
            weights, terms, left = self._level(level, left)
            self.weights.append(weights)
            self.levels.append(terms)
        base = np.zeros(len(search.queries)) if self.centered else search.queries @ sketch.rotation.mean
        self.base, self.mean_length = base, 0.0 if self.centered else sketch.mean_length
        self.packed = pack_queries(search.queries32)
        self.active = np.ones(len(search.queries), bool)
        self.n_scored, self.n_seen = np.zeros(len(search.queries), np.int64), 0

    def _level(
        self, level: int, left: NDArray[np.float64]
    ) -> tuple[NDArray[np.int16], NDArray[Any], NDArray[np.float64]]:
        """The integer weights of the queries in a level, its terms, and the squared lengths of what is left."""
        part = slice(level * LEVEL, (level + 1) * LEVEL)
        own = self.products[:, part]
        wanted = own * self.sketch.rotation.steps[part]
        most = np.abs(wanted).max(1)
        unit = np.maximum(most, UNDERFLOW) / 32767
        weights = np.rint(wanted / unit[:, None])
        terms = np.zeros(len(own), TERMS)
        terms["step"] = unit / 2
        terms["offset"] = 15 * weights.sum(1)
        terms["spread"] = (1 + ROUNDING) * 7.5 * np.abs(wanted - weights * unit[:, None]).sum(1) + TINY
        square = np.square(own).sum(1)
        left = left - square
        terms["of_error"] = (1 + ROUNDING) * np.sqrt(square + SLACK * self.squares) + TINY
        terms["of_tail"] = (1 + ROUNDING) * np.sqrt(np.maximum(left, 0) + SLACK * self.squares) + TINY
        return weights.astype(np.int16), terms, left

    def estimates(self) -> NDArray[Any]:
        """The terms of the first level for scores without the bounds, on the scale of `Search.comparable`."""
        terms = self.levels[0].copy()
        for name in ("spread", "of_error", "of_tail"):
            terms[name] = 0
        terms["base"] = self.base
        terms["divides"] = self.search.space.metric == "cosine"
        terms["of_square"] = -0.5 if self.search.space.metric == "l2" else 0
        return terms

    def bounds(self) -> NDArray[Any]:
        """The terms of the first level for what is above 0 where a row may be nearer than the k-th of `best`."""
        terms, metric = self.levels[0].copy(), self.search.space.metric
        is_full = self.best.rows[:, -1] >= 0
        kth = self.search.comparable(np.where(is_full, self.best.scores[:, -1], 0))
        kth = np.where(is_full, kth, -2.0 if metric == "cosine" else -TOO_LONG)
        rounding = 2 * self.mean_length * self.lengths
        if metric == "cosine":
            terms["of_norm"] = -kth + ROUNDING * (self.lengths + np.abs(kth))
            terms["base"] = self.base + ROUNDING * rounding + TINY
        else:
            terms["of_norm"] = ROUNDING * self.lengths
            terms["of_square"] = ROUNDING - 0.5 if metric == "l2" else 0
            rounding += np.abs(kth) + (self.squares if metric == "l2" else 0)
            terms["base"] = self.base - kth + ROUNDING * rounding + TINY
        return terms

    def run(self) -> SketchHits:
        search = self.search
        least = search.least_of(np.full(len(search.queries), -np.inf))
        seeds = [Found(search, self.packed, least, 2 * search.n_candidates) for _ in range(search.threads)]
        terms = self.estimates()
        self.in_blocks([partial(self.seed, found, terms) for found in seeds])
        rows = np.concatenate([found.best()[1] for found in seeds], 1)
        self.best = search.hits(rows)
        self.nbytes += np.unique(rows[rows >= 0]).size * self.sketch.vector_nbytes
        self.in_blocks([self.decide for _ in range(search.threads)])
        if not self.active.all():
            undecided = np.flatnonzero(~self.active)
            again = search.part(undecided)
            hits = again.decide(*again.candidates())
            self.best.rows[undecided], self.best.scores[undecided] = hits.rows, hits.scores
        search.advance(len(search.rows))
        return SketchHits(self.best.rows, self.best.scores, ~self.active, self.nbytes)

    def in_blocks(self, calls: list[Callable[[int, int], None]]) -> None:
        """Make calls at the same time, each with one block of rows after the other, until there are none."""
        blocks, lock = self.blocks(), Lock()

        def work(call: Callable[[int, int], None]) -> None:
            while True:
                with lock:
                    block = next(blocks, None)
                if block is None or not self.active.any():
                    return
                call(*block)

        at_once([partial(work, call) for call in calls])

    def blocks(self) -> Iterator[tuple[int, int]]:
        """The first and last row of each block, multiples of GROUP but for the end."""
        rows = self.search.rows
        most = max(FIRST_ROWS // 4, min(MOST_ROWS, BLOCK_SCORES // len(self.search.queries))) // GROUP * GROUP
        start, last, size = int(rows[0]) // GROUP * GROUP, int(rows[-1]) + 1, min(FIRST_ROWS, most)
        while start < last:
            yield start, min(start + size, last)
            start, size = start + size, min(2 * size, most)

    def scan(self, found: Found, first: int, stop: int, terms: NDArray[Any]) -> None:
        """Add the rows of a block by the first level."""
        padded = -(-stop // GROUP) * GROUP
        norms = self.sketch.codes.norms(self.centered, first, padded)
        groups = self.sketch.codes.groups(first, padded)
        rows, allowed = self.search.rows, None
        if not isinstance(rows, range):
            allowed = np.zeros(stop - first, np.uint8)
            allowed[rows[slice(*np.searchsorted(rows, (first, stop)))] - first] = 1
        elif rows.start > first:
            allowed = (np.arange(first, stop) >= rows.start).astype(np.uint8)
        found.kernel.scan(groups, first, stop - first, norms, allowed, self.weights[0], _as_bytes(terms))

    def seed(self, found: Found, terms: NDArray[Any], first: int, stop: int) -> None:
        self.scan(found, first, stop, terms)
        with self.lock:
            self.nbytes += (stop - first) * (ROW_NBYTES + 4)

    def decide(self, first: int, stop: int) -> None:
        """Find the rows of a block that may be among the nearest, and score them."""
        with self.lock:
            terms, active = self.bounds(), self.active.copy()
        search, near = self.search, Found(self.search, self.packed, self.least(active), stop - first + 1)
        self.scan(near, first, stop, terms)
        nbytes = 0
        for level in range(1, self.sketch.layout.n_levels):
            n_left = int(near.filled.sum())
            if not n_left:
                break
            nbytes += min(n_left, stop - first) * ROW_NBYTES
            records, places = self.sketch.codes.records(level, near.rows, near.filled)
            near.kernel.refine(records, places, self.weights[level], _as_bytes(self.levels[level]))
        with self.lock:
            self.n_seen += stop - first
            self.n_scored += near.filled
            self.active &= self.n_scored <= np.maximum(LEAST_UNDECIDED, self.n_seen // UNDECIDED)
            near.filled[~self.active] = 0
            best = self.best
        new = near.rows[:, : int(near.filled.max())].copy()
        new[np.arange(new.shape[1]) >= near.filled[:, None]] = -1
        owners = np.arange(len(new))[:, None] * search.vectors.count
        new[np.isin(new + owners, (best.rows + owners)[best.rows >= 0])] = -1
        scores = search.rescored(new) if (new >= 0).any() else None
        with self.lock:
            self.nbytes += nbytes
            if scores is not None:
                self.nbytes += np.unique(new[new >= 0]).size * self.sketch.vector_nbytes
                scores = np.concatenate([self.best.scores, scores], 1)
                self.best = search.best(scores, np.concatenate([self.best.rows, new], 1))

    def least(self, active: NDArray[np.bool_]) -> NDArray[np.float32]:
        """The least bound of each query: 0, or infinite for those that are not active."""
        least = np.full(padded_queries(len(active)), np.inf, np.float32)
        least[: len(active)][active] = 0
        return least


def _as_bytes(terms: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(terms).view(np.uint8).reshape(len(terms), -1)
