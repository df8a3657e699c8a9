"""What every command prints: tables and concordances for people, JSON for programs, files by their suffix."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import embstore as es
import embstore_cli.options as opt
from embstore.errors import InvalidValueError, StorageError

if TYPE_CHECKING:
    import polars as pl

WIDTH = 120  # where the output is not a terminal and COLUMNS does not say its width
GAP = 2
Parts = tuple[str, str, str]
PLAIN = ("occurrence", "word", "sentence", "position", "subwords", "source", "document", "text")
MIN_TEXT = 24  # columns of text to keep; labels are dropped first
MAX_LABEL = 12


def print_json(value: Any) -> None:
    """Print a value as JSON on standard output."""
    utf8 = (sys.stdout.encoding or "utf-8").lower().replace("-", "") == "utf8"
    json.dump(value, sys.stdout, ensure_ascii=not utf8, indent=2, default=str)
    sys.stdout.write("\n")


def print_notes(notes: Iterable[str]) -> None:
    """Print remarks on a result on standard error, a line each."""
    for note in notes:
        print(f"embstore: {note}", file=sys.stderr)


def width() -> int:
    """Return how many columns the output may take."""
    return shutil.get_terminal_size((WIDTH, 24)).columns


def print_table(
    rows: Sequence[Mapping[str, Any]], *, title: str | None = None, right: Collection[str] = (), wrap: bool = True
) -> None:
    """Print rows as a table as wide as the terminal; numbers and the columns of `right` are aligned to the right.

    A cell whose name a row does not have is empty. `wrap`: whether long text may continue on the next line.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    plain = bool(os.environ.get("NO_COLOR"))
    console = Console(width=width(), highlight=False, force_terminal=False if plain else None)
    if title is not None:
        console.print(Text(title, style="bold"))
    if not rows:
        return
    names = dict.fromkeys(name for row in rows for name in row)
    table = Table(header_style="bold", box=None, pad_edge=False)
    for name in names:
        numeric = all(isinstance(row.get(name), int | float | None) for row in rows)
        align = "right" if numeric or name in right else "left"
        table.add_column(name, justify=align, no_wrap=numeric or not wrap, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(Text.from_ansi(_cell(row.get(name))) for name in names))
    console.print(table)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def with_deviation(row: Mapping[str, Any] | None) -> Any:
    """Return the value of a row of scores, with its standard deviation over seeds where there are several."""
    if row is None or row["value"] is None:
        return None
    return round(row["value"], 4) if row["deviation"] is None else f"{row['value']:.3f}±{row['deviation']:.3f}"


def counted(count: int, noun: str) -> str:
    """Return a number and a noun: 1 word, 2 words."""
    return f"1 {noun}" if count == 1 else f"{count:,} {noun}s"


@dataclass(frozen=True)
class Output:
    """Where the table of a command goes. Raises InvalidValueError for a file that cannot be written later."""

    out: opt.Out = None
    as_json: opt.AsJson = False

    def __post_init__(self) -> None:
        require_file(self.out, "--out")

    def deliver(self, frame: pl.DataFrame) -> bool:
        """Write a result to --out and, for --json, to standard output; returns whether tables for people remain."""
        if self.out is not None:
            es.store.write_frame(frame, self.out)
        if self.as_json:
            print_json(frame.to_dicts())
        return not self.as_json


@dataclass(frozen=True)
class Drawing(Output):
    """Where the table and the figure of a command go."""

    plot: opt.Plot = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_file(self.plot, "--plot", (".png", ".svg", ".pdf"))

    def draw(self, make: Callable[[], Any]) -> None:
        """Write the figure that `make` returns to --plot, if that is given."""
        if self.plot is not None:
            es.plot.save(make(), self.plot)


def require_file(path: Path | None, option: str, suffixes: tuple[str, ...] = (".csv", ".parquet", ".json")) -> None:
    """Raise InvalidValueError where a file cannot be written later: a folder, another suffix, a missing folder."""
    if path is None:
        return
    if path.is_dir():
        raise InvalidValueError(f"{option} {path} is a folder: give the name of a file")
    if path.suffix not in suffixes:
        raise InvalidValueError(f"{option} {path} has no known suffix: choose {', '.join(suffixes)}")
    require_folder_of(path, option=option)


def require_folder_of(path: Path, *, option: str) -> None:
    """Raise InvalidValueError where the folder of a file to be written does not exist."""
    if not path.absolute().parent.is_dir():
        raise InvalidValueError(f"{option} {path}: the folder {path.parent} does not exist: create it first")


def create_folder(folder: Path, *, option: str) -> Path:
    """Return the folder of an option, created where it does not exist. Raises StorageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        is_wrong = error.errno in (errno.EEXIST, errno.ENOTDIR, errno.ENAMETOOLONG)
        kind = InvalidValueError if is_wrong else StorageError
        raise kind(f"{option} {folder} cannot be created: {error.strerror or error}") from error
    return folder


def print_concordance(
    rows: Sequence[Mapping[str, Any]], parts: Sequence[Parts], *, title: str, scores: Sequence[float] | None = None
) -> None:
    """Print rows of `Selection.table` in one line each, with a column of scores where they are given.

    `parts`: their sentences, see `Selection.concordance`.
    """
    shown = [f"{score:.3f}" for score in scores or ()]
    lines = concordance(rows, parts, width=width() - (GAP + max(map(len, shown)) if shown else 0))
    if shown:
        lines = [{"score": score, **line} for score, line in zip(shown, lines, strict=True)]
    print_table(lines, title=title, right=("score", "row", "left context"), wrap=False)


def concordance(rows: Sequence[Mapping[str, Any]], parts: Sequence[Parts], *, width: int) -> list[dict[str, str]]:
    """Return `row, left context, word, right context` and labels of rows of `Selection.table`, `width` wide."""
    from rich.cells import cell_len

    free = width - _column_width(rows, "occurrence") - max((cell_len(word) for _, word, _ in parts), default=0)
    free -= 3 * GAP
    labels = _labels(rows, most=min(width // 2, free - MIN_TEXT))
    free = max(0, free - sum(_column_width(rows, name) + GAP for name in labels))
    left = free // 2
    return [
        {
            "row": f"{row['occurrence']:,}",
            "left context": _keep_end(before.rstrip(), left),
            "word": word,
            "right context": _keep_start(after.lstrip(), free - left),
            **{name: _keep_start(_shown(row[name]), MAX_LABEL) for name in labels},
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
    from rich.cells import cell_len

    shown = (f"{row[name]:,}" if name == "occurrence" else _shown(row[name]) for row in rows)
    longest = max(map(cell_len, shown), default=0)
    return max(len("row" if name == "occurrence" else name), min(longest, MAX_LABEL))


def _shown(value: Any) -> str:
    """Return a label or the value of a field; nothing for None."""
    return "" if value is None else str(value)


def _keep_end(text: str, columns: int) -> str:
    return _keep_start(text[::-1], columns)[::-1]


def _keep_start(text: str, columns: int) -> str:
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= columns:
        return text
    return set_cell_size(text, columns - 1) + "…" if columns else ""
