"""Training a bank of class probes: all layers, seeds and classes over one pass of the data per epoch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import InvalidValueError
from embstore.probes.classes.bank import Shape, blocks_of, initial_weights, logits_of
from embstore.probes.classes.examples import LabelledExamples, iter_batches
from embstore.probes.training import Schedule, Trained, Trainer, digest_of, train
from embstore.progress import Progress

COPIES = 4  # of a probe's weights: its own, two of Adam, those of its best epoch


def train_bank(
    shape: Shape,
    data: LabelledExamples,
    dev: LabelledExamples | None = None,
    *,
    schedule: Schedule,
    positive_weight: NDArray[np.float64] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Progress = False,
) -> Trained:
    """Train all probes of a shape on their mean binary cross-entropy; probe p of layer l is number l * n_probes + p.

    `dev` may be None without early stopping. `positive_weight` [outputs]: the weight of a positive example.

    Raises InvalidValueError (a checkpoint of another training), MissingRowsError, NonFiniteError, StorageError.
    """
    groups = list(_groups(shape, schedule.memory))
    numbers = np.arange(len(shape.layers) * shape.n_probes).reshape(len(shape.layers), shape.n_probes)
    with torch.no_grad():
        return train(
            [numbers[layers.start : layers.stop, probes.start : probes.stop].ravel() for layers, probes in groups],
            lambda group: ClassTrainer(shape, *groups[group], data, dev, schedule, positive_weight),
            schedule,
            checkpoint=checkpoint,
            progress=progress,
            label="class probes",
        )


def _groups(shape: Shape, memory: int) -> Iterator[tuple[range, range]]:
    """Yield the layers and probes that are trained together: whole layers if they fit, else parts of a layer."""
    each = 4 * COPIES * shape.n_parameters
    if memory < each:
        raise InvalidValueError(
            f"memory {memory / 1e6:,.1f} MB is not enough: one probe takes {each / 1e6:,.1f} MB; give more, or a "
            "smaller hidden_size"
        )
    most = memory // each
    layers = max(1, most // shape.n_probes)
    probes = min(most, shape.n_probes)
    for first in range(0, len(shape.layers), layers):
        for start in range(0, shape.n_probes, probes):
            yield (
                range(first, min(first + layers, len(shape.layers))),
                range(start, min(start + probes, shape.n_probes)),
            )


class ClassTrainer(Trainer):
    """Some probes of some layers of a shape in training."""

    what = "class probes"

    def __init__(
        self,
        shape: Shape,
        layers: range,
        probes: range,
        data: LabelledExamples,
        dev: LabelledExamples | None,
        schedule: Schedule,
        positive_weight: NDArray[np.float64] | None,
    ) -> None:
        self._shape, self._data, self._dev, self._schedule = shape, data, dev, schedule
        self._device = device = schedule.device
        self._layers, self._probes = [shape.layers[place] for place in layers], probes
        self._size = (len(layers), len(probes))
        self._n_passes = schedule.n_passes(len(data))
        self.n_probes, self.n_examples = len(layers) * len(probes), self._n_passes * len(data)
        self._outputs = torch.arange(probes.start, probes.stop, device=device) % len(shape.outputs)
        initial = initial_weights(shape, self._layers, probes)
        self._weights = {name: tensor.to(device) for name, tensor in initial.items()}
        longest = max(len(data), 0 if dev is None else len(dev))
        self._blocks = blocks_of(self._weights, batch_size=min(schedule.batch_size, longest), gradients=True)
        self.optimizers = [
            torch.optim.Adam(list(block.parameters.values()), lr=schedule.learning_rate, fused=True)
            for block in self._blocks
        ]
        self._positive_weight = positive_weight
        self._extra: torch.Tensor | None = None
        if positive_weight is not None:
            weight = torch.from_numpy(np.asarray(positive_weight, np.float32)).to(device)
            self._extra = (weight - 1)[self._outputs][:, None]

    def weights(self) -> Mapping[str, torch.Tensor]:
        return {name: tensor.flatten(0, 1) for name, tensor in self._weights.items()}

    def run_epoch(self, epoch: int, running: NDArray[np.bool_]) -> Iterator[int]:
        grid = running.reshape(self._size)
        work = [
            (block, optimizer)
            for block, optimizer in zip(self._blocks, self.optimizers, strict=True)
            if grid[block.layers, block.probes].any()
        ]
        for number in range((epoch - 1) * self._n_passes, epoch * self._n_passes):
            order = self._schedule.order(number + 1, len(self._data))
            for size, columns, gold in self._batches(self._data, order):
                scale = None if self._extra is None else 1 + gold * self._extra
                for block, optimizer in work:
                    gradients = block.forward(columns).sigmoid_().sub_(gold[block.probes])
                    if scale is not None:
                        gradients.mul_(scale[block.probes])
                    block.backward(columns, gradients.div_(size))
                    optimizer.step()
                yield size

    def dev_losses(self, running: NDArray[np.bool_]) -> NDArray[np.float64]:
        assert self._dev is not None
        sums = torch.zeros(self._size, dtype=torch.float64, device=self._device)
        weight = None if self._extra is None else self._extra + 1
        for _, columns, gold in self._batches(self._dev, np.arange(len(self._dev))):
            logits = logits_of(self._blocks, columns, self._size[1])
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                logits, gold.expand_as(logits), pos_weight=weight, reduction="none"
            )
            sums += loss.sum(2, dtype=torch.float64)
        return (sums / len(self._dev)).cpu().numpy().ravel()

    def digest(self) -> str:
        data = [
            part
            for each in (self._data, self._dev)
            if each is not None
            for part in (each.examples.digest(), each.group, each.targets)
        ]
        return digest_of(self._shape, self._layers, self._probes, self._schedule, self._positive_weight, *data)

    def describe(self, number: int) -> str:
        return f"layer {self._layers[number // self._size[1]]}"

    def _batches(
        self, data: LabelledExamples, order: NDArray[np.int64]
    ) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """Yield (size, columns [layer, n, width + 1], gold float32 [probe, n]) of each batch."""
        table = torch.from_numpy(data.targets).to(self._device)[:, self._outputs].float()
        batches = iter_batches(
            data.examples, order, self._layers, batch_size=self._schedule.batch_size, device=self._device
        )
        for numbers, columns in batches:
            yield len(numbers), columns, table[torch.from_numpy(data.group[numbers]).to(self._device)].t()
