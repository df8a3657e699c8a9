"""Sizes in bytes as people write them."""

from __future__ import annotations

from embstore.errors import InvalidValueError

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def nbytes_of(text: str, *, option: str) -> int:
    """The bytes that "500MB", "1.5GiB", "2g" or "1000000" means. Raises InvalidValueError, naming the option."""
    compact = text.replace(" ", "").lower().removesuffix("b")
    digits = compact.rstrip("kmgti")
    unit = compact[len(digits) :]
    try:
        size = int(float(digits) * _UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        size = 0
    if size < 1:
        raise InvalidValueError(
            f"{option} {text!r} is not a size: give bytes, or a number with a unit such as 500MB or 2GiB"
        )
    return size
