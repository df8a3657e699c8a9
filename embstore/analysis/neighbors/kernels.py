"""The loops of exact search, compiled by Numba: rows read as float32, products with few queries, running best ones."""

from __future__ import annotations

import numpy as np
from numba import njit

from embstore.analysis.neighbors.halves import float_of_half

_LEAST = np.float32(1e-30)  # a sum of squares below which some may be lost
_CANCELLED = np.float32(64)  # a vector so many times shorter than what was taken from it is left to float64
_CHUNK = 16
COSINE, PRODUCT, DISTANCE = 0, 1, 2
FINE, UNSURE, BAD = 0, 1, 2


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _square(row):  # type: ignore[no-untyped-def]
    total = np.float32(0)
    for at in range(row.shape[0]):
        total += row[at] * row[at]
    return total


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _largest(row):  # type: ignore[no-untyped-def]
    """The largest magnitude, infinite where one is not finite."""
    largest = np.float32(0)
    for at in range(row.shape[0]):
        if not abs(row[at]) < np.inf:
            return np.float32(np.inf)
        largest = max(largest, abs(row[at]))
    return largest


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _read_row(half, full, place, row):  # type: ignore[no-untyped-def]
    """Read a row of float16 bits or float32 as float32 into `row`; return its square."""
    size = row.shape[0]
    square = np.float32(0)
    if half.shape[0]:
        for at in range(size):
            value = float_of_half(half[place, at])
            row[at] = value
            square += value * value
    else:
        for at in range(size):
            value = full[place, at]
            row[at] = value
            square += value * value
    return square


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _place_row(half, full, place, metric, mean, mean_length, components, row, bias):  # type: ignore[no-untyped-def]
    """Put a vector less mean and components into `row`, at length one for COSINE; half its square is the bias of
    DISTANCE: product less bias orders as the distance does. Returns FINE, UNSURE or BAD (not finite, too long), and
    the vector's square."""
    size = row.shape[0]
    bias[place] = 0
    square = _read_row(half, full, place, row)
    if half.shape[0] and not square < np.inf:
        return BAD, np.float32(0)
    if mean.shape[0]:
        for at in range(size):
            row[at] -= mean[at]
        square = _square(row)
    taken = np.sqrt(square) + 2 * mean_length
    for component in range(components.shape[0]):
        along = 0.0
        for at in range(size):
            along += np.float64(row[at]) * components[component, at]
        for at in range(size):
            row[at] -= np.float32(along * components[component, at])
    if components.shape[0]:
        square = _square(row)
    if metric != COSINE:
        if not square < np.inf:
            return BAD, square
        bias[place] = square / 2 if metric == DISTANCE else np.float32(0)
        return FINE, square
    if not (_LEAST < square < np.inf):
        largest = _largest(row)
        if mean.shape[0] or not largest < np.inf:
            return UNSURE if largest < np.inf else BAD, square
        if largest == 0:
            return FINE, square
        for at in range(size):
            row[at] /= largest
        square = _square(row)
    elif mean.shape[0] and taken > _CANCELLED * np.sqrt(square):
        return UNSURE, square
    scale = np.float32(1) / np.sqrt(square)
    for at in range(size):
        row[at] *= scale
    return FINE, square


@njit(cache=True, nogil=True)
def place_block(half, full, metric, mean, mean_length, components, placed, bias, state):  # type: ignore[no-untyped-def]
    """Place every row of a block (float16 bits or float32, the other empty) in `placed` float32 [n, d].

    `state`: uint8 [n], FINE, UNSURE or BAD. Returns the largest square.
    """
    longest = np.float32(0)
    for place in range(half.shape[0] + full.shape[0]):
        state[place], square = _place_row(half, full, place, metric, mean, mean_length, components, placed[place], bias)
        longest = max(longest, square)
    return longest


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _multiply_halves(half, queries, scores):  # type: ignore[no-untyped-def]
    """Multiply one vector, the bits of float16, with a few queries as it is read; return its square."""
    square = np.float32(0)
    for query in range(queries.shape[0]):
        own = queries[query]
        score, square = np.float32(0), np.float32(0)
        for at in range(half.shape[0]):
            value = float_of_half(half[at])
            score += value * own[at]
            square += value * value
        scores[query] = score
    return square


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def multiply_block(half, full, metric, mean, mean_length, components, row, bias, state, queries, scores):  # type: ignore[no-untyped-def]
    """As place_block, a row at a time, each multiplied with a few queries at once: scores float32 [n, q]."""
    longest = np.float32(0)
    as_stored = half.shape[0] > 0 and not mean.shape[0] and not components.shape[0]
    for place in range(half.shape[0] + full.shape[0]):
        if as_stored:
            square = _multiply_halves(half[place], queries, scores[place])
            if _LEAST < square < np.inf:
                state[place], longest = FINE, max(longest, square)
                bias[place] = square / 2 if metric == DISTANCE else np.float32(0)
                scale = np.float32(1) / np.sqrt(square) if metric == COSINE else np.float32(1)
                for query in range(queries.shape[0]):
                    scores[place, query] *= scale
                continue
        state[place], square = _place_row(half, full, place, metric, mean, mean_length, components, row, bias)
        longest = max(longest, square)
        for query in range(queries.shape[0]):
            score = np.float32(0)
            for at in range(row.shape[0]):
                score += row[at] * queries[query, at]
            scores[place, query] = score
    return longest


