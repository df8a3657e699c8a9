"""Traces of sentences through the layers (Tenney et al. 2019, section 4.1): the predictions of P(0) ... P(L)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from embstore.errors import InvalidValueError, check_choice, check_whole, quoted
from embstore.probes.edges.probe import EdgeProbe, FittedEdges
from embstore.probes.edges.tasks import Edges, JoinedEdges, Sample, shown
from embstore.probes.edges.training import iter_logits
from embstore.probes.reading import check_number, store_of
from embstore.progress import Progress, reporting
from embstore.store import Selection, Store

Rule = Literal["right", "highest"]
LIMIT = 0.7
SCHEMA = {
    "sentence": pl.Int64,
    "task": pl.String,
    "start1": pl.Int64,
    "stop1": pl.Int64,
    "start2": pl.Int64,
    "stop2": pl.Int64,
    "span1": pl.String,
    "span2": pl.String,
    "right": pl.String,
    "wrong": pl.String,
    "layer": pl.Int64,
    "right_probability": pl.Float64,
    "wrong_probability": pl.Float64,
}


@dataclass(frozen=True, eq=False)
class Annotation:
    """One edge (spans and a right label) of a sentence, with the probabilities that P(0) ... P(L) give.

    `wrong`: the label that is not right with the highest average over the layers; None if all labels are right.
    `right_probability`, `wrong_probability`: float64 [layers]. `highest`: the highest average of any label.
    `answered` bool [layers]: whether the answer of P(l), by the rule of F1, is or includes the right label.
    """

    task: str
    span1: tuple[int, int]
    span2: tuple[int, int] | None
    right: str
    wrong: str | None
    right_probability: NDArray[np.float64]
    wrong_probability: NDArray[np.float64]
    highest: float
    answered: NDArray[np.bool_]

    @property
    def average(self) -> float:
        """The mean over l of the probability of the right label."""
        return float(self.right_probability.mean())

    def is_ambiguous(self, limit: float = LIMIT, rule: Rule = "right") -> bool:
        """Return whether the edge is ambiguous; see `ambiguous_sentences`."""
        return (self.average if rule == "right" else self.highest) <= limit


@dataclass(frozen=True, eq=False)
class SentenceTrace:
    """The annotations of all tasks on one sentence, task after task, in the order of their targets.

    `number`: of the sentence in its `Traces`. `layers`: the l of P(l).
    """

    number: int
    words: tuple[str, ...]
    layers: tuple[int, ...]
    annotations: tuple[Annotation, ...]

    def ambiguous(self, limit: float = LIMIT, rule: Rule = "right") -> SentenceTrace:
        """Return the trace with its ambiguous annotations only; raises InvalidValueError for a wrong limit or rule."""
        check_choice("rule", rule, get_args(Rule))
        if check_number("limit", limit, 0) > 1:
            raise InvalidValueError(f"limit {limit} is not allowed: give a probability, 0 to 1")
        return replace(self, annotations=tuple(each for each in self.annotations if each.is_ambiguous(limit, rule)))

    @property
    def frame(self) -> pl.DataFrame:
        """One row per annotation and layer: the spans, both labels, and their probabilities by P(l)."""
        rows = []
        for each in self.annotations:
            ends: dict[str, int | str | None] = {}
            for number, span in ((1, each.span1), (2, each.span2)):
                start, stop = span or (None, None)
                words = None if span is None else " ".join(self.words[slice(*span)])
                ends |= {f"start{number}": start, f"stop{number}": stop, f"span{number}": words}
            common = {"sentence": self.number, "task": each.task, **ends, "right": each.right, "wrong": each.wrong}
            both = zip(self.layers, each.right_probability.tolist(), each.wrong_probability.tolist(), strict=True)
            for layer, right, wrong in both:
                wrong_probability = None if each.wrong is None else wrong
                probabilities = {"right_probability": right, "wrong_probability": wrong_probability}
                rows.append({**common, "layer": layer, **probabilities})
        return pl.DataFrame(rows, schema=SCHEMA)


@dataclass(frozen=True, eq=False)
class Traces:
    """What P(0) ... P(L) of some tasks predict for all edges of a split; an edge is a target with one right label.

    `of_sentences`: the trace of each sentence, once for all tasks. `tasks`: their names. `notes`: what was left out or
    sampled, a line each.
    """

    layers: tuple[int, ...]
    tasks: tuple[str, ...]
    of_sentences: tuple[SentenceTrace, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return sum(len(each.annotations) for each in self.of_sentences)

    def __repr__(self) -> str:
        return f"Traces({len(self):,} edges of {len(self.of_sentences):,} sentences in {len(self.tasks)} tasks)"

    @property
    def sentences(self) -> tuple[tuple[str, ...], ...]:
        """The words of each sentence."""
        return tuple(each.words for each in self.of_sentences)

    def find(self, sentence: int | str) -> int:
        """Return the number of a sentence given by its number, its text, or consecutive words that only it has."""
        last = len(self.of_sentences) - 1
        if not isinstance(sentence, str):
            return check_whole("sentence", sentence, 0, last)
        texts = [" ".join(words) for words in self.sentences]
        wanted = " ".join(sentence.split())
        if wanted in texts:
            return texts.index(wanted)
        numbers = [number for number, text in enumerate(texts) if wanted and f" {wanted} " in f" {text} "]
        if len(numbers) == 1:
            return numbers[0]
        if numbers:
            raise InvalidValueError(
                f"{len(numbers)} sentences contain {shown(sentence)}, such as {numbers[0]} and {numbers[1]}: give more "
                "words of it, or its number"
            )
        raise InvalidValueError(
            f"no sentence of the {len(texts)} is or contains {shown(sentence)}: give the text of one, words that only "
            f"it has, or its number, 0 to {last}"
        )

    def trace(self, sentence: int | str) -> SentenceTrace:
        """Return all annotations of a sentence; see `find`."""
        return self.of_sentences[self.find(sentence)]


def trace(
    data: Store | Selection,
    tasks: Sequence[tuple[EdgeProbe, Edges]],
    *,
    split: str = "test",
    seed: int | None = None,
    n_sentences: int | None = None,
    sample_seed: int = 0,
    progress: Progress = None,
) -> Traces:
    """Follow the predictions of P(0) ... P(L) for the targets of a split, of several tasks at once.

    `tasks`: fitted probes with their targets, a file or sentences; all over the same layers. `split`: the name of the
    split in messages. `seed`: of the probes, their first by default. `n_sentences`: of each task at most, drawn by
    their texts with `sample_seed`, so that all tasks draw the same ones.

    If each target of a task has exactly one label, probabilities are normalized to sum to 1 over its labels, as
    sigmoids need not. A target with several labels is several edges; labels that the probes do not know are left out.

    Raises InvalidValueError for no tasks, tasks over other layers or with equal names, no edge at all, and as
    `EdgeProbe.score` does.
    """
    if not isinstance(tasks, list | tuple):
        raise InvalidValueError(f"tasks {quoted(tasks)} are not allowed: give a list of (probe, targets)")
    if not tasks:
        raise InvalidValueError("there are no probes to trace: give one or more tasks")
    for task in tasks:
        if not isinstance(task, tuple) or len(task) != 2 or not isinstance(task[0], EdgeProbe):
            raise InvalidValueError(f"task {quoted(task)} is not allowed: give a fitted EdgeProbe and its targets")
    layers = tasks[0][0].fitted.grid.layers
    _require_same_layers([probe.fitted for probe, _ in tasks])
    sample = Sample(n_sentences, sample_seed)
    joined = [probe.join(edges, data=data, split=split, sample=sample) for probe, edges in tasks]
    # By the words of a sentence: its edges by what tells them apart, so that an edge of a repeated text counts once.
    edges_of: dict[tuple[str, ...], dict[tuple[object, ...], Annotation]] = {}
    for found in joined:
        for sentence in found.sentences:
            edges_of.setdefault(tuple(sentence.words), {})
    done = 0
    with reporting(progress, total=sum(len(found.split) for found in joined), unit="targets", label="trace") as report:
        for (probe, _), found in zip(tasks, joined, strict=True):
            words = [tuple(sentence.words) for sentence in found.sentences]
            sentence_of = np.repeat(np.arange(len(words)), np.diff(found.split.first)).tolist()
            for targets, annotations in _annotated(probe, store_of(data), found, seed):
                for target, edge in annotations:
                    key = (edge.task, edge.span1, edge.span2, edge.right)
                    edges_of[words[sentence_of[target]]].setdefault(key, edge)
                done += len(targets)
                report(done)
    if not any(edges_of.values()):
        raise InvalidValueError("no target has a label that the probes know: give targets of their tasks")
    return Traces(
        layers=layers,
        tasks=tuple(probe.fitted.labels.name for probe, _ in tasks),
        of_sentences=tuple(
            SentenceTrace(number, text, layers, tuple(edges.values()))
            for number, (text, edges) in enumerate(edges_of.items())
        ),
        notes=tuple(note for found in joined for note in found.notes),
    )


def _annotated(
    probe: EdgeProbe, store: Store, joined: JoinedEdges, seed: int | None
) -> Iterator[tuple[NDArray[np.int64], list[tuple[int, Annotation]]]]:
    """Yield the targets of each batch, and their edges with the number of the target, in the order of the targets."""
    labels = probe.fitted.labels
    for targets, logits in iter_logits(probe.cumulative(seed), probe._stream(store), joined.split):
        share = normalized(logits, single=labels.single).cpu().numpy()
        likeliest, is_half = share.argmax(2), (logits >= 0).cpu().numpy()
        gold, average = joined.split.gold[targets], share.mean(0)
        best = np.where(gold, -np.inf, average).argmax(1)
        edges = []
        for place, right in np.argwhere(gold).tolist():
            number = int(targets[place])
            wrong = None if gold[place].all() else int(best[place])
            annotation = Annotation(
                task=labels.name,
                span1=joined.targets[number].span1,
                span2=joined.targets[number].span2,
                right=labels.labels[right],
                wrong=None if wrong is None else labels.labels[wrong],
                right_probability=share[:, place, right].copy(),
                wrong_probability=np.full(len(share), np.nan) if wrong is None else share[:, place, wrong].copy(),
                highest=float(average[place].max()),
                answered=likeliest[:, place] == right if labels.single else is_half[:, place, right].copy(),
            )
            edges.append((number, annotation))
        yield targets, edges


def _require_same_layers(fitted: Sequence[FittedEdges]) -> None:
    """Raise InvalidValueError for probes of different layers, or two tasks of one name."""
    first = fitted[0]
    names: set[str] = set()
    for probe in fitted:
        name = probe.labels.name
        if probe.grid.layers != first.grid.layers:
            raise InvalidValueError(
                f"the probes of {name} are over layers {', '.join(map(str, probe.grid.layers))}, those of "
                f"{first.labels.name} over {', '.join(map(str, first.grid.layers))}: give probes of the same layers"
            )
        if name in names:
            raise InvalidValueError(f"two tasks are called {name}: give each once")
        names.add(name)


def ambiguous_sentences(traces: Traces, *, limit: float = LIMIT, rule: Rule = "right") -> pl.DataFrame:
    """List the sentences with more than one ambiguous edge, those with most first: one row per sentence.

    An edge is ambiguous if the mean over l of the probability of its right label by P(l) is at most `limit`; with rule
    "highest" (footnote 6 of the paper) the mean of whichever label has the highest. The second rule leaves out edges
    for which the probes are sure of a wrong label; what it finds the first finds too.

    Columns: `sentence`, the number of `ambiguous` edges, of these `turned` (P(0) and P(L) prefer different ones of
    right and best wrong label), of all `edges`, the `tasks` with ambiguous edges, and `text`. With equal numbers, more
    turned edges come first, then the order of the sentences. Raises InvalidValueError for another limit or rule.
    """
    rows = []
    for sentence in traces.of_sentences:
        ambiguous = sentence.ambiguous(limit, rule).annotations
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


def decision_reversals(traces: Traces, other: Traces | None = None) -> pl.DataFrame:
    """Count the edges for which P(l) decides otherwise than P(l - 1), by task and layer l.

    An edge is right at l if the answer of P(l) is, or for tasks with several labels a target includes, its label; as
    in F1. `other`: the traces of the same targets by probes of another seed, which show how much of that is chance.

    Columns: `task`, `layer` (l, from the second on), `edges`, `gained` (wrong before, right at l), `lost` (right
    before, wrong at l), `returned` (of both, those that had changed before, and so return to an earlier decision), and
    `by_seed`, the edges that are right at l by one seed and wrong by the other; null without `other`.

    Raises InvalidValueError for `other` with other edges or layers.
    """
    answers = _answers(traces)
    other_answers = None
    if other is not None:
        other_answers = _answers(other)
        if answers.keys() != other_answers.keys() or traces.layers != other.layers:
            raise InvalidValueError(
                "the traces of two seeds are not of the same edges and layers: give the same targets"
            )
    rows = []
    for task in traces.tasks:
        edges = [edge for edge in answers if edge[1] == task]
        shape = len(edges), len(traces.layers)
        is_right = np.array([answers[edge] for edge in edges], bool).reshape(shape)
        now, before = is_right[:, 1:], is_right[:, :-1]
        changed = now != before
        counts = {
            "gained": now & ~before,
            "lost": before & ~now,
            "returned": changed & (np.cumsum(changed, axis=1) > 1),
        }
        if other_answers is not None:
            counts["by_seed"] = now != np.array([other_answers[edge] for edge in edges], bool).reshape(shape)[:, 1:]
        for at, layer in enumerate(traces.layers[1:]):
            row = {"task": task, "layer": layer, "edges": len(edges)}
            rows.append(row | {name: int(is_counted[:, at].sum()) for name, is_counted in counts.items()})
    whole = dict.fromkeys(("layer", "edges", "gained", "lost", "returned", "by_seed"), pl.Int64)
    return pl.DataFrame(rows, schema={"task": pl.String, **whole})


def _answers(traces: Traces) -> dict[tuple[object, ...], NDArray[np.bool_]]:
    """Return by edge whether each P(l) is right about it."""
    return {
        (sentence.words, edge.task, edge.span1, edge.span2, edge.right): edge.answered
        for sentence in traces.of_sentences
        for edge in sentence.annotations
    }


def normalized(logits: torch.Tensor, *, single: bool) -> torch.Tensor:
    """Return probabilities float64 of logits [..., labels]: sigmoids, for a single label divided by their sum."""
    logs = torch.nn.functional.logsigmoid(logits.double())
    return logs.softmax(-1) if single else logs.exp()
