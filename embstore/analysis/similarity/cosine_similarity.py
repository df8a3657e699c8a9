"""Cosine similarities in closed form: of a word's occurrences, of a sentence's words, of any two occurrences."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.analysis.groups import Grouping, Members, group_sums
from embstore.analysis.scan import Batch, Scope


def mean_cosine(sums: torch.Tensor, nonzero: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """The mean cosine over all pairs, of sums of unit vectors: (|sum|^2 - nonzero) / (count^2 - count).

    `nonzero`: how many of the vectors were not zero, each having cosine 1 with itself.
    """
    pairs = counts * (counts - 1)
    squares: torch.Tensor = torch.linalg.vecdot(sums, sums)
    return (squares - nonzero) / torch.where(pairs > 0, pairs, torch.nan)


@dataclass
class GroupSums:
    """Sums of unit vectors, float64 [group, hidden_size], and how many vectors were not zero."""

    sums: torch.Tensor
    nonzero: torch.Tensor


class SelfSimilarity:
    """The mean cosine of all pairs of occurrences of each word (Ethayarajh 2019, eq. 1), exact.

    SelfSim(w) = 1/(n^2 - n) sum_{j != k} cos(f(s_j, i_j), f(s_k, i_k)) = (|sum_j u_j|^2 - n)/(n^2 - n), with u the
    vectors at unit length. A zero vector has cosine 0 with every other. Finishes as float64 [words], NaN for a
    word of one occurrence.
    """

    def __init__(self, words: Grouping) -> None:
        self._words = words

    def of_part(self, scope: Scope, start: int, stop: int) -> SelfSimilarity:
        """The same for the occurrences `[start, stop)` alone."""
        return SelfSimilarity(self._words.of_part(start, stop))

    def init(self, scope: Scope) -> GroupSums:
        shape = self._words.count, scope.hidden_size
        return GroupSums(
            torch.zeros(shape, dtype=torch.float64, device=scope.device),
            torch.zeros(shape[0], dtype=torch.float64, device=scope.device),
        )

    def update(self, state: GroupSums, batch: Batch) -> GroupSums:
        members = self._words.members(batch)
        sums = group_sums(batch, members, unit=True)
        state.sums.index_add_(0, members.groups, sums.to(torch.float64))
        state.nonzero.index_add_(0, members.groups, nonzero_counts(batch, members))
        return state

    def merge(self, state: GroupSums, other: GroupSums) -> GroupSums:
        state.sums += other.sums
        state.nonzero += other.nonzero
        return state

    def finish(self, state: GroupSums, scope: Scope) -> NDArray[np.float64]:
        counts = torch.from_numpy(self._words.sizes).to(state.sums.device, torch.float64)
        return np.asarray(mean_cosine(state.sums, state.nonzero, counts).cpu().numpy())


def nonzero_counts(batch: Batch, members: Members) -> torch.Tensor:
    """How many of each group's vectors are not zero, float64 [g]."""
    if bool((batch.norms > 0).all()):
        return members.lengths.to(torch.float64)
    found = (batch.norms[members.order] > 0).to(torch.float64)
    return torch.segment_reduce(found, "sum", lengths=members.lengths)


@dataclass
class TotalSum:
    """The sum of unit vectors, float64 [hidden_size], how many were not zero, and how many there were."""

    sum: torch.Tensor
    nonzero: int = 0
    count: int = 0


