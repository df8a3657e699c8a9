"""Loops that no chain of array operations can fuse, compiled by Numba; each thread runs its own without the lock.

A kernel is compiled when it first runs (some seconds) and kept beside the package, or in the user's cache folder.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from embstore.analysis.neighbors.halves import float_of_half


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def add_cosine_block(  # type: ignore[no-untyped-def]
    half,  # int16 [n, d], the bits of float16; or [0, d]
    full,  # float32 [n, d]; or [0, d]
    row,  # float32 [d]
    word_codes,  # int64 [n], the word of each vector, -1 for none; or [0]
    word_sums,  # float64 [w, d]
    word_nonzero,  # float64 [w]
    sentence_codes,  # int64 [n], never falling but for -1; or [0]
    sentence_sizes,  # int64 [s]
    sentence_values,  # float64 [s]
    run,  # int64 [2]: the sentence being read, and how many of its vectors have come
    run_sums,  # float32 [2, d]: the sum of its vectors, and of its unit vectors
    first,  # int64 [2]: the like of a sentence that had begun before this part did; -1 for none
    first_sums,  # float32 [2, d]
    total,  # float32 [d]; the unit vectors of `run` are not in it yet
):
    """Add vectors to sums of unit vectors by word, by sentence and in all, each read once.

    Returns how many were not zero, or -1 where one is not finite or too long for float32.
    """
    count = half.shape[0] + full.shape[0]
    size = row.shape[0]
    found = 0
    for place in range(count):
        if half.shape[0]:
            for at in range(size):
                row[at] = float_of_half(half[place, at])
        else:
            for at in range(size):
                row[at] = full[place, at]
        square = np.float32(0)
        for at in range(size):  # apart: where it also stored, it would add in another order if arrays lay side by side
            square += row[at] * row[at]
        if not square < np.inf:
            return -1
        scale = np.float32(0)
        if square > 0:
            scale = np.float32(1) / np.sqrt(square)
            found += 1
        if word_codes.shape[0] and word_codes[place] >= 0:
            word = word_codes[place]
            for at in range(size):
                word_sums[word, at] += row[at] * scale
            if square > 0:
                word_nonzero[word] += 1
        if not (sentence_codes.shape[0] and sentence_codes[place] >= 0):
            for at in range(size):
                total[at] += row[at] * scale
            continue
        sentence = sentence_codes[place]
        if sentence != run[0]:
            _close(run, run_sums, sentence_sizes, sentence_values, first, first_sums, total)
            run[0] = sentence
            run[1] = 0
            run_sums[:] = 0
        run[1] += 1
        for at in range(size):
            run_sums[0, at] += row[at]
            run_sums[1, at] += row[at] * scale
    return found


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _close(run, run_sums, sizes, values, first, first_sums, total):  # type: ignore[no-untyped-def]
    """Set the value of the sentence just read, or keep it as the one that had begun before."""
    if run[0] < 0:
        return
    for at in range(total.shape[0]):
        total[at] += run_sums[1, at]
    if run[1] < sizes[run[0]]:
        first[:] = run
        first_sums[:] = run_sums
        return
    square = np.float64(0)
    dot = np.float64(0)
    for at in range(run_sums.shape[1]):
        square += run_sums[0, at] * run_sums[0, at]
        dot += run_sums[0, at] * run_sums[1, at]
    values[run[0]] = dot / np.sqrt(square) / run[1] if square > 0 else 0
