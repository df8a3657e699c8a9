"""Measures of change against loops over pairs and scipy, and planted changes that are found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy.spatial.distance import jensenshannon

from embstore.analysis.change import Units, jensen_shannon, measure_change
from embstore.analysis.neighbors.senses import kmeans
from embstore.errors import InvalidValueError
from embstore.intervals import expanded
from embstore.vectors.linalg import unit_rows
from tests.analysis.change_sides import HIDDEN, distances_by_pairs, write_sides
from tests.analysis.word_store import one_line, write_rows, write_words

DISTANCES = ("apd", "prt")


def values(frame: pl.DataFrame, metric: str) -> dict[str, float]:
    return dict(frame.filter(metric=metric).select("word", "value").iter_rows())


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_distances_are_those_of_loops_over_pairs(tmp_path: Path, dtype: str) -> None:
    old, new = write_sides(tmp_path, n_words=4, count=9, layers=(0, 3), dtype=dtype, shift=0.5)
    found = measure_change(old.store, new.store, min_occurrences=5, resamples=0)
    rows = {(row["word"], row["layer"], row["metric"]): row for row in found.to_dicts()}
    assert len(rows) == len(found) == 4 * 2 * 3
    for layer in (0, 3):
        for word in (f"w{number}" for number in range(4)):
            for metric, value in distances_by_pairs(old.of(word, layer), new.of(word, layer)).items():
                assert rows[word, layer, metric]["value"] == pytest.approx(value, abs=1e-6)
    assert (rows["w2", 0, "apd"]["count_old"], rows["w2", 0, "apd"]["count_new"]) == (13, 18)
    assert found.filter(metric="jsd")["value"].null_count() == 8, "fewer than 20 occurrences on the old side"


def test_a_zero_vector_has_cosine_0_with_every_other(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    sides = []
    for side in range(2):
        vectors = random.normal(size=(6, HIDDEN))
        vectors[0] = 0
        sides.append(write_words(tmp_path / f"{side}.zarr", [("a", vectors), ("b", random.normal(size=(5, HIDDEN)))]))
    found = measure_change(sides[0].store, sides[1].store, min_occurrences=5, resamples=0)
    for metric, value in distances_by_pairs(sides[0].of("a", 2), sides[1].of("a", 2)).items():
        assert values(found, metric)["a"] == pytest.approx(value, abs=1e-6)


def test_selections_of_one_store_are_compared_and_rows_count_once(tmp_path: Path) -> None:
    old, new = write_sides(tmp_path, n_words=3, count=30)
    store, half = old.store, old.store.n_rows // 2
    sides = [store.select(rows=np.arange(half)), store.select(rows=np.arange(half, store.n_rows))]
    found = measure_change(*sides, min_occurrences=5)
    for word in ("w0", "w1", "w2"):
        halves = [[old.values[0, row] for row in old.rows[word] if (row >= half) == late] for late in (False, True)]
        expected = distances_by_pairs(*map(np.array, halves))
        assert values(found, "apd")[word] == pytest.approx(expected["apd"], abs=1e-6)
    twice = np.random.default_rng(0).permutation(np.repeat(np.arange(store.n_rows), 2))
    one, other = (measure_change(side, new.store) for side in (store, store.select(rows=twice)))
    assert one.drop("value").equals(other.drop("value"))
    np.testing.assert_allclose(one["value"], other["value"], atol=1e-9)


def test_planted_changes_are_above_all_others(tmp_path: Path) -> None:
    old, new = write_sides(tmp_path, n_words=20, n_changed=4)
    found = measure_change(old.store, new.store)
    changed = {f"w{number}" for number in range(4)}
    for metric in ("apd", "prt", "jsd"):
        rows = found.filter(metric=metric).sort("value", descending=True)
        assert set(rows["word"][:4]) == changed, metric
        assert rows["low"][:4].min() > rows["high"][4:].median(), metric
    rows = found.filter(word="w0", metric="prt")
    assert rows["low"][0] < rows["value"][0] < rows["high"][0]


def test_the_divergence_is_that_of_clusters_of_both_sides(tmp_path: Path) -> None:
    old, new = write_sides(tmp_path, n_words=2, count=25)
    found = values(measure_change(old.store, new.store, resamples=0, n_clusters=3, seed=4), "jsd")
    for word in ("w0", "w1"):
        sides = [side.of(word, 2) for side in (old, new)]
        clusters = kmeans(unit_rows(np.concatenate(sides)), 3, seed=4)
        counts = [np.bincount(part, minlength=3) for part in np.split(clusters, [len(sides[0])])]
        assert found[word] == pytest.approx(jensenshannon(*counts, base=2) ** 2, abs=1e-12)


def test_intervals_and_clusters_of_frequent_words_are_of_a_sample(tmp_path: Path) -> None:
    old, new = write_sides(tmp_path, n_words=2, count=40)
    whole, some, again = (measure_change(old.store, new.store, sample=sample) for sample in (500, 30, 30))
    assert some.equals(again)
    assert some.filter(metric="apd")["value"].equals(whole.filter(metric="apd")["value"])
    assert not some.filter(metric="apd")["low"].equals(whole.filter(metric="apd")["low"])
    assert not some.filter(metric="jsd")["value"].equals(whole.filter(metric="jsd")["value"])


def test_which_words_are_compared(tmp_path: Path) -> None:
    old, new = write_sides(tmp_path, n_words=4, count=10)
    found = measure_change(old.store, new.store, min_occurrences=13, resamples=0)
    assert found["word"].unique(maintain_order=True).to_list() == ["w2", "w3"]
    chosen = measure_change(old.store, new.store, words=["w3", "w1"], resamples=0)
    assert chosen["word"].unique(maintain_order=True).to_list() == ["w1", "w3"]
    for options, parts in (
        ({"min_occurrences": 99}, ["no word has 99 occurrences"]),
        ({"words": ["w1", "x"]}, ["not both sides have the word 'x'"]),
    ):
        one_line(lambda o=options: measure_change(old.store, new.store, **o), InvalidValueError, *parts)  # type: ignore[misc]
    other = write_words(tmp_path / "other.zarr", [("w1", np.ones((20, 5)))])
    one_line(lambda: measure_change(old.store, other.store), InvalidValueError, "hidden size", "12 and 5")


def test_special_occurrences_are_no_words(tmp_path: Path) -> None:
    from embstore.store import Labels, Strings

    random = np.random.default_rng(0)
    sides = []
    for side in range(2):
        labels = {"special": Labels(np.array([0] * 10 + [-1] * 20, np.int32), Strings.of(["cls"]))}
        types = np.r_[np.zeros(10, int), np.tile([0, 1], 10)]
        vectors = random.normal(size=(1, 30, HIDDEN))
        sides.append(write_rows(tmp_path / f"{side}.zarr", ["a", "b"], types, vectors, labels=labels).store)
    assert measure_change(*sides, resamples=0)["count_old"].unique().to_list() == [10]


def units_of(seed: int, *, n: int = 14, hidden: int = 6) -> tuple[Units, np.ndarray]:
    """Units of vectors of which the first half are old."""
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(n, hidden)) + 1
    vectors[n // 2 :] += random.normal(size=hidden)
    return Units.of(vectors, np.arange(n) >= n // 2, np.arange(n), None), vectors


def resampled_by_pairs(vectors: np.ndarray, old: np.ndarray, new: np.ndarray) -> dict[str, float]:
    """Both distances of a resample, the lengths of its prototypes by loops over pairs of different vectors."""
    sides = [np.repeat(np.arange(len(vectors)), weights) for weights in (old, new)]
    inner = vectors @ vectors.T
    squares = [np.mean([inner[i, j] for i in side for j in side if i != j]) for side in sides]
    both = np.mean([inner[i, j] for i in sides[0] for j in sides[1]])
    prt = 1 - both / np.sqrt(squares[0] * squares[1]) if min(squares) > 0 else np.nan
    return {"apd": distances_by_pairs(*(vectors[side] for side in sides))["apd"], "prt": float(prt)}


@pytest.mark.parametrize("hidden", [6, 20])  # fewer and more features than units: over sums, and over a Gram matrix
def test_a_resample_is_a_weighted_sum(hidden: int) -> None:
    units, vectors = units_of(0, hidden=hidden)
    random = np.random.default_rng(1)
    old, new = (random.multinomial(7, np.where(units.is_new == side, 1 / 7, 0), 5) for side in (False, True))
    found = units.measures(old.astype(float), new.astype(float))
    for number in range(5):
        expected = resampled_by_pairs(vectors, old[number], new[number])
        assert {metric: values[number] for metric, values in found.items()} == pytest.approx(expected, nan_ok=True)


def test_occurrences_of_one_document_are_resampled_together() -> None:
    vectors = np.random.default_rng(0).normal(size=(12, 4))
    documents = np.repeat([0, 1, 2, 1], 3)
    units = Units.of(vectors, np.arange(12) >= 6, documents, np.arange(12) % 2)
    assert units.is_new.tolist() == [False, False, True, True], "a document on both sides is one unit of each"
    np.testing.assert_allclose(
        units.plain, [vectors[:3].sum(0), vectors[3:6].sum(0), vectors[9:].sum(0), vectors[6:9].sum(0)]
    )
    assert units.counts.tolist() == [3, 3, 3, 3]
    assert units.senses is not None
    assert units.senses.tolist() == [[2, 1], [1, 2], [1, 2], [2, 1]]


def test_intervals_are_of_resampled_units_and_without_their_bias() -> None:
    units, vectors = units_of(3)
    random, drawn = np.random.default_rng(8), []
    for side in (~units.is_new, units.is_new):
        weights = np.zeros((30, 14), int)
        weights[:, side] = random.multinomial(7, np.full(7, 1 / 7), 30)
        drawn.append(weights)
    expected = [resampled_by_pairs(vectors, *(weights[number] for weights in drawn)) for number in range(30)]
    found = units.intervals(30, np.random.default_rng(8))
    for metric in DISTANCES:
        low, high = expanded(np.array([each[metric] for each in expected]), 7)
        assert low is not None
        assert found[metric] == pytest.approx((max(0, low), high))
    assert found.keys() == {*DISTANCES}


def test_the_divergence_of_clusters_that_hold_all_has_no_interval() -> None:
    """All resamples of them are alike: 20 occurrences of clusters of .99 and .01 were covered in .32 of cases."""
    vectors, numbers = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60)
    for n_others, has_interval in ((0, False), (4, False), (5, True)):
        clusters = np.where(numbers >= 30, 1, 0) + 2 * (numbers < n_others)
        found = Units.of(vectors, numbers >= 30, numbers, clusters).intervals(20, np.random.default_rng(0))
        assert ("jsd" in found) == has_interval


@pytest.mark.parametrize(
    "names", [np.where(np.arange(12) >= 6, 9, np.arange(12)), np.arange(12) // 6, np.arange(12) % 4]
)
def test_a_side_of_few_units_has_no_interval(names: np.ndarray) -> None:
    """Every resample of one document is that document, and those of four say little about others."""
    vectors = np.random.default_rng(2).normal(size=(12, 4))
    assert not Units.of(vectors, np.arange(12) >= 6, names, None).intervals(20, np.random.default_rng(0))


def test_the_divergence_is_less_twice_the_bias_of_its_resamples() -> None:
    random, clusters = np.random.default_rng(0), np.random.default_rng(1).integers(0, 5, (20, 40))
    units = [Units.of(np.eye(5)[each] + 0.1, np.arange(40) >= 20, np.arange(40), each) for each in clusters]
    highs = [each.intervals(100, random)["jsd"][1] for each in units]
    assert np.mean(highs) < 0.24, "less the bias once it is .28"


def test_the_divergence_is_that_of_scipy() -> None:
    random = np.random.default_rng(0)
    old, new = random.integers(0, 4, (2, 20, 5)) + np.eye(5, dtype=int)[0]
    expected = [jensenshannon(p, q, base=2) ** 2 for p, q in zip(old, new, strict=True)]
    np.testing.assert_allclose(jensen_shannon(old, new), expected, atol=1e-12)
    assert jensen_shannon(np.array([3.0, 0]), np.array([0, 5.0])) == pytest.approx(1)
