"""Figures of lines: geometry, probe scores and code lengths by layer, and recall by speed."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from embstore.errors import InvalidValueError
from embstore.plot.drawing import (
    GRID,
    MARKERS,
    PALETTE,
    add_legend,
    draw_line,
    floats,
    literal,
    require_columns,
    style,
    subplots,
)

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

_ADJUSTED = ("adjusted", "adjusted_low", "adjusted_high")
# Figures 1-4 of Ethayarajh 2019: metric, title, label of the axis, and the columns of the value and its interval.
GEOMETRY_PANELS = (
    ("anisotropy", "Anisotropy: two random words", "mean cosine", ("value", "low", "high")),
    ("selfsim", "Self-similarity: a word in different sentences", "mean cosine, minus anisotropy", _ADJUSTED),
    ("intrasim", "Intra-sentence similarity", "mean cosine with the sentence, minus anisotropy", _ADJUSTED),
    ("mev", "Maximum explainable variance", "share of one static vector, minus baseline", _ADJUSTED),
)
CODE_LENGTHS = {
    "code_length": "each layer alone",
    "cumulative_length": "layers 0 to l mixed",
    "control_length": "control task",
}


def geometry_figure(frames: Mapping[str, pl.DataFrame]) -> Figure:
    """Draw Figures 1-4 of Ethayarajh 2019: a panel for each metric, a line for each store by its name.

    `frames`: of `summarize_geometry`, with the columns `metric, layer` and, as the metric needs, `value` (anisotropy)
    or `adjusted` (selfsim, intrasim, mev), one row a metric and layer. If `low, high` or `adjusted_low, adjusted_high`
    exist the interval is shaded. Raises InvalidValueError if no metric can be drawn.
    """
    for name, frame in frames.items():
        require_columns(frame, ("metric", "layer"), f"the frame of {name}")
    metrics = {metric for frame in frames.values() for metric in frame["metric"].unique().to_list()}
    panels = [panel for panel in GEOMETRY_PANELS if panel[0] in metrics]
    if not panels:
        known = ", ".join(panel[0] for panel in GEOMETRY_PANELS)
        raise InvalidValueError(f"there is no metric to draw: give frames with one or more of {known}")
    n_columns = min(2, len(panels))
    n_rows = ceil(len(panels) / n_columns)
    figure, axes = subplots(n_rows, n_columns, figsize=(4.4 * n_columns, 3.0 * n_rows + 0.5))
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for (metric, title, label, columns), axis in zip(panels, axes.flat, strict=False):
        for number, (name, frame) in enumerate(frames.items()):
            part = frame.filter(frame["metric"].cast(str) == metric).sort("layer")
            if len(part):
                require_columns(part, columns[:1], f"the frame of {name}, metric {metric},")
                value, low, high = (floats(part, column) for column in columns)
                draw_line(axis, part["layer"], value, low, high, number=number, label=name)
        axis.axhline(0, color="#999999", linewidth=0.8, zorder=0)
        style(axis, title=title, x="layer", y=label)
    add_legend(figure, axes)
    return figure  # type: ignore[no-any-return]


def recall_curve(frames: Mapping[str, pl.DataFrame]) -> Figure:
    """Draw recall against queries per second from `measure_recall`, a line for each index; exact search is dashed."""
    figure, axes = subplots(figsize=(5.6, 3.8))
    axis = axes[0, 0]
    exact = []
    for number, (name, frame) in enumerate(frames.items()):
        require_columns(frame, ("setting", "recall", "queries_per_second"), f"the frame of {name}")
        settings = frame.filter(frame["setting"] != "exact search").sort("recall")
        color, marker = PALETTE[number % len(PALETTE)], MARKERS[number % len(MARKERS)]
        rates, recalls = floats(settings, "queries_per_second"), floats(settings, "recall")
        axis.plot(recalls, rates, color=color, marker=marker, markersize=4.5, linewidth=1.6, label=literal(name))
        for setting, recall, rate in zip(settings["setting"], recalls, rates, strict=True):
            axis.annotate(setting, (recall, rate), xytext=(4, 4), textcoords="offset points", fontsize=7, color=color)
        exact += frame.filter(frame["setting"] == "exact search")["queries_per_second"].to_list()
    if exact:
        axis.axhline(float(np.median(exact)), color="#555555", linestyle="--", linewidth=1, label="exact search")
    style(axis, title="Approximate search", x="recall of the nearest neighbors", y="queries per second")
    axis.xaxis.get_major_locator().set_params(integer=False)
    axis.set_yscale("log")
    axis.grid(color=GRID)
    axis.legend(frameon=False, fontsize=9)
    return figure  # type: ignore[no-any-return]


def probe_scores(summary: pl.DataFrame, *, metric: str = "f1", split: str | None = None) -> Figure:
    """Draw the score of class probes by layer, a line for each store, from `ProbeResult.summary()`.

    The band is one standard deviation over the seeds; control tasks are dashed. `split`: by default test, if it exists.
    """
    require_columns(summary, ("store", "task", "layer", "split", "metric", "value"), "the frame of scores")
    scores = summary.filter((summary["metric"] == metric) & (summary["item"] == ""))
    chosen = split or ("test" if "test" in scores["split"] else scores["split"][0])
    scores = scores.filter(scores["split"] == chosen)
    figure, axes = subplots(figsize=(5.6, 3.8))
    stores = scores["store"].unique(maintain_order=True).to_list()
    for (store, task), part in scores.partition_by("store", "task", as_dict=True, maintain_order=True).items():
        is_first = task == scores["task"][0]
        draw_line(
            axes[0, 0],
            *_with_deviation(part.sort("layer")),
            number=stores.index(store),
            label=str(store) if is_first else f"{store}, {task}",
            linestyle="-" if is_first else "--",
        )
    style(axes[0, 0], title="Class probes", x="layer", y=f"{metric} ({chosen})", layers=scores["layer"].to_list())
    axes[0, 0].legend(frameon=False, fontsize=9)
    return figure  # type: ignore[no-any-return]


def _with_deviation(part: pl.DataFrame, unit: float = 1.0) -> tuple[Any, ...]:
    """Return the layers, values, and values minus and plus a standard deviation, divided by `unit`."""
    value, deviation = floats(part, "value") / unit, np.nan_to_num(floats(part, "deviation")) / unit
    return part["layer"], value, value - deviation, value + deviation


def code_lengths(summary: pl.DataFrame) -> Figure:
    """Draw the code length of each layer (Voita & Titov 2020), a panel for each task, from `MdlResult.summary()`.

    The band is one standard deviation over the seeds; the dashed line is the code by label frequencies.
    """
    require_columns(summary, ("task", "layer", "metric", "value"), "the frame of code lengths")
    tasks = summary.filter(summary["metric"].is_in(list(CODE_LENGTHS)))["task"].unique(maintain_order=True).to_list()
    if not tasks:
        raise InvalidValueError("there are no code lengths to draw: give the summary of a description length probe")
    n_columns = min(len(tasks), 3)
    n_rows = ceil(len(tasks) / n_columns)
    figure, axes = subplots(n_rows, n_columns, figsize=(1.2 + 3.2 * n_columns, 0.9 + 2.5 * n_rows))
    for axis in axes.flat[len(tasks) :]:
        axis.set_visible(False)
    for task, axis in zip(tasks, axes.flat, strict=False):
        rows = summary.filter(summary["task"] == task)
        for number, (metric, label) in enumerate(CODE_LENGTHS.items()):
            part = rows.filter(rows["metric"] == metric).sort("layer")
            if len(part):
                draw_line(axis, *_with_deviation(part, 1000), number=number, label=label)
        level = floats(rows.filter(rows["metric"] == "frequency_length"), "value")
        if len(level):
            axis.axhline(level[0] / 1000, color="#666666", linestyle="--", linewidth=1, label="label frequencies")
        style(axis, title=literal(task), x="layer", layers=rows["layer"].drop_nulls().to_list())
        axis.set_ylim(bottom=0)
    for row in axes:
        row[0].set_ylabel("code length (kbit)", fontsize=9)
    add_legend(figure, axes)
    return figure  # type: ignore[no-any-return]
