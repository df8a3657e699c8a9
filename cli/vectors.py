"""Commands on word vectors: static vectors of a store, skip-gram vectors of a corpus, and their evaluation."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import embstore as es
import embstore_cli.options as opt
from embstore.errors import InvalidValueError
from embstore_cli.output import Output, counted, print_json, print_table, require_folder_of, width

if TYPE_CHECKING:
    import polars as pl

Format = Literal["auto", "text", "glove", "binary", "npy", "store"]
FORMATS: dict[str, Format] = {
    ".txt": "text",
    ".vec": "text",
    ".glove": "glove",
    ".bin": "binary",
    ".npy": "npy",
    ".zarr": "store",
    ".h5": "store",
}
STATIC = {
    "format": Literal["auto", "text", "glove", "binary", "npy", "store"],
    "scale": Literal["unit", "rms"],
    "n_components": int | None,
    "precision": Literal["float64", "float32"],
    "memory": str,
    "cluster": str,
    "workers": int,
}
READING = dict.fromkeys(("format", "split", "words", "language", "normalize", "columns", "text", "encoding"), str)
TRAINING = {
    "min_count": int,
    "negative": int,
    "sample": float,
    "phrases": bool,
    "workers": int,
    "out_format": Literal["text", "glove", "binary", "npy"],
    **READING,
}
EVALUATION = {"lowercase": bool, "limit": int | None, "seed": int, "paper": bool}


def static(
    store: opt.StorePath,
    out: Annotated[Path, opt.argument("OUT", "To write: .txt, .vec, .bin, .npy, .zarr or .h5.")],
    layer: opt.Layer = "last",
    method: Annotated[
        Literal["pc1", "mean", "medoid", "abtt"],
        opt.option(
            "NAME",
            "pc1, the first principal component of a word's vectors; mean; medoid, the occurrence most similar to "
            "the others; abtt, the mean without the top components of all means.",
        ),
    ] = "pc1",
    min_contexts: opt.MinContexts = 1,
    device: opt.Device = "cpu",
    settings: Annotated[list[str] | None, opt.set_option(STATIC)] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Make static vectors: one for each word, from one layer.

    gensim and other tools read text and binary files; a store of static vectors has a row for each word.
    --set format=glove is needed where the suffix of OUT does not say it, scale=rms is of pc1, n_components=N of abtt.
    """
    chosen = opt.read_settings(settings, STATIC)
    form = _format(out, chosen.pop("format", "auto"), allowed=("text", "glove", "binary", "npy", "store"))
    opened = es.open(store)
    number = opt.layer_of(layer, opened.layers)
    executor = opt.executor_of(chosen.pop("cluster", None), chosen.pop("workers", None))
    chosen |= {"method": method, "min_contexts": min_contexts, "device": device}
    with executor or nullcontext():
        vectors: Any = es.static_vectors(opened, executor=executor, layer=number, **chosen)
    made: dict[str, Any] = {"method": method, "min_contexts": min_contexts}
    made |= {"scale": chosen.get("scale", "unit")} if method == "pc1" else {}
    made |= {"n_components": chosen.get("n_components")} if method == "abtt" else {}
    if form == "store":
        es.analysis.write_static_store(vectors, out, source=opened, layer=number, made=made)
    else:
        es.vectors.write_vectors(vectors, out, format=form)
    if as_json:
        summary = {"store": str(store), "layer": number, **made, "out": str(out), "format": form}
        print_json({**summary, "words": len(vectors), "dimensions": vectors.dimensions})
    else:
        words = counted(len(vectors), "word")
        print(f"{out} holds the vectors of {words}, {vectors.dimensions} numbers each ({method} of layer {number})")


def _format(out: Path, given: str, *, allowed: tuple[str, ...]) -> Any:
    """Return the format of a file of word vectors; refuses a path that cannot be written to in it."""
    suffixes = [suffix for suffix, name in FORMATS.items() if name in allowed]
    if out.suffix in (".gz", ".zst"):
        raise InvalidValueError(f"{out}: word vectors are written uncompressed: leave {out.suffix} out of the name")
    if given == "auto" and out.suffix not in suffixes:
        raise InvalidValueError(f"{out} has no known suffix: choose {', '.join(suffixes)}, or give the format")
    form = FORMATS[out.suffix] if given == "auto" else given
    named = FORMATS.get(out.suffix)
    if "store" in (form, named) and form != named:
        raise InvalidValueError(f"{out} does not fit the format {form}: choose another name or format")
    if form == "npy" and out.suffix != ".npy":
        raise InvalidValueError(f"{out}: the format npy needs a name that ends in .npy")
    if out.is_dir() and form != "store":
        raise InvalidValueError(f"{out} is a folder: give the name of a file")
    require_folder_of(out, option="OUT")
    return form


