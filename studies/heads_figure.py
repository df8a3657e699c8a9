"""Figures of attention heads: the effect of disabling them, their importance, and pruning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from embstore.errors import InvalidValueError, check_columns
from embstore.plot.drawing import PALETTE, draw_grid, floats, grid, literal, panels, style

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

COLUMNS = {
    "disabled": ("layer", "head", "metric", "value", "effect", "low", "high", "clear"),
    "importance": ("layer", "head", "value"),
    "pruned": ("order", "seed", "share", "metric", "value"),
}


def heads_figure(
    *,
    disabled: pl.DataFrame | None = None,
    importance: pl.DataFrame | None = None,
    pruned: pl.DataFrame | None = None,
    title: str | None = None,
) -> Figure:
    """Draw what `disable_heads`, `head_importance` and `prune_heads` returned, as far as they are given.

    The effect of disabling each head, with a dot where it is clear; that of each whole layer with its interval; the
    importance of each head; and the score by the share of pruned heads, next to random orders and their mean.
    """
    frames = {"disabled": disabled, "importance": importance, "pruned": pruned}
    given = {name: frame for name, frame in frames.items() if frame is not None}
    for name, frame in given.items():
        check_columns(frame, COLUMNS[name], f"the frame of {name} heads")
    drawn = [(name, draw) for name in given for draw in PANELS[name]]
    if not drawn or any(frame.is_empty() for frame in given.values()):
        raise InvalidValueError(
            "there is nothing to draw: give what disable_heads or another function of heads returns"
        )
    figure, axes = panels(len(drawn), columns=2, size=(4.6, 3.7), margin=(0.2, 0.5))
    for (name, draw), axis in zip(drawn, axes.flat, strict=False):
        draw(figure, axis, given[name])
    if title is not None:
        figure.suptitle(literal(title), fontsize=12)
    return figure  # type: ignore[no-any-return]


def _map(figure: Any, axis: Any, frame: pl.DataFrame, column: str, **colors: Any) -> tuple[list[int], list[int]]:
    cells = grid(frame, value=column)
    figure.colorbar(draw_grid(axis, cells, **colors), ax=axis, aspect=18, pad=0.02).ax.tick_params(labelsize=8)
    return cells[1], cells[0]


def _draw_effects(figure: Any, axis: Any, frame: pl.DataFrame) -> None:
    single = frame.filter(frame["head"].is_not_null())
    most = float(np.abs(floats(single, "effect")).max()) or 1.0
    layers, heads = _map(figure, axis, frame, "effect", cmap="RdBu", vmin=-most, vmax=most)
    clear = single.filter(single["clear"])
    axis.scatter(
        [heads.index(head) for head in clear["head"]],
        [layers.index(layer) for layer in clear["layer"]],
        s=20,
        color="black",
        edgecolors="white",
        label="clear",
    )
    metric = frame["metric"][0]
    axis.set_title(f"Change of {metric} without a head (dots: clear)", fontsize=11)


def _draw_layers(figure: Any, axis: Any, frame: pl.DataFrame) -> None:
    rows = frame.filter(frame["head"].is_null() & frame["layer"].is_not_null()).sort("layer")
    effect, low, high = (floats(rows, name) for name in ("effect", "low", "high"))
    colors = [PALETTE[0] if clear else "#bbbbbb" for clear in rows["clear"]]
    axis.bar(rows["layer"], effect, color=colors, width=0.7)
    axis.errorbar(rows["layer"], effect, yerr=[effect - low, high - effect], fmt="none", ecolor="black", capsize=2)
    axis.axhline(0, color="black", linewidth=0.8)
    metric = frame["metric"][0]
    style(axis, title="Without a layer's heads (grey: not clear)", x="layer", y=f"change of {metric}")
    axis.set_xticks(rows["layer"].to_list())


def _draw_importance(figure: Any, axis: Any, frame: pl.DataFrame) -> None:
    _map(figure, axis, frame, "value", cmap="Greys", vmin=0, vmax=1)
    axis.set_title("Importance by gradient (l2 norm of a layer: 1)", fontsize=11)


def _draw_pruning(figure: Any, axis: Any, frame: pl.DataFrame) -> None:
    ranked = frame.filter(frame["order"] == "importance").sort("share")
    random = [part.sort("share") for _, part in frame.filter(frame["order"] == "random").group_by("seed")]
    for part in random:
        axis.plot(part["share"], floats(part, "value"), color="#bbbbbb", linewidth=0.8)
    if random:
        mean = np.mean([floats(part, "value") for part in random], axis=0)
        axis.plot(random[0]["share"], mean, color="#777777", marker="s", markersize=4, label="random: each and mean")
    axis.plot(ranked["share"], floats(ranked, "value"), color=PALETTE[0], marker="o", markersize=4, label="importance")
    axis.legend(frameon=False, fontsize=8)
    style(axis, title="Pruning the least important heads first", x="share of heads pruned", y=frame["metric"][0])
    axis.set_xticks(np.linspace(0, 1, 6))


PANELS: dict[str, tuple[Any, ...]] = {
    "disabled": (_draw_effects, _draw_layers),
    "importance": (_draw_importance,),
    "pruned": (_draw_pruning,),
}
