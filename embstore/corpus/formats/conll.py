"""CoNLL columns, a line for each word and a blank line after each sentence; and CoNLL-U, of Universal Dependencies."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from embstore.corpus.formats.base import Format, ReadOptions
from embstore.corpus.lines import Lines
from embstore.corpus.sentence import Document, Sentence, sentence_of_forms, underscore_as_none
from embstore.errors import InvalidValueError, check_column_name, quoted

SKIPPED = "-"
DOCUMENT_START = "-DOCSTART-"
WORD = "word"
REST = "..."
DEFAULT_COLUMNS = (WORD, REST, "label")
N_COLUMNS = 10  # of CoNLL-U
ID, FORM, LEMMA, UPOS, XPOS, HEAD, DEPREL, MISC = 0, 1, 2, 3, 4, 6, 7, 9
NEWDOC_ID = "newdoc_id"  # the field with the id of a document
NO_SPACE = "SpaceAfter=No"
_RANGE = re.compile(r"([1-9][0-9]{0,8})-([1-9][0-9]{0,8})")
_NEWDOC = re.compile(r"#\s*newdoc(?:\s+id\s*=\s*(.*?))?\s*")
_TEXT = re.compile(r"#\s*text\s*=(.*)")
_EMPTY_NODE = re.compile(r"([0-9]{1,9})\.[1-9][0-9]*")


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
            row = [column.strip(" ") for column in line.split("\t")]
            if len(row) == 1:  # divided by spaces
                row = list(filter(None, line.split(" ")))
            if REST in names:
                if len(row) < len(names) - 1:
                    fewer = f"fewer than {','.join(names)} names"
                    raise lines.error(number, f'{_columns(row)}, {fewer}; give fitting columns="..."')
                at = names.index(REST)
                names = (*names[:at], *[SKIPPED] * (len(row) - len(names) + 1), *names[at + 1 :])
            if len(row) != len(names):
                expected = _columns(names)
                raise lines.error(number, f"{_columns(row)} instead of {expected} (see option columns): {quoted(line)}")
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


def read_conllu(lines: Lines, options: ReadOptions) -> Iterator[Sentence]:
    """Yield a sentence for each block of lines, with the label columns upos, xpos, lemma and deprel.

    The text is that of the comment "# text = x", if the words are found in it in their order with nothing but white
    space between. Else it is the words joined by one space, without one after a word with SpaceAfter=No and within a
    multiword range (1-2) whose words spell it when they are joined, such as "don't". Empty nodes (1.1) are skipped. The
    lemma "_" is no label, unless the word is "_" itself. A comment "# newdoc id = x" begins a document with the field
    newdoc_id, whose sentences are divided by one space; without any, each sentence is a text of its own.
    """
    document = None
    for _, rows, newdoc, text in word_blocks(lines):
        follows = document is not None and newdoc is None
        if newdoc is not None:
            document = Document(fields={**options.fields, **({NEWDOC_ID: newdoc} if newdoc else {})})
        attached = [at for at in range(1, len(rows)) if NO_SPACE in rows[at - 1][MISC].split("|")]
        _, forms, lemmas, upos, xpos, _, _, deprel, _, _ = zip(*rows, strict=True)
        labels = {
            "upos": underscore_as_none(upos),
            "xpos": underscore_as_none(xpos),
            "lemma": [None if each == "_" != form else each for each, form in zip(lemmas, forms, strict=True)],
            "deprel": underscore_as_none(deprel),
        }
        yield sentence_of_forms(forms, labels, attached, text, document, " " if follows else "")


def word_blocks(lines: Lines) -> Iterator[tuple[list[int], list[list[str]], str | None, str | None]]:
    """Yield the line numbers and the columns of the words of each block of lines; ids and forms are checked.

    Then there are two comments, None without one: the id of the document that it begins, "" without an id, and its
    text. The words of a multiword range have SpaceAfter=No as the range has it, and where they spell it when joined.
    """
    newdoc: str | None = None
    text: str | None = None
    for block in lines.blocks():
        numbers: list[int] = []
        rows: list[list[str]] = []
        ranges: list[list[str]] = []
        for number, line in block:
            if line[0] != "#":
                row = line.split("\t")
                if problem := _problem(row, len(rows)):
                    raise lines.error(number, f"{problem}: {quoted(line)}")
                if row[ID].isdigit():
                    numbers.append(number)
                    rows.append(row)
                elif "-" in row[ID]:
                    ranges.append(row)
            elif match := _NEWDOC.fullmatch(line):
                newdoc = match[1] or ""
            elif match := _TEXT.fullmatch(line):
                text = match[1].strip()
        if rows:
            yield numbers, _with_ranges(rows, ranges), newdoc, text
            newdoc = text = None


def _with_ranges(rows: list[list[str]], ranges: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the rows of words with the spaces after them as their multiword ranges say."""
    for each in ranges:
        first, last = map(int, each[ID].split("-"))
        inside = rows[first - 1 : last]
        if "".join(row[FORM] for row in inside) == each[FORM]:
            for row in inside[:-1]:
                row[MISC] = NO_SPACE
        for row in inside[-1:]:  # none, if the range is all that follows
            row[MISC] = each[MISC]
    return rows


def _problem(row: Sequence[str], n_words: int) -> str | None:
    """Say what is wrong with a line of columns after `n_words` words; None for a valid one."""
    if len(row) != N_COLUMNS:
        return f"{len(row)} columns separated by tabs instead of CoNLL-U's {N_COLUMNS}"
    if row[ID] == str(n_words + 1):
        return None if row[FORM].strip(" ") else "the word (column 2) is empty"
    if match := _RANGE.fullmatch(row[ID]):
        if int(match[1]) == n_words + 1 <= int(match[2]):
            return None
    elif (match := _EMPTY_NODE.fullmatch(row[ID])) and int(match[1]) == n_words:
        return None
    return (
        f"the id is neither {n_words + 1}, nor a range that begins there, nor an empty node {n_words}.1 (is a blank "
        "line missing before it?)"
    )


CONLL = Format("conll", (".conll", ".annotated"), read_conll, {"columns": ",".join(DEFAULT_COLUMNS)})
CONLLU = Format("conllu", (".conllu",), read_conllu)
