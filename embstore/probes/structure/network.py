"""The network of structural probes: linear maps under which distances and lengths are those of a tree."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch

from embstore.probes.structure.examples import TreeBatch
from embstore.probes.training import seeded

TASKS = ("distance", "depth")
SPREAD = 0.05  # initial weights are uniform within it


@dataclass(frozen=True)
class StructureShape:
    """Which probes there are: one for each of layers x TASKS x seeds, a matrix B [rank, width] each."""

    layers: tuple[int, ...]
    seeds: tuple[int, ...]
    width: int
    rank: int

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The numbers of layers, tasks and seeds."""
        return len(self.layers), len(TASKS), len(self.seeds)

    def initial_weights(self) -> torch.Tensor:
        """Return float32 [layer, task, seed, rank, width]; a probe's depend only on its layer, task, seed and size."""
        weights = torch.empty(*self.sizes, self.rank, self.width)
        probes = product(*(enumerate(values) for values in (self.layers, TASKS, self.seeds)))
        for (row, layer), (column, task), (depth, seed) in probes:
            weights[row, column, depth].uniform_(-SPREAD, SPREAD, generator=seeded(seed, layer, task))
        return weights


class Projected:
    """A batch projected by the probes of some layers: their predictions, losses and gradients.

    `weights`: float32 [layer, task, seed, rank, width], of the layers of the batch.
    """

    def __init__(self, weights: torch.Tensor, batch: TreeBatch) -> None:
        layers, kinds, seeds, rank, width = weights.shape
        self._batch, self._shape = batch, weights.shape
        points = torch.bmm(batch.vectors, weights.reshape(layers, kinds * seeds * rank, width).transpose(1, 2))
        self._points = points.view(layers, -1, kinds, seeds, rank)
        self._filled = batch.slots < points.shape[1]
        self._word_weights = self._filled / batch.lengths[:, None]  # 1 / length, 0 past the words
        self._pair_weights = self._word_weights[:, :, None] * self._word_weights[:, None, :]

    def distances(self) -> torch.Tensor:
        """Return |B (h_i - h_j)|^2, [layer, seed, sentence, longest, longest]; undefined past a sentence's words."""
        return self._distances(self._centred())

    def depths(self) -> torch.Tensor:
        """Return |B h_i|^2, [layer, seed, sentence, longest]; 0 past a sentence's words."""
        flat = _with_zero_row(self._points[:, :, 1].square().sum(-1))
        return flat[:, self._batch.slots].permute(0, 3, 1, 2)

    def losses(self) -> torch.Tensor:
        """Return the loss of each probe, summed over the sentences, float64 [layer, task, seed].

        The loss of a sentence is the sum of |predicted - gold| over its pairs of words, divided by its squared length;
        for depths, the sum over its words, divided by its length.
        """
        of_pairs = (self.distances() - self._batch.distances).abs_().mul_(self._pair_weights)
        of_words = (self.depths() - self._batch.depths).abs_().mul_(self._word_weights)
        return torch.stack([wrong.flatten(2).sum(2, dtype=torch.float64) for wrong in (of_pairs, of_words)], 1)

    def gradients(self) -> torch.Tensor:
        """Return the gradients of the mean loss over the sentences, [layer, task, seed, rank, width]."""
        layers, kinds, seeds, rank, width = self._shape
        gradients = torch.empty_like(self._points)
        gradients[:, :, 0] = self._distance_gradients()
        signs = (self.depths() - self._batch.depths).sign_().mul_(self._word_weights)
        gradients[:, :, 1] = self._points[:, :, 1] * (2 * signs[:, :, self._filled].transpose(1, 2)[..., None])
        flat = gradients.view(layers, -1, kinds * seeds * rank).div_(len(self._batch.sentences))
        return torch.bmm(flat.transpose(1, 2), self._batch.vectors).view(layers, kinds, seeds, rank, width)

    def _distance_gradients(self) -> torch.Tensor:
        """Return the gradients by the projected words x: 2 sum_j S_ij (x_i - x_j), S symmetric those by distances."""
        centred = self._centred()
        signs = (self._distances(centred) - self._batch.distances).sign_().mul_(self._pair_weights).flatten(0, 2)
        signs = signs + signs.transpose(1, 2)
        flat = centred.flatten(0, 2)
        pulled = torch.baddbmm(flat * signs.sum(2, keepdim=True), signs, flat, alpha=-1).mul_(2)
        return pulled.view_as(centred)[:, :, self._filled].transpose(1, 2)

    def _centred(self) -> torch.Tensor:
        """Return projected words less the mean of their sentence, to which distances would lose digits."""
        points = _with_zero_row(self._points[:, :, 0])[:, self._batch.slots]
        points = points.permute(0, 3, 1, 2, 4)
        mean = points.sum(3, keepdim=True) / self._batch.lengths[:, None, None]
        return points - mean

    def _distances(self, centred: torch.Tensor) -> torch.Tensor:
        flat = centred.flatten(0, 2)
        squares = flat.square().sum(2)
        both = torch.baddbmm(squares[:, :, None] + squares[:, None, :], flat, flat.transpose(1, 2), alpha=-2)
        return both.view(*centred.shape[:4], -1)


def _with_zero_row(points: torch.Tensor) -> torch.Tensor:
    return torch.cat([points, torch.zeros_like(points[:, :1])], 1)
