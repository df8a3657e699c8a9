"""Figures of description length: how many bits labels take, layer by layer (Voita & Titov 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from embstore.errors import InvalidValueError
from embstore.plot.drawing import MARKERS, PALETTE, floats, legend, plain, pyplot, require_columns

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

COLUMNS = ("task", "layer", "metric", "value")
LINES = {
    "code_length": "each layer by itself",
    "cumulative_length": "layers 0 to l mixed",
    "control_length": "control task",
}
ACROSS = 3


def code_lengths(summary: pl.DataFrame) -> Figure:
    """Draw the code length of each layer, a panel a task, from `MdlResult.summary()` of one task or several.

    A band is a deviation over the seeds; the level is the code by the frequencies of labels.
    """
    require_columns(summary, COLUMNS, "the frame of code lengths")
    held = summary.filter(summary["metric"].is_in(list(LINES)))
    tasks = held["task"].unique(maintain_order=True).to_list()
    if not tasks:
        raise InvalidValueError("there are no code lengths to draw: give the frame of probe_mdl")
    across = min(len(tasks), ACROSS)
    down = -(-len(tasks) // across)
    figure, axes = pyplot().subplots(
        down, across, figsize=(1.2 + 3.2 * across, 0.9 + 2.5 * down), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(tasks) :]:
        axis.set_visible(False)
    for task, axis in zip(tasks, axes.flat, strict=False):
        _task(axis, summary.filter(summary["task"] == task), task)
    for row in axes:
        row[0].set_ylabel("code length (kbit)", fontsize=9)
    legend(figure, axes)
    return figure  # type: ignore[no-any-return]


def _task(axis: Any, held: pl.DataFrame, task: str) -> None:
    for number, (metric, name) in enumerate(LINES.items()):
        part = held.filter(held["metric"] == metric).sort("layer")
        if not len(part):
            continue
        value, deviation = floats(part, "value") / 1000, np.nan_to_num(floats(part, "deviation")) / 1000
        color = PALETTE[number]
        axis.plot(part["layer"], value, color=color, marker=MARKERS[number], markersize=4, linewidth=1.5, label=name)
        axis.fill_between(part["layer"], value - deviation, value + deviation, color=color, alpha=0.18, linewidth=0)
    level = floats(held.filter(held["metric"] == "frequency_length"), "value")
    if len(level):
        axis.axhline(level[0] / 1000, color="#666666", linestyle="--", linewidth=1, label="frequencies alone")
    axis.set_ylim(bottom=0)
    axis.set_xticks(sorted(set(held["layer"].drop_nulls().to_list())))
    axis.set_xlabel("layer", fontsize=9)
    axis.set_title(plain(task), fontsize=9, loc="left")
    axis.tick_params(labelsize=8)
    axis.grid(color="#eeeeee")
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