@njit(cache=True, nogil=True, fastmath={"nnan", "reassoc", "contract", "nsz"})
def keep_best(scores, bias, state, rows, row_groups, query_groups, kept, best_scores, best_rows, filled, least):  # type: ignore[no-untyped-def]
    """Add to each query's candidates what may be among its `kept` best by `scores` [n, q] less `bias` [n].

    `best_scores`, `best_rows` [q, room] hold `filled` [q] of them; once full, the `kept` best stay and `least` [q] is
    the least of them. `row_groups` int64 [g, n] and `query_groups` int64 [g, q]: a row of its query's group is out.
    """
    count = scores.shape[1]
    for place in range(scores.shape[0]):
        if state[place] != FINE:
            continue
        own, off = scores[place], bias[place]
        if not _above(own, least, off):
            continue
        for start in range(0, count, _CHUNK):
            stop = min(start + _CHUNK, count)
            if not _above(own[start:stop], least[start:stop], off):
                continue
            for query in range(start, stop):
                score = own[query] - off
                if not score > least[query] or _left_out(row_groups, query_groups, query, place):
                    continue
                best_scores[query, filled[query]] = score
                best_rows[query, filled[query]] = rows[place]
                filled[query] += 1
                if filled[query] == best_scores.shape[1]:
                    least[query] = _select(best_scores[query], best_rows[query], kept)
                    filled[query] = kept


@njit(cache=True, nogil=True, fastmath={"nnan", "reassoc", "contract", "nsz"})
def _above(scores, least, bias):  # type: ignore[no-untyped-def]
    """How many scores less bias are above the least: counted, since a largest one is found seven times slower."""
    found = np.int32(0)
    for query in range(scores.shape[0]):
        found += np.int32(scores[query] - least[query] > bias)
    return found


@njit(cache=True, nogil=True)
def _left_out(row_groups, query_groups, query, place):  # type: ignore[no-untyped-def]
    for group in range(row_groups.shape[0]):
        if query_groups[group, query] >= 0 and row_groups[group, place] == query_groups[group, query]:
            return True
    return False


@njit(cache=True, nogil=True)
def _select(scores, rows, kept):  # type: ignore[no-untyped-def]
    """Move the `kept` largest scores and their rows to the front; return the least of them."""
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
        if kept - 1 <= right:
            last = right
        elif kept - 1 >= left:
            first = left
        else:
            break
    return scores[:kept].min()


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def score_pairs(half, full, metric, queries, owners, places, row, scores):  # type: ignore[no-untyped-def]
    """The scores of pairs in float64: query `owners[i]` (at length one for COSINE) and vector `places[i]` of a block.

    Every pair goes the same way, so that equal vectors have equal scores; DISTANCE is Euclidean.
    """
    for pair in range(owners.shape[0]):
        query = queries[owners[pair]]
        _read_row(half, full, places[pair], row)
        product, square, distance = 0.0, 0.0, 0.0
        for at in range(row.shape[0]):
            value = np.float64(row[at])
            product += value * query[at]
            square += value * value
            distance += (value - query[at]) * (value - query[at])
        if metric == COSINE:
            scores[pair] = product / np.sqrt(square) if square > 0 else 0.0
        elif metric == DISTANCE:
            scores[pair] = np.sqrt(distance)
        else:
            scores[pair] = product
