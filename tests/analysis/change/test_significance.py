"""Tests of change against obvious loops and scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon
from scipy.stats import false_discovery_control

from embstore.analysis.change.significance import (
    Units,
    attainable,
    false_discovery,
    gram_of,
    intervals,
    jensen_shannon,
    matched,
    p_values,
    permutations,
    resamples,
    weighted_products,
)
from embstore.analysis.change.testing import Drawn
from tests.analysis.change.made import measures_by_pairs

TESTED = ("apd", "apd_excess", "prt", "prt_centered", "selfsim_change")


def units_of(seed: int, *, n: int = 14, hidden: int = 6, documents: int | None = None) -> tuple[Units, np.ndarray]:
    """Units of vectors of which the first half are old; those of one document belong together."""
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(n, hidden)) + 1
    vectors[n // 2 :] += random.normal(size=hidden)
    is_new = np.arange(n) >= n // 2
    numbers = np.arange(n) if documents is None else np.arange(n) * documents // n
    clusters = random.integers(0, 3, n)
    return Units.of(vectors, is_new, numbers, np.zeros((2, hidden)), clusters), vectors


def test_a_permutation_is_a_weighted_sum() -> None:
    units, vectors = units_of(0)
    for old, new in permutations(units.is_new, 5, np.random.default_rng(1)):
        found = units.measures(old, new)
        for number in range(5):
            sides = vectors[old[number] > 0], vectors[new[number] > 0]
            assert [len(side) for side in sides] == [7, 7]
            expected = measures_by_pairs(*sides, np.zeros((2, 6)))
            for metric in TESTED:
                assert found[metric][number] == pytest.approx(expected[metric], abs=1e-9), metric


def test_a_zero_vector_is_alike_to_none() -> None:
    units, vectors = units_of(3)
    vectors[[2, 9, 11]] = 0
    made = Units.of(vectors, units.is_new, np.arange(14), np.zeros((2, 6)), None)
    expected = measures_by_pairs(vectors[:7], vectors[7:], np.zeros((2, 6)))
    for metric in TESTED:
        assert made.observed[metric][0] == pytest.approx(expected[metric], abs=1e-9), metric


def test_senses_need_enough_occurrences_on_both_sides() -> None:
    random = np.random.default_rng(0)
    periods = np.repeat([0, 1, 2], [9, 9, 4])
    vectors, numbers = random.normal(size=(22, 5)), np.arange(22)
    drawn = Drawn(vectors, periods, numbers, numbers, np.zeros(22, np.int64), numbers % 3)
    for new, is_enough in ((1, True), (2, False)):
        units = drawn.between(0, new, np.zeros((3, 5)), min_senses=9)
        assert (units.senses is not None) == is_enough


@pytest.mark.parametrize("documents", [None, 6])
def test_p_values_are_those_of_an_obvious_loop(documents: int | None) -> None:
    units, vectors = units_of(2, documents=documents)
    numbers = np.arange(14) if documents is None else np.arange(14) * documents // 14
    sides = {(number, new): np.flatnonzero((numbers == number) & ((np.arange(14) >= 7) == new)) for number in
             np.unique(numbers) for new in (False, True)}  # fmt: skip
    members = [rows for rows in sides.values() if len(rows)]
    labels = np.array([bool(rows[0] >= 7) for rows in members])
    assert units.is_new.tolist() == labels.tolist()

    def value(is_new: np.ndarray) -> dict[str, float]:
        chosen = [np.concatenate([rows for rows, new in zip(members, is_new, strict=True) if new == side]) for side in
                  (False, True)]  # fmt: skip
        return measures_by_pairs(vectors[chosen[0]], vectors[chosen[1]], np.zeros((2, 6)))

    drawn = [new > 0 for _, each in permutations(units.is_new, 39, np.random.default_rng(5)) for new in each]
    values = [value(is_new) for is_new in drawn]
    observed, found = value(labels), p_values(units, 39, np.random.default_rng(5))
    for metric in TESTED:
        each, own = [one[metric] for one in values], observed[metric]
        if metric == "selfsim_change":
            each, own = [abs(one) for one in each], abs(own)
        assert found[metric] == (1 + sum(one >= own - 1e-9 for one in each)) / 40, metric


def test_no_difference_has_uniform_p_values() -> None:
    found = []
    for seed in range(60):
        random = np.random.default_rng(seed)
        vectors, is_new = random.normal(size=(20, 5)), np.arange(20) >= 8
        units = Units.of(vectors, is_new, np.arange(20), np.zeros((2, 5)), None)
        found.append(p_values(units, 39, random)["apd_excess"])
    assert np.mean(found) == pytest.approx(0.5, abs=0.15)
    assert np.mean(np.array(found) <= 0.1) < 0.3


def test_intervals_are_quantiles_of_resampled_units() -> None:
    units, vectors = units_of(3)
    drawn = [(old[i], new[i]) for old, new in resamples(units.is_new, 30, np.random.default_rng(8)) for i in range(30)]
    values = []
    for old, new in drawn:
        assert old[7:].sum() == new[:7].sum() == 0
        assert old.sum() == new.sum() == 7
        sides = [np.repeat(vectors, each.astype(int), axis=0).mean(0) for each in (old, new)]
        values.append(1 - sides[0] @ sides[1] / np.linalg.norm(sides[0]) / np.linalg.norm(sides[1]))
    found = intervals(units, 30, np.random.default_rng(8))["prt"]
    assert found == pytest.approx(tuple(np.quantile(values, [0.025, 0.975])))


def test_products_over_features_and_over_the_gram_matrix_agree() -> None:
    random = np.random.default_rng(4)
    sums, old, new = random.normal(size=(9, 8)), random.random((3, 9)), random.random((3, 9))
    wide = np.hstack([sums, np.zeros((9, 4))])
    one, other = (weighted_products(each, old, new, gram_of(each)) for each in (sums, wide))
    for name in ("old", "both", "new"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-12)


def test_the_divergence_is_that_of_scipy() -> None:
    random = np.random.default_rng(0)
    old, new = random.integers(0, 4, (2, 20, 5)) + np.eye(5, dtype=int)[0]
    expected = [jensenshannon(p, q, base=2) ** 2 for p, q in zip(old, new, strict=True)]
    np.testing.assert_allclose(jensen_shannon(old, new), expected, atol=1e-12)
    assert jensen_shannon(np.array([3.0, 0]), np.array([0, 5.0])) == pytest.approx(1)


def test_false_discovery_is_that_of_scipy() -> None:
    p = np.array([0.01, 0.04, 0.03, 0.02, 0.5, 0.04, 1.0, 0.001])
    np.testing.assert_allclose(false_discovery(p), false_discovery_control(p))
    with_none = np.insert(p, 3, np.nan)
    found = false_discovery(with_none)
    assert np.isnan(found[3])
    np.testing.assert_allclose(np.delete(found, 3), false_discovery_control(p))


def test_whether_any_word_can_be_significant() -> None:
    assert attainable(np.full(100, 0.05))
    assert not attainable(np.full(100, 0.06))
    assert not attainable(np.r_[0.01, np.ones(9)])
    assert attainable(np.r_[0.005, np.ones(9)])


def test_words_are_compared_with_those_of_like_frequency() -> None:
    random = np.random.default_rng(7)
    values, counts = random.normal(size=30), random.permutation(30).astype(float)
    values[4] = np.nan
    median, p = matched(values, counts, 6)
    assert np.isnan([median[4], p[4]]).all()
    known = [number for number in np.argsort(counts) if number != 4]
    for place in range(3, 26):
        own, others = known[place], known[place - 3 : place] + known[place + 1 : place + 4]
        assert median[own] == pytest.approx(np.median(values[[own, *others]]))
        assert p[own] == (1 + (values[others] >= values[own]).sum()) / 7
    for lowest in known[:3]:
        assert median[lowest] == pytest.approx(np.median(values[known[:7]]))
    assert np.isnan(matched(values[:2], counts[:2], 6)[0]).all()


def test_copies_of_a_unit_are_no_pairs() -> None:
    """A resample's self-similarity is the mean over pairs of which each has one occurrence of a copy of its own."""
    random = np.random.default_rng(6)
    vectors, is_new, names = random.normal(size=(9, 4)), np.arange(9) >= 5, np.array([0, 0, 1, 2, 2, 3, 4, 4, 5])
    units = Units.of(vectors, is_new, names, np.zeros((2, 4)), None)
    old, new = np.array([[2.0, 0, 1, 0, 0, 0]]), np.array([[0.0, 0, 0, 0, 3, 1]])
    found = units.measures(old, new)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for weights, side in ((old[0], "selfsim_old"), (new[0], "selfsim_new")):
        drawn = [(name, copy) for name in range(6) for copy in range(int(weights[name]))]
        each = [(name, copy, row) for name, copy in drawn for row in np.flatnonzero(names == name)]
        cosines = [
            unit[one[2]] @ unit[other[2]]
            for one in each
            for other in each
            if one != other and (one[0] != other[0] or one[1] == other[1])
        ]
        assert found[side][0] == pytest.approx(np.mean(cosines))
    excess = found["apd"][0] - 1 + (found["selfsim_old"][0] + found["selfsim_new"][0]) / 2
    assert found["apd_excess"][0] == pytest.approx(excess)


def test_a_side_of_one_unit_has_no_interval() -> None:
    """Every resample of one document is that document: it says nothing about others."""
    random = np.random.default_rng(2)
    vectors, is_new = random.normal(size=(12, 4)), np.arange(12) >= 6
    for names in (np.where(is_new, 9, np.arange(12)), is_new.astype(int)):
        units = Units.of(vectors, is_new, names, np.zeros((2, 4)), None)
        found = intervals(units, 20, random)
        assert set(found) == set(units.observed)
        assert np.isnan(list(found.values())).all()
