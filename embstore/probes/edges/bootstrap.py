"""Bootstrap intervals of edge probes: sentences are drawn again with replacement, as targets of one hang together.

A draw is how often each sentence is in it. Counts by sentence times a matrix of draws are the counts of all draws, so
that F1 of all probes is had from one product.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidValueError
from embstore.probes.edges.scores import EdgeCounts, micro_f1

COVERED = 0.95
BLOCK = 2**22  # numbers of a matrix of draws that are held at a time


def require_resamples(resamples: int) -> None:
    if resamples < 0:
        raise InvalidValueError(f"resamples {resamples} is not allowed: give 0 (no intervals) or more")


def drawn_sentences(sentences: int, resamples: int, *, seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield the sentences of some draws, int64 [draws, sentences], until there have been `resamples`."""
    rng = np.random.default_rng((seed, sentences))
    most = max(1, BLOCK // sentences)
    for start in range(0, resamples, most):
        yield rng.integers(0, sentences, (min(most, resamples - start), sentences))


def drawn_f1(counts: Mapping[str, EdgeCounts], resamples: int, *, seed: int) -> dict[str, NDArray[np.float64]]:
    """Micro F1 of probes by name, float64 [1 + resamples, probes]: of the sentences as they are, then of each draw.

    `counts`: of the same sentences, so that differences between them are differences over the same draws.
    """
    sentences = len(next(iter(counts.values())).wanted)
    parts: dict[str, list[NDArray[np.float64]]] = {name: [] for name in counts}
    for weights in _weights(sentences, resamples, seed):
        for name, each in counts.items():
            right, said = weights @ each.right.T.astype(np.float64), weights @ each.said.T.astype(np.float64)
            parts[name].append(micro_f1(right, said, (weights @ each.wanted.astype(np.float64))[:, None]))
    return {name: np.concatenate(held) for name, held in parts.items()}


def _weights(sentences: int, resamples: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """How often each sentence is in a draw, [draws, sentences]; first each once."""
    yield np.ones((1, sentences))
    for drawn in drawn_sentences(sentences, resamples, seed=seed):
        flat = (drawn + np.arange(len(drawn))[:, None] * sentences).ravel()
        yield np.bincount(flat, minlength=drawn.size).reshape(drawn.shape).astype(np.float64)


def interval(draws: NDArray[np.float64]) -> tuple[float | None, float | None]:
    """The 2.5th and 97.5th percentile of draws; None where more than one in twenty is not defined (NaN), or none is."""
    defined = draws[~np.isnan(draws)]
    if not len(defined) or len(defined) < COVERED * len(draws):
        return None, None
    low, high = np.quantile(defined, [(1 - COVERED) / 2, (1 + COVERED) / 2])
    return float(low), float(high)
