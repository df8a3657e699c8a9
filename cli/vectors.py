"""The command that makes static vectors of a store."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import embstore as es
import embstore_cli.options as opt
from embstore.errors import InvalidValueError
from embstore_cli.output import counted, print_json, require_folder_of

if TYPE_CHECKING:
    pass

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
    *,
    settings: Annotated[dict[str, Any], opt.Config(lambda: STATIC)],
    as_json: opt.AsJson = False,
) -> None:
    """Make static vectors: one for each word, from one layer.

    gensim and other tools read text and binary files; a store of static vectors has a row for each word.
    --set format=glove is needed where the suffix of OUT does not say it, scale=rms is of pc1, n_components=N of abtt.
    """
    chosen = settings
    form = _format(out, chosen.pop("format", "auto"), allowed=("text", "glove", "binary", "npy", "store"))
    opened = es.open(store)
    number = opt.layer_of(layer, opened.layers)
    executor = opt.executor_of(chosen.pop("cluster", None), chosen.pop("workers", None))
    chosen |= {"method": method, "min_contexts": min_contexts, "device": device}
    with executor or nullcontext():
        vectors: Any = es.static_vectors(opened, executor=executor, layers=number, **chosen)
    made: dict[str, Any] = {"method": method, "min_contexts": min_contexts}
    made |= {"scale": chosen.get("scale", "unit")} if method == "pc1" else {}
    made |= {"n_components": chosen.get("n_components")} if method == "abtt" else {}
    if form == "store":
        es.analysis.write_static_store({number: vectors}, out, source=opened, made=made)
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
