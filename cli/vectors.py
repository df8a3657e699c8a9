"""The command that makes static vectors of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import embstore as es
import embstore_cli.options as opt
from embstore.errors import InvalidValueError
from embstore_cli.output import counted, print_json, require_folder_of

FORMATS = {".txt": "text", ".vec": "text", ".glove": "glove", ".bin": "binary", ".zarr": "store", ".h5": "store"}


def static(
    store: opt.StorePath,
    out: Annotated[Path, opt.argument("OUT", "To write: .txt, .vec, .bin, .zarr or .h5.")],
    layers: opt.Layers = "last",
    method: Annotated[
        Literal["pc1", "mean"], opt.option("NAME", "pc1, the first principal component of a word's vectors, or mean.")
    ] = "pc1",
    min_contexts: opt.MinContexts = 1,
    *,
    as_json: opt.AsJson = False,
) -> None:
    """Make static vectors: one for each word, from one layer.

    gensim and other tools read text and binary files; a store of static vectors has a row for each word.
    """
    form: Any = FORMATS.get(out.suffix)
    if form is None:
        raise InvalidValueError(f"{out} has no known suffix: choose {', '.join(FORMATS)}, uncompressed")
    if out.is_dir() and form != "store":
        raise InvalidValueError(f"{out} is a folder: give the name of a file")
    require_folder_of(out, option="OUT")
    opened = es.open(store)
    chosen: Any = opt.layers_of(layers)
    vectors: Any = es.static_vectors(opened, layers=chosen, method=method, min_contexts=min_contexts)
    (number,) = opened.select(layers=chosen).layers
    made: dict[str, Any] = {"method": method, "min_contexts": min_contexts}
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
