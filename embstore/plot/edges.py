"""Figures of edge probing: which layers a task draws on, in the manner of Tenney et al. 2019."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from embstore.errors import InvalidValueError
from embstore.plot.drawing import PALETTE, floats, plain, pyplot, require_columns

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

COLUMNS = ("task", "layer", "split", "metric", "value")


def edge_layers(summary: pl.DataFrame, *, split: str | None = None) -> Figure:
    """Draw Figure 2 of Tenney et al. 2019: by task, mixing weights filled and differential scores as outlines.

    `summary`: of `probe_edges`, of one task or several. `split`: of the scores; test where there is one. Both are
    shares: differential scores over the sum of all of a task, so that outlines below 0 are layers that cost.
    """
    require_columns(summary, COLUMNS, "the frame of edge probes")
    tasks = summary.filter(summary["metric"] == "mixing")["task"].unique(maintain_order=True).to_list()
    if not tasks:
        raise InvalidValueError("there are no mixing weights to draw: give the frame of edge probes")
    drawing = pyplot()
    figure, axes = drawing.subplots(
        len(tasks), 1, figsize=(5.6, 0.9 + 1.05 * len(tasks)), sharex=True, squeeze=False, layout="constrained"
    )
    for task, axis in zip(tasks, axes[:, 0], strict=True):
        _task(axis, summary.filter(summary["task"] == task), task, split)
    axes[-1, 0].set_xlabel("layer", fontsize=9)
    lines, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside upper center", ncols=2, frameon=False, fontsize=9)
    return figure  # type: ignore[no-any-return]


def _task(axis: Any, held: pl.DataFrame, task: str, split: str | None) -> None:
    mixing = held.filter(held["metric"] == "mixing").sort("layer")
    axis.bar(mixing["layer"], floats(mixing, "value"), 0.8, color=PALETTE[0], alpha=0.75, label="mixing weight")
    gained = held.filter(held["metric"] == "differential")
    splits = gained["split"].unique(maintain_order=True).to_list()
    chosen = split or ("test" if "test" in splits else (splits or [""])[0])
    gained = gained.filter(gained["split"] == chosen).sort("layer")
    values = floats(gained, "value")
    total = values.sum() if len(values) else 0.0
    if total > 0:
        axis.bar(
            gained["layer"],
            values / total,
            0.8,
            fill=False,
            edgecolor=PALETTE[3],
            linewidth=1.4,
            label=f"differential score ({chosen})",
        )
    marks = []
    for metric, sign, color in (
        ("center_of_gravity", "center", PALETTE[0]),
        ("expected_layer", "expected", PALETTE[3]),
    ):
        row = held.filter((held["metric"] == metric) & held["split"].is_in(["train", chosen]))
        value = float(floats(row, "value")[0]) if len(row) else np.nan
        if np.isfinite(value):
            axis.axvline(value, color=color, linestyle="--", linewidth=1)
            marks.append(f"{sign} {value:.2f}")
    axis.set_title(plain(f"{task}   {', '.join(marks)}"), fontsize=9, loc="left")
    axis.set_xticks(mixing["layer"].to_list())
    axis.axhline(0, color="#999999", linewidth=0.8, zorder=0)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
