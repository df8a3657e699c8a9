"""Figures of edge probing: which layers a task draws on, in the manner of Tenney et al. 2019."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from embstore.errors import InvalidValueError
from embstore.plot.drawing import PALETTE, floats, legend, plain, pyplot, require_columns

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

COLUMNS = ("task", "layer", "split", "metric", "value")
CENTER, EXPECTED = PALETTE[0], PALETTE[3]  # the paper's blue and purple
KL_COLUMNS = (("mixing_kl", 1.02, "K(s)"), ("differential_kl", 1.11, "K(Δ)"))
Frames = Mapping[str, "pl.DataFrame"]


def edge_layers(summary: pl.DataFrame | Frames, *, split: str | None = None) -> Figure:
    """Draw Figure 2 of Tenney et al. 2019: by task, mixing weights filled and differential scores as outlines.

    `summary`: of `probe_edges`, of one task or several; or several such by the name of the model, side by side
    (Figure A.3). `split`: of the scores; test where there is one. Both are shares: differential scores over the sum
    of all of a task, so that outlines below 0 are layers that cost.
    """
    frames, tasks = _frames(summary)
    figure, axes = _panels(len(tasks), len(frames))
    for column, (model, frame) in enumerate(frames.items()):
        for task, axis in zip(tasks, axes[:, column], strict=True):
            held = frame.filter(frame["task"] == task)
            if len(held):
                _mixing(axis, held)
                _gained(axis, held, split)
                _marks(axis, held, task, split)
        axes[-1, column].set_xlabel(f"layer of {plain(model)}" if model else "layer", fontsize=9)
    legend(figure, axes)
    return figure  # type: ignore[no-any-return]


def mixing_layers(summary: pl.DataFrame | Frames) -> Figure:
    """Draw Figure A.1 of Tenney et al. 2019: the mixing weights of each task, by the name of the model."""
    frames, tasks = _frames(summary)
    figure, axes = _panels(len(tasks), len(frames))
    for column, (model, frame) in enumerate(frames.items()):
        for task, axis in zip(tasks, axes[:, column], strict=True):
            held = frame.filter(frame["task"] == task)
            if len(held):
                layers = _mixing(axis, held)
                axis.axhline(1 / layers, color="#999999", linestyle=":", linewidth=1, label="uniform")
                axis.set_title(plain(task), fontsize=9, loc="left")
        axes[-1, column].set_xlabel(f"layer of {plain(model)}" if model else "layer", fontsize=9)
    legend(figure, axes)
    return figure  # type: ignore[no-any-return]


def edge_summary(
    summary: pl.DataFrame | Frames, *, split: str | None = None, names: Mapping[str, str] | None = None
) -> Figure:
    """Draw Figure 1 of Tenney et al. 2019: scores of P(0) and P(L), center of gravity and expected layer by task.

    `summary`: of `probe_edges`; or several such by the name of the model, side by side (Figure A.2). `split`: of the
    scores; test where there is one. `names`: what tasks shall be called. Lines: the deviation over seeds of centers of
    gravity, and the interval of expected layers where the frame has one (`low`, `high`). Right of the bars stand K(s)
    and K(D), how far either is from uniform.
    """
    frames, tasks = _frames(summary)
    figure, axes = pyplot().subplots(
        1, len(frames), figsize=(1.2 + 4.6 * len(frames), 0.9 + 0.62 * len(tasks)), squeeze=False, layout="constrained"
    )
    places = np.arange(len(tasks))
    for axis, (model, frame) in zip(axes[0], frames.items(), strict=True):
        known = [_known(frame.filter(frame["task"] == task), split) for task in tasks]
        top = max(frame.filter(frame["metric"] == "mixing")["layer"].to_list(), default=1)
        for metric, color, shift, said in (
            ("center_of_gravity", CENTER, -0.19, "center of gravity"),
            ("expected_layer", EXPECTED, 0.19, "expected layer"),
        ):
            held = [each.get(metric, {}) for each in known]
            values = np.array([_number(each.get("value")) for each in held])
            axis.barh(places + shift, np.nan_to_num(values), 0.36, color=color, label=said)
            axis.errorbar(
                values, places + shift, xerr=_errors(held, values), fmt="none", ecolor="black", elinewidth=0.9
            )
            for place, value in zip(places + shift, values, strict=True):
                text = "none" if np.isnan(value) else f"{value:.2f}"
                axis.annotate(
                    text,
                    (0, place),
                    (3, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=8,
                    color="w" if value > 0.12 * top else "black",
                )
        for place, each in zip(places, known, strict=True):
            for metric, x, _ in KL_COLUMNS:
                value = _number(each.get(metric, {}).get("value"))
                text = "none" if np.isnan(value) else f"{value:.2f}"
                axis.text(x, place, text, transform=axis.get_yaxis_transform(), va="center", fontsize=8)
        for _, x, said in KL_COLUMNS:
            axis.text(x, -0.6, said, transform=axis.get_yaxis_transform(), va="center", fontsize=8)
        labels = [
            f"{plain((names or {}).get(task, task))}\n{_score(each, 'first')} → {_score(each, 'last')}"
            for task, each in zip(tasks, known, strict=True)
        ]
        axis.set_yticks(places, labels, fontsize=8)
        axis.set_xticks(range(0, top + 1, 1 + top // 14))
        axis.set(xlim=(0, top), ylim=(len(tasks) - 0.4, -0.6))
        axis.set_xlabel(f"layer of {plain(model)}" if model else "layer", fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(axis="x", labelsize=8)
    legend(figure, axes)
    return figure  # type: ignore[no-any-return]


def _frames(summary: pl.DataFrame | Frames) -> tuple[dict[str, pl.DataFrame], list[str]]:
    """The frames by model, and the tasks of all of them."""
    frames = dict(summary) if isinstance(summary, Mapping) else {"": summary}
    tasks: dict[str, None] = {}
    for frame in frames.values():
        require_columns(frame, COLUMNS, "the frame of edge probes")
        tasks |= dict.fromkeys(frame.filter(frame["metric"] == "mixing")["task"].unique(maintain_order=True).to_list())
    if not tasks:
        raise InvalidValueError("there are no mixing weights to draw: give the frame of edge probes")
    return frames, list(tasks)


def _panels(rows: int, columns: int) -> tuple[Any, Any]:
    return pyplot().subplots(  # type: ignore[no-any-return]
        rows,
        columns,
        figsize=(1.2 + 4.4 * columns, 0.9 + 1.05 * rows),
        sharex="col",
        squeeze=False,
        layout="constrained",
    )


def _mixing(axis: Any, held: pl.DataFrame) -> int:
    """Draw the mixing weights of a task, and say of how many layers."""
    mixing = held.filter(held["metric"] == "mixing").sort("layer")
    axis.bar(mixing["layer"], floats(mixing, "value"), 0.8, color=CENTER, alpha=0.75, label="mixing weight")
    axis.set_xticks(mixing["layer"].to_list())
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    return len(mixing)


def _gained(axis: Any, held: pl.DataFrame, split: str | None) -> None:
    chosen = _split(held, split)
    gained = held.filter((held["metric"] == "differential") & (held["split"] == chosen)).sort("layer")
    values = floats(gained, "value")
    total = values.sum() if len(values) else 0.0
    axis.axhline(0, color="#999999", linewidth=0.8, zorder=0)
    if total > 0:
        axis.bar(
            gained["layer"],
            values / total,
            0.8,
            fill=False,
            edgecolor=EXPECTED,
            linewidth=1.4,
            label=f"differential score ({chosen})",
        )


def _marks(axis: Any, held: pl.DataFrame, task: str, split: str | None) -> None:
    """Say in the title, and by lines, where the two expectations lie."""
    known, marks = _known(held, split), []
    for metric, sign, color in (("center_of_gravity", "center", CENTER), ("expected_layer", "expected", EXPECTED)):
        value = _number(known.get(metric, {}).get("value"))
        if np.isfinite(value):
            axis.axvline(value, color=color, linestyle="--", linewidth=1)
            marks.append(f"{sign} {value:.2f}")
    axis.set_title(plain(f"{task}   {', '.join(marks)}"), fontsize=9, loc="left")


def _split(held: pl.DataFrame, split: str | None) -> str:
    """The split whose scores are drawn: that asked for, else test where there is one."""
    splits = held.filter(held["metric"] == "f1")["split"].unique(maintain_order=True).to_list()
    return split or ("test" if "test" in splits else str((splits or [""])[0]))


def _known(held: pl.DataFrame, split: str | None) -> dict[str, dict[str, Any]]:
    """The rows of a task by metric, and of F1 those of its first and last layer."""
    chosen = _split(held, split)
    rows = held.filter(held["split"].is_in(["train", chosen]))
    known = {row["metric"]: row for row in rows.filter(rows["layer"].is_null()).to_dicts()}
    scores = rows.filter(rows["metric"] == "f1").sort("layer").to_dicts()
    return {**known, "first": scores[0], "last": scores[-1]} if scores else known


def _number(value: Any) -> float:
    return np.nan if value is None else float(value)


def _errors(rows: list[dict[str, Any]], values: Any) -> Any:
    """How far each interval reaches to either side: its own, or the deviation over seeds; 0 where there is none."""
    low = np.array([_number(each.get("low")) for each in rows])
    high = np.array([_number(each.get("high")) for each in rows])
    spread = np.array([_number(each.get("deviation")) for each in rows])
    sides = np.stack([np.where(np.isnan(low), spread, values - low), np.where(np.isnan(high), spread, high - values)])
    return np.nan_to_num(np.maximum(sides, 0))


def _score(known: dict[str, dict[str, Any]], which: str) -> str:
    value = _number(known.get(which, {}).get("value"))
    return "" if np.isnan(value) else f"{100 * value:.1f}"
