"""Seeds as they are typed."""

from __future__ import annotations

from embstore.errors import InvalidValueError


def seeds_of(text: str) -> tuple[int, ...]:
    """The seeds of `--seeds`, numbers joined by commas."""
    try:
        return tuple(int(each) for each in text.split(","))
    except ValueError:
        raise InvalidValueError(f"--seeds {text!r} is not allowed: give numbers, such as 0 or 1,2,3") from None
