"""Compare reading in one run: embstore, numpy, tensordict, Lance, TensorStore, zarr-python, h5py; warm and cold.

python benchmarks/query.py --rows 200000 --out benchmarks/results/query.json
"""

from __future__ import annotations

import argparse
import gc
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from measure import in_fresh_process, parser_of, show_rows, table, write_json
from numpy.typing import NDArray

import embstore as es
from embstore.bench.cases import Cases, Setting, cold_rows, gather_rows, scan_rows, store_rows
from embstore.bench.made import write_stores
from embstore.bench.measure import Row, Spent, interleaved, row_of
from embstore.bench.page_cache import Cold, evict
from embstore.bench.rivals import GATHER, Gather, ReadData, Rival, made

COUNTS = (50, 1_000, 100_000)


def _tensorstore(module: Any, data: ReadData) -> Gather:
    folder = f"{Path(str(data.store.path)) / 'hidden_states'}/"
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": folder}}
    array = module.open(spec, open=True, read=True).result()
    return lambda rows: np.asarray(array[data.position, rows].read().result())


def _zarr_python(module: Any, data: ReadData) -> Gather:
    array = module.open_group(data.store.path, mode="r")["hidden_states"]
    return lambda rows: np.asarray(array.oindex[data.position, rows])


def _h5py(chunk_rows: int | None) -> Callable[[Any, ReadData], Gather]:
    """Return the maker of a rival over an HDF5 dataset with chunks of whole rows, None: those that h5py chooses."""

    def make(module: Any, data: ReadData) -> Gather:
        file = data.folder / f"chunks-{chunk_rows}.h5"
        if not file.exists():
            with module.File(file, "w") as written:
                shape = True if chunk_rows is None else (chunk_rows, data.vectors.shape[1])
                written.create_dataset("x", data=data.vectors, chunks=shape)
        dataset = module.File(file, "r")["x"]

        def gather(rows: NDArray[np.int64]) -> NDArray[Any]:
            distinct, inverse = np.unique(rows, return_inverse=True)  # h5py takes ascending, distinct rows only
            return np.asarray(dataset[distinct])[inverse]

        return gather

    return make


# Slower by far; a store is a file of theirs, so they are measured too.
GATHER_SLOW: dict[str, Rival] = {
    "TensorStore": Rival("tensorstore", _tensorstore),
    "zarr-python oindex": Rival("zarr", _zarr_python),
    "h5py, its own chunks": Rival("h5py", _h5py(None)),
    "h5py, chunks of 256 rows": Rival("h5py", _h5py(256)),
}


def fresh_openings(path: Path, repeats: int) -> dict[str, dict[str, float]]:
    """Milliseconds of importing, opening and a first gather in fresh processes, warm and cold."""
    found = {}
    for state in ("warm", "cold"):
        runs = []
        for _ in range(repeats):
            gc.collect()
            if state == "cold":
                evict(path)
            runs.append(in_fresh_process(Path(__file__).with_name("open_child.py"), str(path)))
        found[state] = {key: float(np.median([run[key] for run in runs])) for key in runs[0]}
    return found


def cold_gathers(
    path: Path, layer: int, folder: Path, count: int, rivals: Mapping[str, Rival], repeats: int
) -> Iterator[Row]:
    """Gather rows that are not in the page cache, opening included; `folder`: of the store and its copies."""
    store = es.open(path)
    n_rows = store.n_rows
    data = ReadData(store, layer, np.array(store.gather(np.arange(n_rows), layer)), folder)
    reading = {name: rival for name, rival in rivals.items() if "in memory" not in name}
    ready, missing = made(reading, data)  # writes the copies
    installed = list(ready)
    del store, data, ready
    cold = Cold()

    def case(name: str | None, number: int) -> Spent:
        rows = np.random.default_rng((count, number)).integers(0, n_rows, count)

        def read() -> object:
            held = es.open(path)
            if name is None:
                return held.gather(rows, layer)
            data = ReadData(held, layer, np.empty((0, held.hidden_size)), folder)
            return made({name: reading[name]}, data)[0][name](rows)

        return cold(folder, read, number)

    cases: Cases = {"ours": partial(case, None), **{name: partial(case, name) for name in installed}}
    times = interleaved(cases, repeats=repeats, budget=20.0)
    yield row_of(f"gather {count:,} rows, cold{cold.note}", times, missing=missing)


def run(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    opened: dict[str, Any] = {}
    size = {"n_rows": arguments.rows, "n_layers": arguments.layers, "hidden_size": arguments.hidden_size}
    for suffix in (".zarr", ".h5"):
        path = folder / f"made{suffix}"
        write_stores([path], dtype=arguments.dtype, **size)
        layer = arguments.layers // 2
        np.save(folder / "layer.npy", es.open(path).gather(np.arange(arguments.rows), layer))
        gc.collect()  # unmaps what would stay in memory
        rivals = {**GATHER, **(GATHER_SLOW if suffix == ".zarr" else {})}
        repeats = max(3, arguments.repeats // 2)
        held = show_rows(cold_rows(path, layer, folder / "layer.npy", repeats))
        held += show_rows(cold_gathers(path, layer, folder, 1_000, rivals, repeats))
        opened[suffix] = fresh_openings(path, repeats)
        setting = Setting(es.open(path), layer, folder, repeats=arguments.repeats, budget=arguments.budget)
        held += show_rows(gather_rows(setting, COUNTS, rivals))
        held += show_rows(scan_rows(setting))
        held += show_rows(store_rows(setting))
        rows += [{**row, "what": f"{row['what']}, {suffix[1:]}"} for row in held]
        del setting
        gc.collect()
    shown = [(f"{suffix}, {state}", *each.values()) for suffix, of in opened.items() for state, each in of.items()]
    print("\nfresh processes\n" + table(["", "import numpy, ms", "import embstore", "open", "first gather"], shown))
    return {"rows": rows, "fresh_process": opened, "store": size}


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--layers", type=int, default=7)
    parser.add_argument("--hidden-size", type=int, default=384)
    parser.add_argument("--dtype", choices=["float16", "float32"], default="float16")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--budget", type=float, default=20, help="seconds for one tool and number of rows")
    parser.add_argument("--tmp", help="folder for temporary files (default: the system's); needs 4 times the store")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.tmp) as folder:
        result = run(arguments, Path(folder))
    write_json(arguments.out, {"benchmark": "query", **result})


if __name__ == "__main__":
    main()
