"""Compare reading in one run: embstore, numpy, tensordict, Lance, TensorStore, zarr-python, h5py; warm and cold.

python benchmarks/query.py --rows 200000 --out benchmarks/results/query.json
"""

from __future__ import annotations

import argparse
import gc
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from measure import in_fresh_process, machine, show_rows, table, write_json

import embstore as es
from embstore.bench.cases import Setting, cold_gathers, cold_rows, gather_rows, scan_rows, store_rows
from embstore.bench.made import write_stores
from embstore.bench.page_cache import evict
from embstore.bench.rivals import GATHER, GATHER_SLOW

COUNTS = (50, 1_000, 100_000)


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
        setting = Setting(es.open(path), layer, folder, repeats=arguments.repeats)
        held += show_rows(gather_rows(setting, COUNTS, rivals, arguments.budget))
        held += show_rows(scan_rows(setting))
        held += show_rows(store_rows(setting))
        rows += [{**row, "what": f"{row['what']}, {suffix[1:]}"} for row in held]
        del setting
        gc.collect()
    shown = [(f"{suffix}, {state}", *each.values()) for suffix, of in opened.items() for state, each in of.items()]
    print("\nfresh processes\n" + table(["", "import numpy, ms", "import embstore", "open", "first gather"], shown))
    return {"rows": rows, "fresh_process": opened, "store": size}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--layers", type=int, default=7)
    parser.add_argument("--hidden-size", type=int, default=384)
    parser.add_argument("--dtype", choices=["float16", "float32"], default="float16")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--budget", type=float, default=20, help="seconds for one tool and number of rows")
    parser.add_argument("--tmp", help="folder for temporary files (default: the system's); needs 4 times the store")
    parser.add_argument("--out", help="JSON file to write")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    described = machine()
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.tmp) as folder:
        result = run(arguments, Path(folder))
    write_json(arguments.out, {"benchmark": "query", "machine": described, **result})


if __name__ == "__main__":
    main()
