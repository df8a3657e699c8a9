"""Exceptions and warnings of embstore.

Every exception derives from `EmbstoreError` and from the builtin exception that fits it, and its message is one line
that names the value, what is allowed and what to do. `exit_status` is the exit status of the command line: 2 for input
that the user can correct, 1 for a failure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

# What steers a terminal: control characters but for tab and line feed, and marks that turn the direction of text.
CONTROLS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """Return a text with characters that steer a terminal as escapes, such as \\x1b."""
    return CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


class EmbstoreError(Exception):
    """Base class of all exceptions that embstore raises on purpose; the message is one line, whatever it names."""

    exit_status = 1

    def __str__(self) -> str:
        return visible(" ".join(super().__str__().splitlines()))


class InputError(EmbstoreError):
    """Base class of the exceptions for what the user can correct: an option, a path, a file."""

    exit_status = 2


class InvalidValueError(InputError, ValueError):
    """An option or argument has a value that is not allowed; `near` has words like it that are."""

    near: Sequence[str] = ()


class CorpusError(InputError, ValueError):
    """A corpus, or a file of words or labels, cannot be read; the message names file and line."""


class CorpusNotFoundError(CorpusError, FileNotFoundError):
    """The path of a corpus, or of a file of words or labels, does not exist."""


class ModelError(InputError, ValueError):
    """A model cannot be loaded, or does not support the requested operation."""


class WordVectorsError(InputError, ValueError):
    """A file of word vectors cannot be read or written; the message names file and line."""


class DeviceMemoryError(EmbstoreError, MemoryError):
    """A model, or a single sentence, does not fit into the memory of a device."""


class NonFiniteError(EmbstoreError, ArithmeticError):
    """A hidden state is NaN, infinite, or outside the range of the store's dtype."""


class StoreNotFoundError(InputError, FileNotFoundError):
    """The path of a store does not exist."""


class StoreFormatError(InputError, ValueError):
    """The path does not hold a store, or one of a format that this version cannot read."""


class StoreMismatchError(InputError, ValueError):
    """The existing store was made with other settings than the plan's; the message names the difference."""


class StoreBusyError(EmbstoreError, RuntimeError):
    """Another process is writing to the store."""


class StoreDamagedError(EmbstoreError, RuntimeError):
    """Stored bytes differ from those that were committed."""


class SearchIndexError(InputError, ValueError):
    """A search index is stale, damaged, or belongs to another store; the message says how to rebuild it."""


class SearchIndexNotFoundError(SearchIndexError, FileNotFoundError):
    """The store has no search index of this name."""


class SavedProbesError(InputError, ValueError):
    """Saved probes are damaged or of a newer format; the message says what to do."""


class MissingRowsError(EmbstoreError, LookupError):
    """Requested rows have not been written yet."""


class StorageError(EmbstoreError, OSError):
    """The disk is full, or a path cannot be read or written."""


class ExecutorError(EmbstoreError, RuntimeError):
    """Workers cannot be reached, were lost, or cannot do their tasks."""


class MissingPackageError(InputError, ImportError):
    """An optional package is not installed; the message names the extra that installs it."""


# Package -> the extra that installs it. Reading a store needs none of them.
EXTRAS = {
    "accelerate": "large",
    "duckdb": "sql",
    "faiss": "faiss-cpu",
    "matplotlib": "plots",
    "safetensors": "extract",
    "sentencex": "extract",
    "sklearn": "clusters",
    "spacy": "extract",
    "torch": "extract",
    "transformers": "extract",
}


def missing_package(error: ModuleNotFoundError) -> Exception:
    """Return the error that says how to install an optional package, or the error itself for any other module."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return error
    return MissingPackageError(f'this needs the package {package}: pip install "embstore[{EXTRAS[package]}]"')


class EmbstoreWarning(UserWarning):
    """Base class of all warnings that embstore issues."""


class SmallerBatchesWarning(EmbstoreWarning):
    """A batch did not fit into the memory of a device; it and the following ones are run in parts."""


class AppendedTwiceWarning(EmbstoreWarning):
    """A corpus is in a store already, and was not appended again."""


class RecomputedWarning(EmbstoreWarning):
    """Rows that were computed again differ from those committed in their last bits."""


class UnfinishedStoreWarning(EmbstoreWarning):
    """The opened store has partitions that are not written yet."""


def quoted(value: object) -> str:
    """Return the repr of a value for an error message, in one line of at most 80 characters."""
    try:
        text = " ".join(repr(value).splitlines())
    except ValueError:  # a number of more digits than Python converts
        text = f"<{type(value).__name__}>"
    text = " ".join(text.split()) if "\n" in text else text
    return text if len(text) <= 80 else f"{text[:76]}...{text[-1]}"


def check_type(name: str, value: object, kinds: type | tuple[type, ...], expected: str) -> None:
    """Raise InvalidValueError for a value of another type; `expected`: what to give instead, for the message."""
    if not isinstance(value, kinds):
        raise InvalidValueError(f"{name} {quoted(value)} is not allowed: give {expected}")


# The columns of every table of occurrences
COLUMNS = ("occurrence", "word", "sentence", "position", "subwords", "source", "document", "start", "stop", "text")


def check_column_name(name: object) -> None:
    """Raise InvalidValueError for a label column whose name cannot be part of a path, or is taken in every table."""
    if name in COLUMNS:
        raise InvalidValueError(f"label column {quoted(name)}: every occurrence table has one; choose another name")
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w.-]*", name):
        raise InvalidValueError(
            f"label column {quoted(name)}: a name is made of letters, digits, '_', '-' and '.', "
            f"and begins with a letter, a digit or '_'"
        )


def check_whole(name: str, value: object, least: int, most: int | None = None, *, unit: str = "") -> int:
    """Return a whole number as an int; raises InvalidValueError for anything but one from `least` to `most`.

    `unit`: what is counted, such as "words", for the message.
    """
    number = int(value) if type(value) is not bool and isinstance(value, Integral) else None
    if number is None or number < least or (most is not None and number > most):
        allowed = f"{least} or more" if most is None else f"{least} to {most:,}"
        raise InvalidValueError(f"{name} {quoted(value)} is not allowed: give {allowed} {unit}".rstrip())
    return number


def check_choice(name: str, value: object, allowed: Iterable[str]) -> None:
    """Raise InvalidValueError for anything but one of the allowed names."""
    allowed = list(allowed)
    if not isinstance(value, str) or value not in allowed:
        raise InvalidValueError(f"unknown {name} {quoted(value)}; allowed are {', '.join(allowed)}")


def check_columns(frame: Any, names: Iterable[str], what: str) -> None:
    """Raise InvalidValueError for anything but a frame with all these columns; `what`: its name for the message."""
    columns = getattr(frame, "columns", None)
    if columns is None:
        raise InvalidValueError(f"{what} is {quoted(frame)}: give a Polars frame")
    for name in names:
        if name not in columns:
            raise InvalidValueError(f"{what} has no column {name!r}: it has {', '.join(columns) or 'none'}")
