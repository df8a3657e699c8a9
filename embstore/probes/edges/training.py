"""Training edge probes: all P(l) of a task together, over one pass of the sentences per epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.probes.edges.batches import EdgeBatch, EdgeSplit, iter_batches
from embstore.probes.edges.model import DROPOUT, MIXING, EdgeBank, dropout_factors
from embstore.probes.training import Schedule, Trained, Trainer, fitting, train
from embstore.progress import Progress
from embstore.store import Store

MIXING_RATE = 1e-2  # the learning rate of mixing weights and gamma, which are few and begin far from their ends
BATCHES = 5  # vectors of batches in memory: in use, as stored and as float32, and read ahead
COPIES = 7  # of a probe's weights: its own, its gradient, two of Adam, those of its best epoch with a part, the result
MARGIN = 1.1  # freed memory that is not returned at once


@dataclass(frozen=True, eq=False)
class EdgeStream:
    """Where the batches of edge probes come from: some layers of a store, as a schedule has them."""

    store: Store
    layers: Sequence[int]
    schedule: Schedule

    def batches(self, split: EdgeSplit, order: NDArray[np.int64] | None = None) -> Iterator[EdgeBatch]:
        """Yield the batches of a split, in an order of its sentences or as they are."""
        chosen = np.arange(split.n_sentences) if order is None else order
        size, device = self.schedule.size(split.n_sentences), self.schedule.device
        return iter_batches(self.store, split, chosen, self.layers, batch_size=size, device=device)

    def groups(self, bank: EdgeBank, *splits: EdgeSplit | None) -> list[NDArray[np.int64]]:
        """Return the probes of each seed in as few groups, of about one size, as fit the memory when they are trained.

        Raises InvalidValueError if not even one probe fits.
        """
        shape, size = bank.shape, self.schedule.batch_size
        rows = targets = 0
        for split in filter(None, splits):
            first, last = (
                edge.reduce([edge.reduceat(span[:, at], split.first[:-1]) for span in split.spans])
                for at, edge in enumerate((np.minimum, np.maximum))
            )
            entries = sum(np.add.reduceat(span[:, 1] - span[:, 0], split.first[:-1]) for span in split.spans)
            rows = max(rows, int(np.sort(np.minimum(last - first, entries))[-size:].sum()))
            targets = max(targets, int(np.sort(np.diff(split.first))[-size:].sum()))
        vectors = 4 * BATCHES * rows * shape.layers * shape.width
        weights = COPIES * sum(prod(size) for size in shape.tensor_shapes().values())
        words = 2 * rows * (shape.width + shape.spans)
        spans = 2 * targets * shape.spans * (shape.width + shape.hidden_size)
        of_targets = targets * (4 * shape.spans * shape.hidden_size + 6 * shape.n_read + 5 * shape.labels)
        nbytes = int(4 * MARGIN * (weights + words + spans + of_targets))
        of_seeds = [np.flatnonzero(bank.seeds == seed) for seed in dict.fromkeys(bank.seeds.tolist())]
        what = "one probe, with the vectors of a batch,"
        return fitting(of_seeds, nbytes, self.schedule.memory, what, shared=vectors)


def train_edges(
    bank: EdgeBank, stream: EdgeStream, data: EdgeSplit, dev: EdgeSplit | None, *, progress: Progress = False
) -> Trained:
    """Train all probes of a bank on the mean loss of each; the bank given is not changed.

    The probes of each seed have their own order of the sentences, and are trained after those of the seed before.

    Raises InvalidValueError (memory that one probe does not fit), NonFiniteError, MissingRowsError.
    """
    groups, schedule = stream.groups(bank, data, dev), stream.schedule

    def make(group: int) -> EdgeTrainer:
        return EdgeTrainer(bank.take(groups[group], schedule.device), stream, data, dev)

    return train(groups, make, schedule, progress=progress, unit="sentences", label="edge probes")


class EdgeTrainer(Trainer):
    """Edge probes of one seed in training; probes that have stopped are removed from the batched model."""

    what = "edge probes"

    def __init__(self, bank: EdgeBank, stream: EdgeStream, data: EdgeSplit, dev: EdgeSplit | None) -> None:
        self._stream, self._data, self._dev, self._allowed = stream, data, dev, bank.allowed
        self._schedule, self._seed = stream.schedule, int(bank.seeds[0])
        self.n_probes, self.n_examples = len(bank), self._schedule.n_read(data.n_sentences)
        self._restrict(np.arange(len(bank)), bank)

    def weights(self) -> Mapping[str, torch.Tensor]:
        return self._bank.weights

    def numbers(self) -> NDArray[np.int64]:
        return self._numbers

    def run_epoch(self, epoch: int, running: NDArray[np.bool_]) -> Iterator[int]:
        """Train for one epoch; probes share no weight, so the sum of their losses trains each of them alone."""
        schedule, shape, done = self._schedule, self._bank.shape, 0
        order = schedule.order(epoch, self._data.n_sentences, self._seed)
        for number, batch in enumerate(self._stream.batches(self._data, order)):
            key, rate = (self._seed, epoch, number), DROPOUT[shape.kind]
            mask = dropout_factors(rate, (len(batch), shape.n_read), key=key, device=schedule.device)
            self._adam.zero_grad()
            self._bank.losses(batch, mask=mask).sum().backward()  # type: ignore[no-untyped-call]
            self._adam.step()
            n_sentences = min(schedule.size(self._data.n_sentences), self.n_examples - done)
            done += n_sentences
            yield n_sentences

    @torch.no_grad()
    def dev_losses(self, running: NDArray[np.bool_]) -> NDArray[np.float64]:
        assert self._dev is not None
        sums = torch.zeros(len(self._bank), dtype=torch.float64, device=self._schedule.device)
        for batch in self._stream.batches(self._dev):
            sums += self._bank.losses(batch).double() * len(batch)
        losses = np.full(self.n_probes, np.inf)
        losses[self._numbers] = (sums / len(self._dev)).cpu().numpy()
        return losses

    def end_epoch(self, better: NDArray[np.bool_], running: NDArray[np.bool_]) -> None:
        """Remove the probes that have stopped, and what Adam knows of them."""
        places = np.flatnonzero(running[self._numbers])
        if len(places) == len(self._numbers):
            return
        before, known = self._bank.weights, self._adam.state
        self._restrict(self._numbers[places], self._bank.take(places, self._schedule.device))
        chosen = torch.from_numpy(places).to(self._schedule.device)
        for name, tensor in self._bank.weights.items():
            state = known[before[name]].items()
            self._adam.state[tensor] = {key: each.index_select(0, chosen) if each.ndim else each for key, each in state}

    def describe(self, number: int) -> str:
        layers = np.array(self._stream.layers)[self._allowed[number]].tolist()
        return f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]} to {layers[-1]}"

    def _restrict(self, numbers: NDArray[np.int64], bank: EdgeBank) -> None:
        """Continue with some of the probes, with a new optimizer."""
        self._numbers, self._bank = numbers, bank
        rates = {True: MIXING_RATE, False: self._schedule.learning_rate}
        groups = [
            {
                "params": [own.requires_grad_() for name, own in bank.weights.items() if (name in MIXING) == mixing],
                "lr": rate,
            }
            for mixing, rate in rates.items()
        ]
        self._adam = torch.optim.Adam(groups, fused=True)


@torch.no_grad()
def iter_logits(
    bank: EdgeBank, stream: EdgeStream, split: EdgeSplit
) -> Iterator[tuple[NDArray[np.int64], torch.Tensor]]:
    """Yield (targets, logits [probes, targets, labels]) over a split, on the device of the stream."""
    parts = [bank.take(numbers, stream.schedule.device) for numbers in stream.groups(bank, split)]
    for batch in stream.batches(split):
        yield batch.targets, torch.cat([part.logits(batch) for part in parts])
