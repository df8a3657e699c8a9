"""Analogy benchmarks: a is to b as c is to which word?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embstore.errors import CorpusError, quoted
from embstore_studies.evaluation.lexicon import IntArray, Lexicon, Oov, Score, line_error, read_lines

EPSILON = 0.001  # Levy and Goldberg 2014
BLOCK_NUMBERS = 2**20  # floats of one product; larger ones leave the cache and take three times as long
SYNTACTIC = "gram"  # how the names of Google's syntactic sections begin


@dataclass(frozen=True)
class Analogies:
    """Questions `a b c d`, where d is the answer, in sections `(title, start, stop)`."""

    name: str
    questions: tuple[tuple[str, str, str, str], ...]
    sections: tuple[tuple[str, int, int], ...]

    def scores(self, lexicon: Lexicon, *, oov: Oov, seed: int = 0) -> list[Score]:
        """Return the accuracy of 3CosAdd and 3CosMul: in all, by kind and by section.

        With oov="mean" a question whose answer has no vector counts as wrong.
        """
        rows = lexicon.tuple_rows(self.questions)
        covered = np.all(rows >= 0, axis=1)
        scored = covered if oov == "skip" else np.ones_like(covered)
        correct = {}
        for metric, answers in solve(lexicon, rows[scored, :3]).items():
            correct[metric] = np.zeros(len(rows), bool)
            correct[metric][scored] = (answers == rows[scored, 3]) & (answers >= 0)
        scores = []
        for task, part in self._parts().items():
            count = int((part & scored).sum())
            for metric, is_correct in correct.items():
                value = float(is_correct[part & scored].mean()) if count else None
                scores.append(Score(task, metric, value, count, float(covered[part].mean())))
        return scores

    def _parts(self) -> dict[str, NDArray[np.bool_]]:
        number = np.arange(len(self.questions))
        parts = {"analogy": number >= 0}
        sections = {title: (number >= start) & (number < stop) for title, start, stop in self.sections}
        syntactic = [part for title, part in sections.items() if title.startswith(SYNTACTIC)]
        if syntactic:
            parts["analogy/syntactic"] = np.any(syntactic, axis=0)
            if not parts["analogy/syntactic"].all():
                parts["analogy/semantic"] = ~parts["analogy/syntactic"]
        return parts | {f"analogy/{title}": part for title, part in sections.items()}


def solve(lexicon: Lexicon, questions: IntArray) -> dict[str, IntArray]:
    r"""Return the rows that answer questions [n, 3] of rows a, b, c over the whole vocabulary, by metric.

    .. math::
        \text{3CosAdd} &= \operatorname{arg\,max}_d \cos(d, b) - \cos(d, a) + \cos(d, c) \\
        \text{3CosMul} &= \operatorname{arg\,max}_d \frac{\cos'(d, b) \cos'(d, c)}{\cos'(d, a) + 0.001},
        \qquad \cos' = (\cos + 1) / 2

    a, b and c are not answers; row -1 is the mean vector. Of equal scores the first word wins; -1 if no word is left.
    """
    distinct, inverse = np.unique(questions, return_inverse=True)
    inverse = inverse.reshape(questions.shape)
    query = lexicon.unit[distinct]
    best = {metric: _Best(len(questions)) for metric in ("3CosAdd", "3CosMul")}
    n_words = max(1, min(len(lexicon), BLOCK_NUMBERS * 4 // max(1, len(distinct))))
    for first in range(0, len(lexicon), n_words):
        block = lexicon.unit[first : min(first + n_words, len(lexicon))]
        cosines = query @ block.T
        shifted = np.maximum((cosines + 1) / 2, 0)
        inverted = 1 / (shifted + np.float32(EPSILON))
        step = max(1, BLOCK_NUMBERS // len(block))
        for start in range(0, len(questions), step):
            some = slice(start, start + step)
            a, b, c = inverse[some].T
            best["3CosAdd"].update(some, cosines[b] - cosines[a] + cosines[c], questions[some], first)
            best["3CosMul"].update(some, shifted[b] * shifted[c] * inverted[a], questions[some], first)
    return {metric: answers.rows for metric, answers in best.items()}


class _Best:
    """The best answer to each question over the blocks of words seen so far."""

    def __init__(self, n_questions: int) -> None:
        self.rows = np.full(n_questions, -1, np.int64)
        self._scores = np.full(n_questions, -np.inf, np.float32)

    def update(self, some: slice, scores: NDArray[np.float32], questions: IntArray, first: int) -> None:
        """Take the better answers of the questions `some`; `scores`: of the words from row `first` on."""
        question, word = np.nonzero((questions >= first) & (questions < first + scores.shape[1]))
        scores[question, questions[question, word] - first] = -np.inf
        answer = scores.argmax(1)
        value = scores[np.arange(len(scores)), answer]
        better = value > self._scores[some]
        self._scores[some] = np.where(better, value, self._scores[some])
        self.rows[some] = np.where(better, answer + first, self.rows[some])


def read_analogies(path: Path, *, name: str) -> Analogies:
    """Read lines of `a b c d`, under lines `: section` if there are sections. Raises CorpusError with the line."""
    questions: list[tuple[str, str, str, str]] = []
    starts: list[tuple[str, int]] = []
    for number, line in read_lines(path):
        if line.startswith(":"):
            title = line[1:].strip()
            if not title or title in (known for known, _ in starts):
                raise line_error(path, number, f"{quoted(line)}: a section has a name of its own")
            if starts and starts[-1][1] == len(questions):
                raise line_error(path, number, f"the section {starts[-1][0]!r} before this line has no question")
            starts.append((title, len(questions)))
            continue
        fields = line.split()
        if len(fields) != 4:
            raise line_error(path, number, f"{quoted(line)}: give four words, or a section's name after a colon")
        questions.append((fields[0], fields[1], fields[2], fields[3]))
    if not questions or (starts and starts[-1][1] == len(questions)):
        raise CorpusError(f"{path}: no question in {'its last section' if questions else 'it'}: give four words a line")
    if starts and starts[0][1] > 0:
        raise CorpusError(
            f"{path}: there are questions before the first section, {starts[0][0]!r}: name theirs in a line before them"
        )
    stops = [start for _, start in starts[1:]] + [len(questions)]
    sections = tuple((title, start, stop) for (title, start), stop in zip(starts, stops, strict=False))
    return Analogies(name, tuple(questions), sections)
