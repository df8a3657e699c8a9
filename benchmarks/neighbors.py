"""Nearest neighbours side by side, in one run: exact search from the store and by rivals in memory, and indexes.

Up to 1,000 queries of all rows; of a quarter of them: k 1,000, metrics, filters, dtypes and indexes.

python benchmarks/neighbors.py STORE --rows 200000 --out benchmarks/results/neighbors.json --plot recall.png

Run it with OMP_NUM_THREADS=1 and once more with all cores: the rivals' threads follow that variable.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import faiss
import numpy as np
import polars as pl
from measure import (
    Target,
    Times,
    anonymous_nbytes,
    interleaved,
    paired_ratios,
    parser_of,
    show_rows,
    table,
    targets_table,
    write_json,
)
from numpy.typing import NDArray

import embstore as es
from embstore.analysis.neighbors.exact import Exclusion, Search, checked_queries, exact_search
from embstore.analysis.neighbors.index import LayerIndex, build_index
from embstore.analysis.neighbors.recall import measure_recall, recall_of
from embstore.analysis.neighbors.space import Space, StoreVectors
from embstore.bench.cases import Setting, search_rows
from embstore.bench.measure import Row, cores
from embstore.bench.rivals import SEARCH

K = 10
EQUAL_RECALL = 0.95  # at which kinds of index are compared
BUDGET = 1.0  # seconds of a case, after which it is not repeated
PRODUCTS = {name: rival for name, rival in SEARCH.items() if "float16" not in name}  # the others take minutes for MANY
MANY = 1_000
VARIANTS: tuple[dict[str, Any], ...] = (
    {"counts": (1_000,), "k": 1_000, "rivals": PRODUCTS},
    {"counts": (32,), "metric": "cosine"},
    {"counts": (32,), "metric": "l2"},
    {"counts": (32,), "share": 0.3},
    {"counts": (32,), "share": 0.02},
)
DTYPES = ("bfloat16", "int8")


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


def exact(arguments: argparse.Namespace, store: es.Store, part: es.Store, folder: Path) -> Iterator[Row]:
    """Exact search by inner product, k 10, and its variants and other dtypes in a part of the rows."""
    threads = int(os.environ.get("OMP_NUM_THREADS", cores()))

    def setting(searched: es.Store) -> Setting:
        return Setting(searched, arguments.layer, folder, threads, arguments.repeats, arguments.seed, BUDGET)

    most, whole, smaller = arguments.most_queries, setting(store), setting(part)
    yield from search_rows(whole, [count for count in (1, 32) if count <= most], k=K)
    if most >= MANY:
        yield from search_rows(whole, [MANY], k=K, rivals=PRODUCTS)
    for variant in VARIANTS:
        counts = [count for count in variant["counts"] if count <= most]
        yield from search_rows(smaller, **{**variant, "counts": counts})
    for dtype in DTYPES:
        copy = es.export(part, folder / f"{dtype}.zarr", dtype=dtype, progress=False)
        yield from search_rows(setting(copy), (32,), k=K)


def own_memory(arguments: argparse.Namespace, store: es.Store) -> dict[str, float]:
    """The memory that a search of 1,000 queries takes, and its share of a float32 copy of the layer."""
    queries = store.gather(np.arange(min(1000, store.n_rows)), arguments.layer)
    vectors = StoreVectors(store, arguments.layer)
    with Peak() as peak:
        exact_search(vectors, queries, k=K, space=Space("ip"), device="cpu")
    return {"peak_nbytes": peak.nbytes, "of_copy": peak.nbytes / (4 * store.n_rows * store.hidden_size)}


def rested(call: Callable[[], object], number: int) -> None:
    call()


def bare(index: LayerIndex, queries: NDArray[np.float32], **setting: int) -> Callable[[], Any]:
    """The same index through faiss alone."""
    placed = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    held = index._faiss
    ivf = hasattr(held, "nprobe")
    parameters = faiss.SearchParametersIVF(**setting) if ivf else faiss.SearchParametersHNSW(efSearch=setting["ef"])
    return lambda: held.search(placed, K, params=parameters)


def indexed(arguments: argparse.Namespace, store: es.Store) -> tuple[dict[str, Any], list[Target], dict[str, Any]]:
    """Indexes through embstore and through faiss alone, their recall, and that of usearch's graph."""
    figures, targets, curves = {}, [], {}
    drawn = np.random.default_rng(arguments.seed)
    queries = store.gather(drawn.choice(store.n_rows, 1000, replace=False), arguments.layer).astype(np.float32)
    for kind in ("ivf", "ivfpq", "rabitq", "hnsw"):
        began = time.perf_counter()
        index = build_index(store, layer=arguments.layer, kind=kind, name=f"bench-{kind}", seed=arguments.seed)
        seconds = time.perf_counter() - began
        setting = {"ef": 64} if kind == "hnsw" else {"nprobe": 16}
        alone = bare(index, queries, **setting)
        alone()
        ours = partial(index.search, queries, k=K, rescore=False, **setting)
        rescored = partial(index.search, queries, k=K, **setting)
        names = {"embstore": ours, "embstore, scored in float64": rescored, "faiss alone": alone}
        cases = {name: partial(rested, run) for name, run in names.items()}
        times: dict[str, Times] = interleaved(cases, repeats=arguments.repeats, rest=0.1)
        ratio = median(paired_ratios(times["embstore"], times["faiss alone"]))
        targets.append(Target(f"{kind}: time, of that of faiss alone", ratio, 1.05, False))
        recall = measure_recall(index, k=K, n_queries=1000, seed=arguments.seed)
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
    curves["usearch"], figures["usearch"] = usearch_graph(arguments, store)
    for kind, curve in curves.items():
        figures[kind]["equal_recall"] = at_recall(curve)
    shown = [(kind, figures[kind]["build_s"], *figures[kind]["equal_recall"].values()) for kind in curves]
    print(table(["kind", "built in s", "setting", "recall@10", f"queries/s at recall {EQUAL_RECALL}"], shown) + "\n")
    return figures, targets, curves


