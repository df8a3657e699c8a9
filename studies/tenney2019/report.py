"""The tables and figures of Tenney et al. 2019."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import sqrt
from pathlib import Path
from typing import Any

import polars as pl

from embstore import plot
from embstore.probes import summary
from embstore_studies.study import Row, Section, decimals
from embstore_studies.tasks import TASKS
from embstore_studies.tenney2019 import published
from embstore_studies.tenney2019.published import ORDER
from embstore_studies.tenney2019.settings import Tenney2019

LEAST_SEEDS = 3  # for a spread over seeds
STUDENT = (4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # quantiles .975 of Student's t, for 3 to 10 seeds
WHERE = {"center_of_gravity": "center of gravity", "expected_layer": "expected layer"}
CHANGES = {
    "gained": "wrong → right",
    "lost": "right → wrong",
    "returned": "of these, back to an earlier decision",
    "by_seed": "right by one seed alone",
}


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of one run of the study: `frame` of model, encoder, task, layer, split, metric, value and so on.

    `reversals`: by model, see `decision_reversals`.
    """

    settings: Tenney2019
    models: Mapping[str, str]
    tasks: Sequence[str]
    frame: pl.DataFrame
    reversals: Mapping[str, pl.DataFrame] = field(default_factory=dict)

    def means(self, model: str, *, encoder: str = "trained") -> pl.DataFrame:
        """Return means over the seeds."""
        return summary(self.frame.filter(model=model, encoder=encoder).drop("model", "encoder"))


class TaskScores:
    """The means of one task over the seeds, looked up by metric."""

    def __init__(self, means: pl.DataFrame, task: str) -> None:
        frame = means.filter(task=task)
        self.split = "test" if "test" in frame["split"] else "dev"
        self._rows = {(row["split"], row["metric"], row["layer"]): row for row in frame.to_dicts()}
        self.layers = sorted(layer for _, metric, layer in self._rows if metric == "mixing")

    def row(self, metric: str, layer: int | None = None, *, split: str | None = None) -> Row:
        """Return the row of a metric, that of train if only train has it; empty if there is none."""
        chosen = split or self.split
        return self._rows.get((chosen, metric, layer)) or self._rows.get(("train", metric, layer)) or {}

    def shares(self) -> list[tuple[float | None, int]]:
        """Return differential scores by their sum, as in Figure 2, each with its layer; None without a sum above 0."""
        scores = [self.value("differential", layer) for layer in self.layers]
        total = sum(each for each in scores if each is not None)
        return [
            (None if each is None or total <= 0 else each / total, layer)
            for each, layer in zip(scores, self.layers, strict=True)
        ]

    def value(self, metric: str, layer: int | None = None, *, split: str | None = None) -> float | None:
        found: float | None = self.row(metric, layer, split=split).get("value")
        return found


def title_of(task: str) -> str:
    """Return the name of a task in the paper's figures."""
    return TASKS.get(task, task)


def sections(scores: Scores) -> list[Section]:
    """Return every table of the study, model after model; scores are micro F1."""
    found: list[Section] = []
    for model in scores.models:
        suffix = f" ({model})" if len(scores.models) > 1 else ""
        found += [tasks_table(scores, model, suffix), order_table(scores, model, suffix)]
        found += [layers_table(scores, model, suffix), reversals_table(scores, model, suffix)]
    found.append(depth_table(scores))
    return found


def with_interval(row: Row, places: int = 3) -> str:
    """Format a value with its deviation over the seeds and its interval: over sentences, or else of the mean."""
    value, deviation, low = row.get("value"), row.get("deviation"), row.get("low")
    if value is None:
        return "not determined" if row.get("item") else ""
    shown = f"{value:.{places}f}" + ("" if deviation is None else f" ± {deviation:.{places}f}")
    ends = interval(row) if low is None else (low, row["high"])
    return shown if ends is None else f"{shown} [{ends[0]:.{places}f}, {ends[1]:.{places}f}]"


def tasks_table(scores: Scores, model: str, suffix: str) -> Section:
    trained, untrained = scores.means(model), scores.means(model, encoder="untrained")
    rows = []
    for task in scores.tasks:
        own, random = TaskScores(trained, task), TaskScores(untrained, task)
        first, last = own.layers[0], own.layers[-1]
        row: Row = {
            "task": title_of(task),
            "targets": own.row("majority_f1").get("count"),
            "majority": decimals(own.value("majority_f1")),
            "P(0)": with_interval(own.row("f1", first)),
            "P(L)": with_interval(own.row("f1", last)),
            "dev": " → ".join(decimals(own.value("f1", layer, split="dev")) for layer in (first, last)),
        }
        if random.layers:
            row["random weights"] = decimals(random.value("f1", random.layers[-1]))
        row["paper"] = f"P(0) {decimals(published.POS_AT_LAYER_0)}" if task == "pos" else ""
        if scores.settings.control:
            row["selectivity"] = decimals(own.value("selectivity", last))
        for metric, name in WHERE.items():
            row[name] = with_interval(own.row(metric), 2)
            row[f"{name}, paper"] = next_to_ours(published.FIGURE1.get(task, {}).get(metric), own.value(metric), last)
        row["K(s)"] = decimals(own.value("mixing_kl"))
        row["K(Δ)"] = decimals(own.value("differential_kl"))
        rows.append(row)
    note = (
        "Micro F1 of P(0) and P(L) and expected layer on test; ±: deviation over the seeds; in brackets 95 % intervals "
        "over sentences, and of centers of gravity that of the mean over the seeds by Student's t. dev: F1 of P(0) and "
        "P(L) on dev, which early stopping uses too. Majority: the best constant answer. Random weights: P(L) on an "
        f"untrained network. Paper: BERT-large ({published.N_LAYERS} layers) on OntoNotes and others, dev; what is "
        "empty is in the drawing alone. Only a model of as many layers has a difference, in parentheses. An expected "
        "layer is not determined if it or its interval is not within the layers: the notes say why."
    )
    return Section(f"Figure 1. Tasks by metric{suffix}", note, rows)


