"""Sentences given as Python objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from embstore.corpus.labels import check_column
from embstore.corpus.lines import is_encodable
from embstore.corpus.messages import shown
from embstore.corpus.phrases import sentence_of
from embstore.corpus.sentence import Sentence
from embstore.corpus.words import SPLITTERS, Split
from embstore.errors import CorpusError, InvalidValueError

Item = Sentence | Sequence[str] | str


def read_sentences(items: Iterable[Item], split: Split) -> Iterator[Sentence]:
    """Yield a sentence an item: a Sentence as it is, a sequence of words, or a string to be split.

    A word with spaces in a sequence of words is a target of several words. Raises CorpusError with the number
    of the sentence, from 0, for one without words or of another kind.
    """
    splitter = SPLITTERS[split]
    for number, item in enumerate(items):
        try:
            if isinstance(item, Sentence):
                yield _checked(item)
            elif isinstance(item, str):
                yield _checked(Sentence(splitter(item)))
            elif isinstance(item, Sequence):
                _check_words(item)
                yield _checked(sentence_of(item, {}))
            else:
                raise _WrongSentenceError(f"{shown(item)} is neither a Sentence, nor a sequence of words, nor a string")
        except (_WrongSentenceError, InvalidValueError) as error:
            raise CorpusError(f"sentence {number}: {error}") from None


class _WrongSentenceError(Exception):
    """A sentence breaks the rules; the message says which."""


def _check_words(words: Sequence[object]) -> None:
    if _are_plain(words):
        return
    for position, word in enumerate(words):
        if not isinstance(word, str) or not word.strip(" "):
            raise _WrongSentenceError(f"word {position} is {shown(word)}: a word is a string that is not empty")


def _are_plain(words: Sequence[Any]) -> bool:
    """Tell quickly whether all words are strings that are not empty and have no space in them, as nearly always."""
    try:
        return " ".join(words).count(" ") == len(words) - 1 and all(words)
    except TypeError:
        return False


def _checked(sentence: Sentence) -> Sentence:
    words = sentence.words
    if not words:
        raise _WrongSentenceError("no word in it")
    if isinstance(words, str):
        raise _WrongSentenceError(f"words is one string, {shown(words)}, not a sequence of words")
    _check_words(words)
    joined = "".join(words)
    if " " in joined:
        word = next(word for word in words if " " in word)
        raise _WrongSentenceError(f"the word {shown(word)} has a space in it; give its words apart, and a target")
    if not is_encodable(joined):
        raise _WrongSentenceError("half of a surrogate pair, not a character, in a word")
    for column, labels in sentence.labels.items():
        check_column(column)
        if isinstance(labels, str) or len(labels) != len(words):
            raise _WrongSentenceError(f"label column {shown(column)}: not one label a word ({len(words)})")
        for label in labels:
            if label is not None and not (isinstance(label, str) and is_encodable(label)):
                raise _WrongSentenceError(f"label column {shown(column)}: {shown(label)} is neither text nor None")
    _check_targets(sentence)
    return sentence


def _check_targets(sentence: Sentence) -> None:
    before = 0
    for start, stop in sentence.targets:
        if not before <= start < stop - 1 < len(sentence.words):
            raise _WrongSentenceError(
                f"target {shown((start, stop))}: targets are spans [start, stop) of two or more of the "
                f"{len(sentence.words)} words, ascending and disjoint"
            )
        before = stop
