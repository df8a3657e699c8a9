"""How calls grow with the rows of a store, and with its distinct words.

    OMP_NUM_THREADS=1 python benchmarks/growth.py --out benchmarks/results/growth.json

Stores of random vectors of 64 features: 10^5 and 10^6 rows of 10^4 words, and 10^6 rows of 10^3 and of 10^6 words. Each
call takes turns over the two stores of a pair; an exponent of 0 means that it does not grow, 1 that it is proportional.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from machine import SENTENCE_WORDS, interleaved, shown
from measure import machine, parser_of

import embstore as es

FEATURES = 64
MOST = {"rows": 1.05, "types": 0.1}  # the largest exponents allowed
PAIRS = {"rows": ((10**5, 10**4), (10**6, 10**4)), "types": ((10**6, 10**3), (10**6, 10**6))}


def make(path: Path, *, rows: int, types: int) -> es.Store:
    """Write a store in which each word occurs as often as any other."""
    draw = np.random.default_rng(0)
    words = draw.permutation(rows) % types
    parts = np.split(words, range(SENTENCE_WORDS, rows, SENTENCE_WORDS))
    vectors = (draw.standard_normal((1, len(part), FEATURES), np.float32) for part in parts)
    return es.store.write_arrays(path, ([f"w{word}" for word in part] for part in parts), vectors, model="random")


def calls_of(store: es.Store) -> dict[str, Callable[[int], Any]]:
    """Return the public calls; each is given the number of its round, and asks for other rows in each."""

    def some(number: int, count: int) -> Any:
        return np.random.default_rng((number, count)).integers(0, store.n_rows, count)

    return {
        "open": lambda number: es.open(store.path),
        "table of 20 rows": lambda number: store.select(rows=some(number, 20)).table(),
        "table of a word": lambda number: store.select(words=f"w{number}").table(),
        "gather 1,000 rows": lambda number: store.vectors(some(number, 1000), layers=0),
        "scan": lambda number: deque(store.scan(0), 0),
        "neighbors of a row": lambda number: es.neighbors(store, store.select(rows=some(number, 1)), layers=0, k=10),
    }


def main() -> None:
    parser = parser_of(__doc__)
    arguments = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory(prefix="embstore-growth-", dir=arguments.tmp) as folder, es.config(progress=False):
        held: dict[tuple[int, int], es.Store] = {}
        for kind, pair in PAIRS.items():
            for rows, types in pair:
                if (rows, types) not in held:
                    held[rows, types] = make(Path(folder) / f"{rows}-{types}.zarr", rows=rows, types=types)
            small, large = (calls_of(held[size]) for size in pair)
            growth = math.log(pair[1][kind == "types"] / pair[0][kind == "types"])
            for what, call in small.items():
                seconds = interleaved(call, large[what], rounds=arguments.repeats)
                exponent = math.log(seconds[1] / seconds[0]) / growth
                bold = "  over the target" if exponent > MOST[kind] and what != "table of a word" else ""
                print(f"{kind:6} {what:20} {shown(seconds[0]):>8} {shown(seconds[1]):>8} {exponent:6.2f}{bold}")
                found.append({"grows": kind, "what": what, "seconds": seconds, "exponent": exponent})
    if arguments.out:
        Path(arguments.out).write_text(json.dumps({"machine": machine(), "growth": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
