"""Edge probing: JSON lines with a text and labelled spans of its words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from embstore.corpus.formats.format import Format, Options
from embstore.corpus.lines import Lines, is_encodable
from embstore.corpus.messages import shown
from embstore.corpus.sentence import Sentence


@dataclass(frozen=True, slots=True)
class EdgeTarget:
    """One labelled edge: a span `[start, stop)` of words, or two, and its labels as the file gives them."""

    span1: tuple[int, int]
    span2: tuple[int, int] | None
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EdgeSentence:
    """The words of a text, and its edges."""

    words: Sequence[str]
    targets: Sequence[EdgeTarget]


def iter_edges(lines: Lines) -> Iterator[EdgeSentence]:
    """Yield the sentences of a file of edge probing; CorpusError names file and line."""
    for number, line in enumerate(lines, 1):
        if not line or line.isspace():
            continue
        try:
            yield _parse(line)
        except _WrongEdgeError as error:
            raise lines.error(number, str(error)) from None


def read_edge(lines: Lines, options: Options) -> Iterator[Sentence]:
    """Yield a sentence a line, with the label columns label and target.

    `label`: of a word that is the whole of a target of one span, its labels, sorted and joined by "|".
    `target`: "span1", "span2" or "span1|span2" for a word inside such spans.
    """
    for edges in iter_edges(lines):
        many = len(edges.words)
        labels: list[set[str]] = [set() for _ in range(many)]
        inside1, inside2 = bytearray(many), bytearray(many)
        for target in edges.targets:
            start, stop = target.span1
            inside1[start:stop] = b"\1" * (stop - start)
            if target.span2 is not None:
                inside2[slice(*target.span2)] = b"\1" * (target.span2[1] - target.span2[0])
            elif stop == start + 1:
                labels[start].update(target.labels)
        columns = {
            "label": ["|".join(sorted(names)) if names else None for names in labels],
            "target": [_TARGET[pair] for pair in zip(inside1, inside2, strict=True)],
        }
        yield Sentence(edges.words, columns)


_TARGET = {(0, 0): None, (1, 0): "span1", (0, 1): "span2", (1, 1): "span1|span2"}


class _WrongEdgeError(Exception):
    """A line is not of the format; the message says why."""


def _parse(line: str) -> EdgeSentence:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise _WrongEdgeError(f"not JSON: {error.msg} at column {error.colno}: {shown(line)}") from None
    except RecursionError:
        raise _WrongEdgeError("JSON too deeply nested") from None
    if not isinstance(record, dict):
        raise _WrongEdgeError(f'not a JSON object with "text" and "targets": {shown(line)}')
    words = _words(_key(record, "text", str))
    return EdgeSentence(words, [_target(target, len(words)) for target in _key(record, "targets", list)])


def _words(text: str) -> list[str]:
    words = text.split(" ")
    if "" in words:
        raise _WrongEdgeError(f"text: words must be joined by single spaces, with none at the ends: {shown(text)}")
    if not is_encodable(text):
        raise _WrongEdgeError(f"text: half of a surrogate pair, not a character: {shown(text)}")
    return words


def _target(target: object, words: int) -> EdgeTarget:
    if not isinstance(target, dict):
        raise _WrongEdgeError(f'targets: {shown(target)} is not an object with "span1" and "label"')
    label = _key(target, "label", str, list)
    labels = tuple(label) if isinstance(label, list) else (label,)
    if not all(isinstance(name, str) for name in labels):
        raise _WrongEdgeError(f"label: {shown(label)} is not a string or a list of strings")
    if not is_encodable("".join(labels)):
        raise _WrongEdgeError(f"label: half of a surrogate pair, not a character: {shown(label)}")
    span2 = _span(target, "span2", words) if target.get("span2") is not None else None
    return EdgeTarget(_span(target, "span1", words), span2, labels)


def _span(target: dict[str, Any], name: str, words: int) -> tuple[int, int]:
    span = _key(target, name, list)
    if len(span) != 2 or not all(type(end) is int for end in span):
        raise _WrongEdgeError(f"{name}: {shown(span)} is not [start, stop]")
    start, stop = span
    if not 0 <= start < stop <= words:
        raise _WrongEdgeError(f"{name}: {shown(span)} is not within the {words} words, 0 <= start < stop <= {words}")
    return start, stop


def _key(record: dict[str, Any], name: str, *kinds: type) -> Any:
    if name not in record:
        raise _WrongEdgeError(f'the key "{name}" is missing; there are {shown(sorted(record))}')
    if not isinstance(record[name], kinds):
        raise _WrongEdgeError(f"{name}: {shown(record[name])} is not a {' or a '.join(k.__name__ for k in kinds)}")
    return record[name]


EDGE = Format("edge", (".jsonl",), read_edge)
