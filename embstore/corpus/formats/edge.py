"""Edge probing: JSON lines with a text and labelled spans of its words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from embstore.corpus.formats.base import Format, ReadOptions
from embstore.corpus.formats.tables import parse_object
from embstore.corpus.lines import Lines
from embstore.corpus.sentence import Sentence, check_text, is_encodable
from embstore.errors import InvalidValueError, quoted


@dataclass(frozen=True, slots=True)
class EdgeTarget:
    """One labelled edge of edge probing: one or two spans `[start, stop)` of words, and their labels."""

    span1: tuple[int, int]
    span2: tuple[int, int] | None
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EdgeSentence:
    """The words of a sentence and its labelled edges, and the document that it is from, if that is known."""

    words: Sequence[str]
    targets: Sequence[EdgeTarget]
    document: str | None = field(default=None, compare=False)


def iter_edges(lines: Lines) -> Iterator[EdgeSentence]:
    """Return the sentences of an edge probing file. Raises CorpusError with file and line."""
    return (sentence for _, sentence in lines.parsed(_parse_line))


def read_edge(lines: Lines, options: ReadOptions) -> Iterator[Sentence]:
    """Yield a sentence for each line, with the label columns label and target.

    `label`: for a word that is a whole target of one span, the labels of that target, sorted and joined by "|".
    `target`: "span1", "span2" or "span1|span2" for a word inside such spans.
    """
    for sentence in iter_edges(lines):
        labels: list[set[str]] = [set() for _ in sentence.words]
        inside: list[set[str]] = [set() for _ in sentence.words]
        for target in sentence.targets:
            for name, span in ("span1", target.span1), ("span2", target.span2 or (0, 0)):
                for spans in inside[slice(*span)]:
                    spans.add(name)
            start, stop = target.span1
            if target.span2 is None and stop == start + 1:
                labels[start].update(target.labels)
        columns = {"label": labels, "target": inside}
        joined = {name: ["|".join(sorted(each)) or None for each in column] for name, column in columns.items()}
        yield Sentence(sentence.words, joined)


def _parse_line(line: str) -> EdgeSentence:
    record = parse_object(line)
    text = _value(record, "text", str)
    words = text.split(" ")
    if "" in words:
        raise InvalidValueError(f"text: words must be joined by single spaces, with none at the ends: {quoted(text)}")
    check_text(text)
    info = record.get("info")
    document = info.get("document") if isinstance(info, dict) else None
    targets = [_parse_target(target, len(words)) for target in _value(record, "targets", list)]
    return EdgeSentence(words, targets, document if isinstance(document, str) else None)


def _parse_target(target: object, n_words: int) -> EdgeTarget:
    if not isinstance(target, dict):
        raise InvalidValueError(f'targets: {quoted(target)} is not an object with "span1" and "label"')
    label = _value(target, "label", str, list)
    labels = tuple(label) if isinstance(label, list) else (label,)
    if not all(isinstance(name, str) and is_encodable(name) for name in labels):
        raise InvalidValueError(f"label: {quoted(label)} is not a text or a list of texts")
    span2 = _parse_span(target, "span2", n_words) if target.get("span2") is not None else None
    return EdgeTarget(_parse_span(target, "span1", n_words), span2, labels)


def _parse_span(target: dict[str, Any], name: str, n_words: int) -> tuple[int, int]:
    span = _value(target, name, list)
    if len(span) != 2 or not all(type(end) is int for end in span) or not 0 <= span[0] < span[1] <= n_words:
        raise InvalidValueError(f"{name}: {quoted(span)} is not [start, stop] within the {n_words} words")
    return span[0], span[1]


def _value(record: dict[str, Any], name: str, *kinds: type) -> Any:
    if name not in record:
        raise InvalidValueError(f'the key "{name}" is missing; there are {quoted(sorted(record))}')
    if not isinstance(record[name], kinds):
        raise InvalidValueError(f"{name}: {quoted(record[name])} is not a {' or a '.join(k.__name__ for k in kinds)}")
    return record[name]


def _has_targets(line: str) -> bool:
    try:
        return "targets" in parse_object(line)
    except InvalidValueError:
        return False


EDGE = Format("edge", (".jsonl",), read_edge, sniff=_has_targets)
