"""Read a store: gathers, scans, opening, checking and shuffled batches, warm and cold, next to other tools.

    python benchmarks/read.py --rows 200000 --out benchmarks/results/read.json

Vectors are random: 7 layers of 384 features in float16. Every tool has a copy of one layer as it keeps it, and its rows
are compared with those in memory. Cold: the pages of the files are dropped before, and a row says so where some stayed.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import torch
from made import random_store
from measure import (
    Case,
    Row,
    evict,
    files_of,
    measure,
    parser_of,
    read_in_order,
    reading,
    resident_share,
    timed,
    write_result,
)  # fmt: skip
from rivals import gathers

import embstore as es

COUNTS = {10: 300, 50: 100, 1_000: 20, 100_000: 1}  # rows of a gather: how many are timed together
BATCH, FLOAT_BATCHES = 256, (64, 512)
LAYER = 3


def gather_rows(store: es.Store, path: Path, folder: Path, *, repeats: int) -> Iterator[Row]:
    """Random rows in random order, repeated rows included, others in every round."""
    held = store.vectors(layers=LAYER)
    readers: dict[str, Callable[..., Any]] = {"ours": lambda rows: store.vectors(rows, layers=LAYER)}
    readers |= gathers(path, LAYER, held, folder)
    for count, shared in COUNTS.items():
        if count > store.n_rows:
            continue
        out = np.empty((count, held.shape[1]), held.dtype)

        def case(read: Callable[..., Any], number: int, count: int = count, shared: int = shared) -> float:
            draw = np.random.default_rng((count, number + 1))
            sets = [draw.integers(0, len(held), count) for _ in range(shared)]
            assert number >= 0 or (np.asarray(read(sets[0])) == held[sets[0]]).all(), "wrong rows"
            return timed(lambda: [read(rows) is None for rows in sets]) / shared

        cases: dict[str, Case] = {name: partial(case, read) for name, read in readers.items()}
        cases["limit"] = partial(case, lambda rows, out=out: held.take(rows, 0, out, "clip"))
        yield measure(f"gather {count:,} rows", cases, repeats=repeats, limit="numpy take(out=), in memory", target=1.0)


def scan_layer(path: Path, number: int = 0) -> None:
    for _ in es.open(path).scan(LAYER):
        pass


def whole_rows(store: es.Store, path: Path, folder: Path, *, repeats: int) -> Iterator[Row]:
    """A scan of one layer, opening, checking every byte, and an epoch of shuffled batches."""
    held, npy = store.vectors(layers=LAYER), folder / "layer.npy"

    def mapped(number: int) -> None:
        stored = np.load(npy, mmap_mode="r")
        for first in range(0, len(stored), 4096):
            np.array(stored[first : first + 4096])

    yield measure("scan a layer", {"ours": partial(scan_layer, path), "np.load(mmap_mode), block by block": mapped,
                                   "limit": reading(held)}, repeats=repeats, limit="one read of memory")  # fmt: skip
    yield measure("open a store", {"ours": lambda number: es.open(path), "np.load(mmap_mode)":
                                   lambda number: np.load(npy, mmap_mode="r")}, repeats=repeats)  # fmt: skip
    data, nbytes = held.tobytes(), sum(file.stat().st_size for file in files_of(path))

    def checksums(number: int) -> float:
        return timed(lambda: google_crc32c.value(data)) * nbytes / len(data)

    yield measure("verify", {"ours": lambda number: es.verify(path), "limit": checksums}, repeats=repeats,
                  limit="crc32c of as many bytes in memory", target=1.7)  # fmt: skip

    def batches(number: int) -> None:
        for _ in store.select(layers=LAYER).to_torch(batch_size=BATCH, shuffle=True):
            pass

    def loop(number: int) -> None:
        stored, order = np.load(npy, mmap_mode="r"), np.random.default_rng(number + 1).permutation(len(held))
        for first in range(0, len(order), BATCH):
            torch.from_numpy(stored[order[first : first + BATCH]])

    what = f"{len(held):,} vectors in shuffled batches"
    yield measure(what, {"ours": batches, "a loop over np.load(mmap_mode)": loop}, repeats=repeats, target=1.25)
    for size in FLOAT_BATCHES:
        yield float_row(store, held, size, repeats=repeats)


def float_row(store: es.Store, held: np.ndarray[Any, Any], size: int, *, repeats: int) -> Row:
    """An epoch of shuffled batches in float32, next to a gather of an array in memory and `float`."""

    def batches(number: int) -> None:
        for _ in store.select(layers=LAYER).to_torch(batch_size=size, shuffle=True, dtype="float32"):
            pass

    def loop(number: int) -> None:
        order = np.random.default_rng(number + 1).permutation(len(held))
        for first in range(0, len(order), size):
            torch.from_numpy(held[order[first : first + size]]).float()

    what = f"{len(held):,} vectors in shuffled float32 batches of {size}"
    return measure(what, {"ours": batches, "gather and .float()": loop}, repeats=repeats, target=1.1)


def cold_row(path: Path, npy: Path, *, repeats: int) -> Row:
    """Scan a layer that is not in memory."""
    stayed = []

    def cold(file: Path, read: Callable[[], object], number: int) -> float:
        gc.collect()
        evict(file)
        stayed.append(resident_share(file))
        return timed(read)

    cases: dict[str, Case] = {
        "ours": partial(cold, path, partial(scan_layer, path)),
        "np.load(mmap_mode), copied": partial(cold, npy, lambda: np.array(np.load(npy, mmap_mode="r"))),
        "limit": partial(cold, npy, partial(read_in_order, npy)),
    }
    row = measure("scan a layer, cold", cases, repeats=repeats, limit="as many bytes read in order", target=1.3)
    if max(stayed) > 0.01:
        print(f"NOT cold: {max(stayed):.0%} of the pages stayed")
    return row


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.tmp) as name, es.config(progress=False):
        folder, path = Path(name), Path(name) / "random.zarr"
        random_store(path, rows=arguments.rows)
        np.save(folder / "layer.npy", np.array(es.open(path).vectors(layers=LAYER)))
        rows = [cold_row(path, folder / "layer.npy", repeats=max(3, arguments.repeats // 2))]
        store = es.open(path)
        rows += gather_rows(store, path, folder, repeats=arguments.repeats)
        rows += whole_rows(store, path, folder, repeats=arguments.repeats)
    write_result(arguments.out, rows, store={"rows": arguments.rows})


if __name__ == "__main__":
    main()
