"""The tables and figures of Liu et al. 2019 and of Lin et al. 2019, next to what a survey states of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore import plot
from embstore.plot.drawing import add_legend, draw_line, panels
from embstore.probes import summary
from embstore_studies.liu2019 import published
from embstore_studies.liu2019.tasks import ELEMENTS, GENERALISATION, ORDER_TASKS, POSITIONS
from embstore_studies.study import Row, Section, decimals
from embstore_studies.tasks import TASKS

LEAST_TASKS = 3  # for an interval over tasks
STUDENT = (4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)  # 97.5 % of Student's t for means of 3 to 10 values
NAMES = {**TASKS, "upos": "POS (UD)", "arcs": "Arcs", "index": "index", "main-auxiliary": "main auxiliary"}
SPLIT_NAMES = {"test": "first of its kind", GENERALISATION: "not the first"}


@dataclass(frozen=True, eq=False)
class Curve:
    """A score by layer, float64 [layers], with the ends of its 95 % intervals; `dev`: the score on dev."""

    layers: tuple[int, ...]
    value: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    dev: NDArray[np.float64]

    @property
    def best(self) -> int:
        """The place of the layer with the highest dev score, so that its test score is not chosen."""
        return int(self.dev.argmax())

    def shown(self, place: int) -> str:
        return f"{self.value[place]:.3f}{bracketed(self.low[place], self.high[place])}"


def bracketed(low: float | None, high: float | None, form: str = ".3f") -> str:
    """Return an interval in brackets; nothing for one that is null or NaN, as that of a single sentence."""
    return f" [{low:{form}}, {high:{form}}]" if low == low and low is not None else ""


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of one run: `frame` of model, encoder and the columns of `ProbeResult`."""

    models: Mapping[str, str]
    tasks: Sequence[str]
    frame: pl.DataFrame

    @cached_property
    def means(self) -> dict[tuple[str, str], pl.DataFrame]:
        """Means over the seeds by model and encoder."""
        parts = self.frame.partition_by("model", "encoder", as_dict=True, include_key=False)
        return {(str(model), str(encoder)): summary(part) for (model, encoder), part in parts.items()}

    @property
    def probed(self) -> list[str]:
        """The tasks of the transfer table, all but those of word order."""
        return [task for task in self.tasks if task not in ORDER_TASKS]

    def rows(self, model: str, task: str, metric: str, *, encoder: str = "trained") -> pl.DataFrame:
        """Return the rows of a metric of one task on test, or on dev if there is no test; empty if there are none."""
        frame = self.means.get((model, encoder))
        if frame is None:
            return pl.DataFrame(schema={"value": pl.Float64})
        found = frame.filter(task=task, metric=metric)
        return found.filter(split="test" if "test" in found["split"] else "dev")

    def curve(
        self, model: str, task: str, metric: str = "layer_f1", *, split: str | None = None, item: str = ""
    ) -> Curve | None:
        """Return a score by layer, on test or else on dev; None if there is none."""
        found = self.means[model, "trained"].filter(task=task, metric=metric, item=item).sort("layer")
        chosen = found.filter(split=split or ("test" if "test" in found["split"] else "dev"))
        if not len(chosen):
            return None
        value, low, high = (chosen[name].to_numpy() for name in ("value", "low", "high"))
        return Curve(tuple(chosen["layer"]), value, low, high, found.filter(split="dev")["value"].to_numpy())