def train_vectors(
    corpus: Annotated[str, opt.argument("CORPUS", "A text file or a folder of them, as extract takes.")],
    out: Annotated[Path, opt.argument("OUT", "The file to write: .txt, .vec, .bin or .npy.")],
    size: Annotated[int, opt.option("N", "Dimensions of a vector.")] = 300,
    window: Annotated[int, opt.option("N", "Context words left and right, at most.")] = 5,
    epochs: Annotated[int, opt.option("N", "Passes over the corpus.")] = 5,
    seed: Annotated[int, opt.option("N", "Seed of the weights and samples.")] = 0,
    config: opt.Config = None,
    settings: Annotated[list[str] | None, opt.set_option(TRAINING)] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Train skip-gram word vectors on a corpus.

    With negative sampling, by gensim, in one thread unless --set workers=N is given, which is not reproducible.
    `embstore extract CORPUS STORE --model OUT` makes a store of them.
    """
    chosen = opt.read_settings(settings, TRAINING, config)
    form = _format(out, chosen.pop("out_format", "auto"), allowed=("text", "glove", "binary", "npy"))
    opened = es.open_corpus(corpus, **{name: chosen.pop(name) for name in READING if name in chosen})
    phrases = chosen.pop("phrases", True)
    training = es.vectors.SkipGram(size=size, window=window, epochs=epochs, seed=seed, **chosen)
    vectors = es.vectors.train_vectors(opened, training=training, phrases=phrases)
    es.vectors.write_vectors(vectors, out, format=form)
    if as_json:
        print_json({"corpus": opened.name, "out": str(out), "words": len(vectors), "dimensions": vectors.dimensions})
    else:
        words = counted(len(vectors), "word")
        print(f"{out} holds the skip-gram vectors of {words}, {vectors.dimensions} numbers each")


def evaluate(
    vectors: Annotated[list[Path], opt.argument("VECTORS", "Word vectors: word2vec text or binary, GloVe, .npy.")],
    *,
    benchmarks: Annotated[Path, opt.option("DIR", "The folder of the benchmarks.")],
    oov: Annotated[
        Literal["skip", "mean"],
        opt.option("NAME", "Items with a word that has no vector: skip them, or take the mean vector: skip, mean."),
    ] = "skip",
    shared_vocabulary: Annotated[
        bool, typer.Option("--shared-vocabulary", help="Keep only the words that all files have.")
    ] = False,
    settings: Annotated[list[str] | None, opt.set_option(EVALUATION)] = None,
    output: Output,
) -> None:
    """Score static word vectors on word benchmarks.

    Prints the score of each file on each benchmark, with the share of the items whose words all have a vector:
    Spearman's rho for similarity and relations, the accuracy of 3CosAdd for analogies, cluster purity for categories.
    --out and --json have every score, by section too. --set paper=true also prints Table 1 of Ethayarajh 2019.
    """
    options: dict[str, Any] = {"oov": oov, "lowercase": True, "shared_vocabulary": shared_vocabulary, "seed": 0}
    options |= opt.read_settings(settings, EVALUATION)
    opt.exclude("as_json", "paper")
    limit, paper = options.pop("limit", None), options.pop("paper", False)
    names = _names(vectors)
    found = es.vectors.read_benchmarks(benchmarks)
    systems = {name: es.vectors.read_vectors(path, limit=limit) for name, path in zip(names, vectors, strict=True)}
    frame = es.vectors.evaluate(systems, found, **options)
    if output.as_json:
        Output(output.out).deliver(frame)
        described = [
            {"name": name, "path": str(path), "words": len(table), "dimensions": table.dimensions}
            for (name, table), path in zip(systems.items(), vectors, strict=True)
        ]
        print_json({"systems": described, "benchmarks": str(benchmarks), **options, "scores": frame.to_dicts()})
    elif output.deliver(frame):
        _print_scores(frame)
        if paper:
            printed = es.vectors.paper_table1()
            _print_columns(_as_text(printed, ".3f"), printed.columns[1:], title="Ethayarajh 2019, Table 1, as printed")


def _names(paths: list[Path]) -> list[str]:
    """Return the stem of each file, after its folder's name where two have the same stem."""
    stems = [Path(path.stem).stem if path.suffix in (".gz", ".zst") else path.stem for path in paths]
    counts = Counter(stems)
    names = [
        stem if counts[stem] == 1 else f"{path.absolute().parent.name}/{path.name}"
        for stem, path in zip(stems, paths, strict=True)
    ]
    if len(set(names)) < len(names):
        name = Counter(names).most_common(1)[0][0]
        raise InvalidValueError(f"two files of vectors are called {name}: rename one")
    return names


def _print_scores(frame: pl.DataFrame) -> None:
    """Print the paper's benchmarks, then the others, each with the coverage: once if all systems have the same."""
    scores = _as_text(es.vectors.table1(frame), ".3f")
    coverage = _as_text(es.vectors.table1(frame, of="coverage").drop("system"), ".0%")
    if all(row == coverage[0] for row in coverage):
        rows = [*scores, {"system": "coverage", **coverage[0]}]
    else:
        rows = []
        for score, covered in zip(scores, coverage, strict=True):
            rows += [score, {"system": "  coverage", **covered}]
    paper = es.vectors.paper_table1().columns
    columns = list(coverage[0])
    for part in ([name for name in columns if name in paper], [name for name in columns if name not in paper]):
        if part:
            _print_columns(rows, part)


def _as_text(table: pl.DataFrame, form: str) -> list[dict[str, str]]:
    """Return the rows of a table with its numbers as text in a format, "none" for none."""

    def text(value: Any) -> str:
        if value is None:
            return "none"
        return value if isinstance(value, str) else format(value, form)

    return [{name: text(value) for name, value in row.items()} for row in table.to_dicts()]


def _print_columns(rows: list[dict[str, str]], columns: list[str], title: str | None = None) -> None:
    """Print columns of a table, in several tables where the terminal is too narrow for one."""
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in ("system", *columns)}
    while columns:
        used, count = widths["system"], 0
        while count < len(columns) and (not count or used + 2 + widths[columns[count]] <= width()):
            used += 2 + widths[columns[count]]
            count += 1
        shown = [{name: row[name] for name in ("system", *columns[:count])} for row in rows]
        print_table(shown, title=title, right=columns[:count], wrap=False)
        print()
        columns, title = columns[count:], None