def next_to_ours(paper: float | None, value: float | None, last: int) -> str:
    """Format a layer of the paper, with our difference from it if our model has as many layers."""
    if paper is None:
        return ""
    comparable = value is not None and last == published.N_LAYERS
    return f"{paper:.2f}" + (f" ({value - paper:+.2f})" if comparable and value is not None else "")


def depth_table(scores: Scores) -> Section:
    rows = []
    for task in scores.tasks:
        row: Row = {"task": title_of(task)}
        for model in scores.models:
            own = TaskScores(scores.means(model), task)
            first, last = own.layers[0], own.layers[-1]
            row[f"{model}: P(0) → P(L)"] = " → ".join(decimals(own.value("f1", layer)) for layer in (first, last))
            for metric, name in WHERE.items():
                value = own.value(metric)
                row[f"{model}: {name}"] = "" if value is None or not last else f"{value / last:.2f}"
        for metric, name in WHERE.items():
            value = published.FIGURE1.get(task, {}).get(metric)
            row[f"paper: {name}"] = "" if value is None else f"{value / published.N_LAYERS:.2f}"
        rows.append(row)
    note = (
        "Centers of gravity and expected layers as shares of a model's depth, which makes models of different depth "
        "comparable: in the paper tasks concentrate at the same share of BERT-base and BERT-large. Paper: BERT-large. "
        "The texts and annotations differ, so no difference is given."
    )
    return Section("Figure A.2. Tasks by depth, models side by side", note, rows)


def order(scores: Scores, model: str, metric: str) -> list[tuple[str, Row]]:
    """Return the tasks by center of gravity or expected layer, lowest first, without those that have none."""
    means = scores.means(model)
    rows = [(task, TaskScores(means, task).row(metric)) for task in scores.tasks]
    return sorted((each for each in rows if each[1].get("value") is not None), key=lambda each: each[1]["value"])


def agreement(tasks: Sequence[str]) -> tuple[int, int]:
    """Return how many of the pairs that the paper orders are in its order, and how many there are."""
    places = {task: place for place, task in enumerate(tasks)}
    pairs = [pair for pair in combinations(ORDER, 2) if set(pair) <= set(places)]
    return sum(places[first] < places[second] for first, second in pairs), len(pairs)


