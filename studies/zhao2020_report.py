"""The tables and figures of Zhao et al. 2020, next to what the paper prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from embstore import plot
from embstore_studies.study import Row, Section, decimals

# What the paper prints: BERT-base-uncased on Wiki-PSE, micro F1 over 34 classes; accuracy for POS. Their layer i is the
# output of block i + 1, which is layer i + 1 here. Table 5 is of vectors without context, with the averages of layers;
# Table 6 of vectors in context; Table 3 has dev scores of fine-tuning (micro F1 for NER), and section 4.4.2 the last
# layer after POS, by setup.
N_LAYERS = 12

UNCONTEXTUAL = {
    "Rand": {"dev": 0.269, "test": 0.267},
    "BERTw": {"dev": 0.653, "test": 0.652},
    "fastText": {"dev": 0.625, "test": 0.626},
    "GloVe": {"dev": 0.681, "test": 0.680},
    "PSE": {"dev": 0.790, "test": 0.787},
}

AVERAGED = {
    "dev": (0.746, 0.759, 0.764, 0.775, 0.786, 0.791, 0.794, 0.805, 0.811, 0.812, 0.813, 0.809),
    "test": (0.744, 0.756, 0.762, 0.773, 0.783, 0.788, 0.790, 0.802, 0.806, 0.809, 0.808, 0.806),
}

BAGS = {
    "P-Rand": {"dev": 0.637, "test": 0.630},
    "P-fastText": {"dev": 0.707, "test": 0.707},
    "P-BERT": {"dev": 0.672, "test": 0.670},
}

CONTEXTUAL = {
    "dev": (0.649, 0.692, 0.711, 0.739, 0.771, 0.782, 0.795, 0.813, 0.826, 0.832, 0.836, 0.835),
    "test": (0.645, 0.688, 0.708, 0.737, 0.766, 0.777, 0.790, 0.810, 0.824, 0.828, 0.830, 0.831),
}

FINETUNED = {"pos": 0.977, "classify": 0.928, "paraphrase": 0.853, "ner": 0.946}

TUNED_POS = {"layer": 12, "pretrained": 0.835, "a": 0.072, "b": 0.735}

# Table 2: words, word-class pairs and contexts.
COUNTS = {
    "train": (35_399, 62_184, 2_178_895),
    "dev": (8_850, 15_437, 542_938),
    "test": (44_250, 77_706, 2_722_893),
}
# fmt: off
CLASSES = {
    "location", "person", "organization", "art", "event", "broadcast-program", "title", "product", "living-thing",
    "people-ethnicity", "language", "broadcast-network", "time", "religion-religion", "award", "internet-website",
    "god", "education-educational-degree", "food", "computer-programming-language",
    "metropolitan-transit-transit-line", "transit", "finance-currency", "disease", "chemistry", "body-part",
    "finance-stock-exchange", "law", "medicine-medical-treatment", "medicine-drug", "broadcast-tv-channel",
    "medicine-symptom", "biology", "visual-art-color",
}
# fmt: on
PUBLISHED_NAMES = {"skip-gram": "PSE"}  # our name: the paper's

PAPER = (
    "Paper: BERT-base-uncased on Wiki-PSE; its layers are shown only for a model with as many. Layer 0 is the "
    "embeddings; layer l, the output of block l, is the paper's layer l - 1. "
)

OTHER_CLASSES = "The classes are not those of Wiki-PSE: compare the order of the representations, not the scores."


@dataclass(frozen=True, eq=False)
class Scores:
    """The frames of one run of the study, with the number of layers of its model."""

    settings: Any  # of Zhao2020
    n_layers: int
    frames: Mapping[str, pl.DataFrame]

    @property
    def has_published_layers(self) -> bool:
        """Whether the paper's scores by layer are comparable."""
        return self.n_layers == N_LAYERS

    @property
    def has_published_classes(self) -> bool:
        """Whether the classes are those of the paper, so that scores differ by the model alone."""
        own = set(self.frames["counts"]["class"].unique()) - {""}
        return own <= CLASSES

    @property
    def contexts(self) -> list[str]:
        """The contexts of Figure 5: windows of words and the whole sentence."""
        windows = [window for window in self.settings.context_windows if window is not None]
        return [*map(str, sorted(windows)), "all"]

    def by_context(self) -> pl.DataFrame:
        """Return dev F1 by representation, layer and context."""
        whole = self.frames["contexts"].filter(pl.col("store").is_in(["BERT", "P-BERT"]))
        frame = pl.concat([self.frames["windows"], whole.with_columns(context=pl.lit("all"))], how="diagonal")
        return f1(frame, split="dev", task="class").select("store", "layer", "context", "value", "deviation")


