"""Word vectors scored on all benchmarks of a folder, as one table, also in the layout of Table 1 of Ethayarajh 2019."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

import polars as pl

from embstore.arguments import checked
from embstore.corpus.lines import finite_number
from embstore.errors import (
    CorpusError,
    EmbstoreWarning,
    InvalidValueError,
    check_choice,
    check_whole,
    quoted,
)
from embstore.progress import Progress, reporting
from embstore.vectors.word_vectors import WordVectors
from embstore_studies.evaluation.analogies import read_analogies
from embstore_studies.evaluation.lexicon import Benchmark, Lexicon, Oov, on_shared_vocabulary, read_lines
from embstore_studies.evaluation.relations import GOLD, PARADIGMS, read_relations
from embstore_studies.evaluation.similarity import read_categories, read_similarity, separator_of

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
# The columns in the paper's order, and patterns of the names of the benchmarks in them.
TABLE1_COLUMNS = {
    "SimLex999": r"simlex",
    "MEN": r"\bmen\b",
    "WS353": r"\bws-?353(?!-(sim|rel))",
    "RW": r"\brw\b",
    "Google": r"google",
    "MSR": r"\bmsr\b",
    "SemEval2012(2)": r"semeval-?2012",
    "BLESS": r"\bbless\b",
    "AP": r"\bap\b",
}
MAIN_METRICS = {
    "similarity": "spearman",
    "analogy": "3CosAdd",
    "relations": "spearman",
    "categorisation": "purity",
}

PAPER_CITATION = (
    "Kawin Ethayarajh. 2019. How Contextual are Contextualized Word Representations? Comparing the Geometry of BERT, "
    "ELMo, and GPT-2 Embeddings. EMNLP-IJCNLP 2019, Table 1."
)
# The numbers as printed there, in the order of TABLE1_COLUMNS.
PAPER_TABLE_1: dict[str, tuple[float, ...]] = {
    "GloVe": (0.194, 0.216, 0.339, 0.127, 0.189, 0.312, 0.097, 0.390, 0.308),
    "FastText": (0.239, 0.239, 0.432, 0.176, 0.203, 0.289, 0.104, 0.375, 0.291),
    "ELMo, Layer 1": (0.276, 0.167, 0.317, 0.148, 0.170, 0.326, 0.114, 0.410, 0.308),
    "ELMo, Layer 2": (0.215, 0.151, 0.272, 0.133, 0.130, 0.268, 0.132, 0.395, 0.318),
    "BERT, Layer 1": (0.315, 0.200, 0.394, 0.208, 0.236, 0.389, 0.166, 0.365, 0.321),
    "BERT, Layer 2": (0.320, 0.166, 0.383, 0.188, 0.230, 0.385, 0.149, 0.365, 0.321),
    "BERT, Layer 11": (0.221, 0.076, 0.319, 0.135, 0.175, 0.290, 0.149, 0.370, 0.289),
    "BERT, Layer 12": (0.233, 0.082, 0.325, 0.144, 0.184, 0.307, 0.144, 0.360, 0.294),
    "GPT-2, Layer 1": (0.174, 0.012, 0.176, 0.183, 0.052, 0.081, 0.033, 0.220, 0.184),
    "GPT-2, Layer 2": (0.135, 0.036, 0.171, 0.180, 0.045, 0.062, 0.021, 0.245, 0.184),
    "GPT-2, Layer 11": (0.126, 0.034, 0.165, 0.182, 0.031, 0.038, 0.045, 0.270, 0.189),
    "GPT-2, Layer 12": (0.140, -0.009, 0.113, 0.163, 0.020, 0.021, 0.014, 0.225, 0.172),
}


@checked
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
    relations or categorisation; a section or relation follows after a slash. Raises CorpusError for files that break
    their format; files of no known format are named in an EmbstoreWarning.
    """
    check_choice("oov", oov, get_args(Oov))
    check_whole("seed", seed, 0)
    if not systems:
        raise InvalidValueError("no system to evaluate: give one or more by name")
    if isinstance(benchmarks, str | Path):
        benchmarks = read_benchmarks(benchmarks)
    if not all(hasattr(benchmark, "scores") for benchmark in benchmarks):
        raise InvalidValueError(f"benchmarks {quoted(benchmarks)} are not allowed: give a folder, or benchmarks")
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


@checked
def read_benchmarks(folder: str | Path) -> tuple[Benchmark, ...]:
    """Read all word benchmarks of a folder, or of one file.

    Files in folders named similarity, analogy or categorisation are of that kind; others are recognised by their lines,
    and SemEval-2012 task 2 by the files of its packages. Hidden files, licences and read-me files are skipped; files of
    no known kind are named in an EmbstoreWarning. Raises CorpusError for a file that breaks its format, and if
    there is no benchmark.
    """
    root = Path(folder)
    if not root.exists():
        raise CorpusError(f"no benchmarks at {root}: give an existing folder or file")
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
        raise CorpusError(f"{root}: no benchmark in it{others}: see the formats in the documentation")
    if ignored:
        names = ", ".join(str(path.relative_to(root)) for path in ignored[:5])
        more = f" and {len(ignored) - 5} more" if len(ignored) > 5 else ""
        count = "1 file is" if len(ignored) == 1 else f"{len(ignored)} files are"
        warnings.warn(f"{root}: {count} not of a known format: {names}{more}", EmbstoreWarning, stacklevel=3)
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
    except CorpusError:
        return None
    if not lines:
        return None
    if lines[0].startswith(":"):
        return "analogy"
    separator = separator_of(lines[0])
    rows = [line.split(separator) for line in lines]
    if all(len(row) >= 3 and finite_number(row[2]) is not None for row in rows[1:] or rows):
        return "similarity"
    widths = {len(row) for row in rows}
    if widths == {4}:
        return "categorisation" if separator == "\t" and _is_repeated(rows, 0) else "analogy"
    return "categorisation" if widths == {2} and separator == "\t" and _is_repeated(rows, 1) else None


def _is_repeated(rows: list[list[str]], column: int) -> bool:
    """Return whether the values of a column occur twice or more on average."""
    return len({row[column] for row in rows}) * 2 <= len(rows)


@checked
def table1(frame: pl.DataFrame, *, of: Literal["value", "count", "coverage"] = "value") -> pl.DataFrame:
    """Arrange the frame of `evaluate` as the paper's Table 1: one row a system, one column a benchmark.

    The paper's benchmarks come first, in its order and under its names, then the others. The scores are Spearman's
    rho (similarity, relations), the accuracy of 3CosAdd (analogies) and purity (categorisation).
    """
    main = frame.filter(
        pl.any_horizontal(
            (pl.col("task") == task) & (pl.col("metric") == metric) for task, metric in MAIN_METRICS.items()
        )
    )
    benchmarks = main["benchmark"].unique(maintain_order=True).to_list()
    column_of: dict[str, str] = {}
    for column, pattern in TABLE1_COLUMNS.items():
        matching = [name for name in benchmarks if name not in column_of and re.search(pattern, name, re.IGNORECASE)]
        if matching:
            column_of[matching[0]] = column
    column_of |= {name: name for name in benchmarks if name not in column_of}
    wide = main.with_columns(pl.col("benchmark").replace(column_of)).pivot("benchmark", index="system", values=of)
    return wide.select("system", *column_of.values())


def paper_table1() -> pl.DataFrame:
    """Return Table 1 as printed in the paper (Ethayarajh 2019), in the layout of `table1`."""
    rows = [(system, *values) for system, values in PAPER_TABLE_1.items()]
    return pl.DataFrame(rows, schema=["system", *TABLE1_COLUMNS], orient="row")
