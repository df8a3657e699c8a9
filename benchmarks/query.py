"""Compare reading in one run: embstore, numpy in memory, zarr-python, TensorStore, h5py; warm and cold.

python benchmarks/query.py --rows 200000 --out benchmarks/results/query.json
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tensorstore
import zarr
from measure import Target, Times, in_fresh_process, interleaved, machine, table, targets_table, timed, write_json
from numpy.typing import NDArray
from page_cache import READ_NBYTES, bring_in, evict, files_of, resident_share
from synthetic import write_chunked, write_stores

import embstore as es

Gather = Callable[[NDArray[np.int64]], NDArray[Any]]
Open = Callable[[], Gather]

NUMPY, ZARR_PYTHON, TENSORSTORE = "numpy x[rows] in memory", "zarr-python oindex", "TensorStore"
H5PY_AUTO, H5PY_ROWS = "h5py, its own chunks", "h5py, chunks of whole rows"
COUNTS = (50, 1_000, 100_000)
TARGET_COUNT = 1_000  # the count that the targets refer to
REPEATS = {50: 41, 1_000: 41, 100_000: 9}
COLD_REPEATS = 3


def ours(path: Path) -> str:
    return f"embstore {path.suffix}"


@dataclass
class Bench:
    """The files to read, the layer (its number and its position among the stored ones), and its vectors in memory."""

    stores: list[Path]
    chunked: dict[str, Path]
    layer: int
    position: int
    vectors: NDArray[Any]
    seed: int
    budget: float

    def openers(self) -> dict[str, tuple[Path, Open]]:
        """Return how every tool opens its file; gathers are timed without opening."""
        found: dict[str, tuple[Path, Open]] = {}
        for path in self.stores:
            found[ours(path)] = (path, partial(_open_ours, path, self.layer))
        for path in self.stores:
            if path.suffix == ".zarr":
                found[ZARR_PYTHON] = (path, partial(_open_zarr, path, self.position))
                found[TENSORSTORE] = (path, partial(_open_tensorstore, path, self.position))
        for name, path in self.chunked.items():
            found[name] = (path, partial(_open_h5py, path, self.position))
        return found

    def rows(self, count: int, number: int) -> NDArray[np.int64]:
        """Return random rows, different ones in every round."""
        return np.random.default_rng((self.seed, count, number + 1000)).integers(0, len(self.vectors), count)


def _open_ours(path: Path, layer: int) -> Gather:
    store = es.open(path)
    return lambda rows: store.gather(rows, layer)


def _open_zarr(path: Path, position: int) -> Gather:
    array: Any = zarr.open_group(path, mode="r")["hidden_states"]
    return lambda rows: np.asarray(array.oindex[position, rows])


def _open_tensorstore(path: Path, position: int) -> Gather:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path / 'hidden_states'}/"}}
    array = tensorstore.open(spec, open=True, read=True).result()
    return lambda rows: np.asarray(array[position, rows].read().result())


def _open_h5py(path: Path, position: int) -> Gather:
    dataset = h5py.File(path, "r")["hidden_states"]

    def gather(rows: NDArray[np.int64]) -> NDArray[Any]:
        distinct, inverse = np.unique(rows, return_inverse=True)  # h5py takes ascending, distinct rows only
        return np.asarray(dataset[position, distinct])[inverse]

    return gather


def gathers(bench: Bench, count: int) -> dict[str, Times]:
    """Time every tool, warm, with the same rows in a round; the values of the first round are checked."""
    peers = {name: (path, opener()) for name, (path, opener) in bench.openers().items()}

    def case(path: Path | None, gather: Gather, number: int) -> float:
        rows = bench.rows(count, number)
        if path is not None:
            bring_in(path)
        start = time.perf_counter()
        found = gather(rows)
        seconds = time.perf_counter() - start
        if number <= 0 and found.tobytes() != bench.vectors[rows].tobytes():
            raise SystemExit(f"wrong values from {gather} for {count} rows")
        return seconds

    cases: dict[str, Callable[[int], float]] = {NUMPY: partial(case, None, bench.vectors.__getitem__)}
    cases |= {name: partial(case, path, gather) for name, (path, gather) in peers.items()}
    return interleaved(cases, repeats=REPEATS[count], budget=bench.budget, warm=1)


def cold_gathers(bench: Bench, count: int) -> tuple[dict[str, Times], float]:
    """Time every tool on files evicted from the page cache; also return the share of pages that stayed."""
    stayed = 0.0

    def case(path: Path, opener: Open, number: int) -> float:
        nonlocal stayed
        gc.collect()
        evict(path)
        stayed = max(stayed, resident_share(path))
        gather = opener()
        rows = bench.rows(count, number)
        return timed(lambda: gather(rows))

    cases = {name: partial(case, path, opener) for name, (path, opener) in bench.openers().items()}
    return interleaved(cases, repeats=COLD_REPEATS, budget=bench.budget), stayed


def scans(bench: Bench) -> dict[str, Times]:
    target = np.empty_like(bench.vectors)
    target[...] = 0
    cases: dict[str, Callable[[int], float]] = {
        "np.copyto, both arrays resident": lambda _: timed(lambda: np.copyto(target, bench.vectors)),
        "x.copy(), a new array": lambda _: timed(bench.vectors.copy),
    }
    stores = [es.open(path) for path in bench.stores]
    for store in stores:
        for first, vectors in store.scan(bench.layer):
            if vectors.tobytes() != bench.vectors[first : first + len(vectors)].tobytes():
                raise SystemExit(f"wrong values from a scan at row {first}")
        cases[f"{ours(store.path)} scan"] = partial(_timed_scan, store, bench.layer)
    return interleaved(cases, repeats=31, warm=1)


def _scan(store: es.Store, layer: int) -> None:
    for _first, _vectors in store.scan(layer):
        pass


def _timed_scan(store: es.Store, layer: int, number: int) -> float:
    bring_in(store.path)
    return timed(lambda: _scan(store, layer))


def cold_scans(bench: Bench) -> dict[str, Times]:
    """Time scans after eviction, and reading the same number of bytes of the file from its start."""

    def scan(path: Path, number: int) -> float:
        gc.collect()
        evict(path)
        return timed(lambda: _scan(es.open(path), bench.layer))

    def read(path: Path, number: int) -> float:
        gc.collect()
        evict(path)
        return timed(lambda: _read_bytes(path, bench.vectors.nbytes))

    cases: dict[str, Callable[[int], float]] = {}
    for path in bench.stores:
        cases[f"{ours(path)} scan"] = partial(scan, path)
        cases[f"as many bytes read from {path.suffix}"] = partial(read, path)
    return interleaved(cases, repeats=COLD_REPEATS)


def _read_bytes(path: Path, nbytes: int) -> None:
    buffer = bytearray(READ_NBYTES)
    for file in sorted(files_of(path), key=lambda file: -file.stat().st_size):
        with file.open("rb", buffering=0) as opened:
            while nbytes > 0 and (got := opened.readinto(buffer)):
                nbytes -= got


def openings(bench: Bench) -> dict[str, Any]:
    """Time opening every file in this process, and embstore's in fresh processes, warm and cold."""
    cases = {name: partial(_timed_open, opener) for name, (_, opener) in bench.openers().items()}
    here = interleaved(cases, repeats=21, warm=1)
    fresh: dict[str, Any] = {}
    for path in bench.stores:
        for state in ("warm", "cold"):
            runs = []
            for _ in range(5):
                if state == "cold":
                    gc.collect()
                    evict(path)
                runs.append(in_fresh_process(Path(__file__).with_name("open_child.py"), str(path)))
            fresh[f"{ours(path)}, {state}"] = {key: float(np.median([run[key] for run in runs])) for key in runs[0]}
    return {"same_process": {name: times.as_json() for name, times in here.items()}, "fresh_process": fresh}


