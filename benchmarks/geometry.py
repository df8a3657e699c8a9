"""Measure geometry: the cosines of all words and sentences of a layer, next to a script in torch and a bare scan.

    python benchmarks/geometry.py STORE --out benchmarks/results/geometry.json

The script has the layer in memory as one array and computes the same from sums; its values are compared.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from measure import measure, parser_of, write_result
from rivals import cosines_in_torch

import embstore as es

METRICS = ("selfsim", "intrasim", "anisotropy")


def mev_by_word(vectors: Any, order: Any, starts: Any, at_least: int = 5) -> list[float]:
    """The share of the variance on the first component, for each word of five occurrences or more, in float32."""
    found = []
    for rows in np.split(order, starts[1:]):
        if len(rows) >= at_least:
            own = torch.from_numpy(vectors[rows]).float()
            gram = own @ own.T if len(own) <= own.shape[1] else own.T @ own
            found.append(float(torch.linalg.eigvalsh(gram)[-1] / gram.trace()))
    return found


def first_share(vectors: Any, block_rows: int = 8192) -> float:
    """The share of the variance on the first component of all vectors: the baseline of MEV, in float32."""
    moment = torch.zeros(vectors.shape[1], vectors.shape[1])
    for first in range(0, len(vectors), block_rows):
        block = torch.from_numpy(vectors[first : first + block_rows]).float()
        moment += block.T @ block
    return float(torch.linalg.eigvalsh(moment)[-1] / moment.trace())


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("store", help="a store, such as UD-EWT's train part by MiniLM")
    arguments = parser.parse_args()
    store = es.open(arguments.store)
    layer = store.layers[-1]
    vectors = np.array(store.vectors(layers=layer))
    table = store.table()
    types, sentences = table["word"].to_physical().to_numpy(), table["sentence"].to_numpy()

    def scan(number: int) -> None:
        for _ in store.scan(layer):
            pass

    def ours(number: int, layers: int | None = layer) -> None:
        es.geometry(store, metrics=METRICS, layers=layers)

    with es.config(progress=False):
        found = es.geometry(store, metrics=["anisotropy"], layers=layer)["value"][0]
        assert abs(found - float(cosines_in_torch(vectors, types, sentences)[2])) < 1e-4, "another anisotropy"
        cases = {
            "ours": ours,
            "torch, normalize and index_add": lambda number: cosines_in_torch(vectors, types, sentences),
            "limit": scan,
        }
        rows = [measure("three cosines of a layer", cases, repeats=arguments.repeats, limit="a bare scan", target=1.0)]
        codes = np.argsort(types, kind="stable")
        starts = np.flatnonzero(np.diff(types[codes], prepend=-1))
        for name, baseline, sample in (("exact", "exact", vectors), ("1,000 rows", 1000, vectors[:1000])):

            def mev(number: int, baseline: Any = baseline) -> None:
                es.geometry(store, metrics=["mev"], layers=layer, baseline=baseline)

            def lines(number: int, sample: Any = sample) -> None:
                mev_by_word(vectors, codes, starts)
                first_share(sample)

            cases = {"ours": mev, "fifteen lines of torch": lines}
            rows.append(measure(f"MEV of a layer, baseline of {name}", cases, repeats=arguments.repeats, target=0.7))
        rows.append(measure("three cosines of all layers", {"ours": partial(ours, layers=None)},
                            repeats=arguments.repeats))  # fmt: skip
    write_result(arguments.out, rows, store={"rows": store.n_rows, "layers": len(store.layers)})


if __name__ == "__main__":
    main()
