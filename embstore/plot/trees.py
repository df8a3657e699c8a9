"""Figures of structural probes: scores by layer, and a recovered tree compared with the gold tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from embstore.errors import InvalidValueError
from embstore.plot.drawing import PALETTE, add_legend, draw_line, floats, literal, require_columns, style, subplots

if TYPE_CHECKING:
    from collections.abc import Collection

    import polars as pl
    from matplotlib.figure import Figure

    from embstore.probes import RecoveredTree

# Metric -> title and label of the axis.
METRICS = {
    "uuas": ("edges found (UUAS)", "share of gold edges"),
    "dspr": ("distances (DSpr)", "Spearman correlation"),
    "root_accuracy": ("roots found", "share of sentences"),
    "nspr": ("depths (NSpr)", "Spearman correlation"),
}
RIGHT, WRONG, PUNCTUATION = PALETTE[0], PALETTE[1], "#999999"
LETTER, GAP = 0.105, 0.34  # inches: width of a letter, and space between words


def structure_figure(summary: pl.DataFrame, *, split: str | None = None) -> Figure:
    """Draw the scores of structural probes by layer, from `StructureResult.summary()`.

    A panel for each metric and a line for each store, with a band of one standard deviation over the seeds; the
    baseline that links neighboring words is dashed. `split`: by default test, if it exists.
    """
    require_columns(summary, ("store", "layer", "split", "metric", "value"), "the frame of scores")
    chosen = split or next((name for name in ("test", "dev", "train") if name in summary["split"]), "test")
    scores = summary.filter(summary["split"] == chosen)
    panels = [metric for metric in METRICS if metric in scores["metric"]]
    if not panels:
        raise InvalidValueError(f"there is no metric to draw: give a frame with one or more of {', '.join(METRICS)}")
    layered = scores.filter(scores["layer"].is_not_null())
    stores = layered["store"].unique(maintain_order=True).to_list()
    figure, axes = subplots(1, len(panels), figsize=(3.1 * len(panels) + 0.4, 3.3))
    for metric, axis in zip(panels, axes.flat, strict=True):
        for number, store in enumerate(stores):
            part = layered.filter((layered["metric"] == metric) & (layered["store"] == store)).sort("layer")
            value, deviation = floats(part, "value"), np.nan_to_num(floats(part, "deviation"))
            draw_line(axis, part["layer"], value, value - deviation, value + deviation, number=number, label=store)
        baselines = floats(scores.filter(scores["layer"].is_null() & (scores["metric"] == metric)), "value")
        for level in np.unique(baselines[np.isfinite(baselines)]):  # stores of the same sentences share theirs
            axis.axhline(level, color="#555555", linestyle="--", linewidth=1, label="linear order")
        title, label = METRICS[metric]
        style(axis, title=title, x="layer", y=f"{label} ({chosen})")
    add_legend(figure, axes)
    return figure  # type: ignore[no-any-return]


def tree_figure(tree: RecoveredTree, *, title: str | None = None) -> Figure:
    """Draw the gold tree of a sentence above its words and the recovered tree below them.

    Edges in both trees are blue and solid, the others orange and dashed. The roots (the recovered one is the word of
    least depth) have a stem; punctuation marks, which are not scored, are grey.
    """
    widths = np.array([LETTER * max(len(word), 2) + GAP for word in tree.words])
    width = max(4.0, float(widths.sum()))
    middle = np.cumsum(widths) - widths / 2
    gold, found = (_edge_heights(edges) for edges in (tree.gold, tree.found))
    up, down = (max([0.6, *heights.values()]) for heights in (gold, found))
    figure, axes = subplots(figsize=(width + 0.4, up + down + 1.5), layout="none")
    axis = axes[0, 0]
    for heights, side in ((gold, 1), (found, -1)):
        for edge, height in heights.items():
            _draw_arc(axis, middle[edge[0]], middle[edge[1]], side, height, shared=edge in tree.right)
    if not tree.punctuation[tree.gold_root]:
        _draw_stem(axis, middle[tree.gold_root], 1, up, shared=tree.found_root in (None, tree.gold_root))
    if tree.found_root is not None:
        _draw_stem(axis, middle[tree.found_root], -1, down, shared=tree.found_root == tree.gold_root)
    for word, x, is_punctuation in zip(tree.words, middle, tree.punctuation, strict=True):
        color = PUNCTUATION if is_punctuation else "black"
        axis.text(x, 0, literal(word), ha="center", va="center", fontsize=11, color=color)
    axis.text(0, up + 0.42, "gold tree", fontsize=9, color="#555555", va="bottom")
    axis.text(0, -down - 0.42, f"recovered from layer {tree.layer}", fontsize=9, color="#555555", va="top")
    key = "blue: in both trees   orange, dashed: in one"
    axis.text(width, -down - 0.42, key, fontsize=9, color="#555555", va="top", ha="right")
    axis.set_xlim(-0.1, width + 0.1)
    axis.set_ylim(-down - 0.7, up + 0.7)
    axis.set_aspect("equal")
    axis.axis("off")
    axis.set_title(title or f"{len(tree.right)} of {len(tree.gold)} edges found", fontsize=11)
    return figure  # type: ignore[no-any-return]


def _edge_heights(edges: Collection[tuple[int, int]]) -> dict[tuple[int, int], float]:
    """Return the height of each edge in inches; an edge that spans another one is higher."""
    heights: dict[tuple[int, int], float] = {}
    for one, other in sorted(edges, key=lambda edge: (edge[1] - edge[0], edge)):
        under = [height for (left, right), height in heights.items() if one <= left and right <= other]
        heights[one, other] = max([0.12, *under]) + 0.2
    return heights


def _edge_style(shared: bool) -> dict[str, Any]:
    return {"color": RIGHT, "linestyle": "-"} if shared else {"color": WRONG, "linestyle": (0, (4, 2))}


def _draw_arc(axis: Any, left: float, right: float, side: int, height: float, *, shared: bool) -> None:
    angle = np.linspace(0, np.pi, 60)
    x = (left + right) / 2 - (right - left) / 2 * np.sign(np.cos(angle)) * np.abs(np.cos(angle)) ** 0.6
    y = side * (0.16 + height * np.sin(angle) ** 0.6)
    axis.plot(x, y, linewidth=1.5, solid_capstyle="round", **_edge_style(shared))


def _draw_stem(axis: Any, x: float, side: int, height: float, *, shared: bool) -> None:
    edge = _edge_style(shared)
    axis.plot([x, x], [side * 0.16, side * (height + 0.36)], linewidth=1.5, **edge)
    axis.plot([x], [side * (height + 0.36)], marker="o", markersize=4, color=edge["color"])
