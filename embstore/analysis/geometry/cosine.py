"""Mean cosines of Ethayarajh 2019 in closed form: self-similarity, intra-sentence similarity and anisotropy.

No pairs are formed: with the unit vectors u of n occurrences, the mean cosine of all pairs is
(|sum u|^2 - n)/(n^2 - n). One compiled loop reads each vector once for all three measures.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.analysis.scan import Batch, Scope, beyond_float32
from embstore.analysis.words import count_codes
from embstore.kernels import add_cosines

_NO_NUMBERS = np.empty(0, np.int64)
FLUSH_COUNT = 64  # as in kernels.h: a word with more occurrences has sums in float64


@dataclass(frozen=True)
class Groups:
    """The words or sentences whose cosines are computed.

    `members`: int64 [n_groups], their types or sentences in the store. `sizes`: int64 [n_groups], the selected
    occurrences of each. `numbers`: int64, the number of the group of each type or sentence of the store, -1 for none.
    """

    members: NDArray[np.int64] = field(default_factory=lambda: _NO_NUMBERS)
    sizes: NDArray[np.int64] = field(default_factory=lambda: _NO_NUMBERS)
    numbers: NDArray[np.int64] = field(default_factory=lambda: _NO_NUMBERS)

    @classmethod
    def of(cls, codes: NDArray[Any], members: NDArray[np.int64]) -> Groups:
        """Count the members among `codes`, the types or sentences of the selected occurrences."""
        counts = count_codes(codes, int(members.max(initial=-1)) + 1)
        numbers = np.full(len(counts), -1)
        numbers[members] = np.arange(len(members))
        return cls(members, counts[members], numbers)

    def find(self, codes: NDArray[Any]) -> NDArray[np.int64]:
        """The group of each occurrence, given its type or sentence; empty without groups."""
        return self.numbers[codes] if len(self.sizes) else _NO_NUMBERS


@dataclass
class CosineSums:
    """Sums of unit vectors over all occurrences (`total`) and by word; `values` of the sentences read to the end.

    The arrays are those of the kernel, see kernels.h. `slots` int64 [n_words]: the row of `word_totals` of each word
    whose sum is moved there, -1 for the others. `incomplete` has the float64 sums [2, hidden_size] of sentences that
    lie in two parts and were read before, with the number of vectors read. `with_plain`: word sums are twice as wide,
    the sum of the plain vectors after that of the unit vectors, and there are neither sentences nor a total.
    """

    hidden_size: int
    slots: NDArray[np.int64]
    n_sentences: int
    dtype: type[np.floating]
    with_plain: bool = False
    n_nonzero: int = 0
    count: int = 0
    incomplete: dict[int, tuple[NDArray[np.float64], int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        size, n_words = self.hidden_size, len(self.slots)
        width = 2 * size if self.with_plain else size
        self.total = np.zeros(size)
        self.word_sums = np.zeros((n_words, width), self.dtype)
        self.word_totals = np.zeros((int(self.slots.max(initial=-1)) + 1, width))
        self.word_counts = np.zeros((n_words, 3), np.int64)
        self.word_counts[:, 0] = self.slots
        self.values = np.full(self.n_sentences, np.nan)
        self.runs = np.array([[-1, 0], [-1, 0]])
        self.run_sums = np.zeros((2, 2, size), self.dtype)
        self.buffers = np.zeros((2, size), self.dtype)

    def add(
        self, batch: Batch, words: NDArray[np.int64], sentences: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> None:
        """Add a batch, given the word and the sentence of each vector; raises NonFiniteError."""
        half = batch.stored.dtype == np.float16
        stored = batch.stored if half else batch.stored.astype(self.dtype, copy=False)
        n_nonzero = add_cosines(self, np.ascontiguousarray(stored).view(np.int8), half, words, sentences, sizes)
        if n_nonzero < 0:
            _ = batch.vectors  # raises if a value is not finite
            raise beyond_float32(batch.layer)
        self.n_nonzero += n_nonzero
        self.count += len(batch)

    def add_words(self, other: CosineSums) -> None:
        """Add the sums of words of another part."""
        self.flush()
        self.word_sums += other.word_sums
        self.word_totals += other.word_totals
        self.word_counts[:, 2] += other.word_counts[:, 2]

    def flush(self) -> None:
        """Move the sums of frequent words to their totals."""
        frequent = np.flatnonzero(self.slots >= 0)
        self.word_totals += self.word_sums[frequent]
        self.word_sums[frequent] = 0
        self.word_counts[frequent, 1] = 0

    def squares(self) -> NDArray[np.float64]:
        """The squared length of the sum of each word, [n_words]."""
        self.flush()
        squares: NDArray[np.float64] = np.einsum("ij,ij->i", self.word_sums, self.word_sums, dtype=np.float64)
        squares[self.slots >= 0] = np.einsum("ij,ij->i", self.word_totals, self.word_totals)
        return squares

    def take_incomplete(self) -> Iterator[tuple[int, NDArray[np.float64], int]]:
        """Yield number, sums and count of the sentences of which this part has not read all vectors, each once."""
        if self.runs[0, 0] >= 0:
            self.total += self.run_sums[0, 1]
        for place in (1, 0):
            number, count = self.runs[place].tolist()
            if number >= 0:
                yield number, self.run_sums[place].astype(np.float64), count
            self.runs[place] = -1, 0
        yield from ((number, sums, count) for number, (sums, count) in self.incomplete.items())
        self.incomplete = {}


@dataclass(frozen=True)
class MeanCosines:
    """`selfsim` float64 [n_words], `intrasim` float64 [n_sentences], `anisotropy`; NaN where there is no pair."""

    selfsim: NDArray[np.float64]
    intrasim: NDArray[np.float64]
    anisotropy: float


class Cosines:
    """A reducer for self-similarity, intra-sentence similarity and anisotropy; its result is a MeanCosines.

    Self-similarity (eq. 1) is the mean cosine of all pairs of occurrences of a word. Intra-sentence similarity (eq. 2)
    is the mean cosine of the words of a sentence with their mean vector, (X . U)/(n |X|) with X the sum of the vectors
    and U that of the unit vectors; 0 if X is zero. Anisotropy is the mean cosine of all pairs of occurrences. A zero
    vector has cosine 0 with every other.

    It runs on the CPU in the precision of the scope. The rows of the selection must be in the order of sentences.
    """

    def __init__(self, *, words: Groups | None = None, sentences: Groups | None = None) -> None:
        self._words = words or Groups()
        self._sentences = sentences or Groups()
        frequent = self._words.sizes > FLUSH_COUNT
        self._slots = np.where(frequent, np.cumsum(frequent) - 1, -1)

    def state_nbytes(self, hidden_size: int) -> int:
        """The bytes of a state at most."""
        n_words, n_frequent, n_sentences = len(self._slots), int((self._slots >= 0).sum()), len(self._sentences.sizes)
        return 8 * ((n_words + n_frequent + 7) * hidden_size + 3 * n_words + n_sentences)

    def init(self, scope: Scope) -> CosineSums:
        dtype = np.float64 if scope.dtype == torch.float64 else np.float32
        return CosineSums(scope.hidden_size, self._slots, len(self._sentences.sizes), dtype)

    def update(self, state: CosineSums, batch: Batch) -> CosineSums:
        index, rows = batch.store.index, _as_slice(batch.rows)
        words, sentences = self._words.find(index.type[rows]), self._sentences.find(index.sentence[rows])
        state.add(batch, words, sentences, self._sentences.sizes)
        return state

    def merge(self, state: CosineSums, other: CosineSums) -> CosineSums:
        incomplete = [*state.take_incomplete(), *other.take_incomplete()]
        state.add_words(other)
        state.total += other.total
        state.values = np.where(np.isnan(state.values), other.values, state.values)
        state.n_nonzero += other.n_nonzero
        state.count += other.count
        for number, sums, count in incomplete:
            self._add_sentence(state, number, sums, count)
        return state

    def finish(self, state: CosineSums, scope: Scope) -> MeanCosines:
        for number, sums, count in list(state.take_incomplete()):
            self._add_sentence(state, number, sums, count)
        n_nonzero, counts = state.word_counts[:, 2], self._words.sizes
        return MeanCosines(
            selfsim=mean_cosine(state.squares(), n_nonzero.astype(np.float64), counts.astype(np.float64)),
            intrasim=state.values,
            anisotropy=float(mean_cosine(state.total @ state.total, state.n_nonzero, state.count)),
        )

    def _add_sentence(self, state: CosineSums, number: int, sums: NDArray[np.float64], count: int) -> None:
        """Add vectors of a sentence that lies in several parts; compute its value once all of them are there."""
        if number in state.incomplete:
            other_sums, other_count = state.incomplete.pop(number)
            sums, count = other_sums + sums, other_count + count
        if count < self._sentences.sizes[number]:
            state.incomplete[number] = sums, count
            return
        length = float(np.linalg.norm(sums[0]))
        state.values[number] = float(sums[0] @ sums[1]) / length / count if length > 0 else 0.0


class WordSums:
    """A reducer for the sums of unit and plain vectors by group: ([group, 2 feature], int64 [group]).

    `groups`: int64, the group of each selected occurrence, -1 for none. `sizes`: int64 [group]. `dtype`: of the sums,
    by default float32 for vectors in half precision.
    """

    def __init__(self, groups: NDArray[np.int64], sizes: NDArray[np.int64], dtype: Any = None) -> None:
        self._groups, self._dtype = groups, dtype
        frequent = sizes > FLUSH_COUNT
        self._slots = np.where(frequent, np.cumsum(frequent) - 1, -1)

    def init(self, scope: Scope) -> CosineSums:
        dtype = np.float64 if scope.store.dtype in ("float32", "float64") else np.float32
        return CosineSums(scope.hidden_size, self._slots, 0, self._dtype or dtype, with_plain=True)

    def update(self, state: CosineSums, batch: Batch) -> CosineSums:
        state.add(batch, self._groups[batch.positions], _NO_NUMBERS, _NO_NUMBERS)
        return state

    def merge(self, state: CosineSums, other: CosineSums) -> CosineSums:
        state.add_words(other)
        return state

    def finish(self, state: CosineSums, scope: Scope) -> tuple[NDArray[Any], NDArray[np.int64]]:
        state.flush()
        state.word_sums[self._slots >= 0] = state.word_totals
        return state.word_sums, state.word_counts[:, 2]


def _as_slice(rows: NDArray[np.int64]) -> NDArray[np.int64] | slice:
    """Ascending rows without a gap as a slice, which reads an array without copying it."""
    first, last = int(rows[0]), int(rows[-1])
    is_range = last - first + 1 == len(rows) and bool((np.diff(rows) == 1).all())
    return slice(first, last + 1) if is_range else rows


def mean_cosine(squares: Any, n_nonzero: Any, counts: Any) -> NDArray[np.float64]:
    """The mean cosine over all pairs of `counts` vectors, given the squared length of the sum of their unit vectors.

    `n_nonzero`: how many of the vectors are not zero; each of these has cosine 1 with itself.
    """
    pairs = counts * (counts - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(pairs > 0, (squares - n_nonzero) / pairs, np.nan)
