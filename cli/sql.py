"""The command that answers SQL about stores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import embstore as es
import embstore_cli.options as opt
from embstore.errors import InvalidValueError
from embstore_cli.output import Output, print_table

TABLES = (".csv", ".parquet", ".json")
SHOWN_ROWS, SHOWN_NUMBERS = 50, 4  # what fits on a screen
Sources = Annotated[list[str], opt.argument("STORE", "A store; or several stores and tables, each as NAME=PATH.")]
Query = Annotated[str, opt.argument("QUERY", "A SELECT statement.")]


def sql(
    sources: Sources,
    query: Query,
    *,
    model: Annotated[str | None, opt.option("MODEL", "Where the store's model is now, for vec of a text.")] = None,
    output: Output,
) -> None:
    """Answer a SELECT statement about stores with DuckDB.

    Tables: occurrences (with the vectors of layer 6 as h6), sentences, types and labels; of several stores, given as
    old=1900.zarr new=1910.zarr, old.occurrences and so on; and tables of files, given as frequencies=FILE.parquet (or
    .csv, .json). Functions: cos, ip, l2, vec('a [word]', 6), centroid, selfsim.
    """
    stores: dict[str, es.Store] = {}
    frames: dict[str, Any] = {}
    for source in sources:
        name, _, path = ("", "", source) if Path(source).exists() else source.rpartition("=")
        if name and Path(path).suffix in TABLES:
            frames[name] = _read(Path(path))
        elif name in stores or "" in stores or (stores and not name):
            raise InvalidValueError(f"{source}: give each of several stores as NAME=STORE, such as old=1900.zarr")
        else:
            stores[name] = es.open(path)
    frame = es.sql(stores.get("", stores), query, model=model, **frames)
    if output.deliver(frame):
        rows = frame.head(SHOWN_ROWS).to_dicts()
        print_table([{name: _shown(value) for name, value in row.items()} for row in rows])
        if len(frame) > SHOWN_ROWS:
            print(f"and {len(frame) - SHOWN_ROWS:,} more: --out FILE writes all")
        if not len(frame):
            print("no rows")


def _read(path: Path) -> Any:
    import polars as pl

    if path.exists() and not path.is_file():
        raise InvalidValueError(f"{path} cannot be read as a table (it is a folder, a pipe or a device, not a file)")
    try:
        frame: pl.DataFrame = getattr(pl, f"read_{path.suffix[1:]}")(path)
        return frame
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InvalidValueError(f"{path} cannot be read as a table ({str(error).splitlines()[0]})") from None


def _shown(value: object) -> object:
    """A value for a table: of a long vector only the first numbers."""
    if isinstance(value, list) and len(value) > SHOWN_NUMBERS and isinstance(value[0], float):
        return " ".join(f"{number:.3f}" for number in value[:SHOWN_NUMBERS]) + f" ... ({len(value)})"
    return value
