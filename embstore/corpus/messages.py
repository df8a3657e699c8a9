"""How values look in error messages: on one line, not too long."""

from __future__ import annotations

from pathlib import Path


def shown(value: object) -> str:
    """A value, quoted."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:76]}...{text[-1]}"


def one_line(path: Path) -> str:
    """A path, as it is."""
    return " ".join(str(path).splitlines())
