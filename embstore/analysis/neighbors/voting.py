"""Votes of nearest neighbours: those as near as the k-th share its votes, and equal labels share the credit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embstore.analysis.neighbors.exact import Hits
from embstore.analysis.neighbors.space import Block

SPARE = 8  # neighbours beyond k that are fetched to see whether they are as near
MAX_HITS = 2**22  # of a search
TIE = 1e-12


@dataclass(frozen=True, eq=False)
class Predictions:
    """The label predicted for each of q queries (-1: it has no neighbour), the nearest row with that label, its score.

    `credit`: 1 if the prediction is right, a share of 1 if equal labels include the right one, or else 0. `winners`:
    int64 [n, 2], each query with each of its equal labels, ascending.
    """

    predicted: NDArray[np.int64]
    nearest: NDArray[np.int64]
    scores: NDArray[np.float64]
    credit: NDArray[np.float64]
    winners: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Distinct:
    """Candidates with equal vectors in one group, taken as one: `rows` int64 [n], ascending.

    `counts`: int64 [n], how many candidates each one is. Their labels are `codes[indptr[i]:indptr[i + 1]]`, each on
    `n_labelled` of them, of which `first` is the lowest row.
    """

    rows: NDArray[np.int64]
    counts: NDArray[np.int64]
    indptr: NDArray[np.int64]
    codes: NDArray[np.int64]
    n_labelled: NDArray[np.int64]
    first: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        blocks: Iterable[Block],
        rows: NDArray[np.int64],
        codes: NDArray[np.int32],
        groups: NDArray[np.int64],
    ) -> Distinct:
        """Find equal vectors; `codes` and `groups` are those of every row of the store."""
        hashes = [hash(vector.tobytes()) for _, vectors in blocks for vector in vectors]
        keys = np.stack([np.array(hashes, np.int64), groups[rows]])
        _, first, numbers = np.unique(keys, axis=1, return_index=True, return_inverse=True)
        order = np.argsort(first)  # the lowest row of each is ascending
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        numbers = rank[numbers.reshape(-1)]
        n_codes = int(codes.max()) + 1
        pairs, place, n_labelled = np.unique(numbers * n_codes + codes[rows], return_index=True, return_counts=True)
        indptr = np.searchsorted(pairs // n_codes, np.arange(len(order) + 1))
        counts = np.bincount(numbers)
        return cls(rows[first[order]], counts, indptr, pairs % n_codes, n_labelled, rows[place])


def search_with_ties(
    search: Callable[[NDArray[np.int64], int], Hits], queries: NDArray[np.int64], k: int, n_candidates: int
) -> Iterator[tuple[NDArray[np.int64], Hits]]:
    """Yield queries and their k nearest with all that are as near as the k-th, searched for further where needed."""
    n_fetched = min(k + SPARE, n_candidates)
    while len(queries):
        pending = []
        step = max(1, MAX_HITS // n_fetched)
        for start in range(0, len(queries), step):
            part = queries[start : start + step]
            hits = search(part, n_fetched)
            kth, last = hits.scores[:, min(k, n_fetched) - 1], hits.scores[:, -1]
            whole = (np.abs(last - kth) > _tolerance(kth)) | np.isnan(last) | (n_fetched == n_candidates)
            yield part[whole], Hits(hits.rows[whole], hits.scores[whole])
            pending.append(part[~whole])
        queries = np.concatenate(pending)
        n_fetched = min(4 * n_fetched, n_candidates)


def _tolerance(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """How much scores of equal vectors can differ by rounding."""
    return np.asarray(TIE * np.maximum(1, np.abs(scores)))


def vote(
    hits: Hits, distinct: Distinct, k: NDArray[np.int64], true: NDArray[np.int64], *, ascending: bool
) -> Predictions:
    """Predict the labels of queries [q] from their neighbours [q, n], of which `k` [q] vote; `true` [q] is right."""
    n_queries, n_codes = len(hits.rows), int(max(distinct.codes.max(), true.max(initial=0))) + 1
    is_hit, every, k = hits.rows >= 0, np.arange(n_queries), k[:, None]
    own = np.where(is_hit, np.searchsorted(distinct.rows, hits.rows), 0)
    distance = np.where(is_hit, hits.scores if ascending else -hits.scores, np.inf)
    counts = np.where(is_hit, distinct.counts[own], 0)
    kth_place = (np.cumsum(counts, 1) < k).sum(1).clip(max=distance.shape[1] - 1)
    kth = distance[every, np.minimum(kth_place, np.maximum(is_hit.sum(1) - 1, 0))][:, None]
    nearer = distance < kth - _tolerance(kth)
    tied = ~nearer & (distance <= kth + _tolerance(kth)) & is_hit
    n_nearer, n_tied = (counts * nearer).sum(1, keepdims=True), (counts * tied).sum(1, keepdims=True)
    share = np.minimum(k - n_nearer, n_tied) / np.maximum(n_tied, 1)
    weight = np.where(nearer, 1.0, np.where(tied, share, 0.0))
    query, place = np.nonzero(weight > 0)
    width = np.diff(distinct.indptr)[own[query, place]]
    query, place = np.repeat(query, width), np.repeat(place, width)
    offset = np.arange(len(query)) - np.repeat(np.cumsum(width) - width, width)
    label = distinct.indptr[own[query, place]] + offset
    code = distinct.codes[label]
    votes, least = np.zeros((n_queries, n_codes)), np.full((n_queries, n_codes), np.inf)
    np.add.at(votes, (query, code), weight[query, place] * distinct.n_labelled[label])
    np.minimum.at(least, (query, code), distance[query, place])
    best = votes >= votes.max(1, keepdims=True) - 1e-9
    least = np.where(best & (votes > 0), least, np.inf)
    nearest = least.min(1, keepdims=True)
    wins = np.isfinite(least) & (least <= nearest + _tolerance(nearest))
    has_any = wins.any(1)
    predicted = np.where(has_any, wins.argmax(1), -1)
    row = np.full(n_queries, np.iinfo(np.int64).max)
    mine = (code == predicted[query]) & (distance[query, place] <= least[query, predicted[query]] + TIE)
    np.minimum.at(row, query[mine], distinct.first[label[mine]])
    score = np.where(has_any, least[every, predicted] * (1 if ascending else -1), np.nan)
    credit = wins[every, true] / np.maximum(wins.sum(1), 1)
    return Predictions(predicted, np.where(has_any, row, -1), score, credit, np.argwhere(wins))
