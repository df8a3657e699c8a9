"""The benchmarks of a folder, known by the names of their folders or by what the files hold."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from embstore.errors import BenchmarkError
from embstore.vectors.evaluation.analogies import read_analogies
from embstore.vectors.evaluation.categories import read_categories
from embstore.vectors.evaluation.lexicon import Benchmark
from embstore.vectors.evaluation.lines import read_lines
from embstore.vectors.evaluation.relations import GOLD, PARADIGMS, read_relations
from embstore.vectors.evaluation.similarity import rating_of, read_similarity, separator_of

Kind = Literal["similarity", "analogy", "categorisation"]
FOLDERS: dict[str, Kind] = {
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


@dataclass(frozen=True)
class Found:
    """The benchmarks of a folder, and the files that are none that is known."""

    benchmarks: tuple[Benchmark, ...]
    ignored: tuple[Path, ...]


def find_benchmarks(folder: str | Path) -> Found:
    """Read every benchmark under a folder (or one file).

    Files in folders called similarity, analogy and categorisation are what these names say; other files are known by
    their lines; SemEval-2012 task 2 by the files of its packages. Hidden files, licences and read-me files are passed
    over; other unknown files are listed in `ignored`. Raises BenchmarkError for a file that breaks its format, and
    where there is no benchmark.
    """
    root = Path(folder)
    if not root.exists():
        raise BenchmarkError(f"no benchmarks at {root}: give a folder of them, or a file")
    files = [root] if root.is_file() else sorted(_files(root))
    packages = _relation_packages(files)
    found: list[Benchmark] = [read_relations(packages, name=RELATIONS_NAME)] if packages else []
    rest = [path for path in files if not any(path.is_relative_to(package) for package in packages)]
    names = _names(rest, root)
    ignored = []
    for path in rest:
        kind = _kind_of_folder(path, root) or _kind_of_content(path)
        if kind is None:
            ignored.append(path)
        else:
            found.append(READERS[kind](path, name=names[path]))
    if not found:
        others = f" ({len(ignored)} files that are none)" if ignored else ""
        raise BenchmarkError(f"{root}: no benchmark in it{others}: see the formats in the documentation")
    return Found(tuple(found), tuple(ignored))


def _files(root: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith(".") and name.split(".")[0].upper() not in DOCUMENTS:
                yield Path(parent, name)


def _relation_packages(files: list[Path]) -> list[Path]:
    """The folders of SemEval-2012 task 2: those beside each other that hold the gold ratings and the paradigms."""
    gold = [path for path in files if GOLD.fullmatch(path.name) and path.parent.name == "Testing"]
    paradigms = [path for path in files if path.name == PARADIGMS]
    if not gold or not paradigms:
        return []
    members = [*gold, *paradigms]
    common = Path(os.path.commonpath(members))
    return sorted({common / path.relative_to(common).parts[0] for path in members})


def _names(files: list[Path], root: Path) -> dict[Path, str]:
    """The stem of each file, with its folders where two have the same."""
    stems = [path.stem for path in files]
    return {
        path: path.stem if stems.count(path.stem) == 1 else path.relative_to(root).with_suffix("").as_posix()
        for path in files
    }


def _kind_of_folder(path: Path, root: Path) -> Kind | None:
    inside = path.parent.relative_to(root).parts if path != root else path.absolute().parent.parts[-1:]
    for name in reversed((root.absolute().name, *inside)):
        if (kind := FOLDERS.get(name.lower())) is not None:
            return kind
    return None


def _kind_of_content(path: Path) -> Kind | None:
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
    if all(len(row) >= 3 and rating_of(row[2]) is not None for row in rows[1:] or rows):
        return "similarity"
    widths = {len(row) for row in rows}
    if widths == {4}:
        return "categorisation" if separator == "\t" and _repeated(rows, 0) else "analogy"
    return "categorisation" if widths == {2} and separator == "\t" and _repeated(rows, 1) else None


def _repeated(rows: list[list[str]], column: int) -> bool:
    """Whether the values of a column stand twice or more on average."""
    return len({row[column] for row in rows}) * 2 <= len(rows)
