"""Edge probing tasks: labelled spans of sentences, and where their words are in a store."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from itertools import takewhile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embstore.corpus import EdgeSentence, EdgeTarget, read_edges
from embstore.errors import InvalidValueError, quoted
from embstore.probes.control import ControlTask
from embstore.probes.edges.batches import EdgeSplit
from embstore.probes.splits import SPLITS
from embstore.spacing import spaced, split_words
from embstore.store import Store

N_TEXTS = 4096  # texts read at a time
MAX_SHOWN = 100  # characters of a text in a message


@dataclass(frozen=True, eq=False)
class StoredSentence:
    """A sentence of the store: its rows from `start`, and the word `position` int32 [rows] of each, ascending."""

    start: int
    position: NDArray[np.int32]

    def rows(self, span: tuple[int, int]) -> tuple[int, int]:
        """Return the rows [start, stop) of a span of words; empty if no word of it has a row."""
        low, high = np.searchsorted(self.position, span).tolist()
        return self.start + low, self.start + high

    def is_complete(self, span: tuple[int, int]) -> bool:
        """Return whether every word of the span has a row."""
        low, high = np.searchsorted(self.position, span)
        return len(np.unique(self.position[low:high])) == span[1] - span[0]


class StoredSentences:
    """Find sentences of a store by their words; of a text that occurs several times, the first occurrence."""

    def __init__(self, store: Store, sentences: Iterable[Sequence[str]]) -> None:
        self._store = store
        self._index = store.index
        self._forms: dict[int, str] = {}
        self._rows_are_words = require_unit(store) == "word"
        wanted = {" ".join(words) for words in sentences}
        self._numbers: dict[str, int] = {}
        for start in range(0, len(self._index.texts), N_TEXTS):
            stop = min(start + N_TEXTS, len(self._index.texts))
            for number, text in enumerate(self._index.texts.slice(start, stop), start):
                if (words := spaced(text)) in wanted:
                    self._numbers.setdefault(words, number)

    def find(self, words: Sequence[str], *, what: str) -> StoredSentence:
        """Return the stored sentence with exactly these words; `what` names the task in the error.

        Raises InvalidValueError if there is none, or if its words or positions differ.
        """
        text = " ".join(words)
        number = self._numbers.get(text)
        if number is None:
            raise InvalidValueError(
                f"{what}: {shown(text)} is not a sentence of {self._store.path}, where the nearest is "
                f"{shown(self._nearest(words))}: give the store of these sentences, split into the same words"
            )
        start, stop = self._index.indptr[number : number + 2].tolist()
        position = np.asarray(self._index.position[start:stop])
        if (np.diff(position) < 0).any() or position[-1:].max(initial=-1) >= len(words):
            raise InvalidValueError(f"{what}: {shown(text)}: the store's positions are not those of its words")
        if self._rows_are_words:
            for row, place in enumerate(position.tolist(), start):
                form = self.form(int(self._index.type[row]))
                if form != words[place]:
                    raise InvalidValueError(
                        f"{what}: word {place} of {shown(text)} is {words[place]!r}, in the store {form!r}: give the "
                        "store of these sentences, split into the same words"
                    )
        return StoredSentence(start, position)

    def form(self, number: int) -> str:
        """Return the form of a type."""
        if number not in self._forms:
            self._forms[number] = self._index.words[number]
        return self._forms[number]

    def _nearest(self, words: Sequence[str]) -> str:
        """Return the text with the longest common beginning, and of these the one with most words in common."""
        best, nearest = (-1, -1), ""
        bag = set(words)
        for start in range(0, len(self._index.texts), N_TEXTS):
            for text in self._index.texts.slice(start, min(start + N_TEXTS, len(self._index.texts))):
                other = split_words(text)
                same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(words, other, strict=False)))
                score = same, len(bag.intersection(other))
                if score > best:
                    best, nearest = score, spaced(text)
        return nearest


def shown(text: str) -> str:
    """Return a text in quotes, shortened for a message."""
    return repr(text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "...")


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


@dataclass(frozen=True)
class Sample:
    """At most `count` sentences of a split (None: all), drawn by their texts and the seed."""

    count: int | None = None
    seed: int = 0

    def draw(self, sentences: Sequence[EdgeSentence]) -> list[EdgeSentence]:
        """Return the sample in the order of the sentences.

        Tasks over the same sentences draw the same ones, and a larger sample contains a smaller one.
        """
        if self.count is None or self.count >= len(sentences):
            return list(sentences)

        def key(number: int) -> bytes:
            text = f"{self.seed} {' '.join(sentences[number].words)}"
            return hashlib.blake2b(text.encode(), digest_size=8).digest()

        return [sentences[number] for number in sorted(nsmallest(self.count, range(len(sentences)), key=key))]


@dataclass(frozen=True, eq=False)
class JoinedEdges:
    """Targets found in a store: as rows in `split`, and as they were given.

    `sentences`: one for each sentence of `split`; `targets`: one for each row of `split.gold`. `notes`: what was left
    out or sampled, a line each.
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


