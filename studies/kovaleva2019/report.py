"""The tables and figures of Kovaleva et al. 2019, next to what their text states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from embstore import plot
from embstore_studies.heads_figure import heads_figure
from embstore_studies.kovaleva2019.published import CHANGED, DISABLING, HETEROGENEOUS, PRUNED
from embstore_studies.study import Row, Section, decimals

SHOWN_RELATIONS = 10


@dataclass(frozen=True, eq=False)
class Scores:
    """The frames of one run: `attention` with a column model (pretrained or a task), the others with a column task."""

    model: str
    n_layers: int
    n_heads: int
    tasks: tuple[str, ...]
    frames: Mapping[str, pl.DataFrame]

    def of(self, table: str, task: str) -> pl.DataFrame:
        """Return the rows of a task."""
        return self.frames[table].filter(pl.col("task") == task)


def sections(scores: Scores) -> list[Section]:
    """Return every table of the study."""
    found = [patterns(scores), changes(scores), relations(scores)]
    for task in scores.tasks:
        found += [layers(scores, task), heads(scores, task)]
    return [*found, paper(), pruning(scores)]


def patterns(scores: Scores) -> Section:
    frame = scores.frames["attention"].filter(pl.col("metric") == "pattern", pl.col("layer").is_not_null())
    rows: list[Row] = []
    for model in ("pretrained", *scores.tasks):
        part = frame.filter(pl.col("model") == model)
        for layer in (None, *sorted(part["layer"].unique())):
            own = part if layer is None else part.filter(pl.col("layer") == layer)
            means = own.group_by("item", maintain_order=True).agg(pl.col("value").mean())
            cells = {item: decimals(value) for item, value in means.iter_rows()}
            rows.append({"model": model, "layer": "all" if layer is None else str(layer), **cells})
    rows.append({"model": "paper: fine-tuned on GLUE", "layer": "all", "heterogeneous": HETEROGENEOUS})
    note = (
        "Shares of maps of each pattern, means over heads, by an explicit rule; theirs is a classifier trained on maps "
        "labeled by hand (the statement is that of Rogers et al. 2020, section 5.1)."
    )
    return Section("Patterns of attention maps", note, rows)


def changes(scores: Scores) -> Section:
    rows: list[Row] = []
    for task in scores.tasks:
        means = scores.of("similarity", task).group_by("layer").agg(pl.col("value").mean()).sort("layer")
        lowest = means.sort("value")["layer"][:2].sort().to_list()
        cells = {f"layer {layer}": decimals(value) for layer, value in means.select("layer", "value").iter_rows()}
        rows.append({"task": task, **cells, "changed most": ", ".join(map(str, lowest))})
    rows.append({"task": "paper", "changed most": CHANGED})
    note = "Cosine of attention weights before and after fine-tuning on sentences of dev, means over heads."
    return Section("Attention before and after fine-tuning", note, rows)


def relations(scores: Scores) -> Section:
    frame = scores.frames["attention"].filter(pl.col("metric") == "relation_to_head", pl.col("head").is_not_null())
    own = frame.filter(pl.col("model") == "pretrained")
    names = own.group_by("item").agg(pl.col("count").first()).sort("count", "item", descending=[True, False])["item"]
    rows: list[Row] = []
    for item in names[:SHOWN_RELATIONS]:
        best = own.filter(pl.col("item") == item).sort("value", descending=True, maintain_order=True).row(0, named=True)
        row: Row = {"relation": item, "words": best["count"], "layer.head": f"{best['layer']}.{best['head']}"}
        row |= {"attends most to the head": decimals(best["value"]), "best fixed offset": decimals(best["baseline"])}
        for task in scores.tasks:
            where = {"model": task, "item": item, "layer": best["layer"], "head": best["head"]}
            row[f"after {task}"] = decimals(frame.filter(**where)["value"][0])
        rows.append(row)
    note = (
        "The best head of the pretrained model for each relation, chosen on the same sentences, and the same head "
        "after fine-tuning."
    )
    return Section("Attention to syntactic relations", note, rows)


def layers(scores: Scores, task: str) -> Section:
    frame = scores.of("disabled", task)
    whole = frame.row(0, named=True)
    rows: list[Row] = [{"without": "nothing", whole["metric"]: decimals(whole["value"])}]
    for row in frame.filter(pl.col("head").is_null(), pl.col("layer").is_not_null()).to_dicts():
        rows.append(
            {"without": f"the heads of layer {row['layer']}", whole["metric"]: decimals(row["value"]), **_effect(row)}
        )
    return Section(f"Disabled layers: {task}", f"Dev, {whole['count']:,} labels; MLPs remain.", rows)


def heads(scores: Scores, task: str) -> Section:
    frame = scores.of("disabled", task).filter(pl.col("head").is_not_null()).sort("effect")
    clear = frame.filter(pl.col("clear"))
    n_worse, n_better = clear.filter(pl.col("effect") < 0).height, clear.filter(pl.col("effect") > 0).height
    chosen = pl.concat([frame[:3], frame[-3:]]).unique(["layer", "head"], maintain_order=True)
    rows = [{"without head": f"{row['layer']}.{row['head']}", **_effect(row)} for row in chosen.to_dicts()]
    mean = sum(frame["effect"]) / frame.height
    note = (
        f"The extremes of {frame.height} heads. Clear effects: {n_worse} heads without which the score falls, "
        f"{n_better} without which it rises; the mean of all is {mean:+.4f}. The others may be noise."
    )
    return Section(f"Disabled heads: {task}", note, rows)


def _effect(row: Row) -> Row:
    interval = "" if row["low"] is None else f"{row['low']:+.4f} to {row['high']:+.4f}"
    return {"change": f"{row['effect']:+.4f}", "95 %": interval, "clear": "yes" if row["clear"] else "no"}


def paper() -> Section:
    rows = [{"what": what, "task": task, "change": change} for what, task, change in DISABLING]
    note = (
        "Kovaleva et al. 2019, section 4.6, BERT-base on GLUE; without intervals. Of its figures nothing is read off."
    )
    return Section("Disabled heads and layers in the paper", note, rows)


def pruning(scores: Scores) -> Section:
    rows: list[Row] = []
    for task in scores.tasks:
        frame = scores.of("pruned", task)
        random = frame.filter(pl.col("order") == "random")
        for row in frame.filter(pl.col("order") == "importance").to_dicts():
            others = random.filter(pl.col("share") == row["share"])["value"]
            own = {
                "task": task,
                "pruned": f"{row['n_disabled']} ({row['share']:.0%})",
                "by importance": decimals(row["value"]),
            }
            spread = f"{min(others):.3f} to {max(others):.3f}"
            rows.append({**own, **_effect(row), "random orders": spread})
    note = f"Dev score as heads are disabled, the least important first (Michel et al. 2019: {PRUNED})."
    return Section("Pruning", note, rows)


def draw(scores: Scores, folder: Path) -> dict[str, str]:
    """Write the figures; returns titles by file name."""
    found = {}
    for model in ("pretrained", *scores.tasks):
        maps = scores.frames["attention"].filter(model=model, metric="pattern")
        plot.save(plot.attention_figure(maps, title=model), folder / f"patterns-{model}.png")
        found[f"patterns-{model}.png"] = f"Patterns of attention maps by layer: {model}"
    for task in scores.tasks:
        title = f"Attention before and after fine-tuning for {task}"
        similarity = plot.attention_heatmap(scores.of("similarity", task), title=title)
        plot.save(similarity, folder / f"similarity-{task}.png")
        tables = {name: scores.of(name, task) for name in ("disabled", "importance", "pruned")}
        plot.save(heads_figure(**tables, title=f"{scores.model}, {task}"), folder / f"heads-{task}.png")
        found |= {f"similarity-{task}.png": title, f"heads-{task}.png": f"Disabled heads and layers: {task}"}
    return found
