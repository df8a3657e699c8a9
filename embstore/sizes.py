"""Sizes in bytes as people write them: 500MB, 2GiB."""

from __future__ import annotations

from embstore.errors import InvalidValueError, check_whole, quoted

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_nbytes(size: int | str, *, name: str) -> int:
    """Return the bytes of a number or of a text such as "500MB", "1.5GiB" or "2g".

    Raises InvalidValueError, which names the option `name`, for anything else and for less than one byte.
    """
    nbytes = 0
    if not isinstance(size, str):
        nbytes = check_whole(name, size, 1, unit='bytes, or a text such as "2GiB"')
    else:
        compact = size.replace(" ", "").lower().removesuffix("b")
        digits = compact.rstrip("kmgti")
        try:
            nbytes = int(float(digits) * _UNITS[compact[len(digits) :]])
        except (ValueError, KeyError, OverflowError):
            nbytes = 0
    if nbytes < 1:
        raise InvalidValueError(
            f"{name} {quoted(size)} is not a size: give bytes, or a number with a unit such as 500MB or 2GiB"
        )
    return nbytes
