"""Splits are by word, disjoint and complete."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embstore.errors import InvalidValueError
from embstore.probes.splits import SPLITS, WordSplit, split_words

WORDS = st.dictionaries(st.text(min_size=1, max_size=4), st.lists(st.sampled_from("abc"), max_size=3), min_size=2)


@settings(max_examples=20)
@given(WORDS, WORDS, st.floats(0, 0.9), st.integers(0, 100))
def test_splits_are_disjoint_and_complete(
    train: dict[str, list[str]], test: dict[str, list[str]], share: float, seed: int
) -> None:
    train = {word: names for word, names in train.items() if word not in test}
    count = round(share * len(train))
    if not train or (share and not 0 < count < len(train)):
        with pytest.raises(InvalidValueError):
            split_words(train, test, dev_share=share, seed=seed)
        return
    split = split_words(train, test, dev_share=share, seed=seed)
    parts = [set(split.of(part)) for part in SPLITS]
    assert len(parts[0] | parts[1] | parts[2]) == sum(map(len, parts)) == len(train) + len(test)
    assert parts[0] | parts[1] == set(train)
    assert len(parts[1]) == count
    for part in SPLITS:
        for word, names in split.of(part).items():
            assert names == tuple(sorted(set((train if word in train else test)[word])))
    turned = split_words(dict(reversed(train.items())), test, dev_share=share, seed=seed)
    assert turned.sha256 == split.sha256  # whatever the order of the lists
    assert WordSplit.from_json(split.as_json()) == split


def test_another_seed_draws_other_words() -> None:
    train, test = {f"w{number}": ["a"] for number in range(50)}, {"x": ["a"]}
    drawn = {frozenset(split_words(train, test, seed=seed).dev) for seed in range(5)}
    assert len(drawn) == 5
    assert {len(words) for words in drawn} == {10}


def test_words_in_two_lists_are_refused_by_name() -> None:
    train = {f"w{number}": ["a"] for number in range(9)}
    with pytest.raises(InvalidValueError) as refused:
        split_words(train, {**{f"w{number}": ["b"] for number in range(5)}, "x": ["a"]}, dev_share=0)
    assert str(refused.value) == (
        "the train and the test words must not overlap: both have 'w0', 'w1', 'w2' and 2 more"
    )
    with pytest.raises(InvalidValueError, match=r"^the train and the dev words must not overlap: both have 'w1'$"):
        split_words(train, {"x": ["a"]}, dev={"w1": ["a"]})
    with pytest.raises(InvalidValueError, match=r"^the dev and the test words must not overlap: both have 'x'$"):
        split_words(train, {"x": ["a"]}, dev={"x": ["a"]})
