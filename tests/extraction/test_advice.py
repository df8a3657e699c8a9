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


PROSE = "A man of the old town was seen there, and the wood burned high in the hills beyond it on that day of spring. "


@pytest.mark.parametrize(
    ("text", "advised"),
    [
        ("今天天气很好，我们去公园散步。他说：你好！", "types are runs of a script without spaces: language=zh"),
        (
            "これは日本語の文です。東京都庁舎へ行きました。",
            "types are runs of a script without spaces: language=zh (ja, th)",
        ),
        ("ฉันไปโรงเรียนทุกวัน", "1 types are runs of a script without spaces: language=zh (ja, th) finds their words"),
        ("The word 北京 and the word 東京 are names of cities.", None),
        (PROSE, None),
    ],
)
def test_text_that_is_not_words_with_spaces_gets_a_note(tmp_path: Path, text: str, advised: str | None) -> None:
    (tmp_path / "a.txt").write_text(text, "utf-8")
    advice = plan_of(tmp_path / "a.txt", model=FakeEncoder(max_subwords=None)).advice
    assert (advised is None) == (not advice), advice
    assert advised is None or advised in advice[0]


def test_a_word_cannot_write_a_line_of_the_plan() -> None:
    plan = plan_of([["the", "a\nnote         pay", "\x1b[2J"]], model=FakeEncoder())
    assert str(plan).count("\n") + 1 == len(plan.lines())
    assert r"a\nnote" in str(plan)
    assert r"\x1b[2J" in str(plan)
