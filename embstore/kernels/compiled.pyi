"""Compiled loops over arrays, which release the GIL; see compiled.pyx and kernels.h.

Vectors are given as bytes, int8 [n, nbytes], with the number of their dtype: 0 float32, 1 float16, 2 bfloat16, and for
pairs 3 float64; for searches 4 int8 codes. Metrics are 0 cosine, 1 inner product, 2 distance.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

def limit_target(most: int) -> int:
    """Use at most version 0 (plain C), 1 (AVX2) or 2 (AVX-512) of the kernels; return the version in use."""

def gather_rows(
    bases: NDArray[np.uint64],
    segment_rows: int,
    row_nbytes: int,
    rows: NDArray[np.int64],
    out: NDArray[Any],
    most_nanoseconds: int,
) -> int:
    """Copy rows from the segments at these addresses into `out`, which is C-contiguous; `rows` are not checked.

    Where `out` has twice their size, rows are of float16 and become float32.

    Returns how many rows were copied: all, those before one whose segment has the address 0, or a few where these took
    longer than `most_nanoseconds` each (0: any time).
    """

def take_rows(
    files: dict[int, Any],
    bases: NDArray[np.uint64],
    segment_rows: int,
    row_nbytes: int,
    most_nanoseconds: int,
    rows: NDArray[np.int64],
    n_stored: int,
    partition_rows: int,
    committed: NDArray[np.uint8],
    out: NDArray[Any],
    checks: bool,
) -> int:
    """Copy rows as `gather_rows` does; returns -1, and copies none, where there are no rows or any is unusual.

    That is a row that does not exist or is not `committed`, or whose partition has no file or one that was cut short.
    `files`: that of each partition, with an open `descriptor` of it and its `nbytes`; `checks`: look whether it was.
    """

def is_resident(start: int, nbytes: int) -> bool:
    """Whether bytes of a memory map are in memory: of files of other users, and on other systems than Linux, always."""

def will_need(starts: NDArray[np.uint64], nbytes: int) -> None:
    """Have the system read `nbytes` bytes at each of these ascending addresses of memory maps; returns at once."""

def pack_queries(queries: NDArray[np.float32]) -> Any:
    """The queries [q, feature] as the search takes them, None for the few that it takes as they are."""

def padded_queries(n_queries: int) -> int:
    """The number of least scores that a search for this many queries needs."""

class Candidates:
    """Collects the best rows of each query in float32: product minus half the squared length for a distance.

    `queries` [q, feature] and `packed`, the same by `pack_queries`. `mean` [feature] is subtracted from rows. A row in
    the group of a query is excluded: `row_groups` is a list of int64 or int32 [row], or None (the group is the row
    itself), `query_groups` int64 [g, q], -1 for none.

    The arrays that are filled: `scores` and `rows` [q, capacity], of which `filled` [q] are set; once all are, the
    `n_best` best and somewhat more remain, and `least` [padded q] is the lowest of them. Rows must have higher scores
    than that. `least` may be shared by several threads; it is infinite beyond the queries.
    """

    def __init__(
        self,
        queries: NDArray[np.float32],
        packed: Any,
        metric: int,
        mean: NDArray[np.float32] | None,
        mean_length: float,
        row_groups: list[NDArray[np.integer] | None],
        query_groups: NDArray[np.int64],
        n_best: int,
        scores: NDArray[np.float32],
        rows: NDArray[np.int64],
        filled: NDArray[np.int64],
        least: NDArray[np.float32],
    ) -> None: ...
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
        """Add rows; set the `state` of each: 0, 1 (left to float64) or 2 (not finite, or too long).

        `rows`: their numbers, ascending; None: first, first + 1, ... With `spread`, row r is vector r - first, else
        the vectors are those of the rows. `scales` [vector] and `center` [feature] are of int8 codes. Returns how many
        states are not 0, and the largest squared length.
        """

    def scan(
        self,
        groups: NDArray[np.uint8],
        first: int,
        n: int,
        segment: int,
        offsets: NDArray[np.uint16],
        norms: NDArray[np.uint16] | None,
        allowed: NDArray[np.uint8] | None,
        weights: NDArray[np.int8],
        terms: NDArray[np.uint8],
        bounds: NDArray[np.float32],
    ) -> None:
        """Set the `bounds` of `n` rows from `first` on by the first level of their sketch, [group, byte].

        They, and `norms`, which products do not need, are up to a whole group, float32 [q, row] and uint16 [row];
        `allowed` [n]: the rows that can be found. `weights` [q, 64] and the bytes of `terms` [q, byte] are those of the
        queries; see kernels.h. Likely rows become candidates.
        """

    def choose(
        self,
        levels: Sequence[NDArray[np.uint8]],
        first: int,
        n: int,
        segment: int,
        offsets: NDArray[np.uint16],
        norms: NDArray[np.uint16] | None,
        weights: NDArray[np.int8],
        terms: NDArray[np.uint8],
        bounds: NDArray[np.float32],
        limits: NDArray[np.float32],
    ) -> int:
        """Add the rows whose bound is above the limit of a query, also by the levels after the first.

        `levels` are [group, byte], `weights` and `terms` by level and query. Changes the bounds. Returns how many
        groups were read. Raises ValueError where all rows might not fit.
        """

def score_pairs(
    vectors: NDArray[np.int8],
    kind: int,
    metric: int,
    queries: NDArray[np.float64],
    owners: NDArray[np.int64],
    numbers: NDArray[np.int64],
    scores: NDArray[np.float64],
) -> None:
    """Score queries `owners` (at unit length for the cosine) with vectors `numbers`, pair by pair in float64."""

def add_cosines(
    sums: Any,
    vectors: NDArray[np.int8],
    half: bool,
    words: NDArray[np.int64],
    sentences: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> int:
    """Add vectors to sums of unit vectors by word, by sentence and in all, each read once.

    Word sums and totals twice as wide as the vectors have the sum of the plain vectors after that of the unit vectors;
    vectors without a word are then left out, and there are neither sentences nor a total.

    The arithmetic has the dtype of the sums, float32 or float64; so have vectors that are not `half`. `words` and
    `sentences` [n] may be empty, -1 is none, and sentences ascend; `sizes` [sentence]. `sums` has the arrays
    word_counts, word_sums, word_totals, values (of sentences), runs, run_sums, buffers and total; see kernels.h.
    Returns how many vectors are not zero, or -1 if one is not finite or its square overflows.
    """
