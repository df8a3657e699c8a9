"""The command that measures the geometry of each layer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import embstore as es
from embstore.errors import InvalidValueError
from embstore_cli.help import Command
from embstore_cli.output import AsJson, Out, print_json, print_table, require_figure, require_out, write_table
from embstore_cli.progress import progress_bar
from embstore_cli.query_workers import QueryCluster, QueryWorkers, query_executor
from embstore_cli.sizes import nbytes_of

if TYPE_CHECKING:
    import polars as pl

PAPER = "selfsim,intrasim,mev,anisotropy"
NAMES = {
    "anisotropy": "mean cosine of two occurrences (anisotropy)",
    "selfsim": "self-similarity of words",
    "intrasim": "intra-sentence similarity",
    "mev": "maximum explainable variance of words",
    "mean_norm": "mean norm",
    "participation_ratio": "participation ratio",
    "effective_rank": "effective rank",
    "top_component": "share of the top component",
}


def add_to(app: typer.Typer) -> None:
    example = "Example: embstore geometry bert.zarr gpt2.zarr --plot geometry.png"
    app.command("geometry", cls=Command, epilog=example)(geometry_command)


def geometry_command(
    stores: Annotated[list[str], typer.Argument(metavar="STORE", help="One store or several, files or addresses.")],
    metrics: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Of selfsim, intrasim, mev, anisotropy, mean_norm, participation_ratio, effective_rank, "
            "top_component, or all.",
        ),
    ] = PAPER,
    layers: Annotated[str, typer.Option(metavar="LAYERS", help="Such as 0,6-12, last or all.")] = "all",
    min_contexts: Annotated[
        int, typer.Option(metavar="N", help="Only words that occur in N different sentences or more.")
    ] = 5,
    centered: Annotated[
        bool, typer.Option("--centered", help="Take the mean away before MEV, for words and baseline alike.")
    ] = False,
    baseline: Annotated[
        Literal["exact", "sample"],
        typer.Option(metavar="HOW", help="exact, over all occurrences; sample, over some drawn at random."),
    ] = "exact",
    sample: Annotated[int, typer.Option(metavar="N", help="How many occurrences are drawn (the paper: 1000).")] = 1000,
    top: Annotated[
        int, typer.Option(metavar="N", help="Show the N words whose vectors vary most and least with their sentence.")
    ] = 5,
    resamples: Annotated[int, typer.Option(metavar="N", help="Bootstrap resamples of words and sentences.")] = 1000,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the sample and the bootstrap.")] = 0,
    precision: Annotated[
        Literal["float32", "float64"], typer.Option(metavar="DTYPE", help="What is computed in: float32 or float64.")
    ] = "float32",
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda or cuda:N.")] = "cpu",
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory to work in, such as 500MB; with less, more passes.")
    ] = "1GiB",
    cluster: QueryCluster = None,
    workers: QueryWorkers = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the paper's figures to FILE.{png,svg,pdf}.")
    ] = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Measure how contextual each layer's vectors are.

    Self-similarity, intra-sentence similarity, maximum explainable variance and anisotropy (Ethayarajh 2019), with
    their baselines; means by layer with 95 % bootstrap intervals. --out has every word and sentence.
    """
    require_out(out)
    require_figure(plot, option="--plot")
    if top < 0:
        raise InvalidValueError(f"--top {top} is not allowed: give 0 or more")
    names = _names(stores)
    chosen = _metrics(metrics)
    options = {
        "metrics": chosen,
        "min_contexts": min_contexts,
        "centered": centered,
        "baseline": baseline,
        "sample": sample,
        "seed": seed,
        "precision": precision,
        "device": device,
        "memory": nbytes_of(memory, option="--memory"),
        "executor": query_executor(cluster, workers),
    }
    tables = {name: _measured(path, layers, options) for name, path in zip(names, stores, strict=True)}
    summaries = {
        name: es.analysis.summarize_geometry(table, resamples=resamples, seed=seed) for name, table in tables.items()
    }
    whole = _together(tables)
    if out is not None:
        write_table(whole, out)
    if plot is not None:
        es.plot.save(es.plot.geometry_figure(summaries), plot)
    if as_json:
        print_json(whole.to_dicts())
        return
    _print(tables, summaries, top)


def _names(stores: list[str]) -> list[str]:
    from embstore.store.storage.location import place_of

    names = [place_of(path).stem for path in stores]
    if len(set(names)) < len(names):
        names = stores
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidValueError(f"the store {twice} is given twice: give each once")
    return names


def _metrics(text: str) -> list[str]:
    from embstore.analysis.geometry.measure import METRICS

    return list(METRICS) if text == "all" else [name.strip() for name in text.split(",") if name.strip()]


def _measured(path: str, layers: str, options: dict[str, Any]) -> pl.DataFrame:
    from embstore.store.layers import chosen_layers

    opened = es.open(path)
    chosen = chosen_layers(layers, opened.layers)
    with progress_bar(f"geometry of {opened.path.name}", total=None, unit="occurrences") as advance:
        return es.geometry(opened, layers=chosen, progress=advance, **options)


def _together(tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    import polars as pl

    if len(tables) == 1:
        return next(iter(tables.values()))
    return pl.concat([table.select(pl.lit(name).alias("store"), pl.all()) for name, table in tables.items()])


def _print(tables: dict[str, pl.DataFrame], summaries: dict[str, pl.DataFrame], top: int) -> None:
    for name, summary in summaries.items():
        if len(summaries) > 1:
            print(f"{name}\n{'=' * len(name)}\n")
        for metric, text in NAMES.items():
            rows = [_row(row) for row in summary.to_dicts() if row["metric"] == metric]
            if rows:
                print_table(rows, title=text)
                print()
        if top and "selfsim" in summary["metric"]:
            _print_extremes(tables[name], int(summary["layer"].to_list()[-1]), top)


def _row(row: dict[str, Any]) -> dict[str, Any]:
    told = {"layer": str(row["layer"]), "value": row["value"]}
    if row["low"] is not None:
        told["95 % interval"] = f"{row['low']:.4f} to {row['high']:.4f}"
    if row["baseline"] is not None:
        told |= {"baseline": row["baseline"], "adjusted": row["adjusted"]}
    return told | {"of": row["count"]}


def _print_extremes(table: pl.DataFrame, layer: int, count: int) -> None:
    found = es.analysis.extreme_words(table, layer=layer, count=count)
    rows = [
        {
            "context-specific": row["end"],
            "word": row["item"],
            "occurrences": row["count"],
            "self-similarity": row["value"],
        }
        for row in found.to_dicts()
    ]
    print_table(rows, title=f"the most and the least context-specific words of layer {layer}")
    print()
