"""Figures of syntax in vectors: scores of structural probes by layer, and the tree they see beside the gold one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from embstore.errors import InvalidValueError
from embstore.plot.drawing import MARKERS, PALETTE, floats, legend, plain, pyplot, require_columns

if TYPE_CHECKING:
    from collections.abc import Collection

    import polars as pl
    from matplotlib.figure import Figure

    from embstore.probes.structure.probe import RecoveredTree

METRICS = {
    "uuas": "edges found (UUAS)",
    "dspr": "distances (DSpr)",
    "root_accuracy": "roots found",
    "nspr": "depths (NSpr)",
}
RIGHT, WRONG, APART = PALETTE[0], PALETTE[1], "#999999"
LETTER, GAP = 0.105, 0.34  # inches a letter of the words takes, and between words


def structure_figure(summary: pl.DataFrame, *, split: str | None = None) -> Figure:
    """Draw scores by layer from `StructureResult.summary()`: a panel a metric, a line a store, its baseline dashed."""
    require_columns(summary, ("store", "layer", "split", "metric", "value"), "the frame of scores")
    wanted = split or next((name for name in ("test", "dev", "train") if name in summary["split"]), "test")
    held = summary.filter(summary["split"] == wanted)
    panels = [metric for metric in METRICS if metric in held["metric"]]
    if not panels:
        raise InvalidValueError(f"there is no metric to draw: give a frame with one or more of {', '.join(METRICS)}")
    layered = held.filter(held["layer"].is_not_null())
    stores = layered["store"].unique(maintain_order=True).to_list()
    figure, axes = pyplot().subplots(
        1, len(panels), figsize=(3.1 * len(panels) + 0.4, 3.3), squeeze=False, layout="constrained"
    )
    for metric, axis in zip(panels, axes.flat, strict=True):
        for number, store in enumerate(stores):
            part = layered.filter((layered["metric"] == metric) & (layered["store"] == store)).sort("layer")
            color, marker = PALETTE[number % len(PALETTE)], MARKERS[number % len(MARKERS)]
            value, deviation = floats(part, "value"), np.nan_to_num(floats(part, "deviation"))
            style = {"color": color, "marker": marker, "markersize": 4.5, "linewidth": 1.6, "label": plain(store)}
            axis.plot(part["layer"], value, **style)
            axis.fill_between(part["layer"], value - deviation, value + deviation, color=color, alpha=0.18, linewidth=0)
        _baselines(axis, held.filter(held["layer"].is_null() & (held["metric"] == metric)))
        axis.set_title(METRICS[metric], fontsize=11)
        axis.set_xlabel("layer", fontsize=9)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.tick_params(labelsize=8)
        axis.grid(axis="y", color="#eeeeee")
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    legend(figure, axes)
    return figure  # type: ignore[no-any-return]


def tree_figure(tree: RecoveredTree, *, title: str | None = None) -> Figure:
    """Draw the gold tree of a sentence above its words, and below them the one that the vectors make.

    Edges that are in both are blue and drawn through, others orange and dashed. The roots (that of the vectors is the
    word of least depth) have a stem; punctuation marks, which take no part, are grey.
    """
    widths = np.array([LETTER * max(len(word), 2) + GAP for word in tree.words])
    middle = np.cumsum(widths) - widths / 2
    gold, found = (_heights(edges) for edges in (tree.gold, tree.found))
    up, down = (max([0.6, *heights.values()]) for heights in (gold, found))
    figure, axis = pyplot().subplots(figsize=(max(4.0, float(widths.sum())) + 0.4, up + down + 1.5))
    for heights, side in ((gold, 1), (found, -1)):
        for edge, height in heights.items():
            _arc(axis, middle[edge[0]], middle[edge[1]], side, height, shared=edge in tree.right)
    if not tree.punctuation[tree.gold_root]:
        _stem(axis, middle[tree.gold_root], 1, up, right=tree.found_root in (None, tree.gold_root))
    if tree.found_root is not None:
        _stem(axis, middle[tree.found_root], -1, down, right=tree.found_root == tree.gold_root)
    for word, place, apart in zip(tree.words, middle, tree.punctuation, strict=True):
        color = APART if apart else "black"
        axis.text(place, 0, plain(word), ha="center", va="center", fontsize=11, color=color)
    axis.text(0, up + 0.42, "gold tree", fontsize=9, color="#555555", va="bottom")
    axis.text(0, -down - 0.42, f"layer {tree.layer}, squared distances", fontsize=9, color="#555555", va="top")
    axis.set_xlim(-0.1, max(4.0, float(widths.sum())) + 0.1)
    axis.set_ylim(-down - 0.7, up + 0.7)
    axis.set_aspect("equal")
    axis.axis("off")
    axis.set_title(title or f"{len(tree.right)} of {len(tree.gold)} edges found", fontsize=11)
    return figure  # type: ignore[no-any-return]


def _baselines(axis: Any, rows: pl.DataFrame) -> None:
    """A dashed line for each value that a baseline has; stores of the same sentences share theirs."""
    for value in sorted({value for value in rows["value"].to_list() if value is not None}):
        axis.axhline(value, color="#555555", linestyle="--", linewidth=1, label="linear order")


def _heights(edges: Collection[tuple[int, int]]) -> dict[tuple[int, int], float]:
    """How far each edge rises, in inches: an edge over another one rises above it."""
    heights: dict[tuple[int, int], float] = {}
    for one, other in sorted(edges, key=lambda edge: (edge[1] - edge[0], edge)):
        under = [height for (left, right), height in heights.items() if one <= left and right <= other]
        heights[one, other] = max([0.12, *under]) + 0.2
    return heights


def _arc(axis: Any, left: float, right: float, side: int, height: float, *, shared: bool) -> None:
    turn = np.linspace(0, np.pi, 60)
    across = (left + right) / 2 - (right - left) / 2 * np.sign(np.cos(turn)) * np.abs(np.cos(turn)) ** 0.6
    rise = side * (0.16 + height * np.sin(turn) ** 0.6)
    style = {"color": RIGHT, "linestyle": "-"} if shared else {"color": WRONG, "linestyle": (0, (4, 2))}
    axis.plot(across, rise, linewidth=1.5, solid_capstyle="round", **style)


def _stem(axis: Any, place: float, side: int, height: float, *, right: bool) -> None:
    style = {"color": RIGHT, "linestyle": "-"} if right else {"color": WRONG, "linestyle": (0, (4, 2))}
    axis.plot([place, place], [side * 0.16, side * (height + 0.36)], linewidth=1.5, **style)
    axis.plot([place], [side * (height + 0.36)], marker="o", markersize=4, color=style["color"])
