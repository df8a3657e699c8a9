"""`embstore geometry`: what it prints, writes and refuses."""

from __future__ import annotations

import json

import polars as pl
import pytest

import embstore as es
from tests.cli.conftest import Work, settings
from tests.drawn import svg_texts
from tests.json_schemas import validator_of


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
    assert "95 % interval" not in ran.out, "there are four sentences"
    work.write(
        "more.txt", "".join(f"the river {word} to the sea .\n" for word in ("runs", "flows", "goes", "is", "fell"))
    )
    assert work.run("extract", "more.txt", "more.zarr", "-m", "model").status == 0
    assert "95 % interval" in work.run("geometry", "more.zarr", "--min-contexts", "2").out


def test_a_file_has_every_row_of_the_function(work: Work) -> None:
    out = "geometry.parquet"
    options = settings(baseline=9)
    ran = work.run("geometry", "store.zarr", "--min-contexts", "2", "--layers", "0,2", "--out", out, *options)
    assert (ran.status, ran.err) == (0, "")
    read = pl.read_parquet(work / out)
    table = es.geometry(es.open(work / "store.zarr"), min_contexts=2, layers=(0, 2), baseline=9)
    assert read.height == table.height
    assert read["value"].to_list() == pytest.approx(table["value"].to_list(), nan_ok=True)
    assert read["layer"].to_list() == table["layer"].to_list()


def test_json_of_two_stores_follows_the_schema(work: Work) -> None:
    assert work.run("export", "store.zarr", "other.h5").status == 0
    ran = work.run("geometry", "store.zarr", "other.h5", "--min-contexts", "1", "--metrics", "all", "--json")
    assert (ran.status, ran.err) == (0, "")
    rows = json.loads(ran.out)
    validator_of("geometry").validate(rows)
    assert {row["store"] for row in rows} == {"store", "other"}


@pytest.mark.slow
def test_one_figure_of_several_stores(work: Work) -> None:
    assert work.run("export", "store.zarr", "other.h5").status == 0
    ran = work.run("geometry", "store.zarr", "other.h5", "--min-contexts", "1", "--plot", "figure.svg")
    assert (ran.status, ran.err) == (0, "")
    assert {"store", "other", "layer", "Intra-sentence similarity"} <= svg_texts(work / "figure.svg")


def test_cka_of_one_store_and_of_two(work: Work) -> None:
    assert work.run("export", "store.zarr", "other.h5").status == 0
    ran = work.run("cka", "store.zarr", "--layers", "0,-1", "--json")
    assert (ran.status, ran.err) == (0, "")
    store = es.open(work / "store.zarr")
    expected = es.analysis.linear_cka(store, layers=[0, store.layers[-1]])
    assert json.loads(ran.out) == expected.to_dicts()
    ran = work.run("cka", "store.zarr", "other.h5", "--layers", "0,last", "--json")
    assert [(row["layer"], row["other_layer"]) for row in json.loads(ran.out)] == [
        (one, other) for one in (0, store.layers[-1]) for other in (0, store.layers[-1])
    ]
    ran = work.run("cka", "store.zarr", "other.h5", "--out", "cka.csv", "--plot", "cka.svg")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.splitlines()[0] == "linear CKA with each store layer"
    assert ran.out.split()[6:8] == ["other", "layer"]
    assert pl.read_csv(work / "cka.csv").filter(pl.col("layer") == pl.col("other_layer"))["value"].min() > 0.999
    assert {"store layer", "other layer", "linear CKA", "1.00"} <= svg_texts(work / "cka.svg")


def test_cka_of_fewer_occurrences_than_features(work: Work) -> None:
    work.write("few.txt", "the river\n")
    assert work.run("extract", "few.txt", "few.zarr", "--model", "model").status == 0
    ran = work.run("cka", "few.zarr", "--layers", "0,1")
    assert ran.status == 0
    assert ran.err.startswith(f"embstore: 2 occurrences are fewer than the {es.open(work / 'few.zarr').hidden_size} f")


@pytest.mark.parametrize(
    ("command", "parts"),
    [("cka store.zarr store.zarr", ["given twice"]), ("cka store.zarr --plot nowhere/cka.png", ["nowhere"])],
)
def test_bad_input_of_cka_is_one_line(command: str, parts: list[str], work: Work) -> None:
    work.refuses(command, *parts)
