"""`embstore index`: what it builds, prints, measures, lists, removes and refuses."""

from __future__ import annotations

import os

import polars as pl
import pytest

import embstore as es
from embstore.analysis.neighbors.index import open_index
from embstore.analysis.neighbors.recall import measure_recall
from tests.cli.conftest import Work
from tests.cli.test_output import valid


@pytest.fixture(autouse=True)
def one_thread() -> None:
    import faiss

    faiss.omp_set_num_threads(1)


def test_it_builds_an_index_of_the_last_layer(work: Work) -> None:
    ran = work.run("index", "store.zarr")
    assert (ran.status, ran.err) == (0, "")
    place = "store.zarr/hidden_states/.index/layer3-flat-cosine"
    assert ran.out.startswith(f"{place}: SQfp16 over layer 3, cosine, 33 rows, ")
    index = open_index(es.open(work / "store.zarr"), layer=3)
    assert index.path == work / place or str(index.path).endswith(place)
    assert work.run("verify", "store.zarr").status == 0
    again = work.run("index", "store.zarr", "--layer", "-1")
    assert (again.status, again.out) == (0, ran.out)


def test_options_reach_the_index(work: Work) -> None:
    ran = work.run(
        "index", "store.zarr", "--layer", "1", "--kind", "IVF2,Flat", "--metric", "l2", "--components", "2", "--set",
        "name=mine", "--set", "train_sample=20", "--set", "seed=3", "--set", "memory=1GB", "--set", "threads=1",
    )  # fmt: skip
    assert (ran.status, ran.err) == (0, "")
    settings = open_index(es.open(work / "store.zarr"), name="mine").info.settings
    assert (settings.layer, settings.factory, settings.metric, settings.n_components) == (1, "IVF2,Flat", "l2", 2)
    assert (settings.n_train, settings.seed, settings.centered) == (20, 3, True)


@pytest.mark.slow
def test_recall_is_printed_with_the_speed(work: Work) -> None:
    ran = work.run("index", "store.zarr", "--layer", "1", "--kind", "IVF6,Flat", "--recall", "--set", "k=5")
    assert (ran.status, ran.err) == (0, "")
    assert "recall@5" in ran.out
    assert "queries_per_second" in ran.out
    assert "exact search" in ran.out
    assert "nprobe=6" in ran.out


@pytest.mark.parametrize("suffix", ["csv", "parquet", "json"])
def test_recall_to_a_file_is_that_of_the_function(suffix: str, work: Work) -> None:
    out = f"recall.{suffix}"
    arguments = ("index", "store.zarr", "--layer", "1", "--kind", "IVF6,Flat", "--recall", "--set", "n_queries=20")
    described = valid(work.run(*arguments, "--json", "--out", out), "index")
    read = {"csv": pl.read_csv, "parquet": pl.read_parquet, "json": pl.read_json}[suffix](work / out)
    store = es.open(work / "store.zarr")
    table = measure_recall(open_index(store, layer=1), n_queries=20)
    assert read["recall"].to_list() == pytest.approx(table["recall"].to_list())
    assert read["setting"].to_list() == table["setting"].to_list() == [r["setting"] for r in described[0]["recall"]]


def test_json_names_what_was_built(work: Work) -> None:
    ran = work.run("index", "store.zarr", "--layer", "0", "--kind", "hnsw", "--centered", "--json")
    (described,) = valid(ran, "index")
    assert (described["name"], described["state"]) == ("layer0-hnsw-cosine-centered", "ready")
    assert (described["layer"], described["kind"], described["n_rows"], described["centered"]) == (0, "hnsw", 33, True)


@pytest.mark.parametrize("store", ["store.zarr", "store.h5"])
@pytest.mark.quick(1)
def test_listing_and_removing(store: str, work: Work) -> None:
    if store == "store.h5":
        assert work.run("export", "store.zarr", store).status == 0
    assert work.run("index", store, "--list").out == f"{store} has no index\n"
    before = set(work.contents())
    for layer in (0, 1):
        assert work.run("index", store, "--layer", layer, "--centered").status == 0
    found = valid(work.run("index", store, "--list", "--json"), "index")
    assert [each["name"] for each in found] == ["layer0-flat-cosine-centered", "layer1-flat-cosine-centered"]
    damaged = next(iter((work / ".").rglob("layer1-*"))) / "index.faiss"
    os.truncate(damaged, 10)
    listed = work.run("index", store, "--list")
    assert listed.status == 0
    assert "mean only" in listed.out
    assert "damaged" in listed.out
    assert "build it again with embstore index (--set name=layer1-flat-cosine-centered)" in listed.out
    assert [each["state"] for each in valid(work.run("index", store, "--list", "--json"), "index")] == [
        "ready", "damaged"
    ]  # fmt: skip
    assert work.run("index", store, "--remove", "layer0-flat-cosine-centered").status == 0
    ran = work.run("index", store, "--remove", "layer1-flat-cosine-centered")
    assert (ran.status, ran.out) == (0, f"{store} has no index\n")
    assert set(work.contents()) == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("store.zarr --layer 1 --metric dot", ("'dot'", "cosine")),
        ("store.zarr --set train_sample=0", ("--set train_sample 0",)),
        ("store.zarr --kind hnsw --set train_sample=20", ("--set train_sample 20", "HNSW")),
        ("store.zarr --set seed=-1", ("seed=-1", "0 or more")),
        ("store.zarr --seed 1", ("--seed is a setting", "--set seed=VALUE")),
        ("store.zarr --set threads=two", ("threads=two", "a whole number")),
        ("store.zarr --set colour=red", ("colour is not a setting", "seed, memory, threads, k, n_queries")),
        ("store.zarr --layer 1 --out r.csv", ("--recall",)),
        ("store.zarr --layer 1 --recall --out r.txt", ("--out r.txt", ".csv")),
        ("store.zarr --recall --set k=0", ("k 0", "1 or more")),
        ("store.zarr --layer top", ("'top'", "-1 or last")),
        ("store.zarr --remove gone", ("no index 'gone'", "it has none")),
    ],
)
@pytest.mark.quick(10)
def test_bad_input_is_one_line_and_builds_nothing(arguments: str, says: tuple[str, ...], work: Work) -> None:
    work.refuses(f"index {arguments}", *says)


def test_a_stale_index_is_refused_and_built_again(work: Work) -> None:
    assert work.run("index", "store.zarr", "--layer", "1").status == 0
    file = next((work / "store.zarr").rglob("index.json"))
    file.write_text(file.read_text().replace(es.open(work / "store.zarr").digest, "0" * 64))
    assert "damaged" in work.run("index", "store.zarr", "--list").out
    assert work.run("index", "store.zarr", "--layer", "1").status == 0
    assert "ready" in work.run("index", "store.zarr", "--list").out
