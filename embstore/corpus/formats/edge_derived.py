"""Tasks of edge probing that corpora hold already: parts of speech, dependencies, entities."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from embstore.corpus.formats.conll import DEFAULT_COLUMNS, WORD, column_blocks
from embstore.corpus.formats.conllu import DEPREL, FORM, UPOS, XPOS, word_blocks
from embstore.corpus.formats.edge import EdgeSentence, EdgeTarget
from embstore.corpus.formats.registry import format_of
from embstore.corpus.lines import Lines
from embstore.corpus.messages import shown
from embstore.corpus.trees import ROOT, word_heads
from embstore.errors import InvalidValueError

Span = tuple[int, int]


def derived_edges(
    path: str | os.PathLike[str], task: str, *, repair: bool = False, encoding: str = "utf-8"
) -> list[EdgeSentence]:
    """The sentences of a corpus as a task of edge probing, those without a target too.

    From CoNLL-U, where multiword ranges and empty nodes are passed over, a target a word: `pos` (xpos) and `upos`,
    words without one left out; `dependencies`, `span1` the word and `span2` its head, labelled with the full
    relation; the root of a sentence is its own head. From CoNLL columns, the last one of B-x, I-x and O: `entities`,
    a target a span. An I-x that goes on with no span of x is an error; with `repair` it begins one.

    Raises CorpusError, with the line, for what is not of the format, for a head that is no word, and where no
    sentence has a target; InvalidValueError for another task.
    """
    if task not in TASKS:
        raise InvalidValueError(f"task {shown(task)} is derived from no corpus: choose {', '.join(TASKS)}")
    lines = Lines(Path(path), encoding)
    sentences = list(TASKS[task].read(lines, repair))
    if not any(sentence.targets for sentence in sentences):
        raise lines.whole_error(f"{TASKS[task].empty} (read as {TASKS[task].format})")
    return sentences


def derivable(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """The tasks that a corpus of this suffix holds; none for a suffix of another format."""
    form = format_of(Path(path))
    return tuple(name for name, task in TASKS.items() if form is not None and form.name == task.format)


def _upos(lines: Lines, repair: bool) -> Iterator[EdgeSentence]:
    return _words(lines, UPOS)


def _xpos(lines: Lines, repair: bool) -> Iterator[EdgeSentence]:
    return _words(lines, XPOS)


def _words(lines: Lines, column: int) -> Iterator[EdgeSentence]:
    for _, rows in word_blocks(lines):
        words, spans = _split([row[FORM] for row in rows])
        labels = [row[column] for row in rows]
        yield EdgeSentence(
            words,
            [EdgeTarget(span, None, (label,)) for span, label in zip(spans, labels, strict=True) if label != "_"],
        )


def _dependencies(lines: Lines, repair: bool) -> Iterator[EdgeSentence]:
    for numbers, rows in word_blocks(lines):
        words, spans = _split([row[FORM] for row in rows])
        heads = word_heads(lines, numbers, rows).tolist()
        targets = []
        for place, (number, row, head) in enumerate(zip(numbers, rows, heads, strict=True)):
            if row[DEPREL] in ("_", ""):
                raise lines.error(number, f"the relation (column 8) of {shown(row[FORM])} is missing")
            targets.append(EdgeTarget(spans[place], spans[place if head == ROOT else head], (row[DEPREL],)))
        yield EdgeSentence(words, targets)


def _entities(lines: Lines, repair: bool) -> Iterator[EdgeSentence]:
    for numbers, rows, names in column_blocks(lines, DEFAULT_COLUMNS):
        words, spans = _split([row[names.index(WORD)] for row in rows])
        tags = [row[-1] for row in rows]
        targets = [
            EdgeTarget((spans[start][0], spans[stop - 1][1]), None, (label,))
            for start, stop, label in _bio(tags, numbers, lines, repair=repair)
        ]
        yield EdgeSentence(words, targets)


def _bio(tags: Sequence[str], numbers: Sequence[int], lines: Lines, *, repair: bool) -> Iterator[tuple[int, int, str]]:
    """The spans `[start, stop)` of a sentence's tags, with their labels."""
    start, label = 0, ""
    for place, (tag, number) in enumerate(zip(tags, numbers, strict=True)):
        kind, _, own = tag.partition("-")
        if tag != "O" and (kind not in ("B", "I") or not own):
            raise lines.error(number, f"the tag {shown(tag)} is not O, B- or I- with a label")
        if kind == "I" and own != label and not repair:
            before = shown(tags[place - 1]) if place else "the start of a sentence"
            raise lines.error(
                number,
                f"{shown(tag)} after {before} goes on with no span: mend it, or repair to have it begin one",
            )
        if label and not (kind == "I" and own == label):
            yield start, place, label
            label = ""
        if tag != "O" and not label:
            start, label = place, own
    if label:
        yield start, len(tags), label


def _split(forms: Sequence[str]) -> tuple[list[str], list[Span]]:
    """The words of forms, some perhaps with spaces, and the span of words that each form is."""
    words: list[str] = []
    spans = []
    for form in forms:
        parts = list(filter(None, form.split(" ")))
        spans.append((len(words), len(words) + len(parts)))
        words.extend(parts)
    return words, spans


@dataclass(frozen=True)
class _Task:
    """How a task is read, from which format, and what is wrong where it has no target."""

    read: Callable[[Lines, bool], Iterator[EdgeSentence]]
    format: str
    empty: str


TASKS = {
    "pos": _Task(_xpos, "conllu", "no word has an xpos (column 5): take the task upos"),
    "upos": _Task(_upos, "conllu", "no word has a upos (column 4): take the task pos"),
    "dependencies": _Task(_dependencies, "conllu", "no sentence in it"),
    "entities": _Task(_entities, "conll", "no span in its last column, no B-x"),
}
