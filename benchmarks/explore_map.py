"""The explorer's map of a layer, next to scikit-learn's PCA of the same rows: time to the first picture's data.

python benchmarks/explore_map.py --store ewt.zarr
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from measure import machine, table, write_json
from sklearn.decomposition import PCA

import embstore as es
from embstore.analysis import project
from embstore.explorer import Explored, answer


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Time each layer: the query with nothing cached and again, the map alone, and the rival; interleaved."""
    store = es.open(arguments.store)
    rows = min(arguments.sample, store.n_rows)
    found: dict[int, dict[str, list[float]]] = {}
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as cache:
            os.environ["XDG_CACHE_HOME"] = cache
            explored = Explored(store)
            for layer in store.layers:
                params = {"layer": layer, "sample": arguments.sample}
                calls = {
                    "query": lambda one=explored, params=params: answer([one], "map", params),
                    "query again": lambda one=explored, params=params: answer([one], "map", params),
                    "map": lambda layer=layer: project(store, layer=layer, sample=arguments.sample, progress=False),
                    "scikit-learn": lambda layer=layer: rival(store, layer, rows),
                }
                for name, call in calls.items():
                    began = time.perf_counter()
                    call()
                    seconds = found.setdefault(layer, {}).setdefault(name, [])
                    seconds.append(time.perf_counter() - began)
    return {"rows": rows, "seconds": found}


def rival(store: es.Store, layer: int, rows: int) -> np.ndarray:
    """Two components of as many rows, read at once; scikit-learn chooses the solver."""
    vectors = store.gather(np.arange(store.n_rows)[:rows], layer).astype(np.float32)
    return PCA(2, random_state=0).fit_transform(vectors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", required=True)
    parser.add_argument("--sample", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    result = {**machine(), **run(arguments)}
    names = ["query", "query again", "map", "scikit-learn"]
    lines = [[layer, *(f"{median(times[name]):.2f}" for name in names)] for layer, times in result["seconds"].items()]
    print(table(["layer", *(f"{name}, s" for name in names)], lines))
    if arguments.out is not None:
        write_json(arguments.out, result)


if __name__ == "__main__":
    main()
