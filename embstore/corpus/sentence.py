"""The sentence, which every corpus reader yields, and how it is made of word forms and of Python objects."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from embstore.corpus.lines import MAX_SENTENCE
from embstore.errors import CorpusError, InvalidValueError, check_column_name, check_type, quoted
from embstore.spacing import ATTACHED

FieldValue = str | int | float | bool | None


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """The text that sentences come from; those of one document follow each other, and two are equal only if the same.

    `fields`: facts about the whole text, such as its author, year or source.
    """

    fields: Mapping[str, FieldValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence, split into words, with labels of its words.

    `words`: non-empty strings without ASCII space, as written in the corpus. `labels`: column name -> one label (or
    None) a word. `targets`: spans `[start, stop)` of two or more words that count as one occurrence, ascending and
    disjoint; the form of a target is its words joined by one space, and its labels are those of its first word.
    `document`: the text it comes from; None if the sentence is a text of its own. `attached`: the positions of words
    that follow the word before without a space, such as the comma of "light,", ascending and not 0.
    """

    words: Sequence[str]
    labels: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    targets: Sequence[tuple[int, int]] = ()
    document: Document | None = None
    attached: Sequence[int] = ()


PAIR = "\u241e"  # the word between two sentences that a model is given as a pair

Item = Sentence | Sequence[str] | str


def sentence_pair(
    first: Sequence[str], second: Sequence[str], labels: Mapping[str, str | None] | None = None
) -> Sentence:
    """Make one sentence of two that a model is given as a pair, with its special tokens between them.

    Every word has the `labels`, and the label "side", 1 or 2; the mark `PAIR` between the sentences has none.
    """
    side: list[str | None] = [*(["1"] * len(first)), None, *(["2"] * len(second))]
    spread = {name: [*([label] * len(first)), None, *([label] * len(second))] for name, label in (labels or {}).items()}
    return Sentence([*first, PAIR, *second], {**spread, "side": side})


def sentence_of_forms(
    forms: Sequence[str], labels: Mapping[str, Sequence[str | None]], attached: Sequence[int] = ()
) -> Sentence:
    """Make a sentence of forms with one label each; a form with spaces becomes a target of several words.

    `attached`: the forms that follow the form before without a space.
    """
    if " " not in "".join(forms):
        return Sentence(forms, labels, attached=attached)
    words, spans = split_forms(forms)
    spread: dict[str, list[str | None]] = {name: [None] * len(words) for name in labels}
    for name, column in labels.items():
        for (start, _), label in zip(spans, column, strict=True):
            spread[name][start] = label
    targets = [(start, stop) for start, stop in spans if stop > start + 1]
    return Sentence(words, spread, targets, attached=[spans[form][0] for form in attached])


def split_forms(forms: Sequence[str]) -> tuple[list[str], list[tuple[int, int]]]:
    """Split forms at spaces; returns the words, and the span of words of each form."""
    words: list[str] = []
    spans = []
    for form in forms:
        parts = list(filter(None, form.split(" ")))
        spans.append((len(words), len(words) + len(parts)))
        words.extend(parts)
    return words, spans


def underscore_as_none(column: Sequence[str]) -> Sequence[str | None]:
    """Return a column of a CoNLL file as labels, where "_" means that there is no label."""
    return [None if label == "_" else label for label in column] if "_" in column else column


def as_phrase(text: str) -> str:
    """Return a word or phrase with its underscores as spaces, "New_York" as "New York"; "_" alone is a word."""
    return " ".join(filter(None, text.replace("_", " ").split(" "))) or text


def is_encodable(text: str) -> bool:
    """Return whether a text has no unpaired surrogate, which JSON and Python strings can hold but UTF-8 cannot."""
    return text.isascii() or text == text.encode(errors="ignore").decode()


