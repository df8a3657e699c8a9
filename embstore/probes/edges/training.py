"""Training edge probes together: one pass over the data an epoch for all of them, each of which stops by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.allocator import freed_memory_kept, freed_memory_returned
from embstore.errors import InvalidValueError, NonFiniteError
from embstore.probes.checkpoints import Checkpoint, digest_of
from embstore.probes.edges.batches import EdgeBatch, iter_batches
from embstore.probes.edges.columns import LargestBatch, SplitPlan
from embstore.probes.edges.memory import EdgeMemory
from embstore.probes.edges.model import MIXING, EdgeBank, EdgeShape
from embstore.probes.edges.tasks import EdgeSplit
from embstore.probes.training import MEMORY, VERIFY
from embstore.store import Store

TIGHT_MEMORY = 2**28  # below it what the C library keeps of freed memory counts


@dataclass(frozen=True)
class EdgeTraining:
    """How edge probes are trained: Adam over `epochs` in batches of `batch_size` sentences.

    `mixing_rate`: the learning rate of the mixing weights and gamma. `dropout`: on the hidden layer. `patience`: a
    probe stops after so many epochs in which its loss on dev has not fallen below its best, and keeps the weights
    of its best epoch; None for all epochs and the last weights. `order_seed`: of the order of the sentences.
    """

    epochs: int = 30
    batch_size: int = 32
    learning_rate: float = 1e-3
    mixing_rate: float = 1e-2
    dropout: float = 0.2
    patience: int | None = 3
    order_seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidValueError(f"{name} {value} is not allowed: give 1 or more")
        for name in ("learning_rate", "mixing_rate"):
            if not getattr(self, name) > 0:
                raise InvalidValueError(f"{name} {getattr(self, name)} is not allowed: give more than 0")
        if not 0 <= self.dropout < 1:
            raise InvalidValueError(f"dropout {self.dropout} is not allowed: give 0 or more, below 1")


@dataclass(frozen=True, eq=False)
class TrainedEdges:
    """Probes and how their training went: `epochs` int64, `dev_loss` float64 (NaN: no dev), [probes].

    `epochs`: the epoch, from 1, whose weights each probe has.
    """

    bank: EdgeBank
    epochs: NDArray[np.int64]
    dev_loss: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Stream:
    """Where batches come from: some layers of a store, on a device.

    `memory`: bytes that the probes which learn from it may take with all that they need, None for 4 GiB.
    """

    store: Store
    layers: Sequence[int]
    batch_size: int
    device: torch.device
    memory: int | None = None

    def __post_init__(self) -> None:
        if self.memory is not None and self.memory < 1:
            raise InvalidValueError(f"memory {self.memory} is not allowed: give the bytes that may be used, 1 or more")

    def batches(self, split: EdgeSplit, order: NDArray[np.int64] | None = None) -> Iterator[EdgeBatch]:
        chosen = np.arange(split.sentences) if order is None else order
        return iter_batches(self.store, split, chosen, self.layers, batch_size=self.batch_size, device=self.device)

    def training_groups(self, shape: EdgeShape, probes: int, *splits: EdgeSplit | None) -> list[NDArray[np.int64]]:
        """The probes in groups that fit the memory; raises InvalidValueError where not even one does."""
        return self._memory(shape, probes, splits).groups(probes, self._allowed)

    def asking_groups(self, shape: EdgeShape, probes: int, split: EdgeSplit) -> list[NDArray[np.int64]]:
        """The probes in groups that may answer at a time."""
        return self._memory(shape, probes, (split,)).asked(probes, self._allowed)

    @property
    def _allowed(self) -> int:
        return MEMORY if self.memory is None else self.memory

    def _memory(self, shape: EdgeShape, probes: int, splits: Sequence[EdgeSplit | None]) -> EdgeMemory:
        largest = LargestBatch(0, 0, 0, 0, 0)
        for split in filter(None, splits):
            largest |= SplitPlan.of(split).largest(self.batch_size)
        return EdgeMemory.of(shape, probes, largest, self.store)


def train_edges(
    bank: EdgeBank,
    stream: Stream,
    train: EdgeSplit,
    dev: EdgeSplit | None,
    *,
    training: EdgeTraining,
    checkpoint: Path | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> TrainedEdges:
    """Train all probes of a bank on the mean binary cross-entropy of each; the bank given is not changed.

    A probe that has stopped is computed no more. Where all do not fit the memory of the stream, some are trained after
    the others, which changes none of them. `checkpoint`: a file written after each epoch (one a group, where there
    are several); where it is there already, from the same training, this goes on from its epoch, to the same weights.
    `progress`: is told how many sentences are done of how many at most. Raises InvalidValueError (patience without
    dev, a checkpoint of another training, memory that one probe does not fit), NonFiniteError, MissingRowsError,
    StorageError.
    """
    if training.patience is not None and dev is None:
        raise InvalidValueError(f"patience {training.patience} needs dev targets to stop by: give some, or no patience")
    count = len(bank)
    groups = stream.training_groups(bank.shape, count, train, dev)
    found = TrainedEdges(bank.of(np.arange(count)), np.zeros(count, np.int64), np.full(count, np.nan))
    each = training.epochs * train.sentences
    tight = stream.memory is not None and stream.memory < TIGHT_MEMORY
    with freed_memory_returned() if tight else freed_memory_kept():
        for number, places in enumerate(groups):
            before = number * each

            def advance(done: int, before: int = before) -> None:
                if progress is not None:
                    progress(before + done, len(groups) * each)

            own = bank if len(groups) == 1 else bank.view(places)
            file = checkpoint if checkpoint is None or len(groups) == 1 else _of_group(checkpoint, places)
            run = _train_group(own, stream, train, dev, training, file, advance)
            for name, tensor in found.bank.weights.items():
                tensor[torch.from_numpy(places)] = run.kept.weights[name]
            found.epochs[places], found.dev_loss[places] = run.best_epoch, run.best
            del run  # before the next group comes
    if progress is not None:
        progress(len(groups) * each, len(groups) * each)
    return found


def _of_group(checkpoint: Path, places: NDArray[np.int64]) -> Path:
    """The file of some probes, named by them: other groups, from another memory, have others."""
    return checkpoint.with_name(f"{checkpoint.stem}.{places[0]}-{places[-1]}{checkpoint.suffix}")


def _train_group(
    bank: EdgeBank,
    stream: Stream,
    train: EdgeSplit,
    dev: EdgeSplit | None,
    training: EdgeTraining,
    checkpoint: Path | None,
    advance: Callable[[int], object],
) -> _Run:
    """Train probes together."""
    run = _Run(bank, training)
    kept = None
    if checkpoint is not None:
        kept = Checkpoint(checkpoint, what="edge probes", made_from=_made_from(bank, stream, train, dev, training))
        held = kept.read()
        if held is not None:
            run.restore(held)
    for epoch in range(run.epoch + 1, training.epochs + 1):
        if not len(run.running):
            break
        order = np.random.default_rng((training.order_seed, epoch)).permutation(train.sentences)
        for number, batch in enumerate(stream.batches(train, order)):
            run.step(batch, epoch, number)
            done = min((number + 1) * training.batch_size, train.sentences)
            advance((epoch - 1) * train.sentences + done)
        run.require_finite()
        run.judge(epoch, None if dev is None or training.patience is None else _losses(run.bank, stream, dev))
        if kept is not None:
            kept.write(run.state())
    return run


_ARRAYS = ("running", "best", "best_epoch", "waited")


class _Run:
    """Probes in training: `bank` those still `running`, places in `kept`, which has the weights that all will have."""

    def __init__(self, bank: EdgeBank, training: EdgeTraining) -> None:
        count = len(bank)
        self.training = training
        self.epoch = 0
        self.running = np.arange(count)
        self.kept = bank.of(self.running)
        self.best, self.best_epoch = np.full(count, np.nan), np.zeros(count, np.int64)
        self.waited = np.zeros(count, np.int64)
        self.bank = bank.of(self.running)
        self._optimizer = _optimizer(self.bank, training)

    def step(self, batch: EdgeBatch, epoch: int, number: int) -> None:
        """One step of Adam for each probe; the losses of probes share no weight, so their sum trains each alone."""
        kept = self.bank.kept(self.training.dropout, len(batch), key=(epoch, number))
        self._optimizer.zero_grad()
        self.bank.losses(batch, kept=kept).sum().backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def judge(self, epoch: int, losses: NDArray[np.float64] | None) -> None:
        """Keep the weights of probes that have become better, and let those go that have waited long enough."""
        self.epoch = epoch
        if losses is None or self.training.patience is None:
            self._keep(np.arange(len(self.running)))
            self.best_epoch[:] = epoch
            return
        best = self.best[self.running]
        better = np.isnan(best) | (losses < best)
        self._keep(np.flatnonzero(better))
        self.best[self.running[better]] = losses[better]
        self.best_epoch[self.running[better]] = epoch
        self.waited[self.running] = np.where(better, 0, self.waited[self.running] + 1)
        going = np.flatnonzero(self.waited[self.running] < self.training.patience)
        if len(going) < len(self.running):
            self._reduce(going)

    def require_finite(self) -> None:
        for name, tensor in self.bank.weights.items():
            if not bool(torch.isfinite(tensor).all()):
                raise NonFiniteError(
                    f"edge probes have come to {name} that is not finite: {VERIFY}, or give a smaller learning rate"
                )

    def state(self) -> dict[str, Any]:
        """All that the next epoch depends on, as tensors and numbers."""
        arrays = {name: torch.from_numpy(getattr(self, name)) for name in _ARRAYS}
        weights = {name: tensor.detach() for name, tensor in self.bank.weights.items()}
        return {
            "epoch": self.epoch,
            "arrays": arrays,
            "weights": weights,
            "kept": self.kept.weights,
            "optimizer": self._optimizer.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.epoch = state["epoch"]
        for name in _ARRAYS:
            setattr(self, name, state["arrays"][name].numpy())
        self.bank = self.kept.of(self.running)
        for name, tensor in self.bank.weights.items():
            tensor.copy_(state["weights"][name])
            self.kept.weights[name].copy_(state["kept"][name])
        self._optimizer = _optimizer(self.bank, self.training)
        self._optimizer.load_state_dict(state["optimizer"])

    def _keep(self, places: NDArray[np.int64]) -> None:
        for name, tensor in self.kept.weights.items():
            tensor[torch.from_numpy(self.running[places])] = self.bank.weights[name].detach()[torch.from_numpy(places)]

    def _reduce(self, going: NDArray[np.int64]) -> None:
        """Go on with some of the probes, and with what Adam knows of them; one tensor after the other."""
        before, known = self.bank.weights, self._optimizer.state
        chosen = torch.from_numpy(going).to(before["mix"].device)
        states = {}
        weights = {}
        for name in list(before):
            tensor = before.pop(name)
            states[name] = {
                key: value.index_select(0, chosen) if value.ndim else value
                for key, value in known.pop(tensor, {}).items()
            }
            weights[name] = tensor.detach().index_select(0, chosen)
        self.running = self.running[going]
        self.bank = replace(self.bank, allowed=self.bank.allowed[going], seeds=self.bank.seeds[going], weights=weights)
        self._optimizer = _optimizer(self.bank, self.training)
        for name, state in states.items():
            if state:
                self._optimizer.state[weights[name]] = state


def _optimizer(bank: EdgeBank, training: EdgeTraining) -> torch.optim.Adam:
    for tensor in bank.weights.values():
        tensor.requires_grad_()
    mixing = [tensor for name, tensor in bank.weights.items() if name in MIXING]
    others = [tensor for name, tensor in bank.weights.items() if name not in MIXING]
    groups = [{"params": mixing, "lr": training.mixing_rate}, {"params": others, "lr": training.learning_rate}]
    return torch.optim.Adam(groups, fused=True)


def _made_from(bank: EdgeBank, stream: Stream, train: EdgeSplit, dev: EdgeSplit | None, training: EdgeTraining) -> str:
    """What a training depends on, as a digest."""
    told = (stream.store.digest, tuple(stream.layers), stream.batch_size, training, bank.shape)
    arrays = [
        array
        for split in filter(None, (train, dev))
        for array in (split.first, *split.spans, split.gold, split.unknown)
    ]
    return digest_of(*told, bank.allowed, bank.seeds, *arrays)


@torch.no_grad()
def _losses(bank: EdgeBank, stream: Stream, split: EdgeSplit) -> NDArray[np.float64]:
    """The mean loss of each probe over the targets of a split, float64 [probes]."""
    sums = torch.zeros(len(bank), dtype=torch.float64, device=stream.device)
    for batch in stream.batches(split):
        sums += bank.losses(batch).double() * len(batch)
    return (sums / len(split)).cpu().numpy()


@torch.no_grad()
def iter_logits(bank: EdgeBank, stream: Stream, split: EdgeSplit) -> Iterator[tuple[NDArray[np.int64], torch.Tensor]]:
    """Yield (targets, logits [probes, targets, labels]) over a split; the sigmoid of a logit is a probability."""
    groups = [bank.view(places) for places in stream.asking_groups(bank.shape, len(bank), split)]
    for batch in stream.batches(split):
        parts = [part.logits(batch) for part in groups]
        yield batch.targets, parts[0] if len(parts) == 1 else torch.cat(parts)
