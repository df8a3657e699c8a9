"""Figures of change: by frequency, by layer, and over periods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from embstore.errors import InvalidValueError, check_choice, check_columns, quoted
from embstore.plot.drawing import (
    GRID,
    PALETTE,
    add_legend,
    check_drawable,
    draw_line,
    drawn,
    floats,
    layer_name,
    literal,
    look,
    panels,
    style,
    subplots,
)
from embstore.store.layout import Layer, resolve_layer

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

    from embstore.analysis.change import ChangeSeries

INTERVAL = ("value", "low", "high")
COLUMNS = ("word", "layer", "metric", "value", "count_old", "count_new")
LEVEL = 0.05
TITLES = {
    "apd": "average pairwise distance",
    "apd_excess": "pairwise distance beyond that within sides",
    "prt": "prototype distance",
    "inverse_prt": "inverse prototype similarity",
    "prt_centered": "prototype distance, centered",
    "selfsim_old": "self-similarity before",
    "selfsim_new": "self-similarity after",
    "selfsim_change": "change of self-similarity",
    "jsd": "divergence of senses (bits)",
}


@drawn
def change_map(frame: pl.DataFrame, *, metric: str = "apd_excess", layer: Layer = -1, n_words: int = 25) -> Figure:
    """Draw each word's change against its frequency, from `Change.frame`; significant words (q <= 0.05) are named.

    `n_words`: how many are named, those that change most; a name that would lie on another is left out. The line is the
    median of words of like frequency.
    """
    rows = _rows(frame, metric)
    number = resolve_layer(layer, rows["layer"].unique().sort().to_list())
    rows = rows.filter(rows["layer"] == number)
    x = np.sqrt(floats(rows, "count_old") * floats(rows, "count_new"))
    y, q, expected = (floats(rows, name) for name in ("value", "q", "expected"))
    significant = q <= LEVEL
    figure, axes = subplots(figsize=(6.6, 4.4))
    axis = axes[0, 0]
    axis.scatter(x[~significant], y[~significant], s=12, color="#aaaaaa", linewidths=0, label="others")
    label = f"q $\\leq$ {LEVEL} ({significant.sum():,} of {len(y):,} words)"
    axis.scatter(x[significant], y[significant], s=16, color=PALETTE[1], linewidths=0, label=label)
    order = np.argsort(x, kind="stable")
    if np.isfinite(expected).any():
        axis.plot(x[order], expected[order], color=PALETTE[0], linewidth=1.2, label="median of words of like frequency")
    chosen = np.flatnonzero(significant & np.isfinite(y))
    named = chosen[np.argsort(-y[chosen], kind="stable")][:n_words]
    look_of_note = {"xytext": (3, 3), "textcoords": "offset points", "fontsize": 7}
    notes = [axis.annotate(literal(rows["word"][int(at)]), (x[at], y[at]), **look_of_note) for at in named]
    style(axis, title=f"Change by frequency, {layer_name(number)}", y=TITLES.get(metric, metric))
    axis.set_xlabel("occurrences (geometric mean of both sides)", fontsize=9)
    from matplotlib.ticker import LogFormatter

    axis.set_xscale("log")
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.xaxis.set_minor_formatter(LogFormatter())
    axis.grid(color=GRID)
    add_legend(figure, axes)
    figure.draw_without_rendering()  # so that texts have places
    shown: list[Any] = []
    for note in notes:
        box = note.get_window_extent()
        if any(box.overlaps(other) for other in shown):
            note.remove()
        else:
            shown.append(box)
    return figure  # type: ignore[no-any-return]


@drawn
def change_by_layer_figure(frame: pl.DataFrame, *, words: Sequence[str]) -> Figure:
    """Draw the measures of some words by layer, a panel for each measure, with bootstrap intervals as bands."""
    check_columns(frame, COLUMNS, "the frame of change")
    rows = frame.filter(frame["word"].is_in(list(words)))
    metrics = [metric for metric in rows["metric"].unique(maintain_order=True) if metric in TITLES]
    if not metrics:
        raise InvalidValueError("there are no measures of these words to draw: give words of the frame of change")
    figure, axes = panels(len(metrics), columns=3, size=(3.3, 2.6), margin=(0, 0.5))
    for metric, axis in zip(metrics, axes.flat, strict=False):
        for number, word in enumerate(words):
            part = rows.filter(rows["word"] == word, rows["metric"] == metric)
            draw_line(axis, part, number=number, label=word, columns=INTERVAL)
        style(axis, title=TITLES[metric], x="layer", layers=rows["layer"].to_list())
    add_legend(figure, axes)
    return figure  # type: ignore[no-any-return]


@drawn
def series_figure(
    series: ChangeSeries,
    *,
    metric: str = "apd_excess",
    layer: Layer = -1,
    words: Sequence[str] | None = None,
    n_words: int = 6,
) -> Figure:
    """Draw a measure of each period against the one before it, a panel for each word, from `measure_periods`.

    Bars are bootstrap intervals; dashed lines are change points with q <= 0.05, between the two periods that they
    divide. `words`: by default the first `n_words` of `ChangeSeries.top`.
    """
    check_drawable(series, ("steps", "top", "points", "periods"), "what measure_periods returns")
    rows, best = series.steps(metric, layer=layer), series.top(metric, layer=layer, count=len(series.points) + n_words)
    chosen = best["word"].unique(maintain_order=True).to_list()[:n_words] if words is None else list(words)
    missing = [word for word in chosen if word not in rows["word"]]
    if missing or not chosen:
        raise InvalidValueError(
            f"there is no series of {quoted((missing or [''])[0])} to draw: give words of the frame"
        )
    places = {period: number for number, period in enumerate(series.periods)}
    ticks = range(0, len(places), -(-len(places) // 8))
    figure, axes = panels(len(chosen), columns=3, size=(3.4, 2.4), margin=(0.3, 1.1), sharex=True, sharey=True)
    for word, axis in zip(chosen, axes.flat, strict=False):
        part = rows.filter(rows["word"] == word)
        x = [places[period] for period in part["period"]]
        value, low, high = (floats(part, name) for name in INTERVAL)
        axis.plot(x, value, markersize=4.5, linewidth=1.6, label="measure", **look(0))
        axis.vlines(x, low, high, color=PALETTE[0], linewidth=1.2, alpha=0.6, label="interval of 95 %")
        points = best.filter(best["word"] == word, best["q"] <= LEVEL)
        for period in points["period"]:
            label = f"change point (q $\\leq$ {LEVEL})"
            axis.axvline(places[period] - 0.5, color=PALETTE[1], linestyle="--", linewidth=1.4, label=label)
        style(axis, title=literal(word), x="period", layers=ticks)
        axis.set_xticks(ticks, [literal(series.periods[tick]) for tick in ticks], rotation=45)
        axis.set_xlim(-0.5, len(places) - 0.5)
        axis.tick_params(labelbottom=True)
    figure.supylabel("against the period before", fontsize=9)
    number = resolve_layer(layer, series.frame["layer"].unique().sort().to_list())
    figure.suptitle(f"Change over periods, {layer_name(number)}: {TITLES.get(metric, metric)}", fontsize=12)
    add_legend(figure, axes, where="lower")
    return figure  # type: ignore[no-any-return]


def _rows(frame: pl.DataFrame, metric: str) -> pl.DataFrame:
    """The rows of a measure. Raises InvalidValueError where there are none."""
    check_columns(frame, COLUMNS, "the frame of change")
    check_choice("metric", metric, frame["metric"].unique(maintain_order=True).to_list())
    return frame.filter(frame["metric"] == metric)
