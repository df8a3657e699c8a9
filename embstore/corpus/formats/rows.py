"""Rows of a table as documents: one column is the text, the others are facts about it or labels of its words."""

from __future__ import annotations

import re
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date, time
from decimal import Decimal
from itertools import pairwise
from typing import Any

from embstore.corpus.formats.base import ReadOptions
from embstore.corpus.sentence import Document, FieldValue, Sentence, check_sentence, is_encodable, sentence_of_forms
from embstore.errors import COLUMNS, CorpusError, EmbstoreWarning, InvalidValueError, quoted
from embstore.spacing import ATTACHED

Row = Mapping[str, Any]
FILE = "file"  # the field with the path of a document's file
DEFAULT_TEXT, CHAT = "text", "messages"
_Piece = tuple[int, int, int]  # the characters [start, stop) of a text, and the number of their sentence


def read_rows(
    rows: Iterable[tuple[int, Row]], options: ReadOptions, *, error: Callable[[int, str], CorpusError], name: str
) -> Iterator[Sentence]:
    """Yield the sentences of numbered rows, one document each.

    `error`: makes the error of a row from its number and a message. `name`: of the table, for the warning that rows
    have no text and are left out.
    """
    n_empty = first_empty = 0
    column = ""
    for number, row in rows:
        try:
            if not isinstance(row, Mapping):
                raise InvalidValueError(f"{quoted(row)} is not a row: column names with values")
            column = column or text_column(row, options.text)
            sentences = _sentences(row, column, options)
        except InvalidValueError as reason:
            raise error(number, str(reason)) from None
        if not sentences:
            first_empty = first_empty if n_empty else number
            n_empty += 1
        yield from sentences
    if n_empty:
        what = f"no text in {quoted(column)}"
        rows_have = f"1 row has {what} and is" if n_empty == 1 else f"{n_empty:,} rows have {what} and are"
        warnings.warn(
            f"{name}: {rows_have} left out (the first is number {first_empty})",
            EmbstoreWarning,
            stacklevel=2,
        )


def text_column(row: Row, wanted: str | None) -> str:
    """Return the column of the text: the one wanted, "text", "messages" or the only one of text or words."""
    if wanted is None and (DEFAULT_TEXT in row or is_chat(row.get(CHAT))):
        return DEFAULT_TEXT if DEFAULT_TEXT in row else CHAT
    if wanted is not None:
        if wanted not in row:
            raise InvalidValueError(f"there is no column {quoted(wanted)}; the columns are {_listed(row)}")
        return wanted
    texts = [name for name, value in row.items() if isinstance(value, str) or _is_words(value)]
    if len(texts) != 1:
        raise InvalidValueError(f'name the column of the text with text="...": the columns are {_listed(row)}')
    return texts[0]


def _sentences(row: Row, column: str, options: ReadOptions) -> list[Sentence]:
    if column not in row:
        raise InvalidValueError(f"there is no column {quoted(column)}; the columns are {_listed(row)}")
    text = row[column]
    others = {name: value for name, value in row.items() if name not in (column, options.spans)}
    if options.columns:
        if missing := [name for name in options.columns if name not in row]:
            raise InvalidValueError(f"there is no column {quoted(missing[0])}; the columns are {_listed(row)}")
        others = {name: value for name, value in others.items() if name in options.columns}
    if _is_missing(text) or (isinstance(text, str | list | tuple) and not text):
        return []
    if isinstance(text, str):
        if not is_encodable(text):
            raise InvalidValueError(f"{column}: half of a surrogate pair, not a character: {quoted(text)}")
        sentences, labels = list(options.splitter.sentences(text)), set[str]()
        if options.spans is not None:
            if options.spans not in row:
                raise InvalidValueError(f"there is no column {quoted(options.spans)}; the columns are {_listed(row)}")
            sentences = with_spans(text, sentences, row[options.spans], field_name(options.spans))
    elif is_chat(text):
        if options.spans is not None:
            raise InvalidValueError(f"spans: they are offsets in a text, and {quoted(column)} is a chat")
        sentences, labels = _chat(text, options), set()
    elif _is_words(text):
        if options.spans is not None:
            raise InvalidValueError(f"spans: they are offsets in a text, and {quoted(column)} is a list of words")
        labels = {name for name, value in others.items() if isinstance(value, list | tuple)}
        sentences = [_labelled(list(text), {name: others[name] for name in others if name in labels})]
    else:
        raise InvalidValueError(f"{column}: {quoted(text)} is neither a text, a list of words nor a chat")
    document = Document(_fields({name: others[name] for name in others if name not in labels}, options.fields))
    return [check_sentence(replace(each, document=document)) for each in sentences]