def f1(frame: pl.DataFrame, **where: Any) -> pl.DataFrame:
    """Return the rows of micro F1 with these values."""
    return frame.filter(metric="f1", **where)


def sections(scores: Scores) -> list[Section]:
    """Return every table of the study; scores are micro F1 over word-class decisions unless stated otherwise."""
    frames = scores.frames
    tables = [counts(scores), types(scores), contexts(scores), selectivity(frames["contexts"])]
    if len(frames["windows"]):
        tables.append(windows(scores))
    if "tuning" in frames:
        tables += [tuning(frames["tuning"]), finetuned(scores)]
    return tables


def counts(scores: Scores) -> Section:
    frame, rows = scores.frames["counts"], []
    for row in frame.filter(pl.col("class") == "").drop("class").to_dicts():
        published = COUNTS[row["split"]] if scores.has_published_classes else ()
        rows.append(row | dict(zip(("paper words", "paper pairs", "paper contexts"), published, strict=False)))
    note = (
        f"{frame['class'].n_unique() - 1} classes{'' if scores.has_published_classes else ' (the paper: 34 others)'}."
    )
    return Section("Table 2. Words, word-class pairs and contexts", note, rows)


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
        if scores.has_published_classes and "test" in known:
            ours = group.filter(split="test")["value"].to_list()
            rows[-1]["test less paper"] = f"{ours[0] - known['test']:+.3f}" if ours and ours[0] is not None else ""
    return rows


def paper_note(scores: Scores) -> str:
    """Return what to know of the published columns."""
    return PAPER + ("" if scores.has_published_classes else OTHER_CLASSES)


def types(scores: Scores) -> Section:
    rows = score_rows(scores, scores.frames["types"], "AVG", UNCONTEXTUAL, dict(AVERAGED))
    return Section("Table 5. One vector per word", paper_note(scores), rows)


def contexts(scores: Scores) -> Section:
    rows = score_rows(scores, scores.frames["contexts"], "BERT", BAGS, dict(CONTEXTUAL))
    return Section("Table 6. One vector per context", paper_note(scores), rows)


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
    for (name, layer), group in scores.by_context().group_by("store", "layer", maintain_order=True):
        values = dict(group.select("context", "value").iter_rows())
        row: Row = {"representation": f"{name}, layer {layer}" if name == "BERT" else name}
        rows.append(row | {context: decimals(values.get(context)) for context in scores.contexts})
    note = "The model is given this many words on each side of the target."
    return Section("Figure 5. Words of context on each side (dev)", note, rows)


def tuning(frame: pl.DataFrame) -> Section:
    rows = [
        {"task": task, "metric": metric, "dev": decimals(value), "paper dev": decimals(FINETUNED[task])}
        for task, metric, value in frame.select("task", "metric", "value").iter_rows()
    ]
    return Section("Table 3. Fine-tuning", "Paper: BERT-base-uncased, on other data.", rows)


def finetuned(scores: Scores) -> Section:
    rows = []
    frame, pretrained = scores.frames["finetuned"], f1(scores.frames["contexts"], split="dev", task="class")
    for layer, value in pretrained.filter(store="BERT").select("layer", "value").iter_rows():
        row: Row = {"layer": layer, "pretrained": decimals(value)}
        after = f1(frame, split="dev", task="class", layer=layer)
        for task, setup, found in after.select("model", "setup", "value").iter_rows():
            row[f"{task} ({setup})"] = decimals(found)
        stated = TUNED_POS
        if scores.has_published_layers and layer == stated["layer"]:
            names = {"paper": "pretrained", "paper pos (a)": "a", "paper pos (b)": "b"}
            row |= {name: decimals(stated[key]) for name, key in names.items()}
        rows.append(row)
    note = (
        "(a) the probes of the pretrained model, (b) new probes, both on the vectors of the fine-tuned model. Of the "
        "paper's Figure 6 the text states the last layer after POS alone."
    )
    return Section("Figure 6. Before and after fine-tuning (dev)", note, rows)


def figures_of(scores: Scores) -> dict[str, tuple[str, Any]]:
    """Draw every figure that has data, with its title by the name of its file."""
    figures: list[tuple[str, str, str, Callable[[Scores], Any]]] = [
        ("figure4.png", "contexts", "Figure 4. One vector per context (test)", layer_scores),
        ("figure5.png", "windows", "Figure 5. Words of context (dev)", context_sizes),
        ("figure6.png", "finetuned", "Figure 6. Before and after fine-tuning (dev)", finetuned_figure),
    ]
    return {name: (title, make(scores)) for name, frame, title, make in figures if len(scores.frames.get(frame, ()))}


