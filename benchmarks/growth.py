"""How time and memory grow with the number of rows: gather, scan, search, geometry, verify, plan.

python benchmarks/growth.py --rows 1e5 1e6 5e6 --out benchmarks/results/growth.json --plot docs/results/growth.png

All sizes have the same vocabulary, 500 words, each of which occurs at every size. Each operation at each size runs in a
process of its own with one thread; its time is that of the processor, its memory the most that it had without a file
behind it (RssAnon: pages of mapped files are the kernel's to drop), above what the process had before. Needs 150
bytes of disk a row.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from measure import anonymous_nbytes, in_fresh_process, parser_of, table, write_json
from scale import Made

GATHERED, QUERIES, VOCABULARY = 100_000, 32, 500
SAMPLED_SECONDS = 0.002
OPERATIONS = ("gather 100,000 rows", "scan", "search, 1 query", "search, 32 queries", "geometry", "verify", "plan")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}


def operation(name: str, path: str, n_rows: int, model: str) -> Callable[[], object]:
    """Return what is measured, with all that it needs open."""
    import embstore as es

    if name == "plan":
        encoder = es.models.encoder_from_shorthand(model) if ":" in model else es.load_encoder(model)
        text = Made(n_rows, [f"w{number}" for number in range(VOCABULARY)], seed=0)
        return lambda: es.plan(text, model=encoder, calibrate=False, progress=False)
    if name == "verify":
        return lambda: es.verify(path, progress=False)
    store = es.open(path)
    draw = np.random.default_rng(0)
    if name.startswith("gather"):
        rows = draw.integers(0, store.n_rows, min(GATHERED, store.n_rows))
        out = np.zeros((len(rows), store.hidden_size), store.vector_dtype)
        return lambda: store.gather(rows, 0, out=out)
    if name == "scan":
        return lambda: [None for _ in store.scan(0)]
    if name.startswith("search"):
        queries = store.gather(draw.integers(0, store.n_rows, 1 if "1 query" in name else QUERIES), 0)
        return lambda: es.neighbors(store, vectors=queries, layer=0, device="cpu", threads=1, progress=False)
    return lambda: es.geometry(store, metrics=("selfsim", "anisotropy"), progress=False)


def child(arguments: argparse.Namespace) -> None:
    """Print the seconds of each repeat and the own memory of one operation at one size."""
    run = operation(arguments.operation, arguments.path, int(arguments.rows[0]), arguments.model)
    before = anonymous_nbytes()
    seen, done = [before], threading.Event()

    def watch() -> None:
        while not done.wait(SAMPLED_SECONDS):
            seen.append(anonymous_nbytes())

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    seconds = []
    for _ in range(1 if arguments.operation == "plan" else arguments.repeats + 1):
        started = time.process_time()
        run()
        seconds.append(time.process_time() - started)
    done.set()
    watching.join()
    print(json.dumps({"seconds": seconds[1:] or seconds, "own_nbytes": max(seen) - before}))


def exponent(rows: list[int], values: list[float]) -> float:
    """The exponent of the growth between the last two sizes: where fixed costs weigh least."""
    return float(np.log(values[-1] / values[-2]) / np.log(rows[-1] / rows[-2]))


def grown(arguments: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    from embstore.bench.made import write_stores

    sizes = [int(each) for each in arguments.rows]
    found: dict[str, dict[str, list[Any]]] = {name: {"seconds": [], "own_nbytes": []} for name in OPERATIONS}
    for n_rows in sizes:
        path = folder / f"{n_rows}.zarr"
        write_stores([path], n_rows=n_rows, n_layers=1, hidden_size=arguments.hidden_size, n_types=VOCABULARY)
        for name in OPERATIONS:
            options = ("--child", name, "--path", str(path), "--rows", str(n_rows), "--model", arguments.model)
            held = in_fresh_process(
                __file__, *options, "--repeats", str(arguments.repeats), environment={**os.environ, **ONE_THREAD}
            )
            found[name]["seconds"].append(median(held["seconds"]))
            found[name]["own_nbytes"].append(held["own_nbytes"])
            print(f"{n_rows:,} rows: {name} {found[name]['seconds'][-1]:.4f} s", flush=True)
    return [
        {"operation": name, "rows": sizes, **each, "exponent": exponent(sizes, each["seconds"])}
        for name, each in found.items()
    ]


def plot(growth: list[dict[str, Any]], path: str) -> None:
    """Draw time and own memory over the number of rows, with the line of exponent 1."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    marks = "osv^D<>"
    for each, mark in zip(growth, marks, strict=True):
        label = f"{each['operation']} (exponent {each['exponent']:.2f})"
        left.loglog(each["rows"], each["seconds"], marker=mark, markersize=4, label=label)
        mebibytes = [max(nbytes, 2**16) / 2**20 for nbytes in each["own_nbytes"]]
        right.loglog(each["rows"], mebibytes, marker=mark, markersize=4)
    rows = np.array(growth[0]["rows"], float)
    least = min(each["seconds"][0] for each in growth)
    left.loglog(rows, least * rows / rows[0], color="grey", linestyle="--", linewidth=1, label="exponent 1")
    left.set(xlabel="rows of the store", ylabel="processor time, seconds")
    right.set(xlabel="rows of the store", ylabel="own memory above the start, MiB")
    for axes in (left, right):
        axes.grid(which="major", linewidth=0.3)
    figure.legend(*left.get_legend_handles_labels(), loc="outside right center", fontsize=8)
    figure.savefig(path, dpi=110)


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--rows", type=float, nargs="+", default=[1e5, 3e5, 1e6, 5e6], help="ascending")
    parser.add_argument("--hidden-size", type=int, default=64)
    parser.add_argument(
        "--model", default="random:64", help="whose tokenizer the plan uses: a folder, or words as they are"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tmp", help="folder for the stores (default: the system's)")
    parser.add_argument("--plot", help="PNG or SVG file of the figure")
    parser.add_argument("--child", dest="operation", help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    if arguments.operation:
        child(arguments)
        return
    if len(arguments.rows) < 2 or sorted(arguments.rows) != arguments.rows:
        raise SystemExit("--rows: give two sizes or more, ascending")
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.tmp) as folder:
        growth = grown(arguments, Path(folder))
    sizes = [f"{rows:,} rows" for rows in growth[0]["rows"]]
    print(
        "\n" + table(["seconds", *sizes, "exponent"], [(g["operation"], *g["seconds"], g["exponent"]) for g in growth])
    )
    memory = [
        (g["operation"], *(n / 2**20 for n in g["own_nbytes"]), g["own_nbytes"][-1] / g["own_nbytes"][0])
        for g in growth
    ]
    print("\n" + table(["own memory, MiB", *sizes, "last/first"], memory))
    if arguments.plot:
        plot(growth, arguments.plot)
    settings = {"hidden_size": arguments.hidden_size, "dtype": "float16", "repeats": arguments.repeats, "threads": 1}
    write_json(arguments.out, {"benchmark": "growth", "settings": settings, "growth": growth})


if __name__ == "__main__":
    main()