@dataclass(frozen=True, eq=False)
class Transfer:
    """How the layers of one model rank over tasks. `scores`, `dev`: float64 [tasks, layers]."""

    layers: tuple[int, ...]
    scores: NDArray[np.float64]
    dev: NDArray[np.float64]

    @classmethod
    def of(cls, scores: Scores, model: str) -> Transfer:
        curves = [curve for task in scores.probed if (curve := scores.curve(model, task)) is not None]
        return cls(curves[0].layers, np.array([each.value for each in curves]), np.array([each.dev for each in curves]))

    @property
    def normalized(self) -> NDArray[np.float64]:
        """The scores of each task from 0, its worst layer, to 1, its best."""
        return normalized(self.scores)

    @property
    def ranks(self) -> NDArray[np.float64]:
        """The rank of each layer in each task, 1 the best; equal scores share theirs."""
        above = (self.scores[:, None, :] > self.scores[:, :, None]).sum(2)
        equal = (self.scores[:, None, :] == self.scores[:, :, None]).sum(2)
        return np.asarray(above + (equal + 1) / 2)

    @property
    def best(self) -> int:
        """The place of the layer with the highest mean normalized score on dev."""
        return int(normalized(self.dev).mean(0).argmax())

    def gaps(self) -> NDArray[np.float64]:
        """The normalized scores less those of the best layer, [tasks, layers]."""
        return self.normalized - self.normalized[:, [self.best]]


