"""Exact search through a sketch: bounds from a few bits of each vector say which vectors need be read.

The score of a query with a vector is at most that with its codes, plus the product of the lengths of what the codes
leave out. Rows are read in parts: the first level gives a bound of each, and likely neighbours, whose scores in float64
set a limit; further levels leave out the rows whose bound is below it, and the rest is scored in float64. The result is
that of float64 brute force, with equal scores ordered by row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from threading import Lock
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from embstore.analysis.neighbors.exact import FEW_PAIRS, Found, Hits, Search, at_once
from embstore.analysis.neighbors.sketch_codes import GROUP, LEVEL, NORM_ROUNDING, SEGMENT, SLACK, Sketch, of_norms
from embstore.kernels import compiled_name, pack_queries, padded_queries

SPARSE = 16  # a search among fewer than one row in this many reads the vectors
LIKELY = 4096  # one row in this many is scored because it is likely to be near
MOST_QUERIES = 32  # at a time
FEW_ROWS = 2**14  # up to this number of rows, reading them is as fast
FEATURES_A_QUERY = 48  # with fewer, reading a layer that is in memory is faster
PART_SCORES = 2**21  # bounds of a part, all queries together
LEAST_ROWS = 2**14  # of a part; of smaller ones, the first are read with too low a k-th score
PIECE = 2**18  # rows of a part that are chosen from at a time
PENDING = 2**16  # rows that are left before they are scored
UNDECIDED = 16  # a query of which all levels leave more than one row in this many reads the layer instead,
LEAST_UNDECIDED = 2048  # but not up to this number of rows
MOST_WEIGHT = 127  # of a query
ROUNDING = 2.0**-16  # of the lengths that are multiplied: above the rounding of all sums in float32
TINY, UNDERFLOW = 1e-36, 1e-30  # added where float32 may underflow; weights of a query that are all below are 0
TOO_LONG = 1e30  # products beyond it are left to float64
TERMS = np.dtype(
    [(name, "f4") for name in ("base", "step", "spread", "of_error", "of_tail", "of_norm", "of_square")]
    + [("offset", "i4"), ("divides", "i4")]
)


@dataclass(frozen=True)
class SketchHits(Hits):
    """Hits found through a sketch. `scanned` bool [q]: the queries that it could not decide: the layer was read."""

    scanned: NDArray[np.bool_]


def can_decide(search: Search, sketch: Sketch) -> bool:
    """Whether the sketch is of the space of a search, and may save time in it."""
    rows, mean = search.rows, search.space.mean
    n_rows, spread = len(rows), int(rows[-1]) - int(rows[0]) + 1 if len(rows) else 0
    longest = float(np.linalg.norm(search.queries, axis=1).max(initial=0.0))
    return (
        compiled_name() is not None
        and n_rows > FEW_ROWS
        and search.k <= n_rows // UNDECIDED
        and n_rows * SPARSE >= spread
        and not sketch.rotation.is_flat
        and (mean is None or np.array_equal(mean, sketch.rotation.mean))
        and max(1.0, longest) * max(1.0, sketch.longest) < TOO_LONG
    )


def sketch_search(search: Search, sketch: Sketch) -> SketchHits:
    """The k nearest rows of each query of a search, exactly."""
    n_queries = len(search.queries)
    has_rows = len(search.rows) > 0
    if not (has_rows and can_decide(search, sketch)):
        hits = search.decide(*search.candidates()) if has_rows else search.hits(np.full((n_queries, 1), -1))
        return SketchHits(hits.rows, hits.scores, np.full(n_queries, has_rows))
    found = []
    for first in range(0, n_queries, MOST_QUERIES):
        part = search.part(np.arange(first, min(n_queries, first + MOST_QUERIES)))
        found.append(_SketchSearch(part, sketch).run())
    rows, scores, scanned = (
        np.concatenate([getattr(each, name) for each in found]) for name in ("rows", "scores", "scanned")
    )
    return SketchHits(rows, scores, scanned)


class _Part(NamedTuple):
    """Positions that are read together; to a whole group their rows in the segment, norms if needed, first level."""

    first: int
    stop: int
    offsets: NDArray[np.uint16]
    norms: NDArray[np.uint16] | None
    groups: NDArray[np.uint8]

    def piece(self, at: int, size: int) -> _Part:
        """Up to `size` rows from number `at` on."""
        first, own, groups = self.first + at, slice(at, at + size), slice(at // GROUP, (at + size) // GROUP)
        norms = None if self.norms is None else self.norms[own]
        return _Part(first, min(first + size, self.stop), self.offsets[own], norms, self.groups[groups])


@dataclass
class _SketchSearch:
    """One search of up to MOST_QUERIES queries; `best`: their nearest rows so far; `n_near` [q]: that levels left."""

    search: Search
    sketch: Sketch
    lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        search, sketch = self.search, self.sketch
        n_queries = len(search.queries)
        self.centered = search.mean is not None
        self.products = search.queries @ sketch.rotation.directions.T
        self.squares = np.square(search.queries).sum(1)
        self.lengths = np.sqrt(self.squares)
        self.mean_length = 0.0 if self.centered else float(np.linalg.norm(sketch.rotation.mean))
        self.weights, self.terms = self._terms()
        self.packed_terms = self.terms.view(np.uint8).reshape(self.terms.size, -1)
        self.packed = pack_queries(search.queries32)
        self.best = Hits(np.full((n_queries, search.k), -1), np.full((n_queries, search.k), np.nan))
        self.limits = self._limits()
        self.active = np.ones(n_queries, bool)
        self.n_near = np.zeros(n_queries, np.int64)

    def _terms(self) -> tuple[NDArray[np.int8], NDArray[Any]]:
        """The integer weights of the queries in each level, and the terms [level, q] of all.

        Those of the first level have the product with the mean, the metric and the rounding of float32.
        """
        n_levels, n_queries = self.sketch.layout.n_levels, len(self.search.queries)
        own = self.products.reshape(n_queries, n_levels, LEVEL).swapaxes(0, 1)
        in_steps = own * self.sketch.rotation.steps.reshape(n_levels, 1, LEVEL)
        unit = np.maximum(np.abs(in_steps).max(2), UNDERFLOW) / MOST_WEIGHT
        weights = np.rint(in_steps / unit[..., None])
        terms = np.zeros((n_levels, n_queries), TERMS)
        terms["step"] = unit / 2
        terms["offset"] = 15 * weights.sum(2)
        rounded = np.abs(in_steps - weights * unit[..., None]) * (1 + ROUNDING)
        terms["spread"] = 7.5 * (rounded + ROUNDING * np.abs(in_steps)).sum(2) + TINY
        terms["divides"] = self.search.space.metric == "cosine"
        squares = np.square(own).sum(2)
        terms["of_error"] = (1 + ROUNDING) * np.sqrt(squares + SLACK * self.squares) + TINY
        left = np.maximum(self.squares - squares.cumsum(0), 0)
        terms["of_tail"] = (1 + ROUNDING) * np.sqrt(left + SLACK * self.squares) + TINY
        metric, rounding = self.search.space.metric, 2 * self.mean_length * self.lengths
        if metric == "cosine":
            terms["of_norm"][0] = NORM_ROUNDING + 2 * ROUNDING
        if metric == "l2":
            terms["of_square"][0] = NORM_ROUNDING + ROUNDING - 0.5
            rounding = rounding + self.squares
        base = 0.0 if self.centered else self.search.queries @ self.sketch.rotation.mean
        terms["base"][0] = base + ROUNDING * rounding + TINY
        return np.ascontiguousarray(weights, np.int8), terms

    def run(self) -> SketchHits:
        search, rows = self.search, self.search.rows
        start, last = int(rows[0]) // SEGMENT * SEGMENT, -(-(int(rows[-1]) + 1) // SEGMENT) * SEGMENT
        last = min(last, search.vectors.count)
        even = -(-(last - start) // (GROUP * search.threads)) * GROUP
        size = max(LEAST_ROWS, min(PART_SCORES // len(search.queries) // GROUP * GROUP, even))
        parts = iter([(first, min(first + size, last)) for first in range(start, last, size)])
        n_workers = min(search.threads, -(-(last - start) // size))
        at_once([partial(self.read_parts, parts, size) for _ in range(n_workers)])
        if not self.active.all():
            undecided = np.flatnonzero(~self.active)
            again = search.part(undecided)
            hits = again.decide(*again.candidates())
            self.best.rows[undecided], self.best.scores[undecided] = hits.rows, hits.scores
        search.advance(len(rows))
        return SketchHits(self.best.rows, self.best.scores, ~self.active)

    def read_parts(self, parts: Iterator[tuple[int, int]], size: int) -> None:
        """Score likely neighbours in parts of the rows, then those that may be nearer than the k-th of all so far."""
        search = self.search
        n_likely = 2 * search.n_candidates + len(search.rows) // LIKELY
        likely = Found(search, self.packed, self.least(self.limits), n_likely)
        near = Found(search, self.packed, self.least(), PENDING + min(size, PIECE) + GROUP + 1)
        bounds = np.empty((len(search.queries), size), np.float32)
        for number in count():
            with self.lock:
                first, stop = next(parts, (0, 0))
            if not stop or not self.active.any():
                break
            self.sketch.codes.expect(first, stop + size)
            part = self.part(first, stop)
            own = bounds[:, : len(part.offsets)]
            self.scan(likely, own, part)
            if not number & (number + 1) and likely.filled.any():  # of 1, 1, 2, 4 ... parts
                self.score(likely.best()[1])
                likely.filled[:] = 0
                likely.least[:] = self.least(self.limits)
            for at in range(0, len(part.offsets), PIECE):
                self.choose(near, own[:, at : at + PIECE], part.piece(at, PIECE))
                if near.filled.max() > PENDING:
                    self.score_near(near)
        self.score_near(near)

    def part(self, first: int, stop: int) -> _Part:
        codes, needs_norms = self.sketch.codes, self.search.space.metric != "ip"
        norms = codes.norms(self.centered, first, stop) if needs_norms else None
        return _Part(first, stop, codes.offsets(first, stop), norms, codes.groups(0, first, stop))

    def scan(self, likely: Found, bounds: NDArray[np.float32], part: _Part) -> None:
        """Set the bounds [q, row] of rows by the first level, and add the likely ones."""
        first, stop, offsets, norms, groups = part
        allowed = self.allowed(first, stop)
        terms, kernel = (self.weights[0], self.packed_terms[: len(bounds)]), cast(Any, likely.kernel)
        kernel.scan(groups, first, stop - first, SEGMENT, offsets, norms, allowed, *terms, bounds)

    def allowed(self, first: int, stop: int) -> NDArray[np.uint8] | None:
        """Whether the rows at positions are candidates; None where all are."""
        rows, base = self.search.rows, first // SEGMENT * SEGMENT
        end = min(-(-stop // SEGMENT) * SEGMENT, self.search.vectors.count)
        if isinstance(rows, range) and rows.start <= base and end <= rows.stop:
            return None
        held = np.zeros(end - base, np.uint8)
        if isinstance(rows, range):
            held[max(0, rows.start - base) : max(0, rows.stop - base)] = 1
        else:
            held[rows[slice(*np.searchsorted(rows, (base, end)))] - base] = 1
        return held[self.sketch.codes.rows_at(np.arange(first, stop)) - base]

    def choose(self, near: Found, bounds: NDArray[np.float32], part: _Part) -> None:
        """Add the rows that may be among the nearest by their bounds [q, row] and all levels."""
        (first, stop, offsets, norms, groups), limits, before = part, self.limits, near.filled.copy()
        search, codes = self.search, self.sketch.codes
        near.least[:] = self.least()
        scale = of_norms(norms) if norms is not None and search.space.metric == "cosine" else np.float32(1)

        def needed() -> NDArray[np.bool_]:
            """The groups of which a row may be near to one of the active queries."""
            is_open = bounds[self.active] > limits[self.active][:, None] * scale
            return np.asarray(is_open.any(0).reshape(-1, GROUP).any(1))

        levels = [groups, *(codes.groups(level, first, stop, needed) for level in range(1, codes.layout.n_levels))]
        terms, kernel = (self.weights.reshape(-1, LEVEL), self.packed_terms), cast(Any, near.kernel)
        kernel.choose(levels, first, stop - first, SEGMENT, offsets, norms, *terms, bounds, limits)
        with self.lock:
            self.n_near += near.filled - before
            self.active &= self.n_near <= max(LEAST_UNDECIDED, len(search.rows) // UNDECIDED)

    def score_near(self, near: Found) -> None:
        """Score the rows that all levels left, of the queries that are still active."""
        near.filled[~self.active] = 0
        new = near.rows[:, : int(near.filled.max())].copy()
        new[np.arange(new.shape[1]) >= near.filled[:, None]] = -1
        near.filled[:] = 0
        self.score(new)

    def score(self, new: NDArray[np.int64]) -> None:
        """Score rows by their positions [q, c] (-1 for none) in float64, but those that are among the best already."""
        search, best = self.search, self.best
        new[new >= 0] = self.sketch.codes.rows_at(new[new >= 0])
        if new.size * search.k <= FEW_PAIRS:
            new[(new[:, :, None] == best.rows[:, None]).any(2)] = -1
        else:
            owners = np.arange(len(new))[:, None] * search.vectors.count
            new[np.isin(new + owners, (best.rows + owners)[best.rows >= 0])] = -1
        if (new < 0).all():
            return
        scores = search.rescored(new)
        with self.lock:
            scores = np.concatenate([self.best.scores, scores], 1)
            self.best = search.best(scores, np.concatenate([self.best.rows, new], 1))
            self.limits = self._limits()

    def _limits(self) -> NDArray[np.float32]:
        """What the bound of a row must be above where it may be nearer than the k-th of `best`, or as near."""
        is_cosine = self.search.space.metric == "cosine"
        is_full = self.best.rows[:, -1] >= 0
        kth = self.search.comparable(np.where(is_full, self.best.scores[:, -1], 0))
        kth = np.where(is_full, kth - (0 if is_cosine else ROUNDING * np.abs(kth)), -2.0 if is_cosine else -TOO_LONG)
        return np.nextafter(kth.astype(np.float32), np.float32(-np.inf))

    def least(self, values: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """The least value of a candidate of each query, by default any; infinite for those that are not active."""
        least = np.full(padded_queries(len(self.active)), np.inf, np.float32)
        least[: len(self.active)] = np.where(self.active, -np.inf if values is None else values, np.inf)
        return least
