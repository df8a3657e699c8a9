"""The tables of Tenney et al. 2019 as they are read, and the report with its figures."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import polars as pl

from embstore import plot
from embstore.studies.report import Row, Shown, decimals, seconds_table
from embstore.studies.tenney2019 import published

if TYPE_CHECKING:
    from embstore.studies.tenney2019.study import Tenney2019

WHERE = ("center_of_gravity", "expected_layer")
SAID = {"center_of_gravity": "center of gravity", "expected_layer": "expected layer"}


def tables(result: Tenney2019) -> list[Shown]:
    """Every table of the study, model after model; scores are micro F1."""
    shown: list[Shown] = []
    for model in result.models:
        after = f" ({model})" if len(result.models) > 1 else ""
        shown += [_summary(result, model, after), _order(result, model, after), _layers(result, model, after)]
    return shown


def scale_line(result: Tenney2019) -> str:
    """What the study was scaled to."""
    scale = result.scale
    sample = "all sentences" if scale.sentences is None else f"at most {scale.sentences:,} sentences of each split"
    return (
        f"Scale: {sample} of each of {len(result.tasks)} tasks (the paper: all), a row a {scale.unit} (subword), "
        f"probes of {scale.hidden_size} units (256), at most {scale.epochs} epochs, seeds "
        f"{', '.join(map(str, scale.seeds))}, a sample with seed {scale.seed}."
    )


def title(task: str) -> str:
    """What the paper's figures call a task."""
    return published.TASKS.get(task, task)


def means(result: Tenney2019, model: str, *, encoder: str = "trained") -> pl.DataFrame:
    """The means over the seeds, without expected layers that have no interval.

    There more than one draw of sentences in twenty gains nothing from P(0) to P(L): a quotient by next to nothing.
    """
    summary = result.summary(model, encoder=encoder)
    if not result.scale.resamples:
        return summary
    return summary.filter((pl.col("metric") != "expected_layer") | pl.col("low").is_not_null())


class Held:
    """The means of one task over the seeds, looked up by metric."""

    def __init__(self, summary: pl.DataFrame, task: str) -> None:
        frame = summary.filter(summary["task"] == task)
        splits = frame["split"].unique(maintain_order=True).to_list()
        self.split = "test" if "test" in splits else "dev"
        self._rows = {(row["split"], row["metric"], row["layer"]): row for row in frame.to_dicts()}
        self.layers = sorted(layer for _, metric, layer in self._rows if metric == "mixing")

    def row(self, metric: str, layer: int | None = None, *, split: str | None = None) -> Row:
        """The row of a metric, of train where only train has it; empty where there is none."""
        chosen = split or self.split
        return self._rows.get((chosen, metric, layer)) or self._rows.get(("train", metric, layer)) or {}

    def value(self, metric: str, layer: int | None = None, *, split: str | None = None) -> float | None:
        found: float | None = self.row(metric, layer, split=split).get("value")
        return found


def with_interval(row: Row, places: int = 3) -> str:
    """A value with its interval, or with its deviation over the seeds."""
    value = row.get("value")
    if value is None:
        return ""
    if row.get("low") is not None and row.get("high") is not None:
        return f"{value:.{places}f} [{row['low']:.{places}f}, {row['high']:.{places}f}]"
    deviation = row.get("deviation")
    return f"{value:.{places}f}" + ("" if deviation is None else f" ± {deviation:.{places}f}")


def _summary(result: Tenney2019, model: str, after: str) -> Shown:
    held = means(result, model)
    drawn = means(result, model, encoder="untrained")
    rows = []
    for task in result.tasks:
        own, other = Held(held, task), Held(drawn, task)
        first, last = own.layers[0], own.layers[-1]
        row: Row = {
            "task": title(task),
            "targets": own.row("majority_f1").get("count"),
            "majority": decimals(own.value("majority_f1")),
            "P(0)": with_interval(own.row("f1", first)),
            "P(L)": with_interval(own.row("f1", last)),
            "dev": " → ".join(decimals(own.value("f1", layer, split="dev")) for layer in (first, last)),
        }
        if other.layers:
            row["random weights"] = decimals(other.value("f1", other.layers[-1]))
        if result.scale.control:
            row["selectivity"] = decimals(own.value("selectivity", last))
        for metric in WHERE:
            row[SAID[metric]] = with_interval(own.row(metric), 2)
        row["K(s)"] = decimals(own.value("mixing_kl"))
        row["K(Δ)"] = decimals(own.value("differential_kl"))
        rows.append(row)
    note = (
        "Micro F1 of P(0) and P(L) and expected layer on test, in brackets 95 % intervals over sentences; ±: deviation "
        "over the seeds. dev: F1 of P(0) and P(L) there; the paper reports it, ours also stop by it. Majority: the "
        "best constant answer. Random weights: P(L) on a network that was never trained. The numbers of the paper's "
        "figures are of other models and data, and not in its text. No expected layer: too little is gained from P(0) "
        "to P(L) to ask where."
    )
    return Shown(f"Figure 1. Tasks by metrics{after}", note, rows)


