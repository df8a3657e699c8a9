"""The one table that notebooks show of stores, plans and indexes."""

from __future__ import annotations

from collections.abc import Iterable


def html_table(lines: Iterable[tuple[str, str]], caption: str = "") -> str:
    """Format names and values as an HTML table."""
    from html import escape

    head = f"<caption>{escape(caption)}</caption>" if caption else ""
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th><td style='text-align:left'>{escape(value)}</td></tr>"
        for name, value in lines
    )
    return f"<table>{head}{rows}</table>"
