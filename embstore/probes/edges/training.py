"""Training edge probes: all P(l) of a task together, over one pass of the sentences per epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import InvalidValueError
from embstore.probes.edges.batches import GROUP_NBYTES, EdgeBatch, EdgeSplit, LargestBatch, iter_batches
from embstore.probes.edges.model import MIXING, EdgeBank, EdgeShape, dropout_factors
from embstore.probes.edges.tasks import EdgeTask
from embstore.probes.training import READ_AHEAD, Schedule, Trained, Trainer, train
from embstore.progress import Progress
from embstore.store import Store
from embstore.store.vectors import VALUE_DTYPE

B = TypeVar("B", bound=EdgeBank)
FLOAT = 4
STORED = 2  # copies of the weights of every probe: the initial ones and the result
TRAINED = 5  # copies for a probe in training: its own, its gradient, two of Adam, those of its best epoch
MARGIN = 1.1  # freed memory that is not returned at once


@dataclass(frozen=True)
class EdgeSchedule(Schedule):
    """How edge probes are trained; also the learning rate of mixing weights and gamma, and the rate of dropout."""

    mixing_rate: float = 1e-2
    dropout: float = 0.2


@dataclass(frozen=True, eq=False)
class EdgeStream:
    """Where the batches of edge probes come from: some layers of a store, as a schedule has them."""

    store: Store
    layers: Sequence[int]
    schedule: EdgeSchedule

    def batches(self, split: EdgeSplit, order: NDArray[np.int64] | None = None) -> Iterator[EdgeBatch]:
        """Yield the batches of a split, in an order of its sentences or as they are."""
        chosen = np.arange(split.n_sentences) if order is None else order
        size, device = self.schedule.size(split.n_sentences), self.schedule.device
        return iter_batches(self.store, split, chosen, self.layers, batch_size=size, device=device)

    def untrained(
        self, kind: type[B], shape: EdgeShape, allowed: NDArray[np.bool_], seeds: NDArray[np.int64], task: EdgeTask
    ) -> B:
        """Return untrained probes of a task, one for each seed; see `EdgeBank`.

        Raises InvalidValueError for probes that do not fit the memory, before any is made.
        """
        self.training_groups(shape, seeds, task.train, task.dev)
        return kind.initial(shape, allowed, seeds)

    def training_groups(
        self, shape: EdgeShape, seeds: NDArray[np.int64], *splits: EdgeSplit | None
    ) -> list[NDArray[np.int64]]:
        """Return the probes of each seed in as few groups, of about one size, as fit the memory when they are trained.

        `seeds` int64 [probes]. Raises InvalidValueError if not even one probe fits.
        """
        fixed, activations = self._nbytes(shape, len(seeds), splits)
        each = activations + int(MARGIN * FLOAT * TRAINED * _n_parameters(shape))
        most = (self.schedule.memory - fixed) // each
        if most < 1:
            raise InvalidValueError(
                f"memory {_shown(self.schedule.memory)} is not enough: one probe takes {_shown(fixed + each)} with the "
                "vectors of a batch; give more, a smaller batch_size or fewer layers"
            )
        of_seeds = [np.flatnonzero(seeds == seed) for seed in dict.fromkeys(seeds.tolist())]
        return [group for own in of_seeds for group in np.array_split(own, -(-len(own) // most))]

    def prediction_groups(self, shape: EdgeShape, n_probes: int, split: EdgeSplit) -> list[NDArray[np.int64]]:
        """Return the probes in groups that predict at the same time, of one probe each if memory is short."""
        fixed, activations = self._nbytes(shape, n_probes, (split,))
        most = max(1, (self.schedule.memory - fixed) // activations)
        return np.array_split(np.arange(n_probes), -(-n_probes // most))

    def _nbytes(self, shape: EdgeShape, n_probes: int, splits: Sequence[EdgeSplit | None]) -> tuple[int, int]:
        """Return the bytes of vectors and weights of all probes, and of one probe's activations and gradients."""
        sizes = [split.plan.largest(self.schedule.batch_size) for split in splits if split]
        largest = LargestBatch(*map(max, *sizes, sizes[0]))
        row = shape.layers * shape.width
        itemsize = VALUE_DTYPE[self.store.dtype].itemsize
        buffer = max(largest.rows * row * itemsize, min(largest.all_rows * row * itemsize, GROUP_NBYTES))
        fixed = buffer * (READ_AHEAD + 1) + FLOAT * (largest.rows * row + STORED * n_probes * _n_parameters(shape))
        words = 2 * largest.rows * (shape.width + shape.spans) + largest.entries
        spans = 2 * largest.spans * (shape.width + shape.projection)
        targets = largest.targets * (4 * shape.spans * shape.projection + 6 * shape.n_read + 5 * shape.labels)
        fused = 2 * shape.spans * shape.hidden_size * shape.width
        return fixed, int(MARGIN * FLOAT * (words + spans + targets + fused))


