"""The command that answers SQL about stores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import embstore as es
import embstore_cli.options as opt
from embstore.errors import InvalidValueError
from embstore_cli.output import Output, print_table

SETTINGS = {"missing": str, "index": str, "model": str, "memory": str}
SHOWN_ROWS, SHOWN_NUMBERS = 50, 4
Stores = Annotated[list[str], opt.argument("STORE", "A store, or several, each as NAME=STORE.")]
Query = Annotated[str, opt.argument("QUERY", "A SELECT statement.")]


def sql(
    stores: Stores,
    query: Query,
    *,
    settings: Annotated[dict[str, Any], opt.Config(lambda: SETTINGS)],
    output: Output,
) -> None:
    """Answer a SELECT statement about stores with DuckDB.

    Tables: occurrences (with the vectors of layer 6 as h6), sentences, types, labels, and files by path; of several
    stores as NAME.occurrences. Functions: cos, ip, l2, vec('a [word]', 6), centroid, selfsim. --set missing=null reads
    an unfinished store; index=NAME lets a search index answer; model=PATH of vec; memory=2GiB.
    """
    chosen = settings
    if len(stores) == 1 and not _is_named(stores[0]):
        frame = es.sql(es.open(stores[0]), query, **chosen)
    else:
        named = [each.partition("=") for each in stores]
        for name, _, path in named:
            if not path or not name.isidentifier():
                raise InvalidValueError(f"{name}: give each of several stores as NAME=STORE, such as old=1900.zarr")
        frame = es.sql({name: es.open(path) for name, _, path in named}, query, **chosen)
    if output.deliver(frame):
        rows = frame.head(SHOWN_ROWS).to_dicts()
        print_table([{name: _shown(value) for name, value in row.items()} for row in rows])
        if len(frame) > SHOWN_ROWS:
            print(f"and {len(frame) - SHOWN_ROWS:,} more: --out FILE writes all")
        if not len(frame):
            print("no rows")


def _is_named(store: str) -> bool:
    return store.partition("=")[0].isidentifier() and "=" in store and not Path(store).exists()


def _shown(value: object) -> object:
    """A value for a table: of a long vector only the first numbers."""
    if isinstance(value, list) and len(value) > SHOWN_NUMBERS and isinstance(value[0], float):
        return " ".join(f"{number:.3f}" for number in value[:SHOWN_NUMBERS]) + f" ... ({len(value)})"
    return value
