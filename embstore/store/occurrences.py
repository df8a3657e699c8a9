"""From words to their rows: the CSR form of the type column, built in bounded memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_BLOCK_ROWS = 1 << 22


@contextmanager
def rows_of_types(
    types: NDArray[np.int32], count: int, folder: Path, *, block_rows: int = _BLOCK_ROWS
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Give `(indptr, occurrences)`: the rows of type t are `occurrences[indptr[t]:indptr[t + 1]]`, ascending.

    A counting sort over blocks; beyond one block the result stands in an unnamed file in `folder`, there while
    the context lasts.
    """
    indptr = np.zeros(count + 1, np.int64)
    for start in range(0, len(types), block_rows):
        indptr[1:] += np.bincount(types[start : start + block_rows], minlength=count)
    np.cumsum(indptr, out=indptr)
    if len(types) <= block_rows:
        yield indptr, np.argsort(types, kind="stable").astype(np.int64, copy=False)
        return
    with tempfile.TemporaryFile(dir=folder) as file:
        nbytes = len(types) * 8
        os.posix_fallocate(file.fileno(), 0, nbytes)  # a full disk must be an error here, not a SIGBUS below
        rows: NDArray[np.int64] = np.memmap(file, np.int64, "r+", shape=(len(types),))
        _scatter(types, indptr, rows, block_rows)
        yield indptr, rows


def _scatter(types: NDArray[np.int32], indptr: NDArray[np.int64], rows: NDArray[np.int64], block_rows: int) -> None:
    free = indptr[:-1].copy()
    for start in range(0, len(types), block_rows):
        block = np.asarray(types[start : start + block_rows])
        order = np.argsort(block, kind="stable")
        ordered = block[order]
        first = np.flatnonzero(np.diff(ordered, prepend=-1))
        counts = np.diff(first, append=len(ordered))
        rank = np.arange(len(ordered)) - np.repeat(first, counts)
        rows[free[ordered] + rank] = order + start
        free[ordered[first]] += counts
