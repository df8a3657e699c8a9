"""Change over many periods: series of measures with intervals, and the periods at which words change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.analysis.change.occurrences import Compared, compare_periods
from embstore.analysis.change.significance import change_points, false_discovery, intervals
from embstore.analysis.change.sums import JSD, METRICS, Sums, measures_of_sums, scan_sums
from embstore.analysis.change.testing import ChangeTests, draw, each_word, random_of
from embstore.arguments import checked
from embstore.errors import check_choice, check_whole
from embstore.progress import Progress, reporting
from embstore.sizes import parse_nbytes
from embstore.store import Selection, Store
from embstore.store.framed import Framed
from embstore.store.layout import Layer, Layers, resolve_layer
from embstore.vectors.linalg import unit_rows

SUMMED = tuple(metric for metric in METRICS if metric != JSD)
CHANGE_POINT = "change_point"
SCHEMA = {
    "word": pl.String,
    "layer": pl.Int64,
    "metric": pl.String,
    "period": pl.String,
    "reference": pl.String,
    **dict.fromkeys(("value", "low", "high"), pl.Float64),
    "count_old": pl.Int64,
    "count_new": pl.Int64,
}
POINTS = {"word": pl.String, "layer": pl.Int64, "period": pl.String, "gain": pl.Float64, "p": pl.Float64}


@dataclass(frozen=True, eq=False)
class ChangeSeries(Framed):
    """The change of words over periods.

    `frame`: `word, layer, metric, period, reference, value, low, high, count_old, count_new`: the measure between a
    period and an earlier one, `reference`: the period before it in which the word has enough occurrences, and the first
    such one. `points`: the most likely change point of each word and layer, and further ones at p <= 0.05: `word,
    layer, period` (the first after the change), `gain, p, q`; q is adjusted over the words of the layer.
    """

    frame: pl.DataFrame
    points: pl.DataFrame
    skipped: pl.DataFrame
    periods: tuple[str, ...]
    exchange: str
    compared: Compared = field(repr=False)

    def steps(self, metric: str = "apd_excess", *, layer: Layer = -1) -> pl.DataFrame:
        """The rows of a measure and a layer that compare each period with the one before it."""
        check_choice("metric", metric, self.frame["metric"].unique(maintain_order=True).to_list())
        number = resolve_layer(layer, self.compared.layers)
        place = pl.col("reference").cast(pl.Enum(self.periods)).to_physical()
        rows = self.frame.filter(pl.col("layer") == number, pl.col("metric") == metric)
        found: pl.DataFrame = rows.filter(place == place.max().over("word", "period"))
        return found

    def top(self, metric: str = "apd_excess", *, layer: Layer = -1, count: int = 10) -> pl.DataFrame:
        """The change points of a layer with the lowest q: `word, layer, period, gain, p, q, value`.

        `value`: of the measure against the period before, null where the word has too few occurrences; of points with
        the same q the one with the greatest comes first. Without permutations, the greatest value of each word, with
        null for `gain`, `p` and `q`.
        """
        check_whole("count", count, 1)
        steps = self.steps(metric, layer=layer).select("word", "layer", "period", "value")
        order = [pl.col("q"), -pl.col("value").abs()]
        if len(self.points):
            points = self.points.filter(pl.col("layer") == resolve_layer(layer, self.compared.layers))
            ranked = points.join(steps, on=["word", "layer", "period"], how="left", maintain_order="left")
        else:
            untested = [pl.lit(None, pl.Float64).alias(name) for name in ("gain", "p", "q")]
            ranked = steps.select("word", "layer", "period", *untested, "value").sort(order, nulls_last=True)
            ranked = ranked.unique("word", keep="first", maintain_order=True)
        found: pl.DataFrame = ranked.sort(order, nulls_last=True, maintain_order=True).head(count)
        return found

    def table(self) -> pl.DataFrame:
        """Return `frame` with columns `p` and `q`, then `points` as rows of the metric "change_point": value is gain.

        `p` and `q` are null for measures; `reference`, `low`, `high` and the counts are null for change points.
        """
        points = self.points.rename({"gain": "value"}).with_columns(metric=pl.lit(CHANGE_POINT))
        rows = pl.concat([self.frame, points], how="diagonal")
        found: pl.DataFrame = rows.select(*list(SCHEMA)[:8], "p", "q", *list(SCHEMA)[8:])
        return found

    def _written(self) -> pl.DataFrame:
        return self.table()

    def __repr__(self) -> str:
        return f"<ChangeSeries of {len(self.compared.words):,} words over {len(self.periods)} periods>"


@checked
def measure_periods(
    data: Store | Selection,
    *,
    by: str,
    width: int | None = None,
    layers: Layers = None,
    words: str | Sequence[str] | None = None,
    metrics: str | Sequence[str] = ("apd", "apd_excess", "prt"),
    min_occurrences: int = 10,
    tests: ChangeTests | None = None,
    memory: int | str = "1GiB",
    threads: int | None = None,
    progress: Progress = None,
) -> ChangeSeries:
    """Measure how words change from period to period, and find the periods at which they change.

    `by`: a column of the table, such as a year; `width`: periods of that many years. A word is compared between two
    periods in which it has `min_occurrences` or more. `metrics`: those of `measure_change` but `jsd`. Change points are
    found by binary segmentation of the unit vectors of a word, with a permutation test of each (`change_points`).

    Raises InvalidValueError, MissingRowsError, NonFiniteError.
    """
    tests = tests or ChangeTests()
    chosen = (metrics,) if isinstance(metrics, str) else tuple(metrics)
    for metric in chosen:
        check_choice("metric", metric, SUMMED)
    options: dict[str, Any] = {"layers": layers, "words": words, "min_occurrences": min_occurrences}
    options["exchange"] = tests.exchange
    compared = compare_periods(data, by, width=width, **options)
    nbytes = parse_nbytes(memory, name="memory")
    frames, centers = [], {}
    for layer, span, sums, center in scan_sums(compared, nbytes, threads=threads):
        centers[layer] = center
        frames += _series(compared, layer, span, sums, center, chosen, min_occurrences)
    test = partial(_test, compared, metrics=chosen, tests=tests, min_occurrences=min_occurrences)
    ends, points = [], []
    n_words = len(compared.words)
    with reporting(progress, total=n_words * len(compared.layers), unit="words", label="tests") as report:
        for number, layer in enumerate(compared.layers):
            test_word = partial(test, layer=layer, center=centers[layer])
            results = list(each_word(test_word, range(n_words), threads=threads, report=lambda _: None))
            report((number + 1) * n_words)
            ends += [row for rows, _ in results for row in rows]
            points.append(_points(compared, layer, [found for _, found in results]))
    key = ["word", "layer", "metric", "period", "reference"]
    low_high = pl.DataFrame(ends, schema={name: SCHEMA[name] for name in (*key, "low", "high")}, orient="row")
    joined = pl.concat(frames).join(low_high, on=key, how="left", maintain_order="left")
    frame = joined.select(pl.col(name).cast(kind) for name, kind in SCHEMA.items())
    frame = frame.with_columns(pl.col("value", "low", "high").fill_nan(None))
    return ChangeSeries(frame, pl.concat(points), compared.skipped, compared.periods, compared.exchange, compared)


def _pairs(counts: NDArray[np.int64], min_occurrences: int) -> list[tuple[int, int]]:
    """The pairs of periods of a word: each with the one before it, and with the first."""
    known = np.flatnonzero(counts >= min_occurrences).tolist()
    before = list(pairwise(known))
    return before + [(known[0], later) for later in known[2:]]


def _series(
    compared: Compared,
    layer: int,
    span: slice,
    sums: Sums,
    center: NDArray[np.float64],
    metrics: Sequence[str],
    min_occurrences: int,
) -> list[pl.DataFrame]:
    """The measures of some words between all their pairs of periods."""
    forms = np.array(compared.words[span], object)
    by_pair: dict[tuple[int, int], list[int]] = {}
    for number, counts in enumerate(sums.counts):
        for pair in _pairs(counts, min_occurrences):
            by_pair.setdefault(pair, []).append(number)
    frames = []
    for (old, new), numbers in sorted(by_pair.items()):
        words = np.array(numbers)
        values = measures_of_sums(sums, center, old, new, words)
        for metric in metrics:
            columns = {
                "word": pl.Series(forms[words].tolist(), dtype=pl.String),
                "layer": pl.repeat(layer, len(words), dtype=pl.Int64, eager=True),
                "metric": pl.repeat(metric, len(words), eager=True),
                "period": pl.repeat(compared.periods[new], len(words), eager=True),
                "reference": pl.repeat(compared.periods[old], len(words), eager=True),
                "value": values[metric],
                "count_old": sums.counts[words, old],
                "count_new": sums.counts[words, new],
            }
            frames.append(pl.DataFrame(columns))
    return frames


def _test(
    compared: Compared,
    number: int,
    *,
    layer: int,
    center: NDArray[np.float64],
    metrics: Sequence[str],
    tests: ChangeTests,
    min_occurrences: int,
) -> tuple[list[tuple[object, ...]], list[tuple[int, float, float]]]:
    """The intervals of a word's measures, and its change points."""
    word, drawn = compared.words[number], draw(compared, number, layer, tests, clustered=False)
    rows: list[tuple[object, ...]] = []
    for old, new in _pairs(compared.counts[number], min_occurrences) if tests.resamples else ():
        units = drawn.between(old, new, center, min_senses=tests.min_senses)
        found = intervals(units, tests.resamples, random_of(tests.seed, word, "resample"))
        key = compared.periods[new], compared.periods[old]
        rows += [(word, layer, metric, *key, *found[metric]) for metric in metrics]
    if not tests.permutations:
        return rows, []
    names, numbers = np.unique(drawn.units * len(compared.periods) + drawn.periods, return_inverse=True)
    sums = np.zeros((len(names), drawn.vectors.shape[1]))
    np.add.at(sums, numbers, unit_rows(drawn.vectors))
    counts = np.bincount(numbers).astype(np.float64)
    random = random_of(tests.seed, word, "exchange")
    return rows, change_points(sums, counts, names % len(compared.periods), count=tests.permutations, random=random)


def _points(compared: Compared, layer: int, found: list[list[tuple[int, float, float]]]) -> pl.DataFrame:
    """The change points of all words of a layer; the q of a word is that of its first test."""
    first_p = [points[0][2] if points else np.nan for points in found]
    q_of_words = false_discovery(np.array(first_p, np.float64)).tolist()
    rows = []
    for word, points, q in zip(compared.words, found, q_of_words, strict=True):
        rows += [(word, layer, compared.periods[period], gain, p, q) for period, gain, p in sorted(points)]
    return pl.DataFrame(rows, schema={**POINTS, "q": pl.Float64}, orient="row")
