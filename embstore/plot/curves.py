"""Figures of lines: geometry and the scores of probes by layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import numpy as np

from embstore.errors import InvalidValueError, check_choice, check_columns
from embstore.plot.drawing import add_legend, check_drawable, choose_split, draw_line, floats, panels, style

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

_ADJUSTED = ("adjusted", "adjusted_low", "adjusted_high")
# Figures 1-4 of Ethayarajh 2019: metric, title, label of the axis, and the columns of the value and its interval.
GEOMETRY_PANELS = (
    ("anisotropy", "Anisotropy: two random words", "mean cosine", ("value", "low", "high")),
    ("selfsim", "Self-similarity: a word across sentences", "mean cosine, minus anisotropy", _ADJUSTED),
    ("intrasim", "Intra-sentence similarity", "mean cosine, minus anisotropy", _ADJUSTED),
    ("mev", "Maximum explainable variance", "share of one static vector, minus baseline", _ADJUSTED),
)
CODE_LENGTHS = {"code_length": "each layer alone", "control_length": "control task"}
# Metric of structural probes -> title and label of the axis.
STRUCTURE_PANELS = {
    "uuas": ("edges found (UUAS)", "share of gold edges"),
    "dspr": ("distances (DSpr)", "Spearman correlation"),
    "root_accuracy": ("roots found", "share of sentences"),
    "nspr": ("depths (NSpr)", "Spearman correlation"),
}


def geometry_figure(
    frames: pl.DataFrame | Mapping[str, pl.DataFrame], *, published: Mapping[str, pl.DataFrame] | None = None
) -> Figure:
    """Draw Figures 1-4 of Ethayarajh 2019: a panel for each metric, a line for each store by its name.

    `frames`: that of `summarize_geometry`, or several by name, with the columns `metric, layer` and, as the metric
    needs, `value` (anisotropy) or `adjusted` (selfsim, intrasim, mev), one row a metric and layer. If `low, high` or
    `adjusted_low, adjusted_high` exist the interval is shaded. `published`: such frames of others, drawn dashed.
    Raises InvalidValueError if no metric can be drawn.
    """
    frames = {"": cast("pl.DataFrame", frames)} if hasattr(frames, "get_column") else frames
    check_drawable(frames, ("items",), "a frame of summarize_geometry, or several by name")
    dashed = published or {}
    for name, frame in [*frames.items(), *dashed.items()]:
        check_columns(frame, ("metric", "layer"), f"the frame of {name}")
    metrics = {metric for frame in frames.values() for metric in frame["metric"].unique().to_list()}
    drawn = [panel for panel in GEOMETRY_PANELS if panel[0] in metrics]
    if not drawn:
        known = ", ".join(panel[0] for panel in GEOMETRY_PANELS)
        raise InvalidValueError(f"there is no metric to draw: give frames with one or more of {known}")
    figure, axes = panels(len(drawn), columns=3 if len(drawn) == 3 else 2)
    layers = [layer for frame in [*frames.values(), *dashed.values()] for layer in frame["layer"]]
    for (metric, title, label, columns), axis in zip(drawn, axes, strict=True):
        for number, (name, frame) in enumerate([*frames.items(), *dashed.items()]):
            part = frame.filter(frame["metric"].cast(str) == metric)
            if len(part):
                check_columns(part, columns[:1], f"the frame of {name}, metric {metric},")
                line = "-" if number < len(frames) else "--"
                draw_line(axis, part, number=number, label=name, columns=columns, linestyle=line)
        axis.axhline(0, color="#999999", linewidth=0.8, zorder=0)
        style(axis, title=title, x="layer", y=label, layers=layers)
    add_legend(figure, axes)
    return figure  # type: ignore[no-any-return]


def probe_scores(summary: pl.DataFrame, *, metric: str | None = None, split: str | None = None) -> Figure:
    """Draw the score of class or row probes by layer, a line for each store, from `ProbeResult.summary()`.

    The band is one standard deviation over the seeds; control tasks are dashed. Default: f1 on test, where they exist.
    """
    check_columns(summary, ("store", "task", "layer", "split", "metric", "item", "value"), "the frame of scores")
    of_all = summary.filter((summary["item"] == "") & summary["layer"].is_not_null())
    metrics = of_all["metric"].unique(maintain_order=True).to_list()
    metric = metric or next((name for name in ("f1", "accuracy", *metrics) if name in metrics), "")
    check_choice("metric", metric, metrics)
    scores = of_all.filter(metric=metric)
    chosen = choose_split(scores["split"], split)
    scores = scores.filter(scores["split"] == chosen)
    figure, (axis,) = panels(1, height=2.4)
    stores = scores["store"].unique(maintain_order=True).to_list()
    for (store, task), part in scores.partition_by("store", "task", as_dict=True, maintain_order=True).items():
        label, line = (str(store), "-") if task == scores["task"][0] else (f"{store}, {task}", "--")
        draw_line(axis, part, number=stores.index(store), label=label, linestyle=line)
    style(axis, title=f"Probes: {metric} by layer", x="layer", y=f"{metric} ({chosen})", layers=[*scores["layer"]])
    add_legend(figure, [axis])
    return figure  # type: ignore[no-any-return]


def code_lengths(summary: pl.DataFrame) -> Figure:
    """Draw the code length of each layer (Voita & Titov 2020), a panel for each task, from `ProbeResult.summary()`.

    The band is one standard deviation over the seeds; the dashed line is the code by label frequencies.
    """
    check_columns(summary, ("task", "layer", "metric", "value"), "the frame of code lengths")
    tasks = summary.filter(summary["metric"].is_in(list(CODE_LENGTHS)))["task"].unique(maintain_order=True).to_list()
    if not tasks:
        raise InvalidValueError("there are no code lengths to draw: give the summary of a description length probe")
    figure, axes = panels(len(tasks), columns=3, height=1.8)
    for task, axis in zip(tasks, axes, strict=True):
        rows = summary.filter(summary["task"] == task)
        for number, (metric, label) in enumerate(CODE_LENGTHS.items()):
            part = rows.filter(rows["metric"] == metric)
            if len(part):
                draw_line(axis, part, number=number, label=label, unit=1000)
        level = floats(rows.filter(rows["metric"] == "frequency_length"), "value")
        if len(level):
            axis.axhline(level[0] / 1000, color="#666666", linestyle="--", linewidth=1, label="label frequencies")
        y = "code length (kbit)" if axis.get_subplotspec().is_first_col() else ""
        style(axis, title=task, x="layer", y=y, layers=rows["layer"].drop_nulls().to_list())
        axis.set_ylim(bottom=0)
    add_legend(figure, axes)
    return figure  # type: ignore[no-any-return]


def structure_figure(summary: pl.DataFrame, *, split: str | None = None) -> Figure:
    """Draw the scores of structural probes by layer, from `ProbeResult.summary()`.

    A panel for each metric and a line for each store, with a band of one standard deviation over the seeds; the
    baseline that links neighboring words is dashed. `split`: by default test, if it exists.
    """
    check_columns(summary, ("store", "layer", "split", "metric", "value"), "the frame of scores")
    chosen = choose_split(summary["split"], split)
    scores = summary.filter(summary["split"] == chosen)
    metrics = [metric for metric in STRUCTURE_PANELS if metric in scores["metric"]]
    if not metrics:
        known = ", ".join(STRUCTURE_PANELS)
        raise InvalidValueError(f"there is no metric to draw: give a frame with one or more of {known}")
    layered = scores.filter(scores["layer"].is_not_null())
    stores = layered["store"].unique(maintain_order=True).to_list()
    figure, axes = panels(len(metrics), columns=4, height=2.1)
    for metric, axis in zip(metrics, axes, strict=True):
        for number, store in enumerate(stores):
            part = layered.filter((layered["metric"] == metric) & (layered["store"] == store))
            draw_line(axis, part, number=number, label=store)
        baselines = floats(scores.filter(scores["layer"].is_null() & (scores["metric"] == metric)), "value")
        for level in np.unique(baselines[np.isfinite(baselines)]):  # stores of the same sentences share theirs
            axis.axhline(level, color="#555555", linestyle="--", linewidth=1, label="linear order")
        title, label = STRUCTURE_PANELS[metric]
        style(axis, title=title, x="layer", y=f"{label} ({chosen})", layers=layered["layer"].to_list())
    add_legend(figure, axes)
    return figure  # type: ignore[no-any-return]
