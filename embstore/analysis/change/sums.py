"""Distances between periods from sums: one scan of each layer, and no pairs of occurrences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.analysis.change.occurrences import Compared, Part
from embstore.analysis.geometry.cosine import FLUSH_COUNT, CosineSums, mean_cosine
from embstore.analysis.scan import Batch, Scope, reduce
from embstore.devices import thread_count
from embstore.store import Selection, Store

NO_SENTENCES = np.empty(0, np.int64)
DISTANCES = ("apd", "apd_excess", "prt", "inverse_prt", "prt_centered")
SIMILARITIES = ("selfsim_old", "selfsim_new", "selfsim_change")
JSD = "jsd"
METRICS = (*DISTANCES, *SIMILARITIES, JSD)
TESTED = ("apd", "apd_excess", "prt", "prt_centered", "selfsim_change", JSD)
TWO_SIDED = ("selfsim_change",)
PART_TIMES = 64  # how many rows a part has for each group, so that adding up states takes little
BLOCK_NBYTES = 8 * 2**20  # of stored vectors: a word's rows of a block are read one after the other
BLOCK_WORDS = 128  # whose sums stay in cache as float64
WHOLE = 0.25  # above this share of the rows the whole layer is scanned


@dataclass(frozen=True)
class Sums:
    """Of some words in each period: the sums of their unit vectors, and after them of their plain vectors.

    `periods`: for each period an array [word, 2 feature] of float32, or of float64 for stores of float32. `counts`,
    `n_nonzero`: int64 [word, period], the occurrences, and those whose vector is not zero.
    """

    periods: tuple[NDArray[Any], ...]
    counts: NDArray[np.int64]
    n_nonzero: NDArray[np.int64]

    def unit(self, period: int) -> NDArray[Any]:
        """The sums of unit vectors, [word, feature]."""
        return self.periods[period][:, : self.periods[period].shape[1] // 2]

    def plain(self, period: int) -> NDArray[Any]:
        """The sums of the vectors as they are stored, [word, feature]."""
        return self.periods[period][:, self.periods[period].shape[1] // 2 :]


class WordSums:
    """A reducer for the sums of unit and plain vectors by group: ([group, 2 feature], int64 [group]).

    `groups`: int64, the group of each selected occurrence, -1 for none. `sizes`: int64 [group].
    """

    def __init__(self, groups: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        self._groups = groups
        frequent = sizes > FLUSH_COUNT
        self._slots = np.where(frequent, np.cumsum(frequent) - 1, -1)

    def init(self, scope: Scope) -> CosineSums:
        dtype = np.float64 if scope.store.dtype in ("float32", "float64") else np.float32
        return CosineSums(scope.hidden_size, self._slots, 0, dtype, with_plain=True)

    def update(self, state: CosineSums, batch: Batch) -> CosineSums:
        state.add(batch, self._groups[batch.positions], NO_SENTENCES, NO_SENTENCES)
        return state

    def merge(self, state: CosineSums, other: CosineSums) -> CosineSums:
        state.add_words(other)
        return state

    def finish(self, state: CosineSums, scope: Scope) -> tuple[NDArray[Any], NDArray[np.int64]]:
        state.flush()
        state.word_sums[self._slots >= 0] = state.word_totals
        return state.word_sums, state.word_counts[:, 2]


def word_chunks(compared: Compared, memory: int) -> list[tuple[int, int]]:
    """Cut the words so that the sums of a chunk take about half of `memory` with a state for each thread."""
    nbytes = len(compared.periods) * 2 * compared.hidden_size * 8 * (1 + thread_count())
    size = max(1, memory // 2 // nbytes)
    return [(start, min(start + size, len(compared.words))) for start in range(0, len(compared.words), size)]


def scan_sums(
    compared: Compared, memory: int, *, threads: int | None = None, progress: Callable[[int], object] | None = None
) -> Iterator[tuple[int, slice, Sums, NDArray[np.float64]]]:
    """Sum the vectors of all words in one pass over each layer, or several if their sums exceed the memory.

    Yields the layer, the words, their sums, and the centers float64 [period, feature]: the mean plain vector of each
    period over all compared words. `progress` is called with the number of vectors that were read.
    """
    chunks = word_chunks(compared, memory)
    report = progress or (lambda _: None)
    centers: dict[int, NDArray[np.float64]] = {}
    if len(chunks) > 1:
        counts = compared.counts.sum(0)[None]
        givens = [_Given.of(part, np.zeros_like(part.words), counts) for part in compared.parts]
        for layer in compared.layers:
            whole = _reduced(givens, layer, counts, threads, report)
            centers[layer] = _centers(whole)
    for start, stop in chunks:
        counts = compared.counts[start:stop]
        givens = []
        for part in compared.parts:
            wanted = (part.words >= start) & (part.words < stop)
            givens.append(_Given.of(part, np.where(wanted, part.words - start, -1), counts))
        for layer in compared.layers:
            sums = _reduced(givens, layer, counts, threads, report)
            if len(chunks) == 1:
                centers[layer] = _centers(sums)
            yield layer, slice(start, stop), sums, centers[layer]


def _centers(sums: Sums) -> NDArray[np.float64]:
    """The mean plain vector of each period, float64 [period, feature]."""
    totals = [sums.plain(period).sum(0, dtype=np.float64) for period in range(len(sums.periods))]
    return np.asarray(np.stack(totals) / np.maximum(sums.counts.sum(0), 1)[:, None])


@dataclass(frozen=True)
class _Given:
    """The rows that are read of a store, all where most are wanted, and the group of each, -1 for none.

    `periods`: those that occur in the store; the group is word * len(periods) + the place of the period in them.
    """

    store: Store
    rows: NDArray[np.int64] | None
    groups: NDArray[np.int64]
    periods: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @classmethod
    def of(cls, part: Part, words: NDArray[np.int64], counts: NDArray[np.int64]) -> _Given:
        counted = np.bincount(part.periods, minlength=counts.shape[1]) > 0
        periods, places = np.flatnonzero(counted), np.cumsum(counted) - 1
        wanted = words >= 0
        groups = np.where(wanted, words * len(periods) + places[part.periods], -1)
        sizes = np.ascontiguousarray(counts[:, periods]).reshape(-1)
        if not part.is_whole or wanted.sum() < WHOLE * part.store.n_rows:
            return cls(part.store, part.rows[wanted], groups[wanted], periods, sizes)
        every = np.full(part.store.n_rows, -1)
        every[part.rows] = groups
        return cls(part.store, None, every, periods, sizes)


def _reduced(
    givens: Sequence[_Given],
    layer: int,
    counts: NDArray[np.int64],
    threads: int | None,
    report: Callable[[int], object],
) -> Sums:
    """The sums of each word and period over all stores."""
    sums_of: dict[int, NDArray[Any]] = {}  # by period
    n_nonzero = np.zeros_like(counts)
    for given in givens:
        if not len(given.groups):
            continue
        parts = max(2, len(given.groups) // (PART_TIMES * len(given.sizes)))
        selection = Selection(given.store, rows=given.rows, layers=layer)
        reducers = {"sums": WordSums(given.groups, given.sizes)}
        block_rows = max(1, BLOCK_NBYTES // (given.store.hidden_size * given.store.vector_dtype.itemsize))
        options: dict[str, Any] = {"parts": parts, "block_rows": block_rows, "threads": threads, "max_states": 4}
        reduced = reduce(selection, reducers, device="cpu", progress=False, **options)
        sums, n_of_groups = reduced[layer]["sums"]
        sums = sums.reshape(len(counts), len(given.periods), -1)
        n_nonzero[:, given.periods] = n_of_groups.reshape(len(counts), len(given.periods))
        sums_of |= {period: sums[:, at] for at, period in enumerate(given.periods.tolist())}
        report(len(given.groups))
    none = np.zeros_like(next(iter(sums_of.values())))  # of a period in which none of the words occurs
    return Sums(tuple(sums_of.get(period, none) for period in range(counts.shape[1])), counts, n_nonzero)


@dataclass(frozen=True)
class Products:
    """Inner products of the sums of two sides, float64 of one shape: old with old, old with new, new with new."""

    old: NDArray[np.float64]
    both: NDArray[np.float64]
    new: NDArray[np.float64]

    @classmethod
    def of(cls, old: NDArray[Any], new: NDArray[Any]) -> Products:
        """The products of sums [n, feature]."""
        pairs = ((old, old), (old, new), (new, new))
        return cls(*(np.einsum("ij,ij->i", one, other, dtype=np.float64) for one, other in pairs))

    def less(self, old: NDArray[Any], new: NDArray[Any], shift_old: Any, shift_new: Any, counts: Any) -> Products:
        """The products of `old` minus counts[0] times `shift_old` with `new` minus counts[1] times `shift_new`."""
        n_old, n_new = (np.asarray(count, np.float64) for count in counts)
        return Products(
            self.old - 2 * n_old * (old @ shift_old) + n_old**2 * (shift_old @ shift_old),
            self.both - n_new * (old @ shift_new) - n_old * (new @ shift_old) + n_old * n_new * (shift_old @ shift_new),
            self.new - 2 * n_new * (new @ shift_new) + n_new**2 * (shift_new @ shift_new),
        )

    @property
    def cosine(self) -> NDArray[np.float64]:
        """The cosine of the two sums; NaN where one is zero."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.clip(self.both / np.sqrt(self.old * self.new), -1, 1)


