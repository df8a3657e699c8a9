"""What a plan advises about a corpus that is probably not read as it was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

import embstore as es
from tests.extraction.fake import FakeEncoder
from tests.extraction.plans import plan_of


class Uncased(FakeEncoder):
    def pieces(self, word: str) -> list[str]:
        return super().pieces(word.lower())


@pytest.mark.parametrize(
    ("options", "advised"),
    [
        ({}, ["to the model The is the: normalize=lower makes them one"]),
        ({"normalize": "lower"}, []),
        ({"normalize": "lower", "words": "spaces"}, ["22% of the types end in a punctuation mark: words=punctuation"]),
        ({"normalize": "lower", "split": "lines"}, ["60% of the first 5 lines do not end a sentence: split=sentences"]),
    ],
)
def test_a_plan_says_what_is_probably_not_meant(tmp_path: Path, options: dict[str, str], advised: list[str]) -> None:
    (tmp_path / "a.txt").write_text("The bank.\nof a\nriver was\nsteep and\nold.\n")
    corpus = es.open_corpus(tmp_path / "a.txt", **options)
    assert [line.partition(" (")[0] for line in plan_of(corpus, model=Uncased()).advice] == advised
    assert "to the model" not in str(plan_of(corpus, model=FakeEncoder()).advice)
