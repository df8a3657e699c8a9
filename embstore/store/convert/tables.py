"""Hand stored rows over to other tools: Arrow batches and Parquet files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from embstore.arguments import checked
from embstore.config import settings
from embstore.errors import InvalidValueError, MissingRowsError
from embstore.progress import reporting
from embstore.store.metadata import as_json
from embstore.store.storage.files import replacing_table
from embstore.store.vectors import VALUE_DTYPE

BATCH_NBYTES = 2**23  # of vectors that are read at a time
GROUP_NBYTES = 2**26  # of vectors in a row group of a Parquet file
TABLE_ROWS = 2**16  # of the occurrence table, made at a time


def lazy_table(selection: Any, *, columns: Sequence[str] | None = None, report: Any = None) -> pl.LazyFrame:
    """Return a lazy frame of a selection: the occurrence table, and `layer_0`, ... as arrays; read when collected.

    Only the columns that a query needs are read. Raises InvalidValueError for a column that does not exist.
    """
    store = selection.store
    kind = pl.Array(pl.Float16 if VALUE_DTYPE[store.dtype] == np.float16 else pl.Float32, store.hidden_size)
    layers = {f"layer_{layer}": layer for layer in dict.fromkeys(selection.layers)}
    schema = {**store.select(rows=[]).table().schema, **dict.fromkeys(layers, kind)}
    listed = list(schema if columns is None else columns)
    for name in listed:
        if name not in schema:
            raise InvalidValueError(f"there is no column {name!r}: the store has {', '.join(schema)}")
        if listed.count(name) > 1:
            raise InvalidValueError(f"the column {name!r} is given twice: name each once")

    def read(
        wanted: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        names = list(schema) if wanted is None else wanted
        chosen = [layers[name] for name in names if name in layers]
        size = _batch_rows(selection, len(chosen))
        total = len(selection) if n_rows is None else min(n_rows, len(selection))
        for first in range(0, total, TABLE_ROWS):
            some = store.select(rows=selection.rows_at(first, min(first + TABLE_ROWS, total)))
            table = some.table(columns=["occurrence", *(name for name in names if name not in ("occurrence", *layers))])
            for start in range(0, len(table), size):
                part = table[start : start + size]
                vectors = store.vectors(part["occurrence"].to_numpy(), layers=chosen) if chosen else ()
                found = {f"layer_{layer}": each for layer, each in zip(chosen, vectors, strict=True)}
                part = part.with_columns(pl.Series(name, each, dtype=kind) for name, each in found.items())
                part = part.select(names)
                yield part if predicate is None else part.filter(predicate)
                if report is not None:
                    report(first + start + len(part))

    frame = register_io_source(read, schema=schema)
    return frame.select(listed)


def _batch_rows(selection: Any, n_layers: int) -> int:
    row_nbytes = selection.store.hidden_size * VALUE_DTYPE[selection.store.dtype].itemsize * max(n_layers, 1)
    return max(1, BATCH_NBYTES // row_nbytes) if n_layers else TABLE_ROWS


def arrow_stream(selection: Any, *, columns: Sequence[str] | None) -> Any:
    """Return what `Selection.to_arrow` describes."""
    frame = lazy_table(selection, columns=columns)
    n_layers = sum(dtype.is_nested() for dtype in frame.collect_schema().dtypes())
    return frame.collect_batches(chunk_size=_batch_rows(selection, n_layers), maintain_order=True)


@checked
def write_table(selection: Any, out: str | os.PathLike[str]) -> Path:
    """Write the occurrence table and vectors of a selection to a new .parquet file, in bounded memory.

    Numbers are those that `vectors()` returns, to the bit: float16 stays float16; bfloat16 and int8 become float32. The
    columns are those of `table()` and one list of fixed size a layer, `layer_0`. The file appears once it is complete.

    Raises InvalidValueError for another suffix and for a path that is taken, MissingRowsError for rows not written
    yet, StorageError.
    """
    path = Path(out)
    if path.suffix != ".parquet":
        raise InvalidValueError(f"{path} has another suffix than .parquet, which the table is written as")
    if os.path.lexists(path):
        raise InvalidValueError(f"{path} exists already: choose another path, or remove it first")
    store = selection.store
    if store.n_committed_rows < store.n_rows:
        written = len(selection.written())
        if written < len(selection):
            raise MissingRowsError(
                f"{len(selection) - written:,} of the rows of {store.path} are not written yet: finish it first"
            )
    about = {"embstore": json.dumps(as_json(store.metadata))}
    row_nbytes = store.hidden_size * VALUE_DTYPE[store.dtype].itemsize * len(selection.layers)
    group = max(1024, min(TABLE_ROWS, GROUP_NBYTES // row_nbytes))
    options: Any = {"compression": "lz4", "row_group_size": group, "statistics": False, "metadata": about}
    with (
        replacing_table(path) as partial,
        partial.open("wb") as file,  # after an error Polars may still create a file at a path that it is given
        reporting(settings().progress, total=len(selection), label="export") as report,
    ):
        lazy_table(selection, report=report).sink_parquet(file, **options)
    return path
