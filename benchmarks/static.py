"""Static vectors of every layer of a store, and vectors from files, scored on word benchmarks.

python benchmarks/static.py --store litbank.zarr --vectors glove.txt --benchmarks FOLDER
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from measure import machine, table, write_json

import embstore as es
from embstore.analysis.words import distinct_contexts
from embstore.vectors import (
    WordVectors,
    evaluate,
    on_shared_vocabulary,
    paper_table1,
    read_benchmarks,
    read_vectors,
    table1,
)


@dataclass(frozen=True)
class Policy:
    """Which words a system has: those that all share, or its own, as spelled or merged in lower case."""

    name: str
    shared: bool = False
    merged: bool = False
    oov: Literal["skip", "mean"] = "skip"


POLICIES = (
    Policy("shared vocabulary", shared=True),
    Policy("own words"),
    Policy("own words in lower case", merged=True),
    Policy("own words in lower case, the mean for the rest", merged=True, oov="mean"),
)


def run(arguments: argparse.Namespace, description: dict[str, Any]) -> None:
    benchmarks = read_benchmarks(arguments.benchmarks)
    store = es.open(arguments.store)
    systems, seconds = make_vectors(store, arguments)
    for path in arguments.vectors:
        systems[Path(path).stem] = read_vectors(path)
    print(summary(store, systems, seconds))
    paper = paper_table1()
    print(f"\nEthayarajh 2019, Table 1, as printed\n\n{table(paper.columns, paper.rows())}", flush=True)
    result = {
        **description,
        "store": describe(store),
        "systems": {name: {"words": len(table), "dimensions": table.dimensions} for name, table in systems.items()},
        "vectors_s": seconds,
        "benchmarks": [benchmark.name for benchmark in benchmarks],
    }
    scores: dict[str, Any] = {}
    merged = {name: on_shared_vocabulary({name: table})[name] for name, table in systems.items()}
    for policy in POLICIES:
        began = time.perf_counter()
        frame = evaluate(
            merged if policy.merged else systems,
            benchmarks,
            oov=policy.oov,
            shared_vocabulary=policy.shared,
            seed=arguments.seed,
        )
        scores[policy.name] = main_scores(frame)
        show(policy.name, frame, time.perf_counter() - began)
        write_json(arguments.out, {**result, "scores": scores})  # after each: the last takes longest


def make_vectors(store: es.Store, arguments: argparse.Namespace) -> tuple[dict[str, WordVectors], dict[str, float]]:
    """Return the vectors by method and layer, and the seconds that each method took for all layers."""
    systems: dict[str, WordVectors] = {}
    seconds = {}
    for method in arguments.methods:
        began = time.perf_counter()
        options = {"method": method, "min_contexts": arguments.min_contexts}
        layers = {layer: es.static_vectors(store, layer=layer, **options) for layer in store.layers}
        seconds[method] = time.perf_counter() - began
        systems |= {f"{method} {layer}": vectors for layer, vectors in layers.items()}
    return systems, seconds


def describe(store: es.Store) -> dict[str, Any]:
    contexts = distinct_contexts(store)
    words = list(store.index.words)
    return {
        "occurrences": store.n_rows,
        "sentences": len(store.index.texts),
        "layers": list(store.layers),
        "hidden_size": store.hidden_size,
        "dtype": store.dtype,
        "forms": len(words),
        "forms_in_lower_case": len({word.lower() for word in words}),
        "forms_of_one_context": int((contexts == 1).sum()),
        "forms_of_5_contexts": int((contexts >= 5).sum()),
        "median_contexts": float(np.median(contexts)),
    }


def summary(store: es.Store, systems: dict[str, WordVectors], seconds: dict[str, float]) -> str:
    properties = table(["store", ""], [(name, str(value)) for name, value in describe(store).items()])
    sizes = table(["system", "words", "dimensions"], [(n, len(v), v.dimensions) for n, v in systems.items()])
    times = ", ".join(f"{method} {taken:.1f} s" for method, taken in seconds.items())
    return f"{properties}\n\n{sizes}\n\nall layers of {times}"


def show(policy: str, frame: pl.DataFrame, seconds: float) -> None:
    """Print systems by benchmarks, with the coverage in percent below each group of systems that have the same."""
    values, coverage = table1(frame), table1(frame, of="coverage")
    rows: list[tuple[object, ...]] = []
    for number, (row, share) in enumerate(zip(values.rows(), coverage.rows(), strict=True)):
        rows.append((row[0], *("-" if value is None else f"{value:.3f}" for value in row[1:])))
        following = coverage.row(number + 1)[1:] if number + 1 < len(coverage) else None
        if share[1:] != following:
            rows.append(("coverage", *(f"{value:.0%}" for value in share[1:])))
    print(f"\n{policy} ({seconds:.0f} s)\n\n{table(values.columns, rows)}", flush=True)


def main_scores(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the scores of whole benchmarks, without those of sections and single relations."""
    return frame.filter(~pl.col("task").str.contains("/")).to_dicts()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", required=True, help="the store whose layers give vectors")
    parser.add_argument("--vectors", nargs="*", default=[], help="files of word vectors to compare them with")
    parser.add_argument("--benchmarks", required=True, help="folder of word benchmarks")
    parser.add_argument("--methods", nargs="+", default=["pc1", "mean"])
    parser.add_argument("--min-contexts", type=int, default=1, help="words in at least this many distinct sentences")
    parser.add_argument("--seed", type=int, default=0, help="of the clusterings")
    parser.add_argument("--out", help="JSON file to write")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    options = {key: getattr(arguments, key) for key in ("methods", "min_contexts", "seed")}
    run(arguments, {"benchmark": "static", "machine": machine(), "options": options})


if __name__ == "__main__":
    main()
