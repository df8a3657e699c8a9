"""Plain text, a sentence a line; pairs of sentences with a score (STS); and the two ways to split text into words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from embstore.corpus.formats.base import Format, ReadOptions
from embstore.corpus.lines import Lines, finite_number
from embstore.corpus.sentence import PAIR, Sentence, sentence_pair
from embstore.errors import quoted

# Ranges of punctuation marks; "_", combining marks, joiners and emoji are not among them.
_MARK = (
    r"!-/:-@\[-^`{-~\u00a1-\u00a9\u00ab-\u00ac\u00ae-\u00b1\u00b4\u00b6-\u00b8\u00bb\u00bf\u00d7\u00f7"
    r"\u055a-\u055f\u0589\u05be\u060c\u061b\u061f\u066a-\u066d\u06d4\u0964\u0965\u2010-\u2027\u2030-\u205e"
    r"\u20a0-\u20cf\u2190-\u22ff\u3001-\u3003\u3008-\u3011\u3014-\u301f\u30fb\uff01-\uff0f\uff1a-\uff20"
    r"\uff3b-\uff3d\uff5b-\uff65"
)
_LETTER = rf"[^\s{_MARK}]"
_WORD = re.compile(
    rf"{_LETTER}+(?:(?:[-'’.]|(?<=\d)[,:/](?=\d)){_LETTER}+)*|([{_MARK}])\1*",
)


def split_punctuation(text: str) -> list[str]:
    """Split text at white space and separate punctuation marks from words.

    A mark inside a word stays (don't, well-known, 3.5, 1,650, 10:30); a run of one mark is one word (...).
    """
    return [match[0] for match in _WORD.finditer(text)]


SPLITTERS: dict[str, Callable[[str], list[str]]] = {"space": str.split, "punctuation": split_punctuation}


def read_text(lines: Lines, options: ReadOptions) -> Iterator[Sentence]:
    """Yield a sentence for each line that has words."""
    for words in map(options.split, lines):
        if words:
            yield Sentence(words)


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
            words = options.split(text)
            if not words:
                raise lines.error(number, f"sentence {side} has no word: {quoted(line)}")
            n_words = len(words)
            yield Sentence(words, {"set": [name] * n_words, "score": [score] * n_words, "side": [side] * n_words})


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
        first, second = (options.split(text) for text in fields[-2:])
        for side, words in enumerate((first, second), 1):
            if not words or PAIR in words:
                what = "has no word" if not words else f"has the word {PAIR}, which separates pairs"
                raise lines.error(number, f"sentence {side} {what}: {quoted(line)}")
        yield sentence_pair(first, second, {"label": label})


TEXT = Format("text", (".txt", ".text"), read_text, split="space")


def _has_score(line: str) -> bool:
    fields = line.split("\t")
    return len(fields) == 4 and finite_number(fields[1].strip()) is not None


STS = Format("sts", (".tsv",), read_sts, split="punctuation", sniff=_has_score)
PAIRS = Format("pairs", (".pairs",), read_pairs, split="punctuation")
