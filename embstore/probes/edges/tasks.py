"""Edge probing tasks: labelled spans of sentences, and where their words are in a store."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embstore.corpus import EdgeSentence, EdgeTarget, read_edges
from embstore.errors import InvalidValueError, quoted
from embstore.probes.control import ControlTask
from embstore.probes.edges.batches import EdgeSplit
from embstore.probes.splits import SPLITS, some
from embstore.store import Store

Edges = str | os.PathLike[str] | Iterable[EdgeSentence]
UNITS = ("word", "subword")


@dataclass(frozen=True)
class EdgeLabels:
    """What probes know of a task: its `labels`, sorted; whether each target has a `single` one, and is a pair of spans.

    With a single label per target the likeliest is the answer; else each label is decided by itself.
    """

    name: str
    labels: tuple[str, ...]
    single: bool
    pairs: bool


@dataclass(frozen=True, eq=False)
class JoinedEdges:
    """Targets found in a store: as rows in `split`, and as they were given.

    `sentences`: one for each sentence of `split`; `targets`: one for each row of `split.gold`. `notes`: what was left
    out, a line each.
    """

    split: EdgeSplit
    sentences: tuple[EdgeSentence, ...]
    targets: tuple[EdgeTarget, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class EdgeTask:
    """The train and dev targets of a task in a store."""

    labels: EdgeLabels
    train: EdgeSplit
    dev: EdgeSplit | None = None
    notes: tuple[str, ...] = ()


def split_files(folder: Path) -> dict[str, Path]:
    """Return the files of a task's folder by split, train, dev and test: JSON lines, plain or compressed."""
    files: dict[str, Path] = {}
    for split in SPLITS:
        for suffix in ("", ".gz", ".zst"):
            path = folder / f"{split}.jsonl{suffix}"
            if path.exists():
                files.setdefault(split, path)
    return files


def join_task(store: Store, train: Edges, dev: Edges | None = None, *, name: str | None = None) -> EdgeTask:
    """Find the train and dev targets of a task in a store; the labels of the task are those of train.

    Labels of dev that train does not have count as missed and are noted, as are targets without rows. Raises
    InvalidValueError for a text that the store does not have, words that differ there, splits without targets, targets
    with one span among those with two, and spans outside their sentence.
    """
    if name is None:
        path = Path(train).absolute() if isinstance(train, str | os.PathLike) else Path("edges")
        stem = path.name.split(".")[0]
        name = path.parent.name if stem == "train" else stem
    edges = {"train": train} if dev is None else {"train": train, "dev": dev}
    found = {split: _Found(store, own, f"{name}: {split}") for split, own in edges.items()}
    targets = found["train"].targets
    names = tuple(sorted({label for target in targets for label in target.labels}))
    if len(names) < 2:
        raise InvalidValueError(f"{name}: train has {len(names)} labels: give targets of at least 2 labels")
    single = all(len(set(target.labels)) == 1 for own in found.values() for target in own.targets)
    labels = EdgeLabels(name, names, single, targets[0].span2 is not None)
    joined = {split: own.joined(labels) for split, own in found.items()}
    notes = tuple(note for own in joined.values() for note in own.notes)
    return EdgeTask(labels, joined["train"].split, joined["dev"].split if "dev" in joined else None, notes)


def join_edges(store: Store, edges: Edges, labels: EdgeLabels, *, split: str = "test") -> JoinedEdges:
    """Find targets in a store for probes that know the labels of a task; see `join_task`."""
    return _Found(store, edges, f"{labels.name}: {split}").joined(labels)


def control_task(task: EdgeTask, store: Store, control: ControlTask) -> EdgeTask:
    """Return the task with the labels of a control task."""
    dev = None if task.dev is None else control_split(task.dev, store, control)
    return replace(task, train=control_split(task.train, store, control), dev=dev)


def control_split(split: EdgeSplit, store: Store, control: ControlTask) -> EdgeSplit:
    """Return the same targets with the labels of a control task, which depend on the forms of their spans only."""
    types, form = store.index.type, cache(store.index.words.__getitem__)

    def text(span: NDArray[np.int64]) -> str:
        return " ".join(map(form, types[slice(*span.tolist())].tolist()))

    texts = ["\t".join(map(text, spans)) for spans in zip(*split.spans, strict=True)]
    return replace(split, gold=control.gold(texts), unknown=np.zeros(len(split), np.int64))


