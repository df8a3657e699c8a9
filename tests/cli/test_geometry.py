"""`embstore geometry`: what it prints, writes and refuses."""

from __future__ import annotations

import json
from importlib import resources

import jsonschema
import polars as pl
import pytest

import embstore as es
from tests.cli.conftest import Work


def test_it_prints_a_table_a_metric(work: Work) -> None:
    ran = work.run("geometry", "store.zarr", "--min-contexts", "2", "--metrics", "all")
    assert (ran.status, ran.err) == (0, "")
    for title in (
        "self-similarity of words",
        "anisotropy",
        "intra-sentence",
        "explainable",
        "mean norm",
        "context-spec",
    ):
        assert title in ran.out
    assert "95 % interval" in ran.out


@pytest.mark.parametrize("suffix", ["csv", "parquet", "json"])
def test_a_file_has_every_row_of_the_function(suffix: str, work: Work) -> None:
    out = f"geometry.{suffix}"
    ran = work.run("geometry", "store.zarr", "--min-contexts", "2", "--layers", "0,2", "--out", out, "--centered")
    assert (ran.status, ran.err) == (0, "")
    read = {"csv": pl.read_csv, "parquet": pl.read_parquet, "json": pl.read_json}[suffix](work / out)
    table = es.geometry(es.open(work / "store.zarr"), min_contexts=2, layers=(0, 2), centered=True)
    assert read.height == table.height
    assert read["value"].to_list() == pytest.approx(table["value"].to_list(), nan_ok=True)
    assert read["layer"].to_list() == table["layer"].to_list()


def test_json_of_two_stores_follows_the_schema(work: Work) -> None:
    assert work.run("export", "store.zarr", "other.h5").status == 0
    ran = work.run("geometry", "store.zarr", "other.h5", "--min-contexts", "1", "--metrics", "all", "--json")
    assert (ran.status, ran.err) == (0, "")
    rows = json.loads(ran.out)
    schema = json.loads(resources.files("embstore.schemas").joinpath("geometry.schema.json").read_text())
    jsonschema.validate(rows, schema)
    assert {row["store"] for row in rows} == {"store", "other"}


def test_one_figure_of_several_stores(work: Work) -> None:
    assert work.run("export", "store.zarr", "other.h5").status == 0
    ran = work.run("geometry", "store.zarr", "other.h5", "--min-contexts", "1", "--plot", "figure.png")
    assert (ran.status, ran.err) == (0, "")
    assert (work / "figure.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["store.zarr", "--layers", "9"], ["layer 9"]),
        (["store.zarr", "--metrics", "entropy"], ["'entropy'", "selfsim"]),
        (["store.zarr", "--metrics", ","], ["no metric"]),
        (["store.zarr", "--min-contexts", "900"], ["900 different sentences"]),
        (["store.zarr", "--memory", "much"], ["--memory 'much'"]),
        (["store.zarr", "--plot", "figure.jpeg"], ["figure.jpeg", ".png"]),
        (["store.zarr", "--plot", "nowhere/figure.png"], ["nowhere"]),
        (["store.zarr", "--out", "table.xls"], ["table.xls", ".csv"]),
        (["store.zarr", "--top", "-1"], ["--top -1"]),
        (["store.zarr", "--level"], ["--level"]),
        (["store.zarr", "store.zarr"], ["given twice"]),
        (["none.zarr"], ["none.zarr"]),
    ],
)
def test_bad_input_is_one_line(options: list[str], parts: list[str], work: Work) -> None:
    before = set(work.contents())
    ran = work.run("geometry", *options)
    assert ran.status == 2
    assert ran.err.count("\n") == 1
    for part in parts:
        assert part in ran.err
    assert set(work.contents()) == before
