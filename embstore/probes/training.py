"""The training loop of all probes: many probes at a time, each with its own early stopping and best weights."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Annotated, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.arguments import Count, Positive, Range, checked
from embstore.errors import InvalidValueError, NonFiniteError
from embstore.probes.result import Row
from embstore.probes.saved import Tensors
from embstore.progress import Progress, reporting

LEARNED = {"epochs": torch.int64, "dev_loss": torch.float64, "capped": torch.bool}  # of each probe, besides weights
CPU = torch.device("cpu")
VERIFY = "run embstore verify to find damaged rows"
Rate = Annotated[float, Range(1e-12, 1e6)]  # a learning rate: above 0, and finite


@checked
@dataclass(frozen=True, kw_only=True)
class Training:
    """How probes are trained, the same settings for class, edge and structural probes; the optimizer is Adam.

    None takes the default of the probe, which its documentation names.

    Parameters
    ----------
    epochs : int
        At most; after each the dev data are scored. An epoch of class probes is 100 steps; of edge and structural
        probes a pass over the train data, or 50 steps if those are more. So few data are read several times, and when
        a training ends depends on patience and not on how many there are.
    batch_size : int
        Examples (class probes) or sentences (edge and structural probes) per step.
    learning_rate : float
        Of Adam.
    patience : int
        A probe stops after this many epochs without a better score on the dev data and keeps the weights of its best
        epoch; 0 trains all epochs, needs no dev data and keeps the last weights.
    """

    epochs: Positive | None = None
    batch_size: Positive | None = None
    learning_rate: Rate | None = None
    patience: Count | None = None


@dataclass(frozen=True)
class Schedule:
    """A `Training` without open defaults.

    An epoch is a pass over the examples unless that has fewer than `min_steps` or more than `max_steps` steps; then it
    is the next full batches of one pass after another. `device` and `memory` do not change the result: where it
    runs, and the bytes that the probes trained at a time may take.
    """

    epochs: int
    batch_size: int
    learning_rate: float = 1e-3
    patience: int = 0
    min_steps: int = 1
    max_steps: int | None = None
    device: torch.device = field(default=CPU, repr=False)
    memory: int = field(default=4 * 2**30, repr=False)

    def size(self, n_examples: int) -> int:
        """Return the examples of a step."""
        return min(self.batch_size, n_examples)

    def n_read(self, n_examples: int) -> int:
        """Return how many examples an epoch reads."""
        size = self.size(n_examples)
        n_steps = -(-n_examples // size)
        wanted = max(self.min_steps, n_steps if self.max_steps is None else min(n_steps, self.max_steps))
        return n_examples if wanted == n_steps else wanted * size

    def order(self, epoch: int, n_examples: int, seed: int) -> NDArray[np.int64]:
        """Return the examples of an epoch in order, int64 [n_read]; `seed`: of the probes that read them."""
        count, a_pass = self.n_read(n_examples), n_examples
        if count != n_examples:
            a_pass -= n_examples % self.size(n_examples)
        first, skipped = divmod((epoch - 1) * count, a_pass)
        last = -(-epoch * count // a_pass)
        passes = [
            np.random.default_rng((0, seed, number)).permutation(n_examples)[:a_pass]
            for number in range(first + 1, last + 1)
        ]
        return np.concatenate(passes)[skipped : skipped + count]


class Trainer(ABC):
    """A group of probes of one family in training: its epochs and its losses on dev data.

    Early stopping, best weights and checks of divergence are those of `train`. Probes are numbered 0 to `n_probes` - 1.
    """

    what: ClassVar[str]  # what the probes are called in errors
    min_gain: ClassVar[float] = 0.0  # a dev loss is better if it is lower by more than this
    n_probes: int
    n_examples: int

    @abstractmethod
    def weights(self) -> Mapping[str, torch.Tensor]:
        """Return the current weights [n, ...] of the probes in training."""

    def numbers(self) -> NDArray[np.int64]:
        """Return the numbers of the probes in `weights`, int64 [n], ascending."""
        return np.arange(self.n_probes)

    @abstractmethod
    def run_epoch(self, epoch: int, running: NDArray[np.bool_]) -> Iterator[int]:
        """Train the running probes for one epoch; yields the number of examples of each step after it."""

    @abstractmethod
    def dev_losses(self, running: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the mean dev loss of each probe, float64 [n_probes]; entries that are not running are ignored."""

    def end_epoch(self, better: NDArray[np.bool_], running: NDArray[np.bool_]) -> None:  # noqa: B027 - optional
        """Adapt to the result of an epoch: probes that improved, and those that continue."""

    @abstractmethod
    def describe(self, number: int) -> str:
        """Return how errors name a probe, such as `layer 3`."""


