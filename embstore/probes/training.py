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
from embstore.errors import NonFiniteError
from embstore.probes.result import Row
from embstore.probes.saved import Tensors
from embstore.progress import Progress, reporting

LEARNED = {"epochs": torch.int64, "dev_loss": torch.float64, "capped": torch.bool}  # of each probe, besides weights
COPY_NBYTES = 2**26  # best weights are copied this many bytes at a time
CPU = torch.device("cpu")
READ_AHEAD = 2  # batches that are read before they are needed: one on its way while another is computed
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
    """A group of probes of one family that are trained together.

    A family implements one epoch and the losses on dev data. Early stopping, best weights, divergence checks
    and memory groups are those of `train`. Probes are numbered 0 to `n_probes` - 1 within the group.
    """

    what: ClassVar[str]  # what the probes are called in errors
    min_gain: ClassVar[float] = 0.0  # a dev loss is better if it is lower by more than this
    n_probes: int
    n_examples: int
    optimizers: Sequence[torch.optim.Optimizer]

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

    def describe(self, number: int) -> str:
        """Return how errors name a probe, such as `layer 3`."""
        return f"number {number}"


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

            run = _Run(trainer, schedule)
            run.train(advance)
            advance(n_steps)
            for name, tensor in run.best_weights.items():
                if len(groups) == 1:
                    weights[name] = tensor.cpu()
                    continue
                if name not in weights:
                    weights[name] = torch.empty(n_probes, *tensor.shape[1:])
                weights[name][torch.from_numpy(members)] = tensor.cpu()
            epochs[members] = run.best_epoch
            if schedule.patience:
                dev_loss[members], capped[members] = run.best, run.running
            del trainer, run  # before the next group takes its memory
    return Trained(weights, epochs, dev_loss, capped)


class _Run:
    """One group in training: which probes are running, and the best weights of each so far."""

    def __init__(self, trainer: Trainer, schedule: Schedule) -> None:
        n_probes = trainer.n_probes
        self._trainer, self._schedule = trainer, schedule
        self.running = np.ones(n_probes, bool)
        self.best = np.full(n_probes, np.inf)
        self.best_epoch = np.zeros(n_probes, np.int64)
        self._waited = np.zeros(n_probes, np.int64)
        self.best_weights = {name: tensor.detach().clone() for name, tensor in trainer.weights().items()}

    def train(self, advance: Callable[[int], object]) -> None:
        """Train until every probe has stopped or all epochs are done."""
        trainer, schedule = self._trainer, self._schedule
        for epoch in range(1, schedule.epochs + 1):
            if not self.running.any():
                break
            done = (epoch - 1) * trainer.n_examples
            for n_examples in trainer.run_epoch(epoch, self.running):
                done += n_examples
                advance(done)
            self._require_finite()
            better = self._judge(epoch)
            if schedule.patience or epoch == schedule.epochs:
                self._keep(better)
            trainer.end_epoch(better, self.running)

    def _judge(self, epoch: int) -> NDArray[np.bool_]:
        """Update best losses and stop probes that have waited long enough; returns which probes improved."""
        if not self._schedule.patience:
            self.best_epoch[:] = epoch
            return self.running.copy()
        losses = self._trainer.dev_losses(self.running)
        wrong = np.flatnonzero(self.running & ~np.isfinite(losses))
        if len(wrong):
            raise NonFiniteError(
                f"the dev loss of {self._trainer.what} of {self._trainer.describe(int(wrong[0]))} is not finite: "
                f"{VERIFY}, or give a smaller learning rate than {self._schedule.learning_rate:g}"
            )
        better = self.running & (losses < self.best - self._trainer.min_gain)
        self.best[better], self.best_epoch[better] = losses[better], epoch
        self._waited = np.where(better, 0, self._waited + 1)
        self.running = self.running & (self._waited < self._schedule.patience)
        return better

    def _keep(self, better: NDArray[np.bool_]) -> None:
        """Copy the current weights of some probes to the best weights."""
        numbers = self._trainer.numbers()
        places = np.flatnonzero(better[numbers])
        for name, tensor in self._trainer.weights().items():
            size = max(1, COPY_NBYTES // (4 * max(1, tensor[0].numel())))
            for start in range(0, len(places), size):
                part = places[start : start + size]
                source = tensor.detach().index_select(0, torch.from_numpy(part).to(tensor.device))
                self.best_weights[name].index_copy_(0, torch.from_numpy(numbers[part]).to(tensor.device), source)

    def _require_finite(self) -> None:
        for name, tensor in self._trainer.weights().items():
            sums = tensor.detach().reshape(len(tensor), -1).sum(1, dtype=torch.float64)
            wrong = torch.nonzero(~torch.isfinite(sums))
            if len(wrong):
                number = int(self._trainer.numbers()[int(wrong[0])])
                raise NonFiniteError(
                    f"training diverged: {name} of {self._trainer.what} of {self._trainer.describe(number)} contains "
                    f"NaN or infinity: {VERIFY}, or give a smaller learning rate than {self._schedule.learning_rate:g}"
                )


def seeded(*key: object) -> torch.Generator:
    """Return a generator whose random numbers depend on the key only."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
