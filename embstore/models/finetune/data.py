"""Labelled data from files: words with labels, and sentences or pairs with one label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from embstore.corpus import Sentence, open_corpus
from embstore.corpus.formats import format_of
from embstore.corpus.lines import Lines
from embstore.errors import CorpusError, CorpusNotFoundError, InvalidValueError, one_line, quoted
from embstore.models.finetune.settings import Task

SPLIT_NAMES = {"train": ("train",), "dev": ("dev", "valid"), "test": ("test",)}
COLUMNS = {"conllu": "upos", "conll": "label"}
FIELDS = {1: ("label", "sentence"), 2: ("label", "sentence1", "sentence2")}


@dataclass(frozen=True, slots=True)
class Tagged:
    """The words of a sentence and the label of each, None where it has none."""

    words: Sequence[str]
    labels: Sequence[str | None]


@dataclass(frozen=True, slots=True)
class Labelled:
    """One or two sentences as text, and their label."""

    texts: tuple[str, ...]
    label: str


Item = Tagged | Labelled
PathLike = str | Path


@dataclass(frozen=True)
class Reading:
    """How files are read: the label column and, of CoNLL files, the names of the columns."""

    label: str | None = None
    columns: str | None = None


def find_splits(
    data: PathLike | None, *, train: PathLike | None, dev: PathLike | None, test: PathLike | None
) -> dict[str, Path]:
    """Return the files of train, dev and perhaps test, those named before those of the folder `data`."""
    named = {"train": train, "dev": dev, "test": test}
    found = {split: Path(path) for split, path in named.items() if path is not None}
    if data is not None:
        folder = Path(data)
        if not folder.exists():
            raise CorpusNotFoundError(f"no data at {one_line(folder)}: give a folder with train and dev files")
        if not folder.is_dir():
            raise InvalidValueError(
                f"{one_line(folder)} is a file: give a folder with train and dev files, or name them (--train, --dev)"
            )
        for split in (split for split in SPLIT_NAMES if split not in found):
            found |= _in_folder(folder, split)
    for split in ("train", "dev"):
        if split not in found:
            where = "" if data is None else f" in {one_line(Path(data))}"
            raise InvalidValueError(f"no {split} data{where}: name a file with --{split}")
    return {split: found[split] for split in SPLIT_NAMES if split in found}


def _in_folder(folder: Path, split: str) -> dict[str, Path]:
    """The file of a folder whose name holds that of the split."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    fitting = [path for path in files if any(name in path.name.lower() for name in SPLIT_NAMES[split])]
    if len(fitting) > 1:
        names = ", ".join(path.name for path in fitting[:3])
        raise InvalidValueError(f"{one_line(folder)} has several {split} files ({names}): name one with --{split}")
    return {split: fitting[0]} if fitting else {}


def read_items(task: Task, path: Path, reading: Reading) -> list[Item]:
    """Read a file of a task's data; raises CorpusError, naming file and line, where it is not of its format."""
    items: list[Item] = list(_tagged(path, reading) if task.labels_words else _labelled(path, task.sentences))
    if not items:
        raise CorpusError(f"{one_line(path)}: no sentence in it")
    return items


def _tagged(path: Path, reading: Reading) -> Iterator[Tagged]:
    form = format_of(path)
    name = form.name if form is not None and form.name in COLUMNS else "conll"
    column = reading.label or COLUMNS[name]
    found = False
    for sentence in open_corpus(path, format=name, columns=reading.columns):
        if column not in sentence.labels:
            has = ", ".join(sentence.labels) or "none"
            raise CorpusError(f"{one_line(path)}: no label column {quoted(column)}; it has {has}: give --label")
        labels = _at_last_words(sentence, sentence.labels[column])
        found = found or any(label is not None for label in labels)
        yield Tagged(sentence.words, labels)
    if not found:
        raise CorpusError(f"{one_line(path)}: no word has a label in the column {quoted(column)}")


def _at_last_words(sentence: Sentence, labels: Sequence[str | None]) -> Sequence[str | None]:
    """The labels with that of a form of several words at its last word, which is where the model is asked."""
    if not sentence.targets:
        return labels
    moved = list(labels)
    for start, stop in sentence.targets:
        moved[stop - 1], moved[start] = moved[start], None
    return moved


def _labelled(path: Path, count: int) -> Iterator[Labelled]:
    names = FIELDS[count]
    lines = Lines(path)
    for number, line in enumerate(lines, 1):
        if not line or line.isspace():
            continue
        fields = tuple(field.strip() for field in line.split("\t"))
        if number == 1 and fields == names:
            continue
        if len(fields) != len(names):
            raise lines.error(
                number, f"{len(fields)} fields instead of {len(names)} ({', '.join(names)}, by tabs): {quoted(line)}"
            )
        for name, field in zip(names, fields, strict=True):
            if not field:
                raise lines.error(number, f"the {name} is empty: {quoted(line)}")
        yield Labelled(fields[1:], fields[0])


def labels_of(item: Item) -> Iterable[str]:
    """Every label of an item."""
    if isinstance(item, Labelled):
        return (item.label,)
    return (label for label in item.labels if label is not None)


def label_names(path: Path, items: Sequence[Item]) -> list[str]:
    """Return the distinct labels in order; raises CorpusError where there is but one, so nothing to learn."""
    names = sorted({label for item in items for label in labels_of(item)})
    if len(names) < 2:
        raise CorpusError(f"{one_line(path)}: every label is {quoted(names[0])}: two or more are needed to learn")
    return names


def check_known(path: Path, items: Sequence[Item], names: Sequence[str]) -> None:
    """Raise CorpusError for a label that the training data has not."""
    seen = Counter(label for item in items for label in labels_of(item))
    if unknown := sorted(set(seen) - set(names)):
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise CorpusError(
            f"{one_line(path)}: the label {quoted(unknown[0])}{more} stands {seen[unknown[0]]} times here and never in "
            f"the training data, which has {', '.join(names[:20])}"
        )


def sampled(items: list[Item], count: int | None, *, seed: int) -> list[Item]:
    """Return `count` items drawn without replacement, in their order; all where there are no more."""
    if count is None or count >= len(items):
        return items
    chosen = np.random.default_rng(seed).choice(len(items), count, replace=False)
    return [items[index] for index in np.sort(chosen)]
