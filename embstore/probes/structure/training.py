"""Training structural probes: all layers, tasks and seeds together, each with its own learning rate and end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import InvalidValueError, NonFiniteError
from embstore.probes.checkpoints import Checkpoint, digest_of
from embstore.probes.structure.examples import Batch, Treebank, iter_tree_batches
from embstore.probes.structure.network import Projected, StructureShape
from embstore.probes.training import VERIFY

LEAST_GAIN = 1e-4  # a dev loss counts as better where it is lower by as much
Place = tuple[int, ...]


@dataclass(frozen=True)
class StructureTraining:
    """How structural probes are trained: Adam over `epochs` at most, `batch_size` sentences a step.

    After an epoch that has not brought a probe's dev loss below its best, its learning rate is multiplied by `decay`
    and its Adam begins anew; after `patience` such epochs in a row it stops. It keeps the weights of its best epoch.
    `order_seed`: of the order of the sentences, which all probes share.
    """

    epochs: int = 40
    batch_size: int = 20
    learning_rate: float = 1e-3
    decay: float = 0.1
    patience: int = 5
    order_seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "patience"):
            if (value := getattr(self, name)) < 1:
                raise InvalidValueError(f"{name} {value} is not allowed: give 1 or more")
        if not self.learning_rate > 0:
            raise InvalidValueError(f"learning_rate {self.learning_rate} is not allowed: give more than 0")
        if not 0 < self.decay <= 1:
            raise InvalidValueError(f"decay {self.decay} is not allowed: give more than 0, 1 at most")
        if self.order_seed < 0:
            raise InvalidValueError(f"order_seed {self.order_seed} is not allowed: give 0 or more")


@dataclass(frozen=True, eq=False)
class StructureProbes:
    """Trained probes: their `shape`, and `weights` float32 [layer, task, seed, rank, width].

    `epochs` int64 and `dev_loss` float64, [layer, task, seed]: the epoch, from 1, whose weights each has.
    """

    shape: StructureShape
    weights: torch.Tensor
    epochs: NDArray[np.int64]
    dev_loss: NDArray[np.float64]


def train_structure(
    shape: StructureShape,
    train: Treebank,
    dev: Treebank,
    *,
    training: StructureTraining | None = None,
    device: torch.device | None = None,
    checkpoint: Path | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> StructureProbes:
    """Train all probes of a shape over one stream of sentences.

    `checkpoint`: a file written after each epoch; where it is there already, from the same training, this goes on
    from its epoch, to the same weights. `progress`: is told how many sentences are done of how many at most. Raises
    InvalidValueError (a checkpoint of another training), MissingRowsError, NonFiniteError, StorageError.
    """
    training = training or StructureTraining()
    run = _Run(shape, training, device or torch.device("cpu"))
    kept = None
    if checkpoint is not None:
        made_from = _made_from(shape, train, dev, training)
        kept = Checkpoint(checkpoint, what="structural probes", made_from=made_from)
        if (held := kept.read()) is not None:
            run.restore(held)
    total = training.epochs * len(train)
    done = run.epoch * len(train)
    with torch.no_grad():
        for epoch in range(run.epoch + 1, training.epochs + 1):
            if not run.running.any():
                break
            for batch in run.batches(train, _shuffled(train, training, epoch)):
                run.step(batch)
                done += len(batch.sentences)
                if progress is not None:
                    progress(done, total)
            run.judge(dev, epoch)
            if kept is not None:
                kept.write(run.state())
    if progress is not None:
        progress(total, total)
    return StructureProbes(shape, run.kept.cpu(), run.best_epoch, run.best)


_ARRAYS = ("running", "best", "best_epoch", "waited")


class _Run:
    """Probes in training; those that have stopped are left as they are."""

    def __init__(self, shape: StructureShape, training: StructureTraining, device: torch.device) -> None:
        self._shape, self._training, self._device = shape, training, device
        self.epoch = 0
        self._weights = shape.initial_weights().to(device)
        self.kept = self._weights.clone()
        self.running = np.ones(shape.sizes, bool)
        self.best = np.full(shape.sizes, np.inf)
        self.best_epoch = np.zeros(shape.sizes, np.int64)
        self.waited = np.zeros(shape.sizes, np.int64)
        self._places: list[Place] = list(product(*map(range, shape.sizes)))
        self._parameters = {place: self._weights[place] for place in self._places}
        groups = [{"params": [self._parameters[place]]} for place in self._places]
        self._adam = torch.optim.Adam(groups, lr=training.learning_rate, fused=True)

    def batches(self, bank: Treebank, sentences: list[NDArray[np.int64]]) -> Iterator[Batch]:
        """Batches of the layers that have a probe in training."""
        layers = [self._shape.layers[row] for row in self._rows]
        return iter_tree_batches(bank, sentences, layers, self._device)

    def step(self, batch: Batch) -> None:
        gradients = Projected(self._running_weights(), batch, self._shape.tasks).gradients()
        rows = self._rows
        for place in self._places:
            own = self._parameters[place]
            own.grad = gradients[(rows.index(place[0]), *place[1:])] if self.running[place] else None
        self._adam.step()

    def judge(self, dev: Treebank, epoch: int) -> None:
        """Score the probes on the dev sentences: keep the better ones, slow the others down or stop them."""
        self.epoch = epoch
        losses = self._losses(dev)
        better = self.running & (losses < self.best - LEAST_GAIN)
        self.waited = np.where(better, 0, self.waited + 1)
        for number, place in enumerate(self._places):
            if better[place]:
                self.kept[place] = self._weights[place]
                self.best[place], self.best_epoch[place] = losses[place], epoch
            elif self.running[place]:
                self._adam.param_groups[number]["lr"] *= self._training.decay
                self._adam.state.pop(self._parameters[place], None)
        self.running &= self.waited < self._training.patience

    def state(self) -> dict[str, Any]:
        """All that the next epoch depends on, as tensors and numbers."""
        arrays = {name: torch.from_numpy(getattr(self, name)) for name in _ARRAYS}
        weights = {"weights": self._weights, "kept": self.kept}
        return {"epoch": self.epoch, "arrays": arrays, "adam": self._adam.state_dict(), **weights}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.epoch = state["epoch"]
        for name in _ARRAYS:
            setattr(self, name, state["arrays"][name].numpy())
        self._weights.copy_(state["weights"])
        self.kept.copy_(state["kept"])
        self._adam.load_state_dict(state["adam"])

    def _losses(self, dev: Treebank) -> NDArray[np.float64]:
        """The mean loss of each probe in training on the dev sentences, infinite of the others."""
        rows = self._rows
        sums = torch.zeros(len(rows), *self._shape.sizes[1:], dtype=torch.float64, device=self._device)
        order = np.argsort(dev.lengths, kind="stable")
        weights = self._running_weights()
        for batch in self.batches(dev, _cut(order, self._training.batch_size)):
            sums += Projected(weights, batch, self._shape.tasks).losses()
        found = np.full(self._shape.sizes, np.inf)
        found[rows] = (sums / len(dev)).cpu().numpy()
        if not np.isfinite(found[rows]).all():
            layer = self._shape.layers[rows[int(np.flatnonzero(~np.isfinite(found[rows]).all((1, 2)))[0])]]
            raise NonFiniteError(
                f"structural probes of layer {layer} have come to a loss that is not finite: {VERIFY}, or give a "
                "smaller learning rate"
            )
        return found

    @property
    def _rows(self) -> list[int]:
        """The layers in training, as places."""
        rows: list[int] = np.flatnonzero(self.running.any((1, 2))).tolist()
        return rows

    def _running_weights(self) -> torch.Tensor:
        rows = self._rows
        return self._weights if len(rows) == len(self._weights) else self._weights[rows]


def _made_from(shape: StructureShape, train: Treebank, dev: Treebank, training: StructureTraining) -> str:
    """What a training depends on, as a digest."""
    gold = [digest_of(bank.first, *bank.distances, *bank.depths) for bank in (train, dev)]
    return digest_of(train.store.digest, dev.store.digest, shape, training, *gold)


def _shuffled(train: Treebank, training: StructureTraining, epoch: int) -> list[NDArray[np.int64]]:
    order = np.random.default_rng((training.order_seed, epoch)).permutation(len(train))
    return _cut(order, training.batch_size)


def _cut(order: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    return [order[start : start + size] for start in range(0, len(order), size)]
