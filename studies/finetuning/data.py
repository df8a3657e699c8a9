"""Labeled data from files: words with labels, and sentences or pairs with one label."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from embstore.corpus import Sentence, open_corpus
from embstore.corpus.formats import format_of
from embstore.corpus.lines import Lines
from embstore.errors import CorpusError, CorpusNotFoundError, InvalidValueError, quoted
from embstore_studies.finetuning.settings import FineTuneTask

SPLIT_NAMES = {"train": ("train",), "dev": ("dev", "valid"), "test": ("test",)}
COLUMNS = {"conllu": "upos", "conll": "label"}
_BIO = re.compile(r"O|[BI]-.+")
FIELDS = {1: ("label", "sentence"), 2: ("label", "sentence1", "sentence2")}


@dataclass(frozen=True, slots=True)
class LabeledWords:
    """The words of a sentence and the label of each, None for a word without one."""

    words: Sequence[str]
    labels: Sequence[str | None]


@dataclass(frozen=True, slots=True)
class LabeledText:
    """One or two sentences as text, and their label."""

    texts: tuple[str, ...]
    label: str


Item = LabeledWords | LabeledText
DataSource = str | Path | Mapping[str, str | Path | None]


def find_splits(data: DataSource) -> dict[str, Path]:
    """Return the files of train, dev and, if there is one, test.

    `data`: a folder with one file for each split whose name contains that of the split, or the files by split. In a
    mapping, None or a missing key of a split is looked up in the folder under the key "folder", if that is given.
    Raises CorpusNotFoundError for a folder that does not exist, InvalidValueError for a missing split.
    """
    given: Mapping[str, str | Path | None] = {"folder": data} if isinstance(data, str | Path) else data
    named = {name: Path(path) for name, path in given.items() if path is not None}
    if unknown := set(named) - {"folder", *SPLIT_NAMES}:
        raise InvalidValueError(f"unknown split {min(unknown)!r}; allowed are train, dev, test and folder")
    found = {split: named[split] for split in SPLIT_NAMES if split in named}
    where = ""
    if (folder := named.get("folder")) is not None:
        where = f" in {folder}"
        if not folder.exists():
            raise CorpusNotFoundError(f"no data at {folder}: give a folder with train and dev files")
        if not folder.is_dir():
            raise InvalidValueError(
                f"{folder} is a file: give a folder with train and dev files, or a file for each split"
            )
        files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
        for split in SPLIT_NAMES.keys() - found.keys():
            matching = [path for path in files if any(name in path.name.lower() for name in SPLIT_NAMES[split])]
            if len(matching) > 1:
                names = ", ".join(path.name for path in matching[:3])
                raise InvalidValueError(f"{folder} has several {split} files ({names}): name one of them")
            if matching:
                found[split] = matching[0]
    for split in ("train", "dev"):
        if split not in found:
            raise InvalidValueError(f"there is no {split} data{where}: name a file for {split}")
    return {split: found[split] for split in SPLIT_NAMES if split in found}


def read_items(task: FineTuneTask, path: Path, *, label: str | None = None, columns: str | None = None) -> list[Item]:
    """Read the data of a task from a file.

    `label`: the label column; `columns`: the column names of a CoNLL file. Raises CorpusError, with the file and the
    line, for a file that is not in the format.
    """
    items: list[Item] = list(
        _labeled_words(path, label, columns) if task.labels_words else _labeled_texts(path, task.n_sentences)
    )
    if not items:
        raise CorpusError(f"{path} contains no sentence")
    if task.metric == "f1":
        other = next((name for item in items for name in labels_of(item) if not _BIO.fullmatch(name)), None)
        if other is not None:
            raise CorpusError(f"{path}: the label {quoted(other)} is not O, B- or I- with a type (BIO)")
    return items


def _labeled_words(path: Path, label: str | None, columns: str | None) -> Iterator[LabeledWords]:
    known = format_of(path)
    name = known.name if known is not None and known.name in COLUMNS else "conll"
    column = label or COLUMNS[name]
    found = False
    for sentence in open_corpus(path, format=name, columns=columns):
        if column not in sentence.labels:
            has = ", ".join(sentence.labels) or "none"
            raise CorpusError(f"{path}: no label column {quoted(column)}; it has {has}: name one with --label")
        labels = _at_last_words(sentence, sentence.labels[column])
        found = found or any(label is not None for label in labels)
        yield LabeledWords(sentence.words, labels)
    if not found:
        raise CorpusError(f"{path}: no word has a label in the column {quoted(column)}")


def _at_last_words(sentence: Sentence, labels: Sequence[str | None]) -> Sequence[str | None]:
    """Move the label of a target of several words to its last word, where the model predicts it."""
    if not sentence.targets:
        return labels
    moved = list(labels)
    for start, stop in sentence.targets:
        moved[stop - 1], moved[start] = moved[start], None
    return moved


def _labeled_texts(path: Path, count: int) -> Iterator[LabeledText]:
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
        yield LabeledText(fields[1:], fields[0])


def labels_of(item: Item) -> Iterable[str]:
    """Return the labels of an item, or of its words."""
    if isinstance(item, LabeledText):
        return (item.label,)
    return (label for label in item.labels if label is not None)


def label_names(files: Mapping[str, Path], items: Mapping[str, Sequence[Item]]) -> tuple[list[str], list[str]]:
    """Return the distinct labels of the training data, and those that only other splits have, both in order.

    The latter are never predicted, so they count as errors. Raises CorpusError if the training data have one label.
    """
    found = {split: {label for item in part for label in labels_of(item)} for split, part in items.items()}
    names = sorted(found["train"])
    if len(names) < 2:
        raise CorpusError(f"{files['train']}: every label is {quoted(names[0])}; training needs two or more")
    return names, sorted(set().union(*found.values()) - found["train"])


def sampled(items: list[Item], count: int | None, *, seed: int) -> list[Item]:
    """Return `count` items, chosen without replacement, in their order; all if there are no more."""
    if count is None or count >= len(items):
        return items
    chosen = np.random.default_rng(seed).choice(len(items), count, replace=False)
    return [items[index] for index in np.sort(chosen)]
