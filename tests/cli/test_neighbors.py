"""`embstore neighbors`, `index`, `senses` and `sql`: what they print, write and refuse."""

from __future__ import annotations

import json
import os

import numpy as np
import polars as pl
import pytest

import embstore as es
from embstore.analysis.neighbors.senses import senses
from embstore.vectors import WordVectors, write_vectors
from tests.analysis.test_senses import planted
from tests.analysis.word_store import write_senses
from tests.cli.conftest import Work
from tests.cli.test_output import valid
from tests.json_schemas import validator_of
from tests.store_making import make_store


def word_of(work: Work) -> str:
    """A word of several occurrences."""
    contexts = es.open(work / "store.zarr").table()
    counts = contexts.group_by(pl.col("word").cast(pl.String)).len().sort("len", "word", descending=[True, False])
    return str(counts["word"][0])


def test_it_prints_each_query_with_its_sentence(work: Work) -> None:
    word = word_of(work)
    ran = work.does("neighbors", "store.zarr", word, "-k", "3", "--layers", "1", "--queries", "1")
    row = int(es.open(work / "store.zarr").select(words=word).rows[0])
    assert ran.out.startswith(f"layer 1, row {row}: ")
    assert f"[{word}]" in ran.out.splitlines()[0]
    assert f"more occurrences of {word}: see --queries" in ran.out
    store = es.open(work / "store.zarr")
    found = es.neighbors(store, store.select(rows=[row]), layers=1, k=3, exclude="word")
    for score in found["score"]:
        assert f"{score:.3f}" in ran.out


def test_json_follows_the_schema_and_files_hold_the_same(work: Work) -> None:
    word = word_of(work)
    arguments = ("neighbors", "store.zarr", word, "-k", "4", "--queries", "0", "--out", "n.csv")
    ran = work.does(*arguments, "--json")
    rows = json.loads(ran.out)
    validator_of("neighbors").validate(rows)
    assert (
        rows
        == es.neighbors(es.open(work / "store.zarr"), word, k=4, exclude="word")
        .with_columns(store=pl.lit("store.zarr"))
        .to_dicts()
    )
    assert pl.read_csv(work / "n.csv").height == len(rows)
    assert all(row["word"] != word for row in rows)


@pytest.mark.slow
def test_fields_of_documents_are_of_their_kind_in_json(work: Work) -> None:
    rows = [{"text": f"the cat sat on the mat {number}", "year": 1900 + number} for number in range(3)]
    es.extract(es.plan(rows, model=work / "model", calibrate=False), work / "years.zarr")
    printed = json.loads(work.run("neighbors", "years.zarr", "cat", "-k", "1", "--json").out)
    validator_of("neighbors").validate(printed)
    assert {each["year"] for each in printed} <= {1900, 1901, 1902}


def test_a_new_sentence(work: Work) -> None:
    word = word_of(work)
    ran = work.does("neighbors", "store.zarr", f"so [{word}] it {{is}}", "-k", "2")
    assert f"so [{word}] it {{is}}" in ran.out


def test_a_file_of_word_vectors(work: Work) -> None:
    vectors = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)
    write_vectors(WordVectors(tuple("abcdefghi"), vectors), work / "vectors.txt")
    ran = work.does("neighbors", "vectors.txt", "c", "-k", "2")
    assert (ran.out.splitlines()[0], len(ran.out.strip().splitlines())) == ("c", 4)
    ran = work.run("neighbors", "vectors.txt", "c", "--layers", "1")
    assert (ran.status, ran.out) == (2, "")


NAMES = ["layer1-sketch", "layer3-sketch"]


def test_index_builds_a_sketch_of_the_last_layer(work: Work) -> None:
    ran = work.does("index", "store.zarr")
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


def test_listing_and_removing_indexes(work: Work) -> None:
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
def test_bad_input_of_index_is_one_line_and_builds_nothing(arguments: str, says: tuple[str, ...], work: Work) -> None:
    work.refuses(f"index {arguments}", *says)


def stores(folder: Work) -> None:
    write_senses(folder / "senses.zarr", planted())
    make_store(folder / "labels.zarr", sentences=40)


@pytest.fixture
def folder(work: Work) -> Work:
    return work.put(stores)


def test_senses_prints_clusters_and_their_sentences(folder: Work) -> None:
    ran = folder.does("senses", "senses.zarr", "bank", "--label", "class", "-n", "2", "--plot", "map.svg")
    assert (folder / "map.svg").stat().st_size > 1000
    found = senses(es.open(folder / "senses.zarr"), "bank", layers=2, label="class")
    assert ran.out.splitlines()[0] == (
        f"bank in layer 2: 29 occurrences, 3 clusters, silhouette {found.silhouette:.2f}, "
        "purity 1.00 (of one cluster: 0.48)"
    )
    assert f"silhouette of vectors without clusters: {found.null:.2f} on average, p 0.05\n" in ran.out
    for number in (1, 2, 3):
        assert f"cluster {number}: nearest its center" in ran.out
    printed = [int(line.split()[0]) for line in ran.out.splitlines() if " sentence " in line or "sentence" in line]
    assert printed == found.nearest(2)["occurrence"].to_list()


