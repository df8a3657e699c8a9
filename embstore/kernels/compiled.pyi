"""Compiled loops over arrays, which release the GIL; see compiled.pyx and kernels.h."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

def limit_target(most: int) -> int:
    """Use at most version 0 (plain C), 1 (AVX2) or 2 (AVX-512) of the kernels; return the version in use."""

def gather_rows(
    bases: NDArray[np.uint64], segment_rows: int, row_nbytes: int, rows: NDArray[np.int64], out: NDArray[np.int8]
) -> int:
    """Copy rows from the segments at these addresses; return how many until one of an address 0."""

def dot_rows(
    rows: NDArray[np.uint16], query: NDArray[np.float32], products: NDArray[np.float32], squares: NDArray[Any]
) -> None:
    """The products of float16 rows (as bits) with a query, and their squared lengths."""
