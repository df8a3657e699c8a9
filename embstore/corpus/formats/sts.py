"""Pairs of sentences with a score of their similarity, as SemEval's STS tasks have them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from embstore.corpus.formats.format import Format, Options
from embstore.corpus.lines import Lines
from embstore.corpus.messages import shown
from embstore.corpus.sentence import Sentence
from embstore.corpus.words import SPLITTERS


def read_sts(lines: Lines, options: Options) -> Iterator[Sentence]:
    """Yield two sentences a line, every word with the labels set, score and side ("1" or "2")."""
    split = SPLITTERS[options.split]
    for number, line in enumerate(lines, 1):
        if not line or line.isspace():
            continue
        fields = line.split("\t")
        if len(fields) != 4:
            raise lines.error(
                number,
                f"{len(fields)} fields where 4 were due (set, score, two sentences, by tabs): {shown(line)}",
            )
        name, score = fields[0].strip(), fields[1].strip()
        if not name:
            raise lines.error(number, f"the set (field 1) is empty: {shown(line)}")
        if not _is_number(score):
            raise lines.error(number, f"the score (field 2), {shown(score)}, is not a number")
        for side, text in zip("12", fields[2:], strict=True):
            words = split(text)
            if not words:
                raise lines.error(number, f"sentence {side} has no word: {shown(line)}")
            many = len(words)
            yield Sentence(words, {"set": [name] * many, "score": [score] * many, "side": [side] * many})


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


STS = Format("sts", (".tsv",), read_sts, split="punctuation")
