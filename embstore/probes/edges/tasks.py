"""Edge probing's tasks: labelled spans of sentences, joined to the rows of a store."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embstore.corpus.formats.edge import EdgeSentence, EdgeTarget, iter_edges
from embstore.corpus.lines import Lines
from embstore.errors import InvalidValueError
from embstore.probes.edges.join import StoredSentences, shown
from embstore.store import Store

Edges = str | os.PathLike[str] | Iterable[EdgeSentence]
UNITS = ("word", "subword")
SPLITS = ("train", "dev", "test")
SUFFIXES = ("", ".gz", ".zst")


@dataclass(frozen=True, eq=False)
class EdgeSplit:
    """The targets of one split as rows of a store, sentence after sentence.

    `first` int64 [sentences + 1]: the targets of each sentence. `spans`: int64 [targets, 2] row ranges, half-open,
    one array or two. `gold` bool [targets, labels]. `unknown` int64 [targets]: labels that train does not have.
    """

    name: str
    first: NDArray[np.int64]
    spans: tuple[NDArray[np.int64], ...]
    gold: NDArray[np.bool_]
    unknown: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.gold)

    @property
    def sentences(self) -> int:
        return len(self.first) - 1


@dataclass(frozen=True, eq=False)
class EdgeTask:
    """A task over a store: `labels` of the train targets, sorted, the splits by name, and what is to be told.

    `single`: every target has exactly one label, so that the likeliest one is the answer; else each label is
    decided by itself.
    """

    name: str
    labels: tuple[str, ...]
    single: bool
    splits: dict[str, EdgeSplit]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class JoinedEdges:
    """Targets whose labels were known before: as rows in `split`, and as they were given.

    `sentences`: one for each two neighbours in `split.first`; `targets`: one a row of `split.gold`.
    """

    split: EdgeSplit
    sentences: tuple[EdgeSentence, ...]
    targets: tuple[EdgeTarget, ...]
    notes: tuple[str, ...] = ()


def split_file(folder: Path, split: str) -> Path | None:
    """The targets of a split in the folder of a task, JSON lines, plain or compressed; None where there are none."""
    return next((path for suffix in SUFFIXES if (path := folder / f"{split}.jsonl{suffix}").exists()), None)


def read_edges(edges: Edges) -> list[EdgeSentence]:
    """The sentences of a JSON lines file, or those given; CorpusError names file and line."""
    if isinstance(edges, str | os.PathLike):
        return list(iter_edges(Lines(Path(edges))))
    return list(edges)


def sample_sentences(sentences: Sequence[EdgeSentence], count: int | None, *, seed: int = 0) -> list[EdgeSentence]:
    """At most `count` sentences, drawn by their texts and the seed alone, in their order; None: all of them.

    So tasks over the same sentences draw the same ones, and a larger sample holds a smaller one.
    """
    if count is None or count >= len(sentences):
        return list(sentences)
    if count < 1:
        raise InvalidValueError(f"sentences {count} is not allowed: give 1 or more")

    def lot(number: int) -> bytes:
        text = f"{seed} {' '.join(sentences[number].words)}"
        return hashlib.blake2b(text.encode(), digest_size=8).digest()

    return [sentences[number] for number in sorted(nsmallest(count, range(len(sentences)), key=lot))]


def join_task(
    store: Store,
    *,
    train: Edges,
    dev: Edges | None = None,
    test: Edges | None = None,
    name: str = "edges",
    sentences: int | None = None,
    seed: int = 0,
) -> EdgeTask:
    """Find the sentences of a task in a store by their texts, and their spans by the positions of words.

    `sentences`: of each split at most, drawn with `seed`. Labels are those of train; others in dev and test count
    as missed and are noted, as is what the store does not hold. Raises InvalidValueError, in one line, for a text
    that no sentence of the store has (the nearest is shown), words that stand elsewhere there, splits without
    targets, targets of one span among those of two, spans outside their sentence.
    """
    _require_unit(store)
    notes: list[str] = []
    held = {
        split: _drawn(given, name, split, sentences, seed, notes)
        for split, given in (("train", train), ("dev", dev), ("test", test))
        if given is not None
    }
    pairs = _pairs(held, name)
    stored = StoredSentences(store, (each.words for split in held.values() for each in split))
    joined = {split: _join(stored, each, split, name, notes) for split, each in held.items()}
    known = {label for target in joined["train"].targets for label in target.labels}
    labels = tuple(sorted(known))
    if len(labels) < 2:
        raise InvalidValueError(f"{name}: train has {len(labels)} labels: there is nothing to tell apart below 2")
    splits = {split: _as_split(split, each, labels, pairs) for split, each in joined.items()}
    for split, each in joined.items():
        _note_strange(each, splits[split], labels, f"{name}: {split}", notes)
    single = all(len(set(target.labels)) == 1 for each in joined.values() for target in each.targets)
    return EdgeTask(name, labels, single, splits, tuple(notes))


def join_edges(
    store: Store,
    edges: Edges,
    *,
    labels: tuple[str, ...],
    pairs: bool,
    name: str = "edges",
    split: str = "targets",
    sentences: int | None = None,
    seed: int = 0,
) -> JoinedEdges:
    """Find targets in a store as `join_task` does, for probes that know `labels` of single spans or of `pairs`.

    Raises InvalidValueError as it does, and where the targets have one span for probes of two, or the reverse.
    """
    _require_unit(store)
    notes: list[str] = []
    held = _drawn(edges, name, split, sentences, seed, notes)
    if _pairs({split: held}, name) != pairs:
        has, needs = ("one span", "two") if pairs else ("two spans", "one")
        raise InvalidValueError(f"{name}: {split}: the targets have {has} and the probes read {needs}: give their task")
    stored = StoredSentences(store, (each.words for each in held))
    found = _join(stored, held, split, name, notes)
    joined = _as_split(split, found, labels, pairs)
    _note_strange(found, joined, labels, f"{name}: {split}", notes)
    return JoinedEdges(joined, tuple(found.sentences), tuple(found.targets), tuple(notes))


def _require_unit(store: Store) -> None:
    unit = store.metadata.extraction.get("unit", "word")
    if unit not in UNITS:
        raise InvalidValueError(f"{store.path} has rows of unit {unit!r}: edges need a store of {' or '.join(UNITS)}")


def _drawn(
    edges: Edges, name: str, split: str, sentences: int | None, seed: int, notes: list[str]
) -> list[EdgeSentence]:
    """The sentences of a split that have targets, or so many drawn."""
    every = read_edges(edges)
    held = [each for each in sample_sentences(every, sentences, seed=seed) if each.targets]
    _check(held, f"{name}: {split}")
    if sentences is not None and sentences < len(every):
        notes.append(f"{name}: {split}: {sentences:,} of {len(every):,} sentences, drawn with seed {seed}")
    return held


def _note_strange(found: _Found, split: EdgeSplit, labels: tuple[str, ...], what: str, notes: list[str]) -> None:
    strange = sorted({label for target in found.targets for label in target.labels}.difference(labels))
    if strange:
        count = int(split.unknown.sum())
        notes.append(f"{what}: {count:,} labels that train does not have count as missed: {_some(strange)}")


def _check(sentences: Sequence[EdgeSentence], what: str) -> None:
    if not sentences:
        raise InvalidValueError(f"{what} has no target: give sentences with labelled spans")
    for sentence in sentences:
        count, text = len(sentence.words), shown(" ".join(sentence.words))
        for target in sentence.targets:
            for span in filter(None, (target.span1, target.span2)):
                if not 0 <= span[0] < span[1] <= count:
                    raise InvalidValueError(f"{what}: the span {list(span)} is not within the {count} words of {text}")


def _pairs(held: dict[str, list[EdgeSentence]], name: str) -> bool:
    """Whether targets are pairs of spans."""
    kinds = {
        target.span2 is not None: (split, sentence)
        for split, sentences in held.items()
        for sentence in sentences
        for target in sentence.targets
    }
    if len(kinds) > 1:
        split, sentence = kinds[False]
        raise InvalidValueError(
            f"{name}: {split}: some targets have two spans and some one, such as one of "
            f"{shown(' '.join(sentence.words))}: give all of them span2, or none"
        )
    return True in kinds


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


@dataclass
class _Found:
    """The targets of a split that the store has rows of, sentence after sentence."""

    sentences: list[EdgeSentence]
    targets: list[EdgeTarget]
    counts: list[int]
    spans: list[tuple[tuple[int, int], ...]]


def _join(
    stored: StoredSentences, sentences: Sequence[EdgeSentence], split: str, name: str, notes: list[str]
) -> _Found:
    found = _Found([], [], [], [])
    lacking = partial = 0
    for sentence in sentences:
        joined = stored.find(sentence.words, what=f"{name}: {split}")
        before = len(found.targets)
        for target in sentence.targets:
            spans = [target.span1] if target.span2 is None else [target.span1, target.span2]
            rows = tuple(joined.rows(span) for span in spans)
            if any(start == stop for start, stop in rows):
                lacking += 1
                continue
            partial += not all(joined.whole(span) for span in spans)
            found.targets.append(target)
            found.spans.append(rows)
        if len(found.targets) > before:
            found.sentences.append(sentence)
            found.counts.append(len(found.targets) - before)
    if lacking:
        notes.append(f"{name}: {split}: {lacking:,} targets are left out: the store has no row of one of their spans")
    if partial:
        notes.append(f"{name}: {split}: {partial:,} targets have words without a row, and are read without these")
    if not found.targets:
        raise InvalidValueError(f"{name}: {split}: the store has no row of any target")
    return found


def _as_split(name: str, found: _Found, labels: tuple[str, ...], pairs: bool) -> EdgeSplit:
    place = {label: number for number, label in enumerate(labels)}
    gold = np.zeros((len(found.targets), len(labels)), bool)
    unknown = np.zeros(len(found.targets), np.int64)
    for number, target in enumerate(found.targets):
        for label in set(target.labels):
            if label in place:
                gold[number, place[label]] = True
            else:
                unknown[number] += 1
    rows = np.array(found.spans, np.int64).reshape(len(found.spans), 2 if pairs else 1, 2)
    first = np.concatenate([[0], np.cumsum(found.counts, dtype=np.int64)])
    return EdgeSplit(
        name, first, tuple(np.ascontiguousarray(rows[:, kind]) for kind in range(rows.shape[1])), gold, unknown
    )
