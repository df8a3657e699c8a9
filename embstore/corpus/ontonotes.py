"""OntoNotes 5 in CoNLL-2012 form, made into the files of five edge probing tasks."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, TextIO

from embstore.arguments import checked
from embstore.corpus.formats.edge import EdgeTarget
from embstore.corpus.lines import Lines
from embstore.errors import CorpusError, EmbstoreError, InvalidValueError, StorageError, one_line, quoted
from embstore.progress import Progress, reporting

DOCUMENT, PART, WORD, POS, PARSE, ENTITY, FIRST_ROLE = 0, 1, 3, 4, 5, 10, 11  # columns; the last is coreference
MISSING = ("-", "*", "_")
NO_PARSE, NO_WORD, VERB = "NOPARSE", "[WORD]", "V"
BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
_BRACKET = re.compile(r"\(([^()*|\s]+)|\)")
_SPLIT = re.compile(r"(?<![a-z])(train|development|dev|conll-2012-test|test)(?![a-z])")

Span = tuple[int, int, str]  # start, stop, label


@dataclass(frozen=True, slots=True)
class OntoNotesSentence:
    """A sentence of OntoNotes: its words, the document and part that it is from, and its targets by task."""

    words: Sequence[str]
    document: str
    targets: Mapping[str, Sequence[EdgeTarget]]


@checked
def convert_ontonotes(
    folder: str | os.PathLike[str], out: str | os.PathLike[str], *, progress: Progress = None
) -> dict[str, dict[str, int]]:
    """Write five tasks of OntoNotes as files of edge probing, OUT/TASK/{train,dev,test}.jsonl.

    `folder`: OntoNotes 5 in CoNLL-2012 form, version 4 or 12: files *gold_conll whose split (train, development, test)
    is the name of a folder above them or in their own. Of several languages only English is read, and conll-2012-test
    only without another test. `out`: a new folder, which exists once all of it is written.

    `pos`: a target a word. `constituents`: a target a phrase of the parse, its root included. `entities`.
    `semantic-roles`: the verb and each argument of its frame. `coreference`: every two mentions of a sentence, "1" if
    they are of one entity, else "0". A file has the sentences with targets of its task. Words are those of running
    text: -LRB- is a bracket and /. a full stop. Returns the number of targets by task and split.

    Raises CorpusError for a folder without such files or without train and, with the line, for text that is not of the
    form; InvalidValueError if `out` exists; StorageError.
    """
    for name, path in (("folder", folder), ("out", out)):
        if "\0" in str(path):
            raise InvalidValueError(f"{name} {quoted(path)} is not a path: give the name of a folder")
    target = Path(out)
    if os.path.lexists(target):
        raise InvalidValueError(f"out {quoted(str(out))} exists: give a new folder")
    partial = target.with_name(f".{target.name}.partial")
    try:
        counts = _write(ontonotes_files(Path(folder)), partial, progress)
        partial.rename(target)
    except EmbstoreError:
        raise
    except OSError as error:
        kind = InvalidValueError if error.errno == errno.ENAMETOOLONG else StorageError
        raise kind(f"{quoted(str(error.filename or target))}: {error.strerror}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return counts


def _write(files: Mapping[str, Sequence[Path]], folder: Path, progress: Progress) -> dict[str, dict[str, int]]:
    """Write the tasks of files by split to a folder; returns the number of targets by task and split."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    opened: dict[Path, TextIO] = {}
    counts: dict[str, dict[str, int]] = {}

    def write(split: str, sentence: OntoNotesSentence) -> None:
        info = {"source": "OntoNotes 5", "document": sentence.document}
        for task, targets in sentence.targets.items():
            if not targets:
                continue
            path = folder / task / f"{split}.jsonl"
            if path not in opened:
                path.parent.mkdir(exist_ok=True)
                opened[path] = stack.enter_context(path.open("w", encoding="utf-8"))
            line = {"text": " ".join(sentence.words), "targets": list(map(_as_json, targets)), "info": info}
            print(json.dumps(line, ensure_ascii=False), file=opened[path])
            of_task = counts.setdefault(task, {})
            of_task[split] = of_task.get(split, 0) + len(targets)

    with ExitStack() as stack, reporting(progress, total=sum(map(len, files.values())), unit="files") as report:
        done = 0
        for split, paths in files.items():
            for path in paths:
                for sentence in read_ontonotes(path):
                    write(split, sentence)
                done += 1
                report(done)
    return counts


def ontonotes_files(folder: Path) -> dict[str, list[Path]]:
    """Return the files of each split in a folder. Raises CorpusError."""
    if not folder.is_dir():
        raise CorpusError(f"{one_line(folder)} is not a folder: give that of OntoNotes 5 in CoNLL-2012 form")
    paths = sorted(path for path in folder.rglob("*gold_conll") if path.is_file())
    paths = [path for path in paths if "english" in path.relative_to(folder).parts] or paths
    found: dict[str, list[Path]] = {}
    for path in paths:
        named = _SPLIT.search(path.relative_to(folder).as_posix())
        if named is None:
            raise CorpusError(f"{one_line(path)}: neither its name nor a folder's is train, development or test")
        found.setdefault(named[1], []).append(path)
    if "train" not in found:
        raise CorpusError(f"{one_line(folder)} has no *gold_conll file of train: give OntoNotes 5 in CoNLL-2012 form")
    splits = {"train": ("train",), "dev": ("development", "dev"), "test": ("test", "conll-2012-test")}
    chosen = {split: next((name for name in names if name in found), "") for split, names in splits.items()}
    return {split: found[name] for split, name in chosen.items() if name}


