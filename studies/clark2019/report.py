"""The tables and figures of Clark et al. 2019, next to the published figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from embstore import plot
from embstore_studies.clark2019.published import SOURCE, TABLE1
from embstore_studies.study import Row, Section, decimals

SHARES = ("self", "previous", "next", "cls", "sep", "punctuation", "period_comma", "sep_to_sep", "other_to_sep")
KINDS = ("cls", "sep", "period_comma", "other")
DIRECTIONS = {"relation_to_head": "to the head", "relation_to_dependant": "to the dependant"}
LEAST_EDGES = 100  # of a relation, as in the authors' notebook
PANELS = {
    "attention.png": ("Where attention goes (Figures 2 and 4)", ("share", "entropy", "distance")),
    "heads.png": ("Heads in the plane (Figure 6)", ("head_x", "head_y")),
    "relations.png": ("Relations: best heads (Table 1)", ("relation_to_head",)),
    "trees.png": ("Trees of each head (Htut et al. 2019)", ("uuas",)),
}
Frames = Mapping[str, pl.DataFrame]


def sections(frames: Frames) -> list[Section]:
    """Return every table of the study, model after model."""
    found = []
    for model in frames["attention"]["model"].unique(maintain_order=True):
        own = {key: frame.filter(model=model) for key, frame in frames.items()}
        whole = own["attention"]
        found += [where(whole, model), entropies(whole, model)]
        if len(own.get("importance", ())):
            found.append(importance(own["importance"], model))
        found.append(relations(whole, model))
        if "coreference" in own:
            found.append(coreference(own["coreference"], model))
        found += [clusters(whole, model), trees(whole, model)]
    return found


def _by_layer(frame: pl.DataFrame, metric: str, items: tuple[str, ...]) -> list[Row]:
    """The means over heads by layer."""
    rows: list[Row] = []
    part = frame.filter(pl.col("layer").is_not_null(), metric=metric)
    for layer in part["layer"].unique().sort():
        means = {item: part.filter(layer=layer, item=item)["value"].to_numpy() for item in items}
        rows.append({"layer": layer, **{item: _number(each.mean()) for item, each in means.items() if len(each)}})
    return rows


def _number(value: float) -> str:
    return decimals(value) if abs(value) >= 0.001 or not value else f"{value:.1e}"


def where(frame: pl.DataFrame, model: str) -> Section:
    note = (
        "Mean share of a subword's attention, mean of the heads of a layer (Figure 2 of the paper, whose numbers are "
        "not published). Rogers et al. 2020 (section 5.1) report that [SEP] gets more of it from layer 5 of BERT on."
    )
    return Section(f"Where attention goes ({model})", note, _by_layer(frame, "share", SHARES))


def entropies(frame: pl.DataFrame, model: str) -> Section:
    rows = []
    for row in _by_layer(frame, "entropy", ("all", "cls")):
        heads = frame.filter(layer=row["layer"], metric="entropy", item="all").sort("value")
        extremes = {"lowest head": _head(heads.row(0, named=True)), "highest head": _head(heads.row(-1, named=True))}
        rows.append({**row, **extremes})
    note = "Nats, mean of the heads of a layer: of every subword, and of [CLS] (Figure 4)."
    return Section(f"Entropy of attention ({model})", note, rows)


def _head(row: Mapping[str, Any]) -> str:
    return f"{row['layer']}.{row['head']}: {_number(row['value'])}"


def importance(frame: pl.DataFrame, model: str) -> Section:
    note = (
        "Mean of |d loss / d attention| over pairs of a query and a key of that kind, mean of the heads (Figure 3, "
        "whose numbers are not published). Rogers et al. 2020 (section 5.1): the importance of [SEP] drops where its "
        "attention grows."
    )
    return Section(f"Importance of attention ({model})", note, _by_layer(frame, "importance", KINDS))


def relations(frame: pl.DataFrame, model: str) -> Section:
    rows: list[Row] = []
    part = frame.filter(pl.col("metric").is_in(list(DIRECTIONS)), pl.col("count") >= LEAST_EDGES)
    best = part.sort("value", descending=True, maintain_order=True).group_by("item", maintain_order=True).first()
    for row in best.sort("count", "item", descending=[True, False]).to_dicts():
        published = TABLE1.get(row["item"])
        cells: Row = {"relation": row["item"], "edges": row["count"], "head": f"{row['layer']}.{row['head']}"}
        cells |= {"direction": DIRECTIONS[row["metric"]], "score": f"{100 * row['value']:.1f}"}
        cells |= {"baseline": f"{100 * row['baseline']:.1f} ({row['offset']:+d})"}
        cells["paper"] = cells["paper's baseline"] = None
        if published is not None:
            cells["paper"] = f"{published.relation} {published.head}: {published.score:.1f}"
            cells["paper's baseline"] = f"{published.baseline:.1f} ({published.offset:+d})"
        rows.append(cells)
    note = (
        "Percent of words whose most attended other word is at the other end of the relation, of the best head; the "
        "baseline is the best fixed offset on the same sentences. The head is chosen on these sentences too, as in the "
        f"paper, so that its score is a little high. The paper's columns are from {SOURCE}: BERT-base on dev of the "
        "Wall Street Journal with Stanford Dependencies; its `all` counts punctuation too. Other annotation, so no "
        "difference is given."
    )
    return Section(f"Table 1. Relations ({model})", note, rows)


def coreference(frame: pl.DataFrame, model: str) -> Section:
    heads = frame.filter(pl.col("head").is_not_null()).sort("value", descending=True, maintain_order=True)
    if not len(heads):
        return Section(f"Table 2. Coreference ({model})", "No mention has an antecedent among the words.", [])
    rules = {row["item"]: row["value"] for row in frame.filter(pl.col("head").is_null()).to_dicts()}
    best = heads.row(0, named=True)
    rows: list[Row] = [
        {"choice of the antecedent": "nearest mention", "accuracy": decimals(best["baseline"])},
        {"choice of the antecedent": "nearest with the same head word", "accuracy": decimals(rules["head_match"])},
        {
            "choice of the antecedent": "same words, same head word, nearest",
            "accuracy": decimals(rules["string_match"]),
        },
        *(
            {"choice of the antecedent": f"head {row['layer']}.{row['head']}", "accuracy": decimals(row["value"])}
            for row in heads.head(3).to_dicts()
        ),
    ]
    note = (
        f"{best['count']:,} mentions with an antecedent in their sentence; the head word of a mention is taken to be "
        "its last word, as the data has no trees. The paper's rules also compare number, gender and person, and its "
        "data are documents of CoNLL-2012; its table is not shown, as no source of the authors was at hand. Rogers et "
        "al. 2020 (section 5.1): a head of BERT is on par with a system of rules."
    )
    return Section(f"Table 2. Coreference ({model})", note, rows)


def clusters(frame: pl.DataFrame, model: str) -> Section:
    part = frame.filter(metric="jensen_shannon").with_columns(
        other_layer=pl.col("item").str.split(".").list.first().cast(pl.Int64),
        itself=pl.col("item") == pl.format("{}.{}", pl.col("layer"), pl.col("head")),
    )
    rows: list[Row] = []
    for layer in part["layer"].unique().sort():
        pairs = part.filter(~pl.col("itself"), layer=layer)
        same = pairs.filter(other_layer=layer)["value"].mean()
        other = pairs.filter(pl.col("other_layer") != layer)["value"].mean()
        rows.append({"layer": layer, "same layer": decimals(same), "other layers": decimals(other)})  # type: ignore[arg-type]
    note = (
        "Mean Jensen-Shannon divergence of a head to those of its layer and to those of other layers, in nats (Figure "
        "6: heads of one layer are close to each other)."
    )
    return Section(f"Distances between heads ({model})", note, rows)


def trees(frame: pl.DataFrame, model: str) -> Section:
    part = frame.filter(metric="uuas")
    rows: list[Row] = []
    for layer in part["layer"].drop_nulls().unique().sort():
        heads = part.filter(layer=layer).sort("value", descending=True, maintain_order=True)
        best = heads.row(0, named=True)
        mean = float(np.mean(heads["value"].to_numpy()))
        rows.append(
            {
                "layer": layer,
                "best head": f"{layer}.{best['head']}",
                "UUAS": decimals(best["value"]),
                "mean of heads": decimals(mean),
            }
        )
    random = part.filter(item="random")["value"][0]
    note = (
        "Maximum spanning arborescences from the annotated root (Htut et al. 2019), scored without punctuation. "
        f"Baselines: {decimals(part['baseline'].drop_nulls()[0])} where each word is attached to the one before it, "
        f"{decimals(random)} for a random tree. Clark et al. and Htut et al. find no head with whole trees (Rogers et "
        "al. 2020, section 5.1)."
    )
    return Section(f"Trees ({model})", note, rows)


def draw(frames: Frames, folder: Path) -> dict[str, str]:
    """Write the figures of each model; returns titles by file name."""
    drawn = {}
    for model in frames["attention"]["model"].unique(maintain_order=True):
        parts = [(file, title, frames["attention"], metrics) for file, (title, metrics) in PANELS.items()]
        parts += [
            (f"{name}.png", title, frames[name], (name,))
            for name, title in (
                ("importance", "Importance of attention (Figure 3)"),
                ("coreference", "Coreference (Table 2)"),
            )
            if name in frames
        ]
        for file, title, frame, metrics in parts:
            own = frame.filter(pl.col("metric").is_in(metrics), model=model)
            if len(own):
                plot.save(plot.attention_figure(own, title=model), folder / f"{model}-{file}")
                drawn[f"{model}-{file}"] = f"{title}: {model}"
    return drawn
