"""All of Ethayarajh's cosines in one reading of each vector, on the processor: self-similarity, intra-sentence
similarity, anisotropy. The same figures as the reducers of `similarity`, which a GPU and float64 take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.analysis.groups import Grouping
from embstore.analysis.scan import Batch, Scope
from embstore.errors import InvalidValueError, NonFiniteError

_NO_HALVES = np.empty((0, 0), np.int16)
_NO_FLOATS = np.empty((0, 0), np.float32)
_NO_CODES = np.empty(0, np.int64)


class Run:
    """A sentence of which some vectors have come: `code` int64 [2], it and how many; `sums` float32 [2, hidden_size]
    of them and of their unit vectors."""

    def __init__(self, hidden_size: int) -> None:
        self.code = np.array([-1, 0])
        self.sums = np.zeros((2, hidden_size), np.float32)


@dataclass
class CosineSums:
    """Sums of unit vectors in all (`total`) and by word, float64; `values` of the sentences that are whole.

    `run` is the sentence being read, `first` one whose beginning lies before this part; `open` has what came of
    sentences that are not whole: float64 [2, hidden_size] and how many vectors.
    """

    hidden_size: int
    words: int
    sentences: int
    nonzero: int = 0
    count: int = 0
    open: dict[int, tuple[NDArray[np.float64], int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.total = np.zeros(self.hidden_size)
        self.sums = np.zeros((self.words, self.hidden_size))
        self.word_nonzero = np.zeros(self.words)
        self.values = np.full(self.sentences, np.nan)
        self.run, self.first = Run(self.hidden_size), Run(self.hidden_size)
        self.row = np.zeros(self.hidden_size, np.float32)
        self.block_total = np.zeros(self.hidden_size, np.float32)

    def begun(self) -> Iterator[tuple[int, NDArray[np.float64], int]]:
        """The sentences that lack some of their vectors here, each given once: code, sums, count."""
        if self.run.code[0] >= 0:
            self.total += self.run.sums[1]
        for run in (self.first, self.run):
            code, count = run.code.tolist()
            if code >= 0:
                yield code, run.sums.astype(np.float64), count
            run.code[:] = -1, 0
        yield from ((code, sums, count) for code, (sums, count) in self.open.items())
        self.open = {}

    def __getstate__(self) -> dict[str, Any]:
        """What travels: of words and sentences those that have come."""
        words, sentences = np.flatnonzero(self.word_nonzero), np.flatnonzero(~np.isnan(self.values))
        kept = {name: value for name, value in vars(self).items() if name not in ("row", "block_total")}
        return kept | {
            "sums": (words, self.sums[words]),
            "word_nonzero": self.word_nonzero[words],
            "values": (sentences, self.values[sentences]),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        (words, sums), nonzero, (sentences, values) = (state.pop(name) for name in ("sums", "word_nonzero", "values"))
        vars(self).update(state)
        total, run, first = self.total, self.run, self.first
        self.__post_init__()
        self.total, self.run, self.first = total, run, first
        self.sums[words], self.word_nonzero[words], self.values[sentences] = sums, nonzero, values


@dataclass(frozen=True)
class CosineFigures:
    """`selfsim` float64 [words], `intrasim` float64 [sentences], `anisotropy`; NaN where there is no pair."""

    selfsim: NDArray[np.float64]
    intrasim: NDArray[np.float64]
    anisotropy: float


class FusedCosines:
    """SelfSimilarity of `words`, IntraSentenceSimilarity of `sentences` and Anisotropy, each vector read once.

    For float32 on the CPU, and sentences whose occurrences follow each other. Finishes as CosineFigures; those of a
    grouping that is not given are empty.
    """

    def __init__(self, *, words: Grouping | None = None, sentences: Grouping | None = None) -> None:
        self._words = words or Grouping(_NO_CODES, 0)
        self._sentences = sentences or Grouping(_NO_CODES, 0)
        if not self._sentences.contiguous:
            raise InvalidValueError("the occurrences of a sentence do not follow each other: sort the rows")

    def of_part(self, scope: Scope, start: int, stop: int) -> FusedCosines:
        """The same for the occurrences `[start, stop)` alone."""
        return FusedCosines(words=self._words.of_part(start, stop), sentences=self._sentences.of_part(start, stop))

    def init(self, scope: Scope) -> CosineSums:
        return CosineSums(scope.hidden_size, self._words.count, self._sentences.count)

    def update(self, state: CosineSums, batch: Batch) -> CosineSums:
        from embstore.analysis.geometry.kernels import add_cosine_block

        stored = np.ascontiguousarray(batch.stored)
        half = stored.dtype == np.float16
        state.block_total[:] = 0
        found = add_cosine_block(
            stored.view(np.int16) if half else _NO_HALVES,
            _NO_FLOATS if half else stored.astype(np.float32, copy=False),
            state.row,
            self._words.codes_of(batch),
            state.sums,
            state.word_nonzero,
            self._sentences.codes_of(batch),
            self._sentences.sizes,
            state.values,
            state.run.code,
            state.run.sums,
            state.first.code,
            state.first.sums,
            state.block_total,
        )
        if found < 0:
            batch.require_finite()
            raise NonFiniteError(
                f"layer {batch.layer} holds vectors too long for float32: choose the precision float64"
            )
        state.total += state.block_total
        state.nonzero += found
        state.count += len(batch)
        return state

    def merge(self, state: CosineSums, other: CosineSums) -> CosineSums:
        begun = [*state.begun(), *other.begun()]
        state.total += other.total
        state.sums += other.sums
        state.word_nonzero += other.word_nonzero
        state.values = np.where(np.isnan(state.values), other.values, state.values)
        state.nonzero += other.nonzero
        state.count += other.count
        for code, sums, count in begun:
            self._add(state, code, sums, count)
        return state

    def finish(self, state: CosineSums, scope: Scope) -> CosineFigures:
        for code, sums, count in list(state.begun()):
            self._add(state, code, sums, count)
        squares = np.einsum("ij,ij->i", state.sums, state.sums)
        return CosineFigures(
            selfsim=mean_cosines(squares, state.word_nonzero, self._words.sizes.astype(np.float64)),
            intrasim=state.values,
            anisotropy=float(mean_cosines(state.total @ state.total, state.nonzero, state.count)),
        )

    def _add(self, state: CosineSums, code: int, sums: NDArray[np.float64], count: int) -> None:
        """Add what came of a sentence, and close it where none of its vectors is lacking now."""
        if code in state.open:
            before, others = state.open.pop(code)
            sums, count = before + sums, others + count
        if count < self._sentences.sizes[code]:
            state.open[code] = sums, count
            return
        length = float(np.linalg.norm(sums[0]))
        state.values[code] = float(sums[0] @ sums[1]) / length / count if length > 0 else 0.0


def mean_cosines(squares: Any, nonzero: Any, counts: Any) -> NDArray[np.float64]:
    """The mean cosine over all pairs of `counts` vectors, of the squared lengths of their sums at unit length."""
    pairs = counts * (counts - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(pairs > 0, (squares - nonzero) / pairs, np.nan)
