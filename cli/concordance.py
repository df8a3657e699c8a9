"""A word's occurrences in their sentences, one under the other, the word in the middle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size

PLAIN = ("occurrence", "word", "sentence", "position", "subwords", "source", "text")
LEAST = 24  # columns of text; labels are left out rather than leave it less
WIDEST_LABEL = 12
GAP = 2


def concordance(rows: Sequence[Mapping[str, Any]], *, width: int) -> list[dict[str, str]]:
    """Return `row, left context, word, right context` and labels of rows of `Selection.contexts`, `width` wide."""
    words = [_word(row) for row in rows]
    room = width - _widest(rows, "occurrence") - max(map(cell_len, words), default=0) - 3 * GAP
    labels = _labels(rows, most=min(width // 2, room - LEAST))
    room = max(0, room - sum(_widest(rows, name) + GAP for name in labels))
    left = room // 2
    return [
        {
            "row": f"{row['occurrence']:,}",
            "left context": _end(before, left),
            "word": word,
            "right context": _begin(after, room - left),
            **{name: _begin(row[name] or "", WIDEST_LABEL) for name in labels},
        }
        for row, word, (before, after) in zip(rows, words, map(_around, rows), strict=True)
    ]


def _labels(rows: Sequence[Mapping[str, Any]], *, most: int) -> list[str]:
    """The label columns that say something of these rows, as far as `most` columns of the terminal hold them."""
    chosen: list[str] = []
    for name in rows[0] if rows else []:
        if name not in PLAIN and any(row[name] is not None for row in rows):
            chosen.append(name)
            if sum(_widest(rows, label) + GAP for label in chosen) > most:
                chosen.pop()
    return chosen


def _widest(rows: Sequence[Mapping[str, Any]], name: str) -> int:
    longest = max(cell_len(f"{row[name]:,}" if name == "occurrence" else row[name] or "") for row in rows)
    return max(len("row" if name == "occurrence" else name), min(longest, WIDEST_LABEL))


def _word(row: Mapping[str, Any]) -> str:
    words = row["text"].split(" ")
    start: int = row["position"]
    return " ".join(words[start : start + _length(row)])


def _length(row: Mapping[str, Any]) -> int:
    return len(row["word"].split(" "))


def _around(row: Mapping[str, Any]) -> tuple[str, str]:
    words = row["text"].split(" ")
    start: int = row["position"]
    return " ".join(words[:start]), " ".join(words[start + _length(row) :])


def _end(text: str, room: int) -> str:
    if cell_len(text) <= room:
        return text
    return "…" + set_cell_size(text[::-1], room - 1)[::-1] if room else ""


def _begin(text: str, room: int) -> str:
    if cell_len(text) <= room:
        return text
    return set_cell_size(text, room - 1) + "…" if room else ""
