"""Plain text: a sentence a line."""

from __future__ import annotations

from collections.abc import Iterator

from embstore.corpus.formats.format import Format, Options
from embstore.corpus.lines import Lines
from embstore.corpus.sentence import Sentence
from embstore.corpus.words import SPLITTERS


def read_text(lines: Lines, options: Options) -> Iterator[Sentence]:
    """Yield a sentence a line that has words."""
    for words in map(SPLITTERS[options.split], lines):
        if words:
            yield Sentence(words)


TEXT = Format("text", (".txt", ".text"), read_text, split="space")
