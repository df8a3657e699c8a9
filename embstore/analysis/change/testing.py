"""Test the words of a comparison in threads: their occurrences are read word by word, a sample of the frequent ones."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from embstore.analysis.change.occurrences import EXCHANGE, Compared
from embstore.analysis.change.significance import Units, intervals, p_values, sense_clusters
from embstore.analysis.change.sums import JSD
from embstore.analysis.scan import gather_finite
from embstore.arguments import checked
from embstore.devices import thread_count
from embstore.errors import InvalidValueError, check_choice, check_whole

MAX_SEED = 2**63 - 1
Result = TypeVar("Result")


@checked
@dataclass(frozen=True, kw_only=True)
class ChangeTests:
    """How changes are tested.

    `permutations`, `resamples`: of p-values and of bootstrap intervals; 0 leaves them out. `sample`: at most this many
    occurrences of a word and period are tested and clustered, drawn with `seed`; measures are those of all.
    `n_clusters`: of k-means for `jsd`, of words with `min_senses` occurrences in both periods. `matched`: the number of
    words of like frequency that each is compared with. `exchange`: "document" or "sentence", what is exchanged between
    periods as one; by default documents, where any has two sentences or more.
    """

    permutations: int = 1000
    resamples: int = 200
    sample: int = 500
    n_clusters: int = 5
    min_senses: int = 20
    matched: int = 50
    exchange: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("permutations", 0), ("resamples", 0), ("sample", 2), ("n_clusters", 2), ("min_senses", 2)):
            check_whole(name, getattr(self, name), least, 10**6)
        check_whole("matched", self.matched, 2)
        check_whole("seed", self.seed, 0, MAX_SEED)
        if self.exchange is not None:
            check_choice("exchange", self.exchange, EXCHANGE)
        if 0 < self.permutations < 19:
            raise InvalidValueError(
                f"permutations {self.permutations} cannot give a p-value of 0.05: give 19 or more, or 0 for none"
            )


@dataclass(frozen=True)
class Drawn:
    """The tested occurrences of a word in a layer: `vectors` float64 [n, feature], `periods`, `units` int64 [n].

    `rows`: int64 [n], and `parts` [n], the number of the store of each. `clusters`: int64 [n], None for too few.
    """

    vectors: NDArray[np.float64]
    periods: NDArray[np.int64]
    units: NDArray[np.int64]
    rows: NDArray[np.int64]
    parts: NDArray[np.int64]
    clusters: NDArray[np.int64] | None

    def between(self, old: int, new: int, centers: NDArray[np.float64], *, min_senses: int) -> Units:
        """The units of two periods."""
        chosen = (self.periods == old) | (self.periods == new)
        is_new = self.periods[chosen] == new
        few = min(is_new.sum(), (~is_new).sum()) < min_senses
        clusters = None if self.clusters is None or few else self.clusters[chosen]
        return Units.of(self.vectors[chosen], is_new, self.units[chosen], centers[[old, new]], clusters)


def random_of(seed: int, word: str, what: str = "") -> np.random.Generator:
    """A generator that depends on the seed and the word alone, so that other words and layers do not matter."""
    return np.random.default_rng([seed, zlib.crc32(word.encode()), zlib.crc32(what.encode())])


def draw(compared: Compared, number: int, layer: int, tests: ChangeTests, *, clustered: bool) -> Drawn:
    """Read a word's occurrences in a layer, `tests.sample` of each period at most; the same ones in every layer."""
    word = compared.words[number]
    random = random_of(tests.seed, word, "sample")
    vectors, periods, units, rows, parts = [], [], [], [], []
    for part_number, (part, positions) in enumerate(compared.of_word(number)):
        is_drawn = np.zeros(len(positions), bool)
        for period in np.unique(part.periods[positions]):
            members = np.flatnonzero(part.periods[positions] == period)
            if len(members) > tests.sample:
                members = random.choice(members, tests.sample, replace=False)
            is_drawn[members] = True
        drawn = positions[is_drawn]
        vectors.append(gather_finite(part.store, part.rows[drawn], layer).astype(np.float64))
        periods.append(part.periods[drawn])
        units.append(part.units[drawn])
        rows.append(part.rows[drawn])
        parts.append(np.full(len(drawn), part_number))
    together = np.concatenate(vectors)
    n_second = np.sort(compared.counts[number])[-2]  # of the period with the second most occurrences
    clusters = None
    if clustered and n_second >= tests.min_senses:  # else no pair of periods has enough
        clusters = sense_clusters(together, tests.n_clusters, tests.seed)
    return Drawn(
        vectors=together,
        periods=np.concatenate(periods),
        units=np.concatenate(units),
        rows=np.concatenate(rows),
        parts=np.concatenate(parts),
        clusters=clusters,
    )


@dataclass(frozen=True)
class Tested:
    """What the tests of a word between two periods find, by measure; `jsd` None for too few; `n_exchanges`."""

    p: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    jsd: float | None
    n_exchanges: int


def tested(units: Units, word: str, tests: ChangeTests) -> Tested:
    """Test a word between two periods; the same permutations in every layer."""
    observed = units.observed
    return Tested(
        p=p_values(units, tests.permutations, random_of(tests.seed, word, "exchange")) if tests.permutations else {},
        intervals=intervals(units, tests.resamples, random_of(tests.seed, word, "resample")) if tests.resamples else {},
        jsd=float(observed[JSD][0]) if JSD in observed else None,
        n_exchanges=units.n_exchanges,
    )


def each_word(
    function: Callable[..., Result], numbers: Sequence[int], *, threads: int | None, report: Callable[[int], object]
) -> Iterator[Result]:
    """Yield the function of each word in their order, computed in threads."""
    n_threads = thread_count(threads)
    with ThreadPoolExecutor(n_threads, "embstore-change") as pool:
        for found in pool.map(function, numbers):
            report(1)
            yield found
