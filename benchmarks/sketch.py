"""Exact neighbours through a sketch, next to the scan, faiss flat and usearch exact, in one run: time and bytes read.

OMP_NUM_THREADS=1 python benchmarks/sketch.py STORE --rows 200000 2000000 --wide 1000000 --random 200000 --out FILE

Rows beyond those of the store are its rows again, each moved by half the difference of two others; wide ones are two
layers side by side; random ones are normal numbers. All vectors are float16; one thread, processor time, one query at
a time. "In a row": a contender answers all queries before the next one does, in several rounds; the first query of
each finds the caches emptied by what ran before. "Each after other work": the contenders take turns at every query,
so that each of them finds the caches emptied. "Cold": wall time after the files were dropped from memory, as a new
process finds them; the sketch is checked as it is read.

With --folder the vectors and their sketches are kept and used again; --only-make ends when they are made.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from measure import Target, interleaved, parser_of, show_rows, targets_table, write_json
from numpy.typing import NDArray
from usearch.index import MetricKind
from usearch.index import search as usearch_search

import embstore as es
from embstore.analysis.neighbors.exact import Hits, Search, checked_queries
from embstore.analysis.neighbors.sketch import SketchHits, sketch_search
from embstore.analysis.neighbors.sketch_codes import Layout, MappedCodes, Rotation, Sketch, write_codes
from embstore.analysis.neighbors.space import ArrayVectors, Space
from embstore.bench.measure import Row
from embstore.store.arrays import ArraySpec
from embstore.store.reading.mapped import MappedLayer
from embstore.store.storage.files import MappedFile

K, BLOCK, SAMPLE = 10, 8192, 20_000
MOST_SINGLE = 500_000  # rows of which faiss keeps float32 too
Call = Callable[[int], object]  # answers the query of a number


class FileVectors(ArrayVectors):
    """Vectors in a file, which are read in order, or gathered as those of a store are."""

    def __init__(self, path: Path, shape: tuple[int, int]) -> None:
        self.array = np.memmap(path, np.float16, "r", shape=shape)
        super().__init__(self.array)
        self.file = MappedFile(path, random=True)
        self.layer = MappedLayer(ArraySpec("", (1, *shape), self.array.dtype, (), 0, (), (), {}), shape[0])
        self.layer.place(0, self.file, np.zeros(1, np.int64))

    def gather(self, rows: NDArray[np.int64]) -> NDArray[np.float16]:
        out = np.empty((len(rows), self.hidden_size), np.float16)
        self.layer.take(rows, [self.file], out)
        return out


def blocks(vectors: NDArray[np.float16]) -> Iterator[tuple[int, NDArray[np.float16]]]:
    for start in range(0, len(vectors), BLOCK):
        yield start, vectors[start : start + BLOCK]


def make(real: NDArray[np.float16] | None, shape: tuple[int, int], folder: Path) -> None:
    """Write unit vectors, the real ones, and more like them, or normal numbers; and their sketch."""
    rng, began = np.random.default_rng(0), time.process_time()
    out = np.memmap(folder / "vectors", np.float16, "w+", shape=shape)
    for start, part in blocks(out):
        if real is None:
            drawn = rng.normal(size=part.shape)
        else:
            drawn = real[np.arange(start, start + len(part)) % len(real)].astype(np.float32)
            if start + len(part) > len(real):
                one, other = (real[rng.integers(len(real), size=len(part))].astype(np.float32) for _ in "ab")
                drawn += (one - other) / 2
        part[:] = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    out.flush()
    print(f"{folder.name}: vectors made in {time.process_time() - began:.0f} s", end="", flush=True)
    began = time.process_time()
    mean = np.mean([part.mean(0, dtype=np.float64) for _, part in blocks(out)], 0)
    rows = np.sort(np.random.default_rng(0).choice(len(out), min(SAMPLE, len(out)), replace=False))
    rotation = Rotation.learn(out[rows], mean)
    longest = write_codes(folder / "sketch.bin", blocks(out), len(out), rotation, "these")
    (folder / "rotation.npz").write_bytes(rotation.as_bytes())
    about = {"longest": longest, "build_s": time.process_time() - began, "levels": rotation.n_levels}
    (folder / "about.json").write_text(json.dumps(about))
    print(f", sketch in {about['build_s']:.0f} s", flush=True)


def opened(folder: Path, shape: tuple[int, int]) -> tuple[FileVectors, Sketch, float]:
    """The vectors, their sketch, and how long it took to build."""
    about = json.loads((folder / "about.json").read_text())
    rotation = Rotation.read(folder / "rotation.npz", shape[1], about["levels"])
    layout = Layout(shape[0], rotation.n_levels)
    codes = MappedCodes(folder / "sketch.bin", layout)
    sketch = Sketch(rotation, codes, layout, about["longest"], 2 * shape[1])
    return FileVectors(folder / "vectors", shape), sketch, about["build_s"]


def brute(vectors: NDArray[np.float16], query: NDArray[np.float64]) -> NDArray[np.int64]:
    """The nearest by inner product in float64."""
    scores = np.concatenate([(part.astype(np.float64) * query).sum(1) for _, part in blocks(vectors)])
    return np.lexsort((np.arange(len(scores)), -scores))[:K]


def cold(held: FileVectors, sketch: Sketch, folder: Path, calls: dict[str, Call]) -> dict[str, float]:
    """The median wall time of a query each, the files dropped from memory before it, and the checks forgotten."""
    codes: Any = sketch.codes
    array: Any = held.array
    maps = [(held.file.map, "vectors"), (array._mmap, "vectors"), (codes._bytes.base._mmap, "sketch.bin")]
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(3):
        for name, call in calls.items():
            codes._sound[:] = codes._asked[:] = codes._asked_records[:] = False
            for mapped, _ in maps:
                mapped.madvise(mmap.MADV_DONTNEED)
            for _, path in maps[1:]:
                with Path(folder, path).open("rb") as file:
                    os.fsync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            began = time.perf_counter()
            call(number)
            taken[name].append(time.perf_counter() - began)
    return {name: float(np.median(seconds)) for name, seconds in taken.items()}


def rivals_of(vectors: NDArray[np.float16], queries: NDArray[np.float32]) -> dict[str, Call]:
    half = faiss.IndexScalarQuantizer(vectors.shape[1], faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
    indexes = {"faiss, float16 (SQfp16)": half}
    if len(vectors) <= MOST_SINGLE:
        indexes["faiss, float32 (Flat)"] = faiss.IndexFlatIP(vectors.shape[1])
    for index in indexes.values():
        for _, part in blocks(vectors):
            index.add(part.astype(np.float32))
    halves = queries.astype(np.float16)
    return {
        **{key: partial(lambda index, number: index.search(queries[number : number + 1], K), index)
           for key, index in indexes.items()},
        "usearch, float16, exact": lambda number: usearch_search(
            vectors, halves[number : number + 1], K, MetricKind.IP, exact=True, threads=1
        ),
    }  # fmt: skip


def in_turn(calls: dict[str, Call], n_queries: int, repeats: int) -> dict[str, float]:
    """The seconds of a query of each contender, another one having run before it: the median over rounds of means."""
    taken = np.zeros((repeats, len(calls)))
    for number in range(repeats):
        for query in range(n_queries):
            for at, call in enumerate(calls.values()):
                began = time.process_time()
                call(query)
                taken[number, at] += (time.process_time() - began) / n_queries
    return dict(zip(calls, np.median(taken, 0).tolist(), strict=True))


def in_a_row(calls: dict[str, Call], n_queries: int, repeats: int) -> dict[str, float]:
    """The seconds of a query of each contender, which answers all of them before the next one does."""

    def each(call: Call, number: int) -> None:
        for query in range(n_queries):
            call(query)

    times = interleaved({name: partial(each, call) for name, call in calls.items()}, repeats=repeats)
    return {name: float(np.median(held.processor)) / n_queries for name, held in times.items()}


def compare(
    name: str, shape: tuple[int, int], folder: Path, arguments: argparse.Namespace
) -> tuple[list[Row], list[Target], dict[str, Any]]:
    held, sketch, build_s = opened(folder, shape)
    vectors = held.array
    rows = np.random.default_rng(1).choice(len(vectors), arguments.queries, replace=False)
    queries = vectors[np.sort(rows)].astype(np.float32)
    queries += 0.05 * np.random.default_rng(2).normal(size=queries.shape).astype(np.float32) / queries.shape[1] ** 0.5
    compared = checked_queries(queries, vectors.shape[1], Space("ip"))

    def search(number: int) -> Search:
        given = compared[number : number + 1]
        return Search(held, given, K, Space("ip"), range(len(vectors)), (), None)

    def by_sketch(number: int) -> SketchHits:
        return sketch_search(search(number), sketch)

    def by_scan(number: int) -> Hits:
        own = search(number)
        return own.decide(*own.candidates())

    found = [by_sketch(number) for number in range(len(queries))]
    from_disk = cold(held, sketch, folder, {"sketch": by_sketch, "scan": by_scan})
    for number, hits in enumerate(found):
        scan = by_scan(number)
        assert (hits.rows == scan.rows).all(), "not the rows of the scan"
        assert (hits.scores == scan.scores).all(), "not the scores of the scan"
        if number < arguments.checked:
            assert (hits.rows[0] == brute(vectors, compared[number])).all(), "not the rows of float64 brute force"
    calls = {"sketch": by_sketch, "embstore, scan": by_scan, **rivals_of(vectors, queries)}
    what = f"{len(vectors):,} x {vectors.shape[1]}, {name}"
    taken = {
        f"{len(queries)} in a row": in_a_row(calls, len(queries), arguments.repeats),
        "each after other work": in_turn(calls, len(queries), arguments.repeats),
    }
    lines, targets = [], []
    shares = [hits.nbytes / vectors.nbytes for hits in found]
    if name != "random":
        targets.append(Target(f"{what}: bytes read, of the layer", float(np.mean(shares)), 0.1, False))
    for how, seconds in taken.items():
        ours = seconds.pop("sketch")
        lines.append(Row(f"{what}: one query, k {K}, {how}", ours, seconds, clock="processor"))
        if name != "random":
            times_faster = seconds["embstore, scan"] / ours
            targets.append(Target(f"{what}: times faster than the scan, {how}", times_faster, 8, True))
    n_scanned = int(sum(hits.scanned.sum() for hits in found))
    print({key: f"{1e3 * value:.0f} ms cold" for key, value in from_disk.items()})
    print(f"{what}: bytes read {np.mean(shares):.4f} of the layer, at most {max(shares):.4f}; "
          f"{n_scanned} of {len(queries)} queries by the scan")  # fmt: skip
    figures = {"build_s": build_s, "bytes_share": shares, "queries_scanned": n_scanned, "queries": len(queries),
               "cold_s": from_disk}  # fmt: skip
    return lines, targets, figures


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("store", help="a finished store")
    parser.add_argument("--layer", type=int, help="the layer searched; the last if not given")
    parser.add_argument("--rows", type=int, nargs="*", default=[200_000], help="numbers of rows of hidden states")
    parser.add_argument("--wide", type=int, nargs="*", default=[], help="of two layers side by side")
    parser.add_argument("--random", type=int, nargs="*", default=[], help="of normal numbers")
    parser.add_argument("--queries", type=int, default=12)
    parser.add_argument("--checked", type=int, default=2, help="queries that are compared with brute force in float64")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tmp", help="folder for the vectors and their sketches")
    parser.add_argument("--folder", help="keep the vectors and their sketches here, and use those that are there")
    parser.add_argument("--only-make", action="store_true", help="make what is not in --folder yet, measure nothing")
    arguments = parser.parse_args()
    if arguments.only_make and not arguments.folder:
        parser.error("--only-make needs --folder")
    store = es.open(arguments.store)
    layer = store.layers[-1] if arguments.layer is None else arguments.layer

    def gathered(*layers: int) -> NDArray[np.float16]:
        return np.concatenate([store.gather(np.arange(store.n_rows), each) for each in layers], 1)

    size, middle = store.hidden_size, store.layers[len(store.layers) // 2]
    cases: list[tuple[str, tuple[int, int], Callable[[], NDArray[np.float16] | None]]] = [
        *(("hidden states", (n_rows, size), partial(gathered, layer)) for n_rows in arguments.rows),
        *(("two layers", (n_rows, 2 * size), partial(gathered, middle, layer)) for n_rows in arguments.wide),
        *(("random", (n_rows, size), lambda: None) for n_rows in arguments.random),
    ]
    rows, targets, figures = [], [], {}
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.tmp) as temporary:
        for name, shape, source in cases:
            folder = Path(arguments.folder or temporary, f"{shape[0]} {name}".replace(" ", "-"))
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / "about.json").exists():
                make(source(), shape, folder)
            if not arguments.only_make:
                lines, more, figures[f"{shape[0]} {name}"] = compare(name, shape, folder, arguments)
                rows += show_rows(lines)
                targets += more
            if not arguments.folder:
                shutil.rmtree(folder)
    if arguments.only_make:
        return
    print(targets_table(targets))
    result = {"benchmark": "sketch", "rows": rows, "sketches": figures}
    write_json(arguments.out, {**result, "targets": targets})


if __name__ == "__main__":
    main()
