"""What notebooks show: of stores, plans and indexes a table, of results their frame with a line above it."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl


def html_table(lines: Iterable[tuple[str, str]], caption: str = "") -> str:
    """Format names and values as an HTML table."""
    head = f"<caption>{escape(caption)}</caption>" if caption else ""
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th><td style='text-align:left'>{escape(value)}</td></tr>"
        for name, value in lines
    )
    return f"<table>{head}{rows}</table>"


def html_frame(about: object, frame: pl.DataFrame) -> str:
    """Format the repr of a result, without its angle brackets, and its frame."""
    return f"<p>{escape(repr(about).strip('<>'))}</p>{frame._repr_html_()}"
