"""Training a bank of class probes: all layers, seeds and classes over one pass of the data per epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import InvalidValueError
from embstore.probes.classes.bank import Shape, blocks_of, initial_weights, logits_of
from embstore.probes.classes.examples import LabelledExamples, iter_batches
from embstore.probes.training import Schedule, Trained, Trainer, train
from embstore.progress import Progress

COPIES = 4  # of a probe's weights: its own, two of Adam, those of its best epoch
LEAST_SCALE = 1e-2  # of the median: features that hardly vary are not blown up


@dataclass(frozen=True, eq=False)
class Standard:
    """How the vectors of each layer are standardised: float64 `mean` and `scale` [layer, width] of the train examples.

    Probes are trained on (x - mean) / scale, so that no layer or feature is learned slower for its size.
    """

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]

    @classmethod
    def of(cls, data: LabelledExamples, layers: Sequence[int], batch_size: int) -> Standard:
        """Measure the vectors in one pass."""
        sums, squares = (torch.zeros(len(layers), data.examples.width, dtype=torch.float64) for _ in range(2))
        device, order, shift = torch.device("cpu"), np.arange(len(data)), torch.empty(0)
        for _, columns in iter_batches(data.examples, order, layers, batch_size=batch_size, device=device):
            vectors = columns[:, :, :-1]
            shift = shift if len(shift) else vectors.mean(1, keepdim=True)
            vectors = vectors - shift
            sums += vectors.sum(1)
            squares += vectors.square_().sum(1)
        mean, square = (each.numpy() / len(data) for each in (sums, squares))
        deviation = np.sqrt(np.maximum(square - mean**2, 0))
        least = LEAST_SCALE * np.median(deviation, axis=1, keepdims=True)
        scale = np.maximum(deviation, least)
        return cls(mean + shift[:, 0].numpy(), np.where(scale > 0, scale, 1.0))

    def fold(self, weights: torch.Tensor) -> None:
        """Turn weights [layer, ..., width + 1] of standardised vectors into those of vectors as stored, in place."""
        for own, mean, scale in zip(weights, self.mean, self.scale, strict=True):
            for rows in own.view(-1, own.shape[-1]).split(2**16):
                exact = rows[:, :-1].double() / torch.from_numpy(scale)
                rows[:, -1] -= exact @ torch.from_numpy(mean)
                rows[:, :-1] = exact


def train_bank(
    shape: Shape,
    data: LabelledExamples,
    dev: LabelledExamples | None = None,
    *,
    schedule: Schedule,
    progress: Progress = False,
) -> Trained:
    """Train all probes of a shape on their mean binary cross-entropy; probe p of layer l is number l * n_probes + p.

    They are trained on standardised vectors, and their biases begin at the log odds of their class; the weights
    returned are those of the vectors as stored. Each seed has its own order of the examples. `dev` may be None without
    early stopping.

    Raises MissingRowsError, NonFiniteError.
    """
    groups = list(_groups(shape, schedule.memory))
    numbers = np.arange(len(shape.layers) * shape.n_probes).reshape(len(shape.layers), shape.n_probes)
    with torch.no_grad():
        standard = Standard.of(data, shape.layers, schedule.batch_size)
        trained = train(
            [numbers[layers.start : layers.stop, probes.start : probes.stop].ravel() for layers, probes in groups],
            lambda group: ClassTrainer(shape, *groups[group], data, dev, standard, schedule),
            schedule,
            progress=progress,
            label="class probes",
        )
        first = trained.weights["weight" if shape.kind == "linear" else "hidden"]
        standard.fold(first.view(len(shape.layers), -1, first.shape[-1]))
    return trained


def _groups(shape: Shape, memory: int) -> Iterator[tuple[range, range]]:
    """Yield the layers and probes of one seed that are trained together: whole layers if they fit, else parts."""
    each = 4 * COPIES * shape.n_parameters
    if memory < each:
        raise InvalidValueError(
            f"memory {memory / 1e6:,.1f} MB is not enough: one probe takes {each / 1e6:,.1f} MB; give more, or a "
            "smaller hidden_size"
        )
    most, n_outputs = memory // each, len(shape.outputs)
    layers = max(1, most // n_outputs)
    probes = min(most, n_outputs)
    for begin in range(0, shape.n_probes, n_outputs):
        for first in range(0, len(shape.layers), layers):
            for start in range(begin, begin + n_outputs, probes):
                yield (
                    range(first, min(first + layers, len(shape.layers))),
                    range(start, min(start + probes, begin + n_outputs)),
                )


class ClassTrainer(Trainer):
    """Some probes of one seed and of some layers of a shape in training."""

    what = "class probes"
    min_gain = 3e-3

    def __init__(
        self,
        shape: Shape,
        layers: range,
        probes: range,
        data: LabelledExamples,
        dev: LabelledExamples | None,
        standard: Standard,
        schedule: Schedule,
    ) -> None:
        self._shape, self._data, self._dev, self._schedule = shape, data, dev, schedule
        self._seed = shape.seeds[probes.start // len(shape.outputs)]
        self._device = device = schedule.device
        self._layers, self._probes = [shape.layers[place] for place in layers], probes
        self._size = (len(layers), len(probes))
        self.n_probes, self.n_examples = len(layers) * len(probes), schedule.n_read(len(data))
        self._outputs = torch.arange(probes.start, probes.stop, device=device) % len(shape.outputs)
        initial = initial_weights(shape, self._layers, probes)
        self._weights = {name: tensor.to(device) for name, tensor in initial.items()}
        longest = max(len(data), 0 if dev is None else len(dev))
        self._blocks = blocks_of(self._weights, batch_size=min(schedule.batch_size, longest), gradients=True)
        self.optimizers = [
            torch.optim.Adam(list(block.parameters.values()), lr=schedule.learning_rate, fused=True)
            for block in self._blocks
        ]
        self._mean, self._scale = (
            torch.from_numpy(each[layers.start : layers.stop, None]).float().to(device)
            for each in (standard.mean, standard.scale)
        )
        odds = torch.from_numpy(_log_odds(data)).float().to(device)[self._outputs]
        if shape.kind == "linear":
            self._weights["weight"][:, :, -1] = odds
        else:
            self._weights["bias"][:] = odds

    def weights(self) -> Mapping[str, torch.Tensor]:
        return {name: tensor.flatten(0, 1) for name, tensor in self._weights.items()}

    def run_epoch(self, epoch: int, running: NDArray[np.bool_]) -> Iterator[int]:
        grid = running.reshape(self._size)
        work = [
            (block, optimizer)
            for block, optimizer in zip(self._blocks, self.optimizers, strict=True)
            if grid[block.layers, block.probes].any()
        ]
        order = self._schedule.order(epoch, len(self._data), self._seed)
        for size, columns, gold in self._batches(self._data, order):
            for block, optimizer in work:
                gradients = block.forward(columns).sigmoid_().sub_(gold[block.probes])
                block.backward(columns, gradients.div_(size))
                optimizer.step()
            yield size

    def dev_losses(self, running: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return 1 less the F1 of each probe, with the probability p of yes for every yes and no.

        That is 1 - 2 sum p y / (sum p + sum y). The cross-entropy is lowest long before F1 is highest for a rare class:
        it punishes the first confident errors more than it rewards finding another half of the class.
        """
        assert self._dev is not None
        found, said, wanted = (torch.zeros(self._size, dtype=torch.float64, device=self._device) for _ in range(3))
        for _, columns, gold in self._batches(self._dev, np.arange(len(self._dev))):
            logits = logits_of(self._blocks, columns, self._size[1])
            said += 0 * logits.sum(2)  # NaN if any is infinite
            yes = logits.sigmoid_()
            found += (yes * gold).sum(2, dtype=torch.float64)
            said += yes.sum(2, dtype=torch.float64)
            wanted += gold.sum(1, dtype=torch.float64)
        return (1 - 2 * found / (said + wanted)).cpu().numpy().ravel()

    def describe(self, number: int) -> str:
        return f"layer {self._layers[number // self._size[1]]}"

    def _batches(
        self, data: LabelledExamples, order: NDArray[np.int64]
    ) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """Yield (size, standardised columns [layer, n, width + 1], gold float32 [probe, n]) of each batch."""
        table = torch.from_numpy(data.targets).to(self._device)[:, self._outputs].float()
        batches = iter_batches(
            data.examples, order, self._layers, batch_size=self._schedule.size(len(data)), device=self._device
        )
        for numbers, columns in batches:
            columns[:, :, :-1].sub_(self._mean).div_(self._scale)
            yield len(numbers), columns, table[torch.from_numpy(data.group[numbers]).to(self._device)].t()


def _log_odds(data: LabelledExamples) -> NDArray[np.float64]:
    """Return the log odds of each output among the examples, with one half added to both counts."""
    counts = np.bincount(data.group, minlength=len(data.targets)).astype(np.float64)
    n_positive = counts @ data.targets
    return np.asarray(np.log((n_positive + 0.5) / (counts.sum() - n_positive + 0.5)))