def order(result: Tenney2019, model: str, metric: str) -> list[tuple[str, Row]]:
    """The tasks by center of gravity or by expected layer, lowest first; those that have none are left out."""
    summary = means(result, model)
    rows = [(task, Held(summary, task).row(metric)) for task in result.tasks]
    return sorted((each for each in rows if each[1].get("value") is not None), key=lambda each: each[1]["value"])


def agreement(tasks: Sequence[str]) -> tuple[int, int]:
    """Of the pairs that the paper orders, how many stand in its order, and how many there are."""
    places = {task: place for place, task in enumerate(tasks)}
    pairs = [pair for pair in combinations(published.ORDER, 2) if set(pair) <= set(places)]
    return sum(places[first] < places[second] for first, second in pairs), len(pairs)


def reach(row: Row) -> tuple[float, float]:
    """The interval of a row: its own, or two deviations to either side, or the value alone."""
    value = float(row["value"])
    low, high = row.get("low"), row.get("high")
    if low is not None and high is not None:
        return float(low), float(high)
    spread = 2 * float(row.get("deviation") or 0)
    return value - spread, value + spread


def _order(result: Tenney2019, model: str, after: str) -> Shown:
    said = [title(task) for task in published.ORDER if task in result.tasks]
    rows = [{"by": "the paper, both", "order": " < ".join(said), "in its order": "", "told apart": ""}]
    for metric in WHERE:
        held = order(result, model, metric)
        right, pairs = agreement([task for task, _ in held])
        known = {task: reach(row) for task, row in held}
        ordered = [pair for pair in combinations(published.ORDER, 2) if set(pair) <= set(known)]
        apart = sum(known[a][1] < known[b][0] or known[b][1] < known[a][0] for a, b in ordered)
        rows.append(
            {
                "by": SAID[metric],
                "order": " < ".join(f"{title(task)} {row['value']:.2f}" for task, row in held),
                "in its order": f"{right} of {pairs} pairs",
                "told apart": f"{apart} of {pairs}",
            }
        )
    note = (
        "Lowest first. In its order: of the pairs among the tasks that the paper orders. Told apart: intervals (of "
        "centers of gravity two deviations over seeds) that do not overlap."
    )
    return Shown(f"The order of tasks{after}", note, rows)


def _layers(result: Tenney2019, model: str, after: str) -> Shown:
    summary = means(result, model)
    rows: list[Row] = []
    for task in result.tasks:
        own = Held(summary, task)
        kinds: list[tuple[str, str]] = [
            ("F1 of P(l)", "f1"),
            ("mixing weight", "mixing"),
            ("differential", "differential"),
        ]
        if result.scale.layerwise:
            kinds.insert(1, ("F1 of layer l", "layer_f1"))
        for said, metric in kinds:
            values: dict[str, Any] = {str(layer): decimals(own.value(metric, layer)) for layer in own.layers}
            rows.append({"task": title(task), "": said, **values})
    return Shown(f"Figure 2. By layer{after}", "Columns are layers.", rows)


def _figures(result: Tenney2019) -> dict[str, str]:
    """Write every figure; their files and titles."""
    frames = {model: means(result, model) for model in result.models}
    named = {model: frame.with_columns(pl.col("task").replace(published.TASKS)) for model, frame in frames.items()}
    first = named[next(iter(named))]
    made = {
        "figure1.png": ("Figure 1. Summary", plot.edge_summary(first)),
        "figure2.png": ("Figure 2. By layer", plot.edge_layers(first)),
        "figureA1.png": ("Figure A.1. Mixing weights", plot.mixing_layers(named)),
    }
    if len(named) > 1:
        made["figureA2.png"] = ("Figure A.2. Summary by model", plot.edge_summary(named))
        made["figureA3.png"] = ("Figure A.3. By layer and model", plot.edge_layers(named))
    for name, (_, figure) in made.items():
        plot.save(figure, result.folder / "figures" / name)
    return {name: said for name, (said, _) in made.items()} | dict.fromkeys(result.traces, "Figure 3. A trace")


def write_report(result: Tenney2019) -> None:
    """Leave report.md, with every table and figure, in the study's folder."""
    models = ", ".join(f"{name} ({model})" if name != model else name for name, model in result.models.items())
    lines = ["# The NLP pipeline after Tenney et al. 2019", "", f"{models}. {scale_line(result)}", ""]
    for table in tables(result):
        lines += table.markdown()
    lines += ["## Figures", "", *(f"![{said}](figures/{name})\n" for name, said in _figures(result).items())]
    if result.notes:
        lines += ["## Notes", "", *(f"- {note}" for note in result.notes), ""]
    lines += seconds_table(dict(result.seconds)).markdown()
    (result.folder / "report.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
