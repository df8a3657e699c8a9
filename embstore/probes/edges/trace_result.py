"""What a trace through the layers comes to: the edges of sentences, and what P(0) ... P(L) hold of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.corpus.formats.edge import EdgeTarget
from embstore.errors import InvalidValueError
from embstore.probes.edges.join import shown

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
    """One edge (spans and a right label) of a sentence, and what P(0) ... P(L) hold of it.

    `wrong`: of the labels that are not right the one of the highest average over layers; None where all are right.
    `right_probability`, `wrong_probability`: float64 [layers]. `highest`: the highest average that any label has.
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
        """1 / (L + 1) times the sum over l of P(l)(right label)."""
        return float(self.right_probability.mean())

    def in_doubt(self, limit: float = LIMIT, rule: Rule = "right") -> bool:
        """Whether the edge is ambiguous; see `ambiguous_sentences`."""
        return (self.average if rule == "right" else self.highest) <= limit


@dataclass(frozen=True, eq=False)
class SentenceTrace:
    """The annotations of all tasks on one sentence, task after task, in the order of their targets.

    `number`: of the sentence among those of `Traces`. `layers`: the l of P(l).
    """

    number: int
    words: tuple[str, ...]
    layers: tuple[int, ...]
    annotations: tuple[Annotation, ...]

    def in_doubt(self, limit: float = LIMIT, rule: Rule = "right") -> SentenceTrace:
        """The same with its ambiguous annotations only."""
        held = tuple(each for each in self.annotations if each.in_doubt(limit, rule))
        return SentenceTrace(self.number, self.words, self.layers, held)

    def of_tasks(self, tasks: Sequence[str]) -> SentenceTrace:
        """The same with the annotations of some tasks only."""
        held = tuple(each for each in self.annotations if each.task in tasks)
        return SentenceTrace(self.number, self.words, self.layers, held)

    @property
    def frame(self) -> pl.DataFrame:
        """A row an annotation and layer: the spans, both labels, and what P(l) gives them."""
        rows = []
        for each in self.annotations:
            ends: dict[str, int | str | None] = {}
            for number, span in ((1, each.span1), (2, each.span2)):
                start, stop = span or (None, None)
                words = None if span is None else " ".join(self.words[slice(*span)])
                ends |= {f"start{number}": start, f"stop{number}": stop, f"span{number}": words}
            told = {"sentence": self.number, "task": each.task, **ends, "right": each.right, "wrong": each.wrong}
            both = zip(self.layers, each.right_probability.tolist(), each.wrong_probability.tolist(), strict=True)
            for layer, right, wrong in both:
                rows.append(
                    {
                        **told,
                        "layer": layer,
                        "right_probability": right,
                        "wrong_probability": None if each.wrong is None else wrong,
                    }
                )
        return pl.DataFrame(rows, schema=SCHEMA)


@dataclass(frozen=True, eq=False)
class Traces:
    """What P(0) ... P(L) of some tasks hold of all edges of a split: an edge is a target and one of its right labels.

    `sentences`: the words of each, once for all tasks. `tasks`, and the `labels` of each. By edge: `sentence`, `task`,
    `target` (of its task), `right`, `wrong` (-1: none) int64 [edges]; `right_probability`, `wrong_probability`
    (NaN: none) float64 [edges, layers]; `highest` float64 [edges], the highest average over layers that a label of the
    target has. `targets`: of each task, as given.
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

    def find(self, sentence: int | str) -> int:
        """The number of a sentence given by its number, its text, or words in a row that only it has."""
        if isinstance(sentence, int):
            if not 0 <= sentence < len(self.sentences):
                raise InvalidValueError(f"there is no sentence {sentence}: give 0 to {len(self.sentences) - 1}")
            return sentence
        texts = [" ".join(words) for words in self.sentences]
        wanted = " ".join(sentence.split())
        if wanted in texts:
            return texts.index(wanted)
        holding = [number for number, text in enumerate(texts) if wanted and f" {wanted} " in f" {text} "]
        if len(holding) == 1:
            return holding[0]
        if holding:
            raise InvalidValueError(
                f"{len(holding)} sentences hold {shown(sentence)}, such as {holding[0]} and {holding[1]}: give more "
                "words of it, or its number"
            )
        raise InvalidValueError(
            f"{shown(sentence)} is none of the {len(texts)} sentences: give the text of one, words that only it has, "
            f"or its number, 0 to {len(texts) - 1}"
        )

    def trace(self, sentence: int | str) -> SentenceTrace:
        """All annotations of a sentence, given as to `find`."""
        number = self.find(sentence)
        held = []
        for edge in np.flatnonzero(self.sentence == number).tolist():
            task, wrong = int(self.task[edge]), int(self.wrong[edge])
            target = self.targets[task][int(self.target[edge])]
            held.append(
                Annotation(
                    self.tasks[task],
                    target.span1,
                    target.span2,
                    self.labels[task][int(self.right[edge])],
                    None if wrong < 0 else self.labels[task][wrong],
                    self.right_probability[edge],
                    self.wrong_probability[edge],
                    float(self.highest[edge]),
                )
            )
        return SentenceTrace(number, self.sentences[number], self.layers, tuple(held))

    def in_doubt(self, limit: float = LIMIT, rule: Rule = "right") -> NDArray[np.bool_]:
        """Which edges are ambiguous, bool [edges]; see `ambiguous_sentences`."""
        if rule not in get_args(Rule):
            raise InvalidValueError(f"rule {rule!r} is not allowed: choose {' or '.join(get_args(Rule))}")
        if not 0 <= limit <= 1:
            raise InvalidValueError(f"limit {limit} is not allowed: give a probability, 0 to 1")
        average = self.right_probability.mean(1) if rule == "right" else self.highest
        return np.asarray(average <= limit)
