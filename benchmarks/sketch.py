"""Exact neighbours through a sketch, next to the scan, faiss flat and usearch exact, in one run: time and bytes read.

OMP_NUM_THREADS=1 python benchmarks/sketch.py STORE --rows 200000 2000000 --wide 1000000 --out sketch.json

Rows beyond those of the store are its rows again, each moved by half the difference of two others; wide ones are two
layers side by side; "random" are normal numbers. All vectors are float16; one thread, processor time, one query at a
time. "Cold": wall time after the files were dropped from memory.
"""

from __future__ import annotations

import argparse
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from measure import Target, interleaved, machine, show_rows, targets_table, write_json
from numpy.typing import NDArray
from usearch.index import MetricKind
from usearch.index import search as usearch_search

import embstore as es
from embstore.analysis.neighbors.exact import Hits, Search, checked_queries
from embstore.analysis.neighbors.sketch import SketchHits, sketch_search
from embstore.analysis.neighbors.sketch_codes import Layout, MappedCodes, Rotation, Sketch, write_codes
from embstore.analysis.neighbors.space import ArrayVectors, Space
from embstore.bench.measure import Row

K, BLOCK, SAMPLE = 10, 8192, 20_000
MOST_SINGLE = 500_000  # rows of which faiss keeps float32 too


def blocks(vectors: NDArray[np.float16]) -> Iterator[tuple[int, NDArray[np.float16]]]:
    for start in range(0, len(vectors), BLOCK):
        yield start, vectors[start : start + BLOCK]


def made(real: NDArray[np.float16] | None, n_rows: int, size: int, path: Path) -> NDArray[np.float16]:
    """Unit vectors in a file: the real ones, and more like them; or normal numbers."""
    rng = np.random.default_rng(0)
    out = np.memmap(path, np.float16, "w+", shape=(n_rows, size))
    for start, part in blocks(out):
        if real is None:
            drawn = rng.normal(size=part.shape)
        else:
            drawn = real[np.arange(start, start + len(part)) % len(real)].astype(np.float32)
            if start + len(part) > len(real):
                one, other = (real[rng.integers(len(real), size=len(part))].astype(np.float32) for _ in "ab")
                drawn += (one - other) / 2
        part[:] = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    return out


def sketched(vectors: NDArray[np.float16], path: Path) -> Sketch:
    mean = np.mean([part.mean(0, dtype=np.float64) for _, part in blocks(vectors)], 0)
    rows = np.sort(np.random.default_rng(0).choice(len(vectors), min(SAMPLE, len(vectors)), replace=False))
    rotation = Rotation.learn(vectors[rows], mean)
    longest = write_codes(path, blocks(vectors), len(vectors), rotation, "these")
    layout = Layout(len(vectors), rotation.n_levels)
    return Sketch(rotation, MappedCodes(path, layout), layout, longest, vectors[0].nbytes)


def brute(vectors: NDArray[np.float16], query: NDArray[np.float64]) -> NDArray[np.int64]:
    """The nearest by inner product in float64."""
    scores = np.concatenate([(part.astype(np.float64) * query).sum(1) for _, part in blocks(vectors)])
    return np.lexsort((np.arange(len(scores)), -scores))[:K]


def cold(vectors: Any, made: Sketch, folder: Path, calls: dict[str, Callable[[int], object]]) -> dict[str, float]:
    """The median wall time of a query each, the files dropped from memory before it."""
    maps = [vectors._mmap, made.codes._bytes.base._mmap]  # type: ignore[attr-defined]
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(3):
        for name, call in calls.items():
            for held, path in zip(maps, ("vectors", "sketch.bin"), strict=True):
                held.madvise(mmap.MADV_DONTNEED)
                with Path(folder, path).open("rb") as file:
                    os.fsync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            began = time.perf_counter()
            call(number)
            taken[name].append(time.perf_counter() - began)
    return {name: float(np.median(seconds)) for name, seconds in taken.items()}


