"""How far edge probes move with their seeds and with the order of the sentences, and what three seeds say of it.

python benchmarks/spread.py STORE edge-probing/entities
"""

from __future__ import annotations

import argparse
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import embstore as es
from embstore.corpus import read_edges
from embstore.probes.edges.tasks import Sample

METRICS = ("center_of_gravity", "expected_layer")
SIZE, STUDENT = 3, 4.303  # of the sets of seeds; quantile .975 of Student's t for them


def fitted(store: es.Store, drawn: dict[str, Any], seeds: tuple[int, ...], order: int) -> pl.DataFrame:
    """Return the scores of probes on the same sentences; `seeds` of their weights, `order` of the sentences."""
    probe = es.EdgeProbe(seeds=seeds, seed=order).fit(store, drawn["train"], drawn["dev"])
    return probe.score({"test": drawn["test"]}, resamples=200).frame.filter(pl.col("metric").is_in(METRICS))


def coverage(values: np.ndarray, factor: float) -> float:
    """Return the share of other runs within `factor` deviations of the mean of SIZE runs, over all sets of SIZE."""
    inside = []
    for chosen in map(list, combinations(range(len(values)), SIZE)):
        own, others = values[chosen], np.delete(values, chosen)
        inside.append(np.abs(others - own.mean()) <= factor * own.std(ddof=1))
    return float(np.mean(inside))


def described(metric: str, by_seed: np.ndarray, by_order: np.ndarray) -> dict[str, Any]:
    """Describe runs of different seeds, and runs [orders, seeds] whose seeds share initial weights."""
    sets = [by_seed[list(chosen)] for chosen in combinations(range(len(by_seed)), SIZE)]
    means, spreads = np.array([(own.mean(), own.std(ddof=1)) for own in sets]).T
    half = STUDENT * spreads / np.sqrt(SIZE)
    return {
        "metric": metric,
        "runs": len(by_seed),
        "mean": by_seed.mean(),
        "deviation": by_seed.std(ddof=1),
        "5 % of the deviations of 3 seeds": np.quantile(spreads, 0.05),
        "95 % of the deviations of 3 seeds": np.quantile(spreads, 0.95),
        "orders alone": float(np.sqrt(by_order.var(0, ddof=1).mean())),
        "within 1 deviation of 3 seeds": coverage(by_seed, 1),
        "within 2": coverage(by_seed, 2),
        "within Student's t for a run": coverage(by_seed, STUDENT * np.sqrt(1 + 1 / SIZE)),
        "mean of all within the interval of 3": float(np.mean(np.abs(means - by_seed.mean()) <= half)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("task", type=Path, help="a folder with train.jsonl, dev.jsonl and test.jsonl")
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--orders", type=int, default=5)
    arguments = parser.parse_args()
    store, sample = es.open(arguments.store), Sample(arguments.sentences)
    files = {split: arguments.task / f"{split}.jsonl" for split in ("train", "dev", "test")}
    drawn = {split: sample.draw(list(read_edges(path))) for split, path in files.items()}
    by_seed = fitted(store, drawn, tuple(range(arguments.runs)), 0)
    by_order = [fitted(store, drawn, tuple(range(SIZE)), order) for order in range(arguments.orders)]
    rows = [
        described(
            metric,
            by_seed.filter(metric=metric)["value"].to_numpy(),
            np.array([frame.filter(metric=metric)["value"].to_numpy() for frame in by_order]),
        )
        for metric in METRICS
    ]
    for row in rows:
        print(
            "\n".join(
                f"{name:<40}{value if isinstance(value, str) else round(value, 4)}" for name, value in row.items()
            )
        )


if __name__ == "__main__":
    main()
