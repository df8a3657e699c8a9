"""Word vectors scored on word benchmarks, as in Table 1 of Ethayarajh 2019: the items whose words all have a vector."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.errors import CorpusError, InvalidValueError, quoted
from embstore.vectors import WordVectors

SCHEMA = {
    "system": pl.String,
    "benchmark": pl.String,
    "task": pl.String,
    "metric": pl.String,
    "value": pl.Float64,
    "count": pl.Int64,
    "coverage": pl.Float64,
}
METRICS = {"similarity": "spearman", "relations": "spearman", "analogy": "3CosAdd", "categorisation": "purity"}
BLOCK = 2**20  # cosines of one product, which stay in the cache
PARADIGMS = "subcategories-paradigms.txt"  # of SemEval-2012 task 2
GOLD = re.compile(r"GoldRatings-(\d+[a-z])\.txt")
PAIR = re.compile(
    r"([^\s,.:]+):([^\s,.:]+)"
)  # the file separates pairs by commas, twice by full stops, once by a space
RATED = re.compile(r'\s*(-?[\d.]+)\s+"([^":]+):([^":]+)"\s*')
# The columns of Table 1 in the paper's order, and patterns of the names of the benchmarks in them.
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
Words = tuple[str, ...]


@dataclass(frozen=True)
class Benchmark:
    """Items of one kind: pairs and their ratings, questions of four words, or words and their classes.

    `kind`: similarity, relations, analogy or categorisation; `gold`: ratings or classes. Relations are rated pairs by
    relation, whose paradigm pairs are in `paradigms`.
    """

    name: str
    kind: str
    items: tuple[Words, ...]
    gold: tuple[Any, ...] = ()
    relation: tuple[str, ...] = ()
    paradigms: Mapping[str, tuple[Words, ...]] | None = None


class Lexicon:
    """Unit vectors that benchmarks look up by word: as written, with "_" for its spaces, then both in lower case."""

    def __init__(self, vectors: WordVectors) -> None:
        self.vectors = vectors

    @cached_property
    def unit(self) -> NDArray[np.float32]:
        return unit_rows(self.vectors.vectors)

    def rows(self, items: Sequence[Words]) -> NDArray[np.int64]:
        """Return the rows of items of equal length, -1 for words without a vector: int64 [items, words]."""
        spelled = [(w, w.replace(" ", "_"), w.lower(), w.lower().replace(" ", "_")) for item in items for w in item]
        rows = [next((row for s in forms if (row := self.vectors.row_of(s)) is not None), -1) for forms in spelled]
        return np.array(rows, np.int64).reshape(len(items), -1)


def unit_rows(vectors: NDArray[Any]) -> NDArray[Any]:
    """Scale vectors to unit length; zeros stay zeros."""
    lengths = np.sqrt(np.square(vectors).sum(-1, keepdims=True))
    return vectors / np.where(lengths > 0, lengths, 1)


def evaluate(
    systems: Mapping[str, WordVectors], benchmarks: Sequence[Benchmark], *, shared: bool = False, seed: int = 0
) -> pl.DataFrame:
    """Score word vectors on word benchmarks.

    Parameters
    ----------
    systems
        Word vectors by name.
    benchmarks
        What `read_benchmarks` returns.
    shared
        Restrict all systems to the words that they have in common, which are then also the candidates of analogies.
    seed
        Of the clusterings.

    Returns
    -------
    DataFrame
        `system, benchmark, task, metric, value` (null if undefined), `count` of the items scored, and `coverage`, the
        share of items of which every word has a vector. Similarity and relations have Spearman's rho, the latter as
        the mean over relations; analogies the accuracy of 3CosAdd; categories the purity of a k-means clustering.
    """
    if shared:
        systems = on_shared_vocabulary(systems)
    rows = []
    for system, vectors in systems.items():
        lexicon = Lexicon(vectors)
        for benchmark in benchmarks:
            known = lexicon.rows(benchmark.items)
            covered = np.all(known >= 0, axis=1)
            value = _score(benchmark, lexicon, known, covered, seed) if covered.any() else None
            about = (system, benchmark.name, benchmark.kind, METRICS[benchmark.kind])
            rows.append((*about, value, int(covered.sum()), float(covered.mean())))
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def _score(benchmark: Benchmark, lexicon: Lexicon, rows: NDArray[np.int64], covered: Any, seed: int) -> float | None:
    unit, gold = lexicon.unit, np.array(benchmark.gold)
    if benchmark.kind == "similarity":
        left, right = unit[rows[covered]].transpose(1, 0, 2)
        cosines = np.einsum("nd,nd->n", left, right, dtype=np.float64)
        cosines[rows[covered, 0] == rows[covered, 1]] = 1  # rounding must not rank the pairs of a word with itself
        return spearman(cosines, gold[covered])
    if benchmark.kind == "relations":
        values = []
        for relation, paradigms in (benchmark.paradigms or {}).items():
            paradigm_rows = lexicon.rows(paradigms)
            paradigm_rows = paradigm_rows[(paradigm_rows >= 0).all(1)]
            own = covered & (np.array(benchmark.relation) == relation)
            if len(paradigm_rows) and own.any():
                offsets, examples = (unit[each[:, 1]] - unit[each[:, 0]] for each in (rows[own], paradigm_rows))
                cosines = unit_rows(offsets).astype(np.float64) @ unit_rows(examples.mean(0)).astype(np.float64)
                values.append(spearman(cosines, gold[own]))
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else None
    if benchmark.kind == "analogy":
        return float(np.mean(solve(unit, rows[covered, :3]) == rows[covered, 3]))
    from sklearn.cluster import KMeans

    classes = np.unique(gold[covered], return_inverse=True)[1]
    clusters = KMeans(int(classes.max()) + 1, n_init=10, random_state=seed).fit_predict(unit[rows[covered, 0]])
    table = np.zeros((clusters.max() + 1, classes.max() + 1), np.int64)
    np.add.at(table, (clusters, classes), 1)
    return float(table.max(1).sum() / len(clusters))


def solve(unit: NDArray[np.float32], questions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows d that answer questions [n, 3] of rows a, b, c: of greatest cos(d, b) - cos(d, a) + cos(d, c)."""
    answers = []
    for start in range(0, len(questions), step := max(1, BLOCK // len(unit))):
        a, b, c = questions[start : start + step].T
        scores = (unit[b] - unit[a] + unit[c]) @ unit.T
        for column in (a, b, c):  # none of them is an answer
            scores[np.arange(len(scores)), column] = -np.inf
        answers.append(scores.argmax(1))
    return np.concatenate(answers)


def spearman(left: NDArray[np.float64], right: NDArray[np.float64]) -> float | None:
    """Return Spearman's rho of two lists; None if one side has fewer than two distinct values."""
    ranks = np.stack([pl.Series(np.asarray(side, np.float64)).rank("average").to_numpy() for side in (left, right)])
    if ranks.shape[1] < 2 or not np.ptp(ranks, axis=1).all():
        return None
    return float(np.corrcoef(ranks)[0, 1])


def on_shared_vocabulary(systems: Mapping[str, WordVectors]) -> dict[str, WordVectors]:
    """Restrict each system to the words that all have in lower case, in the order of the first.

    Each gives the vector of the lower-case spelling, else of the first spelling that it has.
    """
    rows_of: dict[str, dict[str, int]] = {}
    for name, vectors in systems.items():
        rows: dict[str, int] = {}
        for row, word in enumerate(vectors.words):
            if word.lower() not in rows or word == word.lower():
                rows[word.lower()] = row
        rows_of[name] = rows
    first, *others = rows_of.values()
    words = tuple(word for word in first if all(word in other for other in others))
    if not words:
        raise InvalidValueError(f"no word is in all of {', '.join(systems)}: evaluate them one by one")
    return {
        name: WordVectors(words, vectors.vectors[[rows_of[name][word] for word in words]])
        for name, vectors in systems.items()
    }


def read_benchmarks(folder: str | Path) -> tuple[Benchmark, ...]:
    """Read all word benchmarks of a folder.

    Files in folders whose names begin with similarity or relatedness have lines of two words and their rating; analogy:
    of four words; categori: of a word and its class, or the four fields of BLESS. The packages of SemEval-2012 task 2
    are recognised by their files. Raises CorpusError, with the line.
    """
    root = Path(folder)
    if not root.is_dir():
        raise CorpusError(f"no benchmarks at {root}: give an existing folder")
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.name.startswith("."))
    gold = [path for path in files if GOLD.fullmatch(path.name) and path.parent.name == "Testing"]
    benchmarks = [read_relations(gold, next(path for path in files if path.name == PARADIGMS))] if gold else []
    for path in files:
        inside = (root.absolute().name, *path.parent.relative_to(root).parts)
        for prefix, read in READERS.items():
            if any(name.lower().startswith(prefix) for name in inside) and path.suffix in (".txt", ".tsv", ".csv"):
                benchmarks.append(read(path))
    if not benchmarks:
        names = ", ".join(READERS)
        raise CorpusError(f"{root}: no benchmark in it: give folders whose names begin with {names}")
    return tuple(benchmarks)


def _fields(path: Path) -> list[tuple[str, list[str]]]:
    """Return the lines that are not empty with where they are, split at tabs, commas or white space."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CorpusError(f"{path}: cannot be read: {error}") from None
    first = lines[0] if lines else ""
    separator = "\t" if "\t" in first else "," if first.count(",") >= 2 else None
    named = [(f"{path}:{number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    return [(where, [field.strip() for field in line.split(separator)]) for where, line in named]


def read_similarity(path: Path) -> Benchmark:
    pairs, ratings = [], []
    for number, (where, fields) in enumerate(_fields(path)):
        try:
            ratings.append(float(fields[2]))
        except (ValueError, IndexError):
            if number == 0:  # a heading
                continue
            raise CorpusError(f"{where}: {quoted(' '.join(fields))}: give two words and their rating") from None
        pairs.append((fields[0], fields[1]))
    if not pairs or not np.isfinite(ratings).all():
        raise CorpusError(f"{path}: no pair, or a rating that is not finite: give two words and their rating a line")
    return Benchmark(path.stem, "similarity", tuple(pairs), tuple(ratings))


def read_analogies(path: Path) -> Benchmark:
    questions = []
    for where, fields in _fields(path):
        if not fields[0].startswith(":"):  # the name of a section
            if len(fields) != 4:
                raise CorpusError(f"{where}: {quoted(' '.join(fields))}: give four words")
            questions.append(tuple(fields))
    if not questions:
        raise CorpusError(f"{path}: no question in it: give four words a line")
    return Benchmark(path.stem, "analogy", tuple(questions))


def read_categories(path: Path) -> Benchmark:
    """Read `word class`, or lines of BLESS (`word-n class relation relatum`), where each word counts once."""
    classes: dict[str, str] = {}
    for where, fields in _fields(path):
        if len(fields) not in (2, 4):
            raise CorpusError(f"{where}: {quoted(' '.join(fields))}: give a word and its class")
        word = re.sub(r"-[njv]$", "", fields[0]) if len(fields) == 4 else fields[0]
        if classes.setdefault(word, fields[1]) != fields[1]:
            raise CorpusError(f"{where}: {word!r} is of the classes {classes[word]!r} and {fields[1]!r}: give one")
    if not classes:
        raise CorpusError(f"{path}: no word in it: give a word and its class a line")
    return Benchmark(path.stem, "categorisation", tuple((word,) for word in classes), tuple(classes.values()))


READERS = {
    "similarity": read_similarity,
    "relatedness": read_similarity,
    "analog": read_analogies,
    "categori": read_categories,
}


def read_relations(gold: Sequence[Path], paradigm_file: Path) -> Benchmark:
    """Read SemEval-2012 task 2: ratings of pairs, one `50.0 "weapon:spear"` a line, by relation, and its paradigms."""
    known: dict[str, tuple[Words, ...]] = {}
    for line in paradigm_file.read_text("utf-8").splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) >= 5:
            known[fields[0] + fields[1]] = tuple(PAIR.findall(",".join(fields[4:])))
    items, ratings, relation = [], [], []
    paradigms: dict[str, tuple[Words, ...]] = {}
    for path in gold:
        identity = path.stem.removeprefix("GoldRatings-")
        if not known.get(identity):
            raise CorpusError(f"{paradigm_file}: no paradigm pair of the relation {identity} of {path.name}")
        paradigms[identity] = known[identity]
        for number, line in enumerate(filter(str.strip, path.read_text("utf-8").splitlines()), 1):
            match = RATED.fullmatch(line)
            if match is None:
                raise CorpusError(f'{path}:{number}: {quoted(line)}: give a rating and a pair, as 50.0 "weapon:spear"')
            items.append((match[2], match[3]))
            ratings.append(float(match[1]))
            relation.append(identity)
    return Benchmark("semeval2012-task2", "relations", tuple(items), tuple(ratings), tuple(relation), paradigms)


def table1(frame: pl.DataFrame, *, of: str = "value") -> pl.DataFrame:
    """Arrange the frame of `evaluate` as the paper's Table 1: one row a system, one column a benchmark.

    The paper's benchmarks come first, in its order and under its names, then the others. `of`: value, count, coverage.
    """
    benchmarks = frame["benchmark"].unique(maintain_order=True).to_list()
    columns: dict[str, str] = {}
    for column, pattern in TABLE1_COLUMNS.items():
        matching = [name for name in benchmarks if name not in columns and re.search(pattern, name, re.IGNORECASE)]
        columns |= dict.fromkeys(matching[:1], column)
    columns |= {name: name for name in benchmarks if name not in columns}
    wide = frame.with_columns(pl.col("benchmark").replace(columns)).pivot("benchmark", index="system", values=of)
    return wide.select("system", *chain(columns.values()))