def at_recall(curve: pl.DataFrame) -> dict[str, Any]:
    """The fastest setting of an index that finds EQUAL_RECALL of the nearest, or the one that finds most."""
    found = curve.filter(pl.col("setting") != "exact search")
    enough = found.filter(pl.col("recall") >= EQUAL_RECALL).sort("queries_per_second", descending=True)
    best = enough if len(enough) else found.sort("recall", descending=True)
    return best.select("setting", "recall", "queries_per_second").row(0, named=True)


def usearch_graph(arguments: argparse.Namespace, store: es.Store) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Recall and speed of usearch's HNSW of float16, with as many links and candidates as ours."""
    from usearch.index import Index

    vectors, space = StoreVectors(store, arguments.layer), Space()
    rows = np.sort(np.random.default_rng(arguments.seed).choice(store.n_rows, 1000, replace=False)).astype(np.int64)
    drawn = vectors.gather(rows)
    exclude = (Exclusion(np.arange(store.n_rows), rows),)
    exact_hits = exact_search(vectors, drawn, k=K, space=space, exclude=exclude, device="cpu")
    began = time.perf_counter()
    index = Index(ndim=store.hidden_size, metric="cos", dtype="f16", connectivity=32, expansion_add=128)
    index.add(np.arange(store.n_rows), vectors.gather(np.arange(store.n_rows)), threads=cores())
    build_s, lines = time.perf_counter() - began, []
    for candidates in (16, 32, 64, 128, 256):
        index.expansion_search = candidates
        began = time.perf_counter()
        found = index.search(drawn, K + 1, threads=cores())
        seconds = time.perf_counter() - began
        keys = np.asarray(found.keys, np.int64)
        others = np.where(keys == rows[:, None], -1, keys)
        hits = Search(vectors, checked_queries(drawn, store.hidden_size, space), K, space, rows, (), None).hits(others)
        recall = recall_of(hits, exact_hits, ascending=False)
        lines.append((f"ef={candidates}", recall, len(rows) / seconds, K))
    curve = pl.DataFrame(lines, schema=["setting", "recall", "queries_per_second", "k"], orient="row")
    return curve, {"build_s": build_s, "recall": curve.to_dicts()}


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("store", help="a finished store of 100,000 rows or more")
    parser.add_argument("--layer", type=int, help="the layer searched; the last if not given")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--most-queries", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tmp", help="folder for the copy of the layer whose indexes are built")
    parser.add_argument("--plot", help="file of the figure of recall against time")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.tmp) as folder:
        given = es.open(arguments.store)
        arguments.layer = given.layers[-1] if arguments.layer is None else arguments.layer
        selection = given.select(rows=np.arange(min(arguments.rows, given.n_rows)), layers=arguments.layer)
        store = es.export(selection, Path(folder) / "layer.zarr", progress=False)
        quarter = store.select(rows=np.arange(-(-store.n_rows // 4)))
        part = es.export(quarter, Path(folder) / "part.zarr", progress=False)
        print(f"{store.n_rows:,} x {store.hidden_size} {store.dtype} of layer {arguments.layer}\n")
        rows = show_rows(exact(arguments, store, part, Path(folder)))
        memory = own_memory(arguments, store)
        found, targets, curves = indexed(arguments, part)
    print(targets_table([*targets, Target("own memory of a search, of a float32 copy", memory["of_copy"], 0.5, False)]))
    if arguments.plot:
        es.plot.save(es.plot.recall_curve(curves), arguments.plot)
    write_json(
        arguments.out,
        {
            "benchmark": "neighbors",
            "store": {"rows": store.n_rows, "hidden_size": store.hidden_size, "dtype": store.dtype},
            "rows": rows,
            "memory": memory,
            "indexes": found,
            "targets": targets,
        },
    )


if __name__ == "__main__":
    main()
