"""Traces of sentences through the layers (Tenney et al. 2019, section 4.1): the predictions of P(0) ... P(L)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, get_args

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from embstore.corpus.formats.edge import EdgeTarget
from embstore.errors import InvalidValueError
from embstore.probes.edges.probe import EdgeProbe, FittedEdges
from embstore.probes.edges.tasks import Edges, JoinedEdges, Sample, shown
from embstore.probes.edges.training import iter_logits
from embstore.probes.reading import store_of
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
    """

    task: str
    span1: tuple[int, int]
    span2: tuple[int, int] | None
    right: str
    wrong: str | None
    right_probability: NDArray[np.float64]
    wrong_probability: NDArray[np.float64]
    highest: float

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
        """Return the trace with its ambiguous annotations only."""
        return replace(self, annotations=tuple(each for each in self.annotations if each.is_ambiguous(limit, rule)))

    def of_tasks(self, tasks: Sequence[str]) -> SentenceTrace:
        """Return the trace with the annotations of some tasks only."""
        return replace(self, annotations=tuple(each for each in self.annotations if each.task in tasks))

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

    `sentences`: the words of each, once for all tasks. `tasks`, and the `labels` and `targets` of each. By edge:
    `sentence`, `task`, `target` (of its task), `right` and `wrong` (-1: none) int64 [edges]; `right_probability` and
    `wrong_probability` (NaN: none) float64 [edges, layers]; `highest` float64 [edges], the highest average over the
    layers of any label of the target.
    """

    layers: tuple[int, ...]
    sentences: tuple[tuple[str, ...], ...]
    tasks: tuple[str, ...]
    labels: tuple[tuple[str, ...], ...]
    targets: tuple[tuple[EdgeTarget, ...], ...]
    sentence: NDArray[np.int64]
    task: NDArray[np.int64]
    target: NDArray[np.int64]
    right: NDArray[np.int64]
    wrong: NDArray[np.int64]
    right_probability: NDArray[np.float64]
    wrong_probability: NDArray[np.float64]
    highest: NDArray[np.float64]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.sentence)

    def __repr__(self) -> str:
        return f"Traces({len(self):,} edges of {len(self.sentences):,} sentences in {len(self.tasks)} tasks)"

    def find(self, sentence: int | str) -> int:
        """Return the number of a sentence given by its number, its text, or consecutive words that only it has."""
        last = len(self.sentences) - 1
        if isinstance(sentence, int):
            if not 0 <= sentence <= last:
                raise InvalidValueError(f"there is no sentence {sentence}: give 0 to {last}")
            return sentence
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
        number = self.find(sentence)
        annotations = []
        for edge in np.flatnonzero(self.sentence == number).tolist():
            task, wrong = int(self.task[edge]), int(self.wrong[edge])
            target, labels = self.targets[task][int(self.target[edge])], self.labels[task]
            annotations.append(
                Annotation(
                    task=self.tasks[task],
                    span1=target.span1,
                    span2=target.span2,
                    right=labels[int(self.right[edge])],
                    wrong=None if wrong < 0 else labels[wrong],
                    right_probability=self.right_probability[edge],
                    wrong_probability=self.wrong_probability[edge],
                    highest=float(self.highest[edge]),
                )
            )
        return SentenceTrace(number, self.sentences[number], self.layers, tuple(annotations))

    def is_ambiguous(self, limit: float = LIMIT, rule: Rule = "right") -> NDArray[np.bool_]:
        """Return which edges are ambiguous, bool [edges]; see `ambiguous_sentences`."""
        if rule not in get_args(Rule):
            raise InvalidValueError(f"rule {rule!r} is not allowed: choose {' or '.join(get_args(Rule))}")
        if not 0 <= limit <= 1:
            raise InvalidValueError(f"limit {limit} is not allowed: give a probability, 0 to 1")
        average = self.right_probability.mean(1) if rule == "right" else self.highest
        return np.asarray(average <= limit)


def trace(
    data: Store | Selection,
    tasks: Sequence[tuple[EdgeProbe, Edges]],
    *,
    split: str = "test",
    seed: int | None = None,
    sentences: int | None = None,
    sample_seed: int = 0,
    progress: Progress = None,
) -> Traces:
    """Follow the predictions of P(0) ... P(L) for the targets of a split, of several tasks at once.

    `tasks`: fitted probes with their targets, a file or sentences; all over the same layers. `split`: the name of the
    split in messages. `seed`: of the probes, their first by default. `sentences`: of each task at most, drawn by their
    texts with `sample_seed`, so that all tasks draw the same ones.

    If each target of a task has exactly one label, probabilities are normalized to sum to 1 over its labels, as
    sigmoids need not. A target with several labels is several edges; labels that the probes do not know are left out.

    Raises InvalidValueError for no tasks, tasks over other layers or with equal names, no edge at all, and as
    `EdgeProbe.score` does.
    """
    if not tasks:
        raise InvalidValueError("there are no probes to trace: give one or more tasks")
    first = tasks[0][0].fitted
    _require_same_layers([probe.fitted for probe, _ in tasks])
    sample = Sample(sentences, sample_seed)
    joined = [probe.join(edges, data=data, split=split, sample=sample) for probe, edges in tasks]
    numbers: dict[tuple[str, ...], int] = {}
    for each in joined:
        for sentence in each.sentences:
            numbers.setdefault(tuple(sentence.words), len(numbers))
    parts: list[_Edges] = []
    with reporting(progress, total=sum(len(each.split) for each in joined), unit="targets", label="trace") as report:
        for (probe, _), each in zip(tasks, joined, strict=True):

            def advance(done: int, before: int = sum(len(part.split) for part in joined[: len(parts)])) -> None:
                report(before + done)

            parts.append(_edges(probe, store_of(data), each, seed=seed, report=advance))
    placed = [_placed(each, edges, numbers) for each, edges in zip(joined, parts, strict=True)]
    parts = [edges.take(chosen) for edges, (chosen, _) in zip(parts, placed, strict=True)]
    if not sum(len(edges.target) for edges in parts):
        raise InvalidValueError("no target has a label that the probes know: give targets of their tasks")
    sentence_of = np.concatenate([place for _, place in placed])
    task = np.repeat(np.arange(len(parts)), [len(edges.target) for edges in parts])
    order = np.lexsort((task, sentence_of))  # stable: targets of a task stay in their order
    return Traces(
        layers=first.grid.layers,
        sentences=tuple(numbers),
        tasks=tuple(probe.fitted.labels.name for probe, _ in tasks),
        labels=tuple(probe.fitted.labels.labels for probe, _ in tasks),
        targets=tuple(each.targets for each in joined),
        sentence=sentence_of[order],
        task=task[order],
        **{name: np.concatenate([getattr(edges, name) for edges in parts])[order] for name in _BY_EDGE},
        notes=tuple(note for each in joined for note in each.notes),
    )


def _require_same_layers(fitted: Sequence[FittedEdges]) -> None:
    """Raise InvalidValueError for probes of different layers, or two tasks of one name."""
    first = fitted[0]
    for number, own in enumerate(fitted):
        name = own.labels.name
        if own.grid.layers != first.grid.layers:
            known, other = (", ".join(map(str, each.grid.layers)) for each in (own, first))
            raise InvalidValueError(
                f"the probes of {name} are over layers {known}, those of {first.labels.name} over {other}: give probes "
                "of the same layers"
            )
        if name in (before.labels.name for before in fitted[:number]):
            raise InvalidValueError(f"two tasks are called {name}: give each once")


def ambiguous_sentences(
    traces: Traces, *, limit: float = LIMIT, rule: Rule = "right", more_than: int = 1
) -> pl.DataFrame:
    """List the sentences with more than `more_than` ambiguous edges, those with most first: one row per sentence.

    An edge is ambiguous if the mean over l of the probability of its right label by P(l) is at most `limit`; with rule
    "highest" (footnote 6 of the paper) the mean of whichever label has the highest. The second rule leaves out edges
    for which the probes are sure of a wrong label; what it finds the first finds too.

    Columns: `sentence`, the number of `ambiguous` edges, of these `turned` (P(0) and P(L) prefer different ones of
    right and best wrong label), of all `edges`, the `tasks` with ambiguous edges, and `text`. With equal numbers, more
    turned edges come first, then the order of the sentences.
    """
    if more_than < 0:
        raise InvalidValueError(f"more_than {more_than} is not allowed: give 0 or more")
    ambiguous = traces.is_ambiguous(limit, rule)
    ahead = traces.right_probability > np.nan_to_num(traces.wrong_probability)
    turned = ambiguous & (ahead[:, 0] != ahead[:, -1])
    n_sentences = len(traces.sentences)
    n_edges, n_ambiguous, n_turned = (
        np.bincount(traces.sentence[chosen], minlength=n_sentences)
        for chosen in (np.ones(len(traces), bool), ambiguous, turned)
    )
    chosen = np.flatnonzero(n_ambiguous > more_than)
    chosen = chosen[np.lexsort((chosen, -n_turned[chosen], -n_ambiguous[chosen]))]
    rows = []
    for number in chosen.tolist():
        tasks = np.unique(traces.task[ambiguous & (traces.sentence == number)]).tolist()
        rows.append(
            {
                "sentence": number,
                "ambiguous": int(n_ambiguous[number]),
                "turned": int(n_turned[number]),
                "edges": int(n_edges[number]),
                "tasks": ", ".join(traces.tasks[task] for task in tasks),
                "text": " ".join(traces.sentences[number]),
            }
        )
    counts = dict.fromkeys(("sentence", "ambiguous", "turned", "edges"), pl.Int64)
    return pl.DataFrame(rows, schema={**counts, "tasks": pl.String, "text": pl.String})


@dataclass(frozen=True, eq=False)
class _Edges:
    """The edges of one task; see Traces."""

    target: NDArray[np.int64]
    right: NDArray[np.int64]
    wrong: NDArray[np.int64]
    right_probability: NDArray[np.float64]
    wrong_probability: NDArray[np.float64]
    highest: NDArray[np.float64]

    def take(self, chosen: NDArray[np.int64]) -> _Edges:
        return _Edges(*(getattr(self, name)[chosen] for name in _BY_EDGE))


_BY_EDGE = tuple(field.name for field in fields(_Edges))


def _edges(
    probe: EdgeProbe, store: Store, joined: JoinedEdges, *, seed: int | None, report: Callable[[int], object]
) -> _Edges:
    """Return the edges of a task in the order of their targets."""
    fitted, done = probe.fitted, 0
    parts: list[_Edges] = []
    for targets, logits in iter_logits(probe.cumulative(seed), probe.stream(store), joined.split):
        gold = torch.from_numpy(joined.split.gold[targets]).to(logits.device)
        parts.append(_batch_edges(targets, normalized(logits, single=fitted.labels.single), gold))
        done += len(targets)
        report(done)
    whole = _Edges(*(np.concatenate([getattr(part, name) for part in parts]) for name in _BY_EDGE))
    return whole.take(np.argsort(whole.target, kind="stable"))


def normalized(logits: torch.Tensor, *, single: bool) -> torch.Tensor:
    """Return probabilities float64 of logits [..., labels]: sigmoids, for a single label divided by their sum."""
    own = torch.nn.functional.logsigmoid(logits.double())
    return own.softmax(-1) if single else own.exp()


def _batch_edges(targets: NDArray[np.int64], share: torch.Tensor, gold: torch.Tensor) -> _Edges:
    """Return the edges of a batch, from probabilities [layers, targets, labels] and gold [targets, labels]."""
    average = share.mean(0)
    best = average.masked_fill(gold, -torch.inf).argmax(1)
    place, right = torch.nonzero(gold, as_tuple=True)
    wrong, none_wrong = best[place], gold.all(1)[place]
    columns = {
        "target": torch.from_numpy(targets).to(gold.device)[place],
        "right": right,
        "wrong": wrong.masked_fill(none_wrong, -1),
        "right_probability": share[:, place, right].T,
        "wrong_probability": share[:, place, wrong].T.masked_fill(none_wrong[:, None], torch.nan),
        "highest": average.amax(1)[place],
    }
    return _Edges(**{name: column.cpu().numpy() for name, column in columns.items()})


def _placed(
    joined: JoinedEdges, edges: _Edges, numbers: Mapping[tuple[str, ...], int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Choose edges, once each if a text is repeated, and return them with their sentences."""
    of_text = np.array([numbers[tuple(each.words)] for each in joined.sentences], np.int64)
    sentence = np.repeat(of_text, np.diff(joined.split.first))[edges.target]
    seen: set[tuple[object, ...]] = set()
    chosen = []
    for edge, (number, place, label) in enumerate(
        zip(sentence.tolist(), edges.target.tolist(), edges.right.tolist(), strict=True)
    ):
        target = joined.targets[place]
        key = (number, target.span1, target.span2, label)
        if key not in seen:
            seen.add(key)
            chosen.append(edge)
    rows = np.array(chosen, np.int64)
    return rows, sentence[rows]