def read_items(items: Iterable[Item], split: Callable[[str], Iterator[Sentence]]) -> Iterator[Sentence]:
    """Yield the sentences of Python objects: a Sentence, a sequence of words, or the text of a document to be split.

    A word with spaces in a sequence of words is a target of several words. Raises CorpusError with the number of the
    sentence, from 0, for an object of another kind or a sentence that breaks the rules of `Sentence`.
    """
    for number, item in enumerate(items):
        try:
            if isinstance(item, Sentence):
                yield check_sentence(item)
            elif isinstance(item, str):
                yield from _split(item, split)
            elif isinstance(item, Sequence):
                _check_words(item)
                yield check_sentence(sentence_of_forms(item, {}))
            else:
                raise InvalidValueError(f"{quoted(item)} is neither a Sentence, nor a sequence of words, nor a string")
        except InvalidValueError as error:
            raise CorpusError(f"sentence {number}: {error}") from None


def distinct_sentences(texts: Iterable[Sequence[str]]) -> Iterator[Sentence]:
    """Yield a sentence for each sequence of words, the same words only once."""
    seen: set[bytes] = set()
    for words in texts:
        key = hashlib.blake2b(" ".join(words).encode(), digest_size=16).digest()
        if key not in seen:
            seen.add(key)
            yield Sentence(words)


def _split(text: str, split: Callable[[str], Iterator[Sentence]]) -> Iterator[Sentence]:
    if not is_encodable(text):
        raise InvalidValueError("half of a surrogate pair, not a character, in the text")
    if not text.strip():
        raise InvalidValueError("no word in it")
    yield from split(text)


def check_sentence(sentence: Sentence) -> Sentence:
    """Return a sentence that keeps the rules of `Sentence`. Raises InvalidValueError for one that does not."""
    words = sentence.words
    check_type("words", words, Sequence, "a sequence of words")
    if isinstance(words, str):
        raise InvalidValueError(f"words is one string, {quoted(words)}, not a sequence of words")
    if not words:
        raise InvalidValueError("no word in it")
    _check_words(words)
    joined = "".join(words)
    if len(joined) > MAX_SENTENCE:
        raise InvalidValueError(f"a sentence of more than {MAX_SENTENCE:,} characters: break it into sentences")
    if " " in joined:
        word = next(word for word in words if " " in word)
        raise InvalidValueError(f"the word {quoted(word)} has a space in it; give its words one by one, and a target")
    if not is_encodable(joined):
        raise InvalidValueError("half of a surrogate pair, not a character, in a word")
    if ATTACHED in joined:
        raise InvalidValueError("the character U+001F in a word: remove it")
    check_type("labels", sentence.labels, Mapping, "the labels of each column: {column: labels}")
    for column, labels in sentence.labels.items():
        check_column_name(column)
        if isinstance(labels, str) or not isinstance(labels, Sequence) or len(labels) != len(words):
            raise InvalidValueError(f"label column {quoted(column)}: not one label a word ({len(words)})")
        for label in labels:
            if label is not None and not (isinstance(label, str) and is_encodable(label)):
                raise InvalidValueError(f"label column {quoted(column)}: {quoted(label)} is neither text nor None")
    check_type("targets", sentence.targets, Sequence, "spans [start, stop) of words")
    end = 0
    for target in sentence.targets:
        try:
            start, stop = map(operator.index, target)
        except (TypeError, ValueError):
            start = stop = -1
        if not end <= start < stop - 1 < len(words):
            raise InvalidValueError(
                f"target {quoted(target)}: targets are spans [start, stop) of two or more of the "
                f"{len(words)} words, ascending and disjoint"
            )
        end = stop
    attached = list(sentence.attached)
    if attached != sorted(set(attached)) or not all(0 < position < len(words) for position in attached):
        raise InvalidValueError(f"attached {quoted(attached)}: positions of words are ascending, 1 to {len(words) - 1}")
    if sentence.document is not None:
        check_type("document", sentence.document, Document, "a Document or None")
        for name in sentence.document.fields:
            check_column_name(name)
    return sentence


def _check_words(words: Sequence[Any]) -> None:
    try:  # one join checks nearly every sentence
        if " ".join(words).count(" ") == len(words) - 1 and all(words):
            return
    except TypeError:
        pass
    for position, word in enumerate(words):
        if not isinstance(word, str) or not word.strip(" "):
            raise InvalidValueError(f"word {position} is {quoted(word)}: a word is a string that is not empty")
