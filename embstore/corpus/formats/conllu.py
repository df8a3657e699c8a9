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
    for (newdoc, text), _, rows in _blocks(lines):
        follows = document is not None and newdoc is None
        if newdoc is not None:
            document = Document(fields={**options.fields, **({NEWDOC_ID: newdoc} if newdoc else {})})
        attached = [at for at in range(1, len(rows)) if NO_SPACE in rows[at - 1][MISC].split("|")]
        _, forms, lemmas, upos, xpos, _, _, deprel, _, _ = zip(*rows, strict=True)
        labels = {
            "upos": underscore_as_none(upos),
            "xpos": underscore_as_none(xpos),
            "lemma": [
                None if lemma == "_" and form != "_" else lemma for lemma, form in zip(lemmas, forms, strict=True)
            ],
            "deprel": underscore_as_none(deprel),
        }
        yield sentence_of_forms(forms, labels, attached, text, document, " " if follows else "")


def word_blocks(lines: Lines) -> Iterator[tuple[list[int], list[list[str]]]]:
    """Yield the line numbers and the columns of the words of each block of lines; ids and forms are checked.

    The words of a multiword range have SpaceAfter=No as the range has it, and where they spell it when joined.
    """
    for _, numbers, rows in _blocks(lines):
        yield numbers, rows


def _blocks(lines: Lines) -> Iterator[tuple[tuple[str | None, str | None], list[int], list[list[str]]]]:
    """Yield what `word_blocks` does, each after two comments, the id of the document that it begins and its text.

    The id is "" for a document without one; None stands for no comment.
    """
    newdoc: str | None = None
    text: str | None = None
    numbers: list[int] = []
    rows: list[list[str]] = []
    ranges: list[list[str]] = []
    length = 0
    for number, line in enumerate(lines, 1):
        if not line or line.isspace():
            if rows:
                yield (newdoc, text), numbers, _with_ranges(rows, ranges)
                newdoc, text, numbers, rows, ranges, length = None, None, [], [], [], 0
        elif line[0] != "#":
            length = lines.sentence_length(number, length, line)
            row = line.split("\t")
            if len(row) != N_COLUMNS:
                raise lines.error(
                    number,
                    f"{len(row)} columns separated by tabs instead of CoNLL-U's {N_COLUMNS}: {quoted(line)}",
                )
            if row[ID] == str(len(rows) + 1):
                if not row[FORM].strip(" "):
                    raise lines.error(number, f"the word (column 2) is empty: {quoted(line)}")
                numbers.append(number)
                rows.append(row)
            elif problem := _id_problem(row[ID], len(rows)):
                raise lines.error(number, problem)
            elif "-" in row[ID]:
                ranges.append(row)
        elif match := _NEWDOC.fullmatch(line):
            newdoc = match[1] or ""
        elif match := _TEXT.fullmatch(line):
            text = match[1].strip()
    if rows:
        yield (newdoc, text), numbers, _with_ranges(rows, ranges)


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


def _id_problem(identifier: str, n_words: int) -> str | None:
    """Say what is wrong with an id other than the next word's, after `n_words` words; None for a valid one."""
    if match := _RANGE.fullmatch(identifier):
        if int(match[1]) == n_words + 1 <= int(match[2]):
            return None
        return f"the range {identifier} does not begin at the next word, {n_words + 1}"
    if match := _EMPTY_NODE.fullmatch(identifier):
        if int(match[1]) == n_words:
            return None
        return f"the empty node {identifier} does not follow word {match[1]}"
    if identifier.isascii() and identifier.isdigit():
        return f"word id {quoted(identifier)} instead of {n_words + 1} (is a blank line missing before it?)"
    return f"{quoted(identifier)} is not an id: a word has a number, a range 1-2, an empty node 1.1"


CONLLU = Format("conllu", (".conllu",), read_conllu)
