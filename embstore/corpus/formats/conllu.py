"""CoNLL-U, the format of Universal Dependencies."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from embstore.corpus.formats.format import Format, Options
from embstore.corpus.lines import Lines
from embstore.corpus.messages import shown
from embstore.corpus.phrases import filled, sentence_of
from embstore.corpus.sentence import Sentence

COLUMNS = 10
ID, FORM, LEMMA, UPOS, XPOS, HEAD, DEPREL = 0, 1, 2, 3, 4, 6, 7
_RANGE = re.compile(r"([1-9][0-9]*)-([1-9][0-9]*)")
_EMPTY_NODE = re.compile(r"([0-9]+)\.[1-9][0-9]*")


def read_conllu(lines: Lines, options: Options) -> Iterator[Sentence]:
    """Yield a sentence a block of lines, with the label columns upos, xpos, lemma and deprel.

    Multiword ranges (1-2) and empty nodes (1.1) are left out.
    """
    for _, rows in word_blocks(lines):
        yield _sentence(rows)


def word_blocks(lines: Lines) -> Iterator[tuple[list[int], list[list[str]]]]:
    """Yield the words of each block of lines: the numbers of their lines, and their columns; checks ids and forms."""
    numbers: list[int] = []
    rows: list[list[str]] = []
    for number, line in enumerate(lines, 1):
        if not line or line.isspace():
            if rows:
                yield numbers, rows
                numbers, rows = [], []
        elif line[0] != "#":
            row = line.split("\t")
            if len(row) != COLUMNS:
                raise lines.error(
                    number,
                    f"{len(row)} columns separated by tabs instead of CoNLL-U's {COLUMNS}: {shown(line)}",
                )
            if row[ID] == str(len(rows) + 1):
                if not row[FORM].strip(" "):
                    raise lines.error(number, f"the word (column 2) is empty: {shown(line)}")
                numbers.append(number)
                rows.append(row)
            elif wrong := _wrong_id(row[ID], len(rows)):
                raise lines.error(number, wrong)
    if rows:
        yield numbers, rows


def _wrong_id(identifier: str, words: int) -> str | None:
    """What is wrong with an id that is not the next word's, after so many words."""
    if match := _RANGE.fullmatch(identifier):
        if int(match[1]) == words + 1 <= int(match[2]):
            return None
        return f"the range {identifier} does not begin at the next word, {words + 1}"
    if match := _EMPTY_NODE.fullmatch(identifier):
        if int(match[1]) == words:
            return None
        return f"the empty node {identifier} does not follow word {match[1]}"
    if identifier.isascii() and identifier.isdigit():
        due = words + 1
        return f"word id {shown(identifier)} where {due} was due (is a blank line missing before it?)"
    return f"{shown(identifier)} is not an id: a word has a number, a range 1-2, an empty node 1.1"


def _sentence(rows: Sequence[Sequence[str]]) -> Sentence:
    _, forms, lemmas, upos, xpos, _, _, deprel, _, _ = zip(*rows, strict=True)
    labels = {
        "upos": filled(upos),
        "xpos": filled(xpos),
        "lemma": _lemmas(lemmas, forms),
        "deprel": filled(deprel),
    }
    return sentence_of(forms, labels)


def _lemmas(lemmas: Sequence[str], forms: Sequence[str]) -> Sequence[str | None]:
    """The lemma "_" means none, but of the word "_"."""
    if "_" not in lemmas:
        return lemmas
    return [lemma if lemma != "_" or form == "_" else None for lemma, form in zip(lemmas, forms, strict=True)]


CONLLU = Format("conllu", (".conllu",), read_conllu)