def task_name(train: Edges) -> str:
    """Return the name of a task: that of its file, or that of its folder if the file is called train."""
    if not isinstance(train, str | os.PathLike):
        return "edges"
    path = Path(train)
    stem = path.name.split(".")[0]
    return path.absolute().parent.name if stem == "train" else stem


def check_task(splits: Mapping[str, Edges], *, name: str, sample: Sample) -> None:
    """Raise what `join_task` and `join_edges` would for the splits of a task, as far as no store is needed."""
    drawn = {split: _drawn(edges, f"{name}: {split}", sample, []) for split, edges in splits.items()}
    _are_pairs(drawn, name)
    _labels(name, (target for sentence in drawn["train"] for target in sentence.targets))


def join_task(
    store: Store, train: Edges, dev: Edges | None = None, *, name: str | None = None, sample: Sample | None = None
) -> EdgeTask:
    """Find the train and dev targets of a task in a store; the labels of the task are those of train.

    Labels of dev that train does not have count as missed and are noted, as are targets without rows. Raises
    InvalidValueError for a text that the store does not have (with the nearest one), words that differ there, splits
    without targets, targets with one span among those with two, and spans outside their sentence.
    """
    name = task_name(train) if name is None else name
    edges = {"train": train} if dev is None else {"train": train, "dev": dev}
    notes: list[str] = []
    drawn = {split: _drawn(own, f"{name}: {split}", sample or Sample(), notes) for split, own in edges.items()}
    pairs = _are_pairs(drawn, name)
    stored = StoredSentences(store, (sentence.words for own in drawn.values() for sentence in own))
    found = {split: _find(stored, own, f"{name}: {split}", notes) for split, own in drawn.items()}
    single = all(len(set(target.labels)) == 1 for own in found.values() for target in own.targets)
    labels = EdgeLabels(name, _labels(name, found["train"].targets), single, pairs)
    splits = {split: _as_split(split, own, labels, notes) for split, own in found.items()}
    return EdgeTask(labels, splits["train"], splits.get("dev"), tuple(notes))


def join_edges(
    store: Store, edges: Edges, labels: EdgeLabels, *, split: str = "test", sample: Sample | None = None
) -> JoinedEdges:
    """Find targets in a store for probes that know the labels of a task; see `join_task`.

    Raises InvalidValueError also for targets with one span for probes of pairs, or the reverse.
    """
    what = f"{labels.name}: {split}"
    notes: list[str] = []
    drawn = _drawn(edges, what, sample or Sample(), notes)
    if _are_pairs({split: drawn}, labels.name) != labels.pairs:
        counts = "one span and the probes read two" if labels.pairs else "two spans and the probes read one"
        raise InvalidValueError(f"{what}: the targets have {counts}: give their task")
    found = _find(StoredSentences(store, (sentence.words for sentence in drawn)), drawn, what, notes)
    rows = _as_split(split, found, labels, notes)
    return JoinedEdges(rows, tuple(found.sentences), tuple(found.targets), tuple(notes))


def control_task(task: EdgeTask, store: Store, control: ControlTask) -> EdgeTask:
    """Return the task with the labels of a control task."""
    dev = None if task.dev is None else control_split(task.dev, store, control)
    return replace(task, train=control_split(task.train, store, control), dev=dev)


def control_split(split: EdgeSplit, store: Store, control: ControlTask) -> EdgeSplit:
    """Return the same targets with the labels of a control task, which depend on the forms of their spans only."""
    stored = StoredSentences(store, ())

    def text(span: NDArray[np.int64]) -> str:
        return " ".join(map(stored.form, store.index.type[slice(*span.tolist())].tolist()))

    texts = ["\t".join(map(text, spans)) for spans in zip(*split.spans, strict=True)]
    return replace(split, gold=control.gold(texts), unknown=np.zeros(len(split), np.int64))


def _labels(name: str, targets: Iterable[EdgeTarget]) -> tuple[str, ...]:
    """Return the labels of train targets. Raises InvalidValueError for fewer than two."""
    labels = tuple(sorted({label for target in targets for label in target.labels}))
    if len(labels) < 2:
        raise InvalidValueError(f"{name}: train has {len(labels)} labels: give targets of at least 2 labels")
    return labels


@dataclass
class _Found:
    """The targets of a split that have rows, sentence after sentence."""

    sentences: list[EdgeSentence]
    targets: list[EdgeTarget]
    counts: list[int]
    spans: list[tuple[tuple[int, int], ...]]


