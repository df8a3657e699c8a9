"""CoNLL columns: a word a line with its labels beside it, a blank line between sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from embstore.corpus.formats.format import Format, Options
from embstore.corpus.labels import check_column
from embstore.corpus.lines import Lines
from embstore.corpus.messages import shown
from embstore.corpus.phrases import filled, sentence_of
from embstore.corpus.sentence import Sentence
from embstore.errors import InvalidValueError

SKIPPED = "-"
WORD = "word"
REST = "..."
DEFAULT_COLUMNS = (WORD, REST, "label")


def read_conll(lines: Lines, options: Options) -> Iterator[Sentence]:
    """Yield a sentence a block of lines, with a label column each named column but the word's."""
    for _, rows, names in column_blocks(lines, options.columns):
        yield _sentence(rows, names)


def column_blocks(lines: Lines, names: tuple[str, ...]) -> Iterator[tuple[list[int], list[list[str]], tuple[str, ...]]]:
    """Yield the words of each block of lines: the numbers of their lines, their columns and the names of these."""
    width = None if REST in names else len(names)
    numbers: list[int] = []
    rows: list[list[str]] = []
    for number, line in enumerate(lines, 1):
        row = _row(line)
        if not row or row[0] == "-DOCSTART-":
            if rows:
                yield numbers, rows, names
                numbers, rows = [], []
            continue
        if width is None:
            names = _without_rest(names, len(row), lines, number)
            width = len(row)
        if len(row) != width:
            raise lines.error(
                number,
                f"{_columns(len(row))} where {_columns(width)} were due (see the option columns): {shown(line)}",
            )
        if "" in row:
            raise lines.error(number, f"a column is empty: {shown(line)}")
        numbers.append(number)
        rows.append(row)
    if rows:
        yield numbers, rows, names


def _row(line: str) -> list[str]:
    """The columns of a line, separated by tabs, or else by spaces; none of a blank line."""
    if not line or line.isspace():
        return []
    if "\t" in line:
        return [column.strip(" ") for column in line.split("\t")]
    return list(filter(None, line.split(" ")))


def _without_rest(names: tuple[str, ...], width: int, lines: Lines, number: int) -> tuple[str, ...]:
    """The names of as many columns as the first line has."""
    if width < len(names) - 1:
        raise lines.error(
            number,
            f'{_columns(width)}, but the columns asked for are {",".join(names)}; give columns="..." to fit',
        )
    at = names.index(REST)
    return (*names[:at], *[SKIPPED] * (width - len(names) + 1), *names[at + 1 :])


def parse_columns(columns: str | Sequence[str]) -> tuple[str, ...]:
    """Read the option `columns`: a name each column, joined by commas; "word" once, "-" for one to skip.

    One "..." stands for any number of columns to skip.
    """
    names = tuple(name.strip() for name in (columns.split(",") if isinstance(columns, str) else columns))
    labels = [name for name in names if name not in (SKIPPED, REST)]
    if names.count(WORD) != 1:
        raise InvalidValueError(f'columns: {shown(",".join(names))} must name "{WORD}" once')
    for name in labels:
        check_column(name)
    if len(set(labels)) < len(labels) or names.count(REST) > 1:
        raise InvalidValueError(
            f'columns: {shown(",".join(names))} repeats a name; "{SKIPPED}" skips a column, one "{REST}" any number'
        )
    return names


def _columns(many: int) -> str:
    return "1 column" if many == 1 else f"{many} columns"


def _sentence(rows: Sequence[Sequence[str]], names: Sequence[str]) -> Sentence:
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    words = columns.pop(WORD)
    return sentence_of(words, {name: filled(column) for name, column in columns.items() if name != SKIPPED})


CONLL = Format("conll", (".conll", ".annotated"), read_conll, columns=DEFAULT_COLUMNS)
