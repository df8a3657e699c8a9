"""Entities of BIO labels and their scores, against cases worked out by hand."""

from __future__ import annotations

import pytest

from embstore_studies.finetuning.training import accuracy, entities, entity_scores


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("O O O", set()),
        ("B-PER I-PER O", {(0, 2, "PER")}),
        ("B-PER B-PER", {(0, 1, "PER"), (1, 2, "PER")}),
        ("O B-LOC", {(1, 2, "LOC")}),
        ("I-PER I-PER O I-LOC", {(0, 2, "PER"), (3, 4, "LOC")}),
        ("B-PER I-LOC I-LOC", {(0, 1, "PER"), (1, 3, "LOC")}),
        ("I-PER B-PER I-PER", {(0, 1, "PER"), (1, 3, "PER")}),
        ("B-creative-work I-creative-work", {(0, 2, "creative-work")}),
        ("", set()),
    ],
)
def test_entities(labels: str, expected: set[tuple[int, int, str]]) -> None:
    assert entities(labels.split()) == expected


def test_only_whole_spans_of_the_same_type_count() -> None:
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["B-ORG", "O"], ["O", "O"]]
    given = [["B-PER", "O", "O", "B-LOC"], ["B-PER", "O"], ["B-LOC", "O"]]
    # right: LOC of the first sentence; given: 4; true: 3
    assert entity_scores(gold, given) == pytest.approx({"precision": 1 / 4, "recall": 1 / 3, "f1": 2 / 7})


def test_nothing_found_scores_nothing() -> None:
    assert entity_scores([["O", "B-PER"]], [["O", "O"]]) == {"precision": 0.0, "recall": 0.0, "f1": 0.0}
    assert entity_scores([["O"]], [["O"]])["f1"] == 0.0


def test_accuracy_counts_words_not_sentences() -> None:
    assert accuracy([["A", "B", "B"], ["A"]], [["A", "B", "A"], ["B"]]) == 0.5