def _drawn(edges: Edges, what: str, sample: Sample, notes: list[str]) -> list[EdgeSentence]:
    """Read and sample the sentences of a split that have targets, and check their spans."""
    if isinstance(edges, str | os.PathLike):
        edges = read_edges(edges)
    sentences = list(edges) if isinstance(edges, Iterable) else [edges]
    if not all(isinstance(sentence, EdgeSentence) for sentence in sentences):
        raise InvalidValueError(f"{what}: {quoted(edges)} are no targets: give a file, or sentences of read_edges")
    drawn = [sentence for sentence in sample.draw(sentences) if sentence.targets]
    if not drawn:
        raise InvalidValueError(f"{what} has no target: give sentences with labelled spans")
    for sentence in drawn:
        n_words = len(sentence.words)
        for target in sentence.targets:
            for span in filter(None, (target.span1, target.span2)):
                if not 0 <= span[0] < span[1] <= n_words:
                    raise InvalidValueError(
                        f"{what}: the span {list(span)} is not within the {n_words} words of "
                        f"{shown(' '.join(sentence.words))}"
                    )
    if sample.count is not None and sample.count < len(sentences):
        notes.append(f"{what}: {sample.count:,} of {len(sentences):,} sentences, drawn with seed {sample.seed}")
    return drawn


def _are_pairs(splits: dict[str, list[EdgeSentence]], name: str) -> bool:
    """Return whether targets are pairs of spans; raises InvalidValueError if only some are."""
    sentences = [(split, sentence) for split, own in splits.items() for sentence in own]
    with_pairs = [each for each in sentences if any(target.span2 is not None for target in each[1].targets)]
    with_single = [each for each in sentences if any(target.span2 is None for target in each[1].targets)]
    if with_pairs and with_single:
        split, sentence = with_single[0]
        raise InvalidValueError(
            f"{name}: {split}: some targets have two spans and some one, such as one of "
            f"{shown(' '.join(sentence.words))}: give all of them span2, or none"
        )
    return bool(with_pairs)


def _find(stored: StoredSentences, sentences: Sequence[EdgeSentence], what: str, notes: list[str]) -> _Found:
    """Find the rows of the targets; those without rows are left out and noted."""
    found = _Found([], [], [], [])
    n_missing = n_partial = 0
    for sentence in sentences:
        in_store = stored.find(sentence.words, what=what)
        n_before = len(found.targets)
        for target in sentence.targets:
            spans = [target.span1] if target.span2 is None else [target.span1, target.span2]
            rows = tuple(in_store.rows(span) for span in spans)
            if any(start == stop for start, stop in rows):
                n_missing += 1
                continue
            if not all(in_store.is_complete(span) for span in spans):
                n_partial += 1
            found.targets.append(target)
            found.spans.append(rows)
        if len(found.targets) > n_before:
            found.sentences.append(sentence)
            found.counts.append(len(found.targets) - n_before)
    if n_missing:
        notes.append(f"{what}: {n_missing:,} targets are left out: the store has no row of one of their spans")
    if n_partial:
        notes.append(f"{what}: {n_partial:,} targets have words without a row, and are read without these")
    if not found.targets:
        raise InvalidValueError(f"{what}: the store has no row of any target")
    return found


def _as_split(name: str, found: _Found, labels: EdgeLabels, notes: list[str]) -> EdgeSplit:
    columns = {label: column for column, label in enumerate(labels.labels)}
    gold = np.zeros((len(found.targets), len(columns)), bool)
    unknown = np.zeros(len(found.targets), np.int64)
    unknown_labels = set()
    for number, target in enumerate(found.targets):
        for label in set(target.labels):
            if label in columns:
                gold[number, columns[label]] = True
            else:
                unknown[number] += 1
                unknown_labels.add(label)
    if unknown_labels:
        examples = ", ".join(sorted(unknown_labels)[:5]) + (", ..." if len(unknown_labels) > 5 else "")
        notes.append(
            f"{labels.name}: {name}: {int(unknown.sum()):,} labels that train does not have count as missed: {examples}"
        )
    rows = np.array(found.spans, np.int64).reshape(len(found.spans), 2 if labels.pairs else 1, 2)
    first = np.concatenate([[0], np.cumsum(found.counts, dtype=np.int64)])
    spans = tuple(np.ascontiguousarray(rows[:, kind]) for kind in range(rows.shape[1]))
    return EdgeSplit(name, first, spans, gold, unknown)


def require_unit(store: Store) -> str:
    """Return the unit of the rows of a store; raises InvalidValueError unless they are words or subwords."""
    unit = str(store.metadata.extraction.get("unit", "word"))
    if unit not in UNITS:
        raise InvalidValueError(f"{store.path} has rows of unit {unit!r}: edges need a store of {' or '.join(UNITS)}")
    return unit
