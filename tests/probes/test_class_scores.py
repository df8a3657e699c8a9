"""The decision rule of Zhao et al. 2020 against a slow count of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embstore.probes.classes.scores import Decisions, scored
from tests.probes.oracle import f1, rule_of_half

CLASSES = ("a", "b", "c")


def values_of(decisions: Decisions) -> dict[tuple[str, str], float | None]:
    return {(row["metric"], row["item"]): row["value"] for row in scored(decisions, 0, 0, CLASSES)}


def decisions(words: list[str], own: list[str], yes: np.ndarray) -> Decisions:
    """Count the decisions on contexts, `yes` bool [n, class]."""
    pairs = sorted(set(zip(words, own, strict=True)))
    named = sorted(set(words))
    positives = np.zeros((len(pairs), 1, 1, len(CLASSES)), np.int32)
    contexts = np.zeros(len(pairs), np.int64)
    for word, name, row in zip(words, own, yes, strict=True):
        place = pairs.index((word, name))
        positives[place, 0, 0] += row
        contexts[place] += 1
    gold = np.array([[name == each for each in CLASSES] for _, name in pairs])
    return Decisions(positives, contexts, gold, np.array([named.index(word) for word, _ in pairs]))


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.floats(0.05, 0.95))
def test_scores_are_those_of_a_slow_count(seed: int, count: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    words = [f"w{number}" for number in rng.integers(0, 9, count)]
    own = [CLASSES[number] for number in rng.integers(0, 3, count)]
    yes = rng.random((count, 3)) < share
    made = decisions(words, own, yes)
    rows = list(scored(made, 0, 0, CLASSES))
    listed = [dict(zip(CLASSES, row.tolist(), strict=True)) for row in yes]
    expected, counts = rule_of_half(listed, words, own, list(CLASSES))
    values = values_of(made)
    assert values["f1", ""] == pytest.approx(expected["f1"])
    assert values["contexts_f1", ""] == pytest.approx(expected["contexts_f1"])
    for name in CLASSES:
        value = values["class_f1", name]
        assert (0.0 if value is None else value) == pytest.approx(f1(counts[name]))
    assert [row["count"] for row in rows if row["metric"] == "f1"] == [len(made.contexts)]


def test_half_of_the_contexts_is_enough_for_either_kind_of_decision() -> None:
    yes = np.array([[1, 1, 1], [1, 1, 1], [0, 0, 1], [0, 0, 0]], bool)
    made = decisions(["w"] * 4, ["a"] * 4, yes)
    values = values_of(made)
    assert values["recall", ""] == 1.0  # 2 of 4 on its own class
    assert values["precision", ""] == 0.5  # b: 2 of 4 wrong is right by half; c: 3 of 4 wrong is not


def test_words_of_all_classes_count_each_decision() -> None:
    gold = np.array([[1, 1, 0], [0, 0, 1], [0, 1, 0]], bool)
    yes = np.array([[1, 0, 1], [0, 0, 1], [0, 1, 1]], np.int32)
    values = values_of(Decisions(yes[:, None, None], np.ones(3, np.int64), gold, np.arange(3)))
    assert (values["precision", ""], values["recall", ""]) == (3 / 5, 3 / 4)
    assert values["f1", ""] == values["contexts_f1", ""] == pytest.approx(2 * 3 / (5 + 4))


def test_a_control_task_counts_the_pairs_of_the_task() -> None:
    """With the pairs of a word joined there would be 2 decisions to find, and 3 in the task."""
    made = decisions(["v", "w", "w", "w"], ["a", "a", "b", "b"], np.ones((4, 3), bool))
    control = made.of_classes(slice(0, 3), np.array([[1, 0, 0], [0, 0, 1]], bool))
    assert control.gold.argmax(1).tolist() == [0, 2, 2]
    for task in (made, control):
        [row] = [row for row in scored(task, 0, 0, CLASSES) if row["metric"] == "f1"]
        assert (row["count"], row["value"]) == (3, 2 * 3 / (9 + 3))


def test_nothing_to_find_and_nothing_found_has_no_score() -> None:
    gold = np.array([[True, False, False]])
    made = Decisions(np.zeros((1, 1, 1, 3), np.int32), np.ones(1, np.int64), gold, np.zeros(1, np.int64))
    values = values_of(made)
    assert (values["f1", ""], values["precision", ""], values["recall", ""]) == (0.0, None, 0.0)
    assert (values["class_f1", "a"], values["class_f1", "b"]) == (0.0, None)
