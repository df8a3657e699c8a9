"""What the reports of studies share: a table as it is read, and its lines of Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Shown:
    """A table to be read: a title, what to know of it, and its rows."""

    title: str
    note: str
    rows: Sequence[Row]

    def markdown(self) -> list[str]:
        """A section: the title, the note and the table."""
        return [f"## {self.title}", "", *([self.note, ""] if self.note else []), *markdown(self.rows), ""]


def markdown(rows: Sequence[Row]) -> list[str]:
    """The lines of a table; its columns are those of all rows, in the order that they come up."""
    if not rows:
        return []
    head = list(dict.fromkeys(name for row in rows for name in row))
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    lines += [f"| {' | '.join(_cell(row.get(name)) for name in head)} |" for row in rows]
    return lines


def seconds_table(seconds: dict[str, float]) -> Shown:
    """What each step took."""
    return Shown("Time", "", [{"step": step, "seconds": f"{spent:,.1f}"} for step, spent in seconds.items()])


def decimals(value: float | None, places: int = 3) -> str:
    """A score, or nothing where there is none."""
    return "" if value is None else f"{value:.{places}f}"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")
