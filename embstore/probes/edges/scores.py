"""Scores of edge probes: micro-averaged F1 over the labels of targets, and the best constant answer beside it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from embstore.probes.edges.model import EdgeBank
from embstore.probes.edges.tasks import EdgeSplit
from embstore.probes.edges.training import Stream, iter_logits


@dataclass(frozen=True, eq=False)
class EdgeTally:
    """Labels that each probe has found: `right` and `said` int64 [probes], of `wanted` that were to be found."""

    right: NDArray[np.int64]
    said: NDArray[np.int64]
    wanted: int

    def f1(self) -> NDArray[np.float64]:
        """Micro F1, 2 TP / (2 TP + FP + FN); NaN where there was nothing to find and nothing was said."""
        return micro_f1(self.right, self.said, self.wanted)


def micro_f1(right: ArrayLike, said: ArrayLike, wanted: ArrayLike) -> NDArray[np.float64]:
    whole = np.asarray(np.add(said, wanted), np.float64)
    return np.where(whole > 0, 2 * np.asarray(right) / np.maximum(whole, 1), np.nan)


@dataclass(frozen=True, eq=False)
class EdgeCounts:
    """A tally by sentence: `right` and `said` int64 [probes, sentences], `wanted` int64 [sentences]."""

    right: NDArray[np.int64]
    said: NDArray[np.int64]
    wanted: NDArray[np.int64]

    @property
    def tally(self) -> EdgeTally:
        return EdgeTally(self.right.sum(1), self.said.sum(1), int(self.wanted.sum()))

    @classmethod
    def of(cls, split: EdgeSplit, right: NDArray[np.int64], said: NDArray[np.int64]) -> EdgeCounts:
        """From counts by target, [probes, targets]."""
        return cls(_by_sentence(right, split), _by_sentence(said, split), _by_sentence(_wanted(split), split))


def _by_sentence(counts: NDArray[np.int64], split: EdgeSplit) -> NDArray[np.int64]:
    ends = np.zeros((*counts.shape[:-1], counts.shape[-1] + 1), np.int64)
    np.cumsum(counts, axis=-1, out=ends[..., 1:])
    return np.asarray(ends[..., split.first[1:]] - ends[..., split.first[:-1]])


def likeliest(logits: torch.Tensor) -> torch.Tensor:
    """The answer where every target has one label: the likeliest; bool, of the shape of the logits."""
    return torch.zeros_like(logits, dtype=torch.bool).scatter_(2, logits.argmax(2, keepdim=True), value=True)


def at_least_half(logits: torch.Tensor) -> torch.Tensor:
    """The answer where targets have any labels: those of a probability of one half or more."""
    return logits >= 0


def score_edges(bank: EdgeBank, stream: Stream, split: EdgeSplit) -> dict[str, EdgeCounts]:
    """Counts of all probes by sentence, in one pass, by rule: `likeliest` and `half`.

    Labels that train does not have are among those wanted, and are never found.
    """
    rules = {"likeliest": likeliest, "half": at_least_half}
    right = {name: np.zeros((len(bank), len(split)), np.int64) for name in rules}
    said = {name: np.zeros((len(bank), len(split)), np.int64) for name in rules}
    for targets, logits in iter_logits(bank, stream, split):
        gold = torch.from_numpy(split.gold[targets]).to(logits.device)
        for name, rule in rules.items():
            answer = rule(logits)
            right[name][:, targets] = (answer & gold).sum(2).cpu().numpy()
            said[name][:, targets] = answer.sum(2).cpu().numpy()
    return {name: EdgeCounts.of(split, right[name], said[name]) for name in rules}


def wanted_labels(split: EdgeSplit) -> int:
    return int(_wanted(split).sum())


def _wanted(split: EdgeSplit) -> NDArray[np.int64]:
    return np.asarray(split.gold.sum(1) + split.unknown)


def majority(train: EdgeSplit, *, single: bool) -> NDArray[np.bool_]:
    """The constant answer that knows how frequent labels are in train; bool [labels].

    The most frequent label where every target has one; else the k most frequent, of that k whose micro F1 on train
    is best (the fewest of equals).
    """
    counts = train.gold.sum(0)
    order = np.argsort(-counts, kind="stable")
    most = np.arange(1, len(counts) + 1)
    f1 = 2 * np.cumsum(counts[order]) / (most * len(train) + wanted_labels(train))
    chosen = np.zeros(len(counts), bool)
    chosen[order[: 1 if single else 1 + int(f1.argmax())]] = True
    return chosen


def constant_counts(answer: NDArray[np.bool_], split: EdgeSplit) -> EdgeCounts:
    """What the same answer to every target of a split finds, as one probe."""
    right = split.gold[:, answer].sum(1)
    return EdgeCounts.of(split, right[None], np.full((1, len(split)), answer.sum()))
