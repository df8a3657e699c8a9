"""What every command prints: tables for people, JSON for programs, files by their suffix."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from embstore.errors import InvalidValueError, StorageError

if TYPE_CHECKING:
    import polars as pl

WIDTH = 120  # where the output is neither a terminal nor told how wide it is

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="Also write the table to FILE.{csv,parquet,json}.", metavar="FILE"),
]


def print_json(value: Any) -> None:
    """Print a value as JSON on standard output."""
    utf8 = (sys.stdout.encoding or "utf-8").lower().replace("-", "") == "utf8"
    json.dump(value, sys.stdout, ensure_ascii=not utf8, indent=2, default=str)
    sys.stdout.write("\n")


def width() -> int:
    """The columns that output may take."""
    return shutil.get_terminal_size((WIDTH, 24)).columns


def print_table(
    rows: Sequence[Mapping[str, Any]], *, title: str | None = None, right: Collection[str] = (), wrap: bool = True
) -> None:
    """Print rows as a table as wide as the terminal; numbers and the columns of `right` stand to the right."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(header_style="bold", box=None, pad_edge=False)
    for name in rows[0] if rows else []:
        numeric = all(isinstance(row[name], int | float | None) for row in rows)
        table.add_column(
            name, justify="right" if numeric or name in right else "left", no_wrap=numeric or not wrap, overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text.from_ansi(_cell(value)) for value in row.values()))
    console = Console(width=width(), highlight=False)
    if title is not None:
        console.print(Text(title, style="bold"))
    console.print(table)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def require_out(path: Path | None) -> None:
    """Raise InvalidValueError now where a table could not be written to `path` later."""
    if path is None:
        return
    if path.is_dir():
        raise InvalidValueError(f"--out {path} is a folder: give the name of a file")
    if path.suffix not in (".csv", ".parquet", ".json"):
        raise InvalidValueError(f"--out {path} has no known suffix: choose .csv, .parquet or .json")
    if not path.absolute().parent.is_dir():
        raise InvalidValueError(f"--out {path}: the folder {path.parent} does not exist: make it first")


def require_figure(path: Path | None, *, option: str) -> None:
    """Raise InvalidValueError now where a figure could not be written to `path` later."""
    if path is None:
        return
    from embstore.plot import SUFFIXES

    if path.is_dir():
        raise InvalidValueError(f"{option} {path} is a folder: give the name of a file")
    if path.suffix not in SUFFIXES:
        raise InvalidValueError(f"{option} {path} has no known suffix: choose {', '.join(SUFFIXES)}")
    if not path.absolute().parent.is_dir():
        raise InvalidValueError(f"{option} {path}: the folder {path.parent} does not exist: make it first")


def write_table(frame: pl.DataFrame, path: Path) -> None:
    """Write a frame to `path` in the format of its suffix, whole or not at all."""
    partial = path.with_name(f".{path.name}.new")
    writers: dict[str, Callable[[Path], object]] = {
        ".csv": frame.write_csv,
        ".parquet": frame.write_parquet,
        ".json": frame.write_json,
    }
    try:
        writers[path.suffix](partial)
        os.replace(partial, path)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def made_folder(folder: Path, *, option: str) -> Path:
    """The folder that an option names, made where it does not exist. Raises StorageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{option} {folder} cannot be made: {error.strerror or error}") from error
    return folder
