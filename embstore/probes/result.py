"""What probing gives: scores as a tidy frame, the probes, and what they decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.errors import InvalidValueError
from embstore.probes.classes.files import SavedBank
from embstore.probes.scores import Decisions, verdicts

SCHEMA = {
    "store": pl.String,
    "task": pl.String,
    "layer": pl.Int64,
    "split": pl.String,
    "metric": pl.String,
    "item": pl.String,
    "value": pl.Float64,
    "count": pl.Int64,
    "seed": pl.Int64,
}


@dataclass(frozen=True, eq=False)
class Asked:
    """What the probes of a store decided in one split, of the class task."""

    decisions: Decisions
    words: tuple[str, ...]
    frequency: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ProbeResult:
    """Scores of probes in `frame`: `store, task, layer, split, metric, item, value, count, seed`.

    `banks`: the probes by store, with what made them. `asked`: the decisions, by store and split. `notes`: what took
    no part, a line each.
    """

    frame: pl.DataFrame
    banks: Mapping[str, SavedBank]
    asked: Mapping[tuple[str, str], Asked]
    notes: tuple[str, ...] = ()

    @property
    def bank(self) -> SavedBank:
        """The bank, where there is one store."""
        return self.banks[_only(self.banks)]

    def summary(self) -> pl.DataFrame:
        """Mean (`value`) and standard deviation over seeds: `deviation`, null for one seed; `seeds`, their number."""
        keys = ["store", "task", "layer", "split", "metric", "item"]
        return self.frame.group_by(keys, maintain_order=True).agg(
            pl.col("value").mean(),
            pl.col("value").std().alias("deviation"),
            pl.col("count").first(),
            pl.len().cast(pl.Int64).alias("seeds"),
        )

    def predictions(
        self, layer: int, *, split: str = "test", seed: int | None = None, store: str | None = None
    ) -> pl.DataFrame:
        """What was decided of each word-class pair (word, at type level): a frame of one row a pair.

        `word, classes` (its own), `frequency, contexts, right` (contexts that its own probes said yes to, the least
        of them at type level) and `found`, the classes whose probes said yes to it by the rule of half.
        """
        name = _only(self.banks) if store is None else store
        asked, shape = self.asked[name, split], self.banks[name].bank.shape
        place = shape.layers.index(layer), 0 if seed is None else shape.seeds.index(seed)
        classes = np.array(self.banks[name].classes, object)
        held = asked.decisions
        positives = held.positives[:, place[0], place[1]]
        right, wrong, _ = verdicts(positives, held.contexts, held.gold)
        least = np.where(held.gold, positives, np.iinfo(np.int32).max).min(1)
        return pl.DataFrame(
            {
                "word": [asked.words[number] for number in held.word.tolist()],
                "classes": [classes[row].tolist() for row in held.gold],
                "frequency": asked.frequency[held.word],
                "contexts": held.contexts,
                "right": np.where(held.gold.any(1), least, 0),
                "found": [classes[row].tolist() for row in right | wrong],
            },
            schema_overrides={"classes": pl.List(pl.String), "found": pl.List(pl.String)},
        )


def _only(banks: Mapping[str, SavedBank]) -> str:
    if len(banks) > 1:
        raise InvalidValueError(f"there are {len(banks)} stores: name one of {', '.join(banks)}")
    return next(iter(banks))
