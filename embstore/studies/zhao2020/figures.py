"""Figures 3 to 7 of Zhao et al. 2020, with our numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from embstore import plot
from embstore.studies.zhao2020 import published
from embstore.studies.zhao2020.report import COUNTERPART, by_window, f1

if TYPE_CHECKING:
    from embstore.studies.zhao2020.study import Zhao2020

BARS = "#9aa7b5"


def draw(result: Zhao2020) -> dict[str, str]:
    """Write every figure that the study has data for; their files and titles."""
    made: dict[str, tuple[str, Any]] = {
        "figure3.png": ("Figure 3. One vector a word (test)", uncontextual(result)),
        "figure4.png": ("Figure 4. A vector a context (test)", contextual(result)),
    }
    if len(result.windows):
        made["figure5.png"] = ("Figure 5. Words of context (dev)", context_sizes(result))
    if result.finetuned is not None:
        made["figure6.png"] = ("Figure 6. Before and after fine-tuning (dev)", finetuned(result))
    if result.attention is not None:
        made["figure7.png"] = ("Figure 7. Attention before and after fine-tuning", attention(result))
    for name, (_, figure) in made.items():
        plot.save(figure, result.folder / "figures" / name)
    return {name: title for name, (title, _) in made.items()}


def _theirs(result: Zhao2020) -> bool:
    return result.num_hidden_layers == published.NUM_HIDDEN_LAYERS


def uncontextual(result: Zhao2020) -> Any:
    """Bars: micro F1 of every representation that has one vector a word, the average of each layer to the right."""
    frame = f1(result.types, split="test", task="class", vocabulary="own")
    plain = frame.filter(pl.col("store") != "AVG")
    averaged = frame.filter(pl.col("store") == "AVG").sort("layer")
    names = [*plain["store"], *(f"AVG {layer}" for layer in averaged["layer"])]
    values = [*plain["value"], *averaged["value"]]
    errors = [0.0 if each is None else each for each in (*plain["deviation"], *averaged["deviation"])]
    figure, axes = plot.subplots(figsize=(1.5 + 0.55 * len(names), 3.6))
    axis = axes[0, 0]
    colors = [BARS] * len(plain) + [plot.PALETTE[0]] * len(averaged)
    axis.bar(range(len(names)), values, yerr=errors if any(errors) else None, color=colors, width=0.72)
    for place, value in enumerate(values):
        axis.annotate(f"{value:.2f}", (place, value), (0, 3), textcoords="offset points", ha="center", fontsize=8)
    known = {COUNTERPART.get(name, name): place for place, name in enumerate(plain["store"])}
    points = [
        (place, published.UNCONTEXTUAL[name]["test"]) for name, place in known.items() if name in published.UNCONTEXTUAL
    ]
    if _theirs(result):
        points += [(len(plain) + layer, value) for layer, value in enumerate(published.AVERAGED["test"], 1)]
        axis.scatter(
            *zip(*points, strict=True), marker="D", facecolors="none", edgecolors="black", label="Zhao et al. 2020"
        )
        axis.legend(frameon=False)
    axis.set_xticks(range(len(names)), names, rotation=45, ha="right")
    axis.set(ylabel="micro F1", ylim=(0, 1))
    return _finished(figure, [axis], "One vector a word")


def contextual(result: Zhao2020) -> Any:
    """Lines: micro F1 by layer, and of each bag of context across."""
    frame = f1(result.contexts, split="test", task="class")
    bert = frame.filter(pl.col("store") == "BERT").sort("layer")
    figure, axes = plot.subplots(figsize=(5.6, 3.8))
    axis = axes[0, 0]
    axis.plot(bert["layer"], bert["value"], marker="o", color=plot.PALETTE[0], label="BERT")
    if bert["deviation"].is_not_null().any():
        low, high = bert["value"] - bert["deviation"], bert["value"] + bert["deviation"]
        axis.fill_between(bert["layer"], low, high, color=plot.PALETTE[0], alpha=0.2, linewidth=0)
    if _theirs(result):
        axis.plot(
            range(1, 13),
            published.CONTEXTUAL["test"],
            ":",
            color="black",
            marker="D",
            mfc="none",
            label="Zhao et al. 2020",
        )
    for number, (name, value) in enumerate(
        frame.filter(pl.col("store") != "BERT").select("store", "value").iter_rows(), 1
    ):
        axis.axhline(value, linestyle="--", color=plot.PALETTE[number % len(plot.PALETTE)], label=name)
    axis.set(xlabel="layer", ylabel="micro F1", xticks=bert["layer"].to_list())
    axis.legend(frameon=False, bbox_to_anchor=(1.02, 1), loc="upper left")
    return _finished(figure, [axis], "A vector a context")


def context_sizes(result: Zhao2020) -> Any:
    """Lines: dev F1 by words of context, a line a layer, the bag of subwords dashed."""
    frame = by_window(result)
    windows = list(result.scale.context_windows)
    order = {window: place for place, window in enumerate(windows)}
    figure, axes = plot.subplots(figsize=(6.2, 4.2))
    axis = axes[0, 0]
    layers = sorted(frame.filter(pl.col("store") == "BERT")["layer"].unique().to_list())
    shades = plot.colormap("viridis")(np.linspace(0, 0.9, len(layers)))
    for layer, shade in zip(layers, shades, strict=True):
        line = frame.filter((pl.col("store") == "BERT") & (pl.col("layer") == layer))
        _line(axis, line, order, color=shade, marker="o", markersize=4, label=f"BERT, layer {layer}")
    _line(
        axis,
        frame.filter(pl.col("store") == "P-BERT"),
        order,
        color="black",
        linestyle="--",
        marker="s",
        markersize=4,
        label="P-BERT",
    )
    axis.set_xticks(range(len(windows)), ["all" if window is None else str(window) for window in windows])
    axis.set(xlabel="words of context on each side", ylabel="micro F1 (dev)")
    axis.legend(frameon=False, bbox_to_anchor=(1.02, 1), loc="upper left")
    return _finished(figure, [axis], "How much context it takes")


def _line(axis: Any, frame: pl.DataFrame, order: dict[int | None, int], **style: Any) -> None:
    points = sorted((order[window], value) for window, value in frame.select("window", "value").iter_rows())
    axis.plot(*zip(*points, strict=True), **style)


def finetuned(result: Zhao2020) -> Any:
    """A panel a task: the pretrained model, its probes on the fine-tuned one (a), and new probes there (b)."""
    assert result.finetuned is not None
    after = f1(result.finetuned, split="dev", task="class")
    tasks = after["model"].unique(maintain_order=True).to_list()
    before = f1(result.contexts, split="dev", task="class", store="BERT").sort("layer")
    figure, axes = plot.subplots(1, len(tasks), figsize=(3.6 * len(tasks) + 0.4, 3.4), sharey=True)
    for task, axis in zip(tasks, axes[0], strict=True):
        axis.plot(before["layer"], before["value"], color="black", linestyle=":", marker="o", label="pretrained")
        for setup, color in (("a", plot.PALETTE[1]), ("b", plot.PALETTE[2])):
            line = after.filter((pl.col("model") == task) & (pl.col("setup") == setup)).sort("layer")
            axis.plot(
                line["layer"],
                line["value"],
                color=color,
                marker="^" if setup == "a" else "s",
                label=f"{task} ({setup})",
            )
        axis.set(xlabel="layer", title=task, xticks=before["layer"].to_list())
        axis.legend(frameon=False, fontsize=9)
    axes[0][0].set_ylabel("micro F1 (dev)")
    return _finished(figure, list(axes[0]), None)


def attention(result: Zhao2020) -> Any:
    """A heat map a task, heads across and layers up: darker has changed more."""
    assert result.attention is not None
    tasks = result.attention["task"].unique(maintain_order=True).to_list()
    lowest = min(0.9, result.attention["value"].min())  # type: ignore[type-var]
    figure, axes = plot.subplots(1, len(tasks), figsize=(3.6 * len(tasks) + 0.8, 3.2))
    for task, axis in zip(tasks, axes[0], strict=True):
        frame = result.attention.filter(pl.col("task") == task).sort("layer", "head")
        layers, heads = frame["layer"].n_unique(), frame["head"].n_unique()
        image = axis.imshow(
            frame["value"].to_numpy().reshape(layers, heads),
            origin="lower",
            cmap="magma",
            vmin=lowest,
            vmax=1,
            aspect="auto",
        )
        axis.set(xlabel="head", ylabel="layer", title=task)
        axis.set_xticks(range(heads), range(heads))
        axis.set_yticks(range(layers), range(1, layers + 1))
    figure.colorbar(image, ax=axes[0].tolist(), label="cosine of attention weights", shrink=0.9)
    return figure


def _finished(figure: Any, axes: list[Any], title: str | None) -> Any:
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)
        if title:
            axis.set_title(title, fontsize=11)
    return figure
