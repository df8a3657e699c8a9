"""What a statistic of attention is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from embstore.analysis.attention.maps import Maps, Shape


@dataclass(frozen=True)
class Values:
    """Values of all heads for the table of results, or one value of the corpus alone.

    `values`: float64 [layers, heads], or a number. `item`: of what, such as a relation; `offset`: a distance in
    positions. `baseline`: the value that needs no model. `count`: of how many, an array like `values` or a number.
    """

    metric: str
    item: str
    values: NDArray[np.float64] | float
    count: float
    offset: int | None = None
    baseline: float | None = None


class Statistic(ABC):
    """Sums over the attention maps of a corpus, from which values of each head are made at the end.

    A subclass adds to `sums` in `update`, which is called for each layer of each batch, and yields its values in
    `results`. The memory must not grow with the corpus. `needs`:
    the annotation without which there is nothing to count. `attention` takes objects of your own classes::

        class Strongest(es.analysis.Statistic):
            name = "strongest"

            def update(self, maps):
                self.add("largest", maps.layer, maps.values.amax(-1).sum((0, 2)))
                self.add("queries", maps.layer, maps.tokens.lengths.sum())

            def results(self):
                queries = self.sums["queries"]
                yield es.analysis.Values("strongest", "", self.sums["largest"] / queries[:, None], count=queries[0])
    """

    name: ClassVar[str] = ""
    needs: ClassVar[Literal["trees", "mentions"] | None] = None
    shape: Shape

    def __init__(self) -> None:
        self.sums: dict[str, NDArray[np.float64]] = {}

    def begin(self, shape: Shape) -> None:
        """Begin a pass over a corpus: forget what was summed before."""
        self.shape, self.sums = shape, {}

    @abstractmethod
    def update(self, maps: Maps) -> None:
        """Add the maps of one layer of a batch."""

    @abstractmethod
    def results(self) -> Iterator[Values]:
        """Yield the values of the whole corpus."""

    def add(self, key: str, layer: int, values: Any) -> None:
        """Add values of one shape in all calls to the sum of that name and layer, `sums[key][layer]`."""
        values = np.asarray(values.cpu() if hasattr(values, "cpu") else values, np.float64)
        if key not in self.sums:
            self.sums[key] = np.zeros((len(self.shape.layers), *values.shape))
        self.sums[key][layer] += values
