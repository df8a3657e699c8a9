"""The commands that measure the geometry of layers: how contextual, how similar."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import embstore as es
import embstore_cli.options as opt
from embstore.errors import check_whole
from embstore_cli.output import Drawing, print_notes, print_table

if TYPE_CHECKING:
    import polars as pl

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
SETTINGS = {
    "top": int,
    "baseline": Literal["exact", "sample"],
    "sample": int,
    "resamples": int,
    "seed": int,
    "precision": Literal["float32", "float64"],
    "memory": str,
    "cluster": str,
    "workers": int,
    "words_only": bool,
}
CKA = {"device": str, "precision": Literal["float32", "float64"], "memory": str}


def geometry(
    stores: opt.StorePaths,
    *,
    metrics: Annotated[str, opt.option("LIST", f"all, or some of {', '.join(TITLES)}.", show_default=False)] = PAPER,
    layers: opt.Layers = "all",
    min_contexts: opt.MinContexts = 5,
    centered: Annotated[
        bool, typer.Option("--centered", help="Subtract the mean before MEV, for words and baseline alike.")
    ] = False,
    device: opt.Device = "cpu",
    settings: Annotated[dict[str, Any], opt.Config(lambda: SETTINGS)],
    output: Drawing,
) -> None:
    """Measure how contextual each layer's vectors are.

    Self-similarity, intra-sentence similarity, maximum explainable variance and anisotropy (Ethayarajh 2019), with
    their baselines; means by layer with 95 % bootstrap intervals. --out has every word and sentence.
    --set top=N shows the N most and the N least context-specific words; words_only=true leaves punctuation out.
    """
    paths = _names(stores)
    chosen = settings
    names = list(TITLES) if metrics == "all" else list(filter(None, metrics.replace(" ", "").split(",")))
    top = chosen.pop("top", 5)
    resampling = {"resamples": chosen.pop("resamples", 1000), "seed": chosen.get("seed", 0)}
    check_whole("resamples", resampling["resamples"], 1, 10**6)
    executor = opt.executor_of(chosen.pop("cluster", None), chosen.pop("workers", None))
    options: dict[str, Any] = {"executor": executor, "metrics": names, "device": device, **chosen}
    options |= {"min_contexts": min_contexts, "centered": centered}
    tables: dict[str, pl.DataFrame] = {}
    with executor or nullcontext():
        for name, path in paths.items():
            opened = es.open(path)
            tables[name] = es.geometry(opened, layers=opt.layers_of(layers), **options)
    summaries = {name: es.analysis.summarize_geometry(table, **resampling) for name, table in tables.items()}
    output.draw(lambda: es.plot.geometry_figure(summaries))
    if output.deliver(_concatenated(tables)):
        for name, summary in summaries.items():
            if len(summaries) > 1:
                print(f"{name}\n{'=' * len(name)}\n")
            _print(tables[name], summary, top)


def _names(stores: list[str]) -> dict[str, str]:
    """Return the stores by name: the stem of each, or its path where two have the same stem."""
    es.store.require_distinct(stores)
    stems = [PurePosixPath(path).stem for path in stores]
    names = stems if len(set(stems)) == len(stems) else stores
    return dict(zip(names, stores, strict=True))


def _concatenated(tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    import polars as pl

    if len(tables) == 1:
        return next(iter(tables.values()))
    return pl.concat([table.select(pl.lit(name).alias("store"), pl.all()) for name, table in tables.items()])


def _print(table: pl.DataFrame, summary: pl.DataFrame, top: int) -> None:
    """Print the means of a store by metric and layer, then its extreme words."""
    for metric, text in TITLES.items():
        rows = [_row(row) for row in summary.to_dicts() if row["metric"] == metric]
        if rows:
            print_table(rows, title=text)
            print()
    if top and "selfsim" in summary["metric"]:
        _print_words(table, "selfsim", top, end="context-specific", value="self-similarity")
        print()


def _print_words(table: pl.DataFrame, metric: str, top: int, *, end: str, value: str) -> None:
    """Print the words with the lowest and with the highest values of the last layer."""
    words = es.analysis.extreme_words(table, metric=metric, count=top)
    rows = [
        {end: row["end"], "word": row["item"], "occurrences": row["count"], value: row["value"]}
        for row in words.to_dicts()
    ]
    print_table(rows, title=f"the most and the least {end} words of layer {words['layer'][0]}")


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
    settings: Annotated[dict[str, Any], opt.Config(lambda: CKA)],
    output: Drawing,
) -> None:
    """Compare the layers of one or two stores by linear CKA.

    Centered kernel alignment (Kornblith et al. 2019) is 1 for layers that differ only in rotation, shift and scale.
    """
    chosen = settings | {"layers": opt.layers_of(layers)}
    stores, (left, right) = [es.open(store)], ("", "")
    if other is not None:
        (left, right), chosen["other_layers"] = _names([store, other]), chosen["layers"]
        stores.append(es.open(other))
    table = es.analysis.linear_cka(*stores, **chosen)
    output.draw(lambda: es.plot.cka_map(table, names=(left, right)))
    if output.deliver(table):
        rows: dict[int, dict[str, Any]] = {}
        for row in table.to_dicts():
            line = rows.setdefault(row["other_layer"], {f"{right} layer".strip(): str(row["other_layer"])})
            line[str(row["layer"])] = row["value"]
        print_table(list(rows.values()), title=f"linear CKA with each {left} layer".replace("  ", " "))
    count, size = table["count"].to_list()[0], max(each.hidden_size for each in stores)
    if count < size:
        print_notes([f"{count:,} occurrences are fewer than the {size:,} features, so that any two layers are similar"])
