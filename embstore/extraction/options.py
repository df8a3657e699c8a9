"""What the user may choose about an extraction, checked before anything is read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, get_args

from embstore.corpus.keep import Keep
from embstore.errors import InvalidValueError
from embstore.extraction.windows import Context
from embstore.models.encoder import Pooling
from embstore.store.layout import ITEM_NBYTES

UNITS = ("word", "subword")
UNLIMITED_LENGTH = 1024  # subwords, for a model whose positions have no end
CONTEXT_RULE = (
    "only the words at most context_window words left and right of the target are given to the model, "
    "with its special subwords around them"
)
ATTENTION_RULE = (
    "at every layer a word attends to the words at most attention_window words away and to the special subwords, "
    "these only to each other"
)


@dataclass(frozen=True)
class Options:
    """The choices that decide what a store holds.

    `max_length` and `batch_subwords` count subwords, special ones included; `max_length` None is the model's limit.
    `context_window`, `attention_window`: how many words left and right of a target the model is given, and how many
    a word attends to; None: all of the sentence. `context_windows`: all that are extracted together, where there are
    several, which decides the batches.
    """

    unit: str = "word"
    pooling: Pooling = "mean"
    keep: Keep = field(default_factory=Keep)
    dtype: str = "float16"
    max_length: int | None = None
    batch_subwords: int = 2048
    seed: int = 0
    context_window: Context = None
    attention_window: Context = None
    context_windows: tuple[Context, ...] | None = None

    def __post_init__(self) -> None:
        _one_of("unit", self.unit, UNITS)
        _one_of("pooling", self.pooling, get_args(Pooling))
        _one_of("dtype", self.dtype, ITEM_NBYTES)
        if self.max_length is not None and self.max_length < 1:
            raise InvalidValueError(f"max length {self.max_length} is not allowed: give 1 or more subwords")
        if self.batch_subwords < 1:
            raise InvalidValueError(f"batch size {self.batch_subwords} is not allowed: give 1 or more subwords")
        for name in ("context", "attention"):
            check_window(name, getattr(self, f"{name}_window"))
        if self.context_window is not None and self.attention_window is not None:
            raise InvalidValueError(
                f"context window {self.context_window} and attention window {self.attention_window} cannot be had "
                "together: give one of them"
            )

    @property
    def contexts(self) -> tuple[Context, ...]:
        """The context windows that are cut from a sentence together; (None,) where the sentence is given whole."""
        return (self.context_window,) if self.context_windows is None else self.context_windows

    @property
    def cuts_windows(self) -> bool:
        return self.contexts != (None,)

    @property
    def encoding(self) -> dict[str, Any]:
        """What an encoder is told beside the pooling and the layers."""
        return {} if self.attention_window is None else {"attention_window": self.attention_window}

    def as_json(self) -> dict[str, Any]:
        return {
            "unit": self.unit,
            "pooling": self.pooling,
            "keep": self.keep.as_json(),
            "max_length": self.max_length,
            "context_window": self.context_window,
            "attention_window": self.attention_window,
            "batch_subwords": self.batch_subwords,
            "seed": self.seed,
            **self._windows_in_words(),
        }

    def _windows_in_words(self) -> dict[str, Any]:
        told: dict[str, Any] = {}
        if self.context_windows is not None:
            told["context_windows"] = list(self.context_windows)
        if self.context_window is not None:
            told["window_rule"] = CONTEXT_RULE
        if self.attention_window is not None:
            told["window_rule"] = ATTENTION_RULE
        return told


def check_window(name: str, window: object) -> None:
    """Raise InvalidValueError, in one line, for what is not a width of a window."""
    if window is not None and (not isinstance(window, int) or isinstance(window, bool) or window < 0):
        raise InvalidValueError(
            f"{name} window {window!r} is not allowed: give 0 or more words, or none for the whole sentence"
        )


def window_name(window: Context) -> str:
    """A width as it is written: the number of words, or full."""
    return "full" if window is None else str(window)


def parse_windows(text: str, *, name: str) -> tuple[Context, ...]:
    """Read widths such as "0,2,16,full", ascending and each once; `name`: what they are, for the error."""
    found = []
    for part in text.split(","):
        word = part.strip()
        if word != "full" and not word.isdecimal():
            raise InvalidValueError(
                f"{name} window {word!r} cannot be read: give 0 or more words, full, or several joined by commas"
            )
        found.append(None if word == "full" else int(word))
    return in_order(found)


def in_order(windows: Iterable[Context]) -> tuple[Context, ...]:
    """Widths ascending, the whole sentence last, each once."""
    given = set(windows)
    return (*sorted(window for window in given if window is not None), *([None] if None in given else []))


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
