"""The tables of Zhao et al. 2020, next to the published figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from embstore_studies.study import Row, Section, decimals
from embstore_studies.zhao2020 import published
from embstore_studies.zhao2020.settings import Zhao2020
from embstore_studies.zhao2020.wiki_pse import CLASS_COUNTS, COUNTS, NEIGHBORS

OURS = ("representation", "dev", "test")
PUBLISHED_NAMES = {"skip-gram": "PSE"}  # our name: the paper's
PAPER = (
    "Paper: BERT-base-uncased on Wiki-PSE; its layers are shown only for a model with as many. Layer 0 is the "
    "embeddings; layer l, the output of block l, is the paper's layer l - 1. "
)
OTHER_CLASSES = "The classes are not those of Wiki-PSE: compare the order of the representations, not the scores."
CHANGED = (
    "Wrong to right and right to wrong: word-class pairs of dev words by the rule of half, probes of the first seed; "
    "p: two-sided sign test of the two numbers. "
)
NEVER = "never right, most subwords first"


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

    @property
    def has_published_classes(self) -> bool:
        """Whether the classes are those of the paper, so that scores differ by the model alone."""
        own = set(self.frames["counts"]["class"].unique()) - {""}
        return own <= CLASS_COUNTS.keys()

    @property
    def best_layer(self) -> int:
        """The layer of highest dev F1."""
        frame = f1(self.frames["contexts"], split="dev", task="class", store="BERT")
        return int(frame.sort(-pl.col("value").fill_null(0), "layer")["layer"][0])

    @property
    def contexts(self) -> list[str]:
        """The contexts of Figure 5: windows of words, the whole sentence, and passages."""
        windows = [window for window in self.settings.context_windows if window is not None]
        passages = [] if self.settings.passage_subwords is None else ["passage"]
        return [*map(str, sorted(windows)), "all", *passages]

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
    found = [neighbors(scores), counts(scores), class_counts(scores), ambiguous(frames["ambiguous"])]
    found += [*types(scores), contexts(scores), selectivity(frames["contexts"])]
    found += [flips(scores, "layer"), *examples(frames["examples"], "layer"), subwords(frames["subwords"])]
    if len(frames["windows"]):
        found += [windows(scores), flips(scores, "context"), *examples(frames["examples"], "context")]
    if "tuning" in frames:
        found.append(tuning(frames["tuning"]))
    if len(frames.get("pos_windows", ())):
        found.append(pos_windows(frames["pos_windows"]))
    if "finetuned" in frames:
        found.append(finetuned(scores))
        if "pos" in scores.settings.tuning:
            found.append(after_pos(scores))
    return [section for section in found if section.rows]


def neighbors(scores: Scores) -> Section:
    frame, rows = scores.frames["neighbors"], []
    for word in scores.settings.neighbors_of:
        columns = {}
        for name in ["BERT", *scores.settings.vectors]:
            columns[name] = frame.filter(word=word, table=name).sort("rank")["neighbor"].to_list()
            columns[f"paper {name}"] = list(NEIGHBORS.get((word, name), ()))
        for rank in range(max(map(len, columns.values()))):
            row: Row = {"word": word if not rank else ""}
            rows.append(row | {name: found[rank] for name, found in columns.items() if rank < len(found)})
    note = (
        "By cosine; BERT: the model's own table of subwords. A column is empty where the word is not one entry of the "
        "table. Paper: BERT-base-uncased and another file of GloVe's vectors."
    )
    return Section("Table 1. Nearest neighbors of a word without context", note, rows)


def counts(scores: Scores) -> Section:
    frame, rows = scores.frames["counts"], []
    for row in frame.filter(pl.col("class") == "").drop("class").to_dicts():
        published = COUNTS[row["split"]] if scores.has_published_classes else ()
        rows.append(row | dict(zip(("paper words", "paper pairs", "paper contexts"), published, strict=False)))
    note = (
        f"{frame['class'].n_unique() - 1} classes{'' if scores.has_published_classes else ' (the paper: 34 others)'}."
    )
    return Section("Table 2. Words, word-class pairs and contexts", note, rows)


def class_counts(scores: Scores) -> Section:
    frame, rows = scores.frames["counts"], {}
    totals = frame.filter(pl.col("class") != "").group_by("class").agg(pl.col("pairs").sum())
    for name in totals.sort(-pl.col("pairs"), "class")["class"].to_list():
        rows[name] = {"class": name}
        for place, split in enumerate(("train", "dev", "test")):
            for offset, what in enumerate(("pairs", "contexts")):
                found = frame.filter(pl.col("class") == name, split=split)[what]
                rows[name][f"{split} {what}"] = found[0] if len(found) else 0
                if name in CLASS_COUNTS:
                    rows[name][f"paper {split} {what}"] = CLASS_COUNTS[name][2 * place + offset]
    title = "Table 8. Word-class pairs and contexts by class"
    return Section(title, "Sampled as the study's size states. Paper: its sample of Wiki-PSE.", list(rows.values()))


def ambiguous(frame: pl.DataFrame) -> Section:
    rows, before = [], ("", "")
    for row in frame.iter_rows(named=True):
        pair = f"@{row['word'].replace(' ', '_')}@-{row['class']}"
        shown = row["word"] if row["word"] != before[0] else "", pair if pair != before[1] else ""
        rows.append({"word": shown[0], "word-class pair": shown[1], "context": row["context"]})
        before = row["word"], pair
    note = "The words of most classes (two occurrences each), with their most frequent classes."
    return Section("Table 9. Contexts of words with several classes", note, rows)


def flips(scores: Scores, by: str) -> Section:
    frame, best = scores.frames["flips"].filter(by=by), scores.best_layer
    note = CHANGED + "The last row compares the two ends."
    title = "Section 4.2.3. Pairs that change from layer to layer (dev)"
    if by == "context":
        frame, note = frame.filter(layer=best), f"{CHANGED}Layer {best}, the best by dev F1; all layers are in `flips`."
        title = "Section 4.3.1. Pairs that change with more context (dev)"
    rows = [
        {
            by: f"{row['from']} to {row['to']}",
            "wrong to right": row["wrong_to_right"],
            "right to wrong": row["right_to_wrong"],
            "difference": row["wrong_to_right"] - row["right_to_wrong"],
            "p": f"{row['p']:.3f}" if row["p"] >= 0.001 else "< .001",
            "stay right": row["stay_right"],
            "stay wrong": row["stay_wrong"],
        }
        for row in frame.to_dicts()
    ]
    return Section(title, note, rows)


def examples(frame: pl.DataFrame, by: str) -> Iterable[Section]:
    """Yield the clearest changes by layer or by context; nothing for those that do not occur."""
    parts = {f"gained by {by}": f"from a {by} on right", f"lost by {by}": f"from a {by} on wrong"}
    if by == "layer":
        parts["never"] = NEVER
    note = (
        f"`right` counts the contexts that the probe of the class says yes to, {by} after {by}; `before` and `after` "
        "are the classes that the probes find at the last step before the change and at the first after it."
    )
    for kind, title in parts.items() if len(frame) else ():
        rows = []
        for row in frame.filter(kind=kind).to_dicts():
            shown = {"word": row["word"], "subwords": row["subwords"], "class": row["class"], "of": row["contexts"]}
            rows.append(shown | {"right": row["right"]})
            if kind != "never":
                rows[-1] |= {f"from {by}": row["to"], "before": row["before"] or "-"}
            rows[-1] |= {"after" if kind != "never" else "found": row["after"] or "-", "sentence": row["sentence"]}
        yield Section(f"Examples: {title} (dev)", note if kind.startswith("gained") else "", rows)


def subwords(frame: pl.DataFrame) -> Section:
    rows = []
    for (number,), group in frame.group_by("subwords", maintain_order=True):
        values = {f"layer {layer}": decimals(value) for layer, value in group.select("layer", "value").iter_rows()}
        rows.append({"subwords": number, "pairs": group["count"][0], **values})
    note = (
        "Words of several subwords are rarer and have fewer classes than others, so that this is not the effect of "
        "splitting alone; phrases are several words. The paper has examples (section 4.2.3) and no scores."
    )
    return Section("F1 by the number of subwords of the word (test)", note, rows)


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


def types(scores: Scores) -> Iterable[Section]:
    for (vocabulary,), frame in scores.frames["types"].group_by("vocabulary", maintain_order=True):
        if vocabulary == "own":
            rows = score_rows(scores, frame, "AVG", published.UNCONTEXTUAL, dict(published.AVERAGED))
            yield Section("Table 5. One vector per word", paper_note(scores), rows)
        else:
            rows = [{name: row[name] for name in OURS} for row in score_rows(scores, frame, "AVG", {}, {})]
            note = f"On the words of {vocabulary} alone, which the paper has no scores for."
            yield Section(f"Table 5 on the words of {vocabulary}", note, rows)


def contexts(scores: Scores) -> Section:
    rows = score_rows(scores, scores.frames["contexts"], "BERT", published.BAGS, dict(published.CONTEXTUAL))
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
    if scores.settings.passage_subwords is not None:
        note += f" Passage: a block of at most {scores.settings.passage_subwords} subwords of the text."
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


def after_pos(scores: Scores) -> Section:
    """Return the last layer after fine-tuning for POS, which the paper's text states of its own last layer."""
    last = scores.n_layers
    before = f1(scores.frames["contexts"], split="dev", task="class", store="BERT", layer=last)["value"]
    after = f1(scores.frames["finetuned"], split="dev", task="class", layer=last, model="pos")
    ours = {"pretrained": before[0], **dict(after.select("setup", "value").iter_rows())}
    names = {"pretrained": "pretrained", "a": "POS (a) old probes", "b": "POS (b) new probes"}
    stated = published.TUNED_POS
    rows = [
        {
            "last layer": name,
            "ours": decimals(ours[key]),
            "change": "" if key == "pretrained" or ours[key] is None else f"{ours[key] - ours['pretrained']:+.3f}",
            "paper": decimals(stated[key]),
            "paper change": "" if key == "pretrained" else f"{stated[key] - stated['pretrained']:+.3f}",
        }
        for key, name in names.items()
    ]
    note = f"Our layer {last}; the paper's last of {published.N_LAYERS}, on its own data: compare the changes."
    return Section("Figure 6, last layer after POS (dev)", note, rows)
