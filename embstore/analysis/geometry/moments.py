"""Moments of the vectors of a layer: mean length, mean and second moment, and the shape that its spectrum describes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.analysis.geometry.spectra import share_of_first, symmetric_product
from embstore.analysis.scan import Batch, Scope
from embstore.errors import NonFiniteError

_SHIFT_ROWS = 256  # whose mean is near enough to that of all, so that sums of squares lose no precision


@dataclass
class MomentSums:
    """Sums over vectors x minus `shift`: of x and of x x^T (both float64), and the count.

    `shift` is about the mean of the first vectors, None before there are any. `product` is the buffer for x x^T of a
    block: allocating it for each block would grow the process.
    """

    sum: torch.Tensor
    second: torch.Tensor
    product: torch.Tensor
    shift: torch.Tensor | None = None
    count: int = 0


@dataclass(frozen=True)
class LayerMoments:
    """The `mean` [feature] of a layer and its `scatter` [feature, feature], the sum of products of centered vectors."""

    mean: NDArray[np.float64]
    scatter: NDArray[np.float64]
    count: int

    @cached_property
    def eigenvalues(self) -> NDArray[np.float64]:
        """The variances along the principal components, ascending; float64 [feature]."""
        variances = np.asarray(np.linalg.eigvalsh(self.scatter / self.count), np.float64)
        rounding = len(variances) * np.finfo(np.float64).eps * max(float(variances[-1]), float(self.mean @ self.mean))
        return np.where(variances > rounding, variances, 0)

    @property
    def participation_ratio(self) -> float:
        """(sum l)^2 / sum l^2 of the variances l: the number of dimensions if all had the same variance."""
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
        """The share of the variance along the first principal component."""
        variances = self.eigenvalues
        return _ratio(float(variances[-1]), float(variances.sum()))

    def mev(self) -> float:
        """The maximum explainable variance of all vectors together: the baseline for that of a word.

        NaN if all are zero. Raises NonFiniteError.
        """
        moment = self.scatter + self.count * np.outer(self.mean, self.mean)
        if not np.isfinite(moment).all():
            raise NonFiniteError("the second moment holds a value that is not finite: some vectors are not finite")
        return float(share_of_first(torch.from_numpy(moment)[None])[0])


def _ratio(one: float, other: float) -> float:
    return one / other if other > 0 else float("nan")


class Moments:
    """A reducer for the mean and the second moment of a layer; its result is a LayerMoments.

    Sums are relative to the mean of the first vectors of a part, so that a large common mean costs no precision.
    """

    def state_nbytes(self, hidden_size: int) -> int:
        """The bytes of a state at most."""
        return 16 * hidden_size * (hidden_size + 2)

    def init(self, scope: Scope) -> MomentSums:
        size = scope.hidden_size
        return MomentSums(
            sum=torch.zeros(size, dtype=torch.float64, device=scope.device),
            second=torch.zeros(size, size, dtype=torch.float64, device=scope.device),
            product=torch.empty(size, size, dtype=scope.dtype, device=scope.device),
        )

    def update(self, state: MomentSums, batch: Batch) -> MomentSums:
        if state.shift is None:
            state.shift = batch.vectors[:_SHIFT_ROWS].double().mean(0).to(batch.vectors.dtype)
        shifted = batch.vectors - state.shift
        state.second += symmetric_product(shifted.T, out=state.product)
        state.sum += shifted.sum(0, dtype=torch.float64)
        state.count += len(batch)
        return state

    def merge(self, state: MomentSums, other: MomentSums) -> MomentSums:
        if state.shift is None or other.shift is None:
            return other if state.shift is None else state
        difference = other.shift.double() - state.shift.double()
        state.second += other.second
        state.second.addr_(difference, other.sum).addr_(other.sum, difference)
        state.second.addr_(difference, difference, alpha=other.count)
        state.sum += other.sum + other.count * difference
        state.count += other.count
        return state

    def finish(self, state: MomentSums, scope: Scope) -> LayerMoments:
        total = state.sum.cpu().numpy()
        scatter = state.second.cpu().numpy() - np.outer(total, total) / state.count
        shift = np.zeros_like(total) if state.shift is None else state.shift.double().cpu().numpy()
        return LayerMoments(shift + total / state.count, scatter, state.count)


class MeanNorm:
    """The mean Euclidean length of the vectors."""

    def init(self, scope: Scope) -> tuple[float, int]:
        return 0.0, 0

    def update(self, state: tuple[float, int], batch: Batch) -> tuple[float, int]:
        total, count = state
        return total + float(batch.norms.double().sum()), count + len(batch)

    def merge(self, state: tuple[float, int], other: tuple[float, int]) -> tuple[float, int]:
        return state[0] + other[0], state[1] + other[1]

    def finish(self, state: tuple[float, int], scope: Scope) -> float:
        return state[0] / state[1]
