"""`embstore change`: what it prints, writes, draws and refuses."""

from __future__ import annotations

import polars as pl
import pytest

import embstore as es
from embstore.analysis.change import ChangeTests, measure_change
from tests.analysis.change.made import write_sides
from tests.cli.conftest import Work
from tests.cli.test_output import valid

FEW = ("--set", "permutations=99", "--set", "resamples=20")


@pytest.fixture
def folder(work: Work) -> Work:
    write_sides(work.folder, n_words=6, layers=(0, 3))
    return work


def test_change_prints_layers_words_and_sentences(folder: Work) -> None:
    ran = folder.run("change", "side0.zarr", "side1.zarr", *FEW, "--set", "top=3", "--set", "min_count=32")
    assert (ran.status, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0] == "from side0 to side1; 1 word with too few occurrences"
    assert "the words that change most in layer 3, by apd_excess" in lines
    place = lines.index("the words that change most in layer 3, by apd_excess")
    assert lines[place + 2].split()[0] == "w1", "w0 has too few, and w1 was changed"
    assert "w1: most typical of side0" in lines
    assert "w1: most typical of side1" in lines


def test_change_as_json_and_as_a_file(folder: Work) -> None:
    ran = folder.run("change", "side0.zarr", "side1.zarr", *FEW, "--layers", "last", "--json", "--out", "c.parquet")
    tests = ChangeTests(permutations=99, resamples=20)
    expected = measure_change(*(es.open(folder / f"side{n}.zarr") for n in range(2)), layers=-1, tests=tests)
    assert valid(ran, "change") == expected.frame.to_dicts()
    assert pl.read_parquet(folder / "c.parquet").equals(expected.frame)


def test_notes_and_figures(folder: Work) -> None:
    few = ("--set", "permutations=19", "--set", "resamples=0", "--metrics", "prt,apd")
    ran = folder.run("change", "side0.zarr", "side1.zarr", *few, "--set", "sample=20", "--plot", "c.svg")
    assert ran.status == 0
    assert ran.err == "embstore: the tests of 6 words are of 20 occurrences of each side, drawn at random\n"
    assert "<svg" in (folder / "c.svg").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("side0.zarr",), "change needs two sides"),
        (("side0.zarr", "--by", "year"), "no column 'year'"),
        (("side0.zarr", "side1.zarr", "--metrics", "none"), "metric 'none'"),
        (("side0.zarr", "side1.zarr", "--set", "permutations=5"), "permutations 5"),
        (("side0.zarr", "side1.zarr", "--set", "min_count=999"), "no word has 999 occurrences"),
    ],
)
def test_bad_input_is_one_line(folder: Work, words: tuple[str, ...], message: str) -> None:
    ran = folder.run("change", *words)
    assert (ran.status, len(ran.err.splitlines())) == (2, 1)
    assert message in ran.err
