"""Gold standards of change: SemEval-2020 Task 1 and word usage graphs (DWUG), and how well measures agree with them."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.analysis.change.measure import Change
from embstore.arguments import checked
from embstore.errors import CorpusError, CorpusNotFoundError, InvalidValueError, check_whole
from embstore.store.layout import Layer, resolve_layer

USES = ("lemma", "grouping", "identifier", "context", "indexes_target_token")


@dataclass(frozen=True)
class ChangeGold:
    """What annotators found: `graded` word -> degree of change, `binary` word -> 0 or 1; either may be empty.

    `corpora`: the files of both corpora by form, such as {"lemma": (first, second)}; empty for usage graphs.
    `uses`: of usage graphs, a row for each use: `word, period, identifier, text, start, stop` (characters of the
    target), `date` if given; None for SemEval.
    """

    name: str
    graded: dict[str, float]
    binary: dict[str, int]
    corpora: dict[str, tuple[Path, Path]]
    uses: pl.DataFrame | None = None

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self.graded, *self.binary]))


@checked
def read_change_gold(folder: str | Path) -> ChangeGold:
    """Read the user's copy of SemEval-2020 Task 1 or of a DWUG data set, by the files that are there.

    SemEval (Schlechtweg et al. 2020): `targets.txt`, one word a line; `truth/graded.txt` and `truth/binary.txt`, a word
    and its value separated by a tab; `corpus1/lemma/*` and `corpus2/token/*`, text files, perhaps compressed.
    DWUG (Schlechtweg et al. 2021): `data/WORD/uses.csv`, separated by tabs without quotes, with `lemma, grouping,
    identifier, context, indexes_target_token` (start:stop in characters); `stats/opt/stats_groupings.csv` (or one of
    `stats/semeval`, `stats`), with `lemma, change_graded, change_binary`.

    Raises CorpusNotFoundError for a folder of neither form, CorpusError (file and line) for a malformed line.
    """
    root = Path(folder)
    if (root / "targets.txt").is_file():
        return _semeval(root)
    if (root / "data").is_dir():
        return _usage_graphs(root)
    raise CorpusNotFoundError(f"{root} has neither targets.txt (SemEval-2020 Task 1) nor data/WORD/uses.csv (DWUG)")


def _semeval(root: Path) -> ChangeGold:
    words = [line.strip() for line in _lines(root / "targets.txt") if line.strip()]
    graded, binary = (_values(root / "truth" / f"{name}.txt") for name in ("graded", "binary"))
    for values, name in ((graded, "graded"), (binary, "binary")):
        missing = [word for word in words if values and word not in values]
        if missing:
            raise CorpusError(f"{root / 'truth' / name}.txt has no value of the target {missing[0]!r}")
    corpora = {}
    for form in ("lemma", "token"):
        found = [sorted((root / f"corpus{side}" / form).glob("*.txt*")) for side in (1, 2)]
        if all(found):
            corpora[form] = (found[0][0], found[1][0])
    return ChangeGold(root.name, graded, {word: int(value) for word, value in binary.items()}, corpora)


def _values(path: Path) -> dict[str, float]:
    """The values of a file of words and numbers; empty where there is none, as before the truth was published."""
    if not path.is_file():
        return {}
    values = {}
    for number, line in enumerate(_lines(path), 1):
        word, tab, value = line.partition("\t")
        if line.strip():
            values[word] = _number(value if tab else "", path, number, binary=path.stem == "binary")
    return values


def _usage_graphs(root: Path) -> ChangeGold:
    uses = []
    for path in sorted((root / "data").glob("*/uses.csv")):
        for number, row in _rows(path, USES):
            start, colon, stop = row["indexes_target_token"].partition(":")
            if not (colon and start.isdecimal() and stop.isdecimal() and int(start) < int(stop) <= len(row["context"])):
                span = row["indexes_target_token"]
                raise CorpusError(f"{path}, line {number}: the target {span!r} is not START:STOP within the context")
            key = (row["lemma"], row["grouping"], row["identifier"], row["context"], int(start), int(stop))
            uses.append((*key, row.get("date")))
    if not uses:
        raise CorpusNotFoundError(f"{root / 'data'} has no WORD/uses.csv with uses")
    columns = ("word", "period", "identifier", "text", "start", "stop", "date")
    schema = dict.fromkeys(columns, pl.String) | {"start": pl.Int64, "stop": pl.Int64}
    frame = pl.DataFrame(uses, schema=schema, orient="row")
    graded, binary = {}, {}
    places = [root / "stats" / name / "stats_groupings.csv" for name in ("semeval", "opt", "")]
    for path in [place for place in places if place.is_file()][:1]:
        for number, row in _rows(path, ("lemma", "change_graded", "change_binary")):
            graded[row["lemma"]] = _number(row["change_graded"], path, number)
            binary[row["lemma"]] = int(_number(row["change_binary"], path, number, binary=True))
    return ChangeGold(root.name, graded, binary, {}, frame)


def _rows(path: Path, columns: tuple[str, ...]) -> list[tuple[int, dict[str, str]]]:
    """The rows of a table separated by tabs, without quotes, by the number of their line."""
    reader = csv.DictReader(_lines(path), delimiter="\t", quoting=csv.QUOTE_NONE)
    missing = [name for name in columns if name not in (reader.fieldnames or ())]
    if missing:
        raise CorpusError(f"{path} has no column {missing[0]!r}: it needs {', '.join(columns)}")
    rows = list(enumerate(reader, 2))
    for number, row in rows:
        if None in row or None in row.values():
            raise CorpusError(f"{path}, line {number}: it does not have as many columns as the first line")
    return rows


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise CorpusError(f"{path} cannot be read as UTF-8 text: {error}") from None


def _number(text: str, path: Path, line: int, *, binary: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise CorpusError(f"{path}, line {line}: {text!r} is not a number")
    if binary and value not in (0, 1):
        raise CorpusError(f"{path}, line {line}: {text!r} is not allowed: a binary change is 0 or 1")
    return value


@checked
def evaluate_change(
    change: Change, gold: ChangeGold, *, layer: Layer | None = None, resamples: int = 1000, seed: int = 0
) -> pl.DataFrame:
    """Compare each measure with a gold standard: `layer, metric, score, value, low, high, count, threshold`.

    `score`: `spearman`, the rank correlation with the graded change (Subtask 2), with a percentile interval of 95 %
    over words, null where more than one resample in twenty has no correlation, as of three words; `auc`, the area under
    the ROC curve of the binary change, which is the share of pairs of a changed and an unchanged word in their right
    order; `accuracy`, at the `threshold` that gives the best one on these words: an upper bound, since it is chosen on
    them (Subtask 1). Words that were not compared are left out; `count` says how many remain. `selfsim_change` counts
    by its magnitude.

    Raises InvalidValueError where fewer than three words were compared.
    """
    check_whole("resamples", resamples, 1, 10**6)
    frame = (
        change.frame if layer is None else change.frame.filter(pl.col("layer") == resolve_layer(layer, change.layers))
    )
    rows = []
    for (number, metric), part in frame.partition_by("layer", "metric", as_dict=True, maintain_order=True).items():
        values = {row["word"]: row["value"] for row in part.to_dicts() if row["value"] is not None}
        if metric == "selfsim_change":
            values = {word: abs(value) for word, value in values.items()}
        for truth, scores in ((gold.graded, _graded), (gold.binary, _binary)):
            words = [word for word in truth if word in values]
            if len(words) < 3:
                continue
            pair = np.array([values[word] for word in words]), np.array([truth[word] for word in words], np.float64)
            for score in scores(*pair, resamples, seed):
                rows.append((number, metric, *score[:4], len(words), score[4]))
    if not rows:
        raise InvalidValueError(
            f"fewer than three words of {gold.name} were compared: extract these words, or allow fewer"
        )
    kinds = {"layer": pl.Int64, "metric": pl.String, "score": pl.String, "count": pl.Int64}
    columns = ("layer", "metric", "score", "value", "low", "high", "count", "threshold")
    return pl.DataFrame(rows, schema={name: kinds.get(name, pl.Float64) for name in columns}, orient="row")


Score = tuple[str, float | None, float | None, float | None, float | None]


def _graded(values: NDArray[np.float64], truth: NDArray[np.float64], resamples: int, seed: int) -> list[Score]:
    random = np.random.default_rng(seed)
    drawn = random.integers(len(values), size=(resamples, len(values)))
    resampled = [spearman(values[numbers], truth[numbers]) for numbers in drawn]
    known = [value for value in resampled if value is not None]
    ends = np.quantile(known, [0.025, 0.975]).tolist() if len(known) >= 0.95 * resamples else [None, None]
    return [("spearman", spearman(values, truth), *ends, None)]


def _binary(values: NDArray[np.float64], truth: NDArray[np.float64], resamples: int, seed: int) -> list[Score]:
    changed, others = values[truth > 0], values[truth == 0]
    if not len(changed) or not len(others):
        return []
    differences = changed[:, None] - others
    area = float(((differences > 0) + 0.5 * (differences == 0)).mean())
    limits = np.append(np.unique(values), np.nextafter(values.max(), np.inf))  # the last: no word changed
    accuracies = [(float(((values >= limit) == (truth > 0)).mean()), float(limit)) for limit in limits]
    best, limit = max(accuracies)
    return [("auc", area, None, None, None), ("accuracy", best, None, None, limit)]


def spearman(left: NDArray[np.float64], right: NDArray[np.float64]) -> float | None:
    """Return Spearman's rho of two lists of equal length, None if one side has fewer than two distinct values."""
    ranks = np.stack([pl.Series(np.asarray(side, np.float64)).rank("average").to_numpy() for side in (left, right)])
    if ranks.shape[1] < 2 or not np.ptp(ranks, axis=1).all():
        return None
    return float(np.corrcoef(ranks)[0, 1])
