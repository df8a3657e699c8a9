"""Training a bank: one pass over the data an epoch for all its probes, each of which stops by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import InvalidValueError, NonFiniteError
from embstore.probes.classes.bank import Block, ProbeBank, Shape, blocks_of, initial_weights, logits_of
from embstore.probes.classes.examples import Examples, iter_batches

MEMORY = 4 * 2**30
VERIFY = "run embstore verify to see which rows are not"
COPIES = 4  # of a probe's weights: its own, two of Adam, those of its best epoch


@dataclass(frozen=True)
class Training:
    """How probes are trained: Adam over `epochs` in batches of `batch_size`.

    `patience`: a probe stops after so many epochs in which its loss on the dev examples has not fallen below its
    best, and keeps the weights of its best epoch; None for all epochs and the last weights. `order_seed`: of the
    order of the examples, which all probes share.
    """

    epochs: int = 50
    batch_size: int = 256
    learning_rate: float = 1e-3
    patience: int | None = 3
    order_seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidValueError(f"{name} {value} is not allowed: give 1 or more")
        if not self.learning_rate > 0:
            raise InvalidValueError(f"learning_rate {self.learning_rate} is not allowed: give more than 0")


@dataclass(frozen=True, eq=False)
class LabelledExamples:
    """Examples and what they are: `targets` bool [kinds, outputs], `kind` int64 [n], the row of each example."""

    examples: Examples
    kind: NDArray[np.int64]
    targets: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.examples)


@dataclass(frozen=True, eq=False)
class Trained:
    """A bank and how its training went: `epochs` int64 and `dev_loss` float64 (NaN: no dev), [layer, probes].

    `epochs`: the epoch, from 1, whose weights each probe has.
    """

    bank: ProbeBank
    epochs: NDArray[np.int64]
    dev_loss: NDArray[np.float64]


def train_bank(
    shape: Shape,
    train: LabelledExamples,
    dev: LabelledExamples | None = None,
    *,
    training: Training | None = None,
    positive_weight: NDArray[np.float64] | None = None,
    device: torch.device | None = None,
    memory: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Trained:
    """Train all probes of a shape, on the mean binary cross-entropy of each.

    `positive_weight` [outputs]: how much a positive example counts. `memory`: bytes of the probes that are trained
    at a time (4 GiB); where all do not fit, some layers (or some probes of a layer) are trained after the others,
    which changes none of them. `progress`: is told how many examples are done of how many at most.

    Raises InvalidValueError (no example, patience without dev examples), MissingRowsError, NonFiniteError.
    """
    training = training or Training()
    if memory is not None and memory < 1:
        raise InvalidValueError(f"memory {memory} is not allowed: give the bytes that may be used, 1 or more")
    device = device or torch.device("cpu")
    if not len(train):
        raise InvalidValueError("there is no example to train probes on")
    if training.patience is not None and (dev is None or not len(dev)):
        raise InvalidValueError(
            f"patience {training.patience} needs dev examples to stop by: give some, or no patience"
        )
    weights = {name: torch.empty(size) for name, size in shape.tensor_shapes(len(shape.layers), shape.probes).items()}
    found = Trained(
        ProbeBank(shape, weights),
        np.zeros((len(shape.layers), shape.probes), np.int64),
        np.full((len(shape.layers), shape.probes), np.nan),
    )
    groups = list(_groups(shape, MEMORY if memory is None else memory))
    total = len(groups) * training.epochs * len(train)
    with torch.no_grad():
        for number, (layers, probes) in enumerate(groups):
            before = number * training.epochs * len(train)

            def advance(done: int, before: int = before) -> None:
                if progress is not None:
                    progress(before + done, total)

            group = _Group(shape, layers, probes, training, positive_weight, device)
            epochs, losses = group.train(train, dev if training.patience is not None else None, advance)
            for name, tensor in weights.items():
                tensor[layers.start : layers.stop, probes.start : probes.stop].copy_(group.kept[name])
            found.epochs[layers.start : layers.stop, probes.start : probes.stop] = epochs
            found.dev_loss[layers.start : layers.stop, probes.start : probes.stop] = losses
    if progress is not None:
        progress(total, total)
    return found


def _groups(shape: Shape, memory: int) -> Iterator[tuple[range, range]]:
    """Layers and probes that are trained together, as places."""
    most = max(1, memory // (4 * COPIES * shape.parameters))
    layers = max(1, most // shape.probes)
    probes = min(most, shape.probes)
    for first in range(0, len(shape.layers), layers):
        for start in range(0, shape.probes, probes):
            yield range(first, min(first + layers, len(shape.layers))), range(start, min(start + probes, shape.probes))


class _Group:
    """Probes in training, and in `kept` the weights that they will have."""

    def __init__(
        self,
        shape: Shape,
        layers: range,
        probes: range,
        training: Training,
        positive_weight: NDArray[np.float64] | None,
        device: torch.device,
    ) -> None:
        self.layers = [shape.layers[place] for place in layers]
        self.outputs = torch.arange(probes.start, probes.stop, device=device) % len(shape.outputs)
        self.training, self.device = training, device
        weights = initial_weights(shape, self.layers, probes)
        self.weights = {name: tensor.to(device) for name, tensor in weights.items()}
        self.kept = self.weights
        self.blocks = blocks_of(shape, self.weights, batch_size=training.batch_size, gradients=True)
        self.optimizers = [
            torch.optim.Adam(list(block.parameters.values()), lr=training.learning_rate, fused=True)
            for block in self.blocks
        ]
        self.extra: torch.Tensor | None = None
        if positive_weight is not None:
            weight = torch.from_numpy(np.asarray(positive_weight, np.float32)).to(device)
            self.extra = (weight - 1)[self.outputs][:, None]

    def train(
        self, train: LabelledExamples, dev: LabelledExamples | None, advance: Callable[[int], object]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Train until all have stopped; the epoch of each probe's weights and its loss on dev, [layers, probes]."""
        size = (len(self.layers), len(self.outputs))
        best, best_epoch, waited = np.full(size, np.inf), np.zeros(size, np.int64), np.zeros(size, np.int64)
        running = np.ones(size, bool)
        if dev is not None:
            self.kept = {name: tensor.clone() for name, tensor in self.weights.items()}
        done = 0
        for epoch in range(1, self.training.epochs + 1):
            for count in self._epoch(train, epoch, running):
                done += count
                advance(done)
            self._require_finite()
            if dev is None:
                best_epoch[:] = epoch
                continue
            losses = self._losses(dev)
            if not np.isfinite(losses).all():
                layer = self.layers[int(np.flatnonzero(~np.isfinite(losses).all(1))[0])]
                raise NonFiniteError(f"dev examples of layer {layer} hold values that are not finite: {VERIFY}")
            better = running & (losses < best)
            self._keep(better)
            best[better], best_epoch[better] = losses[better], epoch
            waited = np.where(better, 0, waited + 1)
            running &= waited < (self.training.patience or epoch + 1)
            if not running.any():
                break
        return best_epoch, best if dev is not None else np.full(size, np.nan)

    def _epoch(self, train: LabelledExamples, epoch: int, running: NDArray[np.bool_]) -> Iterator[int]:
        order = np.random.default_rng((self.training.order_seed, epoch)).permutation(len(train))
        work = [
            (block, optimizer)
            for block, optimizer in zip(self.blocks, self.optimizers, strict=True)
            if running[block.layers, block.probes].any()
        ]
        targets = _target_table(train, self.outputs)
        for places, columns in self._batches(train, order):
            right = targets[self._kinds(train, places)].t()
            scale = None if self.extra is None else 1 + right * self.extra
            for block, optimizer in work:
                slopes = block.forward(columns).sigmoid_().sub_(right[block.probes])
                if scale is not None:
                    slopes.mul_(scale[block.probes])
                block.backward(columns, slopes.div_(len(places)))
                optimizer.step()
            yield len(places)

    def _losses(self, dev: LabelledExamples) -> NDArray[np.float64]:
        """The mean loss of each probe on the dev examples, float64 [layers, probes]."""
        sums = torch.zeros(len(self.layers), len(self.outputs), dtype=torch.float64, device=self.device)
        targets = _target_table(dev, self.outputs)
        weight = None if self.extra is None else self.extra + 1
        for places, columns in self._batches(dev, np.arange(len(dev))):
            right = targets[self._kinds(dev, places)].t()
            logits = logits_of(self.blocks, columns, len(self.outputs))
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                logits, right.expand_as(logits), pos_weight=weight, reduction="none"
            )
            sums += loss.sum(2, dtype=torch.float64)
        return (sums / len(dev)).cpu().numpy()

    def _batches(
        self, data: LabelledExamples, order: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], torch.Tensor]]:
        return iter_batches(data.examples, order, self.layers, batch_size=self.training.batch_size, device=self.device)

    def _kinds(self, data: LabelledExamples, places: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(data.kind[places]).to(self.device)

    def _keep(self, better: NDArray[np.bool_]) -> None:
        """Keep the weights that these probes have now."""
        for block in self.blocks:
            chosen = torch.from_numpy(better[block.layers, block.probes]).to(self.device)
            if bool(chosen.any()):
                _keep_block(block, chosen, self.kept, self.weights)

    def _require_finite(self) -> None:
        for name, tensor in self.weights.items():
            sums = tensor.flatten(1).sum(1, dtype=torch.float64)
            wrong = torch.nonzero(~torch.isfinite(sums))
            if len(wrong):
                layer = self.layers[int(wrong[0])]
                raise NonFiniteError(
                    f"probes of layer {layer} have come to {name}s that are not finite: {VERIFY}, or give a smaller "
                    "learning rate"
                )


def _keep_block(
    block: Block, chosen: torch.Tensor, kept: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor]
) -> None:
    for name, tensor in weights.items():
        target, now = kept[name][block.layers, block.probes], tensor[block.layers, block.probes]
        mask = chosen.view(*chosen.shape, *[1] * (now.ndim - 2))
        target.copy_(torch.where(mask, now, target))


def _target_table(data: LabelledExamples, outputs: torch.Tensor) -> torch.Tensor:
    """What each kind of example is to each probe, float32 [kinds, probes]."""
    table = torch.from_numpy(data.targets).to(outputs.device)
    return table[:, outputs].float()
