"""Where the processor time of a gather goes: Python, the checks of the files, and the copy, by number of rows.

python benchmarks/gather_parts.py STORE

Each part is timed alone, in a loop and in turn with the others. Nothing can be below the copy, or `take` in memory.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import cycle
from statistics import median
from typing import Any

import numpy as np
from measure import table

import embstore as es
from embstore.kernels.compiled import gather_rows, partitions_of

ROUNDS, REPEATS = 15, 40


def parts_of(store: Any, layer: int, held: np.ndarray, count: int) -> dict[str, Callable[[], object]]:
    """The whole gather, and what it consists of."""
    drawn = np.random.default_rng(count)
    sets = cycle([drawn.integers(0, store.n_rows, count) for _ in range(16)])
    out = np.empty((count, store.hidden_size), store.vector_dtype)
    layout, reader = store._gatherer._layout, store._reader
    mapped, files = reader.layer("hidden_states", store.layers.index(layer), range(layout.n_partitions))
    committed = store._gatherer._committed
    source = mapped._bases, mapped._chunk_rows, mapped._row_nbytes
    return {
        "gather(out=)": lambda: store.gather(next(sets), layer, out=out),
        "gather, new array": lambda: store.gather(next(sets), layer),
        "the store is the one opened (stat)": lambda: reader.require_current(columns=False),
        "rows exist and are written": lambda: partitions_of(
            next(sets), layout.n_rows, layout.partition_rows, committed
        ),
        f"{len(files)} files are whole (fstat)": lambda: [file.size() for file in files],
        "copy from the maps": lambda: gather_rows(*source, next(sets), out, 0),
        "copy in memory, take(out=)": lambda: held.take(next(sets), 0, out, "clip"),
    }


def microseconds(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The median of each call in microseconds of the processor."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            call()
            began = time.thread_time_ns()
            for _ in range(REPEATS):
                call()
            taken[name].append((time.thread_time_ns() - began) / REPEATS / 1e3)
    return {name: median(each) for name, each in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", help="a store with float16 or float32 vectors")
    store = es.open(parser.parse_args().store)
    layer = store.layers[len(store.layers) // 2]
    held = np.array(store.gather(np.arange(store.n_rows), layer))
    found = {count: microseconds(parts_of(store, layer, held, count)) for count in (0, 50, 1_000)}
    rows = [(name, *(f"{found[count][name]:.1f}" for count in found)) for name in found[50]]
    print(table(["microseconds", *(f"{count:,} rows" for count in found)], rows))


if __name__ == "__main__":
    main()
