"""The loops of compiled.pyx in numpy, for machines without a compiler: the same arguments and results, but slower.

A sketch is not searched without the extension: a search reads the vectors then, with the same result.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FLOAT, HALF, BFLOAT, DOUBLE, CODES = range(5)
COSINE, PRODUCT, DISTANCE = range(3)
UNSURE, BAD = 1, 2  # states of rows: float64 must compare them, or nothing can
SMALLEST = np.float32(1e-30)  # a squared length below which some squares may have underflowed
CANCELLED = np.float32(64)  # a row this many times shorter than what was subtracted is left to float64
FLUSH_COUNT = 64  # vectors of a frequent word after which its sum is moved to float64
PART_NUMBERS = 2**22  # numbers that are computed with at a time: a few of such arrays fit the cache of a server
NO_ROW = np.iinfo(np.int64).max
DTYPES = {FLOAT: np.float32, HALF: np.float16, BFLOAT: np.uint16, DOUBLE: np.float64, CODES: np.int8}


def gather_rows(
    bases: NDArray[np.uint64],
    segment_rows: int,
    row_nbytes: int,
    rows: NDArray[np.int64],
    out: NDArray[Any],
    most_nanoseconds: int,
) -> int:
    target = memoryview(out)  # type: ignore[arg-type]
    widened = len(rows) and target.nbytes == 2 * len(rows) * row_nbytes
    if target.readonly or not target.c_contiguous or not (widened or target.nbytes == len(rows) * row_nbytes):
        raise ValueError("out has another size than the rows")
    if not len(rows):
        return 0
    kinds = (np.float16, np.float32) if widened else (np.uint8, np.uint8)
    copies = np.frombuffer(target.cast("B"), kinds[1]).reshape(len(rows), -1)
    segments, inside = np.divmod(rows, segment_rows)
    addresses = bases[segments]
    n = int((addresses == 0).argmax()) if (addresses == 0).any() else len(rows)
    order = np.argsort(segments[:n], kind="stable")
    for group in np.split(order, np.flatnonzero(np.diff(segments[order])) + 1) if n else ():
        address = int(addresses[group[0]])
        places = inside[group]
        size = (int(places.max()) + 1) * row_nbytes
        memory: Any = (ctypes.c_uint8 * size).from_address(address)
        copies[group] = np.frombuffer(memory, np.uint8).reshape(-1, row_nbytes)[places].view(kinds[0])
    return n


def take_rows(*_: Any) -> int:
    """Without the extension all rows are copied by `gather_rows`, after the same checks."""
    return -1


def all_finite(values: NDArray[np.int8], half: bool) -> bool:
    """Return whether no value of float16 or float32 is infinite or NaN; the compiled kernels use this too."""
    if half:  # of which numpy converts each
        return not ((values.view(np.uint16) & 0x7C00) == 0x7C00).any()
    return bool(np.isfinite(values.view(np.float32)).all())


def is_resident(start: int, nbytes: int) -> bool:
    """Without the extension nobody knows: files are then read where they are mapped."""
    return True


def will_need(starts: NDArray[np.uint64], nbytes: int) -> None:
    """Without the extension the system reads pages when they are used."""


def pack_queries(queries: NDArray[np.float32]) -> Any:
    """Queries are not packed for numpy."""
    return None


def padded_queries(n_queries: int) -> int:
    return n_queries


def _decoded(vectors: NDArray[np.int8], kind: int) -> NDArray[Any]:
    """Rows of bytes as numbers, bfloat16 as float32."""
    stored = vectors.view(DTYPES[kind])
    return (stored.astype(np.uint32) << 16).view(np.float32) if kind == BFLOAT else stored


def _squares(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(np.einsum("ij,ij->i", values, values))


@dataclass(eq=False)
class Candidates:
    queries: NDArray[np.float32]
    packed: Any
    metric: int
    mean: NDArray[np.float32] | None
    mean_length: float
    row_groups: list[NDArray[np.integer] | None]
    query_groups: NDArray[np.int64]
    n_best: int
    scores: NDArray[np.float32]
    rows: NDArray[np.int64]
    filled: NDArray[np.int64]
    least: NDArray[np.float32]

    def add(
        self,
        vectors: NDArray[np.int8],
        kind: int,
        state: NDArray[np.uint8],
        first: int,
        rows: NDArray[np.int64] | None = None,
        spread: bool = False,
        scales: NDArray[np.float32] | None = None,
        center: NDArray[np.float32] | None = None,
    ) -> tuple[int, float]:
        n = len(state)
        if (rows is None and spread) or (rows is not None and len(rows) != n):
            raise ValueError("the rows are not those of the states")
        numbers = np.arange(first, first + n) if rows is None else rows
        places = numbers - first if spread else np.arange(n)
        if n and not 0 <= places[0] <= places[-1] < len(vectors):
            raise ValueError("the rows are not among the vectors")
        step = max(1, PART_NUMBERS // max(self.queries.shape))
        longest = 0.0
        for start in range(0, n, step):
            part = slice(start, start + step)
            values: NDArray[np.float32] = _decoded(vectors[places[part]], kind).astype(np.float32)
            if scales is not None and center is not None:
                values = values * scales[places[part], None] + center
            with np.errstate(all="ignore"):
                longest = max(longest, self._add(values, numbers[part], state[part]))
        return int(np.count_nonzero(state)), longest

    def _add(self, values: NDArray[np.float32], rows: NDArray[np.int64], state: NDArray[np.uint8]) -> float:
        """Add some rows; sets their state, and returns the largest squared length."""
        state[:] = 0
        if self.mean is not None:
            values = values - self.mean
        squares = _squares(values)
        subtracted = np.sqrt(squares) + np.float32(2 * self.mean_length)
        if self.metric == COSINE:
            odd = np.flatnonzero(~((squares > SMALLEST) & (squares < np.inf)))
            largest = np.abs(values[odd]).max(1, initial=0)
            is_bad = ~(largest < np.inf)
            if self.mean is None:  # vectors so short or long that their squares are lost
                values[odd] /= np.where(largest > 0, largest, 1)[:, None]
                squares[odd] = np.where(largest > 0, _squares(values[odd]), 1)
            else:
                state[subtracted > CANCELLED * np.sqrt(squares)] = UNSURE
                state[odd] = UNSURE
            state[odd[is_bad]] = BAD
        else:
            state[~(squares < np.inf)] = BAD
        if state.any():
            values, squares, rows = values[state == 0], squares[state == 0], rows[state == 0]
        scores = self.queries @ values.T
        if self.metric == COSINE:
            scores *= 1 / np.sqrt(squares)
        elif self.metric == DISTANCE:
            scores -= squares / 2
        for of_rows, of_queries in zip(self.row_groups, self.query_groups, strict=True):
            groups = rows if of_rows is None else of_rows[rows]
            scores[(groups == of_queries[:, None]) & (of_queries >= 0)[:, None]] = -np.inf
        above = scores > self.least[: len(scores), None]
        for query in np.flatnonzero(above.any(1)).tolist():
            self._keep(query, scores[query, above[query]], rows[above[query]])
        return float(squares.max(initial=0))

    def _keep(self, query: int, scores: NDArray[np.float32], rows: NDArray[np.int64]) -> None:
        filled = int(self.filled[query])
        stop = filled + len(rows)
        if stop >= self.scores.shape[1]:
            scores = np.concatenate([self.scores[query, :filled], scores])
            rows = np.concatenate([self.rows[query, :filled], rows])
            best = np.argpartition(scores, -self.n_best)[-self.n_best :]
            scores, rows, filled, stop = scores[best], rows[best], 0, self.n_best
            self.least[query] = scores.min()
        self.scores[query, filled:stop], self.rows[query, filled:stop] = scores, rows
        self.filled[query] = stop


def score_pairs(
    vectors: NDArray[np.int8],
    kind: int,
    metric: int,
    queries: NDArray[np.float64],
    owners: NDArray[np.int64],
    numbers: NDArray[np.int64],
    scores: NDArray[np.float64],
) -> None:
    step = max(1, PART_NUMBERS // queries.shape[1])
    for start in range(0, len(owners), step):
        part = slice(start, start + step)
        rows, own = _decoded(vectors[numbers[part]], kind).astype(np.float64), queries[owners[part]]
        with np.errstate(all="ignore"):
            if metric == DISTANCE:
                scores[part] = np.sqrt(np.square(rows - own).sum(1))
                continue
            scores[part] = (rows * own).sum(1)  # row by row, so that equal vectors have equal scores
            if metric == COSINE:
                squares = np.square(rows).sum(1)
                scores[part] = np.where(squares == 0, 0, scores[part] / np.sqrt(squares))


def rank_rows(
    scores: NDArray[np.float64], rows: NDArray[np.int64], k: int, ascending: bool
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The k best of each line of scores and rows [q, c]: rows and scores [q, k], best first, equal scores by row.

    A row of -1 or a score of NaN counts as none; -1 and NaN where there are no more. `ascending`: lower is better. The
    compiled kernels use this too.
    """
    if scores.shape != rows.shape or k < 1:
        raise ValueError("the shapes of the arguments do not fit")
    is_row = (rows >= 0) & ~np.isnan(scores)
    keys = np.where(is_row, scores if ascending else -scores, np.inf)
    order = np.lexsort((np.where(is_row, rows, NO_ROW), keys), axis=-1)[:, :k]
    is_row = np.take_along_axis(is_row, order, 1)
    best_rows, best_scores = np.full((len(rows), k), -1), np.full((len(rows), k), np.nan)
    best_rows[:, : order.shape[1]] = np.where(is_row, np.take_along_axis(rows, order, 1), -1)
    best_scores[:, : order.shape[1]] = np.where(is_row, np.take_along_axis(scores, order, 1), np.nan)
    return best_rows, best_scores


