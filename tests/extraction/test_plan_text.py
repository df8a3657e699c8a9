"""A plan as text."""

from __future__ import annotations

from tests.extraction.fake import FakeEncoder
from tests.extraction.plans import plan_of


def test_a_word_cannot_write_a_line_of_the_plan() -> None:
    plan = plan_of([["the", "a\nnote         pay", "\x1b[2J"]], model=FakeEncoder())
    assert str(plan).count("\n") + 1 == len(plan.lines())
    assert r"a\nnote" in str(plan)
    assert r"\x1b[2J" in str(plan)
