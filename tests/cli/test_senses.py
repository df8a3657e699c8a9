"""`embstore senses`: what it prints, writes and refuses."""

from __future__ import annotations

import polars as pl
import pytest

import embstore as es
from embstore.analysis.neighbors.senses import senses
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


def test_senses_prints_clusters_and_their_sentences(folder: Work) -> None:
    ran = folder.run("senses", "senses.zarr", "bank", "--label", "class", "-n", "2")
    assert (ran.status, ran.err) == (0, "")
    found = senses(es.open(folder / "senses.zarr"), "bank", layers=2, label="class")
    assert ran.out.splitlines()[0] == (
        f"bank in layer 2: 29 occurrences, 3 clusters, silhouette {found.silhouette:.2f}, "
        "purity 1.00 (of one cluster: 0.48)"
    )
    assert f"silhouette of vectors without clusters: {found.null:.2f} on average, p 0.05\n" in ran.out
    for number in range(3):
        assert f"cluster {number}: nearest its center" in ran.out
    printed = [int(line.split()[0]) for line in ran.out.splitlines() if " sentence " in line or "sentence" in line]
    assert printed == found.nearest(2)["occurrence"].to_list()


def test_senses_as_json(folder: Work) -> None:
    printed = valid(folder.run("senses", "senses.zarr", "bank", "--label", "class", "--json", "-n", "3"), "senses")
    found = senses(es.open(folder / "senses.zarr"), "bank", layers=2, label="class")
    assert [row["count"] for row in printed["clusters"]] == [14, 9, 6]
    assert [[near["occurrence"] for near in row["nearest"]] for row in printed["clusters"]] == [
        found.nearest(3).filter(pl.col("cluster") == number)["occurrence"].to_list() for number in range(3)
    ]
    assert (printed["null"], printed["p"], printed["caveats"]) == (found.null, 0.05, [])
    unlabelled = valid(folder.run("senses", "senses.zarr", "bank", "--json", "--clusters", "1", "-n", "0"), "senses")
    assert (unlabelled["purity"], unlabelled["silhouette"], unlabelled["p"]) == (None, None, None)
    printed = folder.run("senses", "labels.zarr", "bank", "-l", "0", "--clusters", "3", "-n", "0").out
    assert "note: layer 0 is the word and its position" in printed


def test_senses_writes_every_occurrence(folder: Work) -> None:
    ran = folder.run("senses", "labels.zarr", "bank", "-l", "0", "--out", "bank.csv", "--clusters", "3")
    assert (ran.status, ran.err) == (0, "")
    found = senses(es.open(folder / "labels.zarr"), "bank", layers=0, n_clusters=3).occurrences
    table = pl.read_csv(folder / "bank.csv")
    assert table.columns == found.columns
    for name in ("cluster", "rank", "occurrence", "marked"):
        assert table[name].to_list() == found[name].to_list()


def test_senses_draws_a_map(folder: Work) -> None:
    ran = folder.run("senses", "senses.zarr", "bank", "--label", "class", "--plot", "map.svg")
    assert (ran.status, ran.err) == (0, "")
    assert (folder / "map.svg").stat().st_size > 1000