def _as_json(target: EdgeTarget) -> dict[str, Any]:
    second = {} if target.span2 is None else {"span2": target.span2}
    return {"span1": target.span1, **second, "label": target.labels[0]}


def read_ontonotes(path: Path) -> Iterator[OntoNotesSentence]:
    """Yield the sentences of a file of CoNLL-2012 form. Raises CorpusError with file and line."""
    lines = Lines(path)
    numbers: list[int] = []
    rows: list[list[str]] = []
    length = 0
    for number, line in enumerate(lines, 1):
        row = [] if line.startswith("#") else line.replace("\t", " ").split(" ")
        if row := [column for column in row if column]:
            if len(row) <= FIRST_ROLE or (rows and len(row) != len(rows[0])):
                wanted = f"{len(rows[0])} as before" if rows else f"{FIRST_ROLE + 1} or more"
                raise lines.error(number, f"{len(row)} columns instead of {wanted}: {quoted(line)}")
            if row[WORD] == NO_WORD:
                raise lines.error(number, "the words are left out: make the file with skeleton2conll.sh and OntoNotes")
            length = lines.sentence_length(number, length, line)
            numbers.append(number)
            rows.append(row)
        elif rows:
            yield _sentence(lines, numbers, rows)
            numbers, rows, length = [], [], 0
    if rows:
        yield _sentence(lines, numbers, rows)


def _sentence(lines: Lines, numbers: list[int], rows: list[list[str]]) -> OntoNotesSentence:
    columns = list(zip(*rows, strict=True))

    def spans(column: int) -> list[Span]:
        return _bracketed(lines, numbers, columns[column])

    roles = []
    for column in range(FIRST_ROLE, len(columns) - 1):
        frame = spans(column)
        verb = next(((start, stop) for start, stop, label in frame if label == VERB), None)
        if verb is not None:
            roles += [EdgeTarget(verb, (start, stop), (label,)) for start, stop, label in frame if label != VERB]
    mentions = sorted(_mentions(lines, numbers, columns[-1]))
    pairs = [EdgeTarget(a[:2], b[:2], (str(int(a[2] == b[2])),)) for a, b in combinations(mentions, 2)]
    tags = [(place, place + 1, tag) for place, tag in enumerate(columns[POS]) if tag not in MISSING]
    return OntoNotesSentence(
        words=[_word(form) for form in columns[WORD]],
        document=f"{rows[0][DOCUMENT]} part {rows[0][PART]}",
        targets={
            "pos": _single(tags),
            "constituents": _single(span for span in spans(PARSE) if span[2] != NO_PARSE),
            "entities": _single(spans(ENTITY)),
            "semantic-roles": roles,
            "coreference": pairs,
        },
    )


def _single(spans: Iterable[Span]) -> list[EdgeTarget]:
    return [EdgeTarget((start, stop), None, (label,)) for start, stop, label in spans]


def _word(form: str) -> str:
    """Return a word as it is in running text: brackets by their names, and marks after a slash, are only marks."""
    if len(form) == 2 and form[0] == "/" and not form[1].isalnum():
        return form[1]
    return BRACKETS.get(form, form)


def _bracketed(lines: Lines, numbers: Sequence[int], cells: Sequence[str]) -> list[Span]:
    """Return the spans of a column such as (NP*, *, *), inner ones before outer ones."""
    opened: list[tuple[int, str]] = []
    found: list[Span] = []
    for place, cell in enumerate(cells):
        for bracket in _BRACKET.finditer(cell):
            if bracket[1] is not None:
                opened.append((place, bracket[1]))
            elif opened:
                start, label = opened.pop()
                found.append((start, place + 1, label))
            else:
                raise lines.error(numbers[place], f"{quoted(cell)} closes a span that is not open")
    if opened:
        start, label = opened[-1]
        raise lines.error(numbers[start], f"the span ({label} is not closed in its sentence")
    return found


def _mentions(lines: Lines, numbers: Sequence[int], cells: Sequence[str]) -> Iterator[Span]:
    """Yield the mentions of the column of coreference, such as (12|(3), -, 12): each with the number of its entity."""
    opened: dict[str, list[int]] = {}
    for place, cell in enumerate(cells):
        for part in () if cell in MISSING else cell.split("|"):
            entity = part.strip("()")
            if part.startswith("("):
                opened.setdefault(entity, []).append(place)
            if part.endswith(")"):
                if not opened.get(entity):
                    raise lines.error(numbers[place], f"{quoted(cell)} closes a mention that is not open")
                yield opened[entity].pop(), place + 1, entity
            elif not part.startswith("("):
                raise lines.error(numbers[place], f"{quoted(cell)} is no mention, such as (12, 12) or (12)")
    for entity, places in opened.items():
        if places:
            raise lines.error(numbers[places[-1]], f"the mention ({entity} is not closed in its sentence")
