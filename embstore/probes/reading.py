"""What probes of every family need: layers of a store, checked arguments, seeded draws."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from math import inf, nan
from numbers import Real
from pathlib import Path

import torch

from embstore.errors import InvalidValueError, quoted
from embstore.store import Selection, Store
from embstore.store.layout import Layers, resolve_layers

READ_AHEAD = 2  # batches that are read before they are needed
MAX_SEED = 2**63 - 1
VERIFY = "run embstore verify to find damaged rows"


def check_number(name: str, value: object, low: float, high: float = inf, *, above: bool = False) -> float:
    """Return a finite number; raises InvalidValueError unless it is `low` or more (`above`: more), and below `high`."""
    number = float(value) if type(value) is not bool and isinstance(value, Real) else nan
    if not (low < number if above else low <= number) or not number < high:
        least = f"more than {low:g}" if above else f"{low:g} or more"
        allowed = least if high == inf else f"{least}, below {high:g}"
        raise InvalidValueError(f"{name} {quoted(value)} is not allowed: give {allowed}")
    return number


def check_names(name: str, values: object) -> tuple[str, ...]:
    """Return names as a tuple; raises InvalidValueError unless they are texts in a list or tuple, each once."""
    if not isinstance(values, list | tuple) or not all(isinstance(each, str) for each in values):
        raise InvalidValueError(f"{name} {quoted(values)} are not allowed: give a list of names")
    require_distinct(name, values)
    return tuple(values)


def check_path(name: str, value: object) -> Path:
    """Return a path; raises InvalidValueError for anything but a text or a path, and for a null byte in it."""
    if not isinstance(value, str | os.PathLike) or "\0" in str(value):
        raise InvalidValueError(f"{name} {quoted(value)} is not a path: give the name of a file")
    return Path(value)


def layers_of(data: Store | Selection, layers: Layers) -> tuple[int, ...]:
    """Return the layers of a store or selection that are meant, ascending; see `Probe`.

    Raises InvalidValueError for a layer that is not stored.
    """
    store_of(data)
    return resolve_layers(layers, tuple(sorted(data.layers)), ascending=True)


def require_distinct(what: str, values: Sequence[object]) -> None:
    """Raise InvalidValueError for no values, or one that is given twice."""
    if not values or len(set(values)) < len(values):
        raise InvalidValueError(f"{what} must be one or more, each once, not {quoted(list(values))}")


def seeded(*key: object) -> torch.Generator:
    """Return a generator whose random numbers depend on the key only."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))


def store_of(data: Store | Selection) -> Store:
    """Return the store of what probes read; raises InvalidValueError for anything else."""
    if not isinstance(data, Store | Selection):
        raise InvalidValueError(f"{quoted(data)} is not a store: give what embstore.open or select returns")
    return data if isinstance(data, Store) else data.store
