"""The tables and figures of Wiedemann et al. 2019, with intervals over words."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore import plot
from embstore.plot.drawing import add_legend, draw_line
from embstore_studies.study import Row, Section, decimals
from embstore_studies.wiedemann2019.published import SCORES
from embstore_studies.wiedemann2019.senses import TEST, TRAIN
from embstore_studies.wiedemann2019.settings import Wiedemann2019

KEYS = ("model", "k", "layer")
MIN_WORDS = 2  # for an interval


@dataclass(frozen=True, eq=False)
class Scores:
    """`senses`: `split, target, sense` of the data; `words`: the scores of each word, by model, k and layer."""

    settings: Wiedemann2019
    senses: pl.DataFrame
    words: pl.DataFrame

    @property
    def models(self) -> list[str]:
        return self.words["model"].unique(maintain_order=True).to_list()

    @cached_property
    def by_layer(self) -> pl.DataFrame:
        """Scores of the ambiguous words; `accuracy_low, accuracy_high` and so on bound 95 % of resamples."""
        parts = self.words.partition_by(KEYS, as_dict=True, maintain_order=True)
        rows = [dict(zip(KEYS, key, strict=True)) | self._scored(part) for key, part in parts.items()]
        return pl.DataFrame(rows, schema_overrides={"layer": pl.Int64}, infer_schema_length=None)

    def _scored(self, part: pl.DataFrame) -> Row:
        """Micro scores are over occurrences, macro ones the mean over words; words are resampled."""
        counts = part["count"].to_numpy()
        columns = {name: part[name].to_numpy() for name in ("accuracy", "baseline", "chance", "f1")}
        columns["gain"] = columns["accuracy"] - columns["baseline"]
        row: Row = {"n_words": len(part), "count": int(counts.sum())}
        for name, values in columns.items():
            weights = np.ones(len(part)) if name == "f1" else counts
            row[name] = float(np.average(values, weights=weights))
            row[f"{name}_low"], row[f"{name}_high"] = self._interval(values, weights)
        return row

    def _interval(self, values: NDArray[Any], weights: NDArray[Any]) -> tuple[float | None, float | None]:
        if len(values) < MIN_WORDS:
            return None, None
        draws = np.random.default_rng(self.settings.seed)
        drawn = draws.integers(len(values), size=(self.settings.resamples, len(values)))
        means = (values * weights)[drawn].sum(1) / weights[drawn].sum(1)
        low, high = np.quantile(means, [0.025, 0.975])
        return float(low), float(high)

    def at(self, model: str, k: int) -> list[Row]:
        """Return the scores by layer, the mean of the last layers at the end."""
        return self.by_layer.filter(model=model, k=k).sort("layer", nulls_last=True).to_dicts()

    @cached_property
    def one_sense(self) -> tuple[int, float | None]:
        """How many test occurrences are of words with one sense in train, and how many of them have that sense."""
        train, test = (self.senses.filter(split=split) for split in (TRAIN, TEST))
        several = train.group_by("target").agg(pl.col("sense").unique().alias("known"))
        found = test.join(several.filter(pl.col("known").list.len() == 1), on="target")
        return len(found), found.select(pl.col("known").list.contains(pl.col("sense")).mean()).item()

    @cached_property
    def unseen(self) -> tuple[int, float | None]:
        """How many test occurrences have no train example, and the accuracy of the most frequent sense of train."""
        train, test = (self.senses.filter(split=split) for split in (TRAIN, TEST))
        rest = test.join(train, on="target", how="anti")
        counts = train.group_by("sense").len()
        best = counts.filter(pl.col("len") == pl.col("len").max())["sense"].to_list()
        return len(rest), float(rest["sense"].is_in(best).mean()) / len(best) if len(rest) else None  # type: ignore[arg-type]


def _between(row: Row, name: str) -> str:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return decimals(row[name]) + (" (interval not determined)" if low is None else f" [{low:.3f}, {high:.3f}]")


def _layer(row: Row, last: int) -> str:
    return f"mean of the last {last}" if row["layer"] is None else str(row["layer"])


def sections(scores: Scores) -> list[Section]:
    """Return every table of the study."""
    return [kinds(scores), *(layers(scores, model) for model in scores.models), by_k(scores), published()]


def kinds(scores: Scores) -> Section:
    """Which test occurrences are ambiguous at all, and what every occurrence together scores."""
    rows: list[Row] = []
    k = scores.settings.ks[0]
    for model in scores.models:
        best = max(scores.at(model, k), key=lambda row: row["accuracy"])
        found = {"two senses or more": (best["count"], best["accuracy"]), "one sense": scores.one_sense}
        found["no example (back-off)"] = scores.unseen
        total = sum(count for count, _ in found.values())
        whole = sum(count * (accuracy or 0) for count, accuracy in found.values()) / total
        found["all"] = total, whole
        name = f"{model}, {_layer(best, scores.settings.last)}"
        for train, (count, accuracy) in found.items():
            rows.append({"model, layer": name, "train": train, "occurrences": count, "accuracy": decimals(accuracy)})
    note = (
        f"Test occurrences by the senses that train has of their word; k = {k}, at the layer of highest accuracy on "
        "test. Back-off: the most frequent sense of all of train. All other tables are of words with two "
        "senses or more in train, since a word of one sense needs no vector."
    )
    return Section("What is ambiguous", note, rows)


def layers(scores: Scores, model: str) -> Section:
    k = scores.settings.ks[0]
    rows: list[Row] = []
    found = scores.at(model, k)
    for row in found:
        cells = {"layer": _layer(row, scores.settings.last), "accuracy": _between(row, "accuracy")}
        rows.append({**cells, "macro F1": _between(row, "f1"), "above most frequent sense": _between(row, "gain")})
    first = found[0]
    note = (
        f"k = {k}; {first['count']:,} test occurrences of {first['n_words']:,} words. Accuracy (micro F1) over "
        f"occurrences; most frequent train sense of the word {_between(first, 'baseline')}, a train sense at random "
        f"{_between(first, 'chance')}. Macro F1: the mean over words of the mean F1 of their senses. In brackets 95 % "
        "bootstrap intervals over words. An interval above 0 in the last column: better than the most frequent sense."
    )
    return Section(f"By layer ({model})", note, rows)


def by_k(scores: Scores) -> Section:
    rows: list[Row] = []
    for model in scores.models:
        for k in scores.settings.ks:
            row = scores.at(model, k)[-1]
            rows.append(
                {"model": model, "k": k, "accuracy": _between(row, "accuracy"), "macro F1": _between(row, "f1")}
            )
    note = (
        f"The mean of the last {scores.settings.last} layers. The paper lets no more neighbours vote than the rarest "
        "train sense of the word has examples, so that frequent senses do not always win."
    )
    return Section("By number of neighbours", note, rows)


def published() -> Section:
    rows = [{"data": data, "system": system, "F1": f"{value:.4f}"} for (data, system), value in SCORES.items()]
    note = (
        "As Papers with Code lists them for the paper; of other data and WordNet's senses, so no difference is given. "
        "The tables of the paper itself were not at hand."
    )
    return Section("Published", note, rows)


def layer_figure(scores: Scores) -> Any:
    """Draw accuracy and macro F1 by layer, a line a model, with the most frequent sense and chance."""
    figure, axes = plot.subplots(1, 2, figsize=(9.2, 3.6))
    k = scores.settings.ks[0]
    for axis, name, title in zip(axes[0], ("accuracy", "f1"), ("accuracy", "macro F1"), strict=True):
        for number, model in enumerate(scores.models):
            rows = scores.by_layer.filter(pl.col("layer").is_not_null(), model=model, k=k).sort("layer")
            columns = (name, f"{name}_low", f"{name}_high")
            draw_line(axis, rows, number=number, label=model, columns=columns)
        if name == "accuracy":
            first = scores.at(scores.models[0], k)[0]
            axis.axhline(first["baseline"], color="#555555", linestyle="--", linewidth=1, label="most frequent sense")
            axis.axhline(first["chance"], color="#555555", linestyle=":", linewidth=1, label="a train sense at random")
        plot.style(axis, title=f"Words with two senses or more, k = {k}", x="layer", y=title)
    add_legend(figure, axes)
    return figure
