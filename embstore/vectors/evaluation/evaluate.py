"""Word vectors scored on all benchmarks of a folder, as one table."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

import polars as pl

from embstore.errors import BenchmarkError, IgnoredFilesWarning, InvalidValueError
from embstore.progress import Progress, reporting
from embstore.vectors.evaluation.analogies import read_analogies
from embstore.vectors.evaluation.categories import read_categories
from embstore.vectors.evaluation.lexicon import Benchmark, Lexicon, Oov, on_shared_vocabulary, read_lines
from embstore.vectors.evaluation.relations import GOLD, PARADIGMS, read_relations
from embstore.vectors.evaluation.similarity import parse_rating, read_similarity, separator_of
from embstore.vectors.word_vectors import WordVectors

SCHEMA = {
    "system": pl.String,
    "benchmark": pl.String,
    "task": pl.String,
    "metric": pl.String,
    "value": pl.Float64,
    "count": pl.Int64,
    "coverage": pl.Float64,
}
Kind = Literal["similarity", "analogy", "categorisation"]
KIND_OF_FOLDER: dict[str, Kind] = {
    "similarity": "similarity",
    "relatedness": "similarity",
    "analogy": "analogy",
    "analogies": "analogy",
    "categorisation": "categorisation",
    "categorization": "categorisation",
}
READERS: dict[Kind, Callable[..., Benchmark]] = {
    "similarity": read_similarity,
    "analogy": read_analogies,
    "categorisation": read_categories,
}
DOCUMENTS = frozenset({"LICENSE", "LICENCE", "README", "COPYING", "CITATION"})
RELATIONS_NAME = "semeval2012-task2"
SAMPLE_LINES = 200


def evaluate(
    systems: Mapping[str, WordVectors],
    benchmarks: str | Path | Sequence[Benchmark],
    *,
    oov: Oov = "skip",
    lowercase: bool = True,
    shared_vocabulary: bool = False,
    seed: int = 0,
    progress: Progress = None,
) -> pl.DataFrame:
    """Score word vectors on word benchmarks: similarity, analogies, relations and categorisation.

    `systems`: word vectors by name. `benchmarks`: a folder of them (see `read_benchmarks`) or benchmarks in memory.
    `oov`: what happens to items with an unknown word: "skip" leaves them out, "mean" uses the mean vector. `lowercase`:
    look words up in lower case too. `shared_vocabulary`: restrict all systems to the words that they have in common,
    which are then also the candidates of analogies. `seed`: of the clusterings.

    Returns one row for each system, benchmark, task and metric: `value` (null if undefined), `count` of the items
    scored, and `coverage`, the share of items of which every word has a vector. `task` is similarity, analogy,
    relations or categorisation; a section or relation follows after a slash. Raises BenchmarkError for files that break
    their format; files of no known format are named in an IgnoredFilesWarning.
    """
    if oov not in get_args(Oov):
        raise InvalidValueError(f"oov {oov!r} is not known: choose {' or '.join(get_args(Oov))}")
    if not systems:
        raise InvalidValueError("no system to evaluate: give one or more by name")
    if isinstance(benchmarks, str | Path):
        benchmarks = read_benchmarks(benchmarks)
    if shared_vocabulary:
        systems = on_shared_vocabulary(systems, lowercase=lowercase)
    rows: list[tuple[object, ...]] = []
    total, done = len(systems) * len(benchmarks), 0
    with reporting(progress, total=total, unit="benchmarks", label="evaluate") as report:
        for system, vectors in systems.items():
            lexicon = Lexicon(vectors, lowercase=lowercase)
            for benchmark in benchmarks:
                for score in benchmark.scores(lexicon, oov=oov, seed=seed):
                    values = (score.task, score.metric, score.value, score.count, score.coverage)
                    rows.append((system, benchmark.name, *values))
                done += 1
                report(done)
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def read_benchmarks(folder: str | Path) -> tuple[Benchmark, ...]:
    """Read all word benchmarks of a folder, or of one file.

    Files in folders named similarity, analogy or categorisation are of that kind; others are recognised by their lines,
    and SemEval-2012 task 2 by the files of its packages. Hidden files, licences and read-me files are skipped; files of
    no known kind are named in an IgnoredFilesWarning. Raises BenchmarkError for a file that breaks its format, and if
    there is no benchmark.
    """
    root = Path(folder)
    if not root.exists():
        raise BenchmarkError(f"no benchmarks at {root}: give an existing folder or file")
    files = [root] if root.is_file() else sorted(_iter_files(root))
    packages = _relation_packages(files)
    benchmarks: list[Benchmark] = [read_relations(packages, name=RELATIONS_NAME)] if packages else []
    files = [path for path in files if not any(path.is_relative_to(package) for package in packages)]
    stems = [path.stem for path in files]
    ignored = []
    for path in files:
        kind = _kind_by_folder(path, root) or _kind_by_lines(path)
        if kind is None:
            ignored.append(path)
            continue
        is_unique = stems.count(path.stem) == 1
        name = path.stem if is_unique else path.relative_to(root).with_suffix("").as_posix()
        benchmarks.append(READERS[kind](path, name=name))
    if not benchmarks:
        others = f" ({len(ignored)} files of other formats)" if ignored else ""
        raise BenchmarkError(f"{root}: no benchmark in it{others}: see the formats in the documentation")
    if ignored:
        names = ", ".join(str(path.relative_to(root)) for path in ignored[:5])
        more = f" and {len(ignored) - 5} more" if len(ignored) > 5 else ""
        count = "1 file is" if len(ignored) == 1 else f"{len(ignored)} files are"
        warnings.warn(f"{root}: {count} not of a known format: {names}{more}", IgnoredFilesWarning, stacklevel=2)
    return tuple(benchmarks)


def _iter_files(root: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith(".") and name.split(".")[0].upper() not in DOCUMENTS:
                yield Path(parent, name)


def _relation_packages(files: list[Path]) -> list[Path]:
    """Return the folders of SemEval-2012 task 2, those that hold the gold ratings and the paradigms."""
    gold = [path for path in files if GOLD.fullmatch(path.name) and path.parent.name == "Testing"]
    paradigms = [path for path in files if path.name == PARADIGMS]
    if not gold or not paradigms:
        return []
    members = [*gold, *paradigms]
    common = Path(os.path.commonpath(members))
    return sorted({common / path.relative_to(common).parts[0] for path in members})


def _kind_by_folder(path: Path, root: Path) -> Kind | None:
    inside = path.parent.relative_to(root).parts if path != root else path.absolute().parent.parts[-1:]
    names = reversed((root.absolute().name, *inside))
    return next((KIND_OF_FOLDER[name.lower()] for name in names if name.lower() in KIND_OF_FOLDER), None)


def _kind_by_lines(path: Path) -> Kind | None:
    try:
        lines = [line for _, line in read_lines(path)[:SAMPLE_LINES]]
    except BenchmarkError:
        return None
    if not lines:
        return None
    if lines[0].startswith(":"):
        return "analogy"
    separator = separator_of(lines[0])
    rows = [line.split(separator) for line in lines]
    if all(len(row) >= 3 and parse_rating(row[2]) is not None for row in rows[1:] or rows):
        return "similarity"
    widths = {len(row) for row in rows}
    if widths == {4}:
        return "categorisation" if separator == "\t" and _is_repeated(rows, 0) else "analogy"
    return "categorisation" if widths == {2} and separator == "\t" and _is_repeated(rows, 1) else None


def _is_repeated(rows: list[list[str]], column: int) -> bool:
    """Return whether the values of a column occur twice or more on average."""
    return len({row[column] for row in rows}) * 2 <= len(rows)
