"""Plain text, and pairs of sentences with a score (STS) or a label."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from embstore.corpus.formats.base import TEXT_OPTIONS, WORD_OPTIONS, Format, ReadOptions
from embstore.corpus.lines import Lines
from embstore.corpus.sentence import Document, Sentence, sentence_pair
from embstore.errors import InvalidValueError, quoted

_NUMBER = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?")


def read_text(lines: Lines, options: ReadOptions) -> Iterator[Sentence]:
    """Yield the sentences of running text; the file is one document."""
    return options.splitter.read(lines.texts(), Document(fields=options.fields))


def read_sts(lines: Lines, options: ReadOptions) -> Iterator[Sentence]:
    """Yield two sentences for each line, as in SemEval STS; every word has the labels set, score and side (1 or 2)."""

    def parse(line: str) -> Iterator[Sentence]:
        fields = line.split("\t")
        if len(fields) != 4:
            raise InvalidValueError(f"{len(fields)} fields instead of 4 (set, score, two sentences): {quoted(line)}")
        name, score = fields[0].strip(), fields[1].strip()
        if not name:
            raise InvalidValueError(f"the set (field 1) is empty: {quoted(line)}")
        if not _NUMBER.fullmatch(score):
            raise InvalidValueError(f"the score (field 2), {quoted(score)}, is not a number")
        for side, sentence in zip("12", _both(fields[2:], options), strict=True):
            labels = {"set": name, "score": score, "side": side}
            yield replace(sentence, labels={label: [value] * len(sentence.words) for label, value in labels.items()})

    return chain.from_iterable(sentences for _, sentences in lines.parsed(lambda line: list(parse(line))))


def read_pairs(lines: Lines, options: ReadOptions) -> Iterator[Sentence]:
    """Yield one sentence for each line, a label and two sentences that a model is given as a pair.

    Between label and sentences there may be two columns of numbers, as in MRPC, whose header is left out.
    """

    def parse(line: str) -> Sentence | None:
        fields = line.split("\t")
        if fields[0].lstrip("\ufeff") == "Quality":
            return None
        if len(fields) not in (3, 5):
            raise InvalidValueError(f"{len(fields)} fields instead of 3 (label, two sentences): {quoted(line)}")
        if not (label := fields[0].strip()):
            raise InvalidValueError(f"the label (field 1) is empty: {quoted(line)}")
        return sentence_pair(*_both(fields[-2:], options), {"label": label})

    return (pair for _, pair in lines.parsed(parse) if pair is not None)


def _both(texts: Sequence[str], options: ReadOptions) -> tuple[Sentence, Sentence]:
    first, second = map(options.splitter.sentence, texts)
    if first is None or second is None:
        raise InvalidValueError(f"sentence {1 if first is None else 2} has no word: {quoted(texts)}")
    return first, second


TEXT = Format("text", (".txt", ".text"), read_text, TEXT_OPTIONS)


def _has_score(line: str) -> bool:
    fields = line.split("\t")
    return len(fields) == 4 and _NUMBER.fullmatch(fields[1].strip()) is not None


STS = Format("sts", (".tsv",), read_sts, WORD_OPTIONS, _has_score)
PAIRS = Format("pairs", (".pairs",), read_pairs, WORD_OPTIONS)
