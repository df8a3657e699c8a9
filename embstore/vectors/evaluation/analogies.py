"""Analogies: a is to b as c is to which word?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embstore.errors import BenchmarkError
from embstore.vectors.evaluation.lexicon import Lexicon, Oov, Rows, Score, covered
from embstore.vectors.evaluation.lines import read_lines, shown, wrong

EPSILON = 0.001  # Levy and Goldberg 2014
BLOCK_NUMBERS = 2**20  # floats of one product; larger ones leave the cache and take three times as long
SYNTACTIC = "gram"  # how the names of Google's syntactic sections begin


@dataclass(frozen=True)
class Analogies:
    """Questions `a b c d`, d being the answer, in sections `(title, start, stop)`."""

    name: str
    questions: tuple[tuple[str, str, str, str], ...]
    sections: tuple[tuple[str, int, int], ...]

    def scores(self, lexicon: Lexicon, *, oov: Oov, seed: int = 0) -> list[Score]:
        """The share of questions answered rightly by 3CosAdd and 3CosMul: in all, by kind and by section.

        A question whose answer has no vector cannot be answered: with oov="mean" it counts as wrong.
        """
        rows = lexicon.pair_rows(self.questions)
        known = covered(rows)
        scored = known if oov == "skip" else np.ones_like(known)
        found = solve(lexicon, rows[scored, :3])
        right = {metric: np.zeros(len(rows), bool) for metric in found}
        for metric, answers in found.items():
            right[metric][scored] = (answers == rows[scored, 3]) & (answers >= 0)
        return [
            Score(task, metric, _share(correct[part & scored]), int((part & scored).sum()), float(known[part].mean()))
            for task, part in self._parts().items()
            for metric, correct in right.items()
        ]

    def _parts(self) -> dict[str, NDArray[np.bool_]]:
        place = np.arange(len(self.questions))
        parts = {"analogy": place >= 0}
        sections = {title: (place >= start) & (place < stop) for title, start, stop in self.sections}
        syntactic = [part for title, part in sections.items() if title.startswith(SYNTACTIC)]
        if syntactic:
            parts["analogy/syntactic"] = np.any(syntactic, axis=0)
            if not parts["analogy/syntactic"].all():
                parts["analogy/semantic"] = ~parts["analogy/syntactic"]
        return parts | {f"analogy/{title}": part for title, part in sections.items()}


def solve(lexicon: Lexicon, questions: Rows) -> dict[str, Rows]:
    r"""The rows that answer questions [n, 3] of rows a, b, c, by two metrics over the whole vocabulary.

    .. math::
        \text{3CosAdd} &= \operatorname{arg\,max}_d \cos(d, b) - \cos(d, a) + \cos(d, c) \\
        \text{3CosMul} &= \operatorname{arg\,max}_d \frac{\cos'(d, b) \cos'(d, c)}{\cos'(d, a) + 0.001},
        \qquad \cos' = (\cos + 1) / 2

    a, b and c are no answers; row -1 asks with the mean vector. Of equal words the first wins; -1 where none is left.
    """
    asked, places = np.unique(questions, return_inverse=True)
    places = places.reshape(questions.shape)
    query = lexicon.unit[asked]
    best = {metric: _Best(len(questions)) for metric in ("3CosAdd", "3CosMul")}
    words = max(1, min(len(lexicon), BLOCK_NUMBERS * 4 // max(1, len(asked))))
    for first in range(0, len(lexicon), words):
        block = lexicon.unit[first : min(first + words, len(lexicon))]
        cosines = query @ block.T
        shifted = np.maximum((cosines + 1) / 2, 0)
        inverse = 1 / (shifted + np.float32(EPSILON))
        step = max(1, BLOCK_NUMBERS // len(block))
        for start in range(0, len(questions), step):
            some = slice(start, start + step)
            a, b, c = places[some].T
            best["3CosAdd"].update(some, cosines[b] - cosines[a] + cosines[c], questions[some], first)
            best["3CosMul"].update(some, shifted[b] * shifted[c] * inverse[a], questions[some], first)
    return {metric: found.rows for metric, found in best.items()}


class _Best:
    """The best answer to each question over the blocks of words seen so far."""

    def __init__(self, questions: int) -> None:
        self.rows = np.full(questions, -1, np.int64)
        self._scores = np.full(questions, -np.inf, np.float32)

    def update(self, some: slice, scores: NDArray[np.float32], asked: Rows, first: int) -> None:
        question, word = np.nonzero((asked >= first) & (asked < first + scores.shape[1]))
        scores[question, asked[question, word] - first] = -np.inf
        place = scores.argmax(1)
        value = scores[np.arange(len(scores)), place]
        better = value > self._scores[some]
        self._scores[some] = np.where(better, value, self._scores[some])
        self.rows[some] = np.where(better, place + first, self.rows[some])


def _share(correct: NDArray[np.bool_]) -> float | None:
    return float(correct.mean()) if correct.size else None


def read_analogies(path: Path, *, name: str) -> Analogies:
    """Read `a b c d` a line, under lines `: section` where there are sections; raises BenchmarkError with the line."""
    questions: list[tuple[str, str, str, str]] = []
    starts: list[tuple[str, int]] = []
    for number, line in read_lines(path):
        if line.startswith(":"):
            title = line[1:].strip()
            if not title or title in (known for known, _ in starts):
                raise wrong(path, number, f"{shown(line)}: a section has a name of its own")
            if starts and starts[-1][1] == len(questions):
                raise wrong(path, number, f"the section {starts[-1][0]!r} before this line has no question")
            starts.append((title, len(questions)))
            continue
        fields = line.split()
        if len(fields) != 4:
            raise wrong(path, number, f"{shown(line)}: give four words, or a section's name after a colon")
        questions.append((fields[0], fields[1], fields[2], fields[3]))
    if not questions or (starts and starts[-1][1] == len(questions)):
        raise BenchmarkError(
            f"{path}: no question in {'its last section' if questions else 'it'}: give four words a line"
        )
    if starts and starts[0][1] > 0:
        raise BenchmarkError(f"{path}: questions stand before the first section, {starts[0][0]!r}: name theirs")
    stops = [start for _, start in starts[1:]] + [len(questions)]
    sections = tuple((title, start, stop) for (title, start), stop in zip(starts, stops, strict=False))
    return Analogies(name, tuple(questions), sections)
