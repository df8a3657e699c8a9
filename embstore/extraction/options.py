"""The options of an extraction, checked before a corpus or a model is read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, get_args

from embstore.corpus import Keep
from embstore.errors import InvalidValueError
from embstore.models.encoder import Pooling
from embstore.store.layout import ITEM_NBYTES

Window: TypeAlias = int | None  # words left and right of the target; None: the whole sentence

UNITS = ("word", "subword")
CONTEXT_RULE = (
    "only the words at most context_window words left and right of the target are given to the model, "
    "with its special subwords around them"
)
ATTENTION_RULE = (
    "at every layer a word attends to the words at most attention_window words away and to the special subwords, "
    "these only to each other"
)


@dataclass(frozen=True)
class ExtractionOptions:
    """What a store holds of a corpus: the layers, the rows, and how each vector is made.

    Parameters
    ----------
    layers:
        "all", "last", "0,6-12" or numbers; 0 is the embedding output, l the output of block l, -1 the last layer.
    unit:
        "word" for a row a word, "subword" for a row a subword.
    pooling:
        How the subwords of a word become one vector: "mean", "first", "last" or "max".
    context_window:
        The model is given only this many words left and right of each target; None: the whole sentence.
    attention_window:
        The model is given the whole sentence, and at every layer a word attends to the words this many words away;
        None: to all of them.
    keep:
        Which occurrences get a row.
    dtype:
        The stored type: "float16", "float32", "bfloat16" or "int8".
    max_length:
        Sentences are cut after this many subwords, special ones included; None: the model's own limit.
    batch_subwords:
        The size of a batch in subwords, special ones included; None: what suits the device, or what an existing store
        was made with.
    seed:
        Seed of whatever is drawn at random.

    Raises
    ------
    InvalidValueError
        For a value that is not allowed.
    """

    layers: str | int | Iterable[int] = "all"
    unit: str = "word"
    pooling: Pooling = "mean"
    context_window: Window = None
    attention_window: Window = None
    keep: Keep = field(default_factory=Keep)
    dtype: str = "float16"
    max_length: int | None = None
    batch_subwords: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.layers, str | int):
            object.__setattr__(self, "layers", tuple(int(layer) for layer in self.layers))
        _check_choice("unit", self.unit, UNITS)
        _check_choice("pooling", self.pooling, get_args(Pooling))
        _check_choice("dtype", self.dtype, ITEM_NBYTES)
        if self.max_length is not None and self.max_length < 1:
            raise InvalidValueError(f"max length {self.max_length} is not allowed: give 1 or more subwords")
        if self.batch_subwords is not None and self.batch_subwords < 1:
            raise InvalidValueError(f"batch size {self.batch_subwords} is not allowed: give 1 or more subwords")
        for name in ("context", "attention"):
            check_window(name, getattr(self, f"{name}_window"))
        if self.context_window is not None and self.attention_window is not None:
            raise InvalidValueError(
                f"context window {self.context_window} and attention window {self.attention_window} exclude each "
                "other: give one of them"
            )

    @property
    def encoding(self) -> dict[str, Any]:
        """The arguments of `Encoder.encode` that these options decide, except for the layers."""
        arguments: dict[str, Any] = {"pooling": self.pooling, "batch_subwords": self.batch_subwords}
        if self.attention_window is not None:
            arguments["attention_window"] = self.attention_window
        return arguments

    def as_json(self, contexts: tuple[Window, ...]) -> dict[str, Any]:
        """The options in the metadata of a store; `contexts`: the context windows that are extracted together."""
        document: dict[str, Any] = {
            "unit": self.unit,
            "pooling": self.pooling,
            "keep": self.keep.as_json(),
            "max_length": self.max_length,
            "context_window": self.context_window,
            "attention_window": self.attention_window,
            "batch_subwords": self.batch_subwords,
            "seed": self.seed,
        }
        if len(contexts) > 1:
            document["context_windows"] = list(contexts)
        if self.context_window is not None:
            document["window_rule"] = CONTEXT_RULE
        if self.attention_window is not None:
            document["window_rule"] = ATTENTION_RULE
        return document


def _check_choice(name: str, value: str, allowed: Iterable[str]) -> None:
    if value not in allowed:
        raise InvalidValueError(f"unknown {name} {value!r}: choose one of {', '.join(allowed)}")


def check_window(name: str, window: object) -> None:
    """Raise InvalidValueError for anything but the width of a window."""
    if window is not None and (not isinstance(window, int) or isinstance(window, bool) or window < 0):
        raise InvalidValueError(
            f"{name} window {window!r} is not allowed: give 0 or more words, or None for the whole sentence"
        )


def window_name(window: Window) -> str:
    """Return the width of a window as text: the number of words, or full."""
    return "full" if window is None else str(window)


def sorted_windows(windows: Iterable[Window]) -> tuple[Window, ...]:
    """Return widths in ascending order, the whole sentence last, each once."""
    given = set(windows)
    return (*sorted(window for window in given if window is not None), *([None] if None in given else []))


def parse_layers(layers: str | int | Iterable[int], *, num_hidden_layers: int) -> tuple[int, ...]:
    """Return layer numbers in ascending order from "all", "last", "0,6,12", "0-6,12" or numbers; -1 is the last.

    Layer 0 is the embedding output, layer l the output of block l.
    """
    if isinstance(layers, str):
        numbers = _parse_layer_text(layers, num_hidden_layers)
    else:
        numbers = [layers] if isinstance(layers, int) else [int(layer) for layer in layers]
    for number in numbers:
        if not -num_hidden_layers - 1 <= number <= num_hidden_layers:
            raise InvalidValueError(
                f"layer {number} does not exist: the model has layers 0 (embeddings) to {num_hidden_layers}"
            )
    if not numbers:
        raise InvalidValueError(f"layers {layers!r} select no layer: give some of 0 to {num_hidden_layers}, or 'all'")
    return tuple(sorted({number % (num_hidden_layers + 1) for number in numbers}))


def _parse_layer_text(text: str, num_hidden_layers: int) -> list[int]:
    if text.strip() == "all":
        return list(range(num_hidden_layers + 1))
    if text.strip() == "last":
        return [num_hidden_layers]
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
