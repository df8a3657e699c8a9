"""Measures of a whole layer, each a reducer whose result is a number.

A new one is a class in a file of this folder and a line of `MEASURES`: `es.geometry` takes it by its name. One whose
state is larger than a vector of float64 says so in `state_nbytes`, by which the memory for states is shared out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from embstore.analysis.scan import Batch, Scope


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


MEASURES: dict[str, Callable[[], Any]] = {"mean_norm": MeanNorm}
