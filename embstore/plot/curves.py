"""Figures of lines: measures by layer, recall by speed."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from embstore.errors import InvalidValueError
from embstore.plot.drawing import MARKERS, PALETTE, floats, legend, plain, pyplot, require_columns

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure


# Figures 1-4 of Ethayarajh 2019: metric, title, axis, column and its interval.
GEOMETRY_PANELS = (
    ("anisotropy", "Any two words", "mean cosine", ("value", "low", "high")),
    (
        "selfsim",
        "The same word in different sentences",
        "self-similarity, adjusted",
        ("adjusted", "adjusted_low", "adjusted_high"),
    ),
    (
        "intrasim",
        "Words of the same sentence",
        "intra-sentence similarity, adjusted",
        ("adjusted", "adjusted_low", "adjusted_high"),
    ),
    (
        "mev",
        "What one vector a word explains",
        "max. explainable variance, adjusted",
        ("adjusted", "adjusted_low", "adjusted_high"),
    ),
)


def geometry_figure(frames: Mapping[str, pl.DataFrame]) -> Figure:
    """Draw Figures 1-4 of Ethayarajh 2019: a panel a metric that a frame has, a line a store, by its name.

    Each frame has the columns `metric, layer` and, as the metric needs, `value` (anisotropy) or `adjusted` (selfsim,
    intrasim, mev), one row a metric and layer; where `low, high` or `adjusted_low, adjusted_high` are there too the
    interval is shaded.
    """
    for name, frame in frames.items():
        require_columns(frame, ("metric", "layer"), f"the frame of {name}")
    found = {metric for frame in frames.values() for metric in frame["metric"].unique().to_list()}
    panels = [panel for panel in GEOMETRY_PANELS if panel[0] in found]
    if not panels:
        known = ", ".join(panel[0] for panel in GEOMETRY_PANELS)
        raise InvalidValueError(f"there is no metric to draw: give frames with one or more of {known}")
    drawing = pyplot()
    columns = min(2, len(panels))
    rows = ceil(len(panels) / columns)
    figure, axes = drawing.subplots(
        rows, columns, figsize=(4.4 * columns, 3.0 * rows + 0.5), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for (metric, title, label, names), axis in zip(panels, axes.flat, strict=False):
        for number, (name, frame) in enumerate(frames.items()):
            part = frame.filter(frame["metric"].cast(str) == metric).sort("layer")
            if len(part):
                require_columns(part, names[:1], f"the frame of {name}, metric {metric},")
                _line(axis, part, names, name, number)
        axis.axhline(0, color="#999999", linewidth=0.8, zorder=0)
        axis.set_title(title, fontsize=11)
        axis.set_ylabel(label, fontsize=9)
        axis.set_xlabel("layer", fontsize=9)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.tick_params(labelsize=8)
        axis.grid(axis="y", color="#eeeeee")
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    legend(figure, axes)
    return figure  # type: ignore[no-any-return]


def recall_curve(frames: Mapping[str, pl.DataFrame]) -> Figure:
    """Draw recall against queries per second, a line an index, as `measure_recall` gives them; exact search dashed."""
    drawing = pyplot()
    figure, axis = drawing.subplots(figsize=(5.6, 3.8), layout="constrained")
    exact = []
    for number, (name, frame) in enumerate(frames.items()):
        require_columns(frame, ("setting", "recall", "queries_per_second"), f"the frame of {name}")
        tried = frame.filter(frame["setting"] != "exact search").sort("recall")
        color, marker = PALETTE[number % len(PALETTE)], MARKERS[number % len(MARKERS)]
        rates, recalls = floats(tried, "queries_per_second"), floats(tried, "recall")
        axis.plot(recalls, rates, color=color, marker=marker, markersize=4.5, linewidth=1.6, label=plain(name))
        for setting, recall, rate in zip(tried["setting"], recalls, rates, strict=True):
            axis.annotate(setting, (recall, rate), xytext=(4, 4), textcoords="offset points", fontsize=7, color=color)
        exact += frame.filter(frame["setting"] == "exact search")["queries_per_second"].to_list()
    if exact:
        axis.axhline(float(np.median(exact)), color="#555555", linestyle="--", linewidth=1, label="exact search")
    axis.set_yscale("log")
    axis.set_xlabel("recall of the nearest", fontsize=9)
    axis.set_ylabel("queries a second", fontsize=9)
    axis.tick_params(labelsize=8)
    axis.grid(color="#eeeeee")
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=9)
    return figure  # type: ignore[no-any-return]


def probe_scores(summary: pl.DataFrame, *, metric: str = "f1", split: str | None = None) -> Figure:
    """Draw a score by layer, a line a store, from `ProbeResult.summary()`; a band of a deviation, control dashed."""
    require_columns(summary, ("store", "task", "layer", "split", "metric", "value"), "the frame of scores")
    held = summary.filter((summary["metric"] == metric) & (summary["item"] == ""))
    held = held.filter(held["split"] == (split or ("test" if "test" in held["split"] else held["split"][0])))
    drawing = pyplot()
    figure, axis = drawing.subplots(figsize=(5.6, 3.8), layout="constrained")
    for (store, task), part in held.partition_by("store", "task", as_dict=True, maintain_order=True).items():
        number = held["store"].unique(maintain_order=True).to_list().index(store)
        color, marker = PALETTE[number % len(PALETTE)], MARKERS[number % len(MARKERS)]
        part = part.sort("layer")
        value, deviation = floats(part, "value"), np.nan_to_num(floats(part, "deviation"))
        own = task == held["task"][0]
        style = {"linestyle": "-" if own else "--", "label": plain(f"{store}" if own else f"{store}, {task}")}
        axis.plot(part["layer"], value, color=color, marker=marker, markersize=4.5, linewidth=1.6, **style)
        axis.fill_between(part["layer"], value - deviation, value + deviation, color=color, alpha=0.18, linewidth=0)
    axis.set_xlabel("layer", fontsize=9)
    axis.set_ylabel(f"{metric} ({held['split'][0]})", fontsize=9)
    axis.set_xticks(sorted(set(held["layer"])))
    axis.tick_params(labelsize=8)
    axis.grid(color="#eeeeee")
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=9)
    return figure  # type: ignore[no-any-return]


def _line(axis: Any, part: pl.DataFrame, names: tuple[str, str, str], label: str, number: int) -> None:
    color, marker = PALETTE[number % len(PALETTE)], MARKERS[number % len(MARKERS)]
    layers = part["layer"].to_numpy()
    value, low, high = (floats(part, name) for name in names)
    axis.plot(layers, value, color=color, marker=marker, markersize=4.5, linewidth=1.6, label=plain(label))
    axis.fill_between(layers, low, high, color=color, alpha=0.18, linewidth=0)
