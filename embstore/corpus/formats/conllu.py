"""CoNLL-U, the format of Universal Dependencies."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from embstore.corpus.formats.base import Format, ReadOptions
from embstore.corpus.lines import Lines
from embstore.corpus.sentence import Document, Sentence, sentence_of_forms, underscore_as_none
from embstore.errors import quoted

N_COLUMNS = 10
ID, FORM, LEMMA, UPOS, XPOS, HEAD, DEPREL, MISC = 0, 1, 2, 3, 4, 6, 7, 9
NEWDOC_ID = "newdoc_id"  # the field with the id of a document
NO_SPACE = "SpaceAfter=No"
_RANGE = re.compile(r"([1-9][0-9]{0,8})-([1-9][0-9]{0,8})")
_NEWDOC = re.compile(r"#\s*newdoc(?:\s+id\s*=\s*(.*?))?\s*")
_TEXT = re.compile(r"#\s*text\s*=(.*)")
_EMPTY_NODE = re.compile(r"([0-9]{1,9})\.[1-9][0-9]*")


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


CONLLU = Format("conllu", (".conllu",), read_conllu)
