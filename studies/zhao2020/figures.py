"""Figures 3 to 7 of Zhao et al. 2020, with the scores of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from embstore import plot
from embstore.plot.drawing import draw_grid, grid
from embstore_studies.zhao2020 import published
from embstore_studies.zhao2020.report import PUBLISHED_NAMES, Scores, f1

BARS = "#9aa7b5"
PAPER = {"marker": "D", "markerfacecolor": "none", "color": "black", "label": "paper"}
OUTSIDE = {"frameon": False, "bbox_to_anchor": (1.02, 1), "loc": "upper left"}


def draw(scores: Scores, folder: Path) -> dict[str, str]:
    """Write every figure that has data; returns titles by file name."""
    figures: list[tuple[str, str, str, Callable[[Scores], Any]]] = [
        ("figure3.png", "types", "Figure 3. One vector per word (test)", word_scores),
        ("figure4.png", "contexts", "Figure 4. One vector per context (test)", layer_scores),
        ("changes.png", "flips", "Sections 4.2.3 and 4.3.1. Pairs that change (dev)", changes),
        ("subwords.png", "subwords", "F1 by the number of subwords (test)", by_subwords),
        ("figure5.png", "windows", "Figure 5. Words of context (dev)", context_sizes),
        ("figure6.png", "finetuned", "Figure 6. Before and after fine-tuning (dev)", finetuned),
        ("figure7.png", "attention", "Figure 7. Attention before and after fine-tuning", attention),
    ]
    titles = {}
    for name, frame, title, make in figures:
        if len(scores.frames.get(frame, ())):
            plot.save(make(scores), folder / name)
            titles[name] = title
    return titles


def word_scores(scores: Scores) -> Any:
    """Draw a bar of micro F1 per representation with one vector per word; the averages by layer are on the right."""
    frame = f1(scores.frames["types"], split="test", task="class", vocabulary="own")
    plain, averaged = frame.filter(pl.col("store") != "AVG"), frame.filter(store="AVG").sort("layer")
    both = pl.concat([plain, averaged])
    names = [*plain["store"], *(f"AVG {layer}" for layer in averaged["layer"])]
    figure, axis = canvas((1.5 + 0.55 * len(names), 3.6), y="micro F1", title="One vector per word")
    deviations = both["deviation"].fill_null(np.nan).to_list()
    for color, label, part in (
        (BARS, "static vectors", slice(0, len(plain))),
        (plot.PALETTE[0], "average by layer", slice(len(plain), len(both))),
    ):
        places, spread = range(len(names))[part], deviations[part]
        bars = axis.bar(places, both["value"][part], yerr=spread, color=color, width=0.72, label=label)
        axis.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
    if scores.has_published_layers:
        known = [PUBLISHED_NAMES.get(name, name) for name in plain["store"]]
        values = [published.UNCONTEXTUAL.get(name, {}).get("test", np.nan) for name in known]
        layers = [published.AVERAGED["test"][layer - 1] if layer else np.nan for layer in averaged["layer"]]
        axis.plot(range(len(names)), [*values, *layers], linestyle="none", **PAPER)
    axis.legend(**OUTSIDE)
    axis.set_xticks(range(len(names)), names, rotation=45, ha="right")
    axis.set_ylim(0, 1)
    return figure


def layer_scores(scores: Scores) -> Any:
    """Draw micro F1 by layer, and a horizontal line for each bag of context."""
    frame = f1(scores.frames["contexts"], split="test", task="class")
    figure, axis = canvas((5.6, 3.8), x="layer", y="micro F1", title="One vector per context")
    bert = frame.filter(store="BERT").sort("layer")
    line(axis, bert, marker="o", color=plot.PALETTE[0], label="BERT")
    if bert["deviation"].is_not_null().any():
        low, high = bert["value"] - bert["deviation"], bert["value"] + bert["deviation"]
        band = {"color": plot.PALETTE[0], "alpha": 0.2, "linewidth": 0}
        axis.fill_between(bert["layer"], low, high, **band, label="± deviation over seeds")
    if scores.has_published_layers:
        axis.plot(range(1, published.N_LAYERS + 1), published.CONTEXTUAL["test"], linestyle=":", **PAPER)
    bags = frame.filter(pl.col("store") != "BERT").select("store", "value")
    for number, (name, value) in enumerate(bags.iter_rows(), 1):
        axis.axhline(value, linestyle="--", color=plot.PALETTE[number % len(plot.PALETTE)], label=name)
    axis.legend(**OUTSIDE)
    return figure


def context_sizes(scores: Scores) -> Any:
    """Draw dev F1 by words of context, a line for each layer; the bag of subwords is dashed."""
    contexts, size = scores.contexts, (6.2, 4.2)
    figure, axis = canvas(size, x="words of context on each side", y="micro F1 (dev)", title="F1 by words of context")
    frame = scores.by_context().with_columns(place=pl.col("context").replace_strict(contexts, range(len(contexts))))
    layers = sorted(frame.filter(store="BERT")["layer"].unique().to_list())
    for layer, shade in zip(layers, plot.colormap("viridis")(np.linspace(0, 0.9, len(layers))), strict=True):
        part = frame.filter(store="BERT", layer=layer)
        line(axis, part, by="place", color=shade, marker="o", markersize=4, label=f"BERT, layer {layer}")
    bags = frame.filter(store="P-BERT")
    line(axis, bags, by="place", color="black", linestyle="--", marker="s", markersize=4, label="P-BERT")
    axis.set_xticks(range(len(contexts)), contexts)
    axis.legend(**OUTSIDE)
    return figure


def changes(scores: Scores) -> Any:
    """Draw the pairs that become right above the axis, and those that become wrong below, by layer and by context."""
    frame = scores.frames["flips"]
    parts = {"layer": frame.filter(by="layer"), "context": frame.filter(by="context", layer=scores.best_layer)}
    # The last row compares both ends.
    parts = {by: part.head(max(1, len(part) - 1)) for by, part in parts.items() if len(part)}
    figure, axes = plot.subplots(1, len(parts), figsize=(4.2 * len(parts) + 0.6, 3.4), sharey=True)
    for (by, part), axis in zip(parts.items(), axes[0], strict=True):
        places = range(len(part))
        names = [f"{first} → {second}" for first, second in part.select("from", "to").iter_rows()]
        plot.style(axis, title=f"by {by}", x=by if by == "layer" else "words of context", y="word-class pairs (dev)")
        gained, lost = part["wrong_to_right"], part["right_to_wrong"]
        axis.bar(places, gained, color=plot.PALETTE[0], label="wrong to right")
        axis.bar(places, -lost.cast(pl.Int64), color=plot.PALETTE[1], label="right to wrong")
        difference = [after - before for after, before in zip(gained, lost, strict=True)]
        axis.plot(places, difference, linestyle="none", marker="D", color="black", label="difference")
        axis.axhline(0, color="black", linewidth=0.8)
        axis.set_xticks(places, names, rotation=45, ha="right")
    axis.legend(**OUTSIDE)
    return figure


def by_subwords(scores: Scores) -> Any:
    """Draw test F1 by layer, a line for each number of subwords of the word."""
    frame = scores.frames["subwords"]
    figure, axis = canvas((5.6, 3.8), x="layer", y="micro F1 (test)", title="F1 by subwords of the word")
    numbers = frame["subwords"].unique().sort().to_list()
    for number, shade in zip(numbers, plot.colormap("viridis")(np.linspace(0, 0.9, len(numbers))), strict=True):
        part = frame.filter(subwords=number)
        line(axis, part, color=shade, marker="o", label=f"{number} ({part['count'][0]:,} pairs)")
    axis.legend(**OUTSIDE)
    return figure


def finetuned(scores: Scores) -> Any:
    """Draw a panel per task: the pretrained model, its probes on the fine-tuned model (a), new probes on it (b)."""
    after = f1(scores.frames["finetuned"], split="dev", task="class")
    tasks = after["model"].unique(maintain_order=True).to_list()
    before = f1(scores.frames["contexts"], split="dev", task="class", store="BERT")
    figure, axes = plot.subplots(1, len(tasks), figsize=(3.6 * len(tasks) + 0.4, 3.4), sharey=True)
    for task, axis in zip(tasks, axes[0], strict=True):
        line(axis, before, color="black", linestyle=":", marker="o", label="pretrained")
        for setup, color, marker in (("a", plot.PALETTE[1], "^"), ("b", plot.PALETTE[2], "s")):
            line(axis, after.filter(model=task, setup=setup), color=color, marker=marker, label=f"{task} ({setup})")
        if task == "pos" and scores.has_published_layers:
            stated = [published.TUNED_POS[name] for name in ("pretrained", "a", "b")]
            axis.plot([published.TUNED_POS["layer"]] * 3, stated, linestyle="none", **PAPER)
        plot.style(axis, title=task, x="layer", y="micro F1 (dev)", layers=before["layer"].to_list())
        axis.legend(frameon=False, fontsize=9)
    return figure


def attention(scores: Scores) -> Any:
    """Draw a heat map per task, heads by layers: darker cells have changed more."""
    frames = scores.frames["attention"].partition_by("task", as_dict=True, maintain_order=True)
    lowest = min([0.9, *scores.frames["attention"]["value"].drop_nulls()])
    figure, axes = plot.subplots(1, len(frames), figsize=(3.6 * len(frames) + 0.8, 3.2))
    for ((task,), frame), axis in zip(frames.items(), axes[0], strict=True):
        image = draw_grid(axis, grid(frame), cmap="magma", vmin=lowest, vmax=1)
        axis.set_title(task)
    figure.colorbar(image, ax=axes[0].tolist(), label="cosine of attention weights", shrink=0.9)
    return figure


def canvas(size: tuple[float, float], *, y: str, x: str = "", title: str = "") -> Any:
    """Return a figure of one panel and its axis."""
    figure, axes = plot.subplots(figsize=size)
    plot.style(axes[0, 0], title=title, x=x, y=y)
    return figure, axes[0, 0]


def line(axis: Any, frame: pl.DataFrame, *, by: str = "layer", **style: Any) -> None:
    """Draw the values of a frame by layer, or by another column."""
    ordered = frame.sort(by)
    axis.plot(ordered[by], ordered["value"], **style)