def _timed_open(opener: Open, number: int) -> float:
    return timed(opener)


def gather_table(results: Mapping[int, dict[str, Times]]) -> str:
    names = list(next(iter(results.values())))
    header = [""]
    for count in results:
        header += [f"{count:,} rows, ms", "x numpy" if NUMPY in names else "x embstore"]
    rows = []
    for name in names:
        row: list[object] = [name]
        for times in results.values():
            base = times[NUMPY if NUMPY in names else names[0]].median
            row += [1000 * times[name].median, times[name].median / base] if name in times else [math.nan, math.nan]
        rows.append(row)
    return table(header, rows)


def scan_table(times: dict[str, Times], nbytes: int, reference: str) -> str:
    rows = [
        (name, 1000 * t.median, nbytes / t.median / 1e9, f"{100 * times[reference].median / t.median:.0f} %")
        for name, t in times.items()
    ]
    return table(["one layer, all rows", "ms", "GB/s", f"of {reference}"], rows)


def targets_of(
    bench: Bench, gathered: dict[str, Times], scanned: dict[str, Times], opened: dict[str, Any]
) -> list[Target]:
    targets = []
    memcpy = scanned["np.copyto, both arrays resident"].median
    for path in bench.stores:
        name = ours(path)
        mine = gathered[name].median
        targets.append(Target(f"{name}: 1,000 rows, times numpy's time", mine / gathered[NUMPY].median, 3, False))
        for peer, bound in ((ZARR_PYTHON, 50), (TENSORSTORE, 20), (H5PY_AUTO, 50), (H5PY_ROWS, 50)):
            if peer in gathered:
                targets.append(
                    Target(f"{name}: 1,000 rows, faster than {peer}", gathered[peer].median / mine, bound, True)
                )
        targets.append(Target(f"{name}: scan, share of memcpy", memcpy / scanned[f"{name} scan"].median, 0.6, True))
        here = 1000 * float(opened["same_process"][name]["median_s"])
        targets.append(Target(f"{name}: opening, ms", here, 100, False))
        fresh = opened["fresh_process"][f"{name}, warm"]["open_ms"]
        targets.append(Target(f"{name}: opening in a fresh process (numpy loaded), ms", fresh, 100, False))
    return targets


