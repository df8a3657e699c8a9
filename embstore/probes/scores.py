"""Scores of probes: micro F1 over word-class decisions by the rule of Zhao et al. 2020, and what goes with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import NonFiniteError
from embstore.probes.classes.bank import ProbeBank
from embstore.probes.classes.tasks import Part
from embstore.probes.training import VERIFY

BINS = (1, 2, 5, 10, 30, 100, 300, 1000)  # least frequencies of the bins of words


@dataclass(frozen=True, eq=False)
class Decisions:
    """How often each probe said yes to each group of examples, int32 `positives` [pairs, layer, seed, class].

    `contexts` int64 [pairs]: how many examples a group has. `gold` bool [pairs, class]. `word` int64 [pairs].
    """

    positives: NDArray[np.int32]
    contexts: NDArray[np.int64]
    gold: NDArray[np.bool_]
    word: NDArray[np.int64]

    def by_word(self, gold: NDArray[np.bool_]) -> Decisions:
        """The same with all groups of a word as one, whose `gold` is [words, class]."""
        count = len(gold)
        positives = np.zeros((count, *self.positives.shape[1:]), np.int32)
        np.add.at(positives, self.word, self.positives)
        contexts = np.bincount(self.word, weights=self.contexts, minlength=count).astype(np.int64)
        return Decisions(positives, contexts, gold, np.arange(count))

    def of_classes(self, classes: slice) -> Decisions:
        return Decisions(self.positives[..., classes], self.contexts, self.gold, self.word)


@dataclass(frozen=True)
class Tally:
    """True positives, false positives and false negatives."""

    right: int
    wrong: int
    missed: int

    @property
    def f1(self) -> float | None:
        """None where there was nothing to find and nothing was found."""
        whole = 2 * self.right + self.wrong + self.missed
        return 2 * self.right / whole if whole else None

    @property
    def precision(self) -> float | None:
        found = self.right + self.wrong
        return self.right / found if found else None

    @property
    def recall(self) -> float | None:
        there = self.right + self.missed
        return self.right / there if there else None

    @classmethod
    def of(cls, right: NDArray[np.bool_], wrong: NDArray[np.bool_], missed: NDArray[np.bool_]) -> Tally:
        return cls(int(right.sum()), int(wrong.sum()), int(missed.sum()))


def decided(bank: ProbeBank, part: Part, *, batch_size: int = 2048) -> NDArray[np.int32]:
    """How often each probe says yes to the examples of each group, int32 [pairs, layer, seed, output]."""
    shape = bank.shape
    device = next(iter(bank.weights.values())).device
    probes = len(shape.layers) * shape.probes
    counts = torch.zeros(len(part.word), probes, dtype=torch.int32, device=device)
    with torch.no_grad():
        for places, logits in bank.iter_logits(part.examples, batch_size=batch_size):
            if not bool(torch.isfinite(logits.sum())):
                wrong = int(torch.nonzero(~torch.isfinite(logits.flatten(1).sum(1)))[0])
                raise NonFiniteError(
                    f"examples of layer {shape.layers[wrong]} hold values that are not finite: {VERIFY}"
                )
            said = (logits > 0).view(probes, -1).t().to(torch.int32)
            counts.index_add_(0, torch.from_numpy(part.pair[places]).to(device), said)
    return counts.view(-1, len(shape.layers), len(shape.seeds), len(shape.outputs)).cpu().numpy()


def verdicts(
    positives: NDArray[np.int32], contexts: NDArray[np.int64], gold: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """Which decisions [pairs, class] are true positives, false positives and false negatives.

    A decision is right where at least half of the contexts are: those that its own probe says yes to, or those
    that the probe of another class says no to.
    """
    own = 2 * positives >= contexts[:, None]
    other = 2 * positives > contexts[:, None]
    return gold & own, ~gold & other, gold & ~own


def scored(
    decisions: Decisions, layer: int, seed: int, frequency: NDArray[np.int64], classes: tuple[str, ...]
) -> Iterator[tuple[str, str, float | None, int]]:
    """Yield (metric, item, value, count) of one layer and seed, given as places; `frequency` int64 [words].

    `count`: the word-class pairs that there were to find; of contexts_f1, the contexts of these.
    """
    positives, contexts, gold = decisions.positives[:, layer, seed], decisions.contexts, decisions.gold
    verdict = verdicts(positives, contexts, gold)
    right, wrong, missed = verdict
    whole = Tally.of(*verdict)
    there = whole.right + whole.missed
    yield "f1", "", whole.f1, there
    yield "precision", "", whole.precision, there
    yield "recall", "", whole.recall, there
    said = positives.astype(np.int64)
    found = int(said[gold].sum())
    wanted = int((gold.sum(1) * contexts).sum())
    yield "contexts_f1", "", Tally(found, int(said.sum()) - found, wanted - found).f1, wanted
    for number, name in enumerate(classes):
        tally = Tally.of(right[:, number], wrong[:, number], missed[:, number])
        yield "class_f1", name, tally.f1, tally.right + tally.missed
    bins = np.searchsorted(BINS, frequency[decisions.word], side="right") - 1
    for number in np.unique(bins).tolist():
        mine = bins == number
        tally = Tally.of(right[mine], wrong[mine], missed[mine])
        yield "frequency_f1", bin_name(number), tally.f1, tally.right + tally.missed


def bin_name(number: int) -> str:
    """The frequencies of a bin, such as 5-9."""
    first = BINS[number]
    if number + 1 == len(BINS):
        return f"{first}-"
    return str(first) if BINS[number + 1] == first + 1 else f"{first}-{BINS[number + 1] - 1}"
