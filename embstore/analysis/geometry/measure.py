"""The geometry of contextual vectors layer by layer: the measures of Ethayarajh 2019 over a store, as one table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.analysis.geometry.cosine import Cosines, Groups, mean_cosine
from embstore.analysis.geometry.moments import MeanNorm, Moments, MomentSums
from embstore.analysis.geometry.spectra import MEV, mev_influences, sample_mev
from embstore.analysis.scan import BLOCK_NBYTES, MIN_PARTS, Precision, Scope, scan, selected
from embstore.analysis.words import BLOCK_ROWS, compute_per_word, count_codes, eligible_types, rows_of_words
from embstore.arguments import Count, Positive, Range, checked
from embstore.config import settings
from embstore.devices import thread_count
from embstore.errors import InvalidValueError, check_choice
from embstore.intervals import reach
from embstore.progress import Report, reporting
from embstore.store import Selection, Store
from embstore.store.layout import Layers

PAPER_METRICS = ("selfsim", "intrasim", "mev", "anisotropy")
SPECTRUM_METRICS = ("participation_ratio", "effective_rank", "top_component")
# Measures of a whole layer by their names: reducers whose result is a number. One whose state is larger than a vector
# of float64 says so in `state_nbytes`, by which the memory for states is shared out.
MEASURES: dict[str, Callable[[], Any]] = {"mean_norm": MeanNorm}
METRICS = (*PAPER_METRICS, *MEASURES, *SPECTRUM_METRICS)
COSINE_METRICS = frozenset({"selfsim", "intrasim", "anisotropy"})
PART_TIMES = 16  # a part is at least this many times the state that it makes, so that merging takes little
THREAD_BLOCKS = 6  # blocks of float32 that a thread holds: as read, converted, shifted
SCHEMA: dict[str, Any] = {
    "layer": pl.Int64,
    "metric": pl.Enum(METRICS),
    "item": pl.String,
    "value": pl.Float64,
    "count": pl.Int64,
    "baseline": pl.Float64,
    "adjusted": pl.Float64,
    "baseline_reach": pl.Float64,
}
MIN_DRAWN = 100  # of a baseline of mev: that of a few vectors is too high, and of no larger sample


@checked
def geometry(
    data: Store | Selection,
    *,
    metrics: str | Sequence[str] = PAPER_METRICS,
    layers: Layers = None,
    min_contexts: Positive = 5,
    words_only: bool = False,
    baseline: Literal["exact"] | Annotated[int, Range(2)] = "exact",
    seed: Count = 0,
    precision: Precision = "float32",
) -> pl.DataFrame:
    """Measure how contextual the vectors of each layer are.

    Parameters
    ----------
    data : Store or Selection
        The occurrences.
    metrics : str or sequence of str
        `selfsim`, the mean cosine of two occurrences of a word; `intrasim`, the mean cosine of the words of a sentence
        with their mean; `mev`, the share of a word's vectors that one static vector explains; `anisotropy`, the mean
        cosine of any two occurrences (Ethayarajh 2019). Of a layer: `mean_norm`, `participation_ratio`,
        `effective_rank`, `top_component`. "all" for every one.
    layers : int or sequence of int, optional
        By default all of `data`.
    min_contexts : int
        Words that occur in this many different sentences or more have `selfsim` and `mev`.
    words_only : bool
        Leave out occurrences without a letter or digit, in everything; the paper's code leaves punctuation out of the
        words, but not out of sentences.
    baseline : "exact" or int
        Over all selected occurrences, or over this many, drawn with `seed` (1,000 in the paper).
    seed : int
        Of the baseline.
    precision : {"float32", "float64"}
        Of products of vectors; cosines are computed on the CPU.

    Returns
    -------
    polars.DataFrame
        `layer, metric, item, value, count, baseline, adjusted, baseline_reach`. `item` is the word, or the row of the
        sentence; the row with an empty one is of the layer, the mean over words or sentences. `adjusted` is value minus
        baseline, which is the anisotropy for `selfsim` and `intrasim`, and the MEV of all occurrences for `mev`.
        `baseline_reach` is half the width of the 95 % interval of a drawn baseline, by Student's t; 0 of the exact one,
        null of `mev` of fewer than 100 vectors. One word alone has no baseline.

    Raises
    ------
    InvalidValueError
        For an unknown metric or layer, and where there is no word or sentence to measure.
    MissingRowsError, NonFiniteError
        For rows that are not written yet or not finite.
    """
    names = METRICS if metrics == "all" else (metrics,) if isinstance(metrics, str) else tuple(metrics)
    for metric in names:
        check_choice("metric", metric, METRICS)
    if not names:
        raise InvalidValueError(f"no metric is chosen: name one or more of {', '.join(METRICS)}")
    selection = selected(data, layers)
    index = selection.store.index
    if words_only:
        has_letter = np.array([any(map(str.isalnum, form.lstrip("ĠĊĉč▁"))) for form in index.words], bool)
        rows = selection.rows[has_letter[index.type[selection.rows]]]
        if not len(rows):
            raise InvalidValueError(f"no selected word of {selection.store.path} has a letter: leave words_only out")
        selection = Selection(selection.store, rows=rows, layers=selection.layers)
    inputs = _Inputs.of(selection, tuple(metric for metric in METRICS if metric in names), min_contexts)
    if baseline != "exact":
        n_rows, span = len(inputs.selection), inputs.selection.span
        drawn = np.sort(np.random.default_rng(seed).choice(n_rows, min(baseline, n_rows), replace=False))
        inputs.sample = drawn + span.start if span else inputs.selection.rows[drawn]
    with reporting(settings().progress, unit="vectors", label="geometry") as report:
        results = _measure(inputs, precision, report)
    frame = pl.concat([part for layer, found in results.items() for part in _frames(inputs, layer, found)])
    numbers = frame.with_columns(pl.col("value", "baseline", "baseline_reach").fill_nan(None))
    codes = index.type[inputs.selection.rows_at(0, len(inputs.selection))]
    if np.count_nonzero(count_codes(codes)) == 1:  # the word would be its own baseline
        numbers = numbers.with_columns(pl.lit(None, pl.Float64).alias(name) for name in ("baseline", "baseline_reach"))
    columns = numbers.with_columns(adjusted=pl.col("value") - pl.col("baseline"))
    return columns.select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items())


@dataclass
class _Inputs:
    """Rows in the order of sentences, each once; the words of selfsim and mev, the sentences of intrasim.

    `sample`: the rows of the sampled baseline, None for the exact one.
    """

    selection: Selection
    metrics: tuple[str, ...]
    words: Groups
    sentences: Groups
    sample: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, selection: Selection, metrics: tuple[str, ...], min_contexts: int) -> _Inputs:
        """Find the words and sentences; raises InvalidValueError if there are none for a metric."""
        store, index, words, sentences = selection.store, selection.store.index, Groups(), Groups()
        if selection.span is None and (np.diff(selection.rows) <= 0).any():
            selection = Selection(store, rows=np.unique(selection.rows), layers=selection.layers)
        rows = selection.rows_at(0, len(selection))
        if {"selfsim", "mev"} & set(metrics):
            words = Groups.of(index.type[rows], eligible_types(selection, min_contexts=min_contexts))
            if not len(words.members):
                raise InvalidValueError(
                    f"no selected word of {store.path} occurs in {min_contexts} different sentences or more: "
                    "allow fewer (min contexts)"
                )
        if "selfsim" in metrics and not (words.sizes > 1).any():
            raise InvalidValueError(
                f"no selected word of {store.path} has two occurrences, which self-similarity needs: "
                "choose other words or metrics"
            )
        if "intrasim" in metrics:
            sentences = Groups.of(index.sentence[rows], np.flatnonzero(count_codes(index.sentence[rows]) > 1))
            if not len(sentences.members):
                raise InvalidValueError(
                    f"no sentence of {store.path} has two selected words, which intra-sentence similarity needs: "
                    "choose more words or other metrics"
                )
        return cls(selection, metrics, words, sentences)

    def passes(self, memory: int) -> Iterator[tuple[Selection, dict[str, Any]]]:
        """Yield what is reduced in each pass: all vectors first, then words whose sums exceed the memory."""
        selection, metrics = self.selection, set(self.metrics)
        codes = selection.store.index.type[selection.rows_at(0, len(selection))]
        size = max(1, memory // 12 // (8 * selection.store.hidden_size))
        types = self.words.members if "selfsim" in metrics else self.words.members[:0]
        reducers: dict[str, Any] = {name: MEASURES[name]() for name in self.metrics if name in MEASURES}
        if metrics & {"selfsim", "intrasim"} or (self.sample is None and metrics & COSINE_METRICS):
            words = Groups.of(codes, types[:size])
            reducers["cosines"] = Cosines(words=words, sentences=self.sentences)
        if metrics & {*SPECTRUM_METRICS} or ("mev" in metrics and self.sample is None):
            reducers["moments"] = _LayerMeasures([m for m in SPECTRUM_METRICS if m in metrics])
        if reducers:
            yield selection, reducers
        for start in range(size, len(types), size):
            chunk = types[start : start + size]
            blocks = ((first, codes[first : first + BLOCK_ROWS]) for first in range(0, len(codes), BLOCK_ROWS))
            places = np.concatenate([first + np.flatnonzero(np.isin(block, chunk)) for first, block in blocks])
            rows = places + selection.span.start if selection.span else selection.rows[places]
            part = Selection(selection.store, rows=rows, layers=selection.layers)
            yield part, {"cosines": Cosines(words=Groups.of(codes, chunk))}


class _LayerMeasures(Moments):
    """The measures that the moments of a layer give, {name: value}: the moments themselves are large."""

    def __init__(self, metrics: Sequence[str]) -> None:
        self._metrics = metrics

    def finish(self, state: MomentSums, scope: Scope) -> dict[str, float]:  # type: ignore[override]
        moments = super().finish(state, scope)
        measures = {metric: getattr(moments, metric) for metric in self._metrics}
        return measures | {"mev": moments.mev()}


def _limits(part: Selection, reducers: dict[str, Any]) -> dict[str, Any]:
    """The limits of `scan`: half of the memory for states and half for blocks, and parts large compared with states."""
    memory, size = settings().nbytes, part.store.hidden_size
    block_rows = max(1, min(BLOCK_NBYTES, memory // 64) // (4 * size))
    threads = min(thread_count(settings().threads), memory // (8 * THREAD_BLOCKS * block_rows * size))
    state_nbytes = 0
    for reducer in reducers.values():  # one that does not say has a vector of float64
        state_nbytes += reducer.state_nbytes(size) if hasattr(reducer, "state_nbytes") else 8 * size
    return {
        "block_rows": block_rows,
        "threads": max(1, threads),
        "parts": max(MIN_PARTS, 8 * size * len(part) // (PART_TIMES * state_nbytes)),
        "max_states": max(2, memory // (2 * state_nbytes)),
    }


def _measure(inputs: _Inputs, precision: Precision, report: Report) -> dict[int, dict[str, Any]]:
    """Compute {layer: {what: values}}: selfsim and mev of words, intrasim of sentences, and measures of the layer."""
    selection = inputs.selection
    passes = list(inputs.passes(settings().nbytes))
    words = rows_of_words(selection, inputs.words.members) if "mev" in inputs.metrics else None
    n_read = sum(len(part) for part, _ in passes) + (0 if words is None else words.n_rows)
    done, total = 0, n_read * len(selection.layers)

    def progress(n: int, _: int | None = None) -> None:
        report(done + n, total)

    options: dict[str, Any] = {"precision": precision, "progress": progress}
    results: dict[int, dict[str, Any]] = {layer: {"selfsim": []} for layer in selection.layers}
    for part, reducers in passes:
        for layer, found in scan(part, reducers, **_limits(part, reducers), **options).items():
            if "cosines" in found:
                results[layer]["selfsim"].append(found["cosines"].selfsim)
            results[layer] = found | results[layer]
        done += len(part) * len(selection.layers)
    if words is not None:
        shares = compute_per_word(MEV, selection.store, selection.layers, words, **options)
        for layer, values in zip(selection.layers, shares, strict=True):
            results[layer]["mev"] = values
    return results


def _frames(inputs: _Inputs, layer: int, found: dict[str, Any]) -> Iterator[pl.DataFrame]:
    """Yield the rows of each metric at a layer."""
    selection, metrics, words = inputs.selection, inputs.metrics, inputs.words
    anisotropy = found["cosines"].anisotropy if "cosines" in found else None
    drawn = None if inputs.sample is None else selection.store.vectors(inputs.sample, layers=layer)
    around = 0.0
    if drawn is not None and COSINE_METRICS & set(metrics):
        vectors = drawn.astype(np.float64)
        lengths = np.linalg.norm(vectors, axis=1)
        units = vectors / np.where(lengths > 0, lengths, 1)[:, None]
        total = units.sum(0)
        anisotropy = float(mean_cosine(total @ total, (lengths > 0).sum(), len(vectors)))
        around = reach(2 * (units @ total - (lengths > 0)) / max(len(units) - 1, 1))
    forms = pl.Series(list(selection.store.index.words.subset(words.members)), dtype=pl.String)
    if "selfsim" in metrics:
        several, values = words.sizes > 1, np.concatenate(found["selfsim"])
        yield _frame("selfsim", layer, forms.filter(several), words.sizes[several], values[several], anisotropy, around)
    if "intrasim" in metrics:
        items = pl.Series(inputs.sentences.members).cast(pl.String)
        yield _frame("intrasim", layer, items, inputs.sentences.sizes, found["cosines"].intrasim, anisotropy, around)
    if "mev" in metrics:
        baseline = found["moments"]["mev"] if drawn is None else sample_mev(drawn)
        around = 0.0 if drawn is None else reach(mev_influences(drawn)) if len(drawn) >= MIN_DRAWN else np.nan
        yield _frame("mev", layer, forms, words.sizes, found["mev"], baseline, around)
    for metric in ("anisotropy", *MEASURES, *SPECTRUM_METRICS):
        if metric in metrics:
            value = float(found[metric]) if metric in MEASURES else found.get("moments", {}).get(metric, anisotropy)
            count = len(selection) if drawn is None or metric != "anisotropy" else len(drawn)
            row = {"item": "", "value": value, "count": count, "metric": metric, "layer": layer}
            numbers = dict.fromkeys(("value", "baseline", "baseline_reach"), pl.Float64)
            yield pl.DataFrame([row | {"baseline": None, "baseline_reach": None}], schema_overrides=numbers)


def _frame(
    metric: str,
    layer: int,
    items: pl.Series,
    counts: NDArray[np.int64],
    values: NDArray[np.float64],
    baseline: float | None,
    around: float,
) -> pl.DataFrame:
    """The rows of a metric at a layer, its mean first."""
    known = values[~np.isnan(values)]
    columns = {
        "item": pl.concat([pl.Series([""]), items.alias("")]),
        "value": np.insert(values, 0, float(known.mean()) if len(known) else np.nan),
        "count": np.insert(counts, 0, len(known)),
    }
    of = {"baseline": pl.lit(baseline, pl.Float64), "baseline_reach": pl.lit(around, pl.Float64)}
    return pl.DataFrame(columns).with_columns(metric=pl.lit(metric), layer=pl.lit(layer, pl.Int64), **of)
