"""Figures of edge probing: which layers a task uses, as in Tenney et al. 2019."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidValueError, check_columns
from embstore.plot.drawing import (
    COLUMN,
    LABEL,
    PAGE,
    PALETTE,
    SMALL,
    add_legend,
    choose_split,
    fitted,
    floats,
    literal,
    subplots,
)

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

COLUMNS = ("task", "layer", "split", "metric", "value")
CENTER, EXPECTED = PALETTE[0], PALETTE[3]  # blue and purple, as in the paper
Frames = Mapping[str, "pl.DataFrame"]


def edge_layers(summary: pl.DataFrame | Frames, *, split: str | None = None) -> Figure:
    """Draw Figure 2 of Tenney et al. 2019: mixing weights (filled) and differential scores (outlines) by layer.

    `summary`: the summary of edge probes on one task or several; or several such by the name of the model, next to each
    other (Figure A.3). `split`: of the scores, by default test, if it exists. Both are shares: differential scores are
    divided by their sum over the layers of the task, so an outline below 0 is a layer that lowers the score.
    """
    frames, tasks = _frames(summary)
    size = (COLUMN if len(frames) == 1 else PAGE, 0.9 + 0.75 * len(tasks))
    figure, axes = subplots(len(tasks), len(frames), figsize=size, sharex="col")
    for column, (model, frame) in enumerate(frames.items()):
        for task, axis in zip(tasks, axes[:, column], strict=True):
            if len(rows := frame.filter(frame["task"] == task)):
                _draw_task(axis, rows, task, split)
        axes[-1, column].set_xlabel(f"layer of {literal(model)}" if model else "layer", fontsize=LABEL)
    figure.supylabel("share over the layers", fontsize=LABEL)
    add_legend(figure, axes.flat)
    return figure  # type: ignore[no-any-return]


def _draw_task(axis: Any, rows: pl.DataFrame, task: str, split: str | None) -> None:
    mixing = rows.filter(rows["metric"] == "mixing").sort("layer")
    layers = mixing["layer"].to_list()
    axis.bar(layers, floats(mixing, "value"), 0.8, color=CENTER, alpha=0.4, label="mixing weight")
    axis.set_xticks(layers[:: 1 + len(layers) // 14])
    axis.tick_params(labelsize=SMALL)
    axis.spines[["top", "right"]].set_visible(False)
    axis.axhline(0, color="#999999", linewidth=0.8, zorder=0)
    chosen, known, marks = _split(rows, split), _known(rows, split), []
    differential = rows.filter((rows["metric"] == "differential") & (rows["split"] == chosen)).sort("layer")
    values = floats(differential, "value")
    if len(values) and values.sum() > 0:
        outline = {"fill": False, "edgecolor": EXPECTED, "linewidth": 1.4}
        label = f"differential score ({chosen}), share of the sum"
        axis.bar(differential["layer"], values / values.sum(), 0.8, label=label, **outline)
    elif len(values):
        marks.append("differential scores have no sum above 0")
    for metric, name, color in (("center_of_gravity", "center", CENTER), ("expected_layer", "expected", EXPECTED)):
        if metric in known:
            value = _position(known[metric], layers)
            marks.append(f"{name} {_shown(value)}")
            if np.isfinite(value):
                dash = "--" if color == CENTER else ":"  # they differ in grey too
                axis.axvline(value, color=color, linestyle=dash, linewidth=1.2, label=metric.replace("_", " "))
    axis.set_title(fitted(axis, f"{task}   {', '.join(marks)}", SMALL), fontsize=SMALL, loc="left", pad=3)


def edge_summary(summary: pl.DataFrame | Frames, *, split: str | None = None) -> Figure:
    """Draw Figure 1 of Tenney et al. 2019: center of gravity and expected layer of each task.

    `summary`: the summary of edge probes; or several such by the name of the model, next to each other (Figure A.2).
    `split`: of the scores, by default test, if it exists. The label of a task has its scores P(0) and P(L) in percent.
    Error bars: the standard deviation of centers of gravity over seeds, and the interval of expected layers if the
    frame has one (`low`, `high`). An expected layer that is not within the layers, or whose interval is not, is no
    position: "not determined".
    """
    frames, tasks = _frames(summary)
    figure, axes = subplots(1, len(frames), figsize=(COLUMN if len(frames) == 1 else PAGE, 1.0 + 0.42 * len(tasks)))
    position = np.arange(len(tasks))
    for axis, (model, frame) in zip(axes[0], frames.items(), strict=True):
        known = [_known(frame.filter(frame["task"] == task), split) for task in tasks]
        top = max(frame.filter(frame["metric"] == "mixing")["layer"].to_list(), default=1)
        layers = frame.filter(frame["metric"] == "mixing")["layer"].to_list()
        _draw_expectation(axis, known, "center_of_gravity", position - 0.19, layers, color=CENTER)
        _draw_expectation(axis, known, "expected_layer", position + 0.19, layers, color=EXPECTED)
        labels = [
            f"{literal(task)}\n{_percent(rows, 'first')} → {_percent(rows, 'last')}".rstrip(" →\n")
            for task, rows in zip(tasks, known, strict=True)
        ]
        axis.set_yticks(position, labels, fontsize=SMALL)
        place = {"xycoords": "axes fraction", "textcoords": "offset points", "ha": "right", "va": "bottom"}
        axis.annotate("F1 (%): layer 0\n→ all layers", (0, 1), (-4, 1), fontsize=6, **place)
        axis.set_xticks(range(0, top + 1, 1 + top // 14))
        axis.set(xlim=(0, top), ylim=(len(tasks) - 0.4, -0.6))
        axis.set_xlabel(f"layer of {literal(model)}" if model else "layer", fontsize=LABEL)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(axis="x", labelsize=SMALL)
    add_legend(figure, axes.flat)
    return figure  # type: ignore[no-any-return]


def _draw_expectation(
    axis: Any, known: list[dict[str, dict[str, Any]]], metric: str, y: NDArray[Any], layers: list[int], *, color: str
) -> None:
    """Draw a bar for each task from layer 0 to an expectation, with its error bar and value."""
    rows = [scores.get(metric, {}) for scores in known]
    top = max(layers, default=1)
    values = np.array([_position(row, layers) for row in rows])
    low, high, spread = (np.array([_number(row.get(name)) for row in rows]) for name in ("low", "high", "deviation"))
    errors = np.stack([np.where(np.isnan(low), spread, values - low), np.where(np.isnan(high), spread, high - values)])
    axis.barh(y, np.nan_to_num(values), 0.36, color=color, label=metric.replace("_", " "))
    errors = np.nan_to_num(np.maximum(errors, 0))
    label = "deviation over seeds; interval over sentences" if errors.any() else None
    axis.errorbar(values, y, xerr=errors, fmt="none", ecolor="black", elinewidth=0.9, label=label)
    for at, value, below, above in zip(y, values, *errors, strict=True):
        crossed = above > 0 and value - below < 0.14 * top and value + above < 0.8 * top  # by the error bar
        look = {"fontsize": 6.5, "color": "w" if color == CENTER and value > 0.12 * top and not crossed else "black"}
        start = (value + above if crossed else 0, at)
        axis.annotate(_shown(value), start, (3, 0), textcoords="offset points", va="center", **look)


def _frames(summary: pl.DataFrame | Frames) -> tuple[dict[str, pl.DataFrame], list[str]]:
    """Return the frames by model, and the tasks of all of them."""
    frames = dict(summary) if isinstance(summary, Mapping) else {"": summary}
    tasks: dict[str, None] = {}
    for frame in frames.values():
        check_columns(frame, COLUMNS, "the frame of edge probes")
        tasks |= dict.fromkeys(frame.filter(frame["metric"] == "mixing")["task"].unique(maintain_order=True).to_list())
    if not tasks:
        raise InvalidValueError("there are no mixing weights to draw: give the summary of edge probes")
    return frames, list(tasks)


def _split(rows: pl.DataFrame, split: str | None) -> str:
    """Return the split whose scores are drawn."""
    return choose_split(rows.filter(rows["metric"] == "f1")["split"], split)


def _known(rows: pl.DataFrame, split: str | None) -> dict[str, dict[str, Any]]:
    """Return the rows of a task by metric, and the F1 of its first and last layer as "first" and "last"."""
    chosen = rows.filter(rows["split"].is_in(["train", _split(rows, split)]))
    known = {row["metric"]: row for row in chosen.filter(chosen["layer"].is_null()).to_dicts()}
    scores = chosen.filter(chosen["metric"] == "f1").sort("layer").to_dicts()
    return {**known, "first": scores[0], "last": scores[-1]} if scores else known


def _number(value: Any) -> float:
    return np.nan if value is None else float(value)


def _position(row: Mapping[str, Any], layers: Sequence[int]) -> float:
    """Return the value of an expectation as a position among the layers; NaN if it or its interval is not within."""
    ends = [_number(row.get(name)) for name in ("value", "low", "high")]
    outside = any(end < min(layers) or end > max(layers) for end in ends if not np.isnan(end))
    return np.nan if outside else ends[0]


def _shown(value: float) -> str:
    return "not determined" if np.isnan(value) else f"{value:.2f}"


def _percent(known: dict[str, dict[str, Any]], which: str) -> str:
    value = _number(known.get(which, {}).get("value"))
    return "" if np.isnan(value) else f"{100 * value:.1f}"
