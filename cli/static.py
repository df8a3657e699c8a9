"""The command that makes one vector a word out of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import embstore as es
from embstore.errors import InvalidValueError
from embstore_cli.help import Command
from embstore_cli.output import AsJson, print_json
from embstore_cli.progress import progress_bar
from embstore_cli.query_workers import QueryCluster, QueryWorkers, query_executor
from embstore_cli.sizes import nbytes_of
from embstore_cli.store import StorePath

Form = Literal["auto", "text", "glove", "binary", "npy", "store"]
SUFFIXES: dict[str, Form] = {".bin": "binary", ".npy": "npy", ".zarr": "store", ".h5": "store"}


def add_to(app: typer.Typer) -> None:
    example = "Example: embstore static ewt.zarr ewt-pc1.txt --layer 1 --min-contexts 5"
    app.command("static", cls=Command, epilog=example)(static)


def static(
    store: StorePath,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file or store to write.")],
    layer: Annotated[int, typer.Option("--layer", "-l", metavar="N", help="The layer whose vectors are taken.")],
    method: Annotated[
        Literal["pc1", "mean", "medoid", "abtt"],
        typer.Option(
            metavar="HOW",
            help="pc1, the first principal component of a word's vectors; mean; medoid, the occurrence most like the "
            "others; abtt, the mean less the top components of all means.",
        ),
    ] = "pc1",
    min_contexts: Annotated[
        int, typer.Option(metavar="N", help="Only words that occur in N different sentences or more.")
    ] = 1,
    scale: Annotated[
        Literal["unit", "rms"],
        typer.Option(metavar="HOW", help="Length of pc1: unit, or rms, that of the word's vectors along it."),
    ] = "unit",
    components: Annotated[
        int | None, typer.Option(metavar="N", help="How many components abtt takes away (a hundredth of all).")
    ] = None,
    format: Annotated[
        Form,
        typer.Option(
            metavar="NAME",
            help="text or binary (word2vec), glove, npy or store; by default as OUT ends: .bin, .npy, .zarr, .h5, else "
            "text.",
        ),
    ] = "auto",
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda or cuda:N.")] = "cpu",
    precision: Annotated[
        Literal["float32", "float64"], typer.Option(metavar="DTYPE", help="What is computed in: float64 or float32.")
    ] = "float64",
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory to work in, beside the result, such as 500MB or 2GiB.")
    ] = "1GiB",
    cluster: QueryCluster = None,
    workers: QueryWorkers = None,
    as_json: AsJson = False,
) -> None:
    """Make static vectors: one a word, of one layer.

    gensim and other tools read text and binary files; a store of static vectors has one row a word.
    """
    form = _form(out, format)
    _require_place(out, form)
    made: dict[str, Any] = {"method": method, "min_contexts": min_contexts}
    made |= {"scale": scale} if method == "pc1" else {"components": components} if method == "abtt" else {}
    from embstore.analysis.static.vectors import static_vectors

    executor = query_executor(cluster, workers)
    opened = es.open(store)
    with progress_bar("static", total=None, unit="occurrences") as advance:
        vectors = static_vectors(
            opened,
            layer=layer,
            method=method,
            min_contexts=min_contexts,
            scale=scale,
            components=components,
            device=device,
            precision=precision,
            memory=nbytes_of(memory, option="--memory"),
            executor=executor,
            progress=advance,
        )
    _write(vectors, out, form, source=opened, layer=layer, made=made)
    if as_json:
        summary = {"store": str(store), "layer": layer, **made, "out": str(out), "format": form}
        print_json({**summary, "words": len(vectors), "dimensions": vectors.dimensions})
    else:
        words = "1 word" if len(vectors) == 1 else f"{len(vectors):,} words"
        print(f"{out} holds the vectors of {words}, {vectors.dimensions} numbers each ({method} of layer {layer})")


def _write(vectors: Any, out: Path, form: Form, *, source: es.Store, layer: int, made: dict[str, Any]) -> None:
    if form == "store":
        from embstore.analysis.static.files import write_static_store

        write_static_store(vectors, out, source=source, layer=layer, made=made)
    else:
        from embstore.vectors import write_vectors

        write_vectors(vectors, out, format=form)


def _form(out: Path, format: Form) -> Form:
    form = SUFFIXES.get(out.suffix, "text") if format == "auto" else format
    if form != "store" and SUFFIXES.get(out.suffix) == "store":
        raise InvalidValueError(f"{out} has the name of a store, but the format is {form}: choose another name")
    return form


def _require_place(out: Path, form: Form) -> None:
    """Refuse a path that cannot be written before anything is computed for it."""
    if form == "store":
        from embstore.store.convert.filling import require_free_path

        require_free_path(out)
        return
    if out.is_dir():
        raise InvalidValueError(f"{out} is a folder: give the name of a file")
    if not out.absolute().parent.is_dir():
        raise InvalidValueError(f"cannot write {out}: there is no folder {out.parent}")
    if out.suffix in (".gz", ".zst"):
        raise InvalidValueError(f"{out}: word vectors are written uncompressed: leave {out.suffix} out of the name")
    if form == "npy" and out.suffix != ".npy":
        raise InvalidValueError(f"{out}: the format npy needs a name that ends in .npy")
