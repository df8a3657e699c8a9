"""Hand occurrences and their vectors over to the maps of other tools: Embedding Atlas, TensorBoard's projector."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.analysis.neighbors.exact import Exclusion, exact_search
from embstore.analysis.neighbors.find import mark_words
from embstore.analysis.neighbors.space import ArrayVectors
from embstore.analysis.projection import project, sample_rows
from embstore.analysis.scan import selected
from embstore.arguments import checked
from embstore.errors import InvalidValueError, check_whole
from embstore.progress import Progress, reporting
from embstore.store import Selection, Store, write_frame
from embstore.store.layout import Layer
from embstore.store.storage.files import new_folder

POINTS = 100_000  # what TensorBoard's projector shows


@checked
def write_atlas(
    data: Store | Selection,
    out: str | os.PathLike[str],
    *,
    layer: Layer = -1,
    sample: int | None = POINTS,
    k: int = 10,
    seed: int = 0,
    progress: Progress = None,
) -> Path:
    """Write occurrences with their map and neighbours to a .parquet file for Embedding Atlas, one line for each.

    `embedding-atlas FILE --x x --y y --text text --neighbors neighbors` opens it. Columns: those of `table()`, with the
    word of `text` in [brackets]; `x`, `y`: the map by PCA of the layer, as `project` returns it; and `neighbors`: the k
    nearest lines of the file by cosine, exact, as `ids` (lines from 0) and `distances` (1 - cosine). `k`: 0 leaves
    them out. `sample`, `seed`: as in `project`.

    Raises InvalidValueError (no occurrence, a layer that is not stored, a path with another suffix or that is taken),
    MissingRowsError, StorageError.
    """
    path = _new(out, ".parquet")
    check_whole("k", k, 0)
    plane = project(data, layer=layer, sample=sample, seed=seed, progress=progress)
    some = selected(data).store.select(rows=plane.rows)
    columns = {"x": plane.points[:, 0], "y": plane.points[:, 1]}
    frame = _texts(some).with_columns(pl.Series(name, values) for name, values in columns.items())
    if k:
        frame = frame.with_columns(_neighbors(some, plane.layer, min(k, len(frame) - 1), progress))
    write_frame(frame, path)
    return path


@checked
def write_projector(
    data: Store | Selection, out: str | os.PathLike[str], *, sample: int | None = POINTS, seed: int = 0
) -> Path:
    """Write occurrences and their vectors to a new folder for TensorBoard's projector: `tensorboard --logdir FOLDER`.

    `layer_N.bytes` (float32 [n, feature]) of each layer of the selection, `metadata.tsv` with the columns of `table()`,
    the word of `text` in [brackets], and `projector_config.pbtxt`, which names them. `sample`, `seed`: as in `project`;
    the projector shows 100,000 points at most.

    Raises InvalidValueError (no occurrence, a path that is taken), MissingRowsError, StorageError.
    """
    path, chosen = _new(out, ""), selected(data)
    rows = sample_rows(chosen, sample, seed)
    frame = _texts(chosen.store.select(rows=rows)).select(pl.all().cast(pl.String).str.replace_all(r"[\t\r\n]", " "))
    config = []
    with new_folder(path) as folder:
        for layer in dict.fromkeys(chosen.layers):
            vectors = np.asarray(chosen.store.gather(rows, layer), "<f4")
            (folder / f"layer_{layer}.bytes").write_bytes(vectors.tobytes())
            shape = " ".join(f"tensor_shape: {size}" for size in vectors.shape)
            names = f'tensor_name: "layer {layer}" tensor_path: "layer_{layer}.bytes" metadata_path: "metadata.tsv"'
            config.append(f"embeddings {{ {names} {shape} }}\n")
        frame.write_csv(folder / "metadata.tsv", separator="\t", quote_style="never")
        (folder / "projector_config.pbtxt").write_text("".join(config), "utf-8")
    return path


def _new(out: str | os.PathLike[str], suffix: str) -> Path:
    path = Path(out)
    if suffix and path.suffix != suffix:
        raise InvalidValueError(f"{path} has no known suffix: Embedding Atlas reads {suffix}")
    if os.path.lexists(path):
        raise InvalidValueError(f"{path} exists already: choose another path, or remove it first")
    return path


def _texts(some: Selection) -> pl.DataFrame:
    """The occurrence table with the word of each sentence marked, and with names as plain strings."""
    table = some.table().with_columns(pl.Series("text", mark_words(some.store, some.rows), pl.String))
    return table.cast({pl.Enum: pl.String})


def _neighbors(some: Selection, layer: int, k: int, progress: Progress) -> pl.Series:
    """The k nearest of some occurrences among themselves, as Embedding Atlas reads them."""
    vectors = ArrayVectors(some.store.gather(some.rows, layer))
    lines: NDArray[np.int64] = np.arange(len(some))
    alone = (Exclusion(lines, lines),)
    with reporting(progress, total=len(some), label="neighbors") as report:
        found: Any = exact_search(vectors, vectors.gather(lines), k=k, exclude=alone, progress=report)
    values = [
        {"ids": ids, "distances": distances}
        for ids, distances in zip(found.rows.tolist(), (1 - found.scores).tolist(), strict=True)
    ]
    kind = pl.Struct({"ids": pl.List(pl.Int64), "distances": pl.List(pl.Float64)})
    return pl.Series("neighbors", values, dtype=kind)
