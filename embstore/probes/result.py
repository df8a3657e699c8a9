"""The result of scoring probes: a tidy frame with the same columns for every kind of probe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from embstore.arguments import checked
from embstore.errors import InvalidValueError
from embstore.store.framed import Framed

SCHEMA = {
    "store": pl.String,
    "task": pl.String,
    "layer": pl.Int64,
    "split": pl.String,
    "metric": pl.String,
    "item": pl.String,
    "value": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "count": pl.Int64,
    "seed": pl.Int64,
}
KEYS = ("store", "task", "layer", "split", "metric", "item")
Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class ProbeResult(Framed):
    """Scores of probes, one row per store, task, layer, split, metric, item and seed.

    `frame` has the columns `store, task, layer, split, metric, item, value, low, high, count, seed`. `item` is the
    class or frequency bin of metrics that have one, or why a value is not determined, and empty otherwise; `value` is
    null where a metric is not defined;
    `low` and `high` are the ends of a 95 % interval, null where there is none; `count` is what was scored. `notes` says
    in one line each what was left out or sampled.
    """

    frame: pl.DataFrame
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]], notes: Sequence[str] = (), **common: Any) -> ProbeResult:
        """Build a result from rows; `common` are columns that all rows share."""
        complete = [{"item": "", **common, **row} for row in rows]
        return cls(pl.DataFrame(complete, schema=SCHEMA), tuple(dict.fromkeys(notes)))

    @classmethod
    def concat(cls, results: Iterable[ProbeResult]) -> ProbeResult:
        """Join results, such as those of several stores or tasks; each note is kept once."""
        listed = list(results)
        if not listed:
            raise InvalidValueError("there are no results to join: give one or more")
        notes = dict.fromkeys(note for each in listed for note in each.notes)
        return cls(pl.concat([each.frame for each in listed]), tuple(notes))

    def summary(self) -> pl.DataFrame:
        """Return the mean over the seeds (`value`), their standard deviation and the number of `seeds`.

        A seed for which the metric is not defined is left out. `deviation` is null for one seed. `low` and `high` are
        those of `frame`, which are of the mean already.
        """
        return summary(self.frame)

    def __repr__(self) -> str:
        tasks, metrics = (self.frame[name].n_unique() for name in ("task", "metric"))
        return f"ProbeResult({len(self.frame):,} scores of {tasks:,} tasks in {metrics:,} metrics)"


@checked
def summary(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the mean over the seeds of a frame of scores; see `ProbeResult.summary`."""
    return frame.group_by(*KEYS, maintain_order=True).agg(
        pl.col("value").mean(),
        pl.col("value").std().alias("deviation"),
        pl.col("count", "low", "high").first(),
        pl.col("value").count().cast(pl.Int64).alias("seeds"),
    )
