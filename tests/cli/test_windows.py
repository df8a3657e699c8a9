"""`--context-window` and `--attention-window`."""

from __future__ import annotations

import pytest

import embstore as es
from tests.cli.conftest import Work


@pytest.mark.parametrize("kind", ["context", "attention"])
def test_a_window_is_recorded_and_named_in_the_plan(work: Work, kind: str) -> None:
    ran = work.run(*f"extract corpus.txt y.h5 --model model --layers 1 --{kind}-window 3".split())
    assert f"{kind} window" in ran.out
    assert "3 words left and right" in ran.out
    assert es.open(work / "y.h5").metadata.extraction[f"{kind}_window"] == 3


def test_two_kinds_of_windows_exclude_each_other(work: Work) -> None:
    both = "--context-window 2 --attention-window 3"
    work.refuses(f"extract corpus.txt new.zarr --model model {both}", "context window 2 and attention window 3 exclude")
