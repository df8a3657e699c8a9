"""Summaries of a table of geometry: means by layer with bootstrap intervals, and the extreme words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.arguments import Count, Positive, Range, checked
from embstore.errors import InvalidValueError, check_columns
from embstore.intervals import MIN_UNITS, expanded, resampled
from embstore.store.layout import Layers, one_layer

COLUMNS = ("layer", "metric", "item", "value", "count", "baseline", "adjusted", "baseline_reach")
Resamples = Annotated[int, Range(1, 10**6)]


@checked
def summarize_geometry(frame: pl.DataFrame, *, resamples: Resamples = 1000, seed: Count = 0) -> pl.DataFrame:
    """Summarize the frame of `geometry`: one row per layer and metric, with a bootstrap interval of 95 %.

    Words or sentences are resampled, the same ones for every layer, so that layers can be compared: intervals are of
    other words like these, or of other sentences of these words. Columns: `layer, metric, value, low, high, count,
    baseline, adjusted, adjusted_low, adjusted_high, seed`; those of adjusted values also cover the error of a baseline
    that is drawn, while an exact one is that of these occurrences (Zou & Donner 2008). Metrics with one value per
    layer, and means over fewer than five words or sentences, have no interval.

    Raises InvalidValueError for a frame without the columns of `geometry`.
    """
    check_columns(frame, COLUMNS, "the frame of geometry")
    intervals = pl.DataFrame(
        list(_intervals(frame, resamples, seed)),
        schema={"metric": frame.schema["metric"], "layer": pl.Int64, "low": pl.Float64, "high": pl.Float64},
        orient="row",
    )
    means = frame.filter(pl.col("item") == "").drop("item")
    return means.join(intervals, on=["metric", "layer"], how="left", maintain_order="left").select(
        "layer",
        "metric",
        "value",
        "low",
        "high",
        "count",
        "baseline",
        "adjusted",
        adjusted_low=pl.col("adjusted") - _together(pl.col("value") - pl.col("low")),
        adjusted_high=pl.col("adjusted") + _together(pl.col("high") - pl.col("value")),
        seed=pl.lit(seed, pl.Int64),
    )


def _together(half: pl.Expr) -> pl.Expr:
    """Half of an interval, and that of the baseline; where both are symmetric, that of their difference."""
    return (half**2 + pl.col("baseline_reach") ** 2).sqrt()


def _intervals(table: pl.DataFrame, resamples: int, seed: int) -> Iterator[tuple[str, int, float | None, float | None]]:
    for (metric,), part in table.filter(pl.col("item") != "").group_by(["metric"], maintain_order=True):
        wide = part.pivot("layer", index="item", values="value", maintain_order=True).drop("item")
        means = bootstrap_means(wide.to_numpy().astype(np.float64), resamples=resamples, seed=seed)
        for layer, column, drawn in zip(wide.columns, wide, means.T, strict=True):
            if (count := len(column.drop_nulls())) >= MIN_UNITS:
                yield str(metric), int(layer), *expanded(drawn, count)


def bootstrap_means(values: NDArray[np.float64], *, resamples: int, seed: int) -> NDArray[np.float64]:
    """The means of values [n, k] over n rows drawn with replacement, without NaN: [resamples, k]."""
    filled, known, means = np.nan_to_num(values), (~np.isnan(values)).astype(np.float64), []
    for times in resampled(len(values), resamples, np.random.default_rng(seed)):
        counts = times @ known
        means.append(times @ filled / np.where(counts > 0, counts, np.nan))
    return np.concatenate(means)


@checked
def extreme_words(
    frame: pl.DataFrame, *, layers: Layers = -1, metric: str = "selfsim", count: Positive = 10
) -> pl.DataFrame:
    """List the words of one layer whose vectors depend most on their sentences, and those that depend least.

    Columns: `end` ("most" or "least" context-specific), then those of the frame; the lowest values first for "most",
    the highest first for "least", equal values in alphabetical order.

    Raises InvalidValueError where the frame has no words for this metric and layer.
    """
    check_columns(frame, COLUMNS, "the frame of geometry")
    layer = one_layer(layers, sorted(set(frame["layer"].to_list())))
    words = frame.filter(
        (pl.col("metric").cast(pl.String) == metric) & (pl.col("layer") == layer) & (pl.col("item") != "")
    ).drop_nulls("value")
    if not len(words):
        raise InvalidValueError(f"the frame has no words for {metric!r} at layer {layer}: measure that first")
    most = words.sort("value", "item").head(count).with_columns(end=pl.lit("most"))
    least = words.sort(["value", "item"], descending=[True, False]).head(count).with_columns(end=pl.lit("least"))
    return pl.concat([most, least]).select("end", *frame.columns)
