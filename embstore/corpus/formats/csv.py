"""CSV and TSV files with a header, whose columns are those of rows; separated by commas, tabs or semicolons."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from embstore.corpus.formats.base import TABLE_OPTIONS, Format, ReadOptions
from embstore.corpus.formats.rows import DEFAULT_TEXT, read_rows
from embstore.corpus.lines import MAX_SENTENCE, Lines
from embstore.corpus.sentence import Sentence
from embstore.errors import quoted

# The kinds of values, and how they are written; 007, 1_000 and long identifiers are text.
KINDS: tuple[tuple[Callable[[str], object], re.Pattern[str]], ...] = (
    (int, re.compile(r"-?(?:0|[1-9]\d{0,14})", re.ASCII)),
    (float, re.compile(r"-?(?:0|[1-9]\d{0,14})(?:\.\d+)?(?:[eE][-+]?\d{1,2})?", re.ASCII)),
    (str, re.compile(r"[\s\S]*")),
)


def read_csv(lines: Lines, options: ReadOptions) -> Iterator[Sentence]:
    """Yield the sentences of each row, one document; a column whose values are all numbers holds numbers,
    and an empty value is None.

    The file is read twice, first for the kinds of its columns.
    """
    if not lines.path.is_file():
        raise lines.file_error("is a pipe, and CSV is read twice: write it to a file first")
    names, rows = _table(lines)
    kinds = [2 * (name == (options.text or DEFAULT_TEXT)) for name in names]  # of KINDS
    for _, row in rows:
        for at, value in enumerate(row):
            while value and not KINDS[kinds[at]][1].fullmatch(value):
                kinds[at] += 1
    parse = [KINDS[kind][0] for kind in kinds]

    def typed(row: list[str]) -> dict[str, object]:
        return {name: of(value) if value else None for name, of, value in zip(names, parse, row, strict=True)}

    _, rows = _table(lines)
    rows_typed = ((number, typed(row)) for number, row in rows)
    return read_rows(rows_typed, options, error=lines.error, name=lines.path.name)


def _table(lines: Lines) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    rows = _rows(lines)
    number, names = next(rows, (1, []))
    if not any(names):
        raise lines.error(number, "no header: the first line names the columns")
    if len(set(names)) < len(names):
        raise lines.error(number, f"two columns have the same name: {quoted(','.join(names))}")
    return names, rows


def _rows(lines: Lines) -> Iterator[tuple[int, list[str]]]:
    """Yield the fields of each row that is not blank, with the number of its first line."""
    lines = replace(lines, keeps_returns=True)  # those in quotes are text
    header = next(filter(str.strip, lines), "")
    csv.field_size_limit(MAX_SENTENCE)
    reader = csv.reader((f"{line}\n" for line in lines), delimiter=max(",\t;", key=header.count), strict=True)
    number, width = 1, 0
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            reason = "a row ends with a carriage return alone: write line feeds" if "new-line" in str(error) else error
            raise lines.error(number, f"not CSV: {reason}") from None
        if row is None:
            return
        if row:
            width = width or len(row)
            if len(row) != width:
                raise lines.error(number, f"{len(row)} fields instead of {width}, as in the header: {quoted(row)}")
            yield number, row
        number = reader.line_num + 1


CSV = Format("csv", (".csv", ".tsv"), read_csv, TABLE_OPTIONS)
