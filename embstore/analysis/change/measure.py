"""Change between two corpora, or two periods of one: all measures of every shared word at every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.analysis.change.occurrences import Compared, compare_periods, compare_stores
from embstore.analysis.change.significance import LEVEL, attainable, false_discovery, matched
from embstore.analysis.change.sums import JSD, METRICS, TESTED, TWO_SIDED, measures_of_sums, scan_sums
from embstore.analysis.change.testing import ChangeTests, Drawn, Tested, draw, each_word, tested
from embstore.analysis.neighbors.find import mark_words
from embstore.analysis.neighbors.labels import LabelledOccurrences
from embstore.arguments import checked
from embstore.errors import InvalidValueError, check_choice
from embstore.progress import Counter, Progress, reporting
from embstore.sizes import parse_nbytes
from embstore.store import Selection, Store
from embstore.store.framed import Framed
from embstore.store.layout import Layer, Layers, resolve_layer, resolve_layers
from embstore.vectors.linalg import unit_rows

SCHEMA = {
    "word": pl.String,
    "layer": pl.Int64,
    "metric": pl.String,
    "value": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "p": pl.Float64,
    "q": pl.Float64,
    "expected": pl.Float64,
    "relative": pl.Float64,
    "p_matched": pl.Float64,
    "count_old": pl.Int64,
    "count_new": pl.Int64,
}


@dataclass(frozen=True, eq=False)
class Change(Framed):
    """The change of words between two corpora or periods.

    `frame`: a row for each word, layer and measure: `word, layer, metric, value, low, high, p, q, expected, relative,
    p_matched, count_old, count_new`. `low`, `high`: a bootstrap interval of 95 %. `p`: of permutations; `q`: the same
    adjusted for the number of words of the layer (false discovery rate). `expected`: the median of the words of like
    frequency, `relative`: the value minus it, and `p_matched`: the share of these words with a value as great (of
    `selfsim_change`, by magnitude).
    `skipped`: the words that were not compared, with their counts and the reason. `names`: of both sides. `notes`: what
    to know when reading the result. `exchange`: what was permuted, documents or sentences.
    """

    frame: pl.DataFrame
    skipped: pl.DataFrame
    names: tuple[str, str]
    notes: tuple[str, ...]
    exchange: str
    tests: ChangeTests
    compared: Compared = field(repr=False)

    @property
    def layers(self) -> tuple[int, ...]:
        return self.compared.layers

    def top(self, metric: str = "apd_excess", *, layer: Layer = -1, count: int = 10) -> pl.DataFrame:
        """The words that change most in a layer: by q where there are tests, then by value."""
        check_choice("metric", metric, self.frame["metric"].unique(maintain_order=True).to_list())
        number = resolve_layer(layer, self.layers)
        rows = self.frame.filter(pl.col("layer") == number, pl.col("metric") == metric, pl.col("value").is_not_null())
        found: pl.DataFrame = rows.sort(
            [pl.col("q"), -pl.col("value").abs()], nulls_last=True, maintain_order=True
        ).head(count)
        return found

    def sentences(self, word: str, *, layer: Layer = -1, count: int = 3) -> pl.DataFrame:
        """The occurrences of each side that are most typical of it: `side, rank, score, ...` and columns of the table.

        `score`: the mean cosine of an occurrence to the others of its side, minus that to the other side. `marked` has
        the sentence with the word in brackets.
        """
        number, drawn = self._draw(word, layer)
        unit = unit_rows(drawn.vectors)
        is_new = drawn.periods == 1
        tables = []
        for name, is_inside in zip(self.names, (~is_new, is_new), strict=True):
            inside, outside = unit[is_inside], unit[~is_inside]
            to_others = (inside @ inside.sum(0) - np.square(inside).sum(1)) / max(len(inside) - 1, 1)
            scores = to_others - inside @ outside.mean(0)
            best = np.lexsort((drawn.rows[is_inside], -scores))[:count]
            rows = drawn.rows[is_inside][best]
            store = self.compared.parts[drawn.parts[is_inside][0]].store
            table = store.select(rows=rows).table().select("occurrence", "sentence", "position", "text")
            table = table.with_columns(pl.Series("marked", mark_words(store, rows)))
            columns = [pl.lit(word).alias("word"), pl.lit(number).alias("layer"), pl.lit(name).alias("side")]
            ranked = [pl.Series("rank", np.arange(1, len(best) + 1)), pl.Series("score", scores[best])]
            tables.append(table.select(*columns, *ranked, pl.all()))
        sides: pl.DataFrame = pl.concat(tables)
        return sides

    def occurrences(self, word: str, *, layers: Layers = None) -> LabelledOccurrences:
        """The occurrences of a word, labelled with their side, for `embstore.plot.sense_map`."""
        chosen = resolve_layers(layers, self.layers)
        drawn = [self._draw(word, layer)[1] for layer in chosen]
        vectors = np.stack([each.vectors for each in drawn]).astype(np.float32)
        labels = [self.names[period] for period in drawn[0].periods]
        return LabelledOccurrences(word, chosen, vectors, labels, drawn[0].rows)

    def _draw(self, word: str, layer: Layer) -> tuple[int, Drawn]:
        if word not in self.compared.words:
            raise InvalidValueError(
                f"the word {word!r} was not compared: choose one of `frame`; `skipped` has those of too few occurrences"
            )
        number = resolve_layer(layer, self.layers)
        return number, draw(self.compared, self.compared.words.index(word), number, self.tests, clustered=False)

    def __repr__(self) -> str:
        return (
            f"<Change from {self.names[0]} to {self.names[1]}: {len(self.compared.words):,} words, "
            f"{len(self.skipped):,} with too few occurrences, layers {list(self.layers)}>"
        )


@checked
def measure_change(
    old: Store | Selection,
    new: Store | Selection | None = None,
    *,
    by: str | None = None,
    width: int | None = None,
    layers: Layers = None,
    words: str | Sequence[str] | None = None,
    metrics: str | Sequence[str] = METRICS,
    min_occurrences: int = 10,
    tests: ChangeTests | None = None,
    memory: int | str = "1GiB",
    threads: int | None = None,
    progress: Progress = None,
) -> Change:
    """Measure how every word that two corpora share changes between them, at every layer.

    `old`, `new`: stores of one model, or selections; or `old` alone with `by`, a column of its table with two values
    (with `width`, two spans of that many years). `words`: only these. `metrics`: some of `apd`, `apd_excess`, `prt`,
    `inverse_prt`, `prt_centered`, `selfsim_old`, `selfsim_new`, `selfsim_change` and `jsd` (see
    `docs/how-to/change.md`); all but `jsd` take one scan of the vectors and no pairs. `min_occurrences`: words
    with fewer on a side are listed in `skipped`. `tests`: permutations, intervals, clusters and seeds. `memory`: bytes
    or a text such as "4GiB" for the sums; with less, words are summed in several passes.

    Raises InvalidValueError (stores of different models, a column without two values, no word with enough occurrences),
    MissingRowsError, NonFiniteError.
    """
    tests = tests or ChangeTests()
    chosen = (metrics,) if isinstance(metrics, str) else tuple(metrics)
    for metric in chosen:
        check_choice("metric", metric, METRICS)
    nbytes = parse_nbytes(memory, name="memory")
    options: dict[str, Any] = {"layers": layers, "words": words, "min_occurrences": min_occurrences}
    options["exchange"] = tests.exchange
    if (new is None) == (by is None):
        raise InvalidValueError("change needs two sides: give a second store, or the column of one (by)")
    if width is not None and by is None:
        raise InvalidValueError(f"width {width} is of the periods of a column: give the column (by), or no width")
    if by is not None:
        compared = compare_periods(old, by, width=width, **options)
        if len(compared.periods) != 2:
            raise InvalidValueError(
                f"the column {by!r} has {len(compared.periods)} periods: measure_periods compares more than two"
            )
    else:
        assert new is not None
        compared = compare_stores(old, new, **options)
    total = sum(len(part.rows) for part in compared.parts) * len(compared.layers)
    with reporting(progress, total=total, unit="vectors", label="change") as report:
        values, centers = _scan(compared, nbytes, threads, report)
    found: dict[int, list[Tested]] = {}
    if tests.permutations or tests.resamples or JSD in chosen:
        total = len(compared.words) * len(compared.layers)
        with reporting(progress, total=total, unit="words", label="tests") as report:
            found = _test(compared, centers, chosen, tests, threads, report)
    frames = [_frame(compared, layer, values[layer], found.get(layer), chosen, tests) for layer in compared.layers]
    names = (compared.periods[0], compared.periods[1])
    notes = _notes(compared, found, tests)
    return Change(pl.concat(frames), compared.skipped, names, notes, compared.exchange, tests, compared)


def _scan(
    compared: Compared, memory: int, threads: int | None, report: Any
) -> tuple[dict[int, dict[str, NDArray[np.float64]]], dict[int, NDArray[np.float64]]]:
    """The measures of all words by layer, and the centers of both sides."""
    values: dict[int, dict[str, list[NDArray[np.float64]]]] = {layer: {} for layer in compared.layers}
    centers = {}
    for layer, _, sums, center in scan_sums(compared, memory, threads=threads, progress=Counter(report).add):
        centers[layer] = center
        for name, each in measures_of_sums(sums, center, 0, 1).items():
            values[layer].setdefault(name, []).append(each)
    joined = {layer: {name: np.concatenate(each) for name, each in found.items()} for layer, found in values.items()}
    return joined, centers


def _test(
    compared: Compared,
    centers: dict[int, NDArray[np.float64]],
    metrics: Sequence[str],
    tests: ChangeTests,
    threads: int | None,
    report: Any,
) -> dict[int, list[Tested]]:
    """Test every word at every layer."""
    progress = Counter(report).add

    def test(number: int, *, layer: int) -> Tested:
        drawn = draw(compared, number, layer, tests, clustered=JSD in metrics)
        units = drawn.between(0, 1, centers[layer], min_senses=tests.min_senses)
        return tested(units, compared.words[number], tests)

    numbers = range(len(compared.words))
    return {
        layer: list(each_word(partial(test, layer=layer), numbers, threads=threads, report=progress))
        for layer in compared.layers
    }


def _frame(
    compared: Compared,
    layer: int,
    values: dict[str, NDArray[np.float64]],
    found: list[Tested] | None,
    metrics: Sequence[str],
    tests: ChangeTests,
) -> pl.DataFrame:
    """The rows of all words and measures at a layer."""
    n_words = len(compared.words)
    empty = np.full(n_words, np.nan)
    frequencies = np.sqrt(compared.counts.prod(1, dtype=np.float64))
    if found is not None:
        values = values | {JSD: np.array([np.nan if each.jsd is None else each.jsd for each in found])}
    frames = []
    for metric in (name for name in METRICS if name in metrics and name in values):
        p, ends = empty, np.full((n_words, 2), np.nan)
        if found is not None:
            name = "prt" if metric == "inverse_prt" else metric
            if name in TESTED:
                p = np.array([each.p.get(name, np.nan) for each in found])
            ends = np.array([each.intervals.get(metric, (np.nan, np.nan)) for each in found])
        expected, p_matched = empty, empty
        if metric in TESTED:
            expected, p_matched = matched(values[metric], frequencies, tests.matched)
        if metric in TWO_SIDED:
            p_matched = matched(np.abs(values[metric]), frequencies, tests.matched)[1]
        columns = {
            "word": pl.Series(compared.words, dtype=pl.String),
            "layer": pl.repeat(layer, n_words, eager=True),
            "metric": pl.repeat(metric, n_words, eager=True),
            "value": values[metric],
            "low": ends[:, 0],
            "high": ends[:, 1],
            "p": p,
            "q": false_discovery(p),
            "expected": expected,
            "relative": values[metric] - expected,
            "p_matched": p_matched,
            "count_old": compared.counts[:, 0],
            "count_new": compared.counts[:, 1],
        }
        frames.append(pl.DataFrame(columns, schema=SCHEMA))
    frame = pl.concat(frames)
    return frame.with_columns(pl.col(name).fill_nan(None) for name, kind in SCHEMA.items() if kind == pl.Float64)


def _notes(compared: Compared, found: dict[int, list[Tested]], tests: ChangeTests) -> tuple[str, ...]:
    """What to know when reading the p-values."""
    if not found or not tests.permutations:
        return ()
    notes = []
    least = 1 / (tests.permutations + 1)
    ways = np.array([1 / each.n_exchanges for each in next(iter(found.values()))])
    p_least = np.maximum(ways, least)
    if not attainable(p_least):
        reason = f"the smallest p-value of {tests.permutations} permutations is {least:.2g}"
        if ways.min() > least:
            reason = f"no word has more than {1 / ways.min():.0f} ways to exchange its {compared.exchange}s"
        notes.append(f"no word can be significant at q <= {LEVEL}: {reason}, and {len(ways):,} words are tested")
        if compared.exchange == "document":
            notes.append(
                'exchange="sentence" permutes sentences instead, which takes the sentences of a document as independent'
            )
    drawn = int((compared.counts.max(1) > tests.sample).sum())
    if drawn:
        words = "word draw" if drawn == 1 else "words draw"
        notes.append(f"the tests of {drawn:,} {words} {tests.sample:,} occurrences of a side at most")
    return tuple(notes)
