"""Words that mark groups of contexts, against both formulas written out word by word; distinct contexts of a store."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import embstore as es
from embstore.analysis.neighbors.markers import contexts, distinct_contexts, marker_words, marking
from tests.store_making import Made, make_store


def by_hand(counts: list[list[int]], group: int) -> list[int]:
    """G^2 of the table of two rows and two columns, and the class-based tf-idf of those that it finds."""
    own, total = counts[group], sum(map(sum, counts))
    p, scores = [], []
    for item, here in enumerate(own):
        if (whole := sum(row[item] for row in counts)) < 2:
            continue
        g = 0.0
        for observed, of_group in ((here, sum(own)), (whole - here, total - sum(own))):
            if observed:
                g += 2 * observed * math.log(observed / (whole * of_group / total))
        p.append(math.erfc(math.sqrt(max(g, 0) / 2)))  # of chi-squared with one degree of freedom
        if here >= 2 and here / sum(own) > whole / total:
            score = -math.sqrt(here / sum(own)) * math.log(1 + total / len(counts) / whole)
            scores.append((score, item, p[-1]))
    most = max([each for rank, each in enumerate(sorted(p), 1) if each <= 0.05 * rank / len(p)], default=-1.0)
    return [item for _, item, each in sorted(scores) if each <= most]


def test_items_that_mark_a_group_are_in_the_order_of_class_based_tf_idf() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        rate = random.gamma(0.5, 8, (1, 30)) * random.choice([1, 1, 1, 4], (4, 30))
        counts = random.poisson(rate).tolist()
        found = marking(counts, count=30)
        assert any(found)
        for group, own in enumerate(found):
            assert own == by_hand(counts, group)
    assert [own[:2] for own in found] == marking(counts, count=2)
    assert marking(np.empty((0, 30)), count=30) == []


def test_chance_marks_hardly_any_group() -> None:
    random = np.random.default_rng(0)
    share = 1 / np.arange(1, 3001) / (1 / np.arange(1, 3001)).sum()
    halves = [random.multinomial(5000, share, 2).tolist() for _ in range(40)]
    assert sum(len(marked) for counts in halves for marked in marking(counts, count=8)) <= 12


def test_function_words_mark_no_cluster_and_repeated_contexts_count_once() -> None:
    river = [("the", "water", f"r{n}") for n in range(12)] + [("of", "the", "boat", f"s{n}") for n in range(12)]
    money = [("the", "loan", "7", f"m{n}") for n in range(24)] + [("spam", "spam")] * 30
    groups = [0] * len(river) + [1] * len(money)
    assert marker_words([*river, *money], groups, 2, count=3)[0] == ["boat", "of", "water"]
    assert marker_words([*river, *money], groups, 2, count=3)[1] == ["loan"]
    assert marker_words([*river, ("boat",) * 99], [*groups[:24], -1], 2, count=3) == [[], []]
    assert marker_words(river, [0] * 24, 1, count=3) == [[]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_store(tmp_path_factory.mktemp("markers") / "a.zarr")


def test_contexts_are_the_words_on_both_sides(made: Made) -> None:
    rows = list(range(0, made.store.n_rows, 3))
    for row, found in zip(rows, contexts(made.store, rows), strict=True):
        place, words = int(str(made.table[row]["position"])), str(made.table[row]["text"]).split()
        stop = place + len(str(made.table[row]["word"]).split())
        assert found == (*words[:place][-5:], *words[stop : stop + 5])


def test_senses_of_distinct_contexts_have_each_once(made: Made, tmp_path: Path) -> None:
    store, random = made.store, np.random.default_rng(3)
    rows = store.select(words="bank").rows
    every = list(contexts(store, rows))
    first = [row for place, row in enumerate(rows.tolist()) if every.index(every[place]) == place]
    assert 10 < len(first) < len(rows)
    assert distinct_contexts(store, rows, None, random).tolist() == first
    some = distinct_contexts(store, rows, 10, random)
    assert len(set(contexts(store, some))) == len(some) == 10
    found = es.senses(store, "bank", layers=2, distinct=True)
    assert sorted(found.occurrences["occurrence"]) == first
    assert len(found.markers()) == len(found.frame)
