"""The shape of a layer's cloud of vectors: its mean, its second moment, and what their spectrum says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.analysis.geometry.spectra import mev_of_moment, symmetric_product
from embstore.analysis.scan import Batch, Scope

_SHIFT_ROWS = 256


@dataclass
class MomentSums:
    """Sums over vectors x less `shift`: of x, of x x^T (float64), of |x| as it is, and how many there are.

    `product` is where a block's x x^T is made: memory taken block by block is not given back in between.
    """

    shift: torch.Tensor
    sum: torch.Tensor
    second: torch.Tensor
    product: torch.Tensor
    norms: float = 0.0
    count: int = 0

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "product"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.product = torch.empty_like(self.second, dtype=self.shift.dtype)


@dataclass(frozen=True)
class LayerMoments:
    """A layer's `mean` [feature], `scatter` (sum of products of centred vectors) [feature, feature], both float64."""

    mean: NDArray[np.float64]
    scatter: NDArray[np.float64]
    mean_norm: float
    count: int

    @property
    def eigenvalues(self) -> NDArray[np.float64]:
        """The variances along the principal components, ascending; float64 [feature]."""
        variances = np.asarray(np.linalg.eigvalsh(self.scatter / self.count), np.float64)
        rounding = len(variances) * np.finfo(np.float64).eps * max(float(variances[-1]), float(self.mean @ self.mean))
        return np.where(variances > rounding, variances, 0)

    @property
    def participation_ratio(self) -> float:
        """(sum l)^2 / sum l^2 of the variances l: how many dimensions would vary so if all varied alike."""
        variances = self.eigenvalues
        return _ratio(float(variances.sum() ** 2), float(np.square(variances).sum()))

    @property
    def effective_rank(self) -> float:
        """exp(-sum p ln p) of the variances as shares p (Roy and Vetterli 2007)."""
        variances = self.eigenvalues
        if not variances.any():
            return float("nan")
        shares = variances[variances > 0] / variances.sum()
        return float(np.exp(-(shares * np.log(shares)).sum()))

    @property
    def top_component(self) -> float:
        """The share of the variance that lies along the first principal component."""
        variances = self.eigenvalues
        return _ratio(float(variances[-1]), float(variances.sum()))

    def mev(self, *, centered: bool) -> float:
        """The maximum explainable variance of all vectors together, the baseline of a word's."""
        moment = self.scatter + self.count * np.outer(self.mean, self.mean)
        return mev_of_moment(moment, self.mean, self.count, centered=centered)


def _ratio(one: float, other: float) -> float:
    return one / other if other > 0 else float("nan")


class Moments:
    """The mean and the second moment of a layer; finishes as LayerMoments.

    Computed relative to the mean of the first rows (or to `shift` [feature]), so that a large common mean costs no
    digits.
    """

    def __init__(self, *, shift: NDArray[np.float64] | None = None) -> None:
        self._shift = shift

    def of_part(self, scope: Scope, start: int, stop: int) -> Moments:
        """The same for the occurrences `[start, stop)` alone."""
        return Moments(shift=self._near_mean(scope))

    def _near_mean(self, scope: Scope) -> NDArray[np.float64]:
        if self._shift is not None:
            return self._shift
        rows = scope.selection.rows[:_SHIFT_ROWS]
        vectors: NDArray[Any] = scope.selection.store.gather(rows, scope.layer)
        return np.asarray(vectors.astype(np.float64).mean(0))

    def init(self, scope: Scope) -> MomentSums:
        size = scope.hidden_size
        return MomentSums(
            torch.from_numpy(self._near_mean(scope)).to(scope.device, scope.dtype),
            torch.zeros(size, dtype=torch.float64, device=scope.device),
            torch.zeros(size, size, dtype=torch.float64, device=scope.device),
            torch.empty(size, size, dtype=scope.dtype, device=scope.device),
        )

    def update(self, state: MomentSums, batch: Batch) -> MomentSums:
        shifted = batch.vectors - state.shift
        state.second += symmetric_product(shifted.T, out=state.product)
        state.sum += shifted.sum(0, dtype=torch.float64)
        state.norms += float(batch.norms.sum(dtype=torch.float64))
        state.count += len(batch)
        return state

    def merge(self, state: MomentSums, other: MomentSums) -> MomentSums:
        state.second += other.second
        state.sum += other.sum
        state.norms += other.norms
        state.count += other.count
        return state

    def finish(self, state: MomentSums, scope: Scope) -> LayerMoments:
        total = state.sum.cpu().numpy()
        scatter = state.second.cpu().numpy() - np.outer(total, total) / state.count
        mean = state.shift.to(torch.float64).cpu().numpy() + total / state.count
        return LayerMoments(mean, scatter, state.norms / state.count, state.count)
