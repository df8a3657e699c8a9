"""The tables of Zhao et al. 2020, next to the published figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from embstore.studies.study import Row, Section, decimals
from embstore.studies.zhao2020 import published
from embstore.studies.zhao2020.settings import Zhao2020

OURS = ("representation", "dev", "test")
PUBLISHED_NAMES = {"skip-gram": "PSE"}  # our name: the paper's
PAPER = (
    "Paper: BERT-base-uncased on Wiki-PSE; its layers are shown only for a model with as many. Layer 0 is the "
    "embeddings; layer l, the output of block l, is the paper's layer l - 1."
)


@dataclass(frozen=True, eq=False)
class Scores:
    """The frames of one run of the study, with the number of layers of its model."""

    settings: Zhao2020
    n_layers: int
    frames: Mapping[str, pl.DataFrame]

    @property
    def has_published_layers(self) -> bool:
        """Whether the paper's scores by layer are comparable."""
        return self.n_layers == published.N_LAYERS

    def by_window(self) -> pl.DataFrame:
        """Return dev F1 by representation, layer and context window; null is the whole sentence."""
        whole = self.frames["contexts"].filter(pl.col("store").is_in(["BERT", "P-BERT"]))
        whole = whole.with_columns(pl.lit(None, pl.Int64).alias("window"))
        frame = pl.concat([self.frames["windows"], whole], how="diagonal")
        return f1(frame, split="dev", task="class").select("store", "layer", "window", "value", "deviation")


def f1(frame: pl.DataFrame, **where: Any) -> pl.DataFrame:
    """Return the rows of micro F1 with these values."""
    return frame.filter(metric="f1", **where)


def sections(scores: Scores) -> list[Section]:
    """Return every table of the study; scores are micro F1 over word-class decisions unless stated otherwise."""
    frames = scores.frames
    found = [counts(frames["counts"]), *types(scores), contexts(scores), selectivity(frames["contexts"])]
    if len(frames["windows"]):
        found.append(windows(scores))
    if "tuning" in frames:
        found.append(tuning(frames["tuning"]))
    if len(frames.get("pos_windows", ())):
        found.append(pos_windows(frames["pos_windows"]))
    if "finetuned" in frames:
        found.append(finetuned(scores))
    return found


def counts(frame: pl.DataFrame) -> Section:
    rows = frame.filter(pl.col("class") == "").drop("class").to_dicts()
    return Section("Table 2. Words, word-class pairs and contexts", f"{frame['class'].n_unique() - 1} classes.", rows)


def score(frame: pl.DataFrame, split: str) -> str:
    """Format the score of a split with its deviation over the seeds; empty where there is none."""
    row = frame.filter(split=split)
    if not len(row) or row["value"][0] is None:
        return ""
    value, deviation = row["value"][0], row["deviation"][0]
    return f"{value:.3f}" if deviation is None else f"{value:.3f} ± {deviation:.3f}"


def score_rows(
    scores: Scores, frame: pl.DataFrame, layered: str, table: dict[str, Any], by_layer: dict[str, Any]
) -> list[Row]:
    """Return a row for each representation and layer: dev and test, and the published scores of the same name."""
    rows = []
    for (name, layer), group in f1(frame, task="class").group_by("store", "layer", maintain_order=True):
        known: dict[str, float] = table.get(PUBLISHED_NAMES.get(str(name), str(name)), {})
        if by_layer and name == layered and scores.has_published_layers and isinstance(layer, int) and layer > 0:
            known = {split: values[layer - 1] for split, values in by_layer.items()}
        rows.append(
            {
                "representation": name if name != layered else f"{name}, layer {layer}",
                "dev": score(group, "dev"),
                "test": score(group, "test"),
                "paper dev": decimals(known.get("dev")),
                "paper test": decimals(known.get("test")),
            }
        )
    return rows


