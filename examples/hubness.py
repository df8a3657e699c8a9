"""Hubs: vectors that are among the nearest neighbours of very many others (Radovanovic et al. 2010).

N_k of a vector is the number of others that have it among their k nearest. Its skewness is near that of random
neighbours where there are no hubs; antihubs are nobody's neighbours. Subtracting the mean usually removes most hubs.

python examples/hubness.py STORE.zarr [LAYER] [K]
"""

from __future__ import annotations

import sys

import numpy as np

import embstore as es


def skewness(counts: np.ndarray) -> float:
    """The third standardized moment of counts."""
    deviations = counts - counts.mean()
    return float((deviations**3).mean() / np.square(deviations).mean() ** 1.5)


def main(path: str, layer: int = -1, k: int = 10, sample: int = 2000) -> dict[str, float]:
    store = es.open(path)
    n = store.n_rows
    queries = np.sort(np.random.default_rng(0).choice(n, min(sample, n), replace=False))
    found = {}
    for name, centered in (("as stored", False), ("centered", True)):
        near = es.neighbors(store, store.select(rows=queries), k=k, layers=layer, centered=centered)
        counts = np.bincount(near["occurrence"].to_numpy(), minlength=n)
        chance = k / (n - 1)
        variance = len(queries) * chance * (1 - chance)
        found[name] = skewness(counts)
        hubs = store.select(rows=np.argsort(-counts, kind="stable")[:3]).table()["word"].to_list()
        print(
            f"{name}: skewness of N_{k} {found[name]:.2f} ({(1 - 2 * chance) / variance**0.5:.2f} if random), "
            f"antihubs {(counts == 0).mean():.1%}, greatest hubs {', '.join(map(str, hubs))}"
        )
    return found


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], *map(int, sys.argv[2:4]))