def test_senses_as_json(folder: Work) -> None:
    printed = valid(folder.run("senses", "senses.zarr", "bank", "--label", "class", "--json", "-n", "3"), "senses")
    found = senses(es.open(folder / "senses.zarr"), "bank", layers=2, label="class")
    assert [row["count"] for row in printed["clusters"]] == [14, 9, 6]
    assert [[near["occurrence"] for near in row["nearest"]] for row in printed["clusters"]] == [
        found.nearest(3).filter(pl.col("cluster") == number)["occurrence"].to_list() for number in (1, 2, 3)
    ]
    assert (printed["null"], printed["p"], printed["caveats"]) == (found.null, 0.05, [])
    unlabelled = valid(folder.run("senses", "senses.zarr", "bank", "--json", "--clusters", "1", "-n", "0"), "senses")
    assert (unlabelled["purity"], unlabelled["silhouette"], unlabelled["p"]) == (None, None, None)
    printed = folder.run("senses", "labels.zarr", "bank", "-l", "0", "--clusters", "3", "-n", "0").out
    assert "note: layer 0 is the word and its position" in printed


def test_senses_writes_every_occurrence(folder: Work) -> None:
    folder.does("senses", "labels.zarr", "bank", "-l", "0", "--out", "bank.csv", "--clusters", "3")
    found = senses(es.open(folder / "labels.zarr"), "bank", layers=0, n_clusters=3).occurrences
    table = pl.read_csv(folder / "bank.csv")
    assert table.columns == found.columns
    for name in ("cluster", "rank", "occurrence", "marked"):
        assert table[name].to_list() == found[name].to_list()


NEAREST = "select word, cos(h1, vec('the [bank] lends money', 1)) s from occurrences order by s desc limit 2"


def test_sql_prints_and_writes_the_rows(work: Work) -> None:
    store = es.open(work / "store.zarr")
    ran = work.does("sql", "store.zarr", NEAREST, "--model", "model", "--out", "near.parquet", "--json")
    expected = es.sql(store, NEAREST, model=work / "model")
    assert json.loads(ran.out) == expected.to_dicts()
    assert pl.read_parquet(work / "near.parquet").rows() == expected.rows()
    ran = work.run("sql", "old=store.zarr", "new=store.zarr", "near=near.parquet",
                   "select count(*) n, any_value(o.h1) v from old.types join new.occurrences o using (word) "
                   "where (select count(*) from near) = 2")  # fmt: skip
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.split()[:3] == ["n", "v", str(store.n_rows)]
    assert ran.out.endswith(f"... ({store.hidden_size})\n")
    ran = work.run("sql", "store.zarr", "select * exclude (h0, h1) from occurrences a, types b")
    assert "more: --out FILE writes all" in ran.out
    assert work.run("sql", "store.zarr", "select 1 from types where count < 0").out == "no rows\n"
    ran = work.run("sql", "store.zarr", "select 'nan'::double a, ['-inf'::float, 1.5] b, 1e300 c", "--json")
    assert json.loads(ran.out, parse_constant=pytest.fail) == [{"a": None, "b": [None, 1.5], "c": 1e300}]


def test_what_sql_refuses(work: Work) -> None:
    work.refuses("sql store.zarr store.zarr select(1)", "NAME=STORE")
    work.refuses("sql old=store.zarr store.zarr select(1)", "NAME=STORE")
    work.write("near.csv", b"a,b\n1,2,3\n")
    work.refuses("sql store.zarr near=near.csv select(1)", "near.csv cannot be read as a table")
    if hasattr(os, "mkfifo"):
        os.mkfifo(work / "pipe.csv")
        work.refuses("sql store.zarr near=pipe.csv select(1)", "cannot be read as a table", "a pipe or a device")
    ran = work.run("sql", "store.zarr", "select h1 from occurrences", "--out", "vectors.csv")
    assert (ran.status, ran.out) == (2, "")
    assert "vectors.csv" in ran.err
    assert ran.err.count("\n") == 1
    for value, name in (("'a'::blob", "x.csv"), ("['a'::blob]", "x.json"), ("map {1: 2}", "x.json")):
        ran = work.run("sql", "store.zarr", f"select {value} a", "--out", name)
        assert (ran.status, ran.out) == (2, "")
        assert ran.err.startswith(f"embstore: {name} cannot hold the ")