def is_chat(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(message, Mapping) for message in value)


def _chat(messages: Sequence[Row], options: ReadOptions) -> list[Sentence]:
    """Return the sentences of a list of messages, with the role of its message as a label of every word."""
    sentences: list[Sentence] = []
    for number, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        for key, value in (("role", role or None), ("content", "" if content is None else content)):
            if not isinstance(value, str) or not is_encodable(value):
                raise InvalidValueError(f"message {number}: {key} is {quoted(value)}, not a text")
        for sentence in options.splitter.sentences(content or ""):
            sentences.append(replace(sentence, labels={"role": [role] * len(sentence.words)}))
    return sentences


def _labelled(words: list[str], columns: Row) -> Sentence:
    for name, values in columns.items():
        if len(values) != len(words):
            raise InvalidValueError(f"{name}: {len(values)} labels for {len(words)} words; {_LEAVE_OUT}")
        if nested := [value for value in values if isinstance(value, list | tuple | Mapping)]:
            raise InvalidValueError(f"{name}: {quoted(nested[0])} is no label of a word; {_LEAVE_OUT}")
    if empty := [at for at, word in enumerate(words) if not word.removeprefix(ATTACHED).strip(" ")]:
        raise InvalidValueError(f"word {empty[0]} is empty")
    spelled = {
        field_name(name): [None if _is_missing(value) else str(value) for value in values]
        for name, values in columns.items()
    }
    attached = [at for at, word in enumerate(words) if at and word.startswith(ATTACHED)]
    return sentence_of_forms([word.removeprefix(ATTACHED) for word in words], spelled, attached)


_LEAVE_OUT = 'name the columns to read, without it, such as columns="author,year"'


def _fields(columns: Row, of_file: Mapping[str, FieldValue]) -> dict[str, FieldValue]:
    fields = dict(of_file)
    names = [field_name(name) for name in columns]
    if len(set(names)) < len(names):
        raise InvalidValueError(f"two columns have the same name: {_listed(columns)}")
    for name, (column, value) in zip(names, columns.items(), strict=True):
        fields[name] = field_value(column, value)
    return fields


def field_name(column: object) -> str:
    """Return a column's name as that of a field: with "_" for other characters, and after the names of COLUMNS."""
    name = re.sub(r"[^\w.-]", "_", str(column).strip())
    name = name if name[:1].isalnum() or name[:1] == "_" else f"_{name[1:]}"
    return f"{name}_" if name in COLUMNS else name


