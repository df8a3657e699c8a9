"""Word-class pairs one by one: which ones a layer or more context gets right, and by the subwords of their word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from math import comb
from typing import Any

import polars as pl

from embstore.probes import ClassProbe
from embstore.store import Store

PAIR = "pair"
COLUMNS = ("class", "contexts", "right", "found")
NAMES = ("store", "context", "layer", "split", "word", *COLUMNS)
MOST_SUBWORDS = 5  # this many or more are one row
PHRASE = "phrase"


def pairs_of(probe: ClassProbe, name: str, splits: Sequence[str]) -> pl.DataFrame:
    """Return how the probes of the first seed decide each word-class pair, as rows of metric "pair".

    `item` is the word, `class` its class, `contexts` how many there are, `right` how many of them the probe of the
    class says yes to, and `found` the classes whose probes say yes by the rule of half, joined by a space.
    """
    frames = []
    for layer in probe.fitted_.shape.layers:
        for split in splits:
            frame = probe.predict(layer=layer, split=split)
            frames.append(
                frame.select(
                    pl.lit(name).alias("store"),
                    pl.lit(layer, pl.Int64).alias("layer"),
                    pl.lit(split).alias("split"),
                    pl.lit(PAIR).alias("metric"),
                    pl.col("word").alias("item"),
                    pl.col("classes").list.first().alias("class"),
                    pl.col("contexts").cast(pl.Int64),
                    pl.col("right").cast(pl.Int64),
                    pl.col("found").list.join(" "),
                )
            )
    return pl.concat(frames)


def separated(frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the scores of a stored table, and its word-class pairs with the column `word`."""
    if "found" not in frame.columns:
        return frame, pl.DataFrame()
    is_pair = pl.col("metric") == PAIR
    pairs = frame.filter(is_pair).rename({"item": "word"}).select(pl.selectors.by_name(*NAMES, require_all=False))
    return frame.filter(~is_pair).drop(COLUMNS), pairs


def is_right() -> pl.Expr:
    """Whether a pair is right by the rule of half."""
    return 2 * pl.col("right") >= pl.col("contexts")


def subword_counts(store: Store) -> pl.DataFrame:
    """Return the number of subwords of each word of a store, of its first occurrence: `word`, `subwords`."""
    rows = pl.DataFrame({"type": store.index.type, "subwords": store.index.subwords})
    first = rows.group_by("type", maintain_order=True).first()
    words = [store.index.words[number] for number in first["type"].to_list()]
    return pl.DataFrame({"word": words, "subwords": first["subwords"].cast(pl.Int64)})


def f1_by_subwords(pairs: pl.DataFrame, counts: pl.DataFrame) -> pl.DataFrame:
    """Return micro F1 over all decisions by the number of subwords of the word: `layer, subwords, count, value`.

    `subwords` is "1", "2" and so on; MOST_SUBWORDS or more are one row, and so are phrases of several words.
    """
    n_found = pl.when(pl.col("found") == "").then(0).otherwise(pl.col("found").str.count_matches(" ") + 1)
    number = pl.col("subwords").clip(1, MOST_SUBWORDS).cast(pl.String)
    number = pl.when(pl.col("subwords") < MOST_SUBWORDS).then(number).otherwise(number + " or more")
    is_phrase = pl.col("word").cast(pl.String).str.contains(" ", literal=True)
    return (
        pairs.join(counts, on="word")
        .with_columns(
            subwords=pl.when(is_phrase).then(pl.lit(PHRASE)).otherwise(number),
            own=is_right().cast(pl.Int64),
            n_found=n_found.cast(pl.Int64),
        )
        .group_by("layer", "subwords")
        .agg(count=pl.len(), value=2 * pl.col("own").sum() / (pl.len() + pl.col("n_found").sum()))
        .sort("layer", "subwords")
    )


def trajectories(pairs: pl.DataFrame, by: str, order: Sequence[Any]) -> pl.DataFrame:
    """Return a row for each word-class pair: `word, class, contexts`, and lists of `right` and `found` in this order.

    `by`: the column that changes, the layer or the context; `order`: its values.
    """
    rank = {value: number for number, value in enumerate(order)}
    places = pl.Series("place", [rank.get(value) for value in pairs[by].to_list()], pl.Int64)
    return (
        pairs.with_columns(places)
        .drop_nulls("place")
        .sort("place")
        .group_by("word", "class", "contexts", maintain_order=True)
        .agg("right", "found")
        .filter(pl.col("right").list.len() == len(order))
        .sort("word", "class")
    )


def flips(paths: pl.DataFrame, order: Sequence[Any]) -> list[dict[str, Any]]:
    """Return, for each step of the order and from first to last, how many pairs flip in both directions.

    `p`: how likely so unequal numbers are if both directions are as likely (two-sided sign test).
    """
    rights = [
        [2 * number >= count for number in row]
        for row, count in zip(paths["right"].to_list(), paths["contexts"].to_list(), strict=True)
    ]
    steps = list(pairwise(range(len(order))))
    if len(order) > 2:
        steps.append((0, len(order) - 1))
    counted = []
    for before, after in steps:
        kinds = Counter((row[before], row[after]) for row in rights)
        gained, lost = kinds[False, True], kinds[True, False]
        counted.append(
            {
                "from": str(order[before]),
                "to": str(order[after]),
                "wrong_to_right": gained,
                "right_to_wrong": lost,
                "stay_right": kinds[True, True],
                "stay_wrong": kinds[False, False],
                "p": sign_test(gained, lost),
            }
        )
    return counted


def sign_test(gained: int, lost: int) -> float:
    """Return the two-sided p-value of the numbers of changes in the two directions."""
    count = gained + lost
    tail = sum(comb(count, each) for each in range(min(gained, lost) + 1))
    return min(1.0, float(2 * Fraction(tail, 2**count)))


def clearest(paths: pl.DataFrame, n_rows: int, *, gained: bool = True) -> list[dict[str, Any]]:
    """Return the pairs that change most clearly, with the `step` of the change: a number of the order, from 1.

    A pair that is gained is wrong before the step and right from it on, one that is lost the other way round. Clear is
    a large difference between the mean shares of right contexts before and after, times the square root of the number
    of contexts. A class has one row, so that the rows differ; equal pairs are in the order of the alphabet.
    """
    found = []
    for row in paths.iter_rows(named=True):
        shares = [number / row["contexts"] for number in row["right"]]
        good = [(share >= 0.5) == gained for share in shares]
        step = good.index(True) if True in good else 0
        if step and all(good[step:]):
            gap = sum(shares[step:]) / len(shares[step:]) - sum(shares[:step]) / step
            found.append((-abs(gap) * row["contexts"] ** 0.5, row["word"], row["class"], {**row, "step": step}))
    first: dict[str, dict[str, Any]] = {}
    for _, _, name, row in sorted(found, key=lambda each: each[:3]):
        first.setdefault(name, row)
    return list(first.values())[:n_rows]


def never_right(paths: pl.DataFrame, counts: Mapping[str, int], n_rows: int) -> list[dict[str, Any]]:
    """Return pairs that no step gets right in any context, those of most subwords first, then of most contexts."""
    wrong = [row for row in paths.iter_rows(named=True) if not any(row["right"])]
    wrong.sort(key=lambda row: (-counts[row["word"]], -row["contexts"], row["word"], row["class"]))
    return wrong[:n_rows]
