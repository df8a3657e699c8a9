"""The rules that choose occurrences, against plain Python over the same rows."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from embstore.corpus import Keep, keep
from embstore.errors import InvalidValueError

FORMS = ("the", "New York", "bank", "snake_case", "_", "é")
SENTENCE = st.lists(
    st.tuples(st.integers(0, len(FORMS) - 1), st.integers(-1, 2), st.integers(-1, 1)), min_size=0, max_size=6
)


@dataclass
class Columns:
    """The rows of some sentences, each a list of (type, class, upos)."""

    types: NDArray[np.int32]
    sentences: NDArray[np.int64]
    contexts: NDArray[np.uint64]
    labels: dict[str, NDArray[np.int32]]
    forms: Sequence[str] = FORMS

    @classmethod
    def of(cls, sentences: Sequence[Sequence[tuple[int, int, int]]], forms: Sequence[str] = FORMS) -> Columns:
        rows = [(*row, number) for number, sentence in enumerate(sentences) for row in sentence]
        table = np.array(rows, np.int64).reshape(-1, 4)
        hashes = [hash(tuple(row[0] for row in sentence)) % 2**64 for sentence in sentences]
        return cls(
            types=table[:, 0].astype(np.int32),
            sentences=table[:, 3],
            contexts=np.array(hashes, np.uint64),
            labels={"class": table[:, 1].astype(np.int32), "upos": table[:, 2].astype(np.int32)},
            forms=forms,
        )

    def rows(self, rules: Keep) -> list[int]:
        mask = rules.mask(**vars(self))
        assert mask.dtype == bool
        return np.flatnonzero(mask).tolist()


def oracle(rules: Keep, columns: Columns) -> list[int]:
    """All rules but the sample."""
    rows = list(range(len(columns.types)))
    form = [columns.forms[number] for number in columns.types]
    if rules.words is not None:
        wanted = {spaced(word) for word in rules.words}
        rows = [row for row in rows if spaced(form[row]) in wanted]
    contexts = defaultdict(set)
    for row in rows:
        contexts[form[row]].add(int(columns.contexts[columns.sentences[row]]))
    return [row for row in rows if len(contexts[form[row]]) >= rules.min_contexts]


def spaced(form: str) -> str:
    return form if set(form) == {"_"} else form.replace("_", " ")


def groups(rules: Keep, columns: Columns, rows: Sequence[int]) -> dict[Any, list[int]]:
    found = defaultdict(list)
    for row in rows:
        label = columns.labels[rules.per][row] if rules.per else None
        found[columns.types[row], label].append(row)
    return found


@st.composite
def rules(draw: st.DrawFn) -> Keep:
    most = draw(st.none() | st.integers(1, 4))
    return Keep(
        words=draw(st.none() | st.frozensets(st.sampled_from([*FORMS, "New_York", "x"]), min_size=1)),
        min_contexts=draw(st.integers(1, 4)),
        max_contexts=most,
        per=draw(st.sampled_from([None, "class", "upos"])) if most else None,
        seed=draw(st.integers(0, 2**64 - 1)),
    )


@settings(max_examples=60)
@given(st.lists(SENTENCE, max_size=12), st.lists(st.integers(0, 11), max_size=12), rules(), st.integers(1, 20))
def test_rules_against_plain_python(
    sentences: list[Any], repeated: list[int], given_rules: Keep, pass_rows: int
) -> None:
    sentences = sentences + [sentences[at] for at in repeated if at < len(sentences)]
    columns = Columns.of(sentences)
    before = oracle(given_rules, columns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keep, "PASS_ROWS", pass_rows)
        found = columns.rows(given_rules)
    assert found == columns.rows(given_rules)
    assert found == sorted(set(found))
    assert set(found) <= set(before)
    most = given_rules.max_contexts
    if most is None:
        assert found == before
        return
    kept = groups(given_rules, columns, found)
    for group, rows in groups(given_rules, columns, before).items():
        assert len(kept[group]) == min(most, len(rows))


def slow_numbers(seed: int, form: str, many: int) -> list[int]:
    """The random number of each occurrence of a word, in Python's own integers."""
    from hashlib import blake2b

    start = int.from_bytes(blake2b(form.encode(), digest_size=8, key=seed.to_bytes(8, "little")).digest(), "little")
    found = []
    for rank in range(many):
        state = (start + rank * 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
        found.append(state ^ state >> 31)
    return found


def random_columns(rows: int, *, seed: int, forms: int = 40) -> Columns:
    random = np.random.default_rng(seed)
    types = (forms * random.random(rows) ** 3).astype(int).tolist()
    table = [(word, int(label), -1) for word, label in zip(types, random.integers(-1, 4, rows), strict=True)]
    sentences = [table[at : at + 10] for at in range(0, rows, 10)]
    return Columns.of(sentences, [f"word{number}" for number in range(forms)])


@pytest.mark.parametrize("per", [None, "class"])
def test_the_sample_is_the_lowest_numbers_of_each_word(per: str | None) -> None:
    columns = random_columns(5000, seed=1)
    given_rules = Keep(max_contexts=7, per=per, seed=3)
    before = oracle(given_rules, columns)
    numbers: dict[int, int] = {}
    for rows in groups(Keep(), columns, before).values():
        form = columns.forms[columns.types[rows[0]]]
        numbers.update(zip(rows, slow_numbers(3, form, len(rows)), strict=True))
    expected = []
    for rows in groups(given_rules, columns, before).values():
        expected.extend(sorted(rows, key=numbers.__getitem__)[:7])
    assert columns.rows(given_rules) == sorted(expected)


@pytest.mark.parametrize("per", [None, "class"])
@pytest.mark.slow
def test_the_mask_does_not_depend_on_blocks_and_passes(per: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = random_columns(800, seed=2)
    given_rules = Keep(min_contexts=3, max_contexts=5, per=per, seed=9)
    expected = columns.rows(given_rules)
    for block, pass_rows in [(1, 1), (7, 50), (799, 10**9), (64, 400)]:
        monkeypatch.setattr(keep, "BLOCK_ROWS", block)
        monkeypatch.setattr(keep, "PASS_ROWS", pass_rows)
        assert columns.rows(given_rules) == expected


def test_repeated_sentences_are_one_context() -> None:
    columns = Columns.of([[(0, 0, 0), (0, 0, 0)], [(0, 0, 0), (0, 0, 0)], [(0, 0, 0), (1, 0, 0)], [(1, 0, 0)]])
    assert columns.rows(Keep(min_contexts=2)) == [0, 1, 2, 3, 4, 5, 6]
    assert columns.rows(Keep(min_contexts=3)) == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"words": "bank"}, "words: 'bank' is not a set of words"),
        ({"words": frozenset()}, "words: the set is empty"),
        ({"words": {"a", " "}}, "words: ' ' is not a word"),
        ({"words": {"\ud800"}}, "words: '\\ud800' is not a word"),
        ({"seed": 2**64}, "seed 18446744073709551616 is not allowed: give 0 to 18,446,744,073,709,551,615"),
        ({"per": "class"}, "per: 'class' says how to count max_contexts"),
        ({"per": 3, "max_contexts": 1}, "per: 3 is not the name of a label column"),
    ],
)
def test_bad_rules(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        Keep(**options)
    assert expected in str(caught.value)


def test_a_label_column_that_is_not_there() -> None:
    with pytest.raises(InvalidValueError, match=r"no label column 'pos'; there are: class, upos$"):
        Columns.of([[(0, 0, 0)]]).rows(Keep(max_contexts=1, per="pos"))


def test_rules_as_json() -> None:
    given_rules = Keep(words={"b", "a"}, max_contexts=100, per="class", seed=7)  # type: ignore[arg-type]
    assert json.loads(json.dumps(given_rules.as_json())) == {
        "words": ["a", "b"], "min_contexts": 1, "max_contexts": 100, "per": "class", "seed": 7,
    }  # fmt: skip
    assert given_rules == Keep(words=frozenset("ab"), max_contexts=100, per="class", seed=7)
    assert Keep().as_json()["words"] is None
