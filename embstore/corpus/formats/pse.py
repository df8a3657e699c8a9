"""The markup of Wiki-PSE: a sentence a line, `@sara_foster@-person` a target with its class."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from embstore.corpus.formats.format import Format, Options
from embstore.corpus.lines import Lines
from embstore.corpus.messages import shown
from embstore.corpus.sentence import Sentence
from embstore.corpus.words import as_phrase, by_space

CLASS = r"\w(?:[\w.:/&+-]*\w)?"
_TARGET = re.compile(rf"@(.+)@-({CLASS})")
_COUNT = re.compile(rf"-({CLASS})=([0-9]+)")
# What looks like a target that lost a part: two "@" around something, "@word-class", "word@-class".
_BROKEN = re.compile(r"@.*[^@].*@.*|@@+[^@]+|@[^@-]+-.*|[^@].*@-.+")


def read_pse(lines: Lines, options: Options) -> Iterator[Sentence]:
    """Yield a sentence a line, with the label column class, at the first word of a target."""
    for number, line in enumerate(lines, 1):
        items = by_space(line)
        if not items:
            continue
        if "@" not in line:
            yield Sentence(items, {"class": [None] * len(items)})
            continue
        words: list[str] = []
        classes: list[str | None] = []
        targets: list[tuple[int, int]] = []
        for item in items:
            if "@" not in item:
                words.append(item)
                classes.append(None)
            elif match := _TARGET.fullmatch(item):
                parts = as_phrase(match[1]).split(" ")
                if len(parts) > 1:
                    targets.append((len(words), len(words) + len(parts)))
                words.extend(parts)
                classes.extend([match[2], *[None] * (len(parts) - 1)])
            elif _BROKEN.fullmatch(item):
                raise lines.error(number, f"{shown(item)} is not a target: write @word@-class, or @two_words@-class")
            else:
                words.append(item)
                classes.append(None)
        yield Sentence(words, {"class": classes}, targets)


def read_word_classes(path: str | Path, *, encoding: str = "utf-8") -> dict[str, dict[str, int]]:
    """Read a list of words with their classes and counts: `@java@<TAB>-noun.location=3 -noun.food=2` a line.

    Returns the counts by class, by word; underscores in a word are read as spaces. Raises CorpusError with
    file and line.
    """
    lines = Lines(Path(path), encoding)
    found: dict[str, dict[str, int]] = {}
    for number, line in enumerate(lines, 1):
        if not line or line.isspace():
            continue
        word, tab, classes = line.partition("\t")
        counts = [_COUNT.fullmatch(item) for item in classes.split()]
        if not (tab and len(word) > 2 and word[0] == word[-1] == "@" and counts and all(counts)):
            raise lines.error(number, f"{shown(line)} is not of the form @word@<TAB>-class=count -class=count")
        if (form := as_phrase(word[1:-1])) in found:
            raise lines.error(number, f"the word {shown(form)} stands here a second time")
        found[form] = {match[1]: int(match[2]) for match in counts if match}
    if not found:
        raise lines.whole_error("no word in it")
    return found


PSE = Format("pse", (".pse",), read_pse)