@dataclass(frozen=True, eq=False)
class Trained:
    """The result of a training: `weights` [n_probes, ...] on the CPU, and for each probe the epoch they are of.

    `epochs` int64 [n_probes] counts from 1; `dev_loss` float64 [n_probes] is NaN without early stopping. `capped` bool
    [n_probes]: the last epoch ended the training before early stopping did; False without early stopping.
    """

    weights: dict[str, torch.Tensor]
    epochs: NDArray[np.int64]
    dev_loss: NDArray[np.float64]
    capped: NDArray[np.bool_]

    def rows(self, probes: NDArray[np.int64]) -> Iterator[Row]:
        """Yield what the frame says of how some probes were trained, as rows of split train.

        `best_epoch`: their mean; `converged`: the share that early stopping ended, None without early stopping.
        """
        share = None if np.isnan(self.dev_loss[probes]).any() else 1 - float(self.capped[probes].mean())
        common: Row = {"split": "train", "count": probes.size}
        yield {**common, "metric": "best_epoch", "value": float(self.epochs[probes].mean())}
        yield {**common, "metric": "converged", "value": share}

    def tensors(self, sizes: Sequence[int], prefix: str = "") -> dict[str, torch.Tensor]:
        """Return everything by name, [*sizes, ...] instead of [n_probes, ...]."""
        whole = self.weights | {name: torch.from_numpy(getattr(self, name)) for name in LEARNED}
        return {f"{prefix}{name}": tensor.reshape(*sizes, *tensor.shape[1:]) for name, tensor in whole.items()}

    @classmethod
    def of(
        cls, tensors: Tensors, sizes: Sequence[int], shapes: Mapping[str, tuple[int, ...]], prefix: str = ""
    ) -> Self:
        """Return what `tensors` was made of; `shapes`: those of one probe's weights.

        Raises ValueError for a tensor of another shape or dtype, KeyError for a missing one.
        """
        found = {}
        for name in (*shapes, *LEARNED):
            tensor, size = tensors[f"{prefix}{name}"], shapes.get(name, ())
            if tensor.shape != (*sizes, *size) or tensor.dtype != LEARNED.get(name, torch.float32):
                raise ValueError(f"the tensor {prefix}{name} does not fit the settings")
            found[name] = tensor.reshape(prod(sizes), *size)
        return cls(found, *(found.pop(name).numpy() for name in LEARNED))


