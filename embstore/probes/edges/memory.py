"""How much memory edge probes take, and how many of them may be trained at a time."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidValueError
from embstore.probes.edges.batches import GROUP_NBYTES, READ_AHEAD
from embstore.probes.edges.columns import LargestBatch
from embstore.probes.edges.model import EdgeShape
from embstore.store import Store

FLOAT = 4
HELD = 2  # copies of the weights of every probe: those it begins with and those it ends with
TRAINED = 5  # copies for one in training: its own, their slopes, two of Adam, those of its best epoch
MARGIN = 1.1  # what is freed and not given back at once


@dataclass(frozen=True)
class EdgeMemory:
    """Bytes that training takes: `rooms` for vectors, `held` for all probes, `training` and `asking` for each.

    `asking`: what a probe that answers, and does not learn, takes for a batch.
    """

    rooms: int
    held: int
    training: int
    asking: int

    @classmethod
    def of(cls, shape: EdgeShape, probes: int, largest: LargestBatch, store: Store) -> EdgeMemory:
        """For probes of a shape, whose largest batch is of that size."""
        row_nbytes = shape.layers * shape.width * store.vector_dtype.itemsize
        room = max(largest.rows * row_nbytes, min(largest.all_rows * row_nbytes, GROUP_NBYTES))
        parameters = sum(prod(size) for size in shape.tensor_shapes().values())
        activations = _activations(shape, largest)
        return cls(
            room * (READ_AHEAD + 1),
            FLOAT * HELD * probes * parameters,
            int(MARGIN * FLOAT * (TRAINED * parameters + activations)),
            int(MARGIN * FLOAT * activations),
        )

    def groups(self, probes: int, memory: int) -> list[NDArray[np.int64]]:
        """The probes in as few groups, of about one size, as each needs to be trained within `memory`.

        Raises InvalidValueError where not even one probe can be.
        """
        most = (memory - self.rooms - self.held) // self.training
        if most < 1:
            needed = self.rooms + self.held + self.training
            raise InvalidValueError(
                f"memory {_shown(memory)} is not enough: one probe takes {_shown(needed)} with the vectors of a batch; "
                "give more, a smaller batch_size or fewer layers"
            )
        return np.array_split(np.arange(probes), -(-probes // most))

    def asked(self, probes: int, memory: int) -> list[NDArray[np.int64]]:
        """The probes in groups that may answer at a time: of one, where there is no room for more."""
        most = max(1, (memory - self.rooms - self.held) // self.asking)
        return np.array_split(np.arange(probes), -(-probes // most))


def _activations(shape: EdgeShape, largest: LargestBatch) -> int:
    """The numbers that a probe makes of a batch, and their slopes."""
    words = 2 * largest.rows * (shape.width + shape.spans) + largest.entries
    spans = 2 * largest.spans * (shape.width + shape.projection)
    targets = largest.targets * (4 * shape.spans * shape.projection + 4 * shape.hidden_size + 5 * shape.labels)
    joined = 2 * shape.spans * shape.hidden_size * shape.width
    return words + spans + targets + joined


def _shown(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.1f} MB" if nbytes >= 1e6 else f"{nbytes / 1e3:,.1f} kB"
