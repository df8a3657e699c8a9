"""The tables and figures of Hewitt & Manning 2019, next to the published figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from embstore import plot
from embstore.probes import summary
from embstore_studies.hewitt2019.published import BY_RANK
from embstore_studies.hewitt2019.settings import Hewitt2019
from embstore_studies.study import Row, Section, decimals

METRICS = {"uuas": "UUAS", "dspr": "DSpr", "root_accuracy": "root", "nspr": "NSpr"}
TASK_METRICS = {
    "layer_f1": "F1",
    "layer_control_f1": "control F1",
    "layer_selectivity": "selectivity",
    "compression": "compression",
    "control_compression": "control compression",
}
KEYS = ("model", "encoder", "rank", "baseline", "layer", "split", "metric")


@dataclass(frozen=True, eq=False)
class Scores:
    """The frames of one run of the study, and the best layer of each model by the dev loss of its distance probes.

    `structure`: model, encoder, rank, baseline and the columns of `ProbeResult`; `tasks`: model and those columns.
    """

    settings: Hewitt2019
    best: Mapping[str, int]
    frames: Mapping[str, pl.DataFrame]

    def structure(self, model: str, **where: Any) -> pl.DataFrame:
        """Return test scores of structural probes, as means over the seeds with their deviation."""
        rows = self.frames["structure"].filter(model=model, split="test", **where)
        return rows.group_by(*KEYS, maintain_order=True).agg(
            pl.col("value").mean(), pl.col("value").std().alias("deviation"), pl.col("count").first()
        )

    def full_rank(self, model: str) -> int:
        """Return the rank of the probes of all layers."""
        several = self.frames["structure"].filter(pl.col("layer") != self.best[model], model=model, encoder="trained")
        rows = several if len(several) else self.frames["structure"].filter(model=model)
        return int(rows["rank"][0])


def sections(scores: Scores) -> list[Section]:
    """Return every table of the study, model after model."""
    found = [table1(scores)]
    for model in scores.best:
        found += [by_layer(scores, model), by_rank(scores, model)]
        found += [task_table(scores, model, task) for task in scores.settings.tasks]
    return found


def _shown(rows: pl.DataFrame) -> Row:
    """The four scores of one probe, with their deviation over the seeds if there are several."""
    by_metric = {row["metric"]: row for row in rows.to_dicts()}
    cells: Row = {}
    for metric, name in METRICS.items():
        row = by_metric.get(metric, {})
        deviation = row.get("deviation")
        cells[name] = decimals(row.get("value")) + ("" if deviation is None else f" ± {deviation:.3f}")
    return cells


def table1(scores: Scores) -> Section:
    rows: list[Row] = []
    for model, layer in scores.best.items():
        rank = scores.full_rank(model)
        trained = scores.structure(model, encoder="trained", rank=rank)
        random = scores.structure(model, encoder="untrained", baseline=False)
        rows.append({"vectors": f"{model}: linear order", **_shown(trained.filter(pl.col("baseline")))})
        own = trained.filter(~pl.col("baseline"))
        rows.append({"vectors": f"{model}, layer 0", **_shown(own.filter(layer=0))})
        if len(random):
            rows.append({"vectors": f"{model}, layer {layer}, random weights", **_shown(random)})
        rows.append({"vectors": f"{model}, layer {layer} (best)", **_shown(own.filter(layer=layer))})
    return Section("Table 1. Trees in vectors", "Test. Best: of least dev loss.", rows)


def by_layer(scores: Scores, model: str) -> Section:
    frame = scores.structure(model, encoder="trained", rank=scores.full_rank(model), baseline=False)
    rows = [{"layer": layer, **_shown(frame.filter(layer=layer))} for layer in frame["layer"].unique().sort()]
    return Section(f"By layer ({model})", f"Test; probes of rank {scores.full_rank(model)}.", rows)


def by_rank(scores: Scores, model: str) -> Section:
    frame = scores.structure(model, encoder="trained", layer=scores.best[model], baseline=False)
    rows = []
    for rank in frame["rank"].unique().sort():
        uuas, dspr = BY_RANK.get(rank, (None, None))
        paper = {"UUAS, paper": decimals(uuas), "DSpr, paper": decimals(dspr)}
        rows.append({"rank": rank, **_shown(frame.filter(rank=rank)), **paper})
    note = (
        "Test. Paper: BERTBASE7 (BERT-base-cased, layer 8 here) on the Penn Treebank with Stanford Dependencies; other "
        "treebanks and annotations have other scores, so no difference is given."
    )
    return Section(f"By rank, layer {scores.best[model]} ({model})", note, rows)


def task_table(scores: Scores, model: str, task: str) -> Section:
    means = summary(scores.frames["tasks"].filter(model=model, task=task).with_columns(store=pl.lit(model)))
    means = means.filter(pl.col("metric").is_in(list(TASK_METRICS)) & (pl.col("split") != "dev"))
    rows: list[Row] = []
    for layer in means["layer"].unique().sort():
        values = {row["metric"]: row["value"] for row in means.filter(layer=layer).to_dicts()}
        rows.append({"layer": layer, **{name: decimals(values.get(metric)) for metric, name in TASK_METRICS.items()}})
    note = (
        "Linear probes of each layer alone: F1 on test, that of the control task, whose labels are drawn by form "
        "(Hewitt & Liang 2019), and their difference; compression of the train labels by the online code: the length "
        "of the uniform code divided by its own (Voita & Titov 2020)."
    )
    return Section(f"Selectivity and code length: {task} ({model})", note, rows)


def draw(scores: Scores, folder: Path) -> dict[str, str]:
    """Write the figures by layer and by rank; returns titles by file name."""
    parts = []
    for model in scores.best:
        rank = scores.full_rank(model)
        for encoder in ("trained", "untrained"):
            frame = scores.structure(model, encoder=encoder, rank=rank)
            name = model if encoder == "trained" else f"{model}, random weights"
            is_word_order = frame["baseline"]
            frame = frame.filter(~is_word_order) if encoder == "untrained" else frame
            parts.append(frame.with_columns(store=pl.lit(name)))
    plot.save(plot.structure_figure(pl.concat(parts)), folder / "layers.png")
    plot.save(rank_figure(scores), folder / "ranks.png")
    return {"layers.png": "Trees in vectors, by layer", "ranks.png": "Trees in vectors, by rank of the probe"}


def rank_figure(scores: Scores) -> Any:
    """Draw UUAS and DSpr of the best layer of each model by the rank of the probe."""
    figure, axes = plot.subplots(1, 2, figsize=(8.4, 3.4))
    for axis, metric in zip(axes[0], ("uuas", "dspr"), strict=True):
        for number, (model, layer) in enumerate(scores.best.items()):
            frame = scores.structure(model, encoder="trained", layer=layer, metric=metric).sort("rank")
            color, marker = plot.PALETTE[number % len(plot.PALETTE)], plot.MARKERS[number % len(plot.MARKERS)]
            axis.plot(frame["rank"], frame["value"], color=color, marker=marker, label=f"{model}, layer {layer}")
        published = {rank: dict(zip(("uuas", "dspr"), values, strict=True))[metric] for rank, values in BY_RANK.items()}
        known = sorted({*scores.frames["structure"]["rank"]} & published.keys())
        look = {"color": "#777777", "linestyle": "--", "label": "the paper's BERTBASE7 (Penn Treebank)"}
        axis.plot(known, [published[rank] for rank in known], **look)
        plot.style(axis, title=METRICS[metric], x="rank of the probe", y=f"{METRICS[metric]} (test)")
        axis.set_xscale("log", base=2)
        axis.set_xticks(ranks := sorted({*scores.frames["structure"]["rank"]}), [str(rank) for rank in ranks])
        axis.minorticks_off()
    axes[0, 0].legend(frameon=False, fontsize=9)
    return figure
