"""Stores that are hard to search, and what must be found in them, worked out in plain float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.analysis.word_store import Written, write_words

LAYER = 2


def hard_store(
    path: Path, *, words: int = 24, each: int = 30, hidden_size: int = 12, dtype: str = "float16"
) -> Written:
    """Words around a common direction, of lengths that differ, with equal vectors, doubled ones, and zeros."""
    rng = np.random.default_rng(3)
    common = 5 * rng.normal(size=(1, hidden_size))
    centres = common + 2 * rng.normal(size=(words, 1, hidden_size))
    vectors = [
        (f"w{number}", centre + rng.normal(size=(each, hidden_size)) * rng.uniform(0.1, 1))
        for number, centre in enumerate(centres)
    ]
    same = common + rng.normal(size=(1, hidden_size))
    vectors += [("same", np.repeat(same, 45, 0)), ("doubled", np.repeat(2 * same, 20, 0))]
    vectors += [("zero", np.zeros((9, hidden_size))), ("long", 40 * rng.normal(size=(15, hidden_size)))]
    return write_words(path, vectors, dtype=dtype)


def scores_by_hand(queries: np.ndarray, values: np.ndarray, metric: str) -> np.ndarray:
    """The score of every query with every row, [q, n]."""
    queries, values = queries.astype(np.float64), values.astype(np.float64)
    if metric == "l2":
        return np.array([np.sqrt(((values - query) ** 2).sum(1)) for query in queries])
    scores = np.array([(values * query).sum(1) for query in queries])
    if metric == "cosine":
        lengths = np.sqrt((values**2).sum(1)), np.sqrt((queries**2).sum(1))[:, None]
        with np.errstate(invalid="ignore", divide="ignore"):
            scores = np.where(lengths[0] * lengths[1] > 0, scores / lengths[0] / lengths[1], 0)
    return scores


def require_nearest(
    rows: np.ndarray, scores: np.ndarray, by_hand: np.ndarray, *, metric: str, allowed: np.ndarray | None = None
) -> None:
    """The rows are the nearest of those allowed (bool [q, n]), with their scores; equals by row, but for rounding."""
    sign = 1 if metric == "l2" else -1
    allowed = np.ones(by_hand.shape, bool) if allowed is None else allowed
    scale = max(1.0, float(np.abs(by_hand).max()))
    for query in range(len(rows)):
        known = np.flatnonzero(allowed[query])
        key = sign * by_hand[query][known]
        count = min(len(known), rows.shape[1])
        found = rows[query, :count]
        assert (rows[query, count:] == -1).all()
        assert np.isnan(scores[query, count:]).all()
        assert len(set(found.tolist())) == count
        assert allowed[query][found].all()
        np.testing.assert_allclose(scores[query, :count], by_hand[query][found], atol=1e-10 * scale, rtol=0)
        np.testing.assert_allclose(sign * scores[query, :count], np.sort(key)[:count], atol=1e-10 * scale, rtol=0)
        equal = np.diff(scores[query, :count]) == 0
        assert (np.diff(found)[equal] > 0).all(), "equal scores are ordered by row"
