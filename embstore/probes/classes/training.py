"""Training a bank of class probes: all layers, seeds and classes over one pass of the data per epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.config import settings
from embstore.devices import torch_threads
from embstore.errors import NonFiniteError
from embstore.probes.classes.bank import Shape, blocks_of, initial_weights, logits_of
from embstore.probes.classes.examples import LabelledExamples, iter_batches
from embstore.probes.training import VERIFY, Schedule, Trained, Trainer, fitting, train

COPIES = 5  # of a probe's weights: its own, two of Adam, those of its best epoch, and the better ones of an epoch
NEVER = -1e30  # the bias of a label that no example has
SMALL_STEP = 2**25  # flops: threads take longer to meet than one takes for it, and ten times longer on a busy machine
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
    shape: Shape, data: LabelledExamples, dev: LabelledExamples | None = None, *, schedule: Schedule
) -> Trained:
    """Train all probes of a shape on their mean binary cross-entropy; probe p of layer l is number l * n_probes + p.

    They are trained on standardised vectors, and their biases begin at the log odds of their class; the weights
    returned are those of the vectors as stored. Each seed has its own order of the examples. `dev` may be None without
    early stopping.

    Raises MissingRowsError, NonFiniteError.
    """
    n_layers = len(shape.layers)
    n_weights = sum(map(prod, shape.tensor_shapes().values())) * len(shape.outputs)  # of a layer
    parts = fitting([np.arange(n_layers)], 4 * COPIES * n_weights, schedule.memory, "the probes of one layer")
    groups = list(product(range(len(shape.seeds)), parts))
    numbers = np.arange(n_layers * shape.n_probes).reshape(shape.sizes)
    is_small = 6 * schedule.batch_size * n_weights * n_layers < SMALL_STEP
    with torch.no_grad(), torch_threads(1 if is_small else settings().threads):
        standard = Standard.of(data, shape.layers, schedule.batch_size)

        def make(group: int) -> ClassTrainer:
            seed, places = groups[group]
            layers = tuple(shape.layers[place] for place in places)
            own = Standard(standard.mean[places], standard.scale[places])
            return ClassTrainer(replace(shape, layers=layers, seeds=(shape.seeds[seed],)), data, dev, own, schedule)

        members = [numbers[places, seed].ravel() for seed, places in groups]
        trained = train(members, make, schedule, progress=settings().progress, label="class probes")
        first = trained.weights["weight" if shape.kind == "linear" else "hidden"]
        standard.fold(first.view(n_layers, -1, first.shape[-1]))
    return trained


def mean_differences(shape: Shape, data: LabelledExamples, n_classes: int, *, batch_size: int = 2048) -> Trained:
    """Return w_l = m_l - r_l and b_l = -w_l (m_l + r_l) / 2, of the means of each label and of the rest, in one pass.

    The outputs are `n_classes` labels, of which an example has one, and as many of a control task.
    """
    sums = torch.zeros(len(shape.layers), len(shape.outputs), shape.width + 1, dtype=torch.float64)
    table, order = torch.from_numpy(data.targets).double(), np.arange(len(data))
    batches = iter_batches(data.examples, order, shape.layers, batch_size=batch_size, device=sums.device)
    for numbers, columns in batches:
        sums += table[torch.from_numpy(data.group[numbers])].t() @ columns.double()
    finite = torch.isfinite(sums.flatten(1).sum(1))
    if not bool(finite.all()):
        layer = shape.layers[int(torch.nonzero(~finite)[0])]
        raise NonFiniteError(f"examples of layer {layer} contain NaN or infinity: {VERIFY}")
    rest = sums[:, :n_classes].sum(1, keepdim=True) - sums
    mean, other = (each[..., :-1] / each[..., -1:].clamp(min=1) for each in (sums, rest))
    weight = torch.cat([mean - other, (other**2 - mean**2).sum(2, keepdim=True) / 2], 2)
    weight[sums[..., -1] == 0] = torch.tensor([0.0] * shape.width + [NEVER], dtype=torch.float64)
    count = len(shape.layers) * len(shape.outputs)
    flat = {"weight": weight.flatten(0, 1).float()}
    return Trained(flat, np.zeros(count, np.int64), np.full(count, np.nan), np.zeros(count, bool))


class ClassTrainer(Trainer):
    """The probes of one seed and of some layers in training."""

    what = "class probes"
    min_gain = 3e-3

    def __init__(
        self, shape: Shape, data: LabelledExamples, dev: LabelledExamples | None, standard: Standard, schedule: Schedule
    ) -> None:
        self._shape, self._data, self._dev, self._schedule = shape, data, dev, schedule
        self._size = (len(shape.layers), shape.n_probes)
        self.n_probes, self.n_examples = len(shape.layers) * shape.n_probes, schedule.n_read(len(data))
        self._weights = {name: tensor.to(schedule.device) for name, tensor in initial_weights(shape).items()}
        longest = max(len(data), 0 if dev is None else len(dev))
        self._blocks = blocks_of(self._weights, batch_size=min(schedule.batch_size, longest), gradients=True)
        self._optimizers = [
            torch.optim.Adam(list(block.parameters.values()), lr=schedule.learning_rate, fused=True)
            for block in self._blocks
        ]
        self._mean, self._scale = (
            torch.from_numpy(values[:, None]).float().to(schedule.device) for values in (standard.mean, standard.scale)
        )
        counts = np.bincount(data.group, minlength=len(data.targets)).astype(np.float64)
        n_positive = counts @ data.targets
        log_odds = np.log((n_positive + 0.5) / (counts.sum() - n_positive + 0.5))  # one half added to both counts
        odds = torch.from_numpy(log_odds).float().to(schedule.device)
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
            for block, optimizer in zip(self._blocks, self._optimizers, strict=True)
            if grid[block.layers, block.probes].any()
        ]
        order = self._schedule.order(epoch, len(self._data), self._shape.seeds[0])
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
        zeros = torch.zeros(self._size, dtype=torch.float64, device=self._schedule.device)
        right, said, gold_said = zeros, zeros.clone(), zeros.clone()
        for _, columns, gold in self._batches(self._dev, np.arange(len(self._dev))):
            logits = logits_of(self._blocks, columns, self._size[1])
            said += 0 * logits.sum(2)  # NaN if any is infinite
            yes = logits.sigmoid_()
            right += (yes * gold).sum(2, dtype=torch.float64)
            said += yes.sum(2, dtype=torch.float64)
            gold_said += gold.sum(1, dtype=torch.float64)
        return (1 - 2 * right / (said + gold_said)).cpu().numpy().ravel()

    def describe(self, number: int) -> str:
        return f"layer {self._shape.layers[number // self._size[1]]}"

    def _batches(
        self, data: LabelledExamples, order: NDArray[np.int64]
    ) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """Yield (size, standardised columns [layer, n, width + 1], gold float32 [probe, n]) of each batch."""
        device, size = self._schedule.device, self._schedule.size(len(data))
        table = torch.from_numpy(data.targets).to(device).float()
        batches = iter_batches(data.examples, order, self._shape.layers, batch_size=size, device=device)
        for numbers, columns in batches:
            columns[:, :, :-1].sub_(self._mean).div_(self._scale)
            yield len(numbers), columns, table[torch.from_numpy(data.group[numbers]).to(device)].t()
