"""Shuffled torch batches side by side, in one run: embstore, the gather alone, and what users write with torch.

python benchmarks/dataset.py --rows 200000 --repeats 7 --out benchmarks/results/dataset.json
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from measure import Target, Times, interleaved, machine, paired_ratios, table, targets_table, write_json
from numpy.typing import NDArray
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

import embstore as es
from embstore.bench.made import write_stores

GATHER = "gather, a batch at a time"
EXACT, BLOCKS, IN_ORDER, FLOAT32 = (
    "TorchDataset",
    "TorchDataset, blocks",
    "TorchDataset, in order",
    "TorchDataset, float32",
)
TAKE, SAMPLED, COLLATED = "np.load(mmap_mode), take", "TensorDataset in RAM, BatchSampler", "TensorDataset in RAM"
SHARE = 0.8  # of the rate of the gather


@dataclass
class Bench:
    """A store, the layer that is read, and the same vectors in memory and as a .npy file."""

    store: es.Store
    layer: int
    batch_size: int
    mapped: NDArray[Any]
    vectors: torch.Tensor

    def cases(self) -> dict[str, Callable[[int], Iterable[object]]]:
        return {
            GATHER: self.gathered,
            EXACT: partial(self.ours, shuffle=True),
            BLOCKS: partial(self.ours, shuffle="blocks"),
            IN_ORDER: self.ours,
            FLOAT32: partial(self.ours, shuffle=True, dtype=torch.float32),
            TAKE: self.taken,
            SAMPLED: partial(self.loaded, sampled=True),
            COLLATED: partial(self.loaded, sampled=False),
        }

    def order(self, epoch: int) -> NDArray[np.int64]:
        return np.random.default_rng(epoch + 1000).permutation(self.store.n_rows)

    def gathered(self, epoch: int) -> Iterable[object]:
        order = self.order(epoch)
        for start in range(0, len(order), self.batch_size):
            yield self.store.gather(order[start : start + self.batch_size], self.layer)

    def ours(self, epoch: int, **options: Any) -> Iterable[object]:
        dataset = es.TorchDataset(self.store.select(layers=self.layer), batch_size=self.batch_size, **options)
        dataset.set_epoch(epoch + 1000)
        return dataset

    def taken(self, epoch: int) -> Iterable[object]:
        """The best that a user writes by hand: one permutation, and numpy's fastest way to index a memory map."""
        order = self.order(epoch)
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            out = np.empty((len(rows), self.mapped.shape[1]), self.mapped.dtype)
            yield torch.from_numpy(self.mapped.take(rows, 0, out, "clip"))

    def loaded(self, epoch: int, *, sampled: bool) -> Iterable[object]:
        dataset = TensorDataset(self.vectors, torch.arange(len(self.vectors)))
        if not sampled:
            return DataLoader(dataset, batch_size=self.batch_size, shuffle=True)
        batches = BatchSampler(RandomSampler(dataset), self.batch_size, drop_last=False)
        return DataLoader(dataset, sampler=batches, batch_size=None)


def measured(bench: Bench, *, repeats: int, budget: float) -> tuple[dict[str, Times], dict[str, Times]]:
    """Return the seconds of an epoch of each case, by the clock and of the processor."""
    processor = {name: Times() for name in bench.cases()}

    def epoch(name: str, case: Callable[[int], Iterable[object]], number: int) -> float:
        began, used = time.perf_counter(), time.process_time()
        for _ in case(number):
            pass
        if number >= 0:
            processor[name].seconds.append(time.process_time() - used)
        return time.perf_counter() - began

    cases = {name: partial(epoch, name, case) for name, case in bench.cases().items()}
    return interleaved(cases, repeats=repeats, budget=budget, warm=1), processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--hidden-size", type=int, default=384)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for each case")
    parser.add_argument("--tmp", default=None)
    parser.add_argument("--out", default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=options.tmp) as folder:
        path, plain = Path(folder, "store.zarr"), Path(folder, "vectors.npy")
        write_stores([path], n_rows=options.rows, n_layers=4, hidden_size=options.hidden_size, dtype="float16", seed=0)
        store = es.open(path)
        np.save(plain, store.gather(np.arange(store.n_rows), 2))
        mapped = np.load(plain, mmap_mode="r")
        bench = Bench(store, 2, options.batch_size, mapped, torch.from_numpy(np.array(mapped)))
        times, processor = measured(bench, repeats=options.repeats, budget=options.budget)
    rows, ratios = [], {}
    for name, case in processor.items():
        used = case.seconds
        ratios[name] = median(paired_ratios(Times(processor[GATHER].seconds[: len(used)]), case))
        rates = [options.rows / seconds / 1e6 for seconds in (median(used), times[name].median)]
        rows.append((name, *rates, ratios[name]))
    print(table(["an epoch", "M rows a processor second", "by the clock", "of the gather"], rows))
    targets = [Target(f"{name}, share of the gather", ratios[name], SHARE, True) for name in (EXACT, BLOCKS, IN_ORDER)]
    print(f"\n{targets_table(targets)}")
    result = {
        "benchmark": "dataset",
        "machine": machine(),
        "options": {key: value for key, value in vars(options).items() if key not in ("tmp", "out")},
        "cases": {
            name: {"clock": times[name].as_json(), "processor": processor[name].as_json(), "of_gather": ratios[name]}
            for name in times
        },
        "targets": [target.as_json() for target in targets],
    }
    write_json(options.out, result)


if __name__ == "__main__":
    main()