def compare(
    name: str, vectors: NDArray[np.float16], folder: Path, arguments: argparse.Namespace
) -> tuple[Row, list[Target], dict[str, Any]]:
    began = time.process_time()
    made_sketch = sketched(vectors, folder / "sketch.bin")
    build_s = time.process_time() - began
    rows = np.random.default_rng(1).choice(len(vectors), arguments.queries, replace=False)
    queries = vectors[np.sort(rows)].astype(np.float32)
    queries += 0.05 * np.random.default_rng(2).normal(size=queries.shape).astype(np.float32) / queries.shape[1] ** 0.5
    compared = checked_queries(queries, vectors.shape[1], Space("ip"))

    def search(number: int) -> Search:
        given = compared[number : number + 1]
        return Search(ArrayVectors(vectors), given, K, Space("ip"), range(len(vectors)), (), None)

    def by_sketch(number: int) -> SketchHits:
        return sketch_search(search(number), made_sketch)

    def by_scan(number: int) -> Hits:
        own = search(number)
        return own.decide(*own.candidates())

    found = [by_sketch(number) for number in range(len(queries))]
    from_disk = cold(vectors, made_sketch, folder, {"sketch": by_sketch, "scan": by_scan})
    for number, hits in enumerate(found):
        scan = by_scan(number)
        assert (hits.rows == scan.rows).all(), "not the rows of the scan"
        assert (hits.scores == scan.scores).all(), "not the scores of the scan"
        if number < arguments.checked:
            assert (hits.rows[0] == brute(vectors, compared[number])).all(), "not the rows of float64 brute force"
    half = faiss.IndexScalarQuantizer(vectors.shape[1], faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
    indexes = {"faiss, float16 (SQfp16)": half}
    if len(vectors) <= MOST_SINGLE:
        indexes["faiss, float32 (Flat)"] = faiss.IndexFlatIP(vectors.shape[1])
    for index in indexes.values():
        for _, part in blocks(vectors):
            index.add(part.astype(np.float32))
    halves = queries.astype(np.float16)
    rivals: dict[str, Callable[[int], object]] = {
        **{key: partial(lambda index, number: index.search(queries[number : number + 1], K), index)
           for key, index in indexes.items()},
        "usearch, float16, exact": lambda number: usearch_search(
            vectors, halves[number : number + 1], K, MetricKind.IP, exact=True, threads=1
        ),
    }  # fmt: skip
    cases = {"sketch": by_sketch, "scan": by_scan, **rivals}

    def each(call: Callable[[int], object], number: int) -> None:
        for query in range(len(queries)):
            call(query)

    by_query = []
    for number in range(len(queries)):
        began = time.process_time()
        by_sketch(number)
        by_query.append(time.process_time() - began)
    times = interleaved({key: partial(each, call) for key, call in cases.items()}, repeats=arguments.repeats)
    seconds = {key: float(np.median(held.processor)) / len(queries) for key, held in times.items()}
    row = Row(
        f"{len(vectors):,} x {vectors.shape[1]}, {name}: one query, k {K}",
        seconds["sketch"],
        {"embstore, scan": seconds["scan"], **{key: seconds[key] for key in rivals}},
        clock="processor",
    )
    shares = [hits.nbytes / vectors.nbytes for hits in found]
    n_scanned = int(sum(hits.scanned.sum() for hits in found))
    targets = [] if name == "random" else [
        Target(f"{len(vectors):,} rows: bytes read, of the layer", float(np.mean(shares)), 0.1, False),
        Target(f"{len(vectors):,} rows: times faster than the scan", seconds["scan"] / seconds["sketch"], 8, True),
    ]  # fmt: skip
    figures = {
        "build_s": build_s,
        "bytes_share": shares,
        "queries_scanned": n_scanned,
        "queries": len(queries),
        "cold_s": from_disk,
        "by_query_s": by_query,
    }
    print({key: f"{1e3 * value:.0f} ms cold" for key, value in from_disk.items()})
    print(f"built in {build_s:.0f} s; bytes read {np.mean(shares):.4f} of the layer, at most {max(shares):.4f}; "
          f"{n_scanned} of {len(queries)} queries by the scan")  # fmt: skip
    return row, targets, figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", help="a finished store")
    parser.add_argument("--layer", type=int, help="the layer searched; the last if not given")
    parser.add_argument("--rows", type=int, nargs="+", default=[200_000])
    parser.add_argument("--wide", type=int, help="also this number of rows of two layers side by side")
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--checked", type=int, default=2, help="queries that are compared with brute force in float64")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tmp", help="folder for the vectors and their sketch")
    parser.add_argument("--out", help="JSON file to write")
    arguments = parser.parse_args()
    store = es.open(arguments.store)
    layer = store.layers[-1] if arguments.layer is None else arguments.layer
    real = store.gather(np.arange(store.n_rows), layer)
    kinds = [(n_rows, "hidden states", real) for n_rows in arguments.rows]
    if arguments.wide:
        other = store.gather(np.arange(store.n_rows), store.layers[len(store.layers) // 2])
        kinds.append((arguments.wide, "two layers", np.concatenate([other, real], 1)))
    kinds.append((min(arguments.rows), "random", None))
    rows, targets, figures = [], [], {}
    for n_rows, name, source in kinds:
        with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.tmp) as folder:
            size = store.hidden_size if source is None else source.shape[1]
            vectors = made(source, n_rows, size, Path(folder, "vectors"))
            row, more, figures[f"{n_rows} {name}"] = compare(name, vectors, Path(folder), arguments)
            rows += show_rows([row])
            targets += more
            del vectors
    print(targets_table(targets))
    result = {"benchmark": "sketch", "machine": machine(), "rows": rows, "sketches": figures}
    write_json(arguments.out, {**result, "targets": [target.as_json() for target in targets]})


if __name__ == "__main__":
    main()