def types(scores: Scores) -> Iterable[Section]:
    for (vocabulary,), frame in scores.frames["types"].group_by("vocabulary", maintain_order=True):
        if vocabulary == "own":
            rows = score_rows(scores, frame, "AVG", published.UNCONTEXTUAL, dict(published.AVERAGED))
            yield Section("Table 5. One vector per word", PAPER, rows)
        else:
            rows = [{name: row[name] for name in OURS} for row in score_rows(scores, frame, "AVG", {}, {})]
            note = f"On the words of {vocabulary} alone, which the paper has no scores for."
            yield Section(f"Table 5 on the words of {vocabulary}", note, rows)


def contexts(scores: Scores) -> Section:
    rows = score_rows(scores, scores.frames["contexts"], "BERT", published.BAGS, dict(published.CONTEXTUAL))
    return Section("Table 6. One vector per context", PAPER, rows)


def selectivity(frame: pl.DataFrame) -> Section:
    rows = []
    for (name, layer), group in frame.group_by("store", "layer", maintain_order=True):
        test = group.filter(split="test", item="")
        values = {(task, metric): value for task, metric, value in test.select("task", "metric", "value").iter_rows()}
        rows.append(
            {
                "representation": f"{name}, layer {layer}" if name == "BERT" else name,
                "class": decimals(values.get(("class", "f1"))),
                "control": decimals(values.get(("control", "f1"))),
                "selectivity": decimals(values.get(("class", "selectivity"))),
                "contexts F1": decimals(values.get(("class", "contexts_f1"))),
            }
        )
    note = "Selectivity: F1 of the class task minus F1 of the control task."
    return Section("Control task: random classes for each word (test)", note, rows)


def windows(scores: Scores) -> Section:
    rows = []
    for (name, layer), group in scores.by_window().group_by("store", "layer", maintain_order=True):
        values = dict(group.select("window", "value").iter_rows())
        row: Row = {"representation": f"{name}, layer {layer}" if name == "BERT" else name}
        for window in scores.settings.context_windows:
            row["all" if window is None else str(window)] = decimals(values.get(window))
        rows.append(row)
    note = "The model is given this many words on each side of the target."
    return Section("Figure 5. Words of context on each side (dev)", note, rows)


def tuning(frame: pl.DataFrame) -> Section:
    rows = [
        {"task": task, "metric": metric, "dev": decimals(value), "paper dev": decimals(published.FINETUNED[task])}
        for task, metric, value in frame.select("task", "metric", "value").iter_rows()
    ]
    return Section("Table 3. Fine-tuning", "Paper: BERT-base-uncased, on other data.", rows)


def pos_windows(frame: pl.DataFrame) -> Section:
    rows = [
        {
            "window": "all" if window is None else str(window),
            "dev": decimals(value),
            "paper dev": decimals(published.POS_BY_WINDOW.get(window)),
        }
        for window, value in frame.select("window", "value").iter_rows()
    ]
    return Section("Table 7. POS accuracy by attention window", "A word attends to this many words on each side.", rows)


def finetuned(scores: Scores) -> Section:
    rows = []
    frame, pretrained = scores.frames["finetuned"], f1(scores.frames["contexts"], split="dev", task="class")
    for layer, value in pretrained.filter(store="BERT").select("layer", "value").iter_rows():
        row: Row = {"layer": layer, "pretrained": decimals(value)}
        after = f1(frame, split="dev", task="class", layer=layer)
        for task, setup, found in after.select("model", "setup", "value").iter_rows():
            row[f"{task} ({setup})"] = decimals(found)
        stated = published.TUNED_POS
        if scores.has_published_layers and layer == stated["layer"]:
            names = {"paper": "pretrained", "paper pos (a)": "a", "paper pos (b)": "b"}
            row |= {name: decimals(stated[key]) for name, key in names.items()}
        rows.append(row)
    note = (
        "(a) the probes of the pretrained model, (b) new probes, both on the vectors of the fine-tuned model. Of the "
        "paper's Figure 6 the text states the last layer after POS alone."
    )
    return Section("Figure 6. Before and after fine-tuning (dev)", note, rows)
