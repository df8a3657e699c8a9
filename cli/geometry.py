"""The commands that measure the geometry of layers: how contextual, how similar."""

from __future__ import annotations

from typing import Annotated, Any

import polars as pl

import embstore as es
import embstore_cli.options as opt
from embstore_cli.output import Drawing, print_notes, print_table

PAPER = "selfsim,intrasim,mev,anisotropy"
TITLES = {
    "anisotropy": "mean cosine of two occurrences (anisotropy)",
    "selfsim": "self-similarity of words",
    "intrasim": "intra-sentence similarity",
    "mev": "maximum explainable variance of words",
    "mean_norm": "mean norm",
    "participation_ratio": "participation ratio",
    "effective_rank": "effective rank",
    "top_component": "share of the top component",
}
SHOWN_WORDS = 5  # at each end, of the last layer


def geometry(
    stores: opt.StorePaths,
    *,
    metrics: Annotated[str, opt.option("LIST", f"all, or some of {', '.join(TITLES)}.", show_default=False)] = PAPER,
    layers: opt.Layers = "all",
    min_contexts: opt.MinContexts = 5,
    settings: Annotated[dict[str, Any], opt.Config(lambda: es.geometry, "words_only", "baseline", "seed", "precision")],
    output: Drawing,
) -> None:
    """Measure how contextual each layer's vectors are.

    Self-similarity, intra-sentence similarity, maximum explainable variance and anisotropy (Ethayarajh 2019), with
    their baselines; means by layer with 95 % bootstrap intervals. --out has every word and sentence.
    """
    names = "all" if metrics == "all" else list(filter(None, metrics.replace(" ", "").split(",")))
    options: dict[str, Any] = {"metrics": names, "min_contexts": min_contexts, **settings}
    tables = {
        name: es.geometry(store, layers=opt.layers_of(layers), **options)
        for name, store in opt.open_stores(stores).items()
    }
    summaries = {
        name: es.analysis.summarize_geometry(table, seed=settings.get("seed", 0)) for name, table in tables.items()
    }
    output.draw(lambda: es.plot.geometry_figure(summaries))
    (table, *others), named = tables.values(), tables.items()
    if others:
        table = pl.concat(part.select(pl.lit(name).alias("store"), pl.all()) for name, part in named)
    if output.deliver(table):
        for name, summary in summaries.items():
            if len(summaries) > 1:
                print(f"{name}\n{'=' * len(name)}\n")
            _print(tables[name], summary)


def _print(table: pl.DataFrame, summary: pl.DataFrame) -> None:
    """Print the means of a store by metric and layer, then its extreme words."""
    measured = summary["metric"].unique().to_list()
    for metric in sorted(measured, key=[*TITLES, *measured].index):
        rows = [_row(row) for row in summary.to_dicts() if row["metric"] == metric]
        print_table(rows, title=TITLES.get(metric, metric.replace("_", " ")))
        print()
    if "selfsim" in summary["metric"]:
        words = es.analysis.extreme_words(table, count=SHOWN_WORDS)
        names = {"end": "context-specific", "item": "word", "count": "occurrences", "value": "self-similarity"}
        rows = words.select(*names).rename(names).to_dicts()
        print_table(rows, title=f"the most and the least context-specific words of layer {words['layer'][0]}")
        print()


def _row(row: dict[str, Any]) -> dict[str, Any]:
    shown = {"layer": str(row["layer"]), "value": row["value"]}
    if row["low"] is not None:
        shown["95 % interval"] = f"{row['low']:.4f} to {row['high']:.4f}"
    if row["baseline"] is not None:
        shown |= {"baseline": row["baseline"], "adjusted": row["adjusted"]}
    return shown | {"of": row["count"]}


def cka(
    store: opt.StorePath,
    other: Annotated[str | None, opt.argument("STORE", "Another store of the same occurrences.")] = None,
    *,
    layers: opt.Layers = "all",
    output: Drawing,
) -> None:
    """Compare the layers of one or two stores by linear CKA.

    Centered kernel alignment (Kornblith et al. 2019) is 1 for layers that differ only in rotation, shift and scale.
    """
    chosen, opened = opt.layers_of(layers), opt.open_stores([store] if other is None else [store, other])
    left, right = ("", "") if other is None else opened
    table = es.analysis.linear_cka(*opened.values(), layers=chosen, other_layers=None if other is None else chosen)
    output.draw(lambda: es.plot.cka_map(table, names=(left, right)))
    if output.deliver(table):
        rows: dict[int, dict[str, Any]] = {}
        for row in table.to_dicts():
            line = rows.setdefault(row["other_layer"], {f"{right} layer".strip(): str(row["other_layer"])})
            line[str(row["layer"])] = row["value"]
        print_table(list(rows.values()), title=f"linear CKA with each {left} layer".replace("  ", " "))
    count, size = table["count"].to_list()[0], max(each.hidden_size for each in opened.values())
    if count < size:
        print_notes([f"{count:,} occurrences are fewer than the {size:,} features, so that any two layers are similar"])
