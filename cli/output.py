"""What every command prints: tables and concordances for people, JSON for programs, files by their suffix."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import embstore as es
import embstore_cli.options as opt
from embstore.errors import COLUMNS, CONTROLS, InvalidValueError, visible

if TYPE_CHECKING:
    import polars as pl

WIDTH = 120  # where the output is not a terminal and COLUMNS does not say its width
GAP = 2
Parts = tuple[str, str, str]
WIDTH_OF_A_LABEL = 50  # columns of the output for each column of labels, so that text keeps most of them
SCORE = 6
MAX_LABEL = 12


def print_json(value: Any) -> None:
    """Print a value as JSON on standard output; NaN and infinite numbers, which JSON does not have, as null."""
    utf8 = (sys.stdout.encoding or "utf-8").lower().replace("-", "") == "utf8"
    plain = json.loads(json.dumps(value, default=str), parse_constant=lambda _: None)
    text = json.dumps(plain, ensure_ascii=not utf8, indent=2)
    print(CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def print_notes(notes: Iterable[str]) -> None:
    """Print remarks on a result on standard error, a line each."""
    for note in notes:
        print(visible(f"embstore: {note}"), file=sys.stderr)


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
    file = getattr(sys.stdout, "stream", sys.stdout)  # which takes colors
    console = Console(file=file, width=width(), highlight=False, force_terminal=False if plain else None)
    if title is not None:
        console.print(Text(visible(re.sub(r"\r\n?|\n", "↵", title)), style="bold"))
    if not rows:
        return
    names = dict.fromkeys(name for row in rows for name in row)
    table = Table(header_style="bold", box=None, pad_edge=False)
    for name in names:
        numeric = all(isinstance(row.get(name), int | float | None) for row in rows)
        align = "right" if numeric or name in right else "left"
        table.add_column(name, justify=align, no_wrap=numeric or not wrap, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(Text(visible(_cell(row.get(name)))) for name in names))
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
            print_notes([f"{self.out} is written"])
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
            print_notes([f"{self.plot} is written"])


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


def print_concordance(
    rows: Sequence[Mapping[str, Any]], parts: Sequence[Parts], *, title: str, scores: Sequence[float] | None = None
) -> None:
    """Print rows of `Selection.table` in one line each, with a column of scores where they are given.

    `parts`: their sentences, see `Selection.concordance`.
    """
    lines = concordance(rows, parts, width=width() - (SCORE + GAP if scores else 0))
    if scores:
        lines = [{"score": f"{score:.3f}", **line} for score, line in zip(scores, lines, strict=True)]
    print_table(lines, title=title, right=("score", "row", "left context"), wrap=False)


def concordance(rows: Sequence[Mapping[str, Any]], parts: Sequence[Parts], *, width: int) -> list[dict[str, str]]:
    """Return `row, left context, word, right context` and labels of rows of `Selection.table`, `width` wide."""
    from rich.cells import cell_len, set_cell_size

    def kept(text: str, columns: int) -> str:
        if cell_len(text) <= columns:
            return text
        return set_cell_size(text, columns - 1) + "…" if columns else ""

    def in_line(text: str) -> str:
        return visible(re.sub(r"\r\n?|\n", "↵", text).expandtabs(4))

    labels = [name for name in (rows[0] if rows else ()) if name not in COLUMNS and any(row[name] for row in rows)]
    labels = labels[: width // WIDTH_OF_A_LABEL]
    lines = [
        {
            "row": f"{row['occurrence']:,}",
            "left context": in_line(before).rstrip(),
            "word": in_line(word or row["word"]),  # white space has a form alone
            "right context": in_line(after).lstrip(),
            **{name: kept(str(row[name] or ""), MAX_LABEL) for name in labels},
        }
        for row, (before, word, after) in zip(rows, parts, strict=True)
    ]
    names = ("row", "word", *labels)
    taken = sum(max(cell_len(line[name]) for line in [{name: name}, *lines]) + GAP for name in names)
    free = max(0, width - taken - GAP)
    for line in lines:
        line["left context"] = kept(line["left context"][::-1], free // 2)[::-1]
        line["right context"] = kept(line["right context"], free - free // 2)
    return lines
