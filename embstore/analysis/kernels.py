"""Compiled loops: conversion of float16, exact search, sums of cosines.

Numba compiles a kernel at first use, which takes some seconds, and caches it next to the package or in the user's cache
folder. Kernels release the GIL, so that threads run them in parallel. Numba has no float16 on a CPU: the kernels take
its bits as int16 and convert each value to float32 as they use it.
"""

from __future__ import annotations

import platform
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import config, njit, types
from numba.extending import intrinsic

_SMALLEST = np.float32(1e-30)  # a sum of squares below which some squares may have underflowed
_CANCELLED = np.float32(64)  # a vector this many times shorter than what was subtracted is left to float64
_CHUNK = 16
COSINE, PRODUCT, DISTANCE = 0, 1, 2
FINE, UNSURE, BAD = 0, 1, 2


def _converts_in_hardware() -> bool:
    target = (getattr(config, "CPU_NAME", None), getattr(config, "CPU_FEATURES", None))
    if target not in ((None, None), ("host", None)):  # Numba compiles for another processor
        return False
    if platform.machine().lower() in ("arm64", "aarch64"):
        return True
    return bool(llvmlite.binding.get_host_cpu_features().get("f16c", False))


def _by_instruction(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())


def _by_arithmetic(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Shift exponent and mantissa into position and scale: exact, also for zero and subnormal numbers."""
    integer, real = ir.IntType(32), ir.FloatType()
    wide = builder.shl(builder.sext(arguments[0], integer), integer(13))
    bits = builder.and_(wide, integer(0x8FFFE000))  # the sign was extended to bit 31
    scaled = builder.fmul(builder.bitcast(bits, real), real(2.0**112))
    exponent = builder.and_(arguments[0], ir.IntType(16)(0x7C00))
    is_special = builder.icmp_signed("==", exponent, ir.IntType(16)(0x7C00))
    special = builder.bitcast(builder.or_(bits, integer(0x7F800000)), real)  # infinite, or NaN
    return builder.select(is_special, special, scaled)


def _converter(convert: Any) -> Any:
    @intrinsic
    def float_of_half(typing_context, bits):  # type: ignore[no-untyped-def]
        return types.float32(types.int16), convert

    return float_of_half


by_arithmetic = _converter(_by_arithmetic)
float_of_half = _converter(_by_instruction) if _converts_in_hardware() else by_arithmetic


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _square(row):  # type: ignore[no-untyped-def]
    total = np.float32(0)
    for j in range(row.shape[0]):
        total += row[j] * row[j]
    return total


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _largest(row):  # type: ignore[no-untyped-def]
    """The largest magnitude; infinite if a value is not finite."""
    largest = np.float32(0)
    for j in range(row.shape[0]):
        if not abs(row[j]) < np.inf:
            return np.float32(np.inf)
        largest = max(largest, abs(row[j]))
    return largest


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _read_row(half, full, i, row):  # type: ignore[no-untyped-def]
    """Read a row of float16 bits or float32 as float32 into `row`; return the sum of its squares."""
    size = row.shape[0]
    square = np.float32(0)
    if half.shape[0]:
        for j in range(size):
            value = float_of_half(half[i, j])
            row[j] = value
            square += value * value
    else:
        for j in range(size):
            value = full[i, j]
            row[j] = value
            square += value * value
    return square


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _transform_row(half, full, i, metric, mean, mean_length, components, row, bias):  # type: ignore[no-untyped-def]
    """Subtract mean and components from a vector and write it to `row`, at unit length for COSINE.

    The bias for DISTANCE is half the squared length: product minus bias orders vectors as the distance does. Returns
    FINE, UNSURE or BAD (not finite or too long), and the squared length.
    """
    size = row.shape[0]
    bias[i] = 0
    square = _read_row(half, full, i, row)
    if half.shape[0] and not square < np.inf:
        return BAD, np.float32(0)
    if mean.shape[0]:
        for j in range(size):
            row[j] -= mean[j]
        square = _square(row)
    subtracted = np.sqrt(square) + 2 * mean_length
    for component in range(components.shape[0]):
        along = 0.0
        for j in range(size):
            along += np.float64(row[j]) * components[component, j]
        for j in range(size):
            row[j] -= np.float32(along * components[component, j])
    if components.shape[0]:
        square = _square(row)
    if metric != COSINE:
        if not square < np.inf:
            return BAD, square
        bias[i] = square / 2 if metric == DISTANCE else np.float32(0)
        return FINE, square
    if not (_SMALLEST < square < np.inf):
        largest = _largest(row)
        if mean.shape[0] or not largest < np.inf:
            return UNSURE if largest < np.inf else BAD, square
        if largest == 0:
            return FINE, square
        for j in range(size):
            row[j] /= largest
        square = _square(row)
    elif mean.shape[0] and subtracted > _CANCELLED * np.sqrt(square):
        return UNSURE, square
    scale = np.float32(1) / np.sqrt(square)
    for j in range(size):
        row[j] *= scale
    return FINE, square


@njit(cache=True, nogil=True)
def transform_block(half, full, metric, mean, mean_length, components, transformed, bias, state):  # type: ignore[no-untyped-def]
    """Transform every row of a block (float16 bits or float32, the other empty) into `transformed`, float32 [n, d].

    `state`: uint8 [n], FINE, UNSURE or BAD. Returns the largest squared length.
    """
    longest = np.float32(0)
    for i in range(half.shape[0] + full.shape[0]):
        state[i], square = _transform_row(half, full, i, metric, mean, mean_length, components, transformed[i], bias)
        longest = max(longest, square)
    return longest


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _multiply_halves(half, queries, scores):  # type: ignore[no-untyped-def]
    """Multiply one vector, given as bits of float16, with a few queries as it is read; return its squared length."""
    square = np.float32(0)
    for query in range(queries.shape[0]):
        own = queries[query]
        score, square = np.float32(0), np.float32(0)
        for j in range(half.shape[0]):
            value = float_of_half(half[j])
            score += value * own[j]
            square += value * value
        scores[query] = score
    return square


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def multiply_block(half, full, metric, mean, mean_length, components, row, bias, state, queries, scores):  # type: ignore[no-untyped-def]
    """Like transform_block, but multiply each row with a few queries at once: scores float32 [n, q]."""
    longest = np.float32(0)
    as_stored = half.shape[0] > 0 and not mean.shape[0] and not components.shape[0]
    for i in range(half.shape[0] + full.shape[0]):
        if as_stored:
            square = _multiply_halves(half[i], queries, scores[i])
            if _SMALLEST < square < np.inf:
                state[i], longest = FINE, max(longest, square)
                bias[i] = square / 2 if metric == DISTANCE else np.float32(0)
                scale = np.float32(1) / np.sqrt(square) if metric == COSINE else np.float32(1)
                for query in range(queries.shape[0]):
                    scores[i, query] *= scale
                continue
        state[i], square = _transform_row(half, full, i, metric, mean, mean_length, components, row, bias)
        longest = max(longest, square)
        for query in range(queries.shape[0]):
            score = np.float32(0)
            for j in range(row.shape[0]):
                score += row[j] * queries[query, j]
            scores[i, query] = score
    return longest


@njit(cache=True, nogil=True, fastmath={"nnan", "reassoc", "contract", "nsz"})
def keep_best(scores, bias, state, rows, row_groups, query_groups, n_best, best_scores, best_rows, filled, least):  # type: ignore[no-untyped-def]
    """Add to the candidates of each query the rows that may be among its best by `scores` [n, q] minus `bias` [n].

    `best_scores`, `best_rows` [q, capacity] hold `filled` [q] candidates; once full, the best `n_best` remain and
    `least` [q] is the lowest of them. `row_groups` int64 [g, n], `query_groups` int64 [g, q]: a row in the group of its
    query is excluded.
    """
    count = scores.shape[1]
    for i in range(scores.shape[0]):
        if state[i] != FINE:
            continue
        own, off = scores[i], bias[i]
        if not _above(own, least, off):
            continue
        for start in range(0, count, _CHUNK):
            stop = min(start + _CHUNK, count)
            if not _above(own[start:stop], least[start:stop], off):
                continue
            for query in range(start, stop):
                score = own[query] - off
                if not score > least[query] or _is_excluded(row_groups, query_groups, query, i):
                    continue
                best_scores[query, filled[query]] = score
                best_rows[query, filled[query]] = rows[i]
                filled[query] += 1
                if filled[query] == best_scores.shape[1]:
                    least[query] = _select(best_scores[query], best_rows[query], n_best)
                    filled[query] = n_best


@njit(cache=True, nogil=True, fastmath={"nnan", "reassoc", "contract", "nsz"})
def _above(scores, least, bias):  # type: ignore[no-untyped-def]
    """How many scores minus bias are above the least; counting is seven times faster than finding the largest."""
    found = np.int32(0)
    for query in range(scores.shape[0]):
        found += np.int32(scores[query] - least[query] > bias)
    return found


@njit(cache=True, nogil=True)
def _is_excluded(row_groups, query_groups, query, i):  # type: ignore[no-untyped-def]
    for group in range(row_groups.shape[0]):
        if query_groups[group, query] >= 0 and row_groups[group, i] == query_groups[group, query]:
            return True
    return False


@njit(cache=True, nogil=True)
def _select(scores, rows, n_best):  # type: ignore[no-untyped-def]
    """Move the `n_best` largest scores and their rows to the front; return the lowest of them."""
    first, last = 0, scores.shape[0] - 1
    while first < last:
        pivot = scores[(first + last) // 2]
        left, right = first, last
        while left <= right:
            while scores[left] > pivot:
                left += 1
            while scores[right] < pivot:
                right -= 1
            if left <= right:
                scores[left], scores[right] = scores[right], scores[left]
                rows[left], rows[right] = rows[right], rows[left]
                left += 1
                right -= 1
        if n_best - 1 <= right:
            last = right
        elif n_best - 1 >= left:
            first = left
        else:
            break
    return scores[:n_best].min()


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def score_pairs(half, full, metric, queries, owners, numbers, row, scores):  # type: ignore[no-untyped-def]
    """The scores of pairs in float64: query `owners[i]` (at unit length for COSINE) and vector `numbers[i]` of a block.

    All pairs are computed in the same order of operations, so that equal vectors have equal scores. DISTANCE is
    Euclidean.
    """
    for pair in range(owners.shape[0]):
        query = queries[owners[pair]]
        _read_row(half, full, numbers[pair], row)
        product, square, distance = 0.0, 0.0, 0.0
        for j in range(row.shape[0]):
            value = np.float64(row[j])
            product += value * query[j]
            square += value * value
            distance += (value - query[j]) * (value - query[j])
        if metric == COSINE:
            scores[pair] = product / np.sqrt(square) if square > 0 else 0.0
        elif metric == DISTANCE:
            scores[pair] = np.sqrt(distance)
        else:
            scores[pair] = product


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def add_cosine_block(  # type: ignore[no-untyped-def]
    half,  # int16 [n, d], the bits of float16; or [0, d]
    full,  # float32 or float64 [n, d]; or [0, d]
    row,  # float32 or float64 [d]: a buffer, whose dtype is that of the arithmetic
    word_codes,  # int64 [n], the word of each vector, -1 for none; or [0]
    word_sums,  # float64 [w, d]
    word_nonzero,  # float64 [w]
    sentence_codes,  # int64 [n], ascending except for -1; or [0]
    sentence_sizes,  # int64 [s]
    sentence_values,  # float64 [s]
    run,  # int64 [2]: the sentence being read, and how many of its vectors were read
    run_sums,  # [2, d]: the sum of its vectors, and of its unit vectors
    first,  # int64 [2]: the same of a sentence that begins before this part; -1 for none
    first_sums,  # [2, d]
    total,  # [d], without the unit vectors of `run`
):
    """Add vectors to sums of unit vectors by word, by sentence and in all, each read once.

    Returns how many were not zero, or -1 if one is not finite or its square overflows.
    """
    count = half.shape[0] + full.shape[0]
    size = row.shape[0]
    zero, one, found = row.dtype.type(0), row.dtype.type(1), 0
    for i in range(count):
        if half.shape[0]:
            for j in range(size):
                row[j] = float_of_half(half[i, j])
        else:
            for j in range(size):
                row[j] = full[i, j]
        square = zero
        for j in range(size):  # a loop of its own: the order of additions must not depend on memory layout
            square += row[j] * row[j]
        if not square < np.inf:
            return -1
        scale = zero
        if square > 0:
            scale = one / np.sqrt(square)
            found += 1
        if word_codes.shape[0] and word_codes[i] >= 0:
            word = word_codes[i]
            for j in range(size):
                word_sums[word, j] += row[j] * scale
            if square > 0:
                word_nonzero[word] += 1
        if not (sentence_codes.shape[0] and sentence_codes[i] >= 0):
            for j in range(size):
                total[j] += row[j] * scale
            continue
        sentence = sentence_codes[i]
        if sentence != run[0]:
            _close(run, run_sums, sentence_sizes, sentence_values, first, first_sums, total)
            run[0] = sentence
            run[1] = 0
            run_sums[:] = 0
        run[1] += 1
        for j in range(size):
            run_sums[0, j] += row[j]
            run_sums[1, j] += row[j] * scale
    return found


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _close(run, run_sums, sizes, values, first, first_sums, total):  # type: ignore[no-untyped-def]
    """Set the value of the sentence just read, or store it in `first` if it began before this part."""
    if run[0] < 0:
        return
    for j in range(total.shape[0]):
        total[j] += run_sums[1, j]
    if run[1] < sizes[run[0]]:
        first[:] = run
        first_sums[:] = run_sums
        return
    square = np.float64(0)
    dot = np.float64(0)
    for j in range(run_sums.shape[1]):
        square += run_sums[0, j] * run_sums[0, j]
        dot += run_sums[0, j] * run_sums[1, j]
    values[run[0]] = dot / np.sqrt(square) / run[1] if square > 0 else 0
