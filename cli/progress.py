"""Progress bars on standard error, none where it is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Advance(Protocol):
    """Say how much is done, and of how much where that was not known before."""

    def __call__(self, done: int, total: int | None = None, /) -> None: ...


@contextmanager
def progress_bar(text: str, *, total: int | None, unit: str) -> Iterator[Advance]:
    """Show a bar with rate and time left; yields a function that takes how much is done."""
    if not sys.stderr.isatty():
        yield lambda done, total=None: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Count(TextColumn):
        def render(self, task: object) -> Text:
            done, whole = getattr(task, "completed", 0), getattr(task, "total", None)
            return Text(f"{done:,.0f}" if whole is None else f"{done:,.0f}/{whole:,.0f}")

    class Rate(TextColumn):
        def render(self, task: object) -> Text:
            speed = getattr(task, "finished_speed", None) or getattr(task, "speed", None)
            return Text(f"{speed:,.0f} {unit}/s" if speed else unit)

    columns = [TextColumn("{task.description}"), BarColumn(24), Count(""), Rate(""), TimeRemainingColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task: TaskID = bars.add_task(text, total=total)

        def advance(done: int, total: int | None = None, /) -> None:
            bars.update(task, completed=done, total=total)

        yield advance
