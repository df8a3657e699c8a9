"""Change of all words between two stores at all layers, next to a bare scan of the same bytes and to pairs, in one run.

python benchmarks/change.py --out benchmarks/results/change.json

The stores have random vectors and words drawn from Zipf's law. The scripts are the usual ones of the field, with the
vectors of each word in memory: `scipy.spatial.distance.cdist`, and unit vectors multiplied by numpy. They compute the
average pairwise distance alone, and of one layer: pairs of all layers would take as many times longer. Of words with
more than 100,000 pairs some rows are timed, and their time is scaled to all. Ours computes all eight measures that
are sums. All cases have one thread and are compared by processor time. The time of pairs grows with the square of the
rows and that of sums with the rows, so that their ratio grows with the rows.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy is loaded

import numpy as np
from measure import Row, Target, interleaved, parser_of, show_rows, targets_table, write_json
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

import embstore as es
from embstore.analysis.change import ChangeTests, measure_change
from embstore.analysis.words import rows_of_words
from embstore.bench.made import write_stores
from embstore.bench.measure import Spent, row_of, spent

METRICS = (
    *("apd", "apd_excess", "prt", "inverse_prt", "prt_centered"),
    *("selfsim_old", "selfsim_new", "selfsim_change"),
)
NO_TESTS = ChangeTests(permutations=0, resamples=0)
MIN_COUNT = 5
MOST_PAIRS = 10**5
SCIPY, NUMPY = "scipy cdist, word by word", "numpy product of unit vectors, word by word"


def write_store(path: Path, *, n_rows: int, layers: int, hidden_size: int, n_types: int, seed: int) -> es.Store:
    """Write random float16 vectors; the word of rank r has the probability of Zipf's law, 1/(r + 2.7) of their sum."""
    share = 1 / (np.arange(n_types) + 2.7)
    types = np.random.default_rng(seed).choice(n_types, n_rows, p=share / share.sum()).astype(np.int32)
    size: dict[str, int] = {"n_rows": n_rows, "n_layers": layers, "hidden_size": hidden_size, "n_types": n_types}
    write_stores([path], **size, seed=seed, types=types)
    return es.open(path)


