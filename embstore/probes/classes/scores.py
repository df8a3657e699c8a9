"""Scores of class probes: micro F1 over word-class decisions by the rule of Zhao et al. 2020, and related metrics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import NonFiniteError
from embstore.probes.classes.bank import ProbeBank, blocks_of, logits_of
from embstore.probes.classes.examples import Examples, SplitExamples, iter_batches
from embstore.probes.training import VERIFY


@dataclass(frozen=True, eq=False)
class Decisions:
    """How often each probe said yes to each group of examples, int32 `positives` [groups, layer, seed, class].

    `contexts` int64 [groups]: the number of examples of a group. `gold` bool [groups, class]. `word` int64 [groups].
    """

    positives: NDArray[np.int32]
    contexts: NDArray[np.int64]
    gold: NDArray[np.bool_]
    word: NDArray[np.int64]

    def of_classes(self, classes: slice, gold: NDArray[np.bool_] | None = None) -> Decisions:
        """Return the decisions of some probes; `gold` bool [words, class]: those that the words have, all groups alike.

        So the decisions of a control task are over the same groups as those of the task.
        """
        own = self.gold if gold is None else gold[self.word]
        return Decisions(self.positives[..., classes], self.contexts, own, self.word)


def decide(bank: ProbeBank, split: SplitExamples, *, batch_size: int = 2048) -> Decisions:
    """Return the decisions of all probes of a bank on the examples of a split, as counts of yes by group."""
    shape = bank.shape
    n_probes = len(shape.layers) * shape.n_probes
    counts = torch.zeros(len(split.word), n_probes, dtype=torch.int32, device=next(iter(bank.weights.values())).device)
    for numbers, logits in iter_logits(bank, split.examples, batch_size=batch_size):
        yes = (logits > 0).view(n_probes, -1).t().to(torch.int32)
        counts.index_add_(0, torch.from_numpy(split.group[numbers]).to(counts.device), yes)
    positives = counts.view(-1, *shape.sizes).cpu().numpy()
    return Decisions(positives, split.contexts, split.gold, split.word)


def iter_logits(
    bank: ProbeBank, examples: Examples, *, batch_size: int = 2048
) -> Iterator[tuple[NDArray[np.int64], torch.Tensor]]:
    """Yield the numbers of some examples and the logits of all probes, [layer, probe, n]; raises NonFiniteError."""
    layers, device = bank.shape.layers, next(iter(bank.weights.values())).device
    with torch.no_grad():
        blocks, order = blocks_of(bank.weights, batch_size=batch_size), np.arange(len(examples))
        for numbers, columns in iter_batches(examples, order, layers, batch_size=batch_size, device=device):
            logits = logits_of(blocks, columns, bank.shape.n_probes)
            if not bool(torch.isfinite(logits.sum())):
                wrong = int(torch.nonzero(~torch.isfinite(logits.flatten(1).sum(1)))[0])
                raise NonFiniteError(f"examples of layer {layers[wrong]} contain NaN or infinity: {VERIFY}")
            yield numbers, logits


def verdicts(
    positives: NDArray[np.int32], contexts: NDArray[np.int64], gold: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which decisions [groups, class] are true positives, false positives and false negatives.

    A decision is right if at least half of the contexts are: those that the probe of the own class says yes to, or
    those that the probe of another class says no to.
    """
    own = 2 * positives >= contexts[:, None]
    other = 2 * positives > contexts[:, None]
    return gold & own, ~gold & other, gold & ~own


def scored(decisions: Decisions, layer: int, seed: int, classes: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield rows (metric, item, value, count) of one layer and seed, given as places.

    `count`: the word-class pairs to find; of contexts_f1, their contexts.
    """
    positives, contexts, gold = decisions.positives[:, layer, seed], decisions.contexts, decisions.gold
    verdict = verdicts(positives, contexts, gold)
    right, wrong, missed = (int(each.sum()) for each in verdict)

    def row(metric: str, value: float | None, count: int, item: str = "") -> dict[str, Any]:
        return {"metric": metric, "item": item, "value": value, "count": count}

    yield row("f1", _f1(right, wrong, missed), right + missed)
    yield row("precision", right / (right + wrong) if right + wrong else None, right + missed)
    yield row("recall", right / (right + missed) if right + missed else None, right + missed)
    yes = positives.astype(np.int64)
    found = int(yes[gold].sum())
    wanted = int((gold.sum(1) * contexts).sum())
    yield row("contexts_f1", _f1(found, int(yes.sum()) - found, wanted - found), wanted)
    for number, name in enumerate(classes):
        right, wrong, missed = (int(each[:, number].sum()) for each in verdict)
        yield row("class_f1", _f1(right, wrong, missed), right + missed, name)


def _f1(right: int, wrong: int, missed: int) -> float | None:
    """Return F1, None if there was nothing to find and nothing was found."""
    whole = 2 * right + wrong + missed
    return 2 * right / whole if whole else None
