"""Training structural probes: all layers, tasks and seeds together, each with its own learning rate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.config import settings
from embstore.probes.structure.examples import Treebank, TreeBatch, iter_tree_batches
from embstore.probes.structure.network import TASKS, Projected, StructureShape
from embstore.probes.training import Schedule, Trained, Trainer, fitting, train

COPIES = 6  # of a probe's weights: its own, its gradient, two of Adam, those of its best epoch, and the better ones
LENGTH, SCALED = 20.0, 100  # the median length of vectors that are left as they are, and its sentences
DECAY = 0.1  # as Hewitt & Manning
READ = 5  # batches in memory: in use, and read ahead in the dtype of the store and as float32


def train_structure(shape: StructureShape, data: Treebank, dev: Treebank | None, *, schedule: Schedule) -> Trained:
    """Train all probes of a shape; they are numbered in the order [layer, task, seed].

    Each seed has its own order of the sentences, and is trained after the seed before. The layers that are trained at a
    time fit the memory of the schedule with their vectors.

    Raises InvalidValueError (memory that one layer does not fit), MissingRowsError, NonFiniteError.
    """
    batch_size = min(schedule.batch_size, len(data))
    n_words = int(np.sort(data.lengths)[-batch_size:].sum())
    projected = 4 * n_words * shape.rank + 4 * batch_size * int(data.lengths.max()) ** 2
    n_probes = len(TASKS)
    nbytes = 4 * (COPIES * n_probes * shape.rank * shape.width + READ * n_words * shape.width + n_probes * projected)
    parts = fitting([np.arange(len(shape.layers))], nbytes, schedule.memory, "the probes of one layer")
    groups = list(product(range(len(shape.seeds)), parts))
    numbers = np.arange(prod(shape.sizes)).reshape(shape.sizes)

    def make(group: int) -> StructureTrainer:
        seed, places = groups[group]
        layers = tuple(shape.layers[place] for place in places)
        return StructureTrainer(replace(shape, layers=layers, seeds=(shape.seeds[seed],)), data, dev, schedule)

    with torch.no_grad():
        members = [numbers[places, :, seed].ravel() for seed, places in groups]
        progress = settings().progress
        return train(members, make, schedule, progress=progress, unit="sentences", label="structural probes")


class StructureTrainer(Trainer):
    """The structural probes of some layers in training; stopped probes are not changed any more.

    After an epoch without a lower dev loss, a probe's learning rate is multiplied by DECAY and its Adam state reset.
    """

    what = "structural probes"
    min_gain = 1e-4

    def __init__(self, shape: StructureShape, data: Treebank, dev: Treebank | None, schedule: Schedule) -> None:
        self._shape, self._data, self._dev = shape, data, dev
        self._schedule, self._device = schedule, schedule.device
        self._grid = shape.initial_weights().to(schedule.device)
        self._scale = _scale(data, shape.layers).to(schedule.device)
        self._places = list(product(*map(range, shape.sizes)))
        self.n_probes, self.n_examples = len(self._places), schedule.n_read(len(data))
        self._parameters = [self._grid[place] for place in self._places]
        groups = [{"params": [parameter]} for parameter in self._parameters]
        self._adam = torch.optim.Adam(groups, lr=schedule.learning_rate, fused=True)

    def weights(self) -> Mapping[str, torch.Tensor]:
        return {"weight": (self._grid / self._scale[:, None, None]).flatten(0, 2)}

    def run_epoch(self, epoch: int, running: NDArray[np.bool_]) -> Iterator[int]:
        layers = self._running_layers(running)
        order = self._schedule.order(epoch, len(self._data), self._shape.seeds[0])
        for batch in self._batches(self._data, order, layers):
            gradients = Projected(self._layer_weights(layers), batch).gradients()
            for number, (layer, *rest) in enumerate(self._places):
                own = self._parameters[number]
                own.grad = gradients[(layers.index(layer), *rest)] if running[number] else None
            self._adam.step()
            yield len(batch.sentences)

    def dev_losses(self, running: NDArray[np.bool_]) -> NDArray[np.float64]:
        assert self._dev is not None
        layers = self._running_layers(running)
        sums = torch.zeros(len(layers), *self._shape.sizes[1:], dtype=torch.float64, device=self._device)
        order = np.argsort(self._dev.lengths, kind="stable")
        weights = self._layer_weights(layers)
        for batch in self._batches(self._dev, order, layers):
            sums += Projected(weights, batch).losses()
        losses = np.full(self._shape.sizes, np.inf)
        losses[layers] = (sums / len(self._dev)).cpu().numpy()
        return losses.ravel()

    def end_epoch(self, better: NDArray[np.bool_], running: NDArray[np.bool_]) -> None:
        if not self._schedule.patience:
            return
        for number in np.flatnonzero(running & ~better).tolist():
            self._adam.param_groups[number]["lr"] *= DECAY
            self._adam.state.pop(self._parameters[number], None)

    def describe(self, number: int) -> str:
        layer, task, _ = self._places[number]
        return f"layer {self._shape.layers[layer]} ({TASKS[task]})"

    def _batches(self, bank: Treebank, order: NDArray[np.int64], layers: list[int]) -> Iterator[TreeBatch]:
        """Yield the batches of an order of sentences, with the vectors of some layers, given as places."""
        size = self._schedule.size(len(bank))
        batches = [order[start : start + size] for start in range(0, len(order), size)]
        for batch in iter_tree_batches(bank, batches, [self._shape.layers[place] for place in layers], self._device):
            batch.vectors.div_(self._scale[layers])
            yield batch

    def _running_layers(self, running: NDArray[np.bool_]) -> list[int]:
        """Return the layers that have a probe in training, as places."""
        layers: list[int] = np.flatnonzero(running.reshape(self._shape.sizes).any((1, 2))).tolist()
        return layers

    def _layer_weights(self, layers: list[int]) -> torch.Tensor:
        return self._grid if len(layers) == len(self._grid) else self._grid[layers]


def _scale(bank: Treebank, layers: Sequence[int]) -> torch.Tensor:
    """Return what the vectors of each layer are divided by in training, 1 or more, [layer, 1, 1].

    Those of some decoders are a hundred times as long as BERT's, for which the learning rate is.
    """
    some = bank.store.vectors(bank.rows(np.arange(min(len(bank), SCALED))), layers=list(layers)).astype(np.float32)
    return torch.from_numpy(np.median(np.linalg.norm(some, axis=2), axis=1) / LENGTH).clamp(min=1)[:, None, None]