def measures(
    unit: Products, plain: Products, centered: Products, counts: Any, similar: tuple[Any, Any]
) -> dict[str, NDArray[np.float64]]:
    """All measures of change but `jsd` from inner products of sums; no pair of occurrences is formed.

    With the unit vectors u of n old and v of m new occurrences, their plain vectors x and y, U = sum u and V = sum v:

    - `apd`, average pairwise distance (Giulianelli et al. 2020): 1 - U.V / (n m), which is the mean of 1 - cos over all
      n m pairs of an old and a new occurrence.
    - `apd_excess`: apd minus the mean of 1 - `selfsim_old` and 1 - `selfsim_new`. A word of many uses has a high apd
      without any change; this is half the energy distance (Székely & Rizzo 2013) with the cosine distance.
    - `prt`: 1 - cos(mean x, mean y), the cosine distance of the prototypes.
    - `inverse_prt`: 1 / cos(mean x, mean y), PRT of Kutuzov & Giulianelli 2020; null where the cosine is not above 0.
    - `prt_centered`: `prt` after the mean of each side over all compared words is subtracted from its vectors, so that
      a shift that all words share (genre, spelling) does not count.
    - `selfsim_old` = (U.U - n) / (n^2 - n), the mean cosine of two occurrences of one side (Ethayarajh 2019),
      `selfsim_new`, and `selfsim_change`, new minus old: below 0 the word is used in more different ways.

    `counts`, `similar`: pairs (old, new) of arrays, the second the self-similarities.
    """
    n_old, n_new = (np.asarray(each, np.float64) for each in counts)
    apd = 1 - unit.both / (n_old * n_new)
    similar_old, similar_new = similar
    cosine = plain.cosine
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(cosine > 0, 1 / cosine, np.nan)
    return {
        "apd": apd,
        "apd_excess": apd - 1 + (similar_old + similar_new) / 2,
        "prt": 1 - cosine,
        "inverse_prt": inverse,
        "prt_centered": 1 - centered.cosine,
        "selfsim_old": similar_old,
        "selfsim_new": similar_new,
        "selfsim_change": similar_new - similar_old,
    }


