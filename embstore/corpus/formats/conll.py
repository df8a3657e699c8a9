"""CoNLL columns: a line is a word and its labels, and a blank line ends a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from embstore.corpus.formats.base import Format, ReadOptions
from embstore.corpus.lines import Lines
from embstore.corpus.sentence import Sentence, sentence_of_forms, underscore_as_none
from embstore.errors import InvalidValueError, check_column_name, quoted

SKIPPED = "-"
WORD = "word"
REST = "..."
DEFAULT_COLUMNS = (WORD, REST, "label")


def read_conll(lines: Lines, options: ReadOptions) -> Iterator[Sentence]:
    """Yield a sentence for each block of lines, with a label column for each named column except the word's."""
    for _, rows, names in column_blocks(lines, options.columns):
        columns = dict(zip(names, zip(*rows, strict=True), strict=True))
        words = columns.pop(WORD)
        labels = {name: underscore_as_none(column) for name, column in columns.items() if name != SKIPPED}
        yield sentence_of_forms(words, labels)


def column_blocks(lines: Lines, names: tuple[str, ...]) -> Iterator[tuple[list[int], list[list[str]], tuple[str, ...]]]:
    """Yield the line numbers, the columns and the column names of each block of lines."""
    width = None if REST in names else len(names)
    numbers: list[int] = []
    rows: list[list[str]] = []
    length = 0
    for number, line in enumerate(lines, 1):
        if not line or line.isspace():
            row = []
        elif "\t" in line:
            row = [column.strip(" ") for column in line.split("\t")]
        else:
            row = list(filter(None, line.split(" ")))
        if not row or row[0] == "-DOCSTART-":
            if rows:
                yield numbers, rows, names
                numbers, rows, length = [], [], 0
            continue
        if width is None:
            width = len(row)
            if width < len(names) - 1:
                raise lines.error(
                    number,
                    f'{_columns(width)}, fewer than {",".join(names)} names; give fitting columns="..."',
                )
            at = names.index(REST)
            names = (*names[:at], *[SKIPPED] * (width - len(names) + 1), *names[at + 1 :])
        if len(row) != width:
            raise lines.error(
                number, f"{_columns(len(row))} instead of {_columns(width)} (see the option columns): {quoted(line)}"
            )
        if "" in row:
            raise lines.error(number, f"a column is empty: {quoted(line)}")
        length = lines.sentence_length(number, length, line)
        numbers.append(number)
        rows.append(row)
    if rows:
        yield numbers, rows, names


def _columns(count: int) -> str:
    return "1 column" if count == 1 else f"{count} columns"


def parse_columns(columns: str | Sequence[str]) -> tuple[str, ...]:
    """Parse the option `columns`: one name a column, "word" once, "-" for a column to skip, "..." for any number.

    Raises InvalidValueError for names that are repeated or not allowed.
    """
    given = columns.split(",") if isinstance(columns, str) else columns
    if not isinstance(given, Sequence) or not all(isinstance(name, str) for name in given):
        raise InvalidValueError(f"columns: {quoted(columns)} are not names, such as word,-,label")
    names = tuple(name.strip() for name in given)
    labels = [name for name in names if name not in (SKIPPED, REST)]
    if names.count(WORD) != 1:
        raise InvalidValueError(f'columns: {quoted(",".join(names))} must name "{WORD}" once')
    for name in set(labels) - {WORD}:
        check_column_name(name)
    if len(set(labels)) < len(labels) or names.count(REST) > 1:
        raise InvalidValueError(
            f'columns: {quoted(",".join(names))} repeats a name; "{SKIPPED}" skips a column, one "{REST}" any number'
        )
    return names


CONLL = Format("conll", (".conll", ".annotated"), read_conll, columns=DEFAULT_COLUMNS)
