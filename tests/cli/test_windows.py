"""`--context-window` and `--attention-window`: one width or several, in one store each."""

from __future__ import annotations

import json

import pytest

import embstore as es
from tests.cli.conftest import Work

EXTRACT = ("extract", "corpus.txt")


def test_several_windows_make_several_stores_and_resume(work: Work) -> None:
    command = (*EXTRACT, "x.zarr", "--model", "model", "--layers", "0,1", "--context-window", "full,0,2")
    ran = work.run(*command)
    assert ran.status == 0
    assert [line.split(" holds ")[0] for line in ran.out.splitlines()[-3:]] == ["x-k0.zarr", "x-k2.zarr", "x-full.zarr"]
    before = work.contents()
    again = work.run(*command, "--json")
    assert work.contents() == before
    printed = json.loads(again.out)
    assert [store["store"] for store in printed["stores"]] == ["x-k0.zarr", "x-k2.zarr", "x-full.zarr"]
    assert printed["plan"]["context_windows"] == [0, 2, None]
    assert es.open(work / "x-k2.zarr").metadata.extraction["context_window"] == 2


def test_one_window_keeps_the_name_but_for_its_place(work: Work) -> None:
    assert work.run(*EXTRACT, "y.h5", "--model", "model", "--layers", "1", "--attention-window", "1").status == 0
    assert es.open(work / "y.h5").metadata.extraction["attention_window"] == 1
    assert work.run(*EXTRACT, "z{window}.h5", "--model", "model", "--layers", "1", "--context-window", "3").status == 0
    assert es.open(work / "z3.h5").metadata.extraction["context_window"] == 3


def test_a_plan_names_the_windows(work: Work) -> None:
    ran = work.run("extract", "corpus.txt", "x.zarr", "--model", "model", "--attention-window", "0,4,full", "--dry-run")
    assert ran.status == 0
    assert "attention windows  0, 4, full words left and right: 3 stores" in ran.out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--context-window -1", "--context-window '-1' is not allowed: give 0 or more words, full, or several"),
        ("--attention-window wide", "--attention-window 'wide' is not allowed"),
        ("--context-window 2 --attention-window 2", "--context-window 2 and --attention-window 2 exclude each other"),
    ],
)
def test_bad_windows_are_one_line(work: Work, options: str, says: str) -> None:
    work.refuses(f"extract corpus.txt new.zarr --model model {options}", says)
