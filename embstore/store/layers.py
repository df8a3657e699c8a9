"""Reading which of the layers of a store or file are meant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from embstore.errors import InvalidValueError


def chosen_layers(layers: str | int | Iterable[int] | None, stored: Sequence[int]) -> tuple[int, ...]:
    """Return the layers meant, ascending, each once: None or "all", "last", "0,6-12", a number or numbers.

    Raises InvalidValueError for one that is not stored, and where none is chosen.
    """
    if layers is None:
        return tuple(stored)
    if isinstance(layers, str):
        return _parsed(layers, stored)
    numbers = [layers] if isinstance(layers, int | np.integer) else list(layers)
    for number in numbers:
        if isinstance(number, bool) or number not in stored:
            raise _not_stored(number, stored)
    if not numbers:
        raise InvalidValueError(f"no layer is chosen: give some of {_listed(stored)}")
    return tuple(sorted({int(number) for number in numbers}))


def _parsed(text: str, stored: Sequence[int]) -> tuple[int, ...]:
    if text.strip() == "all":
        return tuple(stored)
    if text.strip() == "last":
        return (stored[-1],)
    numbers: set[int] = set()
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        ends = [first, last] if dash else [first, first]
        if not all(end.isascii() and end.isdecimal() and len(end) < 10 for end in ends) or int(ends[0]) > int(ends[1]):
            raise InvalidValueError(
                f"layers {text!r} cannot be read: give 'all', 'last' or numbers and ranges like 0,3,6-12"
            )
        for number in range(int(ends[0]), int(ends[1]) + 1):
            if number not in stored:
                raise _not_stored(number, stored)
            numbers.add(number)
    return tuple(sorted(numbers))


def _not_stored(number: object, stored: Sequence[int]) -> InvalidValueError:
    return InvalidValueError(f"layer {number!r} is not stored: there are the layers {_listed(stored)}")


def _listed(stored: Sequence[int]) -> str:
    return ", ".join(map(str, stored))
