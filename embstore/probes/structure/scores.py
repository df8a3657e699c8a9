"""Scores of structural probes (Hewitt & Manning 2019): UUAS, distance and depth Spearman, root accuracy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore.probes.structure.examples import Treebank

METRICS = {"distance": ("uuas", "dspr"), "depth": ("root_accuracy", "nspr")}  # share and correlation of each task
LENGTHS = range(5, 51)  # of the sentences that the correlations are averaged over


class Predicted(NamedTuple):
    """Predictions of several probes for sentences of equal length.

    `sentences` int64 [n], their numbers. `distances` [probe, n, words, words], `depths` [probe, n, words].
    """

    sentences: NDArray[np.int64]
    distances: NDArray[np.float32]
    depths: NDArray[np.float32]


@dataclass(frozen=True)
class Score:
    """One metric of each probe: `values` [probe], None if nothing could be scored; `count`: what was scored."""

    task: str
    metric: str
    values: list[float | None]
    count: int


def score_structure(bank: Treebank, predictions: Iterator[Predicted], *, probes: int) -> list[Score]:
    """Score the predictions for all sentences of a treebank.

    `uuas`: the share of the gold edges between words that are not punctuation that the minimum spanning tree of the
    predicted distances between such words has. `dspr`: the Spearman correlation of predicted and gold distances of
    each word to all words, averaged over the words, over the sentences of a length, then over the lengths 5 to 50.
    `root_accuracy`: how often the word of least predicted depth, punctuation left out, is that of least gold depth.
    `nspr`: the Spearman correlation of depths, averaged as dspr.
    """
    right = {task: np.zeros(probes, np.int64) for task in METRICS}
    whole = dict.fromkeys(METRICS, 0)
    correlations: dict[str, dict[int, list[NDArray[np.float64]]]] = {task: {} for task in METRICS}
    for sentences, distances, depths in predictions:
        numbers = sentences.tolist()
        allowed = np.stack([~bank.trees[number].punctuation for number in numbers])
        length = allowed.shape[1]
        parts = ("distance", distances, bank.distances, attachment), ("depth", depths, bank.depths, root_hits)
        for task, predicted, gold_of, count in parts:
            gold = np.stack([gold_of[number] for number in numbers])
            hits, there = count(predicted, gold, allowed)
            right[task] += hits
            whole[task] += there
            if length in LENGTHS:
                of_words = spearman(predicted, gold[None])
                of_length = correlations[task].setdefault(length, [])
                of_length.extend((of_words.mean(2) if task == "distance" else of_words).T)  # [probe] of each sentence
    scores = []
    for task, (share, correlation) in METRICS.items():
        values: list[float | None] = (right[task] / whole[task]).tolist() if whole[task] else [None] * probes
        lengths = [correlations[task][length] for length in sorted(correlations[task])]
        means = np.mean([np.mean(own, 0) for own in lengths], 0).tolist() if lengths else [None] * probes
        scores.append(Score(task, share, values, whole[task]))
        scores.append(Score(task, correlation, means, sum(map(len, lengths))))
    return scores


def linear_order(bank: Treebank) -> Iterator[Predicted]:
    """Yield the baseline of the word order: |i - j| as distance and i as depth (the first word is the root)."""
    for sentences in equal_lengths(bank, n_pairs=2**20):
        places = np.arange(len(bank.trees[int(sentences[0])]), dtype=np.float32)
        shape = (1, len(sentences), len(places))
        distances = np.broadcast_to(np.abs(places[:, None] - places), (*shape, len(places)))
        yield Predicted(sentences, distances, np.broadcast_to(places, shape))


def equal_lengths(bank: Treebank, *, n_pairs: int) -> Iterator[NDArray[np.int64]]:
    """Yield the sentences in groups of equal length, of at most `n_pairs` pairs of words (or one sentence)."""
    lengths = bank.lengths
    for length in np.unique(lengths).tolist():
        places = np.flatnonzero(lengths == length)
        size = max(1, n_pairs // length**2)
        yield from (places[start : start + size] for start in range(0, len(places), size))


def attachment(
    distances: NDArray[np.float32], gold: NDArray[np.int16], allowed: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], int]:
    """Count the gold edges between allowed words that the spanning trees of each probe have, and all such edges."""
    probes, sentences, words, _ = distances.shape
    flat = distances.reshape(-1, words, words)
    parents = spanning_trees(flat, np.tile(allowed, (probes, 1)))
    tree, word = np.nonzero(parents >= 0)
    hits = gold[tree % sentences, word, parents[tree, word]] == 1
    right = np.bincount(tree[hits] // sentences, minlength=probes)
    both = allowed[:, :, None] & allowed[:, None, :]
    return right.astype(np.int64), int(((gold == 1) & both).sum()) // 2


def spanning_trees(distances: NDArray[np.float32], allowed: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return minimum spanning trees over the allowed words of [tree, words, words], all grown at once (Prim).

    The result is int64 [tree, words]: the word that each was joined to, -1 for the first and for words not allowed.
    """
    count, words, _ = distances.shape
    trees = np.arange(count)
    parents = np.full((count, words), -1, np.int64)
    outside = allowed.copy()
    picked = outside.argmax(1)
    outside[trees, picked] = False
    nearest = distances[trees, picked].astype(np.float32)
    joins = np.tile(picked[:, None], (1, words))
    for _ in range(words - 1):
        picked = np.where(outside, nearest, np.inf).argmin(1)
        growing = outside[trees, picked]
        if not growing.any():
            break
        parents[trees[growing], picked[growing]] = joins[trees[growing], picked[growing]]
        outside[trees, picked] = False
        row = distances[trees, picked]
        closer = growing[:, None] & (row < nearest)
        nearest[closer] = row[closer]
        joins = np.where(closer, picked[:, None], joins)
    return parents


def root_hits(
    depths: NDArray[np.float32], gold: NDArray[np.int16], allowed: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], int]:
    """Count the sentences in which each probe's allowed word of least depth has least gold depth, and all sentences."""
    scorable = allowed.any(1)
    picked = np.where(allowed, depths, np.inf).argmin(2)
    least = np.where(allowed, gold, np.iinfo(np.int16).max).min(1)
    right = gold[np.arange(len(gold)), picked] == least
    return (right & scorable).sum(1).astype(np.int64), int(scorable.sum())


def spearman(one: NDArray[np.generic], other: NDArray[np.generic]) -> NDArray[np.float64]:
    """Return Spearman's correlation along the last axis; ties share a rank, and it is 0 if one side is constant."""
    first, second = (_centred_ranks(np.asarray(side)) for side in (one, other))
    scale = np.sqrt((first**2).sum(-1) * (second**2).sum(-1))
    return np.asarray(np.clip((first * second).sum(-1) / np.where(scale > 0, scale, 1), -1, 1))


def _centred_ranks(values: NDArray[np.generic]) -> NDArray[np.float64]:
    """Return mean ranks along the last axis, less their mean."""
    count = values.shape[-1]
    order = values.argsort(-1, kind="stable")
    ordered = np.take_along_axis(values, order, -1)
    new = np.ones(values.shape, bool)
    new[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    last = np.ones(values.shape, bool)
    last[..., :-1] = new[..., 1:]
    places = np.arange(count)
    first = np.maximum.accumulate(np.where(new, places, 0), -1)
    final = np.minimum.accumulate(np.where(last, places, count)[..., ::-1], -1)[..., ::-1]
    ranks = np.empty(values.shape, np.float64)
    np.put_along_axis(ranks, order, (first + final) / 2, -1)
    ranks -= (count - 1) / 2
    return ranks
