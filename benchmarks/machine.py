"""Measure how fast this machine reads, scans, searches and computes geometry, next to its own limits.

    python benchmarks/machine.py --quick

Each line has the time of the public call, the least that the machine needs for the same result (reading the bytes once
from memory, or multiplying matrices), and their ratio: medians of rounds that take turns, so that other work on the
machine disturbs both. Temporary files, .5 GB at most, go where TMPDIR says.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

import embstore as es

SENTENCE_WORDS = 20  # the mean length of a sentence in novels
N_TYPES = 30_000  # as many as a corpus of some hundred thousand words has
SIDE = 1024  # of the square matrices whose product is timed: large enough for the full rate, small enough for a cache
N_GATHERED = 1_000
SHARED = 8  # repetitions of a call of microseconds that are timed together


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smaller store and fewer rounds: half a minute")
    rows, rounds = (50_000, 5) if parser.parse_args().quick else (200_000, 9)
    with tempfile.TemporaryDirectory(prefix="embstore-machine-") as folder, es.config(progress=False):
        store = random_store(Path(folder) / "random.zarr", n_rows=rows)
        measured = [*store_measurements(store, rounds=rounds)]
    print(f"{rows:,} rows of 384 float16 features in 3 layers; kernels: {es.store.compiled_name() or 'numpy'}")
    for operation, seconds, limit, least in measured:
        print(f"{operation:22} {shown(seconds):>8}   {shown(least):>8} {limit:32} {seconds / least:5.2f}")


def random_store(path: Path, *, n_rows: int) -> es.Store:
    """Write normal vectors of 384 features in 3 layers, whose words have the frequencies of a text."""
    draw = np.random.default_rng(0)
    types = np.minimum(draw.zipf(1.1, n_rows) - 1, N_TYPES - 1)
    parts = np.split(types, range(SENTENCE_WORDS, n_rows, SENTENCE_WORDS))
    sentences = ([f"w{word}" for word in part] for part in parts)
    vectors = (draw.standard_normal((3, len(part), 384), np.float32) for part in parts)
    return es.store.write_arrays(path, sentences, vectors, model="random")


def store_measurements(store: es.Store, *, rounds: int) -> Iterator[tuple[str, float, str, float]]:
    """Yield each operation that reads a store: median seconds of the public call, and of the least work for the same.

    All pages of the store are in memory after the first round, which is not counted.
    """
    layer = 1
    held = store.vectors(layers=layer)
    draw = np.random.default_rng(1)
    rows = draw.integers(0, store.n_rows, (rounds + 1, SHARED, N_GATHERED))
    queries = held[draw.integers(0, len(held), 32)].astype(np.float32)

    def gather(number: int) -> None:
        for some in rows[number]:
            store.vectors(rows=some, layers=layer)

    def take(number: int) -> None:
        for some in rows[number]:
            held.take(some, 0)

    def search(asked: NDArray[np.float32], number: int) -> None:
        es.neighbors(store, asked, k=10, metric="ip", layers=layer)

    size = float(store.n_rows * store.hidden_size)
    memory, product = "one read of the layer in memory", "float32 products of matrices"
    metrics = ["selfsim", "intrasim", "anisotropy"]

    def read(number: int) -> None:
        held.view(np.int64).sum()

    cases: list[tuple[str, Callable[[int], object], str, Callable[[int], object], float]] = [
        (f"gather {N_GATHERED:,} rows", gather, "numpy take, in memory", take, SHARED),
        ("scan a layer", lambda number: deque(store.scan(layer), 0), memory, read, 1),
        ("search, 1 query", partial(search, queries[:1]), memory, read, 1),
        ("search, 32 queries", partial(search, queries), product, multiplying(64.0 * size), 1),
        ("geometry, 3 measures", lambda number: es.geometry(store, metrics=metrics, layers=layer), memory, read, 1),
    ]
    for operation, ours, limit, least, share in cases:
        seconds = interleaved(ours, least, rounds=rounds)
        yield operation, seconds[0] / share, limit, seconds[1] / share


def multiplying(flops: float) -> Callable[[int], float]:
    """Return a call that gives the seconds in which this machine multiplies float32 matrices with as many flops."""
    import torch

    one = torch.randn(SIDE, SIDE)
    same, out = one.numpy(), torch.empty_like(one)
    calls = partial(torch.mm, one, one, out=out), partial(np.matmul, same, same, out=out.numpy())

    def seconds(call: Callable[[], object]) -> float:
        began = time.perf_counter()
        call()
        return time.perf_counter() - began

    def measure(number: int) -> float:
        return min(map(seconds, calls)) * flops / (2.0 * SIDE**3)

    return measure


def interleaved(*calls: Callable[[int], object], rounds: int) -> list[float]:
    """Return the median seconds of each call, or of what it returns, over rounds that take turns, after a warm-up."""
    seconds: list[list[float]] = [[] for _ in calls]
    for number in range(rounds + 1):
        for call, times in zip(calls, seconds, strict=True):
            began = time.perf_counter()
            result = call(number)
            times.append(result if isinstance(result, float) else time.perf_counter() - began)
    return [median(times[1:]) for times in seconds]


def shown(seconds: float) -> str:
    """Format a time, such as 12.3 ms."""
    unit, size = next(((unit, size) for unit, size in (("s", 1.0), ("ms", 1e-3)) if seconds >= size), ("µs", 1e-6))
    return f"{seconds / size:.3g} {unit}"


if __name__ == "__main__":
    main()
