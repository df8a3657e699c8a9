"""What notebooks show: of stores, plans and indexes a table, of results their frame with a line above it."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl


class Html(str):
    """Text that is HTML already."""


def html_shaded(pieces: Iterable[str], shades: Iterable[float], center: int) -> Html:
    """Format pieces of text, each shaded by a number up to 1 (none for 0 and less), the one at `center` in bold."""
    spans = []
    for number, (piece, shade) in enumerate(zip(pieces, shades, strict=True)):
        weight = ";font-weight:bold" if number == center else ""
        color = f"background:rgba(255,140,0,{min(max(shade, 0), 1):.2f}){weight}"
        spans.append(f"<span style='{color};white-space:pre-wrap'>{escape(piece.replace(chr(10), '↵'))}</span>")
    return Html("".join(spans))


def html_table(lines: Iterable[tuple[str, str]], caption: str = "") -> str:
    """Format names and values as an HTML table."""
    head = f"<caption>{escape(caption)}</caption>" if caption else ""
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th><td style='text-align:left'>"
        f"{value if isinstance(value, Html) else escape(value)}</td></tr>"
        for name, value in lines
    )
    return f"<table>{head}{rows}</table>"


def html_frame(about: object, frame: pl.DataFrame) -> str:
    """Format the repr of a result, without its angle brackets, and its frame."""
    return f"<p>{escape(repr(about).strip('<>'))}</p>{frame._repr_html_()}"