class Bench:
    def __init__(self, stores: list[es.Store]) -> None:
        self.stores = stores
        self.layer = stores[0].layers[-1]
        counts = np.array([np.bincount(store.index.type, minlength=len(store.index.words)) for store in stores])
        self.types = np.flatnonzero((counts >= MIN_COUNT).all(0))
        self.n_pairs = int(counts[:, self.types].prod(0).sum())
        self.vectors = [self._by_word(store) for store in stores]

    def _by_word(self, store: es.Store) -> list[NDArray[np.float16]]:
        """The vectors of each word of a layer, in memory."""
        words = rows_of_words(store, self.types)
        return [store.gather(words.of(place), self.layer) for place in range(len(self.types))]

    def scan(self, _: int, *, layers: tuple[int, ...]) -> None:
        for store in self.stores:
            for layer in layers:
                for _, _ in store.scan(layer):
                    pass

    def ours(self, _: int = 0, *, layers: tuple[int, ...]) -> Any:
        return measure_change(
            *self.stores,
            layers=layers,
            metrics=METRICS,
            min_occurrences=MIN_COUNT,
            tests=NO_TESTS,
            threads=1,
            progress=False,
        )

    def tested(self, _: int) -> None:
        tests = ChangeTests(permutations=99, resamples=0, sample=100)
        options: dict[str, Any] = {"layers": self.layer, "metrics": METRICS, "min_occurrences": MIN_COUNT}
        measure_change(*self.stores, **options, tests=tests, threads=1, progress=False)

    def script(self, _: int, *, distance: Any) -> Spent:
        """The time of a script for all pairs: of words with more than `MOST_PAIRS`, some rows are timed and scaled."""
        seconds = processor = 0.0
        for old, new in zip(*self.vectors, strict=True):
            rows, others = (each.astype(np.float32) for each in (old[: max(1, MOST_PAIRS // len(new))], new))
            used = spent(partial(distance, rows, others)).scaled(len(old) / len(rows))
            seconds, processor = seconds + used.seconds, processor + used.processor
        return Spent(seconds, processor)

    def difference(self, distance: Any) -> float:
        """The largest difference of the average pairwise distance from a script, over words with few pairs."""
        ours = self.ours(layers=(self.layer,)).frame.filter(metric="apd")
        values = dict(ours.select("word", "value").iter_rows())
        found = 0.0
        for number, old, new in zip(self.types, *self.vectors, strict=True):
            if len(old) * len(new) <= MOST_PAIRS // 10:
                word = self.stores[0].index.words[int(number)]
                found = max(found, abs(values[word] - distance(old.astype(np.float32), new.astype(np.float32))))
        return found


def by_scipy(old: NDArray[np.float32], new: NDArray[np.float32]) -> float:
    return float(cdist(old, new, "cosine").mean())


def by_numpy(old: NDArray[np.float32], new: NDArray[np.float32]) -> float:
    units = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in (old, new)]
    return 1 - float((units[0] @ units[1].T).mean(dtype=np.float64))


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--rows", type=float, default=500_000, help="of each store")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden-size", type=int, default=384)
    parser.add_argument("--types", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--budget", type=float, default=60, help="seconds after which a slow case is not repeated")
    parser.add_argument("--tmp", help="folder for the stores")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.tmp) as folder:
        size = {"n_rows": int(arguments.rows), "layers": arguments.layers, "hidden_size": arguments.hidden_size}
        stores = [
            write_store(Path(folder) / f"{seed}.zarr", **size, n_types=arguments.types, seed=seed) for seed in range(2)
        ]
        bench = Bench(stores)
        every, one = stores[0].layers, (bench.layer,)
        print(f"{len(bench.types):,} words, {bench.n_pairs:,} pairs of a layer, {size}\n")
        times = interleaved(
            {
                "limit": partial(bench.scan, layers=every),
                "ours": partial(bench.ours, layers=every),
                "one layer": partial(bench.ours, layers=one),
                "tested": bench.tested,
                NUMPY: partial(bench.script, distance=by_numpy),
                SCIPY: partial(bench.script, distance=by_scipy),
            },
            repeats=arguments.repeats,
            budget=arguments.budget,
        )
        differ = {SCIPY: bench.difference(by_scipy), NUMPY: bench.difference(by_numpy)}
    options: dict[str, Any] = {"clock": "processor", "threads": 1}
    rows: list[Row] = [
        row_of(
            f"eight measures of {len(bench.types):,} words, {len(every)} layers",
            {"ours": times["ours"], "limit": times["limit"]},
            limit_name="bare scan of both stores",
            targets={"to_limit": 3},
            **options,
        ),
        row_of(
            "the same of one layer, scripts: average pairwise distance alone",
            {"ours": times["one layer"], NUMPY: times[NUMPY], SCIPY: times[SCIPY]},
            **options,
        ),
        row_of("one layer with 99 permutations of up to 100 occurrences", {"ours": times["tested"]}, **options),
    ]
    held = show_rows(rows)
    ours, scipy = rows[1].ours, rows[1].rivals[SCIPY] or 0.0
    targets = [
        Target("all layers, times a bare scan", rows[0].to_limit or 0.0, 3, False),
        Target("one layer, speed relative to scipy's cdist over the same words", scipy / ours, 1000, True),
    ]
    print("\n" + targets_table(targets))
    print("".join(f"largest difference from {name}: {value:.1e}\n" for name, value in differ.items()))
    found = {
        "benchmark": "change",
        "rows": held,
        "store": size,
        "words": {"count": len(bench.types), "pairs_of_a_layer": bench.n_pairs},
        "largest_differences": differ,
        "targets": targets,
    }
    write_json(arguments.out, found)


if __name__ == "__main__":
    main()