def _n_parameters(shape: EdgeShape) -> int:
    return sum(prod(size) for size in shape.tensor_shapes().values())


def _shown(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.1f} MB" if nbytes >= 1e6 else f"{nbytes / 1e3:,.1f} kB"


def train_edges(
    bank: EdgeBank,
    stream: EdgeStream,
    data: EdgeSplit,
    dev: EdgeSplit | None,
    *,
    progress: Progress = False,
) -> Trained:
    """Train all probes of a bank on the mean binary cross-entropy of each; the bank given is not changed.

    The probes of each seed have their own order of the sentences, and are trained after those of the seed before.

    Raises InvalidValueError (memory that one probe does not fit), NonFiniteError, MissingRowsError.
    """
    groups = stream.training_groups(bank.shape, bank.seeds, data, dev)
    return train(
        groups,
        lambda group: EdgeTrainer(bank.take(groups[group]).to(stream.schedule.device), stream, data, dev),
        stream.schedule,
        progress=progress,
        unit="sentences",
        label="edge probes",
    )


class EdgeTrainer(Trainer):
    """Edge probes of one seed in training; probes that have stopped are removed from the batched model."""

    what = "edge probes"

    def __init__(self, bank: EdgeBank, stream: EdgeStream, data: EdgeSplit, dev: EdgeSplit | None) -> None:
        self._bank, self._stream, self._data, self._dev = bank, stream, data, dev
        self._schedule = stream.schedule
        self._seed = int(bank.seeds[0])
        self._initial = replace(bank, weights={})
        self.n_probes, self.n_examples = len(bank), self._schedule.n_read(data.n_sentences)
        self._restrict(np.arange(len(bank)), bank.weights)

    def weights(self) -> Mapping[str, torch.Tensor]:
        return self._bank.weights

    def numbers(self) -> NDArray[np.int64]:
        return self._numbers

    def run_epoch(self, epoch: int, running: NDArray[np.bool_]) -> Iterator[int]:
        """Train for one epoch; probes share no weight, so the sum of their losses trains each of them alone."""
        schedule, done = self._schedule, 0
        order = schedule.order(epoch, self._data.n_sentences, self._seed)
        for number, batch in enumerate(self._stream.batches(self._data, order)):
            size = len(batch), self._bank.shape.n_read
            mask = dropout_factors(schedule.dropout, size, key=(self._seed, epoch, number), device=schedule.device)
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
        """Remove the probes that have stopped, and what Adam knows of them; one tensor after the other."""
        places = np.flatnonzero(running[self._numbers])
        if len(places) == len(self._numbers):
            return
        before, known = self._bank.weights, self._adam.state
        chosen = torch.from_numpy(places).to(before["mix"].device)
        states, weights = {}, {}
        for name in list(before):
            tensor = before.pop(name)
            states[name] = {
                key: value.index_select(0, chosen) if value.ndim else value
                for key, value in known.pop(tensor, {}).items()
            }
            weights[name] = tensor.detach().index_select(0, chosen)
        self._restrict(self._numbers[places], weights)
        for name, state in states.items():
            if state:
                self._adam.state[weights[name]] = state

    def describe(self, number: int) -> str:
        layers = np.array(self._stream.layers)[self._initial.allowed[number]].tolist()
        return f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]} to {layers[-1]}"

    def _restrict(self, numbers: NDArray[np.int64], weights: dict[str, torch.Tensor]) -> None:
        """Continue with some of the probes, with a new optimizer."""
        initial = self._initial
        self._numbers = numbers
        self._bank = replace(initial, allowed=initial.allowed[numbers], seeds=initial.seeds[numbers], weights=weights)
        for tensor in weights.values():
            tensor.requires_grad_()
        rates = {True: self._schedule.mixing_rate, False: self._schedule.learning_rate}
        groups = [
            {"params": [tensor for name, tensor in weights.items() if (name in MIXING) == mixing], "lr": rate}
            for mixing, rate in rates.items()
        ]
        self._adam = torch.optim.Adam(groups, fused=True)
        self.optimizers = [self._adam]


@torch.no_grad()
def iter_logits(
    bank: EdgeBank, stream: EdgeStream, split: EdgeSplit
) -> Iterator[tuple[NDArray[np.int64], torch.Tensor]]:
    """Yield (targets, logits [probes, targets, labels]) over a split, on the device of the stream."""
    placed = bank.to(stream.schedule.device)
    groups = stream.prediction_groups(bank.shape, len(bank), split)
    parts = [placed] if len(groups) == 1 else [placed.take(numbers) for numbers in groups]
    for batch in stream.batches(split):
        logits = [part.logits(batch) for part in parts]
        yield batch.targets, logits[0] if len(logits) == 1 else torch.cat(logits)