class Anisotropy:
    """The mean cosine of all pairs of occurrences, whatever their words (Ethayarajh 2019, section 3.4), exact.

    The paper estimates it from 1,000 occurrences drawn at random; here it is (|sum u|^2 - n)/(n^2 - n) over all.
    Finishes as a float, NaN for one occurrence.
    """

    def of_part(self, scope: Scope, start: int, stop: int) -> Anisotropy:
        """The same for the occurrences `[start, stop)` alone."""
        return self

    def init(self, scope: Scope) -> TotalSum:
        return TotalSum(torch.zeros(scope.hidden_size, dtype=torch.float64, device=scope.device))

    def update(self, state: TotalSum, batch: Batch) -> TotalSum:
        state.sum += (batch.unit_scale @ batch.vectors).to(torch.float64)
        state.nonzero += int((batch.norms > 0).sum())
        state.count += len(batch)
        return state

    def merge(self, state: TotalSum, other: TotalSum) -> TotalSum:
        return TotalSum(state.sum + other.sum, state.nonzero + other.nonzero, state.count + other.count)

    def finish(self, state: TotalSum, scope: Scope) -> float:
        nonzero, count = (torch.tensor(number, dtype=torch.float64) for number in (state.nonzero, state.count))
        return float(mean_cosine(state.sum.cpu(), nonzero, count))


@dataclass
class Sentences:
    """Values of the sentences whose words have all come, and the sums of those that lack some.

    `value`: float64 [sentence]. `open`: sentence -> [2, hidden_size] (sum of vectors, sum of unit vectors), and
    how many of its words have come.
    """

    value: torch.Tensor
    open: dict[int, tuple[torch.Tensor, int]] = field(default_factory=dict)


class IntraSentenceSimilarity:
    """The mean cosine of a sentence's words with their mean vector (Ethayarajh 2019, eq. 2), exact.

    IntraSim(s) = 1/n sum_i cos(s, f(s, i)) with s = 1/n sum_i f(s, i), which is (X . U)/(n |X|), X the sum of the
    vectors as they are and U that of the unit vectors. 0 where X is zero. Finishes as float64 [sentences].
    """

    def __init__(self, sentences: Grouping) -> None:
        self._sentences = sentences

    @property
    def _sizes(self) -> torch.Tensor:
        return torch.from_numpy(self._sentences.sizes)

    def of_part(self, scope: Scope, start: int, stop: int) -> IntraSentenceSimilarity:
        """The same for the occurrences `[start, stop)` alone."""
        return IntraSentenceSimilarity(self._sentences.of_part(start, stop))

    def init(self, scope: Scope) -> Sentences:
        return Sentences(torch.full((self._sentences.count,), torch.nan, dtype=torch.float64, device=scope.device))

    def update(self, state: Sentences, batch: Batch) -> Sentences:
        members = self._sentences.members(batch)
        vectors = group_sums(batch, members, unit=False)
        units = group_sums(batch, members, unit=True)
        sizes = self._sizes.to(vectors.device)[members.groups]
        whole = members.lengths == sizes
        state.value[members.groups] = torch.where(
            whole, mean_similarity(vectors, units, sizes), state.value[members.groups]
        )
        for place in torch.nonzero(~whole)[:, 0].tolist():
            sums = torch.stack([vectors[place], units[place]]).to(torch.float64)
            self._add(state, int(members.groups[place]), sums, int(members.lengths[place]))
        return state

    def merge(self, state: Sentences, other: Sentences) -> Sentences:
        state.value = torch.where(torch.isnan(state.value), other.value, state.value)
        for sentence, (sums, count) in other.open.items():
            self._add(state, sentence, sums, count)
        return state

    def finish(self, state: Sentences, scope: Scope) -> NDArray[np.float64]:
        return np.asarray(state.value.cpu().numpy())

    def _add(self, state: Sentences, sentence: int, sums: torch.Tensor, count: int) -> None:
        """Add what came of a sentence that lacked some of its words, and close it where none is lacking now."""
        if sentence in state.open:
            before, others = state.open.pop(sentence)
            sums, count = before + sums, others + count
        size = self._sizes[sentence]
        if count == int(size):
            state.value[sentence] = mean_similarity(sums[:1], sums[1:], size)[0]
        else:
            state.open[sentence] = sums, count


def mean_similarity(vectors: torch.Tensor, units: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """(X . U)/(n |X|) for sums X of vectors and U of unit vectors: float64 [g]."""
    lengths = torch.linalg.vector_norm(vectors, dim=1)
    dots = torch.linalg.vecdot(vectors, units)
    return (torch.where(lengths > 0, dots / lengths, 0) / sizes).to(torch.float64)
