"""Commands that measure extraction, reading and search on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import embstore as es
import embstore_cli.options as opt
from embstore.errors import InvalidValueError
from embstore_cli.output import print_json, print_table

Repeats = Annotated[int, opt.option("N", "Repetitions of each; the median is printed.", min=1)]


def extract(
    corpus: Annotated[str, opt.argument("CORPUS", "A corpus, as extract takes it.")],
    model: opt.Model,
    device: opt.Device = "auto",
    layers: opt.Layers = "all",
    sentences: Annotated[int, opt.option("N", "Number of sentences of the corpus to run.")] = 2000,
    folder: Annotated[Path | None, opt.option("FOLDER", "Where the store of the measurement is written.")] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Time an extraction and find its slowest stage.

    Each stage is compared with its own limit on this machine, measured in the same run. The store is written to a
    temporary folder and removed.
    """
    result = es.extraction.bench_extract(
        corpus,
        model=opt.encoder_of(model, device),
        sentences=sentences,
        options=es.ExtractionOptions(layers=opt.layers_of(layers) or "all"),
        device=device,
        folder=folder,
    )
    if as_json:
        print_json(result.as_json())
        return
    print_table(result.rates(), title=f"{result.n_words:,} words in {result.seconds:.2f} s")
    print_table(result.table(), title="time of each stage, and how close it is to its limit")
    print(result.verdict)


def query(store: opt.StorePath, layer: opt.Layer = "last", repeats: Repeats = 7, as_json: opt.AsJson = False) -> None:
    """Time opening, gathers and scans against numpy in memory."""
    opened = es.open(store)
    rows = es.analysis.bench_query(opened, layer=opt.layer_of(layer, opened.layers), repeats=repeats)
    if as_json:
        print_json(rows)
    else:
        print_table(rows, title=str(store))


def neighbors(
    store: opt.StorePath,
    layer: opt.Layer = "last",
    k: opt.K = 10,
    queries: Annotated[
        str, opt.option("LIST", "Numbers of simultaneous queries, one row of the table each.")
    ] = "1,32,1000",
    repeats: Repeats = 5,
    as_json: opt.AsJson = False,
) -> None:
    """Time exact search against a flat faiss index in memory."""
    counts = [part.strip() for part in queries.split(",")]
    for count in counts:
        if not count.isdecimal() or not int(count):
            raise InvalidValueError(f"--queries {count!r} is not a number of queries: give some such as 1,32,1000")
    opened = es.open(store)
    number = opt.layer_of(layer, opened.layers)
    rows = es.analysis.bench_neighbors(opened, layer=number, k=k, queries=list(map(int, counts)), repeats=repeats)
    if as_json:
        print_json(rows)
    else:
        print_table(rows, title=str(store))
