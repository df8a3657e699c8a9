"""`embstore bench`: how fast it is here, with your own model and text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import embstore as es
from embstore.errors import InvalidValueError
from embstore_cli.extract import BatchSubwords, Compute, Corpus, Device, Layers, Model, Pooling
from embstore_cli.help import Command
from embstore_cli.output import AsJson, print_json, print_table
from embstore_cli.store import StorePath

bench = typer.Typer(help="Measure extraction, reading and search on this machine.", no_args_is_help=True)


def add_to(app: typer.Typer) -> None:
    bench.command("extract", cls=Command)(extract)
    bench.command("query", cls=Command)(query)
    bench.command("neighbors", cls=Command)(neighbors)
    app.add_typer(bench, name="bench")


def extract(
    corpus: Corpus,
    model: Model,
    device: Device = "auto",
    compute_dtype: Compute = "auto",
    batch_subwords: BatchSubwords = None,
    layers: Layers = "all",
    pooling: Pooling = "mean",
    sentences: Annotated[int, typer.Option(metavar="N", help="How many sentences of the corpus to run.")] = 2000,
    folder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where the store that is measured is written.")
    ] = None,
    disk_mib: Annotated[
        int, typer.Option(metavar="MIB", help="How large a file is written to measure the disk.")
    ] = 256,
    as_json: AsJson = False,
) -> None:
    """Time an extraction: words/s, GB/s, and which stage binds.

    Each stage stands beside the best that it could do here, measured in the same run. The store is written to a
    temporary folder and removed.
    """
    result = es.extraction.bench_extract(
        corpus,
        model=model,
        sentences=sentences,
        layers=layers,
        pooling=pooling,
        device=device,
        compute_dtype=compute_dtype,
        batch_subwords=batch_subwords,
        folder=folder,
        disk_nbytes=disk_mib * 2**20,
    )
    if as_json:
        print_json(result.as_json())
        return
    print_table(result.rates(), title=f"{result.words:,} words in {result.seconds:.2f} s")
    print_table(result.stages(), title="where the time went")
    print_table(result.limits_table(), title="how far each stage is from its own limit")
    print(result.verdict)


def query(
    store: StorePath,
    layer: Annotated[int | None, typer.Option(metavar="N", help="The layer to read (the last one stored).")] = None,
    repeats: Annotated[int, typer.Option(metavar="N", help="Runs of each read; the median is printed.")] = 7,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the rows drawn.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Time opening, gathers and scans beside numpy in memory."""
    rows = es.analysis.bench_query(store, layer=layer, repeats=repeats, seed=seed)
    if as_json:
        print_json(rows)
    else:
        print_table(rows, title=str(store))


def neighbors(
    store: StorePath,
    layer: Annotated[int | None, typer.Option(metavar="N", help="The layer to search (the last one stored).")] = None,
    k: Annotated[int, typer.Option("-k", "--k", metavar="N", help="Neighbours of each query.")] = 10,
    queries: Annotated[
        str, typer.Option(metavar="N,N", help="How many queries are asked at once, one row of the table each.")
    ] = "1,32,1000",
    repeats: Annotated[int, typer.Option(metavar="N", help="Runs of each; the median is printed.")] = 5,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the rows that are asked about.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Time exact search beside a flat faiss index in memory."""
    counts = [_count(part) for part in queries.split(",")]
    rows = es.analysis.bench_neighbors(store, layer=layer, k=k, queries=counts, repeats=repeats, seed=seed)
    if as_json:
        print_json(rows)
    else:
        print_table(rows, title=str(store))


def _count(text: str) -> int:
    if not text.strip().isdecimal() or not int(text):
        raise InvalidValueError(f"--queries {text.strip()!r} is no number of queries: give some like 1,32,1000")
    return int(text)
