"""`embstore senses`, `label` and `hubness`: what they print, write and refuse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import embstore as es
from embstore.analysis.neighbors.hubness import hubness
from embstore.analysis.neighbors.labels import knn_labels
from embstore.analysis.neighbors.senses import senses
from embstore.vectors import WordVectors, write_vectors
from tests.analysis.test_senses import planted
from tests.analysis.word_store import write_senses
from tests.cli.conftest import Work
from tests.cli.test_output import valid
from tests.store_making import make_store


def stores(folder: Work) -> None:
    write_senses(folder / "senses.zarr", planted())
    make_store(folder / "labels.zarr", sentences=40)


@pytest.fixture
def folder(work: Work) -> Work:
    return work.put(stores)


def read(path: Path) -> pl.DataFrame:
    return {".csv": pl.read_csv, ".parquet": pl.read_parquet, ".json": pl.read_json}[path.suffix](path)


def test_senses_prints_clusters_and_their_sentences(folder: Work) -> None:
    ran = folder.run("senses", "senses.zarr", "bank", "--label", "class", "-n", "2")
    assert (ran.status, ran.err) == (0, "")
    found = senses(es.open(folder / "senses.zarr"), "bank", layer=2, label="class")
    assert ran.out.splitlines()[0] == (
        f"bank in layer 2: 29 occurrences, 3 clusters (kmeans), silhouette {found.silhouette:.2f}, "
        "purity 1.00 (of one cluster: 0.48)"
    )
    for number in range(3):
        assert f"cluster {number}: nearest its center" in ran.out
    printed = [int(line.split()[0]) for line in ran.out.splitlines() if " sentence " in line or "sentence" in line]
    assert printed == found.nearest(2)["occurrence"].to_list()


def test_senses_as_json(folder: Work) -> None:
    printed = valid(folder.run("senses", "senses.zarr", "bank", "--label", "class", "--json", "-n", "3"), "senses")
    found = senses(es.open(folder / "senses.zarr"), "bank", layer=2, label="class")
    assert [row["count"] for row in printed["clusters"]] == [14, 9, 6]
    assert [[near["occurrence"] for near in row["nearest"]] for row in printed["clusters"]] == [
        found.nearest(3).filter(pl.col("cluster") == number)["occurrence"].to_list() for number in range(3)
    ]
    unlabelled = valid(folder.run("senses", "senses.zarr", "bank", "--json", "--clusters", "1", "-n", "0"), "senses")
    assert (unlabelled["purity"], unlabelled["silhouette"]) == (None, None)


@pytest.mark.slow
def test_senses_by_hdbscan_as_json(folder: Work) -> None:
    pytest.importorskip("sklearn")
    options = ("--method", "hdbscan", "--set", "min_size=3", "--centered")
    printed = valid(folder.run("senses", "labels.zarr", "new york", "--layer", "5", "--json", *options), "senses")
    store = es.open(folder / "labels.zarr")
    found = senses(store, "new york", layer=5, method="hdbscan", min_size=3, centered=True)
    assert [row["cluster"] for row in printed["clusters"]] == found.frame["cluster"].to_list()


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".json"])
@pytest.mark.quick(1)
def test_senses_writes_every_occurrence(suffix: str, folder: Work) -> None:
    ran = folder.run("senses", "labels.zarr", "bank", "-l", "0", "--out", f"bank{suffix}", "--clusters", "3")
    assert (ran.status, ran.err) == (0, "")
    found = senses(es.open(folder / "labels.zarr"), "bank", layer=0, n_clusters=3).occurrences
    table = read(folder / f"bank{suffix}")
    assert table.columns == found.columns
    for name in ("cluster", "rank", "occurrence", "marked"):
        assert table[name].to_list() == found[name].to_list()


@pytest.mark.parametrize("name", ["map.png", "map.svg", "map.pdf"])
@pytest.mark.quick(1)
def test_senses_draws_a_map(name: str, folder: Work) -> None:
    ran = folder.run("senses", "senses.zarr", "bank", "--label", "class", "--plot", name)
    assert (ran.status, ran.err) == (0, "")
    assert (folder / name).stat().st_size > 1000


def test_label_prints_a_row_a_layer(folder: Work) -> None:
    ran = folder.run("knn", "labels.zarr", "--label", "upos", "-k", "3")
    assert (ran.status, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0] == "upos of the 3 nearest, leave-one-word-out, cosine"
    assert [line.split()[0] for line in lines[2:]] == ["0", "2", "5"]
    accuracy = knn_labels(es.open(folder / "labels.zarr"), label="upos", k=3, layers=5).frame["value"][0]
    assert float(lines[-1].split()[1]) == pytest.approx(accuracy, rel=1e-3)
    folder.write("test.txt", "bank\nriver\n")
    ran = folder.run("knn", "labels.zarr", "--label", "upos", "--test", "test.txt", "--set", "classifier=centroid")
    assert ran.out.startswith("upos by the nearest centroid, words, cosine\n")


def test_label_reads_lists_of_either_form(folder: Work) -> None:
    folder.write("train.tsv", "@the@\t-upos.x=3 -upos.y=1\n@new_york@\t-upos.x=2\n")
    folder.write("test.txt", "bank\nriver\n")
    ran = folder.run("knn", "labels.zarr", "--label", "upos", "--train", "train.tsv", "--test", "test.txt", "--json")
    printed = valid(ran, "knn")
    store = es.open(folder / "labels.zarr")
    found = knn_labels(store, label="upos", train_words=["the", "new york"], test_words=["bank", "river"]).frame
    assert printed == found.to_dicts()


def test_label_takes_train_and_test_occurrences(folder: Work) -> None:
    store = es.open(folder / "labels.zarr")
    names = list(store.index.labels["upos"].names)
    ask = ("knn", "labels.zarr", "--label", "upos", "--json")
    printed = valid(folder.run(*ask, "--train", "sentence=0-19", "--test", "sentence=20-999"), "knn")
    sentence = np.asarray(store.index.sentence)
    train, test = (store.select(rows=np.flatnonzero(mask)) for mask in (sentence < 20, sentence >= 20))
    assert printed == knn_labels(test, label="upos", train=train).frame.to_dicts()
    assert {row["split"] for row in printed} == {"train"}
    chosen = [f"upos={name}" for name in names[:2]]
    more = ("--set", "classifier=centroid", "--set", "backoff=most-frequent", "--set", "word=upos")
    found = valid(folder.run(*ask, "--train", chosen[0], "--test", chosen[1], *more), "knn")
    assert {row["value"] for row in found if row["metric"] in ("accuracy", "coverage")} == {0.0}
    for words, message in (
        (("--train", chosen[0]), f"--train {chosen[0]} names occurrences: give both --train and --test in this form"),
        (("--train", chosen[0], "--test", "sentence=x"), "--test sentence=x is not sentence=FIRST-LAST"),
    ):
        ran = folder.run(*ask, *words)
        assert ran.status == 2
        assert message in ran.err


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".json"])
@pytest.mark.quick(1)
def test_label_writes_the_frame(suffix: str, folder: Work) -> None:
    ran = folder.run("knn", "labels.zarr", "--label", "upos", "--split", "within-word", "--out", f"knn{suffix}")
    assert (ran.status, ran.err) == (0, "")
    found = knn_labels(es.open(folder / "labels.zarr"), label="upos", split="within-word").frame
    table = read(folder / f"knn{suffix}")
    assert table.columns == found.columns
    assert table["value"].to_list() == pytest.approx(found["value"].to_list())


def test_hubness_compares_raw_and_centered(folder: Work) -> None:
    ran = folder.run("hubness", "labels.zarr", "--layers", "0,5", "-k", "4", "--set", "n_components=1", "--json")
    printed = valid(ran, "hubness")
    assert list(dict.fromkeys(row["space"] for row in printed)) == [
        "cosine",
        "cosine, centered",
        "cosine, 1 component out",
    ]
    store = es.open(folder / "labels.zarr")
    found = hubness(store, layers=[0, 5], k=4, centered=True, top=5)
    assert [row for row in printed if row["space"] == "cosine, centered"] == found.to_dicts()


def test_hubness_prints_a_row_a_layer_and_space(folder: Work) -> None:
    ran = folder.run("hubness", "labels.zarr", "-k", "4", "--set", "sample=20", "--set", "top=1", "--out", "hubs.csv")
    assert (ran.status, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["0", "0", "2", "2", "5", "5"]
    assert len(read(folder / "hubs.csv")) == 3 * 2 * 3


def test_hubness_of_word_vectors(folder: Work) -> None:
    vectors = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    write_vectors(WordVectors(tuple(f"word{n}" for n in range(50)), vectors), folder / "words.txt")
    printed = valid(folder.run("hubness", "words.txt", "-k", "5", "--json"), "hubness")
    assert {row["layer"] for row in printed} == {None}
    assert {row["item"] for row in printed if row["metric"] == "k_occurrence"} <= {f"word{n}" for n in range(50)}
    assert folder.run("hubness", "words.txt", "-k", "5").out.splitlines()[1].startswith("space")


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("senses senses.zarr bank --method spectral", ["'spectral'", "hdbscan"]),
        ("senses senses.zarr bank --method hdbscan --clusters 3", ["--set min_size"]),
        ("senses senses.zarr bank --plot map.jpeg", ["map.jpeg", ".png"]),
        ("senses senses.zarr bank --out table.xls", ["table.xls", ".csv"]),
        ("knn labels.zarr", ["--label"]),
        ("knn labels.zarr --label upos -k 0", ["-k", "0"]),
        ("knn labels.zarr --label upos --split random", ["'random'", "within-word"]),
        ("knn labels.zarr --label upos --split words", ["--test FILE"]),
        ("knn labels.zarr --label upos --test none.txt", ["none.txt"]),
        ("hubness labels.zarr -k 0", ["0", "-k"]),
        ("hubness words.txt --layers 3", ["words.txt", "--layers 3"]),
    ],
)
@pytest.mark.quick(8)
def test_bad_input_is_one_line(command: str, parts: list[str], folder: Work) -> None:
    folder.refuses(command, *parts)
