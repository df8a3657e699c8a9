"""One group of cases in a process of its own: prints a row as JSON for each."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from embstore.bench import cases
from embstore.bench.made import write_stores
from embstore.bench.measure import Row
from embstore.bench.run import Sizes
from embstore.errors import EmbstoreError, InvalidValueError
from embstore.store.opening import open_store


def rows_of(group: str, path: Path, folder: Path, sizes: Sizes, *, threads: int, **options: Any) -> Iterator[Row]:
    few = max(3, sizes.repeats // 2)
    if group == "prepare":
        prepare(path, folder, sizes, made=options["made"])
    elif group == "cold":
        yield from cases.cold_rows(path, open_store(path).layers[-1], folder / "layer.npy", few)
    elif group == "extraction":
        from embstore.bench.extraction_cases import extraction_rows

        yield from extraction_rows(folder, options["model"], sizes.sentences, threads=threads, repeats=few)
    else:
        from embstore.bench.probe_cases import bank_rows, stream_rows

        store = open_store(path)
        setting = cases.Setting(store, store.layers[-1], folder, threads, sizes.repeats, budget=sizes.budget)
        if threads == 1:
            yield from chain(cases.gather_rows(setting, sizes.gathered), cases.scan_rows(setting))
            yield from chain(cases.store_rows(setting), cases.batch_rows(setting))
        yield from cases.search_rows(setting, sizes.queries)
        yield from chain(cases.geometry_rows(setting), bank_rows(setting))
        if threads == 1 and options["made"]:  # needs a row for every word
            yield from stream_rows(setting)


def prepare(path: Path, folder: Path, sizes: Sizes, *, made: bool) -> None:
    """Write the made store, or check the given one, and write its last layer as a file of numpy."""
    if made:
        write_stores([path], n_rows=sizes.rows, n_layers=sizes.layers, hidden_size=sizes.hidden_size)
    store = open_store(path)
    if store.dtype not in ("float16", "float32"):
        raise InvalidValueError(f"{path.name} holds {store.dtype}: give a store of float16 or float32")
    np.save(folder / "layer.npy", store.gather(np.arange(store.n_rows), store.layers[-1]))


def main() -> None:
    options = json.loads(sys.argv[1])
    path, folder, sizes = Path(options.pop("path")), Path(options.pop("folder")), Sizes(**options.pop("sizes"))
    try:
        for row in rows_of(options.pop("group"), path, folder, sizes, **options):
            print(json.dumps(row.as_json()), flush=True)
    except EmbstoreError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main()