class _Found:
    """The targets of a split that have rows in a store, sentence after sentence."""

    def __init__(self, store: Store, edges: Edges, what: str) -> None:
        self._what, self._notes, self._first = what, list[str](), [0]
        self.sentences, self.targets = list[EdgeSentence](), list[EdgeTarget]()
        self._spans: list[list[tuple[int, int]]] = []
        n_missing = n_partial = 0
        listed = _with_targets(edges, what)
        stored = _Sentences(store, {" ".join(sentence.words) for sentence in listed})
        for sentence in listed:
            begin, end = stored.find(sentence.words, what)
            for target in sentence.targets:
                spans = _spans_of(target, sentence, what)
                found = [(int(begin[first]), int(end[last - 1])) for first, last in spans]
                if any(start >= stop for start, stop in found):
                    n_missing += 1
                    continue
                n_partial += any((begin[slice(*span)] == end[slice(*span)]).any() for span in spans)
                self.targets.append(target)
                self._spans.append(found)
            if len(self.targets) > self._first[-1]:
                self.sentences.append(sentence)
                self._first.append(len(self.targets))
        if n_missing:
            why = "the store has no row of one of their spans"
            self._notes.append(f"{what}: {n_missing:,} targets are left out: {why}")
        if n_partial:
            self._notes.append(f"{what}: {n_partial:,} targets have words without a row, and are read without these")
        if not self.targets:
            raise InvalidValueError(f"{what}: the store has no row of any target")

    def joined(self, labels: EdgeLabels) -> JoinedEdges:
        """Return the targets with their labels among those of a task."""
        if len(set(map(len, self._spans))) > 1 or (len(self._spans[0]) == 2) != labels.pairs:
            raise InvalidValueError(
                f"{self._what}: the targets of a task have two spans or one, all the same: give those of {labels.name}"
            )
        columns = {label: column for column, label in enumerate(labels.labels)}
        gold, unknown = np.zeros((len(self.targets), len(columns)), bool), np.zeros(len(self.targets), np.int64)
        others = set[str]()
        for number, target in enumerate(self.targets):
            new = set(target.labels) - columns.keys()
            gold[number, [columns[label] for label in target.labels if label in columns]] = True
            unknown[number] = len(new)
            others |= new
        notes = list(self._notes)
        if others:
            what = f"{unknown.sum():,} labels that train does not have count as missed"
            notes.append(f"{self._what}: {what}: {some(sorted(others))}")
        spans = tuple(np.ascontiguousarray(kind) for kind in np.array(self._spans, np.int64).transpose(1, 0, 2))
        split = EdgeSplit(np.array(self._first, np.int64), spans, gold, unknown)
        return JoinedEdges(split, tuple(self.sentences), tuple(self.targets), tuple(notes))


def _with_targets(edges: Edges, what: str) -> list[EdgeSentence]:
    """Read the sentences of a split that have targets."""
    if isinstance(edges, str | os.PathLike):
        edges = read_edges(edges)
    sentences = list(edges) if isinstance(edges, Iterable) else [edges]
    if not all(isinstance(sentence, EdgeSentence) for sentence in sentences):
        raise InvalidValueError(f"{what}: {quoted(edges)} are no targets: give a file, or sentences of read_edges")
    chosen = [sentence for sentence in sentences if sentence.targets]
    if not chosen:
        raise InvalidValueError(f"{what} has no target: give sentences with labelled spans")
    return chosen


def _spans_of(target: EdgeTarget, sentence: EdgeSentence, what: str) -> list[tuple[int, int]]:
    spans = [target.span1] if target.span2 is None else [target.span1, target.span2]
    for first, last in spans:
        if not 0 <= first < last <= len(sentence.words):
            words = f"the {len(sentence.words)} words of {quoted(' '.join(sentence.words))}"
            raise InvalidValueError(f"{what}: the span {[first, last]} is not within {words}")
    return spans


class _Sentences:
    """The sentences of a store by their words; of a text that occurs several times, the first one."""

    def __init__(self, store: Store, texts: set[str]) -> None:
        self._store, self._index = store, store.index
        self._are_words = require_unit(store) == "word"
        self._form = cache(store.index.words.__getitem__)
        spaced = enumerate(self._index.text.spaced(0, len(self._index.text)))
        self._numbers = dict(reversed([(words, number) for number, words in spaced if words in texts]))

    def find(self, words: Sequence[str], what: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rows `[begin, end)` of each word of a sentence, int64 [words] each.

        Words may share a subword. Raises InvalidValueError for a sentence that is not in the store, or that has other
        words there.
        """
        text, index = " ".join(words), self._index
        advice = "give the store of these sentences, split into the same words"
        if text not in self._numbers:
            raise InvalidValueError(f"{what}: {quoted(text)} is not a sentence of {self._store.path}: {advice}")
        number = self._numbers[text]
        start, stop = index.indptr[number : number + 2].tolist()
        position = np.asarray(index.position[start:stop])
        if (np.diff(position) < 0).any() or position[-1:].max(initial=-1) >= len(words):
            raise InvalidValueError(f"{what}: {quoted(text)}: the store's positions are not those of its words")
        forms = map(self._form, index.type[start:stop].tolist()) if self._are_words else ()
        for place, form in zip(position.tolist(), forms, strict=self._are_words):
            if form != words[place]:
                raise InvalidValueError(
                    f"{what}: word {place} of {quoted(text)} is {words[place]!r}, in the store {form!r}: {advice}"
                )
        rows, first, size = position, np.asarray(np.arange(len(words), dtype=np.int32)), np.asarray(1, np.int16)
        if index.subword is not None:
            own = slice(*index.text.word_indptr[number : number + 2].tolist())
            rows, first, size = index.subword[start:stop], index.text.word_subword[own], index.text.word_subwords[own]
        return start + np.searchsorted(rows, first), start + np.searchsorted(rows, first + size)


def require_unit(store: Store) -> str:
    """Return the unit of the rows of a store; raises InvalidValueError unless they are words or subwords."""
    unit = str(store.metadata.extraction.get("unit", "word"))
    if unit not in UNITS:
        raise InvalidValueError(f"{store.path} has rows of unit {unit!r}: edges need a store of {' or '.join(UNITS)}")
    return unit
