"""What a table of geometry comes to: a mean a layer with its bootstrap interval, and the extreme words."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.errors import InvalidValueError

_DRAWN = 2**22  # values drawn at a time


def summarize_geometry(
    table: pl.DataFrame, *, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> pl.DataFrame:
    """One row a metric and layer, with a percentile bootstrap interval over words or sentences.

    Columns: `metric, layer, count, value, low, high, baseline, adjusted, adjusted_low, adjusted_high`; the baseline
    is taken as known. Metrics of a layer alone have no interval. The same words are drawn for every layer, so
    layers can be compared.
    """
    if resamples < 1:
        raise InvalidValueError(f"resamples {resamples} is not allowed: give 1 or more")
    if not 0 < level < 1:
        raise InvalidValueError(f"level {level} is not allowed: give a share such as 0.95")
    intervals = pl.DataFrame(
        list(_intervals(table, resamples, level, seed)),
        schema={"metric": table.schema["metric"], "layer": pl.Int64, "low": pl.Float64, "high": pl.Float64},
        orient="row",
    )
    means = table.filter(pl.col("item") == "").drop("item")
    return means.join(intervals, on=["metric", "layer"], how="left", maintain_order="left").select(
        "metric",
        "layer",
        "count",
        "value",
        "low",
        "high",
        "baseline",
        "adjusted",
        adjusted_low=pl.col("low") - pl.col("baseline"),
        adjusted_high=pl.col("high") - pl.col("baseline"),
    )


def _intervals(
    table: pl.DataFrame, resamples: int, level: float, seed: int
) -> Iterator[tuple[str, int, float | None, float | None]]:
    for (metric,), part in table.filter(pl.col("item") != "").group_by(["metric"], maintain_order=True):
        wide = part.pivot("layer", index="item", values="value", maintain_order=True).drop("item")
        means = bootstrap_means(wide.to_numpy().astype(np.float64), resamples=resamples, seed=seed)
        low, high = np.nanquantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
        for place, layer in enumerate(wide.columns):
            yield str(metric), int(layer), float(low[place]), float(high[place])


def bootstrap_means(values: NDArray[np.float64], *, resamples: int, seed: int) -> NDArray[np.float64]:
    """Means of values [n, k] over n rows drawn with replacement, NaN left out: [resamples, k]."""
    draws = np.random.default_rng(seed)
    count = len(values)
    filled, known = np.nan_to_num(values), (~np.isnan(values)).astype(np.float64)
    step = max(1, _DRAWN // max(1, count))
    means = []
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        drawn = draws.integers(0, count, (size, count))
        drawn += np.arange(size)[:, None] * count
        times = np.bincount(drawn.ravel(), minlength=size * count).reshape(size, count).astype(np.float64)
        counts = times @ known
        means.append(times @ filled / np.where(counts > 0, counts, np.nan))
    return np.concatenate(means)


def extreme_words(table: pl.DataFrame, *, layer: int, metric: str = "selfsim", count: int = 10) -> pl.DataFrame:
    """The words of a layer whose vectors vary most with their sentences, and those whose vary least.

    Columns: `end` ("most" or "least" context-specific), then those of the table; the lowest values first for most,
    the highest first for least. Words of equal value stand in alphabetical order.
    """
    words = table.filter((pl.col("metric") == metric) & (pl.col("layer") == layer) & (pl.col("item") != ""))
    words = words.filter(pl.col("value").is_not_null())
    if not len(words):
        raise InvalidValueError(f"the table has no words of {metric!r} at layer {layer}: measure that first")
    most = words.sort("value", "item").head(count).with_columns(end=pl.lit("most"))
    least = words.sort(["value", "item"], descending=[True, False]).head(count).with_columns(end=pl.lit("least"))
    return pl.concat([most, least]).select("end", *table.columns)
