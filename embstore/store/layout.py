"""The arithmetic of rows, partitions and shards, and which stored layers a caller names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from embstore.errors import InvalidValueError, quoted

SHARD_NBYTES = 256 * 2**20
SMALL_SHARD_NBYTES = 64 * 2**20
FEW_SHARDS = 8
CHUNK_ROWS = 256
RESIDUAL = "residual"
SITES = (
    RESIDUAL, "attention_output", "head_output", "mlp_output", "query", "key", "value", "residual_mid", "neurons"
)  # fmt: skip
ITEM_NBYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
Layer = int | str  # a number, -1 or "last"
Layers = Layer | Iterable[Layer] | None  # also "all", or a text such as "0,6-12"; None: all
_RANGE = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
_NUMBER = re.compile(r"-?[0-9]{1,9}")


@dataclass(frozen=True)
class Layout:
    """The shape of one site of a store, and which rows each partition has.

    A partition is exactly one shard: rows `[k * partition_rows, (k + 1) * partition_rows)` of all layers. Partitions
    are numbered over all sites of a store, one site after the other: `first` is the number of the site's first.
    """

    n_rows: int
    layers: tuple[int, ...]
    hidden_size: int
    dtype: str
    partition_rows: int
    site: str = RESIDUAL
    first: int = 0

    @classmethod
    def of(cls, *, n_rows: int, layers: tuple[int, ...], hidden_size: int, dtype: str) -> Layout:
        """Return the layout of the residual stream with the partition size of `partition_rows`."""
        return cls(n_rows, layers, hidden_size, dtype, partition_rows(n_rows, len(layers) * hidden_size, dtype))

    @property
    def vectors(self) -> str:
        """The name of the array that holds the vectors."""
        return "hidden_states" if self.site == RESIDUAL else self.site

    @property
    def n_partitions(self) -> int:
        return -(-self.n_rows // self.partition_rows)

    def span(self, partition: int) -> tuple[int, int]:
        """Return the rows `[start, stop)` of a partition, which may be one of another site."""
        start = partition % self.n_partitions * self.partition_rows
        return start, min(start + self.partition_rows, self.n_rows)

    @property
    def row_nbytes(self) -> int:
        """The bytes of one row in all layers."""
        return len(self.layers) * self.hidden_size * ITEM_NBYTES[self.dtype]

    @property
    def partition_nbytes(self) -> int:
        return self.partition_rows * self.row_nbytes


def partition_rows(n_rows: int, n_features: int, dtype: str) -> int:
    """Choose the rows of a partition: the largest power of two of at most 256 MiB, and no more than needed.

    `n_features`: of a row, in all layers and sites. A store of less than 2 GiB has smaller partitions, an eighth of it
    but at least 64 MiB, because the last one is written while nothing else is left to do.
    """
    row_nbytes = n_features * ITEM_NBYTES[dtype]
    nbytes = min(SHARD_NBYTES, max(SMALL_SHARD_NBYTES, n_rows * row_nbytes // FEW_SHARDS))
    fitting = max(CHUNK_ROWS, 1 << (max(nbytes // row_nbytes, 1).bit_length() - 1))
    needed = max(CHUNK_ROWS, 1 << max(n_rows - 1, 0).bit_length())
    return min(fitting, needed)


def resolve_layer(layer: Any, stored: Sequence[int], *, absent: str = "is not stored") -> int:
    """Return the stored layer that `layer` names: its number, "last", or -1, -2 ... from the last one stored."""
    if isinstance(layer, (int, np.integer)) and not isinstance(layer, bool):
        if layer in stored:
            return int(layer)
        if -len(stored) <= layer < 0:
            return int(stored[int(layer)])
    elif isinstance(layer, str) and layer.strip() == "last":
        return int(stored[-1])
    listed = ", ".join(map(str, stored))
    raise InvalidValueError(f"layer {quoted(layer)} {absent}: choose among {listed}, or -1 or 'last' for the last one")


def resolve_layers(
    layers: Any, stored: Sequence[int], *, ascending: bool = False, absent: str = "is not stored"
) -> tuple[int, ...]:
    """Return the stored layers that are named: all for None or "all", one layer, or several.

    Each one may be given as in `resolve_layer`, several also as text such as "0,6-12,last". They are in the order
    given, or with `ascending` sorted and distinct. Raises InvalidValueError for a layer that is not stored, and for
    none at all.
    """
    if type(layers) is int and layers in stored:  # first, as few rows are read in microseconds
        return (layers,)
    if layers is None or (isinstance(layers, str) and layers.strip() == "all"):
        return tuple(stored)
    if isinstance(layers, str):
        layers = _parsed(layers)
    elif isinstance(layers, int | np.integer):
        layers = (layers,)
    if not isinstance(layers, Iterable):
        raise InvalidValueError(
            f"layers {quoted(layers)} are not understood: give one layer, a list of layers, or 'all'"
        )
    resolved = tuple(resolve_layer(layer, stored, absent=absent) for layer in layers)
    if not resolved:
        raise InvalidValueError(
            f"no layer is chosen: give one or more of {', '.join(map(str, stored))}, or None for all of them"
        )
    return tuple(sorted(set(resolved))) if ascending else resolved


def is_one_layer(layers: Any) -> bool:
    """Return whether layers are given as the number of one, or as "last": then an array has no axis of layers."""
    return isinstance(layers, (int, np.integer)) or (isinstance(layers, str) and layers.strip() == "last")


def one_layer(layers: Any, stored: Sequence[int], *, absent: str = "is not stored") -> int:
    """Return the stored layer that is named. Raises InvalidValueError for several and for one that is not stored."""
    resolved = resolve_layers(layers, stored, absent=absent)
    if len(resolved) > 1:
        raise InvalidValueError(f"layers {quoted(layers)} are {len(resolved)} layers: give one")
    return resolved[0]


def _parsed(text: str) -> Iterator[int | str]:
    """Yield the layers in a text, one by one, since a range may be longer than memory."""
    for part in map(str.strip, text.split(",")):
        if (found := _RANGE.fullmatch(part)) and int(found[1]) <= int(found[2]):
            yield from range(int(found[1]), int(found[2]) + 1)
        else:
            yield int(part) if _NUMBER.fullmatch(part) else part