def run(bench: Bench) -> dict[str, Any]:
    counts = [count for count in COUNTS if count <= len(bench.vectors)]
    warm = {count: gathers(bench, count) for count in counts}
    print("gather from one layer, warm, other random rows every time\n" + gather_table(warm))
    scanned = scans(bench)
    print("\n" + scan_table(scanned, bench.vectors.nbytes, "np.copyto, both arrays resident"))
    opened = openings(bench)
    print("\n" + opening_table(opened))
    cold, stayed = {}, 0.0
    for count in counts:
        cold[count], left = cold_gathers(bench, count)
        stayed = max(stayed, left)
    works = "" if stayed < 0.01 else f": NOT cold, {100 * stayed:.0f} % of the pages stayed in memory"
    print(f"\ngather from one layer, cold (evicted from the page cache){works}\n" + gather_table(cold))
    cold_scanned = cold_scans(bench)
    print("\ncold\n" + scan_table(cold_scanned, bench.vectors.nbytes, list(cold_scanned)[1]))
    targets = targets_of(bench, warm[TARGET_COUNT], scanned, opened) if TARGET_COUNT in warm else []
    print("\n" + targets_table(targets))
    return {
        "gather_warm": {str(count): _json(times) for count, times in warm.items()},
        "gather_cold": {str(count): _json(times) for count, times in cold.items()},
        "pages_resident_after_eviction": stayed,
        "scan_warm": _json(scanned),
        "scan_cold": _json(cold_scanned),
        "opening": opened,
        "targets": [target.as_json() for target in targets],
    }


def opening_table(opened: dict[str, Any]) -> str:
    rows: list[tuple[object, ...]] = [
        (f"{name}, same process", 1000 * times["median_s"], None, None, None)
        for name, times in opened["same_process"].items()
    ]
    rows += [
        (f"{name}, fresh process", run["open_ms"], run["numpy_import_ms"], run["import_ms"], run["first_gather_ms"])
        for name, run in opened["fresh_process"].items()
    ]
    return table(["", "open, ms", "import numpy, ms", "import embstore, ms", "first gather, ms"], rows)


def _json(times: dict[str, Times]) -> dict[str, Any]:
    return {name: found.as_json() for name, found in times.items()}


def prepared(arguments: argparse.Namespace, folder: Path) -> tuple[Bench, dict[str, Any]]:
    if arguments.store:
        stores = [Path(arguments.store)]
    else:
        stores = [folder / "synthetic.zarr", folder / "synthetic.h5"]
        write_stores(
            stores,
            n_rows=arguments.rows,
            n_layers=arguments.layers,
            hidden_size=arguments.hidden_size,
            dtype=arguments.dtype,
            seed=arguments.seed,
        )
    store = es.open(stores[0])
    chunked = {H5PY_AUTO: folder / "auto.h5", H5PY_ROWS: folder / "rows.h5"}
    chunks = {
        H5PY_AUTO: write_chunked(store, chunked[H5PY_AUTO], chunks=True),
        H5PY_ROWS: write_chunked(store, chunked[H5PY_ROWS], chunks=(1, 256, store.hidden_size)),
    }
    os.sync()
    layer = store.layers[len(store.layers) // 2]
    vectors = np.array(store.gather(np.arange(store.n_rows), layer))
    bench = Bench(stores, chunked, layer, store.layers.index(layer), vectors, arguments.seed, arguments.budget)
    described = {
        "n_rows": store.n_rows,
        "n_layers": len(store.layers),
        "hidden_size": store.hidden_size,
        "dtype": store.dtype,
        "n_partitions": store.layout.n_partitions,
        "chunks": {name: list(shape) for name, shape in chunks.items()},
    }
    return bench, described


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", help="a store to read, float16 or float32; a synthetic one if not given")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--layers", type=int, default=7)
    parser.add_argument("--hidden-size", type=int, default=384)
    parser.add_argument("--dtype", choices=["float16", "float32"], default="float16")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=60, help="seconds for one tool and number of rows")
    parser.add_argument("--tmp", help="folder for temporary files (default: the system's); needs 4 times the store")
    parser.add_argument("--out", help="JSON file to write")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    described = machine()
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.tmp) as folder:
        bench, shape = prepared(arguments, Path(folder))
        chunks = "; ".join(f"{name}: {tuple(chunk)}" for name, chunk in shape["chunks"].items())
        print(
            f"{shape['n_rows']:,} rows x {shape['n_layers']} layers x {shape['hidden_size']} {shape['dtype']}, "
            f"{shape['n_partitions']} partitions; {chunks}\n"
        )
        result = run(bench)
        with suppress(OSError):
            del bench
            gc.collect()
    write_json(arguments.out, {"benchmark": "query", "machine": described, "store": shape, **result})


if __name__ == "__main__":
    main()
