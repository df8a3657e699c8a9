"""Nearest neighbours side by side, in one run: exact search from the store, faiss over a copy in memory, indexes.

python benchmarks/neighbors.py STORE --rows 200000 --out benchmarks/results/neighbors.json --plot recall.png
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import faiss
import numpy as np
from measure import (
    Target,
    Times,
    anonymous_nbytes,
    interleaved,
    machine,
    paired_ratios,
    table,
    targets_table,
    timed,
    write_json,
)
from numpy.typing import NDArray

import embstore as es
from embstore.analysis.bench import measure_recall
from embstore.analysis.neighbors.exact import exact_search
from embstore.analysis.neighbors.index import LayerIndex, build_index
from embstore.analysis.neighbors.space import Space, StoreVectors

K = 10
COUNTS = (1, 32, 1000)
BOUNDS = {1: 1.0, 32: 0.5, 1000: 1.1}
OURS, FLAT, HALF = "embstore, from the store", "faiss IndexFlatIP, float32 copy", "faiss fp16 IndexScalarQuantizer"


class Peak:
    """The most memory of its own that the process had inside the block, above what it had before."""

    def __enter__(self) -> Peak:
        self._before = self.nbytes = anonymous_nbytes()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._done.wait(0.002):
            self.nbytes = max(self.nbytes, anonymous_nbytes())

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        self._thread.join()
        self.nbytes -= self._before


def rested(call: Callable[[], object], number: int) -> float:
    """Time a call after a rest: the threads of the library before it spin on for a while."""
    time.sleep(0.5)
    return timed(call)


def copied(store: es.Store, layer: int, rows: int, kind: str) -> tuple[Any, float, int]:
    """The rows in an index of faiss in memory, the seconds that took, and the bytes it holds."""
    began = time.perf_counter()
    size = store.hidden_size
    if kind == FLAT:
        index = faiss.IndexFlatIP(size)
    else:
        index = faiss.IndexScalarQuantizer(size, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
        index.train(np.zeros((1, size), np.float32))
    for _, block in store.scan(layer, 0, rows):
        index.add(block.astype(np.float32))
    return index, time.perf_counter() - began, index.ntotal * size * (4 if kind == FLAT else 2)


def exact(arguments: argparse.Namespace, store: es.Store) -> tuple[dict[str, Any], list[Target]]:
    """Exact search of 1, 32 and 1,000 queries."""
    layer, rows = arguments.layer, np.arange(arguments.rows)
    vectors = StoreVectors(store, layer)
    drawn = np.random.default_rng(arguments.seed)
    peers = {kind: copied(store, layer, arguments.rows, kind) for kind in (FLAT, HALF)}
    figures: dict[str, Any] = {"copies": {kind: {"load_s": s, "nbytes": n} for kind, (_, s, n) in peers.items()}}
    targets = []
    for count in COUNTS:
        queries = store.gather(drawn.choice(arguments.rows, count, replace=False), layer).astype(np.float32)
        ours: Callable[..., Any] = partial(exact_search, vectors, queries, k=K, space=Space("ip"), rows=rows)
        ours()
        with Peak() as peak:
            found = ours()
        scores, _ = peers[FLAT][0].search(queries, K)
        cases = {OURS: partial(rested, ours)}
        for kind, (index, _, _) in peers.items():
            cases[kind] = partial(rested, partial(index.search, queries, K))
        times = interleaved(cases, repeats=arguments.repeats if count < 1000 else max(3, arguments.repeats // 3))
        ratio = median(paired_ratios(times[OURS], times[FLAT]))
        figures[str(count)] = {
            "cases": {name: each.as_json() for name, each in times.items()},
            "ratio_to_flat": ratio,
            "peak_nbytes": peak.nbytes,
            "largest_difference_of_scores": float(np.abs(found.scores - scores).max()),
        }
        targets.append(Target(f"{count:,} queries: time, of that of IndexFlatIP", ratio, BOUNDS[count], False))
        flops = 2.0 * count * arguments.rows * store.hidden_size
        shown = [(name, 1e3 * each.median, flops / each.median / 1e9) for name, each in times.items()]
        print(table([f"{count:,} queries", "milliseconds", "GFLOP/s"], shown) + "\n")
    most = max(figures[str(count)]["peak_nbytes"] for count in COUNTS)
    share = most / peers[FLAT][2]
    targets.append(Target("own memory of a search, of that copy", share, 0.5, False))
    return figures, targets


def bare(index: LayerIndex, queries: NDArray[np.float32], **setting: int) -> Callable[[], Any]:
    """The same index through faiss alone."""
    placed = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    held = index._faiss
    ivf = hasattr(held, "nprobe")
    parameters = faiss.SearchParametersIVF(**setting) if ivf else faiss.SearchParametersHNSW(efSearch=setting["ef"])
    return lambda: held.search(placed, K, params=parameters)


def indexed(arguments: argparse.Namespace, store: es.Store) -> tuple[dict[str, Any], list[Target], dict[str, Any]]:
    """IVF and HNSW through embstore and through faiss alone, and their recall."""
    figures, targets, curves = {}, [], {}
    drawn = np.random.default_rng(arguments.seed)
    queries = store.gather(drawn.choice(store.n_rows, 1000, replace=False), arguments.layer).astype(np.float32)
    for kind in ("ivf", "hnsw"):
        began = time.perf_counter()
        index = build_index(store, layer=arguments.layer, kind=kind, name=f"bench-{kind}", seed=arguments.seed)
        seconds = time.perf_counter() - began
        setting = {"nprobe": 16} if kind == "ivf" else {"ef": 64}
        alone = bare(index, queries, **setting)
        alone()
        ours = partial(index.search, queries, k=K, rescore=False, **setting)
        rescored = partial(index.search, queries, k=K, **setting)
        names = {"embstore": ours, "embstore, scored in float64": rescored, "faiss alone": alone}
        cases = {name: partial(rested, run) for name, run in names.items()}
        times: dict[str, Times] = interleaved(cases, repeats=arguments.repeats)
        ratio = median(paired_ratios(times["embstore"], times["faiss alone"]))
        targets.append(Target(f"{kind}: time, of that of faiss alone", ratio, 1.05, False))
        recall = measure_recall(store, index, k=K, queries=1000, seed=arguments.seed)
        curves[kind] = recall
        figures[kind] = {
            "build_s": seconds,
            "setting": setting,
            "cases": {name: each.as_json() for name, each in times.items()},
            "ratio_to_faiss": ratio,
            "recall": recall.to_dicts(),
        }
        shown = [(name, 1e3 * each.median) for name, each in times.items()]
        print(table([f"{kind} {setting}, 1,000 queries", "milliseconds"], shown))
        print(table(["setting", "recall@10", "queries/s"], [row[:3] for row in recall.rows()]) + "\n")
    return figures, targets, curves


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", help="a finished store of 200,000 rows or more")
    parser.add_argument("--layer", type=int, help="the layer searched; the last if not given")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tmp", help="folder for the copy of the layer whose indexes are built")
    parser.add_argument("--plot", help="file of the figure of recall against time")
    parser.add_argument("--out", help="JSON file to write")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    described = machine()
    store = es.open(arguments.store)
    arguments.layer = store.layers[-1] if arguments.layer is None else arguments.layer
    arguments.rows = min(arguments.rows, store.n_rows)
    print(f"{arguments.rows:,} x {store.hidden_size} {store.dtype} of layer {arguments.layer}, k {K}\n")
    figures, targets = exact(arguments, store)
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.tmp) as folder:
        part = es.export(store.select(layers=arguments.layer), Path(folder) / "layer.zarr")
        found, more, curves = indexed(
            arguments, part if isinstance(part, es.Store) else es.open(Path(folder) / "layer.zarr")
        )
    print(targets_table([*targets, *more]))
    if arguments.plot:
        es.plot.save(es.plot.recall_curve(curves), arguments.plot)
    write_json(
        arguments.out,
        {
            "benchmark": "neighbors",
            "machine": described,
            "store": {"rows": arguments.rows, "hidden_size": store.hidden_size, "dtype": store.dtype, "k": K},
            "exact": figures,
            "indexes": found,
            "targets": [target.as_json() for target in (*targets, *more)],
        },
    )


if __name__ == "__main__":
    main()
