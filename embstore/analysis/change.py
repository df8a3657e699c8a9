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

from embstore.analysis.neighbors.senses import kmeans
from embstore.analysis.scan import gather_finite, selected
from embstore.arguments import Count, Positive, Range, checked
from embstore.config import settings
from embstore.devices import thread_count
from embstore.errors import InvalidValueError, quoted
from embstore.intervals import MIN_UNITS, Interval, expanded, worth
from embstore.progress import Counter, reporting
from embstore.store import Selection, Store
from embstore.store.index import SPECIAL
from embstore.store.layout import Layers
from embstore.vectors.linalg import unit_rows

METRICS = ("apd", "prt", "jsd")
MIN_SENSES = 20  # occurrences of a word on each side, below which shares of clusters are noise
BLOCK_ROWS = 8192  # that are summed together: 50 MB of 768 features in float64
BLOCK_WEIGHTS = 2**21  # of resamples that are computed together: 16 MiB

Floats = NDArray[np.float64]


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
    more. `apd` and `prt` are of all occurrences; no pairs are formed.

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
        `word, layer, metric, value, low, high, count_old, count_new`, with intervals of 95 %; null where a value
        is not defined or a side has fewer than five documents.

    Raises
    ------
    InvalidValueError
        For stores of different models or layers, and where no word has enough occurrences.
    MissingRowsError, NonFiniteError
        For rows that are not written yet, or hold values that are not finite.
    """
    sides = selected(old, layers), selected(new, layers)
    _require_comparable(sides)
    occurrences = [_occurrences(side) for side in sides]
    forms = _shared_forms(occurrences, words, min_occurrences)
    pairs = [(form, tuple(side[form] for side in occurrences)) for form in forms]
    rows = []
    with (
        reporting(settings().progress, total=len(forms) * len(sides[0].layers), unit="words", label="change") as report,
        ThreadPoolExecutor(thread_count(settings().threads), "embstore-change") as pool,
    ):
        progress = Counter(report).add
        for layer in sides[0].layers:
            change = partial(_change, sides, layer, resamples, sample, n_clusters, seed)
            for (form, (n_old, n_new)), measures in zip(pairs, pool.map(change, pairs), strict=True):
                for metric in METRICS:
                    value, (low, high) = measures.get(metric, (None, (None, None)))
                    rows.append((form, layer, metric, value, low, high, len(n_old), len(n_new)))
                progress(1)
    columns = ("word", "layer", "metric", "value", "low", "high", "count_old", "count_new")
    kinds = (pl.String, pl.Int64, pl.String, *[pl.Float64] * 3, pl.Int64, pl.Int64)
    frame = pl.DataFrame(rows, schema=dict(zip(columns, kinds, strict=True)), orient="row")
    order = pl.col("metric").replace_strict({name: number for number, name in enumerate(METRICS)})
    return frame.sort("layer", order, maintain_order=True).with_columns(pl.col("value", "low", "high").fill_nan(None))


def _require_comparable(sides: tuple[Selection, Selection]) -> None:
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


def _occurrences(side: Selection) -> dict[str, NDArray[np.int64]]:
    """The rows of each word of a selection, each row once, special tokens left out."""
    index, rows = side.store.index, np.unique(side.rows)
    if SPECIAL in index.labels:
        rows = rows[index.labels[SPECIAL].codes[rows] < 0]
    types = index.type[rows]
    order = np.argsort(types, kind="stable")
    names, starts = np.unique(types[order], return_index=True)
    return {index.words[name]: part for name, part in zip(names, np.split(rows[order], starts[1:]), strict=True)}


def _shared_forms(
    sides: list[dict[str, NDArray[np.int64]]], words: Sequence[str] | None, min_occurrences: int
) -> list[str]:
    """The words with enough occurrences on both sides, in the order of the first."""
    old, new = sides
    if words is not None:
        words = [words] if isinstance(words, str) else list(words)
        if missing := [word for word in words if word not in old or word not in new]:
            raise InvalidValueError(f"not both sides have the word {quoted(missing[0])}: leave it out")
    chosen = old if words is None else set(words)
    forms = [form for form in old if form in chosen and min(len(old[form]), len(new.get(form, ()))) >= min_occurrences]
    if not forms:
        raise InvalidValueError(
            f"no word has {min_occurrences} occurrences on both sides: allow fewer (min_occurrences), or take more text"
        )
    return forms


def _change(
    sides: tuple[Selection, Selection],
    layer: int,
    resamples: int,
    sample: int,
    n_clusters: int,
    seed: int,
    word: tuple[str, tuple[NDArray[np.int64], ...]],
) -> dict[str, tuple[float, Interval]]:
    """The value and the interval of each measure of a word, given its rows on both sides."""
    form, rows = word
    several = any(side.store.index.n_documents < len(side.store.index.text) for side in sides)
    random = _random_of(seed, form, "sample")
    sums, vectors, units = [], [], []
    for side, of_side in zip(sides, rows, strict=True):
        sums.append(_sums(side.store, of_side, layer))
        drawn = np.sort(random.choice(of_side, sample, replace=False)) if len(of_side) > sample else of_side
        vectors.append(gather_finite(side.store, drawn, layer).astype(np.float64))
        sentences = np.asarray(side.store.index.sentence[drawn], np.int64)
        units.append(np.asarray(side.store.index.document_of(sentences), np.int64) if several else sentences)
    unit, (old_old, both, new_new) = (_products(*(side[part][None] for side in sums)) for part in (0, 1))
    length = np.sqrt(old_old * new_new)[0]
    cosine = np.clip(both[0] / length, -1, 1) if length else np.nan
    values = {"apd": 1 - unit[1][0] / (len(rows[0]) * len(rows[1])), "prt": 1 - cosine}
    is_new, every, clusters = np.repeat([False, True], [len(part) for part in vectors]), np.concatenate(vectors), None
    if min(len(part) for part in rows) >= MIN_SENSES:
        clusters = kmeans(unit_rows(every), min(n_clusters, len(every)), seed=seed)
    word_units = Units.of(every, is_new, np.concatenate(units), clusters)
    if clusters is not None:
        values["jsd"] = word_units.measures(~word_units.is_new[None], word_units.is_new[None])["jsd"][0]
    intervals = word_units.intervals(resamples, _random_of(seed, form, "resample")) if resamples else {}
    return {name: (float(value), intervals.get(name, (np.nan, np.nan))) for name, value in values.items()}


def _sums(store: Store, rows: NDArray[np.int64], layer: int) -> Floats:
    """The sums of the unit and of the plain vectors of some rows, [2, feature]."""
    sums = np.zeros((2, store.hidden_size))
    for start in range(0, len(rows), BLOCK_ROWS):
        vectors = gather_finite(store, rows[start : start + BLOCK_ROWS], layer).astype(np.float64)
        sums += unit_rows(vectors).sum(0), vectors.sum(0)
    return sums


def _random_of(seed: int, word: str, what: str) -> np.random.Generator:
    """A generator that depends on the seed and the word alone, so that other words and layers do not matter."""
    return np.random.default_rng([seed, zlib.crc32(word.encode()), zlib.crc32(what.encode())])


Products = tuple[Floats, Floats, Floats]


def _products(old: Floats, new: Floats) -> Products:
    """The inner products of sums [n, feature]: old with old, old with new, new with new."""
    return tuple(np.einsum("ij,ij->i", *pair) for pair in ((old, old), (old, new), (new, new)))


@dataclass(frozen=True)
class Units:
    """Vectors of a word, summed by side and document or sentence: what is resampled as one.

    `is_new`: bool [unit]. `counts`: float64 [unit]. `unit`, `plain`: float64 [unit, feature]. `senses`: float64
    [unit, cluster], the occurrences of each unit in each cluster; None without clusters.
    """

    is_new: NDArray[np.bool_]
    counts: Floats
    unit: Floats
    plain: Floats
    senses: Floats | None

    @classmethod
    def of(
        cls, vectors: Floats, is_new: NDArray[np.bool_], units: NDArray[np.int64], clusters: NDArray[np.int64] | None
    ) -> Units:
        """Sum vectors [n, feature] whose sides and units are given."""
        names, numbers = np.unique(units * 2 + is_new, return_inverse=True)
        member = np.zeros((len(names), len(vectors)))
        member[numbers, np.arange(len(vectors))] = 1
        senses = None if clusters is None else member @ (clusters[:, None] == np.arange(clusters.max() + 1))
        return cls(names % 2 == 1, member.sum(1), member @ unit_rows(vectors), member @ vectors, senses)

    def measures(self, old: NDArray[Any], new: NDArray[Any]) -> dict[str, Floats]:
        """The measures for weights [p, unit] of both sides; prototypes have lengths of pairs of different units."""
        unit, (old_old, both, new_new) = (self._weighted(sums, old, new) for sums in (self.unit, self.plain))
        n_pairs, square = (old @ self.counts) * (new @ self.counts), np.square(self.plain).sum(1)
        with np.errstate(invalid="ignore", divide="ignore"):  # NaN without a length
            lengths = [
                np.sqrt((product - w**2 @ square) / ((w @ self.counts) ** 2 - w**2 @ self.counts**2))
                for w, product in ((old, old_old), (new, new_new))
            ]
            length = lengths[0] * lengths[1]
            prt = 1 - both / n_pairs / np.where(length > 0, length, np.nan)
        measures = {"apd": 1 - unit[1] / n_pairs, "prt": prt}
        if self.senses is not None:
            measures["jsd"] = jensen_shannon(old @ self.senses, new @ self.senses)
        return measures

    @staticmethod
    def _weighted(sums: Floats, old: NDArray[Any], new: NDArray[Any]) -> Products:
        """The inner products of weighted sums; over their Gram matrix where there are fewer units than features."""
        if len(sums) > sums.shape[1]:
            return _products(old @ sums, new @ sums)
        left, right = old @ (gram := sums @ sums.T), new @ gram
        pairs = ((left, old), (left, new), (right, new))
        return tuple(np.einsum("ij,ij->i", *pair) for pair in pairs)

    def intervals(self, count: int, random: np.random.Generator) -> dict[str, Interval]:
        """Intervals of 95 % of each measure by the bootstrap over the units of each side; none of fewer than five.

        Noise makes `prt` and `jsd` too high, so that the value of few occurrences may be above its interval. That of
        `jsd` is moved down by twice the bias that the resamples show; there is none where fewer than five units are
        outside the largest cluster of their side, as resamples of one cluster are all alike.
        """
        if min(self.is_new.sum(), (~self.is_new).sum()) < MIN_UNITS:
            return {}
        least = min(worth(self.counts[side]) for side in (self.is_new, ~self.is_new))
        values = self.measures(~self.is_new[None], self.is_new[None])
        step, parts = max(1, BLOCK_WEIGHTS // len(self.is_new)), []
        for n_rows in (min(step, count - start) for start in range(0, count, step)):
            drawn = []
            for side in (~self.is_new, self.is_new):
                weights = np.zeros((n_rows, len(side)))
                weights[:, side] = random.multinomial(side.sum(), np.full(side.sum(), 1 / side.sum()), n_rows)
                drawn.append(weights)
            parts.append(self.measures(*drawn))
        ends: dict[str, Interval] = {}
        for name, (value,) in values.items():
            resampled = np.concatenate([part[name] for part in parts])
            low, high = expanded(resampled, least)
            if low is not None and high is not None and (name != "jsd" or self._n_outside >= MIN_UNITS):
                bias = 2 * (resampled.mean() - value) if name == "jsd" else 0.0
                ends[name] = max(0.0, low - bias), max(0.0, high - bias)
        return ends

    @property
    def _n_outside(self) -> int:
        """How many units have occurrences outside the cluster that most occurrences of their side are in."""
        assert self.senses is not None
        sides = (self.senses[side] for side in (~self.is_new, self.is_new))
        return sum(int((np.delete(side, side.sum(0).argmax(), 1) > 0).any(1).sum()) for side in sides)


def jensen_shannon(old: Floats, new: Floats) -> Floats:
    """The Jensen-Shannon divergence in bits, 0 to 1, of counts [..., cluster] on two sides (Lin 1991).

    H((p + q) / 2) - (H(p) + H(q)) / 2 with the entropy H; its root is the distance of scipy.
    """

    def entropy(p: Floats) -> Floats:
        logs = np.log2(p, out=np.zeros_like(p), where=p > 0)
        return np.asarray(-(p * logs).sum(-1))

    p, q = (each / each.sum(-1, keepdims=True) for each in (old, new))
    return np.maximum(entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2, 0)
