"""Which group each occurrence of a selection is in: its word, its sentence, its word and label."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.analysis.scan import Batch

CACHED_NBYTES = 64 * 2**20


@dataclass(frozen=True)
class Members:
    """The occurrences of one block by group.

    `groups`: int64 [g], ascending, the groups found. `order`: int64 [m], the members, those of one group
    together. `starts`: int64 [g], where each group begins in `order`. `lengths`: int64 [g].
    """

    groups: torch.Tensor
    order: torch.Tensor
    starts: torch.Tensor
    lengths: torch.Tensor

    @property
    def nbytes(self) -> int:
        return 8 * (3 * len(self.groups) + len(self.order))


@dataclass
class Grouping:
    """A group for each occurrence of a selection: `codes` int64 [n], -1 for none; `count` groups.

    `first`: which of the selection's occurrences the first code is of. What is worked out for a block is kept for the
    next layer, up to 64 MiB.
    """

    codes: NDArray[np.int64]
    count: int
    first: int = 0
    _kept: dict[tuple[int, int], Members] = field(default_factory=dict)
    _kept_nbytes: int = 0

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """How many occurrences each group has, int64 [count]."""
        return np.bincount(self.codes[self.codes >= 0], minlength=self.count)

    @property
    def contiguous(self) -> bool:
        """Whether each group's occurrences follow each other, in order of the groups."""
        codes = self.codes[self.codes >= 0]
        return bool((codes[1:] >= codes[:-1]).all())

    def codes_of(self, batch: Batch) -> NDArray[np.int64]:
        """The group of each occurrence of a block, int64 [n]."""
        return self.codes[batch.start - self.first : batch.start - self.first + len(batch)]

    def of_part(self, start: int, stop: int) -> Grouping:
        """The same groups for the occurrences `[start, stop)` alone; `sizes` stay those of all occurrences."""
        part = Grouping(self.codes[start - self.first : stop - self.first], self.count, start)
        part.sizes = self.sizes
        return part

    def __getstate__(self) -> dict[str, Any]:
        """What travels: the codes, and of the groups that are met here their sizes."""
        met = np.unique(self.codes)
        met = met[met >= 0]
        codes = self.codes.astype(np.int32) if self.count < 2**31 else self.codes
        return {"codes": codes, "count": self.count, "first": self.first, "met": met, "sizes": self.sizes[met]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.codes, self.count, self.first = state["codes"].astype(np.int64), state["count"], state["first"]
        self.sizes = np.zeros(self.count, np.int64)
        self.sizes[state["met"]] = state["sizes"]
        self._kept, self._kept_nbytes = {}, 0

    def members(self, batch: Batch) -> Members:
        key = batch.start, len(batch)
        found = self._kept.get(key)
        if found is None:
            found = _members(self.codes_of(batch), batch.vectors.device)
            if self._kept_nbytes + found.nbytes <= CACHED_NBYTES:
                self._kept[key] = found
                self._kept_nbytes += found.nbytes
        return found


def _members(codes: NDArray[np.int64], device: torch.device) -> Members:
    order = np.argsort(codes, kind="stable")
    order = order[np.searchsorted(codes[order], 0) :]
    ordered = codes[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    lengths = np.diff(starts, append=len(ordered))
    arrays = (ordered[starts], order, starts, lengths)
    return Members(*(torch.from_numpy(array).to(device) for array in arrays))


def group_sums(batch: Batch, members: Members, *, unit: bool) -> torch.Tensor:
    """Sum the vectors, or the unit vectors, of each group of a block: [g, hidden_size]."""
    weights = batch.unit_scale[members.order] if unit else None
    return torch.nn.functional.embedding_bag(
        members.order, batch.vectors, members.starts, mode="sum", per_sample_weights=weights
    )
