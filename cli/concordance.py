"""Occurrences of a word in their sentences, aligned on the word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size

from embstore_cli.output import print_table, width

PLAIN = ("occurrence", "word", "sentence", "position", "subwords", "source", "text")
MIN_TEXT = 24  # columns of text to keep; labels are dropped first
MAX_LABEL = 12
GAP = 2


def print_concordance(rows: Sequence[Mapping[str, Any]], *, title: str, scores: Sequence[float] | None = None) -> None:
    """Print rows of `Selection.table` in one line each, with a column of scores where they are given."""
    shown = [f"{score:.3f}" for score in scores or ()]
    lines = concordance(rows, width=width() - (GAP + max(map(len, shown)) if shown else 0))
    if shown:
        lines = [{"score": score, **line} for score, line in zip(shown, lines, strict=True)]
    print_table(lines, title=title, right=("score", "row", "left context"), wrap=False)


def concordance(rows: Sequence[Mapping[str, Any]], *, width: int) -> list[dict[str, str]]:
    """Return `row, left context, word, right context` and labels of rows of `Selection.table`, `width` wide."""
    parts = [_parts(row) for row in rows]
    free = width - _column_width(rows, "occurrence") - max((cell_len(word) for _, word, _ in parts), default=0)
    free -= 3 * GAP
    labels = _labels(rows, most=min(width // 2, free - MIN_TEXT))
    free = max(0, free - sum(_column_width(rows, name) + GAP for name in labels))
    left = free // 2
    return [
        {
            "row": f"{row['occurrence']:,}",
            "left context": _keep_end(before, left),
            "word": word,
            "right context": _keep_start(after, free - left),
            **{name: _keep_start(row[name] or "", MAX_LABEL) for name in labels},
        }
        for row, (before, word, after) in zip(rows, parts, strict=True)
    ]


def _labels(rows: Sequence[Mapping[str, Any]], *, most: int) -> list[str]:
    """Return the label columns that are set in any of these rows, as far as they fit into `most` columns."""
    chosen: list[str] = []
    for name in rows[0] if rows else []:
        if name not in PLAIN and any(row[name] is not None for row in rows):
            chosen.append(name)
            if sum(_column_width(rows, label) + GAP for label in chosen) > most:
                chosen.pop()
    return chosen


def _column_width(rows: Sequence[Mapping[str, Any]], name: str) -> int:
    longest = max(cell_len(f"{row[name]:,}" if name == "occurrence" else row[name] or "") for row in rows)
    return max(len("row" if name == "occurrence" else name), min(longest, MAX_LABEL))


def _parts(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the text before a word, the word, and the text after it."""
    words = row["text"].split(" ")
    start: int = row["position"]
    stop = start + len(row["word"].split(" "))
    return " ".join(words[:start]), " ".join(words[start:stop]), " ".join(words[stop:])


def _keep_end(text: str, columns: int) -> str:
    if cell_len(text) <= columns:
        return text
    return "…" + set_cell_size(text[::-1], columns - 1)[::-1] if columns else ""


def _keep_start(text: str, columns: int) -> str:
    if cell_len(text) <= columns:
        return text
    return set_cell_size(text, columns - 1) + "…" if columns else ""