def fitting(
    parts: Sequence[NDArray[np.int64]], nbytes: int, memory: int, what: str, *, shared: int = 0
) -> list[NDArray[np.int64]]:
    """Cut what is trained at the same time into pieces of about one size that fit the memory.

    `parts`: one for each seed, whose probes are trained after those of the seed before. `nbytes`: of one entry of a
    part, called `what`, besides the `shared` bytes of all. Raises InvalidValueError if not even one fits.
    """
    most = (memory - shared) // nbytes
    if most < 1:
        raise InvalidValueError(
            f"memory {memory / 1e6:,.1f} MB is not enough: {what} takes {(nbytes + shared) / 1e6:,.1f} MB; give more, "
            "fewer layers, or a smaller batch_size or hidden_size"
        )
    return [piece for part in parts for piece in np.array_split(part, -(-len(part) // most))]


def train(
    groups: Sequence[NDArray[np.int64]],
    make_trainer: Callable[[int], Trainer],
    schedule: Schedule,
    *,
    progress: Progress = None,
    unit: str = "examples",
    label: str = "train",
) -> Trained:
    """Train probes group after group; the grouping saves memory and does not change any probe.

    `groups`: the numbers of the probes of each group. `make_trainer` makes the trainer of a group by its index, so
    that only one is in memory. Raises NonFiniteError, MissingRowsError.
    """
    n_probes = sum(map(len, groups))
    weights: dict[str, torch.Tensor] = {}
    epochs, dev_loss, capped = np.zeros(n_probes, np.int64), np.full(n_probes, np.nan), np.zeros(n_probes, bool)
    with reporting(progress, unit=unit, label=label) as report:
        for number, members in enumerate(groups):
            trainer = make_trainer(number)
            n_steps = schedule.epochs * trainer.n_examples

            def advance(done: int, before: int = number * n_steps, total: int = len(groups) * n_steps) -> None:
                report(before + done, total)

            best = _train_group(trainer, schedule, advance)
            advance(n_steps)
            for name, tensor in best.weights.items():
                whole = weights.setdefault(name, torch.empty(n_probes, *tensor.shape[1:]))
                whole[torch.from_numpy(members)] = tensor.cpu()
            epochs[members] = best.epochs
            if schedule.patience:
                dev_loss[members], capped[members] = best.dev_loss, best.capped
            del trainer, best  # before the next group takes its memory
    return Trained(weights, epochs, dev_loss, capped)


def _train_group(trainer: Trainer, schedule: Schedule, advance: Callable[[int], object]) -> Trained:
    """Train until every probe has stopped or all epochs are done; the weights stay on their device."""
    best_loss, best_epoch = np.full(trainer.n_probes, np.inf), np.zeros(trainer.n_probes, np.int64)
    best_weights = {name: tensor.detach().clone() for name, tensor in trainer.weights().items()}
    running, waited = np.ones(len(best_loss), bool), np.zeros(len(best_loss), np.int64)
    advice = f"{VERIFY}, or give a smaller learning rate than {schedule.learning_rate:g}"
    for epoch in range(1, schedule.epochs + 1):
        if not running.any():
            break
        done = (epoch - 1) * trainer.n_examples
        for n_examples in trainer.run_epoch(epoch, running):
            done += n_examples
            advance(done)
        numbers = trainer.numbers()
        for name, tensor in trainer.weights().items():
            finite = torch.isfinite(tensor.detach().reshape(len(tensor), -1).sum(1, dtype=torch.float64))
            if not bool(finite.all()):
                which = trainer.describe(int(numbers[int(torch.nonzero(~finite)[0])]))
                raise NonFiniteError(
                    f"training diverged: {name} of {trainer.what} of {which} contains NaN or infinity: {advice}"
                )
        better = running.copy()
        if schedule.patience:
            losses = trainer.dev_losses(running)
            wrong = np.flatnonzero(running & ~np.isfinite(losses))
            if len(wrong):
                which = trainer.describe(int(wrong[0]))
                raise NonFiniteError(f"the dev loss of {trainer.what} of {which} is not finite: {advice}")
            better = running & (losses < best_loss - trainer.min_gain)
            best_loss[better] = losses[better]
            waited = np.where(better, 0, waited + 1)
            running = running & (waited < schedule.patience)
        best_epoch[better] = epoch
        if schedule.patience or epoch == schedule.epochs:
            places = np.flatnonzero(better[numbers])
            for name, tensor in trainer.weights().items():
                chosen = tensor.detach().index_select(0, torch.from_numpy(places).to(tensor.device))
                best_weights[name].index_copy_(0, torch.from_numpy(numbers[places]).to(tensor.device), chosen)
        trainer.end_epoch(better, running)
    return Trained(best_weights, best_epoch, best_loss, running)


def seeded(*key: object) -> torch.Generator:
    """Return a generator whose random numbers depend on the key only."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
