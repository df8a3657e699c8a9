"""How the words that two corpora share change between them: pairwise and prototype distance, divergence of senses."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.analysis.geometry.cosine import WordSums
from embstore.analysis.neighbors.senses import kmeans
from embstore.analysis.scan import gather_finite, scan, selected
from embstore.arguments import Count, Positive, Range, checked
from embstore.config import settings
from embstore.devices import thread_count
from embstore.errors import InvalidValueError, quoted
from embstore.progress import Counter, reporting
from embstore.store import Selection, Store
from embstore.store.index import SPECIAL
from embstore.store.layout import Layers
from embstore.store.vectors import VALUE_DTYPE
from embstore.vectors.linalg import unit_rows

METRICS = ("apd", "prt", "jsd")
MIN_SENSES = 20  # occurrences of a word on each side, below which shares of clusters are noise
LEVEL = 0.05  # of what lies outside an interval
PART_TIMES = 64  # rows of a part for each word, so that adding up states takes little
BLOCK_NBYTES = 8 * 2**20  # of stored vectors: a word's rows of a block are read one after the other
BLOCK_WEIGHTS = 2**21  # of resamples that are computed together: 16 MiB
WHOLE = 0.25  # above this share of the rows the whole layer is scanned, which is faster than gathering


@checked
def measure_change(
    old: Store | Selection,
    new: Store | Selection,
    *,
    words: Sequence[str] | None = None,
    layers: Layers = None,
    min_occurrences: Positive = 10,
    resamples: Count = 200,
    sample: Annotated[int, Range(2)] = 500,
    n_clusters: Annotated[int, Range(2)] = 5,
    seed: Count = 0,
) -> pl.DataFrame:
    """Measure how every word that two corpora, or two selections of one store, share changes between them.

    With the unit vectors u of n old and v of m new occurrences, U and V their sums, and x and y the vectors as stored:
    `apd`, the average pairwise distance (Giulianelli et al. 2020), is 1 - U.V / (n m), the mean of 1 - cos over all
    n m pairs; `prt` is 1 - cos(mean x, mean y), the distance of the prototypes; `jsd` is the Jensen-Shannon divergence
    in bits of the shares of clusters, by k-means over the occurrences of both sides together, where each side has 20 or
    more. `apd` and `prt` are of all occurrences and take one pass over each layer; no pairs are formed.

    Parameters
    ----------
    old, new : Store or Selection
        What one model made of two corpora, or of two periods: `store.select(where="year < 1900")`.
    words : sequence of str, optional
        Only these words; by default all that have `min_occurrences` on each side.
    layers : int or sequence of int, optional
        All layers of both by default.
    min_occurrences : int
        Words with fewer occurrences on a side are left out.
    resamples : int
        Of the bootstrap, over documents where the corpora have them, else over sentences; 0 for no intervals.
    sample : int
        Intervals and clusters are of at most this many occurrences of a word on each side, drawn at random.
    n_clusters : int
        Of k-means for `jsd`.
    seed : int
        Of the sample, the clusters and the bootstrap.

    Returns
    -------
    polars.DataFrame
        `word, layer, metric, value, low, high, count_old, count_new`, with percentile intervals of 95 %; null where a
        value is not defined or a side has one document.

    Raises
    ------
    InvalidValueError
        For stores of different models or layers, and where no word has enough occurrences.
    MissingRowsError, NonFiniteError
        For rows that are not written yet, or hold values that are not finite.
    """
    sides = selected(old, layers), selected(new, layers)
    shared = _shared(sides, words, min_occurrences)
    n_read = sum(len(side.rows) for side in shared.sides) * len(sides[0].layers)
    with reporting(settings().progress, total=n_read, unit="vectors", label="change") as report:
        values = {layer: _distances(shared, layer, Counter(report).add) for layer in sides[0].layers}
    frames = []
    n_words = len(shared.words)
    with (
        reporting(settings().progress, total=n_words * len(values), unit="words", label="resamples") as report,
        ThreadPoolExecutor(thread_count(settings().threads), "embstore-change") as pool,
    ):
        progress = Counter(report).add
        for layer, distances in values.items():
            one = partial(_resampled, shared, layer, resamples=resamples, sample=sample, k=n_clusters, seed=seed)
            tested = []
            for result in pool.map(one, range(n_words)):
                tested.append(result)
                progress(1)
            for metric in METRICS:
                jsd = [divergence for divergence, _ in tested]
                ends = np.array([intervals.get(metric, (np.nan, np.nan)) for _, intervals in tested])
                columns = {
                    "word": pl.Series(shared.words, dtype=pl.String),
                    "layer": pl.repeat(layer, n_words, eager=True, dtype=pl.Int64),
                    "metric": pl.repeat(metric, n_words, eager=True),
                    "value": distances.get(metric, np.array(jsd)),
                    "low": ends[:, 0],
                    "high": ends[:, 1],
                    "count_old": shared.counts[0],
                    "count_new": shared.counts[1],
                }
                frames.append(pl.DataFrame(columns))
    return pl.concat(frames).with_columns(pl.col("value", "low", "high").fill_nan(None))


@dataclass(frozen=True)
class _Side:
    """The occurrences of the shared words on one side: int64 `rows` ascending, the `words` and the `units` of each.

    `units`: the document or sentence of each, which is resampled as one. `starts`, `order`: the places of each word.
    """

    store: Store
    is_whole: bool
    rows: NDArray[np.int64]
    words: NDArray[np.int64]
    units: NDArray[np.int64]
    starts: NDArray[np.int64]
    order: NDArray[np.int64]


@dataclass(frozen=True)
class _Shared:
    """The words that are compared, their counts on both sides, int64 [2, word], and the sides."""

    words: tuple[str, ...]
    counts: NDArray[np.int64]
    sides: tuple[_Side, ...]


def _shared(sides: tuple[Selection, Selection], words: Sequence[str] | None, min_occurrences: int) -> _Shared:
    """The words with enough occurrences on both sides. Raises InvalidValueError for stores that cannot be compared."""
    stores = [side.store for side in sides]
    models = [store.metadata.model for store in stores]
    for what, of_old, of_new in (
        ("hidden size", *(store.hidden_size for store in stores)),
        ("layers", *(side.layers for side in sides)),
        ("model", *(model.get("weights_sha256") or model.get("name") for model in models)),
    ):
        if of_old != of_new:
            raise InvalidValueError(
                f"{stores[0].path} and {stores[1].path} differ in their {what}, {of_old} and {of_new}: compare what "
                "one model made"
            )
    known = set(stores[1].index.words)
    forms = [form for form in stores[0].index.words if form in known]
    if words is not None:
        words = [words] if isinstance(words, str) else list(words)
        if missing := [word for word in words if word not in set(forms)]:
            raise InvalidValueError(f"not both sides have the word {quoted(missing[0])}: leave it out")
        chosen = set(words)
        forms = [form for form in forms if form in chosen]
    place = {form: number for number, form in enumerate(forms)}
    several = any(store.index.n_documents < len(store.index.texts) for store in stores)
    found, counts = [], np.zeros((2, len(forms)), np.int64)
    for number, side in enumerate(sides):
        index, rows = side.store.index, np.unique(side.rows)
        of_type = np.array([place.get(form, -1) for form in index.words], np.int64)
        of_row = of_type[index.type[rows]]
        if SPECIAL in index.labels:
            of_row[index.labels[SPECIAL].codes[rows] >= 0] = -1
        counts[number] = np.bincount(of_row[of_row >= 0], minlength=len(forms))
        found.append((rows, of_row))
    enough = np.flatnonzero(counts.min(0) >= min_occurrences)
    if not len(enough):
        raise InvalidValueError(
            f"no word has {min_occurrences} occurrences on both sides: allow fewer (min_occurrences), or take more text"
        )
    renumbered = np.full(len(forms) + 1, -1)  # the last one is that of no form, -1
    renumbered[enough] = np.arange(len(enough))
    shared_sides = []
    for side, (rows, of_row) in zip(sides, found, strict=True):
        numbers = renumbered[of_row]
        rows, numbers = rows[numbers >= 0], numbers[numbers >= 0]
        units = np.asarray(side.store.index.sentence[rows], np.int64)
        if several:
            units = np.asarray(side.store.index.document_of(units), np.int64)
        starts = np.append(0, np.cumsum(np.bincount(numbers, minlength=len(enough))))
        order = np.argsort(numbers, kind="stable")
        shared_sides.append(_Side(side.store, side.is_whole, rows, numbers, units, starts, order))
    return _Shared(tuple(forms[number] for number in enough), counts[:, enough], tuple(shared_sides))


def _distances(shared: _Shared, layer: int, report: Any) -> dict[str, NDArray[np.float64]]:
    """The distances `apd` and `prt` of all words at a layer, summed in as many passes as the memory needs."""
    size, n_words = shared.sides[0].store.hidden_size, len(shared.words)
    step = max(1, settings().nbytes // 2 // (2 * 2 * size * 8 * (1 + thread_count(settings().threads))))
    parts = []
    for start in range(0, n_words, step):
        stop = min(start + step, n_words)
        sums = [_sums(side, layer, start, stop, shared.counts[place]) for place, side in enumerate(shared.sides)]
        unit, plain = (_products(*(each[:, half] for each in sums)) for half in (slice(size), slice(size, None)))
        n_old, n_new = shared.counts[:, start:stop].astype(np.float64)
        parts.append((1 - unit[1] / (n_old * n_new), 1 - _cosine(plain)))
        report(sum(int(((side.words >= start) & (side.words < stop)).sum()) for side in shared.sides))
    apd, prt = (np.concatenate(values) for values in zip(*parts, strict=True))
    return {"apd": apd, "prt": prt}


def _sums(side: _Side, layer: int, start: int, stop: int, counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """The sums of unit and of plain vectors of the words from `start` to `stop`, [word, 2 feature]."""
    wanted = (side.words >= start) & (side.words < stop)
    rows, groups = side.rows[wanted], side.words[wanted] - start
    if side.is_whole and len(rows) >= WHOLE * side.store.n_rows:
        every = np.full(side.store.n_rows, -1)
        every[rows] = groups
        selection, groups = Selection(side.store, layers=layer), every
    else:
        selection = Selection(side.store, rows=rows, layers=layer)
    nbytes_of_row = side.store.hidden_size * VALUE_DTYPE[side.store.dtype].itemsize
    reduced = scan(
        selection,
        {"sums": WordSums(groups, counts[start:stop])},
        parts=max(2, len(groups) // (PART_TIMES * (stop - start))),
        block_rows=max(1, BLOCK_NBYTES // nbytes_of_row),
        max_states=4,
        device="cpu",
        threads=settings().threads,
    )
    return np.asarray(reduced[layer]["sums"][0], np.float64)


Products = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


def _products(old: NDArray[np.float64], new: NDArray[np.float64]) -> Products:
    """The inner products of sums [n, feature]: old with old, old with new, new with new."""
    return tuple(np.einsum("ij,ij->i", *pair) for pair in ((old, old), (old, new), (new, new)))


def _cosine(products: Products) -> NDArray[np.float64]:
    """The cosine of both sums; NaN where one is zero."""
    old, both, new = products
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.clip(both / np.sqrt(old * new), -1, 1)


def _resampled(
    shared: _Shared, layer: int, number: int, *, resamples: int, sample: int, k: int, seed: int
) -> tuple[float, dict[str, tuple[float, float]]]:
    """The divergence of senses of a word, NaN for too few, and the intervals of all measures."""
    word, vectors, units = shared.words[number], [], []
    random = _random_of(seed, word, "sample")
    for side in shared.sides:
        places = side.order[side.starts[number] : side.starts[number + 1]]
        if len(places) > sample:
            places = np.sort(random.choice(places, sample, replace=False))
        vectors.append(gather_finite(side.store, side.rows[places], layer).astype(np.float64))
        units.append(side.units[places])
    is_new = np.repeat([False, True], [len(part) for part in vectors])
    every, clusters = np.concatenate(vectors), None
    if shared.counts[:, number].min() >= MIN_SENSES:
        clusters = kmeans(unit_rows(every), min(k, len(every)), seed=seed)
    word_units = Units.of(every, is_new, np.concatenate(units), clusters)
    jsd = word_units.measures(~word_units.is_new[None], word_units.is_new[None]).get("jsd", np.array([np.nan]))
    return float(jsd[0]), word_units.intervals(resamples, _random_of(seed, word, "resample")) if resamples else {}


def _random_of(seed: int, word: str, what: str) -> np.random.Generator:
    """A generator that depends on the seed and the word alone, so that other words and layers do not matter."""
    return np.random.default_rng([seed, zlib.crc32(word.encode()), zlib.crc32(what.encode())])


@dataclass(frozen=True)
class Units:
    """Vectors of a word, summed by side and document or sentence: what is resampled as one.

    `is_new`: bool [unit]. `counts`: float64 [unit]. `unit`, `plain`: float64 [unit, feature]. `senses`: float64
    [unit, cluster], the occurrences of each unit in each cluster; None without clusters.
    """

    is_new: NDArray[np.bool_]
    counts: NDArray[np.float64]
    unit: NDArray[np.float64]
    plain: NDArray[np.float64]
    senses: NDArray[np.float64] | None

    @classmethod
    def of(
        cls,
        vectors: NDArray[np.float64],
        is_new: NDArray[np.bool_],
        units: NDArray[np.int64],
        clusters: NDArray[np.int64] | None,
    ) -> Units:
        """Sum vectors [n, feature] whose sides and units are given."""
        names, numbers = np.unique(units * 2 + is_new, return_inverse=True)
        member = np.zeros((len(names), len(vectors)))
        member[numbers, np.arange(len(vectors))] = 1
        senses = None if clusters is None else member @ (clusters[:, None] == np.arange(clusters.max() + 1))
        return cls(names % 2 == 1, member.sum(1), member @ unit_rows(vectors), member @ vectors, senses)

    def measures(self, old: NDArray[Any], new: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
        """The measures for weights [p, unit] of both sides, float64 [p] each."""
        unit, plain = self._weighted(self.unit, old, new), self._weighted(self.plain, old, new)
        measures = {"apd": 1 - unit[1] / ((old @ self.counts) * (new @ self.counts)), "prt": 1 - _cosine(plain)}
        if self.senses is not None:
            measures["jsd"] = jensen_shannon(old @ self.senses, new @ self.senses)
        return measures

    @staticmethod
    def _weighted(sums: NDArray[np.float64], old: NDArray[Any], new: NDArray[Any]) -> Products:
        """The inner products of weighted sums; over their Gram matrix where there are fewer units than features."""
        if len(sums) > sums.shape[1]:
            return _products(old @ sums, new @ sums)
        left, right = old @ (gram := sums @ sums.T), new @ gram
        pairs = ((left, old), (left, new), (right, new))
        return tuple(np.einsum("ij,ij->i", *pair) for pair in pairs)

    def intervals(self, count: int, random: np.random.Generator) -> dict[str, tuple[float, float]]:
        """Percentile intervals of 95 % of each measure by the bootstrap over the units of each side.

        None for a side of one unit, as every resample would be that unit.
        """
        if min(self.is_new.sum(), (~self.is_new).sum()) < 2:
            return {}
        step, parts = max(1, BLOCK_WEIGHTS // len(self.is_new)), []
        for n_rows in (min(step, count - start) for start in range(0, count, step)):
            drawn = []
            for side in (~self.is_new, self.is_new):
                weights = np.zeros((n_rows, len(side)))
                weights[:, side] = random.multinomial(side.sum(), np.full(side.sum(), 1 / side.sum()), n_rows)
                drawn.append(weights)
            parts.append(self.measures(*drawn))
        ends = {}
        for name in parts[0]:
            values = np.concatenate([part[name] for part in parts])
            values = values[np.isfinite(values)]
            if len(values):
                ends[name] = tuple(np.quantile(values, [LEVEL / 2, 1 - LEVEL / 2]).tolist())
        return ends


def jensen_shannon(old: NDArray[np.float64], new: NDArray[np.float64]) -> NDArray[np.float64]:
    """The Jensen-Shannon divergence in bits, 0 to 1, of counts [..., cluster] on two sides (Lin 1991).

    H((p + q) / 2) - (H(p) + H(q)) / 2 with the entropy H; its root is the distance of scipy.
    """

    def entropy(p: NDArray[np.float64]) -> NDArray[np.float64]:
        logs = np.log2(p, out=np.zeros_like(p), where=p > 0)
        return np.asarray(-(p * logs).sum(-1))

    p, q = (each / each.sum(-1, keepdims=True) for each in (old, new))
    return np.maximum(entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2, 0)
