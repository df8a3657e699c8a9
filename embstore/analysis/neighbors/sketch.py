"""Exact search through a sketch: bounds from a few bits of each vector say which vectors need be read.

The score of a query with a vector is at most that with its codes, plus the product of the lengths of what the codes
leave out. Rows are read in parts: the first level gives a bound of each, and likely neighbours, whose scores in float64
set a limit; further levels leave out the rows whose bound is below it, and the rest is scored in float64. The result is
that of float64 brute force, with equal scores ordered by row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.analysis.neighbors.exact import Found, Hits, Search, at_once
from embstore.analysis.neighbors.sketch_codes import (
    GROUP,
    GROUP_NBYTES,
    GROUPED,
    LEVEL,
    RECORD_NBYTES,
    SLACK,
    Sketch,
)
from embstore.kernels.compiled import pack_queries, padded_queries

FEW_ROWS = 2**14  # up to this number of rows, reading them is as fast
SPARSE = 16  # a search among fewer than one row in this many reads the vectors
PART_ROWS, PART_SCORES = 2**20, 2**22  # of a part, for each thread
LEAST_ROWS = 2**14
MOST_SPARE = 2**21  # numbers of a buffer that is kept for the next search
MOST_QUERIES = 32  # at a time
# A query of which the first levels leave more than 1 / OPEN of a part, or all levels 1 / UNDECIDED, reads the layer
# instead, but not up to LEAST_UNDECIDED rows.
OPEN, UNDECIDED, LEAST_UNDECIDED = 2, 16, 2048
SPARE_ROWS = GROUP * 64 + 1  # place for the rows of the groups that the kernel looks at together
MOST_WEIGHT = 127, 32767  # of a query, in the first levels and in the others
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
    nbytes: int = 0
    lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        search, sketch = self.search, self.sketch
        n_queries = len(search.queries)
        self.centered = search.mean is not None
        self.products = search.queries @ sketch.rotation.directions.T
        self.squares = np.square(search.queries).sum(1)
        self.lengths = np.sqrt(self.squares)
        self.mean_length = 0.0 if self.centered else sketch.mean_length
        self.weights, self.terms = self._terms()
        self._add_to_first(self.terms[0])
        self.packed = pack_queries(search.queries32)
        self.best = Hits(np.full((n_queries, search.k), -1), np.full((n_queries, search.k), np.nan))
        self.active = np.ones(n_queries, bool)

    def _terms(self) -> tuple[list[NDArray[np.signedinteger]], NDArray[Any]]:
        """The integer weights of the queries in each level, and the terms [level, q] of all."""
        n_levels, n_queries = self.sketch.layout.n_levels, len(self.search.queries)
        own = self.products.reshape(n_queries, n_levels, LEVEL).swapaxes(0, 1)
        wanted = own * self.sketch.rotation.steps.reshape(n_levels, 1, LEVEL)
        most = np.where(np.arange(n_levels)[:, None] < GROUPED, *MOST_WEIGHT)
        unit = np.maximum(np.abs(wanted).max(2), UNDERFLOW) / most
        weights = np.rint(wanted / unit[..., None])
        terms = np.zeros((n_levels, n_queries), TERMS)
        terms["step"] = unit / 2
        terms["offset"] = 15 * weights.sum(2)
        terms["spread"] = (1 + ROUNDING) * 7.5 * np.abs(wanted - weights * unit[..., None]).sum(2) + TINY
        terms["divides"] = self.search.space.metric == "cosine"
        squares = np.square(own).sum(2)
        terms["of_error"] = (1 + ROUNDING) * np.sqrt(squares + SLACK * self.squares) + TINY
        left = np.maximum(self.squares - squares.cumsum(0), 0)
        terms["of_tail"] = (1 + ROUNDING) * np.sqrt(left + SLACK * self.squares) + TINY
        return [each.astype(np.int8 if level < GROUPED else np.int16) for level, each in enumerate(weights)], terms

    def _add_to_first(self, terms: NDArray[Any]) -> None:
        """Add the product with the mean, the metric and the rounding of float32 to the terms of the first level."""
        metric, rounding = self.search.space.metric, 2 * self.mean_length * self.lengths
        terms["of_norm"] = ROUNDING * (self.lengths + (metric == "cosine"))
        if metric == "l2":
            terms["of_square"] = ROUNDING - 0.5
            rounding = rounding + self.squares
        base = 0.0 if self.centered else self.search.queries @ self.sketch.rotation.mean
        terms["base"] = base + ROUNDING * rounding + TINY

    def limits(self) -> NDArray[np.float32]:
        """What the bound of a row must be above where it may be nearer than the k-th of `best`, or as near."""
        is_cosine = self.search.space.metric == "cosine"
        is_full = self.best.rows[:, -1] >= 0
        kth = self.search.comparable(np.where(is_full, self.best.scores[:, -1], 0))
        kth = np.where(is_full, kth - (0 if is_cosine else ROUNDING * np.abs(kth)), -2.0 if is_cosine else -TOO_LONG)
        return np.nextafter(kth.astype(np.float32), np.float32(-np.inf))

    def run(self) -> SketchHits:
        search, rows = self.search, self.search.rows
        start, last = int(rows[0]) // GROUP * GROUP, int(rows[-1]) + 1
        size = max(LEAST_ROWS, min(PART_ROWS, PART_SCORES // len(search.queries))) * search.threads
        while start < last and self.active.any():
            self.read_part(start, min(start + size, last))
            start += size
        if not self.active.all():
            undecided = np.flatnonzero(~self.active)
            again = search.part(undecided)
            hits = again.decide(*again.candidates())
            self.best.rows[undecided], self.best.scores[undecided] = hits.rows, hits.scores
        search.advance(len(rows))
        return SketchHits(self.best.rows, self.best.scores, ~self.active, self.nbytes)

    def read_part(self, start: int, stop: int) -> None:
        """Score likely neighbours among some rows, and then those that may be nearer than the k-th of all so far."""
        search, padded = self.search, -(-stop // GROUP) * GROUP
        size = 2 * len(search.queries) * (padded - start)
        buffer = spare.pop() if (spare := self.sketch.spare) else np.empty(0, np.float32)
        buffer = buffer if len(buffer) >= size else np.empty(size, np.float32)
        values = buffer[:size].reshape(2, len(search.queries), -1)
        ranges = _split(start, stop, search.threads)
        least = self.least(self.limits())
        seeds = [Found(search, self.packed, least, 2 * search.n_candidates) for _ in ranges]
        own = [values[..., first - start : -(-last // GROUP) * GROUP - start] for first, last in ranges]
        scans = zip(seeds, own, ranges, strict=True)
        at_once([partial(self.scan, found, each, *row) for found, each, row in scans])
        self.score(np.concatenate([found.best()[1] for found in seeds], 1))
        at_once([partial(self.choose, each, *row) for each, row in zip(own, ranges, strict=True)])
        if len(buffer) <= MOST_SPARE:
            spare.append(buffer)

    def scan(self, found: Found, values: NDArray[np.float32], first: int, stop: int) -> None:
        """Set values and bounds [2, q, row] of rows by the first level, and add the likely ones."""
        rows, allowed = self.search.rows, None
        if not isinstance(rows, range):
            allowed = np.zeros(stop - first, np.uint8)
            allowed[rows[slice(*np.searchsorted(rows, (first, stop)))] - first] = 1
        elif rows.start > first:
            allowed = (np.arange(first, stop) >= rows.start).astype(np.uint8)
        groups = self.sketch.codes.groups(0, first, stop)
        given = self.norms(first, stop), allowed, self.weights[0], _as_bytes(self.terms[0]), *values
        found.kernel.scan(groups, first, stop - first, *given)
        with self.lock:
            self.nbytes += len(groups) * (GROUP_NBYTES + 4 * GROUP)

    def norms(self, first: int, stop: int) -> NDArray[np.float32]:
        return self.sketch.codes.norms(self.centered, first, stop)

    def choose(self, values: NDArray[np.float32], first: int, stop: int) -> None:
        """Find the rows that may be among the nearest by their values and bounds [2, q, row], and score them."""
        search, codes, n_levels, n_rows = self.search, self.sketch.codes, self.sketch.layout.n_levels, stop - first
        with self.lock:
            limits, least = self.limits(), self.least()
        capacity = min(n_rows, max(LEAST_UNDECIDED, n_rows // OPEN)) + SPARE_ROWS
        near, norms = Found(search, self.packed, least, capacity), self.norms(first, stop)
        scale = norms if search.space.metric == "cosine" else np.float32(1)
        wanted = partial(_open_groups, values[1][self.active], limits[self.active], scale)
        further = range(1, min(GROUPED, n_levels))
        groups = [codes.groups(level, first, stop, wanted) for level in further]
        own = slice(1, len(groups) + 1) if groups else slice(1)
        weights, terms = np.concatenate(self.weights[own]), _as_bytes(self.terms[own].reshape(-1))
        n_read = near.kernel.choose(groups, first, n_rows, norms, weights, terms, values[0], values[1], limits)
        nbytes = min(n_read, n_rows // GROUP * len(groups)) * GROUP_NBYTES
        decided = near.filled >= 0
        near.filled[~decided] = 0
        for level in range(GROUPED, n_levels):
            n_left = int(near.filled.sum())
            if not n_left:
                break
            nbytes += min(n_left, n_rows) * RECORD_NBYTES
            records, places = codes.records(level, near.rows, near.filled)
            if near.kernel.refine(level, records, places, self.weights[level], _as_bytes(self.terms[level])):
                raise codes.damaged()
        decided &= near.filled <= max(LEAST_UNDECIDED, n_rows // UNDECIDED)
        near.filled[~decided] = 0
        with self.lock:
            self.nbytes += nbytes
            self.active &= decided
        new = near.rows[:, : int(near.filled.max())].copy()
        new[np.arange(new.shape[1]) >= near.filled[:, None]] = -1
        self.score(new)

    def score(self, new: NDArray[np.int64]) -> None:
        """Score rows [q, c] (-1 for none) in float64; those that are already among the best are left out."""
        search, best = self.search, self.best
        owners = np.arange(len(new))[:, None] * search.vectors.count
        new[np.isin(new + owners, (best.rows + owners)[best.rows >= 0])] = -1
        if not (new >= 0).any():
            return
        scores = search.rescored(new)
        with self.lock:
            self.nbytes += np.unique(new[new >= 0]).size * self.sketch.vector_nbytes
            scores = np.concatenate([self.best.scores, scores], 1)
            self.best = search.best(scores, np.concatenate([self.best.rows, new], 1))

    def least(self, values: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """The least value of a candidate of each query, by default any; infinite for those that are not active."""
        least = np.full(padded_queries(len(self.active)), np.inf, np.float32)
        least[: len(self.active)] = np.where(self.active, -np.inf if values is None else values, np.inf)
        return least


def _split(start: int, stop: int, n_parts: int) -> list[tuple[int, int]]:
    """Cut rows into parts of whole groups, at least one."""
    size = max(GROUP, -(-(stop - start) // (n_parts * GROUP)) * GROUP)
    return [(first, min(first + size, stop)) for first in range(start, stop, size)]


def _open_groups(bounds: NDArray[np.float32], limits: NDArray[np.float32], scale: Any) -> NDArray[np.bool_]:
    """The groups of which a row may be near to one of the queries."""
    return np.asarray((bounds > limits[:, None] * scale).any(0).reshape(-1, GROUP).any(1))


def _as_bytes(terms: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(terms).view(np.uint8).reshape(len(terms), -1)
