"""CoNLL columns: a line is a word and its labels, and a blank line ends a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from embstore.corpus.formats.base import Format, ReadOptions
from embstore.corpus.lines import Lines
from embstore.corpus.sentence import Sentence, sentence_of_forms, underscore_as_none
from embstore.errors import InvalidValueError, check_column_name, quoted

SKIPPED = "-"
DOCUMENT_START = "-DOCSTART-"
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
    for block in lines.blocks(DOCUMENT_START):
        rows = []
        for number, line in block:
            is_tabbed = "\t" in line
            row = (
                [column.strip(" ") for column in line.split("\t")] if is_tabbed else list(filter(None, line.split(" ")))
            )
            if REST in names:
                if len(row) < len(names) - 1:
                    fewer = f"fewer than {','.join(names)} names"
                    raise lines.error(number, f'{_columns(row)}, {fewer}; give fitting columns="..."')
                at = names.index(REST)
                names = (*names[:at], *[SKIPPED] * (len(row) - len(names) + 1), *names[at + 1 :])
            if len(row) != len(names):
                expected = _columns(names)
                raise lines.error(
                    number, f"{_columns(row)} instead of {expected} (see the option columns): {quoted(line)}"
                )
            if "" in row:
                raise lines.error(number, f"a column is empty: {quoted(line)}")
            rows.append(row)
        yield [number for number, _ in block], rows, names


def _columns(row: Sequence[str]) -> str:
    return "1 column" if len(row) == 1 else f"{len(row)} columns"


def check_columns(names: Sequence[str]) -> None:
    """Raise InvalidValueError for other names than one a column, "word" once, "-" to skip one, "..." any number."""
    labels = [name for name in names if name not in (SKIPPED, REST)]
    if names.count(WORD) != 1:
        raise InvalidValueError(f'columns: {quoted(",".join(names))} must name "{WORD}" once')
    for name in set(labels) - {WORD}:
        check_column_name(name)
    if len(set(labels)) < len(labels) or names.count(REST) > 1:
        raise InvalidValueError(
            f'columns: {quoted(",".join(names))} repeats a name; "{SKIPPED}" skips a column, one "{REST}" any number'
        )


CONLL = Format("conll", (".conll", ".annotated"), read_conll, {"columns": ",".join(DEFAULT_COLUMNS)})