def layer_scores(scores: Scores) -> Any:
    """Draw micro F1 by layer, and a horizontal line for each bag of context."""
    frame = f1(scores.frames["contexts"], split="test", task="class")
    figure, axis = canvas(x="layer", y="micro F1", title="One vector per context")
    bert = frame.filter(store="BERT").sort("layer")
    line(axis, bert, marker="o", color=plot.PALETTE[0], label="BERT")
    if bert["deviation"].is_not_null().any():
        low, high = bert["value"] - bert["deviation"], bert["value"] + bert["deviation"]
        band = {"color": plot.PALETTE[0], "alpha": 0.2, "linewidth": 0}
        axis.fill_between(bert["layer"], low, high, **band, label="± deviation over seeds")
    if scores.has_published_layers:
        axis.plot(range(1, N_LAYERS + 1), CONTEXTUAL["test"], linestyle=":", **PAPER_MARK)
    bags = frame.filter(pl.col("store") != "BERT").select("store", "value")
    for number, (name, value) in enumerate(bags.iter_rows(), 1):
        axis.axhline(value, linestyle=(":", "--", "-.")[number % 3], color=plot.PALETTE[number % 8], label=name)
    plot.add_legend(figure, [axis])
    return figure


def context_sizes(scores: Scores) -> Any:
    """Draw dev F1 by words of context, a line for each layer; the bag of subwords is dashed."""
    contexts = scores.contexts
    figure, axis = canvas(x="words of context on each side", y="micro F1 (dev)", title="F1 by words of context")
    frame = scores.by_context().with_columns(place=pl.col("context").replace_strict(contexts, range(len(contexts))))
    layers = sorted(frame.filter(store="BERT")["layer"].unique().to_list())
    for layer, shade in zip(layers, plot.colormap("viridis")(np.linspace(0, 0.9, len(layers))), strict=True):
        part = frame.filter(store="BERT", layer=layer)
        line(axis, part, by="place", color=shade, marker="o", label=f"BERT, layer {layer}")
    bags = frame.filter(store="P-BERT")
    line(axis, bags, by="place", color="black", linestyle="--", marker="s", label="P-BERT")
    axis.set_xticks(range(len(contexts)), contexts)
    plot.add_legend(figure, [axis])
    return figure


def finetuned_figure(scores: Scores) -> Any:
    """Draw a panel per task: the pretrained model, its probes on the fine-tuned model (a), new probes on it (b)."""
    after = f1(scores.frames["finetuned"], split="dev", task="class")
    tasks = after["model"].unique(maintain_order=True).to_list()
    before = f1(scores.frames["contexts"], split="dev", task="class", store="BERT")
    figure, axes = plot.panels(len(tasks), height=2.2)
    for task, axis in zip(tasks, axes, strict=True):
        line(axis, before, color="black", linestyle=":", marker="o", label="pretrained")
        for setup, color, marker, kind in (("a", plot.PALETTE[1], "^", "same"), ("b", plot.PALETTE[2], "s", "new")):
            line(axis, after.filter(model=task, setup=setup), color=color, marker=marker, label=f"tuned, {kind} probes")
        if task == "pos" and scores.has_published_layers:
            stated = [TUNED_POS[name] for name in ("pretrained", "a", "b")]
            axis.plot([TUNED_POS["layer"]] * 3, stated, linestyle="none", **PAPER_MARK)
        plot.style(axis, title=task, x="layer", y="micro F1 (dev)", layers=before["layer"].to_list())
    plot.add_legend(figure, axes)
    return figure


def canvas(*, y: str, x: str = "", title: str = "") -> Any:
    """Return a figure of one panel and its axis."""
    figure, (axis,) = plot.panels(1, height=3.2)
    plot.style(axis, title=title, x=x, y=y)
    return figure, axis


def line(axis: Any, frame: pl.DataFrame, *, by: str = "layer", **style: Any) -> None:
    """Draw the values of a frame by layer, or by another column."""
    ordered = frame.sort(by)
    axis.plot(ordered[by], ordered["value"], **{"markersize": 3.5, "linewidth": 1.3, **style})


PAPER_MARK = {"marker": "D", "markerfacecolor": "none", "color": "black", "label": "paper"}
