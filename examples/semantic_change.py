"""How words change over periods, and whether the measures agree with the degrees of change that annotators gave.

python examples/semantic_change.py STORE.zarr year 10 [GOLD.tsv]

The second argument is a document field of whole numbers, the third the width of a period. Each period is compared with
the one before it: `apd` is the mean cosine distance of an old and a new occurrence (Giulianelli et al. 2020), `prt` the
distance of the two mean vectors, each with a 95 % interval of a bootstrap over sentences. GOLD.tsv has a word and its
degree of change on each line, as `truth/graded.txt` of SemEval-2020 Task 1; with it, Spearman's correlation of each
measure between the first and the last period is printed as well.
"""

import csv
import sys
from itertools import pairwise

import numpy as np
import polars as pl
from scipy.stats import spearmanr

import embstore as es

Side = tuple[np.ndarray, np.ndarray]  # of one word: float64 [sentence, 2 features], and the occurrences in each


def sides_of(data: es.store.Selection, word: str) -> Side:
    """The sums of the unit vectors and of the plain vectors of a word by sentence."""
    chosen = data.store.select(words=[word], rows=data.rows, layers=-1)
    vectors = chosen.vectors()[0].astype(np.float64)
    sentences = chosen.table(columns=["sentence"])["sentence"].to_numpy()
    units = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-300)
    numbers, places, counts = np.unique(sentences, return_inverse=True, return_counts=True)
    sums = np.zeros((len(numbers), 2 * vectors.shape[1]))
    np.add.at(sums, places, np.hstack([units, vectors]))
    return sums, counts


def distances(old: np.ndarray, new: np.ndarray, n_old: np.ndarray, n_new: np.ndarray) -> dict[str, np.ndarray]:
    """Both measures, given sums [resample, 2 features] and the number of occurrences of each."""
    (unit, plain), (other_unit, other_plain) = (np.hsplit(side, 2) for side in (old, new))
    lengths = np.linalg.norm(plain, axis=1) * np.linalg.norm(other_plain, axis=1)
    means = (plain * other_plain).sum(1) / np.maximum(lengths, 1e-300)
    return {"apd": 1 - (unit * other_unit).sum(1) / (n_old * n_new), "prt": 1 - means}


def measure(old: es.store.Selection, new: es.store.Selection, least: int = 10, resamples: int = 200) -> pl.DataFrame:
    """The change of each word with `least` occurrences on both sides."""
    counts = [
        side.table(columns=["word"])["word"].value_counts().filter(pl.col("count") >= least) for side in (old, new)
    ]
    rows, random = [], np.random.default_rng(0)
    for word in sorted(set(counts[0]["word"]) & set(counts[1]["word"])):
        sides = [sides_of(side, word) for side in (old, new)]
        draws = [random.multinomial(len(n), np.full(len(n), 1 / len(n)), resamples) for _, n in sides]
        weights = [np.vstack([np.ones(len(n)), drawn]) for (_, n), drawn in zip(sides, draws, strict=True)]
        sums, totals = ([w @ side[part] for w, side in zip(weights, sides, strict=True)] for part in (0, 1))
        for metric, values in distances(*sums, *totals).items():
            low, high = np.quantile(values[1:], [0.025, 0.975])
            rows.append({"word": word, "metric": metric, "value": values[0], "low": low, "high": high})
    return pl.DataFrame(rows)


def main(path: str, field: str, width: str, gold: str | None = None) -> pl.DataFrame:
    store = es.open(path)
    starts = store.table(columns=[field])[field].to_numpy() // int(width) * int(width)
    periods = [(int(start), store.select(rows=np.flatnonzero(starts == start))) for start in np.unique(starts)]
    changes = [measure(old, new).with_columns(period=pl.lit(start)) for (_, old), (start, new) in pairwise(periods)]
    print(pl.concat(changes).filter(pl.col("metric") == "prt").sort("low", descending=True).head(10))
    if gold is not None:
        with open(gold, newline="") as file:
            degrees = {word: float(degree) for word, degree in csv.reader(file, delimiter="\t")}
        ends = measure(periods[0][1], periods[-1][1]).filter(pl.col("word").is_in(list(degrees)))
        for (metric,), part in ends.group_by("metric", maintain_order=True):
            rho = spearmanr(part["value"].to_numpy(), [degrees[word] for word in part["word"]]).statistic
            print(f"{metric}: Spearman's correlation {rho:.3f} with {len(part)} words")
    return pl.concat(changes)


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) in (4, 5) else sys.exit(__doc__)
