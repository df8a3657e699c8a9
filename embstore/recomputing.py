"""The function that computes rows again which a virtual store does not keep; registered, so that stores import none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Take: TypeAlias = Callable[[int, Mapping[str, Any]], object]  # is given a partition's number and its arrays

# (reader of the store, number of a partition, take, where the model is if that is known): computes the partition, and
# those that are encoded together with it
Recompute: TypeAlias = Callable[[Any, int, Take, str | None], None]

_registered: list[Recompute] = []


def register(recompute: Recompute) -> None:
    """Use a function for every virtual store that is read from now on."""
    _registered[:] = [recompute]


def recompute(reader: Any, number: int, take: Take, model: str | None = None) -> None:
    """Compute a partition of a store, and those that are encoded together with it, and give `take` each."""
    _registered[0](reader, number, take, model)