def measures_of_sums(
    sums: Sums, centers: NDArray[np.float64], old: int, new: int, words: NDArray[np.int64] | None = None
) -> dict[str, NDArray[np.float64]]:
    """The measures of words between two periods; float64 [word] each.

    `centers`: float64 [period, feature], the mean plain vector of each period over all compared words.
    """
    starts = range(0, len(sums.counts if words is None else words), BLOCK_WORDS)
    spans = [slice(start, start + BLOCK_WORDS) for start in starts]
    blocks = [_measures_of_block(sums, centers, old, new, span if words is None else words[span]) for span in spans]
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def _measures_of_block(
    sums: Sums, centers: NDArray[np.float64], old: int, new: int, words: NDArray[np.int64] | slice
) -> dict[str, NDArray[np.float64]]:
    def float64(values: NDArray[Any]) -> NDArray[np.float64]:
        return values[words].astype(np.float64)

    counts = float64(sums.counts[:, old]), float64(sums.counts[:, new])
    unit = Products.of(float64(sums.unit(old)), float64(sums.unit(new)))
    plain_old, plain_new = float64(sums.plain(old)), float64(sums.plain(new))
    plain = Products.of(plain_old, plain_new)
    centered = plain.less(plain_old, plain_new, centers[old], centers[new], counts)
    similar_old = mean_cosine(unit.old, float64(sums.n_nonzero[:, old]), counts[0])
    similar_new = mean_cosine(unit.new, float64(sums.n_nonzero[:, new]), counts[1])
    return measures(unit, plain, centered, counts, (similar_old, similar_new))
