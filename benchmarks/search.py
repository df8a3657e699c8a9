"""Find nearest neighbors: exactly, with and without a sketch, and by an index, next to faiss, usearch and torch.

    OMP_NUM_THREADS=1 python benchmarks/search.py STORE --out benchmarks/results/search.json

Everything goes through `es.neighbors`. The rivals search a float32 or float16 copy of the layer in memory; the exact
hits of all are compared. Indexes are compared with the same FAISS index called directly, at the same setting, and their
recall with the exact hits is given.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from measure import Case, Row, measure, parser_of, products, reading, write_result
from rivals import searches

import embstore as es

K, MANY = 10, 1_000
METRICS = ("ip", "cosine")
COUNTS = (1, 32)


def exact_rows(store: es.Store, layer: int, *, repeats: int, sketched: es.Store) -> Iterator[Row]:
    """Exact search of new queries in every round; the answers are those of torch."""
    held = store.vectors(layers=layer)
    threads = int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1))
    for metric in METRICS:
        copy = held.astype(np.float32)
        if metric == "cosine":
            copy /= np.linalg.norm(copy, axis=1, keepdims=True)
        rivals = searches(copy, k=K, metric=metric, threads=threads)
        for count in COUNTS:

            def queries(number: int, count: int = count, copy: Any = copy) -> Any:
                return copy[np.random.default_rng((number + 1, count)).integers(0, len(copy), count)]

            def ours(source: es.Store, number: int, metric: str = metric) -> Any:
                return es.neighbors(source, queries(number), k=K, metric=metric, layers=layer)

            found = ours(store, 0)["occurrence"].to_numpy().reshape(count, K), rivals["torch matmul, topk"](queries(0))
            scores = [np.einsum("qkf, qf -> qk", copy[hits], queries(0)) for hits in found]  # equal vectors may swap
            assert np.allclose(*scores, rtol=1e-4), "other hits than those of float32 products"
            cases: dict[str, Case] = {"ours": partial(ours, store), "ours, with a sketch": partial(ours, sketched)}
            cases |= {name: lambda number, search=search: search(queries(number)) for name, search in rivals.items()}
            cases["limit"] = reading(held) if count == 1 else products(2.0 * count * held.size)
            limit = "one read of the layer" if count == 1 else "sgemm"
            yield measure(f"exact search, {metric}, {count} queries", cases, repeats=repeats, limit=limit, target=1.0)


def table_rows(store: es.Store, layer: int, *, repeats: int, sketched: es.Store) -> Iterator[Row]:
    """Whole tables of neighbors: of one occurrence, and 1,000 of each of 32, next to the search alone."""
    held = store.vectors(layers=layer).astype(np.float32)
    units = held / np.linalg.norm(held, axis=1, keepdims=True)
    threads = int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1))
    rivals = searches(units, k=K, metric="cosine", threads=threads)
    few = {name: rivals[name] for name in rivals if name.startswith("faiss")}

    def drawn(number: int, count: int) -> Any:
        return np.random.default_rng((number + 1, count)).integers(0, len(held), count)

    def found(source: es.Store, number: int) -> None:
        es.neighbors(source, source.select(rows=drawn(number, 1)), k=K, layers=layer)

    cases: dict[str, Case] = {"ours": partial(found, store), "ours, with a sketch": partial(found, sketched)}
    cases |= {name: lambda number, search=each: search(units[drawn(number, 1)]) for name, each in few.items()}
    yield measure("neighbors of an occurrence", cases, repeats=3 * repeats, target=1.0)

    def many(number: int) -> None:
        es.neighbors(store, store.select(rows=drawn(number, 32)), k=MANY, layers=layer)

    alone = searches(units, k=MANY, metric="cosine", threads=threads)
    cases = {"ours": many} | {
        name: lambda number, search=each: search(units[drawn(number, 32)]) for name, each in alone.items()
    }
    cases["limit"] = products(2.0 * 32 * held.size)
    yield measure(f"{MANY:,} neighbors of each of 32", cases, repeats=repeats, limit="sgemm", target=1.2)


def index_rows(store: es.Store, layer: int, *, repeats: int) -> Iterator[tuple[Row, float]]:
    """Indexes: 1,000 queries through embstore and through faiss alone; each with its recall."""
    import faiss

    queries = store.vectors(layers=layer)[:: max(1, store.n_rows // 1000)].astype(np.float32)
    units = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    exact = es.neighbors(store, queries, k=K, layers=layer)["occurrence"].to_numpy().reshape(-1, K)
    for kind in ("ivf", "hnsw"):
        index = es.analysis.build_index(store, layers=layer, kind=kind)
        held = faiss.read_index(str(next(Path(str(index.path)).rglob("*.faiss"))))
        if kind == "ivf":  # a file of faiss has no effort
            held.nprobe = index.info.parameters["nprobe"]
        else:
            held.hnsw.efSearch = index.info.parameters["ef"]
        cases: dict[str, Case] = {
            "ours": lambda number, index=index: index.search(queries, k=K),  # type: ignore[misc]
            "faiss alone": lambda number, held=held: held.search(units, K),  # type: ignore[misc]
        }
        hits = np.asarray(index.search(queries, k=K).rows)
        recall = float(np.mean([len(set(a) & set(b)) / K for a, b in zip(hits, exact, strict=True)]))
        print(f"{kind}: recall {recall:.3f}")
        yield measure(f"{kind}, {len(queries):,} queries", cases, repeats=repeats, target=1.3), recall


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("store", type=Path, help="a store of float16; it is copied")
    parser.add_argument("--layer", type=int, default=-1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.tmp) as name, es.config(progress=False):
        plain, sketched = (Path(name) / f"{each}.zarr" for each in ("plain", "sketched"))
        shutil.copytree(arguments.store, plain)
        shutil.copytree(arguments.store, sketched)
        store, layer = es.open(plain), es.open(plain).layers[arguments.layer]
        es.analysis.build_index(es.open(sketched), layers=layer, kind="sketch")
        rows = list(exact_rows(store, layer, repeats=arguments.repeats, sketched=es.open(sketched)))
        rows += table_rows(store, layer, repeats=arguments.repeats, sketched=es.open(sketched))
        indexed = list(index_rows(store, layer, repeats=arguments.repeats))
    recall = {row.what: value for row, value in indexed}
    write_result(arguments.out, [*rows, *(row for row, _ in indexed)], store={"rows": store.n_rows}, recall=recall)


if __name__ == "__main__":
    main()
