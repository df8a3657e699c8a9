"""The structural probe (Hewitt & Manning 2019): linear maps under which distances and lengths are those of a tree."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, get_args

import torch

from embstore.errors import InvalidValueError
from embstore.probes.structure.examples import Batch

Task = Literal["distance", "depth"]
TASKS: tuple[Task, ...] = get_args(Task)
SPREAD = 0.05  # initial weights are uniform within it


@dataclass(frozen=True)
class StructureShape:
    """Which probes there are: one for each of layers x tasks x seeds, a matrix B [rank, width] each."""

    layers: tuple[int, ...]
    tasks: tuple[Task, ...]
    seeds: tuple[int, ...]
    width: int
    rank: int

    def __post_init__(self) -> None:
        for task in self.tasks:
            if task not in TASKS:
                raise InvalidValueError(f"unknown task {task!r} of a structural probe; allowed are {', '.join(TASKS)}")
        for what, held in (("layers", self.layers), ("tasks", self.tasks), ("seeds", self.seeds)):
            if not held or len(set(held)) < len(held):
                raise InvalidValueError(f"{what} must be one or more, each once, not {list(held)}")
        if min(self.seeds) < 0:
            raise InvalidValueError(f"seed {min(self.seeds)} is not allowed: give 0 or more")
        if not 1 <= self.rank <= self.width:
            raise InvalidValueError(
                f"rank {self.rank} is not allowed: give 1 to {self.width}, the width of the vectors"
            )

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Layers, tasks and seeds."""
        return len(self.layers), len(self.tasks), len(self.seeds)

    def initial_weights(self) -> torch.Tensor:
        """Float32 [layer, task, seed, rank, width]; each probe's depend on its layer, task, seed and size alone."""
        made = torch.empty(*self.sizes, self.rank, self.width)
        generator = torch.Generator()
        places = product(*(enumerate(held) for held in (self.layers, self.tasks, self.seeds)))
        for (row, layer), (column, task), (depth, seed) in places:
            key = hashlib.sha256(repr((seed, layer, task)).encode()).digest()[:7]
            generator.manual_seed(int.from_bytes(key, "little"))
            made[row, column, depth].uniform_(-SPREAD, SPREAD, generator=generator)
        return made


class Projected:
    """A batch under the probes of some layers: what they predict, their losses, the gradients of these.

    `weights`: float32 [layer, task, seed, rank, width], of as many layers as the batch has.
    """

    def __init__(self, weights: torch.Tensor, batch: Batch, tasks: Sequence[Task]) -> None:
        layers, kinds, seeds, rank, width = weights.shape
        self._batch, self._tasks, self._shape = batch, tasks, weights.shape
        points = torch.bmm(batch.vectors, weights.reshape(layers, kinds * seeds * rank, width).transpose(1, 2))
        self._points = points.view(layers, -1, kinds, seeds, rank)
        self._filled = batch.slots < points.shape[1]

    def distances(self) -> torch.Tensor:
        """Squared distances |B (h_i - h_j)|^2, [layer, seed, sentence, longest, longest]; undefined past the words."""
        return self._distances(self._spread())

    def depths(self) -> torch.Tensor:
        """Squared lengths |B h_i|^2, [layer, seed, sentence, longest]; 0 past the words."""
        points = self._points[:, :, self._tasks.index("depth")]
        flat = _with_zero_row(points.square().sum(-1))
        return flat[:, self._batch.slots].permute(0, 3, 1, 2)

    def losses(self) -> torch.Tensor:
        """The loss of each probe, summed over the sentences, float64 [layer, task, seed].

        A sentence's is the sum of |predicted - gold| over its pairs of words by its squared length; of depths, over its
        words by its length.
        """
        found = []
        for task in self._tasks:
            if task == "distance":
                wrong = (self.distances() - self._batch.distances).abs_().mul_(self._pair_weights())
            else:
                wrong = (self.depths() - self._batch.depths).abs_().mul_(self._word_weights())
            found.append(wrong.flatten(2).sum(2, dtype=torch.float64))
        return torch.stack(found, 1)

    def gradients(self) -> torch.Tensor:
        """Those of the mean loss over the sentences in the weights, [layer, task, seed, rank, width]."""
        layers, kinds, seeds, rank, width = self._shape
        slopes = torch.empty_like(self._points)
        for number, task in enumerate(self._tasks):
            slopes[:, :, number] = self._distance_slopes() if task == "distance" else self._depth_slopes()
        flat = slopes.view(layers, -1, kinds * seeds * rank).div_(len(self._batch.sentences))
        return torch.bmm(flat.transpose(1, 2), self._batch.vectors).view(layers, kinds, seeds, rank, width)

    def _distance_slopes(self) -> torch.Tensor:
        """Slopes of the losses in the projected words x, [layer, words, seed, rank].

        With S the slopes in a sentence's distances, made symmetric, that in x_i is 2 sum_j S_ij (x_i - x_j).
        """
        spread = self._spread()
        slopes = (self._distances(spread) - self._batch.distances).sign_().mul_(self._pair_weights()).flatten(0, 2)
        slopes = slopes + slopes.transpose(1, 2)
        flat = spread.flatten(0, 2)
        pulled = torch.baddbmm(flat * slopes.sum(2, keepdim=True), slopes, flat, alpha=-1).mul_(2)
        return pulled.view_as(spread)[:, :, self._filled].transpose(1, 2)

    def _depth_slopes(self) -> torch.Tensor:
        """Slopes of the losses in the projected words, [layer, words, seed, rank]."""
        slopes = (self.depths() - self._batch.depths).sign_().mul_(self._word_weights())
        points = self._points[:, :, self._tasks.index("depth")]
        return points * (2 * slopes[:, :, self._filled].transpose(1, 2)[..., None])

    def _pair_weights(self) -> torch.Tensor:
        """What a pair of words counts, [sentence, longest, longest]: 1 / length^2, and 0 past the words."""
        weights = self._word_weights()
        return weights[:, :, None] * weights[:, None, :]

    def _word_weights(self) -> torch.Tensor:
        """What a word counts, [sentence, longest]: 1 / length, and 0 past the words."""
        return self._filled / self._batch.lengths[:, None]

    def _spread(self) -> torch.Tensor:
        """Projected words around the middle of their sentence, [layer, seed, sentence, longest, rank].

        Distances do not see where the middle is, and lose no digits to it.
        """
        points = _with_zero_row(self._points[:, :, self._tasks.index("distance")])[:, self._batch.slots]
        points = points.permute(0, 3, 1, 2, 4)
        middle = points.sum(3, keepdim=True) / self._batch.lengths[:, None, None]
        return points - middle

    def _distances(self, spread: torch.Tensor) -> torch.Tensor:
        flat = spread.flatten(0, 2)
        squares = flat.square().sum(2)
        both = torch.baddbmm(squares[:, :, None] + squares[:, None, :], flat, flat.transpose(1, 2), alpha=-2)
        return both.view(*spread.shape[:4], -1)


def _with_zero_row(points: torch.Tensor) -> torch.Tensor:
    return torch.cat([points, torch.zeros_like(points[:, :1])], 1)
