"""Code lengths: how many bits labels take, by a probe, by their frequencies, or by no knowledge at all."""

from __future__ import annotations

from collections.abc import Sequence
from math import log, log2

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from embstore.errors import InvalidValueError
from embstore.probes.edges.batches import EdgeBatch
from embstore.probes.edges.linear import LinearBank
from embstore.probes.edges.model import EdgeBank

FRACTIONS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.1, 6.25, 12.5, 25.0, 50.0, 100.0)


class CodeBank(EdgeBank):
    """Edge probes whose labels are a softmax, of which each target has one: the loss is the nats of its code."""

    def losses(self, batch: EdgeBatch, *, kept: torch.Tensor | None = None) -> torch.Tensor:
        return _cross_entropy(self.logits(batch, kept=kept), batch.gold)


class LinearCodeBank(LinearBank):
    """The same of linear probes."""

    def losses(self, batch: EdgeBatch, *, kept: torch.Tensor | None = None) -> torch.Tensor:
        return _cross_entropy(self.logits(batch, kept=kept), batch.gold)


def _cross_entropy(logits: torch.Tensor, gold: torch.Tensor) -> torch.Tensor:
    """[probes]."""
    return -(logits.log_softmax(2) * gold).sum(2).mean(1)


def coded(logits: torch.Tensor, gold: torch.Tensor, *, single: bool) -> torch.Tensor:
    """Bits that each probe takes for labels, float64 [probes]: -sum log2 p(labels).

    `logits` [probes, targets, labels], `gold` [targets, labels]. `single`: p is a softmax over the labels, of which
    each target has one; else each label of each target is a Bernoulli of its own, whose p is its sigmoid.
    """
    held, wanted = logits.double(), gold.double()
    if single:
        nats = -(held.log_softmax(2) * wanted).sum((1, 2))
    else:
        nats = functional.binary_cross_entropy_with_logits(held, wanted.expand_as(held), reduction="none").sum((1, 2))
    return nats / log(2)


def uniform_bits(targets: int, labels: int, *, single: bool) -> float:
    """Bits with no knowledge: log2 of the labels a target, or one bit a label where targets have any of them."""
    return targets * (log2(labels) if single else labels)


def frequency_bits(seen: NDArray[np.bool_], gold: NDArray[np.bool_], *, single: bool) -> float:
    """Bits for labels by how often those seen before have each, one half added to every count.

    `seen`, `gold`: [targets, labels]. Where targets have any labels, each label is a Bernoulli of its own.
    """
    counts = seen.sum(0) + 0.5
    if single:
        return float(-(gold.sum(0) * np.log2(counts / counts.sum())).sum())
    share = counts / (len(seen) + 1)
    has = gold.sum(0)
    return float(-(has * np.log2(share) + (len(gold) - has) * np.log2(1 - share)).sum())


def block_ends(fractions: Sequence[float], sentences: int) -> NDArray[np.int64]:
    """How many sentences there are up to the end of each block; blocks of no sentence of their own are left out.

    `fractions`: percent, ascending to 100.
    """
    held = np.asarray(fractions, np.float64)
    if held.ndim != 1 or not len(held) or not np.isfinite(held).all() or held[0] <= 0 or (np.diff(held) <= 0).any():
        raise InvalidValueError(
            f"fractions {_shown(fractions)} are not allowed: give percent above 0, ascending to 100"
        )
    if held[-1] != 100:
        raise InvalidValueError(f"fractions {_shown(fractions)} end at {held[-1]:g} percent: let the last be 100")
    ends = np.unique(np.maximum(np.rint(held * sentences / 100), 1).astype(np.int64))
    if len(ends) < 2:
        raise InvalidValueError(
            f"fractions {_shown(fractions)} of {sentences} sentences are one block: give more sentences, or a smaller "
            "first fraction"
        )
    return ends


def _shown(fractions: Sequence[float]) -> str:
    return ",".join(f"{each:g}" for each in fractions)
