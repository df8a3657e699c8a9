"""`embstore index`: what it builds, prints, lists, removes and refuses."""

from __future__ import annotations

import os

import pytest

import embstore as es
from tests.cli.conftest import Work
from tests.cli.test_output import valid

NAMES = ["layer1-sketch", "layer3-sketch"]


def test_it_builds_a_sketch_of_the_last_layer(work: Work) -> None:
    ran = work.run("index", "store.zarr")
    assert (ran.status, ran.err) == (0, "")
    assert all(text in ran.out for text in ("layer3-sketch", "ready", "any", "33"))
    assert es.analysis.open_index(es.open(work / "store.zarr"), 3).name == "layer3-sketch"
    assert work.run("verify", "store.zarr").status == 0
    again = work.run("index", "store.zarr", "--layers", "-1")
    assert (again.status, again.out) == (0, ran.out)


def test_options_reach_the_index(work: Work) -> None:
    pytest.importorskip("faiss")
    [described] = valid(
        work.run("index", "store.zarr", "-l", "1", "--kind", "hnsw", "--metric", "l2", "--json"), "index"
    )
    assert (described["name"], described["layer"], described["metric"]) == ("layer1-hnsw-l2", 1, "l2")
    assert described["parameters"]["ef"] == 64


def test_listing_and_removing(work: Work) -> None:
    assert work.run("index", "store.zarr", "--list").out == "store.zarr has no index\n"
    before = set(work.contents())
    for layer in (1, 3):
        assert work.run("index", "store.zarr", "--layers", layer).status == 0
    listed = valid(work.run("index", "store.zarr", "--list", "--json"), "index")
    assert [state["name"] for state in listed] == NAMES
    os.truncate(work / "store.zarr/hidden_states/.index" / NAMES[1] / "sketch.bin", 10)
    shown = work.run("index", "store.zarr", "--list")
    assert shown.status == 0
    assert f"build it again with embstore index, or remove it (--remove {NAMES[1]})" in " ".join(shown.out.split())
    states = [state["state"] for state in valid(work.run("index", "store.zarr", "--list", "--json"), "index")]
    assert states == ["ready", "damaged"]
    for name in NAMES:
        ran = work.run("index", "store.zarr", "--remove", name)
    assert (ran.status, ran.out) == (0, "store.zarr has no index\n")
    assert set(work.contents()) == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("store.zarr --layers 1 --metric dot", ("'dot'", "cosine")),
        ("store.zarr --layers 1 --kind foo", ("'foo'", "sketch", "hnsw")),
        ("store.zarr --layers top", ("'top'", "0,3,6-12")),
        ("store.zarr --layers 0,1", ("0,1", "give one")),
        ("store.zarr --remove gone", ("no index 'gone'", "it has none")),
    ],
)
def test_bad_input_is_one_line_and_builds_nothing(arguments: str, says: tuple[str, ...], work: Work) -> None:
    work.refuses(f"index {arguments}", *says)
