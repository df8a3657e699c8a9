"""What the user may choose about an extraction, checked before anything is read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, get_args

from embstore.corpus.keep import Keep
from embstore.errors import InvalidValueError
from embstore.models.encoder import Pooling
from embstore.store.layout import ITEM_NBYTES

UNITS = ("word", "subword")
UNLIMITED_LENGTH = 1024  # subwords, for a model whose positions have no end


@dataclass(frozen=True)
class Options:
    """The choices that decide what a store holds.

    `max_length` and `batch_subwords` count subwords, special ones included; `max_length` None is the model's limit.
    """

    unit: str = "word"
    pooling: Pooling = "mean"
    keep: Keep = field(default_factory=Keep)
    dtype: str = "float16"
    max_length: int | None = None
    batch_subwords: int = 2048
    seed: int = 0

    def __post_init__(self) -> None:
        _one_of("unit", self.unit, UNITS)
        _one_of("pooling", self.pooling, get_args(Pooling))
        _one_of("dtype", self.dtype, ITEM_NBYTES)
        if self.max_length is not None and self.max_length < 1:
            raise InvalidValueError(f"max length {self.max_length} is not allowed: give 1 or more subwords")
        if self.batch_subwords < 1:
            raise InvalidValueError(f"batch size {self.batch_subwords} is not allowed: give 1 or more subwords")

    def as_json(self) -> dict[str, Any]:
        return {
            "unit": self.unit,
            "pooling": self.pooling,
            "keep": self.keep.as_json(),
            "max_length": self.max_length,
            "context_window": None,
            "attention_window": None,
            "batch_subwords": self.batch_subwords,
            "seed": self.seed,
        }


def _one_of(name: str, value: str, allowed: Iterable[str]) -> None:
    if value not in allowed:
        raise InvalidValueError(f"{name} {value!r} is not known: choose one of {', '.join(allowed)}")


def parse_layers(layers: str | Iterable[int], *, num_hidden_layers: int) -> tuple[int, ...]:
    """Return the layers meant, ascending: "all", "last", "0,6,12", "0-6,12" or numbers; -1 is the last.

    Layer 0 is the embedding output, layer l the output of block l.
    """
    numbers = _numbers(layers, num_hidden_layers) if isinstance(layers, str) else [int(layer) for layer in layers]
    for number in numbers:
        if not -num_hidden_layers - 1 <= number <= num_hidden_layers:
            raise InvalidValueError(
                f"layer {number} does not exist: the model has layers 0 (embeddings) to {num_hidden_layers}"
            )
    if not numbers:
        raise InvalidValueError(f"layers {layers!r} choose none: give some of 0 to {num_hidden_layers}, or 'all'")
    return tuple(sorted({number % (num_hidden_layers + 1) for number in numbers}))


def _numbers(text: str, num_hidden_layers: int) -> list[int]:
    named = {"all": range(num_hidden_layers + 1), "last": range(num_hidden_layers, num_hidden_layers + 1)}
    if text.strip() in named:
        return list(named[text.strip()])
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-") if not part.strip().startswith("-") else (part, "", "")
        try:
            numbers.extend(range(int(first), int(last if dash else first) + 1))
        except ValueError:
            raise InvalidValueError(
                f"layers {text!r} cannot be read: give 'all', 'last' or numbers and ranges like 0,3,6-12"
            ) from None
    return numbers
