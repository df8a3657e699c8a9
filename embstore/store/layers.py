"""Resolve the layers that a caller names to layers that are stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from embstore.errors import InvalidValueError


def resolve_layer(layer: Any, stored: Sequence[int]) -> int:
    """Return the stored layer that `layer` names: its number, "last", or -1, -2 ... counted from the last one stored.

    Raises InvalidValueError for a layer that is not stored.
    """
    if isinstance(layer, (int, np.integer)) and not isinstance(layer, bool):
        if layer in stored:
            return int(layer)
        if -len(stored) <= layer < 0:
            return int(stored[int(layer)])
    elif isinstance(layer, str) and layer.strip() == "last":
        return int(stored[-1])
    listed = ", ".join(map(str, stored))
    raise InvalidValueError(f"layer {layer!r} is not stored: choose among {listed}, or -1 or 'last' for the last one")


def resolve_layers(layers: Any, stored: Sequence[int], *, ascending: bool = False) -> tuple[int, ...]:
    """Return the stored layers that are named: all for None or "all", one layer, or several.

    Each one may be given as in `resolve_layer`. They are in the order given, or with `ascending` sorted and distinct.
    Raises InvalidValueError for a layer that is not stored, and for none at all.
    """
    if layers is None or (isinstance(layers, str) and layers.strip() == "all"):
        return tuple(stored)
    if isinstance(layers, str | int | np.integer):
        return (resolve_layer(layers, stored),)
    if not isinstance(layers, Iterable):
        raise InvalidValueError(f"layers {layers!r} are not understood: give one layer, a list of layers, or 'all'")
    resolved = tuple(resolve_layer(layer, stored) for layer in layers)
    if not resolved:
        raise InvalidValueError(
            f"no layer is chosen: give one or more of {', '.join(map(str, stored))}, or None for all of them"
        )
    return tuple(sorted(set(resolved))) if ascending else resolved
