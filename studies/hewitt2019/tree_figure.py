"""The tree of a sentence, as it is and as a structural probe recovers it (Hewitt & Manning 2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from embstore.plot.drawing import PALETTE, check_drawable, literal, subplots

if TYPE_CHECKING:
    from collections.abc import Collection

    from matplotlib.figure import Figure

    from embstore.probes import RecoveredTree

RIGHT, WRONG, LIGHT = PALETTE[0], PALETTE[1], "#999999"
TREE_GAP, TREE_COLUMN, MAX_TREE = 0.22, 0.21, 9.0  # inches between words, of an upright word, and of a whole tree


def tree_figure(tree: RecoveredTree, *, title: str | None = None) -> Figure:
    """Draw the gold tree of a sentence above its words and the recovered tree below them.

    Edges in both trees are blue and solid, the others orange and dashed. The roots (the recovered one is the word of
    least depth) have a stem; punctuation marks, which are not scored, are grey.
    """
    check_drawable(tree, ("words", "gold", "found"), "a tree that a structural probe has recovered")
    sizes = np.array([_text_width(word, 11) for word in tree.words])
    upright = bool((sizes + TREE_GAP).sum() > MAX_TREE)  # long sentences have upright words
    column = min(TREE_COLUMN, MAX_TREE / len(sizes))
    fontsize = min(11.0, 0.75 * 72 * column) if upright else 11.0
    widths = np.full(len(sizes), column) if upright else sizes + TREE_GAP
    half = 0.5 * float(sizes.max()) * fontsize / 11 + 0.05 if upright else 0.16  # of the height of the words
    width = max(4.0, float(widths.sum()))
    middle = np.cumsum(widths) - widths / 2
    gold, found = (_edge_heights(edges) for edges in (tree.gold, tree.found))
    up, down = (max([0.6, *heights.values()]) for heights in (gold, found))
    up, down = up + half - 0.16, down + half - 0.16
    figure, axes = subplots(figsize=(width + 0.4, up + down + 1.5), layout="none")
    axis = axes[0, 0]
    axis.set_position((0, 0, 1, 1))
    for heights, side in ((gold, 1), (found, -1)):
        for edge, height in heights.items():
            _draw_arc(axis, middle[edge[0]], middle[edge[1]], side, height, half, shared=edge in tree.right)
    if not tree.punctuation[tree.gold_root]:
        _draw_stem(axis, middle[tree.gold_root], 1, up, half, shared=tree.found_root in (None, tree.gold_root))
    if tree.found_root is not None:
        _draw_stem(axis, middle[tree.found_root], -1, down, half, shared=tree.found_root == tree.gold_root)
    for word, x, is_punctuation in zip(tree.words, middle, tree.punctuation, strict=True):
        color = LIGHT if is_punctuation else "black"
        turned = {"rotation": 90 if upright else 0, "fontsize": fontsize}
        axis.text(x, 0, literal(word), ha="center", va="center", color=color, **turned)
    axis.text(0, up + 0.42, "gold tree", fontsize=9, color="#555555", va="bottom")
    axis.text(0, -down - 0.42, "recovered tree", fontsize=9, color="#555555", va="top")
    key = "blue: in both trees   orange, dashed: in one"
    axis.text(width, -down - 0.42, key, fontsize=9, color="#555555", va="top", ha="right")
    axis.set_xlim(-0.1, width + 0.1)
    axis.set_ylim(-down - 0.7, up + 0.7)
    axis.set_aspect("equal")
    axis.axis("off")
    axis.set_title(
        literal(title or f"{len(tree.right)} of {len(tree.gold)} edges found at layer {tree.layer}"), fontsize=11
    )
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


def _draw_arc(axis: Any, left: float, right: float, side: int, height: float, half: float, *, shared: bool) -> None:
    angle = np.linspace(0, np.pi, 60)
    x = (left + right) / 2 - (right - left) / 2 * np.sign(np.cos(angle)) * np.abs(np.cos(angle)) ** 0.6
    y = side * (half + height * np.sin(angle) ** 0.6)
    axis.plot(x, y, linewidth=1.5, solid_capstyle="round", **_edge_style(shared))


def _draw_stem(axis: Any, x: float, side: int, height: float, half: float, *, shared: bool) -> None:
    edge = _edge_style(shared)
    axis.plot([x, x], [side * half, side * (height + 0.36)], linewidth=1.5, **edge)
    axis.plot([x], [side * (height + 0.36)], marker="o", markersize=4, color=edge["color"])


def _text_width(text: str, fontsize: float) -> float:
    from matplotlib.textpath import TextPath

    return float(TextPath((0, 0), literal(text), size=fontsize).get_extents().x1) / 72 if text.strip() else 0.0
