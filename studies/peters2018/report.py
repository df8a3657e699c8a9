"""The tables and the figure of the study of Peters et al. 2018, with intervals over documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from embstore import plot
from embstore.plot.drawing import add_legend, draw_line
from embstore_studies.peters2018.published import CLAIM
from embstore_studies.peters2018.settings import Peters2018
from embstore_studies.pronouns import Pronoun
from embstore_studies.study import Row, Section, decimals

BASELINES = {"recent": "most recent", "first": "first", "chance": "random"}
MIN_DOCUMENTS = 2  # for an interval
Shown = Callable[..., str]
Interval = tuple[float, float | None, float | None]  # a mean and the ends of its interval


@dataclass(frozen=True, eq=False)
class Scores:
    """`frame`: the choices for `pronouns` by model and layer, with and without the mean of all spans."""

    settings: Peters2018
    pronouns: Sequence[Pronoun]
    frame: pl.DataFrame

    @property
    def models(self) -> list[str]:
        return self.frame["model"].unique(maintain_order=True).to_list()

    def of(self, model: str, *, centered: bool = False) -> pl.DataFrame:
        """Return the choices for ambiguous pronouns."""
        return self.frame.filter("ambiguous", model=model, centered=centered)

    def layers(self, model: str) -> list[int]:
        return self.frame.filter(model=model)["layer"].unique().sort().to_list()

    def mean(self, frame: pl.DataFrame, value: str | pl.Expr) -> Interval:
        """Return the mean of a column and its 95 % interval, by resampling documents."""
        name = pl.col(value) if isinstance(value, str) else value
        sums = frame.group_by("document").agg(name.sum().alias("sum"), pl.len()).sort("document")
        total, count = sums["sum"].to_numpy(), sums["len"].to_numpy()
        mean = float(total.sum() / count.sum())
        if len(sums) < MIN_DOCUMENTS:
            return mean, None, None
        draws = np.random.default_rng(self.settings.seed)
        drawn = draws.integers(len(sums), size=(self.settings.resamples, len(sums)))
        low, high = np.quantile(total[drawn].sum(1) / count[drawn].sum(1), [0.025, 0.975])
        return mean, float(low), float(high)


def _shown(found: Interval) -> str:
    mean, low, high = found
    return decimals(mean) + (" (interval not determined)" if low is None else f" [{low:.3f}, {high:.3f}]")


def sections(scores: Scores, marked: Shown) -> list[Section]:
    """Return every table of the study."""
    found = [Section("What the paper states", CLAIM_NOTE, [claim(scores)])]
    for model in scores.models:
        found.append(pronouns(scores, model))
        found += [examples(scores, model, marked)] if scores.settings.examples else []
    return found


CLAIM_NOTE = (
    "The accuracy of the upper half of the layers with context less that of the lower half, with its 95 % interval "
    "over documents. The abstract gives an order and no number; no published number is shown."
)


def claim(scores: Scores) -> Row:
    """What the abstract states, and whether it holds for each model: the upper half of the layers less the lower."""
    row: Row = {"the paper": CLAIM}
    for model in scores.models:
        layers = [layer for layer in scores.layers(model) if layer > 0]
        half = len(layers) // 2
        if not half:
            row[model] = "not determined: fewer than two layers with context"
            continue
        frame = scores.of(model)
        upper = frame.filter(pl.col("layer").is_in(layers[-half:]))
        lower = frame.filter(pl.col("layer").is_in(layers[:half]))
        signed = pl.concat([upper, lower.with_columns(value=-pl.col("value"))])  # its mean is half the difference
        mean, low, high = scores.mean(signed, 2 * pl.col("value"))
        verdict = "not determined"
        if low is not None and high is not None and not low <= 0 <= high:
            verdict = "yes" if low > 0 else "no"
        row[model] = f"{_shown((mean, low, high))}: {verdict}"
    return row


def pronouns(scores: Scores, model: str) -> Section:
    """The share of pronouns that are resolved, by layer."""
    rows: list[Row] = []
    frame, centered = scores.of(model), scores.of(model, centered=True)
    for layer in scores.layers(model):
        own = frame.filter(layer=layer)
        nouns = own.filter(~pl.col("after_pronoun"))
        row = {
            "layer": layer,
            "accuracy": _shown(scores.mean(own, "value")),
            "mean of all spans subtracted": _shown(scores.mean(centered.filter(layer=layer), "value")),
            "above most recent": _shown(scores.mean(own, pl.col("value") - pl.col("recent"))),
            f"no earlier pronoun ({len(nouns):,})": _shown(scores.mean(nouns, "value")) if len(nouns) else "",
        }
        rows.append(row)
    one = frame.filter(layer=frame["layer"][0])
    baselines = ", ".join(f"{name} {_shown(scores.mean(one, key))}" for key, name in BASELINES.items())
    alone = len(scores.pronouns) - len(one)
    note = (
        f"The share of {len(one):,} pronouns in {one['document'].n_unique():,} documents whose nearest earlier mention "
        f"by cosine corefers; {alone:,} more have right mentions alone and are not counted. The candidate that is: "
        f"{baselines}. A candidate may be the same pronoun, found by its form alone even without context; the last "
        "column is of pronouns without an earlier one. In brackets 95 % bootstrap intervals over documents."
    )
    return Section(f"Antecedents of pronouns ({model})", note, rows)


def examples(scores: Scores, model: str, marked: Shown) -> Section:
    """Pronouns that the best layer resolves and layer 0 does not, those of the shortest sentences."""
    frame = scores.of(model)
    means = frame.group_by("layer").agg(pl.col("value").mean()).sort(["value", "layer"], descending=[True, False])
    best, first = means["layer"][0], scores.layers(model)[0]
    pair = frame.filter(layer=best).join(frame.filter(layer=first), on="pronoun", suffix="_first")
    gained = pair.filter((pl.col("value") == 1) & (pl.col("value_first") == 0))["pronoun"].to_list()
    lost = pair.filter((pl.col("value") == 0) & (pl.col("value_first") == 1))["pronoun"].to_list()
    texts = []
    for number in gained:
        pronoun = scores.pronouns[number]
        antecedents = [span for span, right in zip(pronoun.candidates, pronoun.right, strict=True) if right]
        texts.append(marked(pronoun.sentence, pronoun.span, antecedents[-1]))
    rows = [{"pronoun and antecedent": text} for text in sorted(texts, key=lambda text: (len(text), text))]
    note = (
        f"{len(gained):,} pronouns are right in layer {best} alone of the two, {len(lost):,} in layer {first} alone. "
        "The shortest sentences of the former, with the last antecedent."
    )
    return Section(
        f"Resolved in layer {best} and not in layer {first} ({model})", note, rows[: scores.settings.examples]
    )


def layer_figure(scores: Scores) -> Any:
    """Draw the accuracy by layer, a line a model, with baselines."""
    figure, axes = plot.subplots(1, 1, figsize=(4.8, 3.6))
    axis = axes[0, 0]
    for number, model in enumerate(scores.models):
        frame = scores.of(model)
        means = [(layer, *scores.mean(frame.filter(layer=layer), "value")) for layer in scores.layers(model)]
        rows = pl.DataFrame(means, schema=["layer", "value", "low", "high"], orient="row")
        draw_line(axis, rows, number=number, label=model, columns=("value", "low", "high"))
    baselines = scores.of(scores.models[0])
    for line, (column, name) in zip(("--", "-.", ":"), BASELINES.items(), strict=True):
        axis.axhline(baselines[column].mean(), color="#555555", linestyle=line, linewidth=1, label=name)
    plot.style(axis, title="Antecedents of pronouns", x="layer", y="accuracy")
    add_legend(figure, axes)
    return figure
