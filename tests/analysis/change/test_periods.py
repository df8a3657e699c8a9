"""Series over periods are those of pairs of periods, and a planted change point is found."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from embstore.analysis.change import ChangeTests, list_periods, measure_change, measure_periods
from embstore.analysis.change.significance import LEVEL, _gains, change_points
from embstore.errors import InvalidValueError
from embstore.store import Labels, Strings
from tests.analysis.change.made import YEARS, with_years
from tests.analysis.word_store import one_line, write_rows


def test_a_series_is_that_of_pairs_of_periods(tmp_path: Path) -> None:
    store = with_years(tmp_path)
    found = measure_periods(store, by="year", tests=ChangeTests(permutations=0, resamples=20))
    rows = found.frame.filter(word="a", metric="apd")
    pairs = [("1900", "1910"), ("1900", "1920"), ("1900", "1930"), ("1910", "1920"), ("1920", "1930")]
    assert list(zip(rows["reference"], rows["period"], strict=True)) == pairs
    for old, new in pairs:
        sides = [store.select(labels={"year": year}) for year in (old, new)]
        two = measure_change(*sides, metrics=("apd", "prt"), tests=ChangeTests(permutations=0, resamples=0))
        for word in ("a", "b"):
            for metric in ("apd", "prt"):
                [row] = found.frame.filter(word=word, metric=metric, reference=old, period=new).to_dicts()
                assert row["value"] == pytest.approx(two.frame.filter(word=word, metric=metric)["value"][0])
                assert (row["count_old"], row["count_new"]) == (25, 25)
                assert row["low"] <= row["high"]
    decades = measure_periods(store, by="year", width=20, tests=ChangeTests(permutations=0, resamples=0))
    assert decades.periods == ("1900-1919", "1920-1939")


@pytest.mark.parametrize("seed", range(3))
def test_a_planted_change_point_is_found(tmp_path: Path, seed: int) -> None:
    store = with_years(tmp_path, seed=seed, change=1 + seed)
    found = measure_periods(store, by="year", metrics="prt", tests=ChangeTests(permutations=99, resamples=0))
    first = found.points.filter(word="a").sort("gain")[-1]
    assert first["period"][0] == YEARS[1 + seed]
    assert first["q"][0] <= 0.05
    assert found.points.filter(word="b").sort("gain")["gain"][-1] < first["gain"][0] / 5


def test_steps_are_against_the_period_before_and_points_are_ranked(tmp_path: Path) -> None:
    store = with_years(tmp_path, layers=(0, 2))
    found = measure_periods(store, by="year", tests=ChangeTests(permutations=99, resamples=0))
    for metric in ("prt", "apd_excess"):
        steps = found.steps(metric)
        assert list(steps.filter(word="a").select("reference", "period").iter_rows()) == list(pairwise(YEARS[:4]))
        top = found.top(metric)
        assert top.row(0)[:3] == ("a", 2, "1920")
        assert set(top["layer"]) == {2}
        assert set(found.steps(metric, layer=0)["layer"]) == set(found.top(metric, layer=0)["layer"]) == {0}
        assert top["q"].is_sorted()
        [value] = steps.filter(word="a", period="1920")["value"]
        assert top.row(0, named=True)["value"] == value
        assert found.top(metric, count=1).equals(top.head(1))
        untested = measure_periods(store, by="year", tests=ChangeTests(permutations=0, resamples=0)).top(metric)
        best = steps.sort(pl.col("value").abs(), descending=True).unique("word", keep="first", maintain_order=True)
        assert untested.select("word", "period", "value").equals(best.select("word", "period", "value"))
        assert untested["q"].null_count() == 2
    same = replace(found, points=found.points.with_columns(q=pl.lit(0.5)))
    assert same.top()["value"].abs().is_sorted(descending=True), "the greatest value is first among equal q"


def test_periods_are_listed_in_their_order(tmp_path: Path) -> None:
    store = with_years(tmp_path, n_periods=5)
    assert list_periods(store, by="year") == tuple(YEARS)
    assert list_periods(store.select(rows=range(60, 190)), by="year", width=20) == ("1900-1919", "1920-1939")
    one_line(lambda: list_periods(store, by="month"), InvalidValueError, "'month'")


def test_a_gain_is_what_the_squares_around_the_means_lose() -> None:
    random = np.random.default_rng(0)
    vectors, periods = random.normal(size=(30, 4)), random.integers(0, 3, 30)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)

    def squares(some: np.ndarray) -> float:
        return float(np.square(some - some.mean(0)).sum())

    for gram in (None, vectors @ vectors.T):
        gains = _gains(vectors, gram, np.ones(30), periods[None], np.arange(3))[0]
        for border in range(2):
            left = periods <= border
            assert gains[border] == pytest.approx(squares(vectors) - squares(vectors[left]) - squares(vectors[~left]))


def test_the_p_value_of_a_change_point_is_that_of_a_loop() -> None:
    random = np.random.default_rng(1)
    vectors, periods = random.normal(size=(12, 3)), np.arange(12) // 4
    [(period, gain, p), *_] = change_points(vectors, np.ones(12), periods, count=19, random=np.random.default_rng(2))
    drawn = np.random.default_rng(2).permuted(np.broadcast_to(periods, (19, 12)), axis=1)
    best = [_gains(vectors, None, np.ones(12), each[None], np.arange(3)).max() for each in drawn]
    observed = _gains(vectors, None, np.ones(12), periods[None], np.arange(3))[0]
    assert (period, gain) == (observed.argmax() + 1, observed.max())
    assert p == (1 + sum(each >= gain - 1e-9 for each in best)) / 20


def test_only_significant_points_are_split_further() -> None:
    """Of noise, the best border alone is reported; behind a planted change, no border that chance explains."""
    alone = behind = 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        vectors, periods = random.normal(size=(24, 3)), np.arange(24) // 6
        [first, *more] = change_points(vectors, np.ones(24), periods, count=19, random=np.random.default_rng(seed))
        alone += first[2] > LEVEL
        assert not more or first[2] <= LEVEL
        vectors[12:] += 9
        [first, *more] = change_points(vectors, np.ones(24), periods, count=19, random=np.random.default_rng(seed))
        assert first[0] == 2
        assert first[2] <= LEVEL
        assert all(p <= LEVEL for _, _, p in more)
        behind += len(more)
    assert alone > 40
    assert behind < 40  # of 120 sides


def test_bad_input_of_periods(tmp_path: Path) -> None:
    store = with_years(tmp_path)
    one_line(lambda: measure_periods(store, by="month"), InvalidValueError, "'month'")
    one_line(lambda: measure_periods(store, by="year", metrics="jsd"), InvalidValueError, "metric")
    found = measure_periods(store, by="year", metrics="prt", tests=ChangeTests(permutations=0, resamples=0))
    found.save(tmp_path / "series.csv")
    assert len(pl.read_csv(tmp_path / "series.csv")) == len(found.frame)
    assert repr(found) == "<ChangeSeries of 2 words over 4 periods>"


def test_a_period_without_the_words_is_left_out(tmp_path: Path) -> None:
    """`a` is in two of three periods: its measures are those of a store without the third."""
    codes = (np.arange(60) // 20).astype(np.int32)
    types = np.where(codes == 1, 1, np.arange(60) % 2)
    vectors = np.random.default_rng(0).normal(size=(1, 60, 8))
    labels = {"year": Labels(codes, Strings.of(YEARS[:3]))}
    store = write_rows(tmp_path / "s.zarr", ["a", "b"], types, vectors, labels=labels, sentence_words=1).store
    tests = ChangeTests(permutations=19, resamples=20)
    options = {"words": "a", "metrics": ("prt", "prt_centered"), "tests": tests}
    found = measure_periods(store, by="year", **options)  # type: ignore[arg-type]
    assert found.periods == tuple(YEARS[:3])
    assert set(found.frame.select("reference", "period").iter_rows()) == {(YEARS[0], YEARS[2])}
    rest = measure_periods(store.select(labels={"year": [YEARS[0], YEARS[2]]}), by="year", **options)  # type: ignore[arg-type]
    assert found.frame.equals(rest.frame)
    assert found.points.equals(rest.points)
