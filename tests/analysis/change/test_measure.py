"""Measures of change against loops over pairs, and planted changes that are found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import embstore as es
from embstore.analysis.change import ChangeTests, measure_change
from embstore.errors import InvalidValueError
from embstore.store import Labels, Strings
from tests.analysis.change.made import HIDDEN, cosine, measures_by_pairs, write_sides
from tests.analysis.word_store import one_line, write_rows, write_words

UNTESTED = ChangeTests(permutations=0, resamples=0)
SUMMED = ("apd", "apd_excess", "prt", "inverse_prt", "prt_centered", "selfsim_old", "selfsim_new", "selfsim_change")


def centers_of(old, new, layer, words):  # type: ignore[no-untyped-def]
    return np.array([np.concatenate([side.of(word, layer) for word in words]).mean(0) for side in (old, new)])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_measures_are_those_of_loops_over_pairs(tmp_path: Path, dtype: str) -> None:
    old, new = write_sides(tmp_path, n_words=4, count=9, layers=(0, 3), dtype=dtype, shift=0.5)
    found = measure_change(old.store, new.store, metrics=SUMMED, min_occurrences=5, tests=UNTESTED)
    words = [f"w{number}" for number in range(4)]
    expected = {}
    for layer in (0, 3):
        centers = centers_of(old, new, layer, words)
        for word in words:
            measures = measures_by_pairs(old.of(word, layer), new.of(word, layer), centers)
            expected |= {(word, layer, metric): value for metric, value in measures.items()}
    rows = {(row["word"], row["layer"], row["metric"]): row for row in found.frame.to_dicts()}
    assert set(rows) == set(expected)
    for key, value in expected.items():
        assert rows[key]["value"] == pytest.approx(value, abs=1e-6), key
    assert (rows["w2", 0, "apd"]["count_old"], rows["w2", 0, "apd"]["count_new"]) == (13, 18)


def test_a_zero_vector_has_cosine_0_with_every_other(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    sides = []
    for side in range(2):
        vectors = random.normal(size=(6, HIDDEN))
        vectors[0] = 0
        sides.append(write_words(tmp_path / f"{side}.zarr", [("a", vectors), ("b", random.normal(size=(5, HIDDEN)))]))
    found = measure_change(sides[0].store, sides[1].store, metrics=SUMMED, min_occurrences=5, tests=UNTESTED)
    expected = measures_by_pairs(sides[0].of("a", 2), sides[1].of("a", 2), centers_of(*sides, 2, ["a", "b"]))
    values = dict(found.frame.filter(word="a").select("metric", "value").iter_rows())
    assert values["inverse_prt"] is None or expected["inverse_prt"] > 0
    for metric in set(SUMMED) - {"inverse_prt"}:
        assert values[metric] == pytest.approx(expected[metric], abs=1e-6), metric


def test_several_passes_and_threads_give_the_same(tmp_path: Path) -> None:
    old, new = write_sides(tmp_path, count=70)
    whole = measure_change(old.store, new.store, metrics=SUMMED, tests=UNTESTED)
    passes = measure_change(old.store, new.store, metrics=SUMMED, tests=UNTESTED, memory="6KiB", threads=1)
    assert whole.frame.drop("value", "expected", "relative").equals(passes.frame.drop("value", "expected", "relative"))
    np.testing.assert_allclose(whole.frame["value"], passes.frame["value"], atol=1e-12)


def with_years(tmp_path: Path, years: list[str | None]) -> es.Store:
    """A store of `a` and `b` whose occurrences have these years in turn, and `a` moves with the year."""
    random = np.random.default_rng(3)
    n_rows = 40 * len(years)
    types = np.arange(n_rows) % 2
    names = sorted({year for year in years if year is not None})
    codes = np.array([-1 if year is None else names.index(year) for year in years], np.int32)[np.arange(n_rows) // 40]
    vectors = random.normal(size=(1, n_rows, HIDDEN)) * 0.1 + 1
    vectors[0, types == 0, 0] += 2.0 * codes[types == 0]
    return write_rows(
        tmp_path / "years.zarr", ["a", "b"], types, vectors, labels={"year": Labels(codes, Strings.of(names))}
    ).store


def test_periods_of_a_column_are_compared_as_two_stores_would_be(tmp_path: Path) -> None:
    store = with_years(tmp_path, ["1900", None, "1910"])
    by = measure_change(store, by="year", metrics=SUMMED, tests=UNTESTED)
    assert by.names == ("1900", "1910")
    sides = [store.select(labels={"year": year}) for year in ("1900", "1910")]
    two = measure_change(*sides, metrics=SUMMED, tests=UNTESTED)
    assert two.names == ("old", "new")
    np.testing.assert_allclose(by.frame["value"], two.frame["value"], atol=1e-12)
    decades = measure_change(store, by="year", width=10, metrics="apd", tests=UNTESTED)
    assert decades.names == ("1900-1909", "1910-1919")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.quick(1)
def test_planted_changes_are_found_and_others_are_not(tmp_path: Path, seed: int) -> None:
    old, new = write_sides(tmp_path, n_words=20, n_changed=4, seed=seed)
    found = measure_change(old.store, new.store, tests=ChangeTests(permutations=199, resamples=50, seed=seed))
    changed = {f"w{number}" for number in range(4)}
    for metric in ("apd", "apd_excess", "prt", "jsd"):
        rows = found.frame.filter(metric=metric)
        significant = rows.filter(pl.col("q") <= 0.05)
        assert changed <= set(significant["word"]), metric
        assert len(significant) <= 7, metric
    for metric in ("apd_excess", "prt"):
        assert set(found.top(metric, count=4)["word"]) == changed
    rows = found.frame.filter(metric="apd_excess", word="w0")
    assert rows["low"][0] < rows["value"][0] < rows["high"][0]
    assert rows["relative"][0] == pytest.approx(rows["value"][0] - rows["expected"][0])
    assert rows["p_matched"][0] <= 4 / 20


def test_a_shift_that_all_words_share_does_not_count_when_centered(tmp_path: Path) -> None:
    old, new = write_sides(tmp_path, n_words=12, n_changed=2, shift=3.0)
    found = measure_change(
        old.store, new.store, metrics=("prt", "prt_centered"), tests=ChangeTests(permutations=99, resamples=0)
    )
    rows = found.frame.filter(pl.col("q") <= 0.05)
    significant = {metric: set(rows.filter(metric=metric)["word"]) for metric in ("prt", "prt_centered")}
    assert len(significant["prt"]) == 12
    assert {"w0", "w1"} <= significant["prt_centered"]
    values = dict(found.frame.filter(metric="prt_centered").select("word", "value").iter_rows())
    assert min(values["w0"], values["w1"]) > 3 * max(values[f"w{number}"] for number in range(2, 12))


def test_typical_sentences_are_those_of_the_largest_difference(tmp_path: Path) -> None:
    old, new = write_sides(tmp_path, n_words=3)
    found = measure_change(old.store, new.store, metrics="apd", tests=UNTESTED)
    table = found.sentences("w0", count=2)
    assert table["side"].to_list() == ["side0", "side0", "side1", "side1"]
    assert table["rank"].to_list() == [1, 2, 1, 2]
    sides = [old.of("w0", 2), new.of("w0", 2)]
    for side, written in enumerate((old, new)):
        scores = []
        for number, vector in enumerate(sides[side]):
            own = np.delete(sides[side], number, 0)
            inside, across = ([cosine(vector, each) for each in held] for held in (own, sides[1 - side]))
            scores.append(np.mean(inside) - np.mean(across))
        best = np.argsort(scores)[::-1][:2]
        part = table.filter(side=f"side{side}")
        assert part["occurrence"].to_list() == [written.rows["w0"][place] for place in best]
        assert part["score"].to_list() == pytest.approx([scores[place] for place in best])
        texts = written.store.index.texts
        assert part["text"].to_list() == [texts[number] for number in part["sentence"].to_list()]
    drawn = found.occurrences("w0", layers="last")
    assert drawn.vectors.shape == (1, 65, HIDDEN)
    assert [drawn.labels.count(name) for name in ("side0", "side1")] == [30, 35]


def test_a_word_that_turns_around_has_no_inverse_of_its_cosine(tmp_path: Path) -> None:
    sides = [
        write_words(tmp_path / f"{side}.zarr", [("a", sign * np.ones((5, HIDDEN)) + 0.1 * np.eye(5, HIDDEN))]).store
        for side, sign in enumerate((1, -1))
    ]
    found = measure_change(*sides, metrics=("prt", "inverse_prt"), min_occurrences=5, tests=UNTESTED)
    assert found.frame["value"].to_list() == [pytest.approx(2, abs=0.05), None]


def test_words_are_matched_by_the_mean_frequency_of_both_sides(tmp_path: Path) -> None:
    """The geometric mean of the counts: on the old side alone, the words would have other neighbours."""
    random = np.random.default_rng(5)
    counts = [[8, 9, 10, 11, 12, 13], [40, 12, 33, 8, 50, 9]]
    sides = [
        write_words(
            tmp_path / f"{side}.zarr",
            [(f"w{number}", random.normal(size=(count, HIDDEN))) for number, count in enumerate(row)],
        ).store
        for side, row in enumerate(counts)
    ]
    tests = ChangeTests(permutations=0, resamples=0, matched=2)
    frame = measure_change(*sides, metrics="apd", min_occurrences=5, tests=tests).frame.sort("word")
    values = frame["value"].to_numpy()
    order = np.argsort(np.sqrt(np.prod(counts, axis=0)))
    for place, number in enumerate(order):
        start = min(max(place - 1, 0), len(order) - 3)
        assert frame["expected"][int(number)] == pytest.approx(np.median(values[order[start : start + 3]]))


def test_frequent_words_are_tested_on_a_random_sample(tmp_path: Path) -> None:
    old, new = write_sides(tmp_path, n_words=2, count=30)
    tests = [ChangeTests(permutations=19, resamples=0, sample=33, seed=seed) for seed in range(4)]
    found = [measure_change(old.store, new.store, metrics="apd", tests=each) for each in tests]
    assert found[0].notes[-1].startswith("the tests of 2 words draw 33 occurrences of a side at most")
    drawn = [each.occurrences("w1").rows for each in found]
    assert all(len(rows) == 32 + 33 for rows in drawn)
    assert len({tuple(rows) for rows in drawn}) == 4
    assert {*old.rows["w1"], *new.rows["w1"]} >= set(np.concatenate(drawn))


def test_words_with_too_few_occurrences_are_listed(tmp_path: Path) -> None:
    old, new = write_sides(tmp_path, n_words=4, count=10)
    found = measure_change(old.store, new.store, metrics="apd", min_occurrences=13, tests=UNTESTED)
    assert found.skipped.to_dicts() == [
        {"word": "w0", "count_side0": 10, "count_side1": 15, "reason": "fewer than 13 occurrences"},
        {"word": "w1", "count_side0": 12, "count_side1": 17, "reason": "fewer than 13 occurrences"},
    ]
    assert found.frame["word"].to_list() == ["w2", "w3"]


def test_that_nothing_can_be_significant_is_said(tmp_path: Path) -> None:
    old, new = write_sides(tmp_path, n_words=2, n_changed=0, count=3)
    few = measure_change(old.store, new.store, metrics="apd", min_occurrences=3, tests=ChangeTests(permutations=19))
    assert not few.notes
    types = np.zeros(6, np.int64)
    sides = [
        write_rows(tmp_path / f"one{side}.zarr", ["a"], types, np.random.default_rng(side).normal(size=(1, 6, HIDDEN)),
                   sentence_words=6).store
        for side in range(2)
    ]  # fmt: skip
    one = measure_change(*sides, metrics="apd", min_occurrences=3, tests=ChangeTests(permutations=99))
    assert one.frame["p"].to_list() == [1.0]
    assert one.notes[0].startswith("no word can be significant at q <= 0.05: no word has more than 2 ways to exchange")


def test_bad_input_is_refused_in_one_line(tmp_path: Path) -> None:
    old, new = write_sides(tmp_path, n_words=2)
    other = write_words(tmp_path / "other.zarr", [("w0", np.ones((3, 5)))]).store
    store = with_years(tmp_path, ["1", "2", "3"])
    refused = InvalidValueError
    one_line(lambda: measure_change(old.store, other), refused, "hidden size, 12 and 5")
    one_line(lambda: measure_change(old.store), refused, "two sides")
    one_line(lambda: measure_change(old.store, new.store, by="year"), refused, "two sides")
    one_line(lambda: measure_change(store, by="year"), refused, "3 periods", "measure_periods")
    one_line(lambda: measure_change(store, by="month"), refused, "no column 'month'")
    one_line(lambda: measure_change(old.store, new.store, min_occurrences=99), refused, "no word has 99 occurrences")
    one_line(lambda: measure_change(old.store, new.store, words="gone"), refused, "'gone'")
    one_line(lambda: measure_change(old.store, new.store, metrics="spd"), refused, "metric", "apd")
    one_line(lambda: ChangeTests(permutations=9), refused, "19 or more")
    one_line(lambda: ChangeTests(exchange="word"), refused, "exchange", "document, sentence")
    found = measure_change(old.store, new.store, metrics="apd", tests=UNTESTED)
    one_line(lambda: found.sentences("gone"), refused, "'gone'")


def test_a_result_is_saved(tmp_path: Path) -> None:
    old, new = write_sides(tmp_path, n_words=2)
    found = measure_change(old.store, new.store, metrics="apd", tests=UNTESTED)
    found.save(tmp_path / "change.parquet")
    assert pl.read_parquet(tmp_path / "change.parquet").equals(found.frame)
    assert repr(found) == "<Change from side0 to side1: 2 words, 0 with too few occurrences, layers [2]>"


def test_documents_are_exchanged_as_one(tmp_path: Path) -> None:
    """With two documents on each side there are six ways to exchange them, however many sentences they have."""
    old, new = write_sides(tmp_path, n_words=2, n_changed=2)
    for side in (old.store, new.store):
        n_sentences = len(side.index.texts)
        document = (np.arange(n_sentences) >= n_sentences // 2).astype(np.int64)
        side.__dict__["index"] = replace(side.index, document=document)
    found = measure_change(old.store, new.store, metrics="prt", tests=ChangeTests(permutations=99, resamples=0))
    assert found.exchange == "document"
    assert found.frame["p"].min() > 0.1
    assert "no word has more than 6 ways to exchange its documents" in found.notes[0]
    assert "sentence" in found.notes[1]
    tests = ChangeTests(permutations=99, resamples=0, exchange="sentence")
    assert measure_change(old.store, new.store, metrics="prt", tests=tests).frame["p"].max() < 0.05


def test_a_word_that_becomes_more_varied_is_as_rare_as_one_that_becomes_less(tmp_path: Path) -> None:
    """The permutations count a change of self-similarity by its magnitude, and so do the words of like frequency."""
    random = np.random.default_rng(3)
    sides = []
    for side in range(2):
        words = [(f"w{number}", 3 + random.normal(size=(20, HIDDEN))) for number in range(9)]
        words.append(("varied", (0 if side else 3) + random.normal(size=(20, HIDDEN))))
        sides.append(write_words(tmp_path / f"{side}.zarr", words).store)
    tests = ChangeTests(permutations=0, resamples=0, matched=9)
    frame = measure_change(*sides, metrics="selfsim_change", min_occurrences=5, tests=tests).frame
    [row] = frame.filter(word="varied").to_dicts()
    assert row["value"] < -0.5
    assert row["p_matched"] == pytest.approx(1 / 10)


def test_rows_that_a_selection_names_twice_count_once(tmp_path: Path) -> None:
    old, new = write_sides(tmp_path, n_words=3, count=9)
    tests = ChangeTests(permutations=19, resamples=0)
    twice = np.random.default_rng(0).permutation(np.repeat(np.arange(old.store.n_rows), 2))
    one, other = (measure_change(side, new.store, tests=tests) for side in (old.store, old.store.select(rows=twice)))
    assert one.frame.equals(other.frame)
