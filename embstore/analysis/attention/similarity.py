"""How much heads differ: Jensen-Shannon distances between all heads, and the plane that shows them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.analysis.attention.maps import TINY, Maps, Shape
from embstore.analysis.attention.statistic import Statistic, Values, register_statistic
from embstore.arguments import Positive, checked

PART = 4096  # probabilities of each head that are compared at a time: those of all heads remain in the cache
LOG_2 = float(np.log(2))


@checked
@register_statistic("heads")
class HeadDistances(Statistic):
    """The mean Jensen-Shannon divergence of the attention of any two heads, in nats, and the heads in the plane.

    For heads i and j it is the mean over subwords of H((p_i + p_j) / 2) - (H(p_i) + H(p_j)) / 2, with H the entropy and
    p the attention of the subword (Clark et al. 2019, section 6; they sum instead of taking the mean). `head_x` and
    `head_y` are the classical multidimensional scaling of the divergences to two dimensions. Every pair of heads costs
    as much as the entropy of one, so only every `every`-th sentence of the corpus is compared.
    """

    def __init__(self, *, every: Positive = 64) -> None:
        super().__init__()
        self.every = every
        self._waiting: list[torch.Tensor] = []

    def begin(self, shape: Shape) -> None:
        super().begin(shape)
        self._waiting = []

    def update(self, maps: Maps) -> None:
        chosen = np.flatnonzero(maps.tokens.numbers % self.every == 0)
        if not len(chosen):
            return
        self._waiting.append(maps.values[torch.from_numpy(chosen).to(maps.values.device)])
        if not maps.last:
            return
        # [heads of all layers, probabilities]: rows of padding are 0, and add nothing
        every = torch.cat(self._waiting, 1).transpose(0, 1).flatten(1).cpu()
        self._waiting = []
        mixed, total = mixed_entropies(every), every.sum(1, dtype=torch.float64).numpy()
        own = mixed.diagonal()
        # of s = p_i + p_j: H(s / 2) = (log 2 sum(s) - sum(s log s)) / 2
        sums = np.triu(LOG_2 * np.add.outer(total, total) + np.add.outer(own, own) - mixed, 1) / 2
        self.add("divergence", 0, np.maximum(sums + sums.T, 0))
        self.add("queries", 0, maps.tokens.lengths[chosen].sum())

    @property
    def divergences(self) -> NDArray[np.float64]:
        """The mean divergence between heads, float64 [layers x heads, layers x heads], layer after layer."""
        return np.asarray(self.sums["divergence"][0] / self.sums["queries"][0])

    def results(self) -> Iterator[Values]:
        if "divergence" not in self.sums:
            return
        shape, count = (len(self.shape.layers), len(self.shape.heads)), float(self.sums["queries"][0])
        names = [f"{layer}.{head}" for layer in self.shape.layers for head in self.shape.heads]
        for name, row in zip(names, self.divergences, strict=True):
            yield Values("jensen_shannon", name, row.reshape(shape), count=count)
        for axis, column in zip("xy", classical_scaling(self.divergences).T, strict=True):
            yield Values(f"head_{axis}", "", column.reshape(shape), count=count)


def mixed_entropies(rows: torch.Tensor) -> NDArray[np.float64]:
    """The sum of x log x of rows i + j at [i, j], j > i, and of row i at [i, i]; 0 below."""
    sums = np.zeros((len(rows), len(rows)))
    for part in torch.split(rows, PART, 1):
        for number in range(len(rows)):
            both = part[number:] + part[number]
            both[0] = part[number]
            sums[number, number:] += torch.linalg.vecdot(both, both.clamp_min(TINY).log_()).numpy()
    return sums


def classical_scaling(distances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return points whose distances are close to those given, float64 [n, 2], by classical scaling.

    With J = 1 - 1/n, the leading eigenvectors of -J D^2 J / 2 times the square roots of their eigenvalues. The sign of
    each dimension makes its entry of largest magnitude positive.
    """
    n = len(distances)
    center = np.eye(n) - 1 / n
    values, vectors = np.linalg.eigh(-center @ (distances**2) @ center / 2)
    values, vectors = values[::-1][:2], vectors[:, ::-1][:, :2]
    points = vectors * np.sqrt(np.maximum(values, 0))
    signs = np.sign(points[np.abs(points).argmax(0), np.arange(points.shape[1])])
    return np.pad(points * np.where(signs == 0, 1, signs), ((0, 0), (0, 2 - points.shape[1])))
