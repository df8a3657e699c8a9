"""The metadata of a store: everything that made it, as JSON under the attribute "embstore"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Dropped:
    """Words that got no row, for one reason: how many, and the first few named with their sentence."""

    reason: str
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Metadata:
    """What a store is and what made it; two stores of equal `recipe` hold the same rows.

    `model`: the fields of ModelInfo. `corpus`: name, format, sha256, sentences, and the reader's options.
    `extraction`: unit, pooling, keep (which occurrences), max_length, context_window, attention_window,
    batching, batch_subwords, compute_dtype, seed. `software`: versions of the packages that began the store; they
    are not part of the recipe.
    """

    rows: int
    layers: tuple[int, ...]
    hidden_size: int
    dtype: str
    partition_rows: int
    model: Mapping[str, Any]
    corpus: Mapping[str, Any]
    extraction: Mapping[str, Any]
    dropped: tuple[Dropped, ...] = ()
    software: Mapping[str, str] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION
