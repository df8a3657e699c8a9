"""Loops that plan a batch of edge probes: what stands for some sentences of a split, one after the other."""

from __future__ import annotations

from numba import njit


@njit(cache=True, nogil=True)
def count_all(sentences, first):  # type: ignore[no-untyped-def]
    """How many of those that begin at `first` [sentences + 1] some sentences have."""
    whole = 0
    for sentence in sentences:
        whole += first[sentence + 1] - first[sentence]
    return whole


@njit(cache=True, nogil=True)
def put_rows(sentences, first_target, first_row, rows, targets_out, rows_out):  # type: ignore[no-untyped-def]
    """Set the targets and the rows of some sentences."""
    target = row = 0
    for sentence in sentences:
        for number in range(first_target[sentence], first_target[sentence + 1]):
            targets_out[target] = number
            target += 1
        for place in range(first_row[sentence], first_row[sentence + 1]):
            rows_out[row] = rows[place]
            row += 1


@njit(cache=True, nogil=True)
def count_entries(sentences, first, begin):  # type: ignore[no-untyped-def]
    """How many rows the spans of some sentences have together."""
    whole = 0
    for sentence in sentences:
        whole += begin[first[sentence + 1]] - begin[first[sentence]]
    return whole


@njit(cache=True, nogil=True)
def put_spans(  # type: ignore[no-untyped-def]
    sentences, first_target, first_row, first, places, begin, of, places_out, begin_out, of_out
):
    """Set the spans of some sentences, of a kind: places count from the first row of all, spans from the first."""
    entry = span = target = row = 0
    for sentence in sentences:
        before = span
        for number in range(first[sentence], first[sentence + 1]):
            begin_out[span] = entry
            span += 1
            for place in range(begin[number], begin[number + 1]):
                places_out[entry] = places[place] + row
                entry += 1
        for number in range(first_target[sentence], first_target[sentence + 1]):
            of_out[target] = of[number] + before
            target += 1
        row += first_row[sentence + 1] - first_row[sentence]
    begin_out[span] = entry
