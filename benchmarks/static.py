"""Static vectors of every layer of a store, held against word benchmarks beside vectors made elsewhere.

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
from embstore.analysis.static.vectors import static_vectors
from embstore.analysis.words import distinct_contexts
from embstore.vectors import WordVectors, read_word_vectors
from embstore.vectors.evaluation import evaluate, paper_table1, read_benchmarks, table1
from embstore.vectors.evaluation.lexicon import on_shared_vocabulary


@dataclass(frozen=True)
class Policy:
    """Which words a system has: those that all share, or its own, as they are spelled or one for each in lower case."""

    name: str
    shared: bool = False
    folded: bool = False
    oov: Literal["skip", "mean"] = "skip"


POLICIES = (
    Policy("shared vocabulary", shared=True),
    Policy("own words"),
    Policy("own words in lower case", folded=True),
    Policy("own words in lower case, the mean for the rest", folded=True, oov="mean"),
)


def run(arguments: argparse.Namespace, described_as: dict[str, Any]) -> None:
    benchmarks = read_benchmarks(arguments.benchmarks)
    store = es.open(arguments.store)
    systems, seconds = made(store, arguments)
    for path in arguments.vectors:
        systems[Path(path).stem] = read_word_vectors(path)
    print(about(store, systems, seconds))
    paper = paper_table1()
    print(f"\nEthayarajh 2019, Table 1, as printed\n\n{table(paper.columns, paper.rows())}", flush=True)
    result = {
        **described_as,
        "store": described(store),
        "systems": {name: {"words": len(held), "dimensions": held.dimensions} for name, held in systems.items()},
        "vectors_s": seconds,
        "benchmarks": [benchmark.name for benchmark in benchmarks],
    }
    scores: dict[str, Any] = {}
    folded = {name: on_shared_vocabulary({name: held})[name] for name, held in systems.items()}
    for policy in POLICIES:
        began = time.perf_counter()
        frame = evaluate(
            folded if policy.folded else systems,
            benchmarks,
            oov=policy.oov,
            shared_vocabulary=policy.shared,
            seed=arguments.seed,
        )
        scores[policy.name] = main_scores(frame)
        show(policy.name, frame, time.perf_counter() - began)
        write_json(arguments.out, {**result, "scores": scores})  # after each: the last takes longest


def made(store: es.Store, arguments: argparse.Namespace) -> tuple[dict[str, WordVectors], dict[str, float]]:
    """The vectors by method and layer, and the seconds that each method took for all layers."""
    systems: dict[str, WordVectors] = {}
    seconds = {}
    for method in arguments.methods:
        began = time.perf_counter()
        layers = static_vectors(store, layers=store.layers, method=method, min_contexts=arguments.min_contexts)
        seconds[method] = time.perf_counter() - began
        systems |= {f"{method} {layer}": vectors for layer, vectors in layers.items()}
    return systems, seconds


def described(store: es.Store) -> dict[str, Any]:
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


def about(store: es.Store, systems: dict[str, WordVectors], seconds: dict[str, float]) -> str:
    told = table(["store", ""], [(name, str(value)) for name, value in described(store).items()])
    sizes = table(["system", "words", "dimensions"], [(n, len(v), v.dimensions) for n, v in systems.items()])
    times = ", ".join(f"{method} {taken:.1f} s" for method, taken in seconds.items())
    return f"{told}\n\n{sizes}\n\nall layers of {times}"


def show(policy: str, frame: pl.DataFrame, seconds: float) -> None:
    """Print systems by benchmarks, the coverage in percent below each where it differs from that of the one above."""
    values, coverage = table1(frame), table1(frame, of="coverage")
    rows: list[tuple[object, ...]] = []
    for number, (row, share) in enumerate(zip(values.rows(), coverage.rows(), strict=True)):
        rows.append((row[0], *("-" if value is None else f"{value:.3f}" for value in row[1:])))
        following = coverage.row(number + 1)[1:] if number + 1 < len(coverage) else None
        if share[1:] != following:
            rows.append(("coverage", *(f"{value:.0%}" for value in share[1:])))
    print(f"\n{policy} ({seconds:.0f} s)\n\n{table(values.columns, rows)}", flush=True)


def main_scores(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Every score that is of a whole benchmark; those of sections and single relations are left out."""
    return frame.filter(~pl.col("task").str.contains("/")).to_dicts()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", required=True, help="the store whose layers give vectors")
    parser.add_argument("--vectors", nargs="*", default=[], help="files of word vectors to hold beside them")
    parser.add_argument("--benchmarks", required=True, help="folder of word benchmarks")
    parser.add_argument("--methods", nargs="+", default=["pc1", "mean"])
    parser.add_argument("--min-contexts", type=int, default=1, help="words in so many different sentences")
    parser.add_argument("--seed", type=int, default=0, help="of the clusterings")
    parser.add_argument("--out", help="JSON file to write")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    options = {key: getattr(arguments, key) for key in ("methods", "min_contexts", "seed")}
    run(arguments, {"benchmark": "static", "machine": machine(), "options": options})


if __name__ == "__main__":
    main()
