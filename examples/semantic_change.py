"""How words change over periods, and whether the measures agree with the degrees of change that annotators gave.

python examples/semantic_change.py STORE.zarr year 10 [GOLD.tsv]

The second argument is a document field of whole numbers, the third the width of a period. Each period is compared with
the one before it. GOLD.tsv has a word and its degree of change on each line, as `truth/graded.txt` of SemEval-2020
Task 1; with it, Spearman's correlation of each measure between the first and the last period is printed as well.
"""

import csv
import sys
from itertools import pairwise

import numpy as np
import polars as pl
from scipy.stats import spearmanr

import embstore as es


def periods_of(store: es.Store, field: str, width: int) -> dict[int, es.store.Selection]:
    """The occurrences of each period by its first year."""
    starts = store.select().table(columns=[field])[field].to_numpy() // width * width
    return {int(start): store.select(rows=np.flatnonzero(starts == start)) for start in np.unique(starts)}


def over_periods(store: es.Store, field: str, width: int, min_occurrences: int = 10) -> pl.DataFrame:
    """The change of each word from each period to the next, with the period in which the change is seen."""
    periods = periods_of(store, field, width)
    names = list(periods)
    frames = [
        es.analysis.measure_change(periods[old], periods[new], layers=-1, min_occurrences=min_occurrences).with_columns(
            period=pl.lit(new)
        )
        for old, new in pairwise(names)
    ]
    return pl.concat(frames)


def agreement(change: pl.DataFrame, gold: dict[str, float]) -> dict[str, float]:
    """Spearman's correlation of each measure with the degrees of change."""
    rhos = {}
    for (metric,), part in change.drop_nulls("value").group_by("metric", maintain_order=True):
        rows = part.filter(pl.col("word").is_in(list(gold)))
        if len(rows) > 2:
            degrees = [gold[word] for word in rows["word"]]
            rhos[metric] = float(spearmanr(rows["value"].to_numpy(), degrees).statistic)
    return rhos


def main(path: str, field: str, width: str, gold: str | None = None) -> pl.DataFrame:
    store = es.open(path)
    change = over_periods(store, field, int(width))
    clear = change.filter(pl.col("metric") == "prt").sort("low", descending=True, nulls_last=True)
    print(clear.select("word", "period", "value", "low", "high").head(10))
    if gold is not None:
        with open(gold, newline="") as file:
            degrees = {word: float(degree) for word, degree in csv.reader(file, delimiter="\t")}
        first, *_, last = periods_of(store, field, int(width)).values()
        for metric, rho in agreement(es.analysis.measure_change(first, last, layers=-1), degrees).items():
            print(f"{metric}: Spearman's correlation {rho:.3f} with {len(degrees)} words")
    return change


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    main(*sys.argv[1:])