def interval(row: Row) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean over seeds by Student's t, wider if that over sentences reaches further.

    None for fewer than LEAST_SEEDS seeds, whose spread is not known.
    """
    value, deviation, count = row["value"], row.get("deviation"), row.get("seeds", 0)
    if deviation is None or count < LEAST_SEEDS:
        return None
    spread = STUDENT[min(count - LEAST_SEEDS, len(STUDENT) - 1)] * deviation / sqrt(count)
    ends = [value - spread, value + spread]
    ends += [row[name] for name in ("low", "high") if row.get(name) is not None]
    return min(ends), max(ends)


def order_table(scores: Scores, model: str, suffix: str) -> Section:
    known = [title_of(task) for task in ORDER if task in scores.tasks]
    rows = [{"by": "the paper, both", "order": " < ".join(known), "in its order": "", "distinct": ""}]
    for metric, name in WHERE.items():
        ordered = order(scores, model, metric)
        right, n_pairs = agreement([task for task, _ in ordered])
        intervals = {task: found for task, row in ordered if (found := interval(row)) is not None}
        pairs = [pair for pair in combinations(ORDER, 2) if set(pair) <= set(intervals)]
        distinct = sum(intervals[a][1] < intervals[b][0] or intervals[b][1] < intervals[a][0] for a, b in pairs)
        has_spread = len(intervals) == len(ordered)
        rows.append(
            {
                "by": name,
                "order": " < ".join(f"{title_of(task)} {row['value']:.2f}" for task, row in ordered),
                "in its order": f"{right} of {n_pairs} pairs",
                "distinct": f"{distinct} of {n_pairs}" if has_spread else f"not known: under {LEAST_SEEDS} seeds",
            }
        )
    note = (
        "Lowest first. In its order: of the pairs of tasks that the paper orders. Distinct: pairs whose intervals "
        "(95 % of the mean over seeds by Student's t, and for expected layers over sentences where that is wider) "
        f"do not overlap; this takes {LEAST_SEEDS} seeds or more. A seed is the initial weights, the dropout "
        "and the order of the sentences."
    )
    return Section(f"The order of tasks{suffix}", note, rows)


def layers_table(scores: Scores, model: str, suffix: str) -> Section:
    means = scores.means(model)
    kinds = {
        "f1": "F1 of P(l)",
        "mixing": "mixing weight",
        "differential": "differential (F1)",
        "share": "differential, share of the sum",
    }
    if scores.settings.layerwise:
        kinds["layer_f1"] = "F1 of layer l"
    rows: list[Row] = []
    for task in scores.tasks:
        own = TaskScores(means, task)
        for metric, name in kinds.items():
            values = own.shares() if metric == "share" else [(own.value(metric, layer), layer) for layer in own.layers]
            known = [(value, layer) for value, layer in values if value is not None]
            row: Row = {"task": title_of(task), "": name, **{str(layer): decimals(value) for value, layer in values}}
            rows.append(row | {"highest": f"{max(known)[1]} of {own.layers[-1]}" if known else ""})
    (low, high), (first, last), depth = published.HIGHEST_WEIGHTS, published.HIGHEST_GAINS, published.N_LAYERS
    note = (
        "Columns are layers; highest: the layer of the greatest value. The paper, of BERT-large and most tasks: mixing "
        f"weights are highest in layers {low}-{high} of {depth}, differentials in layers {first}-{last}."
    )
    return Section(f"Figure 2. By layer{suffix}", note, rows)


def reversals_table(scores: Scores, model: str, suffix: str) -> Section:
    rows: list[Row] = []
    for task in scores.tasks:
        frame = scores.reversals[model].filter(task=task)
        for change, name in CHANGES.items():
            if frame[change].null_count():
                continue
            by_layer = {str(row["layer"]): row[change] for row in frame.to_dicts()}
            rows.append({"task": title_of(task), "edges": frame["edges"].first(), "": name, **by_layer})
    note = (
        "Edges (a target and one right label) of dev for which the answer of P(l) is right and that of P(l - 1) wrong, "
        "or the reverse, by the probes of the first seed; columns are l. Right by one seed alone: what P(l) of the "
        "first two seeds decide differently, with nothing else changed. Changes that are not more than these are no "
        "evidence for a layer."
    )
    return Section(f"Decision reversals{suffix}", note, rows)


def reversals_figure(scores: Scores) -> Any:
    """Draw the share of edges that each layer changes, a panel for each task (rows) and model (columns)."""
    size = 1.2 + 4.4 * len(scores.models), 0.9 + 1.05 * len(scores.tasks)
    figure, axes = plot.subplots(len(scores.tasks), len(scores.models), figsize=size, sharex="col")
    for column, model in enumerate(scores.models):
        for axis, task in zip(axes[:, column], scores.tasks, strict=True):
            frame = scores.reversals[model].filter(task=task)
            layers, edges = frame["layer"].to_list(), frame["edges"].to_numpy()
            for change, sign, color in (("gained", 1, plot.PALETTE[0]), ("lost", -1, plot.PALETTE[1])):
                axis.bar(layers, sign * frame[change].to_numpy() / edges, 0.8, color=color, label=CHANGES[change])
            if not frame["by_seed"].null_count():
                half = frame["by_seed"].to_numpy() / edges / 2
                label = f"{CHANGES['by_seed']}, half on each side"
                axis.errorbar(layers, 0 * half, half, fmt="none", ecolor="black", label=label)
            axis.axhline(0, color="#999999", linewidth=0.8)
            axis.set_title(title_of(task), fontsize=9, loc="left")
            axis.set_xticks(layers)
            axis.tick_params(labelsize=8)
            axis.spines[["top", "right"]].set_visible(False)
        axes[-1, column].set_xlabel(f"layer of {model}" if len(scores.models) > 1 else "layer", fontsize=9)
    figure.supylabel("share of the edges that change at the layer", fontsize=9)
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncol=3, frameon=False, fontsize=8
    )
    return figure


def draw(scores: Scores, folder: Path) -> dict[str, str]:
    """Write every figure; returns titles by file name."""
    named = {model: scores.means(model).with_columns(pl.col("task").replace(TASKS)) for model in scores.models}
    first = next(iter(named.values()))
    figures = {
        "figure1.png": ("Figure 1. Summary", plot.edge_summary(first)),
        "figure2.png": ("Figure 2. By layer", plot.edge_layers(first)),
        "figureA1.png": ("Figure A.1. Mixing weights", plot.mixing_layers(named)),
        "reversals.png": ("Decision reversals by layer", reversals_figure(scores)),
    }
    if len(named) > 1:
        figures["figureA2.png"] = ("Figure A.2. Summary by model", plot.edge_summary(named))
        figures["figureA3.png"] = ("Figure A.3. By layer and model", plot.edge_layers(named))
    for name, (_, figure) in figures.items():
        plot.save(figure, folder / name)
    return {name: title for name, (title, _) in figures.items()}
