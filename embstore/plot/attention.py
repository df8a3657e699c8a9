"""Figures of attention: where it goes by layer, relations and trees."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidValueError, check_columns
from embstore.plot.drawing import (
    PALETTE,
    SMALL,
    TITLE,
    add_colorbar,
    draw_grid,
    fitted,
    floats,
    grid,
    literal,
    look,
    panels,
    style,
)

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

SHOWN_RELATIONS = 14  # names that fit beside a panel
SHARES = ("self", "previous", "next", "cls", "first", "sep", "punctuation")
HATCHES = ("", "////", "....", "xxx", "---")
DIRECTIONS = {"relation_to_head": "best head, to the head", "relation_to_dependant": "best head, to the dependant"}
ENTROPIES = {"all": "of every subword", "cls": "of [CLS]"}


def attention_figure(frame: pl.DataFrame, *, title: str | None = None) -> Figure:
    """Draw what `attention` measured: a panel for each metric of its frame.

    Shares of attention and entropy of every head by layer with their means, the patterns
    by layer, relations with the best head next to the baseline, and trees by head and layer.
    """
    check_columns(frame, ("metric", "layer", "head", "item", "offset", "value", "baseline"), "the frame of attention")
    metrics = set(frame["metric"].to_list())
    drawn = [draw for metric, draw in PANELS.items() if metric in metrics]
    if not drawn:
        raise InvalidValueError(f"the frame of attention has none of {', '.join(PANELS)}: give what attention returns")
    figure, axes = panels(len(drawn), columns=3 if len(drawn) != 4 else 2, height=2.6, margin=0.2)
    for draw, axis in zip(drawn, axes, strict=True):
        draw(axis, frame)
    if title is not None:
        figure.suptitle(literal(title), fontsize=TITLE + 1)
    return figure  # type: ignore[no-any-return]


def _rows(frame: pl.DataFrame, metric: str, item: str | None = None) -> pl.DataFrame:
    import polars as pl

    part = frame.filter(pl.col("metric") == metric, pl.col("layer").is_not_null())
    return part if item is None else part.filter(pl.col("item") == item)


def _means(part: pl.DataFrame) -> tuple[list[int], NDArray[np.float64]]:
    means = part.select("layer", "value").group_by("layer").mean().sort("layer")
    return means["layer"].to_list(), floats(means, "value")


def _fill(number: int) -> dict[str, Any]:
    """Return the color and the pattern of a series of bars, which differ in grey too."""
    return {"facecolor": PALETTE[number], "edgecolor": "white", "linewidth": 0, "hatch": HATCHES[number]}


def _legend_below(axis: Any) -> None:
    """Give a panel of several series a legend that covers no point, and not the label of its axis."""
    if len(labels := axis.get_legend_handles_labels()[1]) > 1:
        columns = 1 + (sum(sorted(map(len, labels))[-2:]) < 19 * axis.figure.get_figwidth() * axis.get_position().width)
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "borderaxespad": 4.5, "columnspacing": 1}
        axis.legend(frameon=False, fontsize=SMALL, ncols=columns, handlelength=1.4, **place)


def _draw_heads(metric: str, names: dict[str, str], title: str, y: str) -> Callable[[Any, Any], None]:
    """Draw every head by layer, and the mean of the heads; `names`: of the items in the legend."""

    def draw(axis: Any, frame: pl.DataFrame) -> None:
        part = _rows(frame, metric)
        for number, item in enumerate(item for item in names if item in part["item"]):
            rows = _rows(frame, metric, item)
            heads, color = rows["head"].to_numpy(), look(number)["color"]
            x = rows["layer"].to_numpy() + heads / max(1, heads.max()) / 2 - 0.25
            axis.scatter(x, floats(rows, "value"), s=4, alpha=0.35, color=color, linewidths=0)
            axis.plot(*_means(rows), markersize=3, linewidth=1.2, label=names[item], **look(number))
        style(axis, title=f"{title}: heads and mean", x="layer", y=y, layers=part["layer"].to_list())
        _legend_below(axis)

    return draw


def _draw_patterns(axis: Any, frame: pl.DataFrame) -> None:
    part = _rows(frame, "pattern")
    below: Any = 0.0
    for number, item in enumerate(part["item"].unique(maintain_order=True).to_list()):
        layers, means = _means(_rows(frame, "pattern", item))
        axis.bar(layers, means, bottom=below, width=0.75, label=item, **_fill(number))
        below = below + means
    style(axis, title="Patterns of the heads' maps", x="layer", y="share of maps", layers=layers)
    axis.set_ylim(0, 1)
    _legend_below(axis)


def _draw_relations(axis: Any, frame: pl.DataFrame) -> None:
    import polars as pl

    part = pl.concat([_rows(frame, metric) for metric in DIRECTIONS])  # a causal model attends to the left alone
    best = part.sort("value", descending=True).group_by("item", maintain_order=True).first()
    best = best.filter(pl.col("item") != "all").sort("count", "item", descending=[True, False]).head(SHOWN_RELATIONS)
    places = np.arange(len(best))
    names = [f"{item} {layer}.{head}" for item, layer, head in best.select("item", "layer", "head").iter_rows()]
    for number, (metric, label) in enumerate(DIRECTIONS.items()):
        own = (best["metric"] == metric).to_numpy()
        if own.any():  # none would have the colour of another in the legend
            axis.barh(places[own] - 0.2, floats(best, "value")[own], 0.38, label=label, **_fill(number))
    axis.barh(places + 0.2, floats(best, "baseline"), 0.38, color="#bbbbbb", label="best fixed offset")
    style(axis, title="Words of a relation: best layer.head", x="share of words")
    axis.grid(False)
    axis.set_yticks(places, [literal(name) for name in names], fontsize=6)
    axis.invert_yaxis()
    axis.set(xlim=(0, 1), xticks=[0, 0.2, 0.4, 0.6, 0.8, 1])
    _legend_below(axis)


def _draw_by_head(metric: str, title: str) -> Callable[[Any, Any], None]:
    def draw(axis: Any, frame: pl.DataFrame) -> None:
        part = _rows(frame, metric)
        image = draw_grid(axis, grid(part), cmap="viridis")
        axis.set_title(fitted(axis, title, TITLE, beside=0.8), fontsize=TITLE)
        baseline = part["baseline"][0]
        add_colorbar(axis, image, "share found" + ("" if baseline is None else f" (baseline {baseline:.2f})"))

    return draw


PANELS: dict[str, Callable[[Any, Any], None]] = {
    "share": _draw_heads("share", dict(zip(SHARES, SHARES, strict=True)), "Where attention goes", "share of attention"),
    "entropy": _draw_heads("entropy", ENTROPIES, "Entropy of attention", "entropy (nats)"),
    "pattern": _draw_patterns,
    "relation_to_head": _draw_relations,
    "uuas": _draw_by_head("uuas", "Trees: edges found (UUAS)"),
    "coreference": _draw_by_head("coreference", "Coreference: antecedents found"),
}
