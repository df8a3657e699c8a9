"""Figures 3 to 7 of Zhao et al. 2020, with the scores of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from embstore import plot
from embstore.studies.zhao2020 import published
from embstore.studies.zhao2020.report import PUBLISHED_NAMES, Scores, f1

BARS = "#9aa7b5"


def draw(scores: Scores, folder: Path) -> dict[str, str]:
    """Write every figure that has data; returns titles by file name."""
    figures: list[tuple[str, str, str, Callable[[Scores], Any]]] = [
        ("figure3.png", "types", "Figure 3. One vector per word (test)", word_scores),
        ("figure4.png", "contexts", "Figure 4. One vector per context (test)", layer_scores),
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
    names = [*plain["store"], *(f"AVG {layer}" for layer in averaged["layer"])]
    values = [*plain["value"], *averaged["value"]]
    deviations = [each or 0.0 for each in (*plain["deviation"], *averaged["deviation"])]
    figure, axes = plot.subplots(figsize=(1.5 + 0.55 * len(names), 3.6))
    axis = axes[0, 0]
    colors = [BARS] * len(plain) + [plot.PALETTE[0]] * len(averaged)
    axis.bar(range(len(names)), values, yerr=deviations if any(deviations) else None, color=colors, width=0.72)
    for place, value in enumerate(values):
        axis.annotate(f"{value:.2f}", (place, value), (0, 3), textcoords="offset points", ha="center", fontsize=8)
    if scores.has_published_layers:
        known = {PUBLISHED_NAMES.get(name, name): place for place, name in enumerate(plain["store"])}
        points = [
            (place, published.UNCONTEXTUAL[name]["test"])
            for name, place in known.items()
            if name in published.UNCONTEXTUAL
        ]
        points += [(len(plain) + layer, value) for layer, value in enumerate(published.AVERAGED["test"], 1)]
        axis.scatter(*zip(*points, strict=True), marker="D", facecolors="none", edgecolors="black", label="paper")
        axis.legend(frameon=False)
    axis.set_xticks(range(len(names)), names, rotation=45, ha="right")
    axis.set(ylabel="micro F1", ylim=(0, 1))
    return finish(figure, axes, "One vector per word")


def layer_scores(scores: Scores) -> Any:
    """Draw micro F1 by layer, and a horizontal line for each bag of context."""
    frame = f1(scores.frames["contexts"], split="test", task="class")
    bert = frame.filter(store="BERT").sort("layer")
    figure, axes = plot.subplots(figsize=(5.6, 3.8))
    axis = axes[0, 0]
    axis.plot(bert["layer"], bert["value"], marker="o", color=plot.PALETTE[0], label="BERT")
    if bert["deviation"].is_not_null().any():
        low, high = bert["value"] - bert["deviation"], bert["value"] + bert["deviation"]
        axis.fill_between(bert["layer"], low, high, color=plot.PALETTE[0], alpha=0.2, linewidth=0)
    if scores.has_published_layers:
        layers = range(1, published.NUM_HIDDEN_LAYERS + 1)
        axis.plot(layers, published.CONTEXTUAL["test"], ":", color="black", marker="D", mfc="none", label="paper")
    bags = frame.filter(pl.col("store") != "BERT").select("store", "value")
    for number, (name, value) in enumerate(bags.iter_rows(), 1):
        axis.axhline(value, linestyle="--", color=plot.PALETTE[number % len(plot.PALETTE)], label=name)
    axis.set(xlabel="layer", ylabel="micro F1", xticks=bert["layer"].to_list())
    axis.legend(frameon=False, bbox_to_anchor=(1.02, 1), loc="upper left")
    return finish(figure, axes, "One vector per context")


def context_sizes(scores: Scores) -> Any:
    """Draw dev F1 by words of context, a line for each layer; the bag of subwords is dashed."""
    frame, windows = scores.by_window(), list(scores.settings.context_windows)
    order = {window: place for place, window in enumerate(windows)}
    figure, axes = plot.subplots(figsize=(6.2, 4.2))
    axis = axes[0, 0]

    def line(part: pl.DataFrame, **style: Any) -> None:
        points = sorted((order[window], value) for window, value in part.select("window", "value").iter_rows())
        axis.plot(*zip(*points, strict=True), markersize=4, **style)

    layers = sorted(frame.filter(store="BERT")["layer"].unique().to_list())
    shades = plot.colormap("viridis")(np.linspace(0, 0.9, len(layers)))
    for layer, shade in zip(layers, shades, strict=True):
        line(frame.filter(store="BERT", layer=layer), color=shade, marker="o", label=f"BERT, layer {layer}")
    line(frame.filter(store="P-BERT"), color="black", linestyle="--", marker="s", label="P-BERT")
    axis.set_xticks(range(len(windows)), ["all" if window is None else str(window) for window in windows])
    axis.set(xlabel="words of context on each side", ylabel="micro F1 (dev)")
    axis.legend(frameon=False, bbox_to_anchor=(1.02, 1), loc="upper left")
    return finish(figure, axes, "F1 by words of context")


def finetuned(scores: Scores) -> Any:
    """Draw a panel per task: the pretrained model, its probes on the fine-tuned model (a), new probes on it (b)."""
    after = f1(scores.frames["finetuned"], split="dev", task="class")
    tasks = after["model"].unique(maintain_order=True).to_list()
    before = f1(scores.frames["contexts"], split="dev", task="class", store="BERT").sort("layer")
    figure, axes = plot.subplots(1, len(tasks), figsize=(3.6 * len(tasks) + 0.4, 3.4), sharey=True)
    for task, axis in zip(tasks, axes[0], strict=True):
        axis.plot(before["layer"], before["value"], color="black", linestyle=":", marker="o", label="pretrained")
        for setup, color, marker in (("a", plot.PALETTE[1], "^"), ("b", plot.PALETTE[2], "s")):
            line = after.filter(model=task, setup=setup).sort("layer")
            axis.plot(line["layer"], line["value"], color=color, marker=marker, label=f"{task} ({setup})")
        axis.set(xlabel="layer", title=task, xticks=before["layer"].to_list())
        axis.legend(frameon=False, fontsize=9)
    axes[0, 0].set_ylabel("micro F1 (dev)")
    return finish(figure, axes, None)


def attention(scores: Scores) -> Any:
    """Draw a heat map per task, heads by layers: darker cells have changed more."""
    everything = scores.frames["attention"]
    tasks = everything["task"].unique(maintain_order=True).to_list()
    lowest = min([0.9, *everything["value"].drop_nulls()])
    figure, axes = plot.subplots(1, len(tasks), figsize=(3.6 * len(tasks) + 0.8, 3.2))
    for task, axis in zip(tasks, axes[0], strict=True):
        frame = everything.filter(task=task).sort("layer", "head")
        n_layers, n_heads = frame["layer"].n_unique(), frame["head"].n_unique()
        values = frame["value"].to_numpy().reshape(n_layers, n_heads)
        image = axis.imshow(values, origin="lower", cmap="magma", vmin=lowest, vmax=1, aspect="auto")
        axis.set(xlabel="head", ylabel="layer", title=task)
        axis.set_xticks(range(n_heads), range(n_heads))
        axis.set_yticks(range(n_layers), range(1, n_layers + 1))
    figure.colorbar(image, ax=axes[0].tolist(), label="cosine of attention weights", shrink=0.9)
    return figure


def finish(figure: Any, axes: Any, title: str | None) -> Any:
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)
        if title:
            axis.set_title(title, fontsize=11)
    return figure
