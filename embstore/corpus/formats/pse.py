"""The markup of Wiki-PSE: a sentence a line, where `@sara_foster@-person` is a target with its class."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from embstore.arguments import checked
from embstore.corpus.formats.base import Format, ReadOptions
from embstore.corpus.lines import Lines, read_word_list
from embstore.corpus.sentence import Sentence, as_phrase
from embstore.errors import InvalidValueError, quoted

CLASS = r"\w(?:[\w.:/&+-]*\w)?"
_TARGET = re.compile(rf"@(.+)@-({CLASS})")
_COUNT = re.compile(rf"-({CLASS})=([0-9]{{1,18}})")
# What looks like a target with a missing part: two "@" around something, "@word-class", "word@-class".
_BROKEN = re.compile(r"@+[^@].*@.*|@@+[^@]+|@[^@-]+-.*|[^@].*@-.+")


def read_pse(lines: Lines, options: ReadOptions) -> Iterator[Sentence]:
    """Yield a sentence for each line, with the label column class at the first word of each target."""
    return (sentence for _, sentence in lines.parsed(_parse_line))


def _parse_line(line: str) -> Sentence:
    if "@" not in line:
        items = line.split()
        return Sentence(items, {"class": [None] * len(items)})
    words: list[str] = []
    classes: list[str | None] = []
    targets: list[tuple[int, int]] = []
    for item in line.split():
        parts, label = [item], None
        if "@" in item and (match := _TARGET.fullmatch(item)):
            parts, label = as_phrase(match[1]).split(" "), match[2]
        elif "@" in item and _BROKEN.fullmatch(item):
            raise InvalidValueError(f"{quoted(item)} is not a target: write @word@-class, or @two_words@-class")
        if len(parts) > 1:
            targets.append((len(words), len(words) + len(parts)))
        words += parts
        classes += [label, *[None] * (len(parts) - 1)]
    return Sentence(words, {"class": classes}, targets)


@checked
def read_word_classes(path: str | Path, *, optional: bool = False) -> dict[str, dict[str, int]]:
    """Read words with their semantic classes, as the training and test words of a class probe.

    A line is `@java@<TAB>-noun.location=3 -noun.food=2`; underscores in a word are read as spaces. With `optional` a
    plain list of words, one a line, is read too; its words have no class. Returns the count of each class by word.
    Raises CorpusError with file and line.
    """
    lines = Lines(Path(path), "list of words and classes")
    if optional:
        _, first = next(lines.numbered(), (0, ""))
        if not (first.startswith("@") and "\t" in first):
            return {word: {} for word in sorted(read_word_list(path))}
    classes_of: dict[str, dict[str, int]] = {}
    for number, line in lines.numbered():
        word, tab, classes = line.partition("\t")
        counts = [_COUNT.fullmatch(item) for item in classes.split()]
        if not (tab and len(word) > 2 and word[0] == word[-1] == "@" and counts and all(counts)):
            raise lines.error(number, f"{quoted(line)} is not of the form @word@<TAB>-class=count -class=count")
        if (form := as_phrase(word[1:-1])) in classes_of:
            raise lines.error(number, f"the word {quoted(form)} is in the list twice")
        classes_of[form] = {match[1]: int(match[2]) for match in counts if match}
    if not classes_of:
        raise lines.file_error("no word in it")
    return classes_of


PSE = Format("pse", (".pse",), read_pse)
