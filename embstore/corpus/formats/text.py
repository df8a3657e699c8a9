"""Plain text, and pairs of sentences with a score (STS) or a label."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from embstore.corpus.formats.base import Format, ReadOptions
from embstore.corpus.lines import Lines, finite_number
from embstore.corpus.sentence import Document, Sentence, sentence_pair
from embstore.errors import quoted


def read_text(lines: Lines, options: ReadOptions) -> Iterator[Sentence]:
    """Yield the sentences of running text; the file is one document."""
    return options.splitter.read(lines.texts(), Document(fields=options.fields))


def read_sts(lines: Lines, options: ReadOptions) -> Iterator[Sentence]:
    """Yield two sentences for each line, as in SemEval STS; every word has the labels set, score and side (1 or 2)."""
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
            sentence = options.splitter.sentence(text)
            if sentence is None:
                raise lines.error(number, f"sentence {side} has no word: {quoted(line)}")
            labels = {"set": name, "score": score, "side": side}
            yield replace(sentence, labels={label: [value] * len(sentence.words) for label, value in labels.items()})


def read_pairs(lines: Lines, options: ReadOptions) -> Iterator[Sentence]:
    """Yield one sentence for each line, a label and two sentences that a model is given as a pair.

    Between label and sentences there may be two columns of numbers, as in MRPC, whose header is left out.
    """
    for number, line in enumerate(lines, 1):
        if not line or line.isspace() or (number == 1 and line.lstrip("\ufeff").startswith("Quality\t")):
            continue
        fields = line.split("\t")
        if len(fields) not in (3, 5):
            raise lines.error(
                number, f"{len(fields)} fields instead of 3 (label, two sentences, separated by tabs): {quoted(line)}"
            )
        if not (label := fields[0].strip()):
            raise lines.error(number, f"the label (field 1) is empty: {quoted(line)}")
        pair = []
        for side, text in enumerate(fields[-2:], 1):
            sentence = options.splitter.sentence(text)
            if sentence is None:
                raise lines.error(number, f"sentence {side} has no word: {quoted(line)}")
            pair.append(sentence)
        yield sentence_pair(pair[0], pair[1], {"label": label})


TEXT = Format("text", (".txt", ".text"), read_text, split="sentences", words="punctuation")


def _has_score(line: str) -> bool:
    fields = line.split("\t")
    return len(fields) == 4 and finite_number(fields[1].strip()) is not None


STS = Format("sts", (".tsv",), read_sts, words="punctuation", sniff=_has_score)
PAIRS = Format("pairs", (".pairs",), read_pairs, words="punctuation")