def normalized(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    low, high = scores.min(1, keepdims=True), scores.max(1, keepdims=True)
    return np.asarray((scores - low) / np.where(high > low, high - low, 1))


def over_tasks(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return the ends of the 95 % intervals of means over tasks, by Student's t; None for fewer than LEAST_TASKS.

    `values`: [tasks, layers]. Each task has its own test sentences and trainings, whose noise is in its spread.
    """
    count = len(values)
    if count < LEAST_TASKS:
        return None
    spread = STUDENT[min(count - LEAST_TASKS, len(STUDENT) - 1)] * values.std(0, ddof=1) / np.sqrt(count)
    return values.mean(0) - spread, values.mean(0) + spread


def title_of(task: str) -> str:
    return NAMES.get(task, task)


def sections(scores: Scores) -> list[Section]:
    """Return every table of the study, model after model."""
    found: list[Section] = []
    for model in scores.models:
        suffix = f" ({model})" if len(scores.models) > 1 else ""
        if scores.probed:
            found += [tasks_table(scores, model, suffix), transfer_table(scores, model, suffix)]
        if set(scores.tasks) & set(ORDER_TASKS):
            found.append(order_table(scores, model, suffix))
        found.append(findings(scores, model, suffix))
    return found


def tasks_table(scores: Scores, model: str, suffix: str) -> Section:
    rows: list[Row] = []
    for task in scores.probed:
        curve = scores.curve(model, task)
        assert curve is not None
        majority, best = scores.rows(model, task, "majority_f1"), scores.rows(model, task, "best_layer")
        mix, last = scores.rows(model, task, "f1").sort("layer"), len(curve.layers) - 1
        row: Row = {"task": title_of(task), "targets": majority["count"][0], "majority": decimals(majority["value"][0])}
        row |= {str(layer): decimals(float(value)) for layer, value in zip(curve.layers, curve.value, strict=True)}
        row["best layer"] = f"{curve.layers[curve.best]}{bracketed(best['low'][0], best['high'][0], '.1f')}"
        row["its score"] = curve.shown(curve.best)
        row["mix"] = f"{mix['value'][last]:.3f}{bracketed(mix['low'][last], mix['high'][last])}"
        random = scores.rows(model, task, "f1", encoder="untrained")
        if len(random):
            row["random weights"] = decimals(random.sort("layer")["value"][-1])
        rows.append(row)
    note = (
        "Accuracy on test where each target has one label, else micro F1, of a linear probe of each layer; layer 0 has "
        "no context. Best layer: by dev; in brackets the 95 % interval of the layer with the highest test score over "
        "resampled sentences, and that of its score. Mix: a learned scalar mix of all layers. Random weights: a mix of "
        "the first and last layer of an untrained network. Majority: the best constant answer."
    )
    return Section(f"Linear probes by layer{suffix}", note, rows)


def transfer_table(scores: Scores, model: str, suffix: str) -> Section:
    transfer = Transfer.of(scores, model)
    ranks, gaps = transfer.ranks, transfer.gaps()
    interval, gap_interval = over_tasks(transfer.normalized), over_tasks(gaps)
    rows: list[Row] = []
    for at, layer in enumerate(transfer.layers):
        row: Row = {"layer": layer, "mean score": decimals(float(transfer.scores[:, at].mean()))}
        row["normalized"] = f"{transfer.normalized[:, at].mean():.2f}{interval_text(interval, at)}"
        row["mean rank"] = f"{ranks[:, at].mean():.1f}"
        row["highest in"] = int((ranks[:, at] < 2).sum())
        gap = f"{gaps[:, at].mean():+.2f}{interval_text(gap_interval, at)}"
        row[f"less layer {transfer.layers[transfer.best]}"] = "best on dev" if at == transfer.best else gap
        rows.append(row)
    if interval is None:
        brackets = f"nothing, as {LEAST_TASKS} tasks are needed"
    else:
        brackets = f"95 % intervals over {len(transfer.scores)} tasks by Student's t"
    note = (
        "Figure 5 of the survey (Rogers et al. 2020, after Liu et al.) as numbers. Normalized: from 0, the worst layer "
        "of a task, to 1, its best, on average over tasks; rank 1 is the best layer; highest in: the number of tasks. "
        "The last column is the difference of normalized scores from the layer that is best on dev; a layer whose "
        "interval includes 0 is not distinct from it. In brackets: "
        f"{brackets}; they are of tasks like these, and tasks over the same sentences are not independent."
    )
    return Section(f"Transferability of layers{suffix}", note, rows)


def interval_text(interval: tuple[NDArray[np.float64], NDArray[np.float64]] | None, at: int) -> str:
    return "" if interval is None else f" [{interval[0][at]:.2f}, {interval[1][at]:.2f}]"


def order_curves(scores: Scores, model: str) -> dict[str, tuple[str, str, Curve]]:
    """Return the scores of word order by their names in the report, each with its task and split."""
    found: dict[str, tuple[str, str, Curve]] = {}
    wanted = [("index", "test", "", "index, mean of positions")]
    wanted += [("index", "test", position, f"index {position}") for position in POSITIONS]
    wanted += [
        (task, split, "main" if task == "main-auxiliary" else "subject", f"{title_of(task)}, {name}")
        for task in ELEMENTS
        for split, name in SPLIT_NAMES.items()
    ]
    for task, split, item, name in wanted:
        curve = scores.curve(model, task, "sentence_accuracy", split=split, item=item) if task in scores.tasks else None
        if curve is not None:
            if split == GENERALISATION:  # what dev has, without such sentences, does not choose among layers
                curve = replace(curve, dev=curve.value)
            found[name] = (task, split, curve)
    return found


def order_table(scores: Scores, model: str, suffix: str) -> Section:
    rows: list[Row] = []
    for name, (task, split, curve) in order_curves(scores, model).items():
        counted = scores.means[model, "trained"].filter(task=task, split=split, metric="sentence_accuracy")
        row: Row = {"word": name, "sentences": counted["count"][0]}
        row |= {str(layer): decimals(float(value)) for layer, value in zip(curve.layers, curve.value, strict=True)}
        row["best layer"] = f"{curve.layers[curve.best]}: {curve.shown(curve.best)}"
        random = scores.means.get((model, "untrained"), counted.clear()).filter(
            task=task, split=split, metric="sentence_accuracy", layer=curve.layers[-1]
        )
        if len(random) and name not in (f"index {position}" for position in POSITIONS):
            row["random weights"] = decimals(random["value"][-1])
        rows.append(row)
    note = (
        "After Lin et al. 2019: the share of sentences in which the word with the highest score is the right one. "
        "Index: the first to ninth word of sentences of 10 to 30 words. Main auxiliary and subject noun: probes are "
        "trained on sentences in which it is the first auxiliary or noun, so that its place alone tells it; it is "
        "not the first in the rows that say so (sentences of all splits, none of them trained on), where the first one "
        "is always wrong. Best layer: by dev; of the latter by these sentences themselves, so that its score is a "
        "little too high. Random weights: the last layer of an untrained network. "
        "Sentences of a treebank, where the paper has generated ones: no numbers are compared."
    )
    return Section(f"Linear order and hierarchy{suffix}", note, rows)


def findings(scores: Scores, model: str, suffix: str) -> Section:
    rows: list[Row] = []

    def add(claim: str, here: str, verdict: str) -> None:
        rows.append({"stated": claim, "here": here, "verdict": verdict})

    if scores.probed:
        add(published.MIDDLE, *middle_finding(Transfer.of(scores, model)))
    for task in ("pos", "upos"):
        curve = scores.curve(model, task) if task in scores.tasks else None
        if curve is not None:
            best = scores.rows(model, task, "best_layer")
            low, high = best["low"][0], best["high"][0]
            first, last = curve.layers[0], curve.layers[-1]
            here = f"{title_of(task)}: layer {curve.layers[curve.best]} of {last}, interval "
            here += "not determined" if low is None else f"{low:.1f} to {high:.1f}"
            if low is None:
                verdict = "not determined"
            elif first < low and high < last:
                verdict = "holds"
            elif low == high:  # the first layer or the last
                verdict = "does not hold"
            else:
                verdict = "not determined"
            add(published.POS, here, verdict)
    curves = order_curves(scores, model)
    if "index, mean of positions" in curves:
        curve = curves["index, mean of positions"][2]
        drops = np.diff(curve.value)
        place = int(drops.argmin())
        top = int(curve.value[:2].argmax())
        here = f"{curve.shown(top)} at layer {curve.layers[top]}, {curve.shown(-1)} at layer {curve.layers[-1]}; "
        here += f"falls most from layer {curve.layers[place]} to {curve.layers[place + 1]} ({drops[place]:+.3f})"
        add(published.ORDER, here, compared(curve, -1, top))
    for task in ELEMENTS:
        name = f"{title_of(task)}, {SPLIT_NAMES[GENERALISATION]}"
        if name in curves:
            curve = curves[name][2]
            middle = len(curve.layers) // 2
            here = f"{name}: {curve.shown(0)} at layer 0, {curve.shown(middle)} at layer {curve.layers[middle]}"
            add(published.HIERARCHY, here, compared(curve, 0, middle))
    note = (
        "Stated: by Rogers et al. 2020, section 5.2. Holds, or does not: the intervals do not overlap, or the interval "
        "of the difference leaves out 0; otherwise it is not determined. Middle layers are best: layer 0 and the last "
        "are both lower than the best. Hierarchy: layer 0 and the one in the middle."
    )
    return Section(f"What of the papers holds here{suffix}", note, rows)


def middle_finding(transfer: Transfer) -> tuple[str, str]:
    """Return what is found of the layers that transfer, and the verdict."""
    best, last, interval = transfer.best, len(transfer.layers) - 1, over_tasks(transfer.gaps())
    here = f"layer {transfer.layers[best]} of {transfer.layers[last]} is best on dev, over {len(transfer.scores)} tasks"
    if interval is None:
        return here, f"not determined: {LEAST_TASKS} tasks are needed"
    is_lower = interval[1] < 0
    close = [str(layer) for at, layer in enumerate(transfer.layers) if at != best and not is_lower[at]]
    here += f"; not distinct from it: {', '.join(close)}" if close else "; all others are lower"
    if best in (0, last):
        return here, "not determined" if close else "does not hold"
    return here, "holds" if is_lower[0] and is_lower[last] else "not determined"


def compared(curve: Curve, lower: int, higher: int) -> str:
    """Return whether one layer scores lower than another."""
    if curve.high[lower] < curve.low[higher]:
        return "holds"
    return "does not hold" if curve.low[lower] > curve.high[higher] else "not determined"


def draw(scores: Scores, folder: Path) -> dict[str, str]:
    """Write every figure; returns titles by file name."""
    figures: dict[str, tuple[str, Any]] = {}
    if scores.probed:
        own: dict[str, list[Line]] = {title_of(task): [(task, "layer_f1", None, "")] for task in scores.probed}
        figures["layers.png"] = ("Linear probes by layer", curves_figure(scores, own, "score (test)"))
        figures["transfer.png"] = ("Scores of each layer, by task", transfer_figure(scores))
    order: dict[str, list[Line]] = {}
    if "index" in scores.tasks:
        order[title_of("index")] = [("index", "sentence_accuracy", "test", "")]
    for task, (element, _) in ELEMENTS.items():
        if task in scores.tasks:
            order[title_of(task)] = [(task, "sentence_accuracy", split, element) for split in SPLIT_NAMES]
    if order:
        figures["order.png"] = ("Linear order and hierarchy", curves_figure(scores, order, "share of sentences"))
    for name, (_, figure) in figures.items():
        plot.save(figure, folder / name)
    return {name: title for name, (title, _) in figures.items()}


INTERVAL = ("value", "low", "high")
Line = tuple[str, str, str | None, str]  # task, metric, split, item


def curves_figure(scores: Scores, lines_of: Mapping[str, Sequence[Line]], y: str) -> Any:
    """Draw scores by layer with their intervals, a panel for each name and a color for each model."""
    figure, axes = panels(len(lines_of), columns=4, size=(3.0, 2.6), margin=(0.4, 0.6))
    for (name, lines), axis in zip(lines_of.items(), axes.flat, strict=False):
        for number, model in enumerate(scores.models):
            for (task, metric, split, item), dash in zip(lines, ("-", "--"), strict=False):
                curve = scores.curve(model, task, metric, split=split, item=item)
                if curve is not None:
                    columns = {"layer": curve.layers, "value": curve.value, "low": curve.low, "high": curve.high}
                    label = model if len(lines) == 1 else f"{model}, {SPLIT_NAMES[str(split)]}"
                    rows = pl.DataFrame(columns)
                    draw_line(axis, rows, number=number, label=label, columns=INTERVAL, linestyle=dash)
        plot.style(axis, title=name, x="layer", y=y)
    add_legend(figure, axes)
    return figure


def transfer_figure(scores: Scores) -> Any:
    """Draw the normalized scores of layers (rows) and tasks (columns), darker where higher, with the scores."""
    transfers = {model: Transfer.of(scores, model) for model in scores.models}
    height = max(len(transfer.layers) for transfer in transfers.values())
    size = ((0.62 * len(scores.probed) + 1.2) * len(transfers) + 0.6, 0.36 * height + 1.6)
    figure, axes = plot.subplots(1, len(transfers), figsize=size)
    for axis, (model, transfer) in zip(axes[0], transfers.items(), strict=True):
        shades, best = transfer.normalized, transfer.dev.argmax(1)
        image = axis.imshow(shades.T, cmap="Blues", vmin=0, vmax=1, origin="lower", aspect="auto")
        for (task, at), value in np.ndenumerate(transfer.scores):
            color = "white" if shades[task, at] > 0.6 else "black"
            weight = "bold" if at == best[task] else "normal"
            axis.text(task, at, f"{value:.2f}", ha="center", va="center", fontsize=7, color=color, weight=weight)
        axis.set_xticks(range(len(scores.probed)), [title_of(task) for task in scores.probed], rotation=45, ha="right")
        axis.set_yticks(range(len(transfer.layers)), [str(layer) for layer in transfer.layers])
        axis.tick_params(labelsize=8, length=0)
        axis.set_title(model, fontsize=11)
        axis.set_ylabel("layer", fontsize=9)
    figure.colorbar(image, ax=axes, label="from the worst layer of a task (0) to its best (1)")
    figure.supxlabel("bold: the best layer by dev", fontsize=8)
    return figure
