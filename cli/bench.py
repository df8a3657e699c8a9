"""`embstore bench`: how fast it is here, with your own model and text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import embstore as es
from embstore_cli.output import AsJson, print_json, print_table

bench = typer.Typer(help="Measure extraction and reading on this machine.", no_args_is_help=True)


def add_to(app: typer.Typer) -> None:
    bench.command("extract")(extract)
    bench.command("query")(query)
    app.add_typer(bench, name="bench")


def extract(
    corpus: Annotated[str, typer.Argument(help="Text to extract, any format of `embstore extract`.")],
    model: Annotated[str, typer.Option("--model", "-m", help="Model folder, or a name on the Hugging Face hub.")],
    sentences: Annotated[int, typer.Option(help="How many sentences of the corpus to run.")] = 2000,
    layers: Annotated[str, typer.Option(help="Layers to store.")] = "all",
    pooling: Annotated[str, typer.Option(help="mean, first, last or max.")] = "mean",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    compute_dtype: Annotated[str, typer.Option(help="auto, float32, float16 or bfloat16.")] = "auto",
    batch_subwords: Annotated[int | None, typer.Option(help="Subwords a batch.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Where to write the store that is measured.")] = None,
    as_json: AsJson = False,
) -> None:
    """Extract to a temporary store: words/s, GB/s, and the share of each stage."""
    result = es.bench_extract(
        corpus,
        model=model,
        sentences=sentences,
        layers=layers,
        pooling=pooling,
        device=device,
        compute_dtype=compute_dtype,
        batch_subwords=batch_subwords,
        folder=folder,
    )
    if as_json:
        print_json(result.as_json())
        return
    print_table(result.rates(), title=f"{result.words:,} words in {result.seconds:.2f} s")
    print_table(result.stages(), title="where the time went")


def query(
    store: Annotated[Path, typer.Argument(help="A store: NAME.zarr or NAME.h5.")],
    layer: Annotated[int | None, typer.Option(help="The layer to read (the last one stored).")] = None,
    repeats: Annotated[int, typer.Option(help="Runs of each read; the median is printed.")] = 7,
    seed: Annotated[int, typer.Option(help="Seed of the rows drawn.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Time opening, gathering rows and scanning a layer beside numpy in memory."""
    rows = es.bench_query(store, layer=layer, repeats=repeats, seed=seed)
    if as_json:
        print_json(rows)
    else:
        print_table(rows, title=str(store))