def field_value(column: str, value: Any) -> FieldValue:
    """Return a value as a store keeps it: dates as ISO text, missing values as None; raises InvalidValueError."""
    if _is_missing(value):
        return None
    if not isinstance(value, str | bool | int | float) and hasattr(value, "item") and not getattr(value, "shape", ()):
        value = value.item()  # a NumPy scalar
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, str) and not is_encodable(value):
        raise InvalidValueError(f"{column}: half of a surrogate pair, not a character: {quoted(value)}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise InvalidValueError(f"{column}: {quoted(value)} is not within 64 bits; {_LEAVE_OUT}")
    if isinstance(value, str | bool | int | float):
        return value
    hint = ""
    with suppress(InvalidValueError):  # of a text of any length
        hint = f"spans={quoted(column)} reads it as spans of the text, or " if _parse_spans("x" * 2**16, value) else ""
    raise InvalidValueError(f"{column}: {quoted(value)} is not one value; {hint}{_LEAVE_OUT}")


def with_spans(text: str, sentences: Sequence[Sentence], spans: object, column: str) -> list[Sentence]:
    """Return the sentences of a text with the spans of its characters as occurrences of their own.

    `spans`: [start, stop] or [start, stop, label], or objects with start, stop (or end) and label; white space at their
    ends is ignored. A word is split where a span begins or ends in it, and sentences that share a span are joined.
    `column`: the label column of the first word of each span, whose label is by default "span".
    """
    parsed = _parse_spans(text, spans)
    cuts = sorted({end for start, stop, _ in parsed for end in (start, stop)})
    pieces: list[_Piece] = []
    end = 0
    for number, sentence in enumerate(sentences):
        for word in sentence.words:
            begin = text.index(word, end)
            end = begin + len(word)
            bounds = [begin, *cuts[bisect_right(cuts, begin) : bisect_left(cuts, end)], end]
            pieces.extend((one, other, number) for one, other in pairwise(bounds))
    starts = [start for start, _, _ in pieces]
    joined = set[int]()  # sentences that are joined to the one before
    ranges = []
    for start, stop, label in parsed:
        first, last = bisect_left(starts, start), bisect_left(starts, stop)
        if first == last:
            raise InvalidValueError(f"spans: [{start}, {stop}] has no word: {quoted(text[start:stop])}")
        joined.update(range(pieces[first][2] + 1, pieces[last - 1][2] + 1))
        ranges.append((first, last, label))
    return list(_regrouped(text, pieces, joined, ranges, column))


def _regrouped(
    text: str, pieces: list[_Piece], joined: set[int], ranges: list[tuple[int, int, str]], column: str
) -> Iterator[Sentence]:
    """Yield the sentences made of the pieces of a text, with `ranges` of pieces as targets."""
    begins = [0] if pieces else []
    for at, (before, piece) in enumerate(pairwise(pieces), 1):
        if piece[2] != before[2] and piece[2] not in joined:
            begins.append(at)
    for begin, end in pairwise([*begins, len(pieces)]):
        inside = [(first - begin, last - begin, label) for first, last, label in ranges if begin <= first < end]
        labels: list[str | None] = [None] * (end - begin)
        for first, _, label in inside:
            labels[first] = label
        targets = [(first, last) for first, last, _ in inside if last > first + 1]
        words = [text[start:stop] for start, stop, _ in pieces[begin:end]]
        attached = [at - begin for at in range(begin + 1, end) if pieces[at][0] == pieces[at - 1][1]]
        yield Sentence(words, {column: labels}, targets, attached=attached)


def _parse_spans(text: str, spans: object) -> list[tuple[int, int, str]]:
    if _is_missing(spans):
        return []
    if not isinstance(spans, list | tuple):
        raise InvalidValueError(f"spans: {quoted(spans)} is not a list of [start, stop] or [start, stop, label]")
    parsed: list[tuple[int, int, str]] = []
    for span in spans:
        values = span
        if isinstance(span, Mapping):
            values = [span.get("start"), span.get("stop", span.get("end")), span.get("label")]
        if not isinstance(values, list | tuple) or len(values) not in (2, 3):
            raise InvalidValueError(f"spans: {quoted(span)} is not [start, stop] or [start, stop, label]")
        start, stop, *labels = values
        label = labels[0] if labels and labels[0] is not None else "span"
        if type(start) is not int or type(stop) is not int or not isinstance(label, str | int):
            raise InvalidValueError(f"spans: {quoted(span)} is not [start, stop] or [start, stop, label]")
        if not 0 <= start < stop <= len(text):
            raise InvalidValueError(
                f"spans: {quoted(span)} is not within the text of {len(text):,} characters: "
                f"0 <= start < stop <= {len(text)}"
            )
        inner = text[start:stop]
        start, stop = stop - len(inner.lstrip()), start + len(inner.rstrip())
        if start >= stop:
            raise InvalidValueError(f"spans: {quoted(span)} has no word: {quoted(inner)}")
        parsed.append((start, stop, str(label)))
    parsed.sort()
    for (start, stop, _), (other, end, _) in pairwise(parsed):
        if other < stop:
            raise InvalidValueError(f"spans: [{start}, {stop}] and [{other}, {end}] overlap")
    return parsed


def _is_words(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(word, str) for word in value)


def _is_missing(value: object) -> bool:
    """Return whether a value is None, NaN, or pandas' NaT or NA."""
    return (
        value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    )


def _listed(row: Row) -> str:
    names = ", ".join(map(str, row)) or "none"
    return names if len(names) < 200 else f"{names[:200]}..."
