"""Nearest occurrences and the agreement of their labels, against loops that cannot be wrong."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import embstore as es
from embstore.errors import InvalidValueError
from tests.store_making import Made, make_store


@pytest.fixture(scope="module", params=["zarr", "h5"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_store(tmp_path_factory.mktemp("stores") / f"store.{request.param}", sentences=90)


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    norms = math.sqrt(sum(float(x) ** 2 for x in one)) * math.sqrt(sum(float(x) ** 2 for x in other))
    return sum(float(x) * float(y) for x, y in zip(one, other, strict=True)) / norms if norms else 0.0


def nearest_by_hand(vectors: np.ndarray) -> list[tuple[int, float]]:
    found = []
    for query in range(len(vectors)):
        scores = {other: cosine(vectors[query], vectors[other]) for other in range(len(vectors)) if other != query}
        best = max(scores, key=lambda other: scores[other])
        found.append((best, scores[best]))
    return found


def labelled_by_hand(made: Made, word: str) -> list[int]:
    return [row for row, listed in enumerate(made.table) if listed["word"] == word and listed["upos"] is not None]


def test_labelled_occurrences_are_those_of_the_table(made: Made) -> None:
    found = es.analysis.labelled_occurrences(made.store, "new york", label="upos")
    rows = labelled_by_hand(made, "new york")
    assert found.rows.tolist() == rows
    assert found.labels == [made.table[row]["upos"] for row in rows]
    assert found.layers == made.store.layers
    np.testing.assert_array_equal(found.vectors, made.vectors[:, rows])


def test_agreement_is_that_of_loops(made: Made) -> None:
    words = ["bank", "new york", "évident"]
    table = es.analysis.label_agreement(made.store, words=words, label="upos")
    assert table.columns == ["layer", "item", "value", "count", "baseline", "n_labels"]
    expected = []
    for word in words:
        rows = labelled_by_hand(made, word)
        labels = [made.table[row]["upos"] for row in rows]
        pairs = [(one, other) for one in range(len(rows)) for other in range(len(rows)) if one != other]
        chance = sum(labels[one] == labels[other] for one, other in pairs) / len(pairs)
        for place, layer in enumerate(made.store.layers):
            nearest = nearest_by_hand(made.vectors[place][rows])
            agree = sum(labels[query] == labels[other] for query, (other, _) in enumerate(nearest)) / len(rows)
            expected.append((layer, word, agree, len(rows), chance, len(Counter(labels))))
    assert len(table) == len(expected)
    for found, wanted in zip(table.rows(), expected, strict=True):
        assert (found[:2], found[3], found[5]) == (wanted[:2], wanted[3], wanted[5])
        assert (found[2], found[4]) == pytest.approx((wanted[2], wanted[4]))


def test_a_word_without_labels_is_refused(tmp_path: Path) -> None:
    made = make_store(tmp_path / "one.zarr", sentences=3)
    labelled = {listed["word"] for listed in made.table if listed["upos"] is not None}
    never = [str(listed["word"]) for listed in made.table if listed["word"] not in labelled]
    assert never, "choose another seed"
    with pytest.raises(InvalidValueError, match="no occurrence labelled in 'upos': choose another word or column"):
        es.analysis.label_agreement(made.store, words=never[:1], label="upos")


def test_a_word_labelled_once_is_refused(tmp_path: Path) -> None:
    made = make_store(tmp_path / "one.zarr", sentences=3)
    counts = Counter(listed["word"] for listed in made.table if listed["upos"] is not None)
    once = [str(word) for word, count in counts.items() if count == 1]
    assert once, "choose another seed"
    with pytest.raises(InvalidValueError, match="has one occurrence labelled in 'upos': two or more"):
        es.analysis.label_agreement(made.store, words=once[:1], label="upos")


def test_unknown_words_and_columns_are_refused(made: Made) -> None:
    with pytest.raises(InvalidValueError, match="no word 'bnak': did you mean 'bank'"):
        es.analysis.labelled_occurrences(made.store, "bnak", label="upos")
    with pytest.raises(InvalidValueError, match="no column 'ner'"):
        es.analysis.labelled_occurrences(made.store, "bank", label="ner")
