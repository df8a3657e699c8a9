"""Edge probing targets: read from JSON lines, or derived from annotated corpora."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from embstore.arguments import checked
from embstore.corpus.formats import format_of
from embstore.corpus.formats.conll import DEFAULT_COLUMNS, DEPREL, FORM, UPOS, WORD, XPOS, column_blocks, word_blocks
from embstore.corpus.formats.edge import EdgeSentence, EdgeTarget, iter_edges
from embstore.corpus.lines import Lines
from embstore.corpus.sentence import split_forms
from embstore.corpus.trees import ROOT, word_heads
from embstore.errors import InvalidValueError, quoted


@checked
def read_edges(path: str | os.PathLike[str]) -> Iterator[EdgeSentence]:
    """Read the sentences of an edge probing file (JSON lines) one by one. Raises CorpusError with file and line."""
    return iter_edges(Lines(Path(path), "file of targets"))


@checked
def derived_edges(path: str | os.PathLike[str], task: str, *, repair: bool = False) -> list[EdgeSentence]:
    """Make edge probing targets from an annotated corpus; sentences without a target are included.

    From CoNLL-U, one target a word (multiword ranges and empty nodes are skipped):

    - `pos` (xpos) and `upos`, without the words that have none.
    - `dependencies`: `span1` is the word and `span2` its head, labelled with the full relation; the root of a sentence
      is its own head.

    From CoNLL columns: `entities`, one target a span of the B-x, I-x and O tags in the last column. An I-x that
    continues no span of x is an error; with `repair` it begins a span.

    Raises CorpusError, with the line, for text that is not of the format, for a head that is not a word, and if no
    sentence has a target; InvalidValueError for an unknown task.
    """
    if task not in _TASKS:
        raise InvalidValueError(f"task {quoted(task)} cannot be derived from a corpus: choose {', '.join(_TASKS)}")
    lines = Lines(Path(path))
    read, format_name, if_empty = _TASKS[task]
    sentences = list(read(lines, repair))
    if not any(sentence.targets for sentence in sentences):
        raise lines.file_error(f"{if_empty} (read as {format_name})")
    return sentences


@checked
def derivable_tasks(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the tasks that `derived_edges` can make of a file with this suffix, for example entities of .conll."""
    form = format_of(Path(path))
    return tuple(task for task, (_, name, _) in _TASKS.items() if form is not None and form.name == name)


def _read_tags(lines: Lines, repair: bool, *, column: int) -> Iterator[EdgeSentence]:
    for _, rows, *_ in word_blocks(lines):
        words, spans = split_forms([row[FORM] for row in rows])
        tags = [row[column] for row in rows]
        targets = [EdgeTarget(span, None, (tag,)) for span, tag in zip(spans, tags, strict=True) if tag != "_"]
        yield EdgeSentence(words, targets)


def _read_dependencies(lines: Lines, repair: bool) -> Iterator[EdgeSentence]:
    for numbers, rows, *_ in word_blocks(lines):
        words, spans = split_forms([row[FORM] for row in rows])
        heads = word_heads(lines, numbers, rows).tolist()
        targets = []
        for position, (number, row, head) in enumerate(zip(numbers, rows, heads, strict=True)):
            if row[DEPREL] in ("_", ""):
                raise lines.error(number, f"the relation (column 8) of {quoted(row[FORM])} is missing")
            targets.append(EdgeTarget(spans[position], spans[position if head == ROOT else head], (row[DEPREL],)))
        yield EdgeSentence(words, targets)


def _read_entities(lines: Lines, repair: bool) -> Iterator[EdgeSentence]:
    for numbers, rows, names in column_blocks(lines, DEFAULT_COLUMNS):
        words, spans = split_forms([row[names.index(WORD)] for row in rows])
        tags = [row[-1] for row in rows]
        targets = [
            EdgeTarget((spans[start][0], spans[stop - 1][1]), None, (label,))
            for start, stop, label in _iter_bio_spans(tags, numbers, lines, repair=repair)
        ]
        yield EdgeSentence(words, targets)


def _iter_bio_spans(
    tags: Sequence[str], numbers: Sequence[int], lines: Lines, *, repair: bool
) -> Iterator[tuple[int, int, str]]:
    """Yield the spans `[start, stop)` of a sentence's BIO tags, with their labels."""
    start, label = 0, ""
    for position, (tag, number) in enumerate(zip(tags, numbers, strict=True)):
        kind, _, own = tag.partition("-")
        if tag != "O" and (kind not in ("B", "I") or not own):
            raise lines.error(number, f"the tag {quoted(tag)} is not O, B- or I- with a label")
        if kind == "I" and own != label and not repair:
            before = quoted(tags[position - 1]) if position else "the start of a sentence"
            raise lines.error(number, f"{quoted(tag)} after {before} continues no span: correct it, or give repair")
        if label and not (kind == "I" and own == label):
            yield start, position, label
            label = ""
        if tag != "O" and not label:
            start, label = position, own
    if label:
        yield start, len(tags), label


# Task -> its reader, the name of the corpus format that it reads, and the error if there is no target.
_TASKS: dict[str, tuple[Callable[[Lines, bool], Iterator[EdgeSentence]], str, str]] = {
    "pos": (partial(_read_tags, column=XPOS), "conllu", "no word has an xpos (column 5): use the task upos"),
    "upos": (partial(_read_tags, column=UPOS), "conllu", "no word has a upos (column 4): use the task pos"),
    "dependencies": (_read_dependencies, "conllu", "no sentence in it"),
    "entities": (_read_entities, "conll", "no span in its last column, no B-x"),
}
