"""Systems of word vectors against benchmarks: one table."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import get_args

import polars as pl

from embstore.errors import IgnoredFilesWarning, InvalidValueError
from embstore.vectors import WordVectors
from embstore.vectors.evaluation.discovery import find_benchmarks
from embstore.vectors.evaluation.lexicon import Benchmark, Lexicon, Oov, on_shared_vocabulary

SCHEMA = {
    "system": pl.String,
    "benchmark": pl.String,
    "task": pl.String,
    "metric": pl.String,
    "value": pl.Float64,
    "count": pl.Int64,
    "coverage": pl.Float64,
}


def evaluate(
    systems: Mapping[str, WordVectors],
    benchmarks: str | Path | Sequence[Benchmark],
    *,
    oov: Oov = "skip",
    lowercase: bool = True,
    shared_vocabulary: bool = False,
    seed: int = 0,
    progress: Callable[[int, int | None], object] | None = None,
) -> pl.DataFrame:
    """Score word vectors on every benchmark of a folder.

    One row a system, benchmark, task and metric: `value` (null where it is undefined), `count` of the items scored,
    `coverage`, the share of the items of which every word has a vector. `task` is similarity, analogy, relations or
    categorisation; after a slash stands the section or relation of a score that is a part.

    `oov` is what becomes of items with a word that is not there: "skip" leaves them out, "mean" lets the mean vector
    stand in. With `lowercase` a word is looked up in lower case too. `shared_vocabulary` restricts all systems to the
    words that they have in common, which analogies then choose from. `seed` begins the clusterings.

    Raises BenchmarkError for files that break their format; files of no known format are named in an
    IgnoredFilesWarning.
    """
    if oov not in get_args(Oov):
        raise InvalidValueError(f"oov {oov!r} is not known: choose {' or '.join(get_args(Oov))}")
    if not systems:
        raise InvalidValueError("no system to evaluate: give one or more by name")
    if isinstance(benchmarks, str | Path):
        benchmarks = read_benchmarks(benchmarks)
    if shared_vocabulary:
        systems = on_shared_vocabulary(systems, lowercase=lowercase)
    total = len(systems) * len(benchmarks)
    rows: list[tuple[object, ...]] = []
    done = 0
    for system, vectors in systems.items():
        lexicon = Lexicon(vectors, lowercase=lowercase)
        for benchmark in benchmarks:
            for score in benchmark.scores(lexicon, oov=oov, seed=seed):
                values = (score.task, score.metric, score.value, score.count, score.coverage)
                rows.append((system, benchmark.name, *values))
            done += 1
            if progress is not None:
                progress(done, total)
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def read_benchmarks(folder: str | Path) -> tuple[Benchmark, ...]:
    """Read every benchmark of a folder (see find_benchmarks), with an IgnoredFilesWarning for unknown files."""
    found = find_benchmarks(folder)
    if found.ignored:
        names = ", ".join(str(path.relative_to(folder)) for path in found.ignored[:5])
        more = f" and {len(found.ignored) - 5} more" if len(found.ignored) > 5 else ""
        files = "1 file is" if len(found.ignored) == 1 else f"{len(found.ignored)} files are"
        warnings.warn(f"{folder}: {files} no known benchmark: {names}{more}", IgnoredFilesWarning, stacklevel=2)
    return found.benchmarks
