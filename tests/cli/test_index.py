"""`embstore index`: what it builds, prints, measures, lists, removes and refuses."""

from __future__ import annotations

import os

import polars as pl
import pytest

import embstore as es
from embstore.analysis import measure_recall
from tests.cli.conftest import Work
from tests.cli.test_output import valid

pytest.importorskip("faiss")


def test_it_builds_an_index_of_the_last_layer(work: Work) -> None:
    ran = work.run("index", "store.zarr")
    assert (ran.status, ran.err) == (0, "")
    place = "store.zarr/hidden_states/.index/layer3-flat-cosine"
    assert ran.out.startswith(f"{place}: SQfp16 over layer 3, cosine, 33 rows, ")
    assert str(es.analysis.open_index(es.open(work / "store.zarr"), 3).path).endswith(place)
    assert work.run("verify", "store.zarr").status == 0
    again = work.run("index", "store.zarr", "--layers", "-1")
    assert (again.status, again.out) == (0, ran.out)


def test_options_reach_the_index(work: Work) -> None:
    ran = work.run("index", "store.zarr", "-l", "1", "--kind", "IVF2,Flat", "--metric", "l2", "--components", "2",
                   "--name", "mine")  # fmt: skip
    assert (ran.status, ran.err) == (0, "")
    settings = es.analysis.open_index(es.open(work / "store.zarr"), name="mine").info.settings
    assert (settings.layer, settings.factory, settings.metric, settings.n_components) == (1, "IVF2,Flat", "l2", 2)
    assert settings.centered


def test_recall_is_that_of_the_function(work: Work) -> None:
    arguments = ("index", "store.zarr", "--layers", "1", "--kind", "IVF6,Flat", "--recall")
    described = valid(work.run(*arguments, "--json", "--out", "recall.csv"), "index")
    table = measure_recall(es.analysis.open_index(es.open(work / "store.zarr"), 1))
    written = pl.read_csv(work / "recall.csv")
    assert written["recall"].to_list() == pytest.approx(table["recall"].to_list())
    assert written["setting"].to_list() == table["setting"].to_list() == [r["setting"] for r in described[0]["recall"]]
    ran = work.run(*arguments)
    assert all(text in ran.out for text in ("recall@10", "queries_per_second", "exact search", "nprobe=6"))


def test_listing_and_removing(work: Work) -> None:
    assert work.run("index", "store.zarr", "--list").out == "store.zarr has no index\n"
    before = set(work.contents())
    for layer in (0, 1):
        assert work.run("index", "store.zarr", "--layers", layer, "--centered").status == 0
    names = [f"layer{layer}-flat-cosine-centered" for layer in (0, 1)]
    assert [each["name"] for each in valid(work.run("index", "store.zarr", "--list", "--json"), "index")] == names
    os.truncate(next(iter((work / ".").rglob("layer1-*"))) / "index.faiss", 10)
    listed = work.run("index", "store.zarr", "--list")
    assert listed.status == 0
    assert "mean only" in listed.out
    assert f"build it again with embstore index (--name {names[1]})" in listed.out
    states = [each["state"] for each in valid(work.run("index", "store.zarr", "--list", "--json"), "index")]
    assert states == ["ready", "damaged"]
    for name in names:
        ran = work.run("index", "store.zarr", "--remove", name)
    assert (ran.status, ran.out) == (0, "store.zarr has no index\n")
    assert set(work.contents()) == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("store.zarr --layers 1 --metric dot", ("'dot'", "cosine")),
        ("store.zarr --layers 1 --out r.csv", ("--recall",)),
        ("store.zarr --layers top", ("'top'", "0,3,6-12")),
        ("store.zarr --layers 0,1", ("0,1", "give one")),
        ("store.zarr --remove gone", ("no index 'gone'", "it has none")),
    ],
)
def test_bad_input_is_one_line_and_builds_nothing(arguments: str, says: tuple[str, ...], work: Work) -> None:
    work.refuses(f"index {arguments}", *says)
