"""The sentence, which every corpus reader yields, and how it is made of word forms and of Python objects."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

from embstore.corpus.lines import MAX_SENTENCE
from embstore.errors import CorpusError, InvalidValueError, check_column_name, check_type, quoted

FieldValue = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Span:
    """Characters `[start, stop)` of the text of a document.

    `kind`: "sentence", "word", "target" (a phrase that counts as one occurrence), or "label". `labels`: column name ->
    label, of all words that have a character of the span.
    """

    start: int
    stop: int
    kind: Literal["sentence", "word", "target", "label"] = "label"
    labels: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """A text, exactly as it is, with facts about it and spans of its characters; two are equal only if the same.

    `text`: None where it is that of its sentences, one after another. `fields`: facts about the whole text, such as
    its author, year or source. `spans`: without one of a sentence (a word), the text is split into sentences (words).
    `ids`: the subwords of the text, where a model made it; None: those that the tokenizer has for it.
    """

    text: str | None = None
    fields: Mapping[str, FieldValue] = field(default_factory=dict)
    spans: Sequence[Span] = ()
    ids: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence: a piece of a text, the words in it, and labels of the words.

    `words`: non-empty strings without ASCII space, as written in the text; one may be "", between the two texts that
    a model is given as a pair. `labels`: column name -> one label (or None) a word. `targets`: spans `[start, stop)` of
    two or more words that count as one occurrence, ascending and disjoint; the form of a target is its words joined by
    one space, and its labels are those of its first word. `document`: the text it comes from; None if the sentence is
    a text of its own. `text`: the piece of the document from the end of the piece before to the next sentence, so that
    the pieces of all sentences, joined, are the document's text; by default the words joined by one space. `starts`:
    where each word begins in `text`. `start`, `stop`: the characters of the sentence itself, by default all.
    """

    words: Sequence[str]
    labels: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    targets: Sequence[tuple[int, int]] = ()
    document: Document | None = None
    text: str = ""
    starts: Sequence[int] = ()
    start: int = 0
    stop: int = -1

    def __post_init__(self) -> None:
        if not self.text:
            object.__setattr__(self, "text", " ".join(self.words))
            object.__setattr__(self, "starts", [0, *accumulate(len(word) + 1 for word in self.words)][:-1])
        if self.stop < 0:
            object.__setattr__(self, "stop", len(self.text))

    def __str__(self) -> str:
        return self.text[self.start : self.stop]


PAIR = ""  # the word between two texts that a model is given as a pair

Item = Sentence | Document | Sequence[str] | str


def sentence_pair(first: Sentence, second: Sentence, labels: Mapping[str, str | None] | None = None) -> Sentence:
    """Make one sentence of two that a model is given as a pair, with its special tokens between them.

    Every word has the `labels`, and the label "side", 1 or 2; the empty word between the sentences has none. A line
    feed separates the texts.
    """
    n_first, n_second = len(first.words), len(second.words)
    shift = len(str(first)) + 1
    side: list[str | None] = [*(["1"] * n_first), None, *(["2"] * n_second)]
    spread = {name: [*([label] * n_first), None, *([label] * n_second)] for name, label in (labels or {}).items()}
    return Sentence(
        words=[*first.words, PAIR, *second.words],
        labels={**spread, "side": side},
        text=f"{first}\n{second}",
        starts=[
            *(at - first.start for at in first.starts),
            shift - 1,
            *(at - second.start + shift for at in second.starts),
        ],
    )


def sentence_of_forms(
    forms: Sequence[str], labels: Mapping[str, Sequence[str | None]], attached: Collection[int] = ()
) -> Sentence:
    """Make a sentence of forms with one label each; a form with spaces becomes a target of several words.

    The text is the forms joined by one space, without one before the forms that are `attached`.
    """
    words, spans = split_forms(forms)
    spread: dict[str, list[str | None]] = {name: [None] * len(words) for name in labels}
    for name, column in labels.items():
        for (start, _), label in zip(spans, column, strict=True):
            spread[name][start] = label
    parts, starts, at = list[str](), list[int](), 0
    glued = {spans[form][0] for form in attached}
    for position, word in enumerate(words):
        space = " " if position and position not in glued else ""
        starts.append(at + len(space))
        parts += space, word
        at += len(space) + len(word)
    targets = [(start, stop) for start, stop in spans if stop > start + 1]
    return Sentence(words, spread, targets, text="".join(parts), starts=starts)


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