def _grouped(codes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The distinct codes that are not negative, where each begins in an order of the positions, and that order."""
    order = np.argsort(codes, kind="stable")
    order = order[np.searchsorted(codes[order], 0) :]
    return *np.unique(codes[order], return_index=True), order


def add_cosines(
    sums: Any,
    vectors: NDArray[np.int8],
    half: bool,
    words: NDArray[np.int64],
    sentences: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> int:
    word_counts, word_sums, word_totals = sums.word_counts, sums.word_sums, sums.word_totals
    runs, run_sums, total = sums.runs, sums.run_sums, sums.total
    size, width, dtype = len(total), word_sums.shape[1], word_sums.dtype
    rows = vectors.view(np.float16 if half else dtype)
    if width > size:  # vectors without a word are not read
        rows, words = rows[words >= 0], words[words >= 0]
    rows = rows.astype(dtype)
    with np.errstate(all="ignore"):
        squares = np.einsum("ij,ij->i", rows, rows)
        is_safe = (squares > (1e-30 if dtype == np.float32 else 1e-290)) & (squares < np.inf)
        if (rows[~is_safe] != 0).any():
            return -1
        units = rows * np.where(squares > 0, 1 / np.sqrt(squares), 0)[:, None].astype(dtype)
    if len(words):
        codes, starts, order = _grouped(words)
        parts = [np.add.reduceat(each[order], starts, 0, np.float64) for each in (units, rows)[: width // size]]
        added = np.concatenate(parts, 1) if len(codes) else np.empty((0, width))
        counts = np.diff(starts, append=len(order))
        word_counts[codes, 2] += np.add.reduceat((squares > 0)[order], starts, dtype=np.int64) if len(codes) else 0
        frequent = word_counts[codes, 0] >= 0
        word_counts[codes[frequent], 1] += counts[frequent]
        flushed = frequent & (word_counts[codes, 1] >= FLUSH_COUNT)
        slots = word_counts[codes[flushed], 0]
        word_totals[slots] += word_sums[codes[flushed]] + added[flushed]
        word_sums[codes[flushed]] = 0
        word_counts[codes[flushed], 1] %= FLUSH_COUNT
        word_sums[codes[~flushed]] += added[~flushed].astype(dtype)
    if width > size:
        return int(np.count_nonzero(squares))
    if not len(sentences):
        total += units.sum(0, dtype=np.float64)
        return int(np.count_nonzero(squares))
    total += units[sentences < 0].sum(0, dtype=np.float64)
    codes, starts, order = _grouped(sentences)
    if len(codes):
        plain, unit = (np.add.reduceat(each[order], starts, 0, np.float64) for each in (rows, units))
        counts = np.diff(starts, append=len(order))
        for number, sentence in enumerate(codes.tolist()):
            if sentence != runs[0, 0]:
                _close_run(sums, sizes)
                runs[0], run_sums[0] = (sentence, 0), 0
            runs[0, 1] += counts[number]
            run_sums[0] += plain[number], unit[number]
    return int(np.count_nonzero(squares))


def _close_run(sums: Any, sizes: NDArray[np.int64]) -> None:
    """Set the value of the sentence just read, or keep it as the first one if it began before this part."""
    sentence, count = sums.runs[0].tolist()
    if sentence < 0:
        return
    plain, unit = sums.run_sums[0].astype(np.float64)
    sums.total += unit
    if count < sizes[sentence]:
        sums.runs[1], sums.run_sums[1] = sums.runs[0], sums.run_sums[0]
    else:
        length = float(np.linalg.norm(plain))
        sums.values[sentence] = float(plain @ unit) / length / count if length > 0 else 0.0
