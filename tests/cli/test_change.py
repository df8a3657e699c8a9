"""`embstore change`: what it prints, writes, draws and refuses."""

from __future__ import annotations

import polars as pl
import pytest

import embstore as es
from embstore.analysis.change import ChangeTests, measure_change, measure_periods
from embstore.analysis.change.periods import SUMMED
from tests.analysis.change.made import with_years, write_sides
from tests.cli.conftest import Work, settings
from tests.cli.test_output import valid
from tests.drawn import svg_texts

FEW = ("--set", "permutations=99", "--set", "resamples=20")


def sides(folder: Work) -> None:
    write_sides(folder.folder, n_words=6, layers=(0, 3))


@pytest.fixture
def folder(work: Work) -> Work:
    return work.put(sides)


def test_change_prints_layers_words_and_sentences(folder: Work) -> None:
    ran = folder.run("change", "side0.zarr", "side1.zarr", *FEW, "--set", "top=3", "--set", "min_occurrences=32")
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
    assert ran.err == "embstore: the tests of 6 words draw 20 occurrences of a side at most\n"
    assert "<svg" in (folder / "c.svg").read_text()


@pytest.fixture
def years(work: Work) -> Work:
    with_years(work.folder, n_periods=5)
    return work


@pytest.mark.slow
def test_more_than_two_periods_print_change_points_and_series(years: Work) -> None:
    ran = years.run("change", "years.zarr", "--by", "year", *FEW, "--plot", "series.svg")
    assert (ran.status, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0] == "change points, 5 periods from 1900 to 1940"
    assert lines[1].split() == ["word", "layer", "from", "gain", "p", "q", "apd_excess"]
    assert lines[2].split()[:3] == ["a", "2", "1920"], "the planted change has the lowest q"
    place = lines.index("apd_excess of each period against the one before it (*: a change point)")
    assert lines[place + 1].split() == ["a", "b"]
    assert [line.split()[0] for line in lines[place + 2 :]] == ["1910", "1920", "1930", "1940"]
    assert [line.split()[1].endswith("*") for line in lines[place + 2 :]] == [False, True, False, False]
    title = "Change over periods, layer 2: pairwise distance beyond that within sides"
    assert {title, "a", "b", "period", "against the period before"} <= svg_texts(years / "series.svg")


def test_series_as_json_and_as_a_file(years: Work) -> None:
    ran = years.run("change", "years.zarr", "--by", "year", *FEW, "--json", "--out", "s.parquet")
    tests = ChangeTests(permutations=99, resamples=20)
    expected = measure_periods(es.open(years / "years.zarr"), by="year", metrics=SUMMED, tests=tests)
    assert valid(ran, "change") == expected.table().to_dicts()
    written = pl.read_parquet(years / "s.parquet")
    assert written.filter(pl.col("metric") != "change_point").select(expected.frame.columns).equals(expected.frame)
    points = written.filter(metric="change_point").rename({"value": "gain"})
    assert len(points) >= 2
    assert points.select(expected.points.columns).equals(expected.points)
    assert written.filter(pl.col("p").is_not_null())["metric"].unique().to_list() == ["change_point"]
    few = settings(permutations=0, resamples=20)
    top = years.run("change", "years.zarr", "--by", "year", *settings(permutations=0, resamples=0, rank="prt", top=1))
    assert top.out.splitlines()[0] == "greatest changes, not tested, 5 periods from 1900 to 1940"
    *found, value = top.out.splitlines()[2].split()
    assert found == ["a", "2", "1920"]
    assert ["1920", value] in map(str.split, top.out.splitlines()), "the series is of the same measure"
    two = years.run("change", "years.zarr", "--by", "year", *few, "--set", "width=30", "--set", "matched=2")
    assert two.out.startswith("from 1890-1919 to 1920-1949\n"), "two spans are two sides"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--metrics", "apd,jsd"), "metric 'jsd'"),
        (("--set", "rank=jsd"), "rank 'jsd'"),
        (("--set", "sentences=1"), "--set sentences=1 has no effect on the 5 periods of --by year"),
        (("--set", "n_clusters=3"), "--set n_clusters=3 has no effect"),
        (("--set", "min_senses=3"), "--set min_senses=3 has no effect"),
        (("--set", "matched=3"), "--set matched=3 has no effect"),
        (("--metrics", "apd", "--set", "rank=prt"), "rank 'prt'"),
        (("--set", "width=0"), "width 0"),
        (("--set", "top=0"), "count 0"),
    ],
)
@pytest.mark.quick(3)
def test_what_is_of_two_sides_is_refused_for_more_periods(years: Work, words: tuple[str, ...], message: str) -> None:
    few = settings(permutations=0, resamples=0)
    years.refuses(" ".join(("change", "years.zarr", "--by", "year", *few, *words)), message)
