"""Traces of sentences through the layers (Tenney et al. 2019, section 4.1): the predictions of P(0) ... P(L)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.corpus import EdgeSentence
from embstore.probes import EdgeProbe
from embstore.store import Store

LIMIT = 0.7  # an edge whose right label has this mean probability at most is ambiguous, as in the paper


@dataclass(frozen=True, eq=False)
class Annotation:
    """One edge (spans and a right label) of a sentence, with the probabilities that P(0) ... P(L) give.

    `wrong`: the label that is not right with the highest average over the layers; None if all labels are right.
    `right_probability`, `wrong_probability`: float64 [layers].
    """

    task: str
    span1: tuple[int, int]
    span2: tuple[int, int] | None
    right: str
    wrong: str | None
    right_probability: NDArray[np.float64]
    wrong_probability: NDArray[np.float64]

    @property
    def average(self) -> float:
        """The mean over l of the probability of the right label."""
        return float(self.right_probability.mean())


@dataclass(frozen=True, eq=False)
class SentenceTrace:
    """The annotations of all tasks on one sentence, task after task, in the order of their targets.

    `number`: of the sentence in its `Traces`. `layers`: the l of P(l).
    """

    number: int
    words: tuple[str, ...]
    layers: tuple[int, ...]
    annotations: tuple[Annotation, ...]

    def ambiguous(self) -> SentenceTrace:
        """Return the trace with its ambiguous annotations only."""
        return replace(self, annotations=tuple(each for each in self.annotations if each.average <= LIMIT))


@dataclass(frozen=True, eq=False)
class Traces:
    """What P(0) ... P(L) of some tasks predict for all edges of a split; an edge is a target with one right label."""

    layers: tuple[int, ...]
    tasks: tuple[str, ...]
    sentences: tuple[SentenceTrace, ...]


def trace(
    store: Store, tasks: Sequence[tuple[EdgeProbe, Sequence[EdgeSentence]]], *, split: str, seed: int | None = None
) -> Traces:
    """Follow the predictions of P(0) ... P(L) of a seed for the targets of a split, of several tasks at once.

    If each target of a task has exactly one label, probabilities are normalized to sum to 1 over its labels, as
    sigmoids need not. A target with several labels is several edges; labels that the probes do not know are left out.
    """
    # By the words of a sentence: its edges by what tells them apart, so that an edge of a repeated text counts once.
    edges_of: dict[tuple[str, ...], dict[tuple[object, ...], Annotation]] = {}
    joined = [probe.join(edges, data=store, split=split) for probe, edges in tasks]
    for found in joined:
        edges_of |= {tuple(sentence.words): {} for sentence in found.sentences}
    for (probe, edges), found in zip(tasks, joined, strict=True):
        words = [tuple(sentence.words) for sentence in found.sentences]
        sentence_of = np.repeat(np.arange(len(words)), np.diff(found.split.first)).tolist()
        labels = probe.fitted_.labels
        share = probe.predict(edges, data=store, seed=seed).astype(np.float64)
        if labels.single:
            share /= share.sum(2, keepdims=True)
        gold, average = found.split.gold, share.mean(0)
        best = np.where(gold, -np.inf, average).argmax(1)
        for number, right in np.argwhere(gold).tolist():
            wrong = None if gold[number].all() else int(best[number])
            edge = Annotation(
                task=labels.name,
                span1=found.targets[number].span1,
                span2=found.targets[number].span2,
                right=labels.labels[right],
                wrong=None if wrong is None else labels.labels[wrong],
                right_probability=share[:, number, right],
                wrong_probability=np.full(len(share), np.nan) if wrong is None else share[:, number, wrong],
            )
            edges_of[words[sentence_of[number]]].setdefault((edge.task, edge.span1, edge.span2, edge.right), edge)
    layers = tasks[0][0].fitted_.grid.layers
    sentences = (
        SentenceTrace(number, text, layers, tuple(edges.values()))
        for number, (text, edges) in enumerate(edges_of.items())
    )
    return Traces(layers, tuple(probe.fitted_.labels.name for probe, _ in tasks), tuple(sentences))


def ambiguous_sentences(traces: Traces) -> pl.DataFrame:
    """List the sentences with more than one ambiguous edge, those with most first: one row per sentence.

    Columns: `sentence`, the number of `ambiguous` edges, of these `turned` (P(0) and P(L) prefer different ones of
    right and best wrong label), of all `edges`, the `tasks` with ambiguous edges, and `text`. With equal numbers, more
    turned edges come first, then the order of the sentences.
    """
    rows = []
    for sentence in traces.sentences:
        ambiguous = sentence.ambiguous().annotations
        if len(ambiguous) < 2:
            continue
        is_ahead = [edge.right_probability > np.nan_to_num(edge.wrong_probability) for edge in ambiguous]
        tasks = {edge.task for edge in ambiguous}
        rows.append(
            {
                "sentence": sentence.number,
                "ambiguous": len(ambiguous),
                "turned": sum(bool(by_layer[0] != by_layer[-1]) for by_layer in is_ahead),
                "edges": len(sentence.annotations),
                "tasks": ", ".join(task for task in traces.tasks if task in tasks),
                "text": " ".join(sentence.words),
            }
        )
    counts = dict.fromkeys(("sentence", "ambiguous", "turned", "edges"), pl.Int64)
    frame = pl.DataFrame(rows, schema={**counts, "tasks": pl.String, "text": pl.String})
    return frame.sort("ambiguous", "turned", descending=True, maintain_order=True)
