"""Pairs of sentences with a similarity score, the format of SemEval's STS tasks."""

from __future__ import annotations

from collections.abc import Iterator

from embstore.corpus.formats.base import Format, ReadOptions
from embstore.corpus.lines import Lines, finite_number
from embstore.corpus.sentence import Sentence
from embstore.errors import quoted


def read_sts(lines: Lines, options: ReadOptions) -> Iterator[Sentence]:
    """Yield two sentences for each line; every word has the labels set, score and side ("1" or "2")."""
    for number, line in enumerate(lines, 1):
        if not line or line.isspace():
            continue
        fields = line.split("\t")
        if len(fields) != 4:
            raise lines.error(
                number,
                f"{len(fields)} fields instead of 4 (set, score, two sentences, separated by tabs): {quoted(line)}",
            )
        name, score = fields[0].strip(), fields[1].strip()
        if not name:
            raise lines.error(number, f"the set (field 1) is empty: {quoted(line)}")
        if finite_number(score) is None:
            raise lines.error(number, f"the score (field 2), {quoted(score)}, is not a number")
        for side, text in zip("12", fields[2:], strict=True):
            words = options.split(text)
            if not words:
                raise lines.error(number, f"sentence {side} has no word: {quoted(line)}")
            n_words = len(words)
            yield Sentence(words, {"set": [name] * n_words, "score": [score] * n_words, "side": [side] * n_words})


STS = Format("sts", (".tsv",), read_sts, split="punctuation")
