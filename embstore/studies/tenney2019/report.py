"""The tables and figures of Tenney et al. 2019."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import polars as pl

from embstore import plot
from embstore.probes import summary
from embstore.studies.study import Row, Section, decimals
from embstore.studies.tasks import TASKS
from embstore.studies.tenney2019 import published
from embstore.studies.tenney2019.published import ORDER
from embstore.studies.tenney2019.settings import Tenney2019

LEAST_SEEDS = 3  # for a spread over seeds
SPREADS = (4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)  # deviations with 95 % of Student's t, of 3 to 10 seeds
WHERE = {"center_of_gravity": "center of gravity", "expected_layer": "expected layer"}


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of one run of the study: `frame` of model, encoder, task, layer, split, metric, value and so on."""

    settings: Tenney2019
    models: Mapping[str, str]
    tasks: Sequence[str]
    frame: pl.DataFrame

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
        found.append(layers_table(scores, model, suffix))
    return found


def with_interval(row: Row, places: int = 3) -> str:
    """Format a value with its interval, or with its deviation over the seeds."""
    value = row.get("value")
    if value is None:
        return "not determined" if row.get("item") else ""
    if row.get("low") is not None and row.get("high") is not None:
        return f"{value:.{places}f} [{row['low']:.{places}f}, {row['high']:.{places}f}]"
    deviation = row.get("deviation")
    return f"{value:.{places}f}" + ("" if deviation is None else f" ± {deviation:.{places}f}")


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
        row["K(s)"] = decimals(own.value("mixing_kl"))
        row["K(Δ)"] = decimals(own.value("differential_kl"))
        rows.append(row)
    note = (
        "Micro F1 of P(0) and P(L) and expected layer on test; in brackets 95 % intervals over sentences; ±: deviation "
        "over the seeds. dev: F1 of P(0) and P(L) on dev, which early stopping uses too. Majority: the "
        "best constant answer. Random weights: P(L) on an untrained network. Paper: BERT-large on OntoNotes, dev, as "
        "far as the text states it; its Figure 1 has the other numbers. An expected layer is not determined if it or "
        "its interval is not within the layers: the notes say why."
    )
    return Section(f"Figure 1. Tasks by metric{suffix}", note, rows)


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
    """Return the 95 % spread over seeds by Student's t, and the interval over sentences if that reaches further.

    None for fewer than LEAST_SEEDS seeds, whose spread is not known.
    """
    value, deviation = row["value"], row.get("deviation")
    if deviation is None or row["seeds"] < LEAST_SEEDS:
        return None
    spread = SPREADS[min(row["seeds"] - LEAST_SEEDS, len(SPREADS) - 1)] * deviation
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
        "(95 % over seeds by Student's t, and for expected layers the interval over sentences where that is wider) "
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


def draw(scores: Scores, folder: Path) -> dict[str, str]:
    """Write every figure; returns titles by file name."""
    named = {model: scores.means(model).with_columns(pl.col("task").replace(TASKS)) for model in scores.models}
    first = next(iter(named.values()))
    figures = {
        "figure1.png": ("Figure 1. Summary", plot.edge_summary(first)),
        "figure2.png": ("Figure 2. By layer", plot.edge_layers(first)),
        "figureA1.png": ("Figure A.1. Mixing weights", plot.mixing_layers(named)),
    }
    if len(named) > 1:
        figures["figureA2.png"] = ("Figure A.2. Summary by model", plot.edge_summary(named))
        figures["figureA3.png"] = ("Figure A.3. By layer and model", plot.edge_layers(named))
    for name, (_, figure) in figures.items():
        plot.save(figure, folder / name)
    return {name: title for name, (title, _) in figures.items()}
