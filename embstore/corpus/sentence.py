"""The sentence, which every corpus reader yields, and how it is made of word forms and of Python objects."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from typing import Any, Literal, get_args

from embstore.corpus.lines import MAX_SENTENCE
from embstore.errors import CorpusError, InvalidValueError, check_column_name, check_type, quoted

FieldValue = str | int | float | bool | None
Kind = Literal["sentence", "word", "target", "label"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Span:
    """Characters `[start, stop)` of the text of a document.

    `kind`: "sentence", "word", "target" (a phrase that counts as one occurrence), or "label". `labels`: column name ->
    label, of all words that have a character of the span; of several labels in a column, a word has the first one.
    """

    start: int
    stop: int
    kind: Kind = "label"
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
        try:
            if not self.text:
                object.__setattr__(self, "text", " ".join(self.words))
                object.__setattr__(self, "starts", [0, *accumulate(len(word) + 1 for word in self.words)][:-1])
            if self.stop == -1:
                object.__setattr__(self, "stop", len(self.text))
        except TypeError:
            check_sentence(self)  # which says what is no text
            raise

    def __str__(self) -> str:
        return self.text[self.start : self.stop]


PAIR = ""  # the word between two texts that a model is given as a pair

Item = Sentence | Document | Sequence[str] | str


def sentence_pair(first: Sentence, second: Sentence, labels: Mapping[str, str | None] | None = None) -> Sentence:
    """Make one sentence of two that a model is given as a pair, with its special tokens between them.

    Every word has the `labels`, and the label "side", 1 or 2; the empty word between the sentences has none. A line
    feed separates the texts.
    """
    shift = len(str(first)) + 1
    columns = {**{name: (label, label) for name, label in (labels or {}).items()}, "side": ("1", "2")}
    spread = {
        name: [*[one] * len(first.words), None, *[two] * len(second.words)] for name, (one, two) in columns.items()
    }
    starts = [at - first.start for at in first.starts]
    starts += [shift - 1, *(at - second.start + shift for at in second.starts)]
    return Sentence([*first.words, PAIR, *second.words], spread, text=f"{first}\n{second}", starts=starts)


def sentence_of_forms(
    forms: Sequence[str],
    labels: Mapping[str, Sequence[str | None]],
    attached: Sequence[int] = (),
    text: str | None = None,
    document: Document | None = None,
    space: str = "",
) -> Sentence:
    """Make a sentence of forms with one label each; a form with spaces becomes a target of several words.

    Its text is `text`, if that is the forms in their order with nothing but white space between; else the forms joined
    by one space, without one before the forms that are `attached`. `space` divides it from the sentence before.
    """
    words: Sequence[str] = forms
    targets: list[tuple[int, int]] = []
    if " " in "".join(forms):
        words, spans = split_forms(forms)
        spread: dict[str, list[str | None]] = {name: [None] * len(words) for name in labels}
        for name, column in labels.items():
            for (start, _), label in zip(spans, column, strict=True):
                spread[name][start] = label
        labels, attached = spread, [spans[form][0] for form in attached]
        targets = [(start, stop) for start, stop in spans if stop > start + 1]
    gaps = [space, *[" "] * (len(words) - 1)][: len(words)]
    for at in attached:
        gaps[at] = ""
    built = "".join(chain.from_iterable(zip(gaps, words, strict=True)))
    starts = None if text is None or space + text == built else _places(space + text, words)
    if text is None or starts is None:
        text = built[len(space) :]
        starts = list(accumulate(map(operator.add, map(len, gaps), [0, *map(len, words[:-1])])))
    return Sentence(words, labels, targets, document, space + text, starts, len(space))


def _places(text: str, words: Sequence[str]) -> list[int] | None:
    """Return where each word begins in a text of these words and white space; None for any other text."""
    starts, at = [], 0
    for word in words:
        start = text.find(word, at)
        if start < 0 or text[at:start].strip():
            return None
        starts.append(start)
        at = start + len(word)
    return None if text[at:].strip() else starts


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


def check_text(text: str) -> None:
    """Raise InvalidValueError for a text that has half of a surrogate pair or a NUL."""
    if not is_encodable(text):
        raise InvalidValueError(f"text: half of a surrogate pair, not a character: {quoted(text)}")
    if "\0" in text:
        raise InvalidValueError(f"text: a NUL character, which no text has: {quoted(text)}")


def read_items(items: Iterable[Item], split: Callable[[Document], Iterator[Sentence]]) -> Iterator[Sentence]:
    """Yield the sentences of Python objects: a Sentence, a sequence of words, and a Document or its text to be split.

    A word with spaces in a sequence of words is a target of several words. Sentences of one document whose texts are
    their words have a space between them. Raises CorpusError with the number of the item, from 0, for an object of
    another kind or a sentence that breaks the rules of `Sentence`.
    """
    before: Document | None = None
    end = 0  # of the sentence before, in the text of its document
    for number, item in enumerate(items):
        try:
            if isinstance(item, str | Document):
                document = check_document(Document(item) if isinstance(item, str) else item)
                if not (document.text or "").strip():
                    raise InvalidValueError("no word in it")
                yield from split(document)
            elif isinstance(item, Sentence):
                sentence, end = _following(check_sentence(item), before, end)
                yield sentence
            elif isinstance(item, Sequence):
                check_words(item)
                yield check_sentence(sentence_of_forms(item, {}))
            else:
                raise InvalidValueError(f"{quoted(item)} is neither a Sentence, a Document, words nor a string")
            before = item.document if isinstance(item, Sentence) else None
        except InvalidValueError as error:
            raise CorpusError(f"sentence {number}: {error}") from None


def _following(sentence: Sentence, before: Document | None, end: int) -> tuple[Sentence, int]:
    """Return a sentence after one of the document `before` that ends at `end` of its text, and where it ends itself.

    Two that are made of words have a space between them, unless the document has its own text, which they must fit.
    """
    document, text = sentence.document, sentence.text
    is_joined = text == " ".join(sentence.words)
    if document is None:
        return sentence, 0
    if document is not before:
        check_document(document)
        end = 0
    if document.text is not None:
        start = document.text.find(text, end)
        start = document.text.find(text) if start < 0 else start
        if start < 0 or (end and is_joined and document.text[end:start].isspace()):
            raise InvalidValueError(
                f"its text {quoted(text)} is not what the text of its document has next, white space included: give "
                "the sentence that text, or a Document without text"
            )
        return sentence, start + len(text)
    if document is not before or not is_joined:
        return sentence, 0
    starts = [at + 1 for at in sentence.starts]
    return replace(sentence, text=f" {text}", starts=starts, start=1, stop=len(text) + 1), 0


def check_document(document: Document) -> Document:
    """Return a document that keeps the rules of `Document`. Raises InvalidValueError for one that does not."""
    check_type("document", document, Document, "a Document or None")
    check_type("fields", document.fields, Mapping, "the facts about the text: {name: value}")
    check_type("spans", document.spans, Sequence, "a list of Span")
    check_type("ids", document.ids, (Sequence, type(None)), "a list of numbers")
    for name in document.fields:
        check_column_name(name)
    if document.text is None:
        if document.spans or document.ids is not None:
            raise InvalidValueError("a document with spans or ids and without the text that they are of")
        return document
    check_type("text", document.text, str, "the text of the document")
    check_text(document.text)
    for span in document.spans:
        check_type("spans: member", span, Span, "a Span")
        check_type("labels of a span", span.labels, Mapping, "{column: label}")
        start, stop = _whole(span.start, span.stop)
        if not 0 <= start <= stop <= len(document.text) or (start == stop and span.kind != "label"):
            raise InvalidValueError(
                f"span of a {span.kind} [{span.start}, {span.stop}): it is not within the {len(document.text):,} "
                "characters of the text"
            )
        if span.kind not in KINDS:
            raise InvalidValueError(f"span of a {quoted(span.kind)}: allowed are {', '.join(KINDS)}")
        for column, label in span.labels.items():
            check_column_name(column)
            _check_label(column, label)
    if not all(0 <= number < 2**31 for number in _whole(*document.ids or ())):
        raise InvalidValueError("ids: they are not all numbers of subwords, 0 or more")
    return document


def check_sentence(sentence: Sentence) -> Sentence:
    """Return a sentence that keeps the rules of `Sentence`. Raises InvalidValueError for one that does not."""
    words, text = sentence.words, sentence.text
    check_type("words", words, Sequence, "a sequence of words")
    if isinstance(words, str):
        raise InvalidValueError(f"words is one string, {quoted(words)}, not a sequence of words")
    if not words:
        raise InvalidValueError("no word in it")
    is_pair = words.count(PAIR) == 1 and words[0] and words[-1]
    check_words([word for word in words if word != PAIR] if is_pair else words)
    check_type("text", text, str, "a string")
    if len(text) > MAX_SENTENCE:
        raise InvalidValueError(f"a sentence of more than {MAX_SENTENCE:,} characters: break it into sentences")
    if " " in "".join(words):
        word = next(word for word in words if " " in word)
        raise InvalidValueError(f"the word {quoted(word)} has a space in it; give its words one by one, and a target")
    check_text(text)
    _check_places(sentence)
    check_type("labels", sentence.labels, Mapping, "the labels of each column: {column: labels}")
    for column, labels in sentence.labels.items():
        check_column_name(column)
        if isinstance(labels, str) or not isinstance(labels, Sequence) or len(labels) != len(words):
            raise InvalidValueError(f"label column {quoted(column)}: not one label a word ({len(words)})")
        for label in labels:
            _check_label(column, label)
    check_type("targets", sentence.targets, Sequence, "spans [start, stop) of words")
    end = 0
    for target in sentence.targets:
        start, stop = _whole(*target) if isinstance(target, Sequence) and len(target) == 2 else (-1, -1)
        if not end <= start < stop - 1 < len(words):
            raise InvalidValueError(
                f"target {quoted(target)}: targets are spans [start, stop) of two or more of the "
                f"{len(words)} words, ascending and disjoint"
            )
        end = stop
    return sentence


def _check_places(sentence: Sentence) -> None:
    """Raise InvalidValueError if the words of a sentence are not slices of its text, one after another."""
    words, text = sentence.words, sentence.text
    starts = _whole(*sentence.starts) if isinstance(sentence.starts, Iterable) else ()
    if len(starts) != len(words) or min(starts) < 0 or not all(map(text.startswith, words, starts)):
        raise InvalidValueError(f"starts: they are not where the {len(words)} words begin in the text {quoted(text)}")
    stops = list(map(operator.add, starts, map(len, words)))
    if not all(map(operator.le, stops, starts[1:])):
        raise InvalidValueError("starts: a word begins before the one before it has ended")
    start, stop = _whole(sentence.start, sentence.stop)
    if not 0 <= start <= starts[0] or not stops[-1] <= stop <= len(text):
        raise InvalidValueError(
            f"start {quoted(sentence.start)}, stop {quoted(sentence.stop)}: these characters of the text do not hold "
            "all of the words"
        )


def _whole(*numbers: Any) -> tuple[int, ...]:
    """Return whole numbers, -1 for what is none."""
    try:
        return tuple(map(operator.index, numbers))
    except TypeError:
        return (-1,) * len(numbers)


def _check_label(column: str, label: object) -> None:
    if label is not None and not (isinstance(label, str) and is_encodable(label)):
        raise InvalidValueError(f"label column {quoted(column)}: {quoted(label)} is neither text nor None")


def check_words(words: Sequence[Any]) -> None:
    """Raise InvalidValueError for a word that is not a string, or has nothing but spaces."""
    try:  # one join checks nearly every sentence
        if " ".join(words).count(" ") == len(words) - 1 and all(words):
            return
    except TypeError:
        pass
    for position, word in enumerate(words):
        if not isinstance(word, str) or not word.strip(" "):
            raise InvalidValueError(f"word {position} is {quoted(word)}: a word is a string that is not empty")
