"""`embstore probe classes` and `embstore probe apply`: what they print, write and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

import embstore as es
from tests.cli.conftest import Work, settings
from tests.cli.test_output import valid
from tests.drawn import svg_texts
from tests.probes.class_store import make

ASK = ("--train", "train.tsv", "--test", "test.tsv", *settings(epochs=3, batch_size=16, learning_rate=0.05, patience=0))


def write_list(path: Path, words: dict[str, list[str]]) -> None:
    """A list as Wiki-PSE writes it."""
    lines = (
        f"@{word.replace(' ', '_')}@\t" + " ".join(f"-{name}=1" for name in names) for word, names in words.items()
    )
    path.write_text("\n".join(lines) + "\n")


def stores(folder: Work) -> None:
    made = make(folder / "made.zarr")
    make(folder / "other.h5", planted=4)
    train, test = made.lists
    write_list(folder / "train.tsv", train)
    write_list(folder / "test.tsv", test)
    write_list(folder / "lonely.tsv", {word: ["food"] for word in train} | {"word 0": ["place"]})


@pytest.fixture
def folder(work: Work) -> Work:
    return work.put(stores)


def test_probes_are_trained_saved_and_applied(folder: Work) -> None:
    ran = folder.run("probe", "classes", "made.zarr", *ASK, "--save", "bank", "--out", "scores.csv", "--control")
    assert (ran.status, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0] == "linear probes of class, context level"
    assert lines[1].split("  ")[0] == "layer"
    for column in ("dev F1", "test F1", "by contexts", "control", "selectivity"):
        assert column in lines[1]
    assert [line.split()[0] for line in lines[2:]] == ["0", "1", "4"]
    frame = pl.read_csv(folder / "scores.csv")
    splits = settings(splits="dev,test")
    applied = valid(folder.run("probe", "apply", "bank", "made.zarr", "--json", *splits), "probe_output")
    assert [row["value"] for row in applied] == frame["value"].to_list()
    ran = folder.run("probe", "apply", "bank", "made.zarr", "other.h5", "--layers", "1,4")
    assert (ran.status, ran.err) == (0, "")
    assert [line.split()[:2] for line in ran.out.splitlines()[2:]] == [
        ["made", "1"], ["made", "4"], ["other", "1"], ["other", "4"],
    ]  # fmt: skip


def test_added_labels_are_queried_and_probed(folder: Work) -> None:
    """A copy of a column, added by `label`, answers in SQL and in a probe as the column does."""
    count = "select {0}, count(*) n from occurrences group by all order by all"
    store = es.open(folder / "made.zarr")
    expected = json.loads(folder.run("sql", "made.zarr", count.format("class"), "--json").out)
    assert len(expected) > 2
    store.table(columns=["occurrence", "class"]).rename({"class": "kind"}).write_parquet(folder / "tags.parquet")
    ran = folder.run("label", "made.zarr", "tags.parquet", "--on", "occurrence")
    assert (ran.status, ran.err) == (0, "")
    ran = folder.run("sql", "made.zarr", count.format("kind"), "--json")
    assert (ran.status, ran.err) == (0, "")
    assert json.loads(ran.out) == [{"kind": row["class"], "n": row["n"]} for row in expected]
    ask = ("probe", "classes", "made.zarr", *ASK, "--layers", "1", "--json")
    of_class, of_kind = (valid(folder.run(*ask, "--label", label), "probe_output") for label in ("class", "kind"))
    assert of_kind == [row | {"task": "kind"} for row in of_class] != []


@pytest.mark.slow
def test_several_stores_seeds_and_figures(folder: Work) -> None:
    ran = folder.run(
        "probe", "classes", "made.zarr", "other.h5", *ASK, "--seeds", "0,5", "--by", "both",
        "--plot", "layers.svg", "--save", "banks",
    )  # fmt: skip
    assert (ran.status, ran.err) == (0, "")
    assert "±" in ran.out
    assert "F1 by class" in ran.out
    assert "F1 by how often a word occurs in the corpus" in ran.out
    assert {"Class probes: f1 by layer", "layer", "f1 (test)"} <= svg_texts(folder / "layers.svg")
    assert sorted(path.name for path in (folder / "banks").iterdir()) == ["made", "other"]
    printed = valid(
        folder.run("probe", "classes", "made.zarr", *ASK, "--json", *settings(level="type", splits="test")),
        "probe_output",
    )
    assert {row["split"] for row in printed} == {"train", "test"}
    ran = folder.run("probe", "classes", "made.zarr", *ASK, *settings(patience=3, epochs=2))
    assert ran.err == (
        "embstore: made: the last epoch (2) ended the training of 9 of 9 probes before early stopping did: they "
        "have not converged, give more epochs\n"
    )


@pytest.mark.slow
def test_words_one_a_line_have_the_classes_of_the_store(folder: Work) -> None:
    listed = valid(folder.run("probe", "classes", "made.zarr", *ASK, "--json"), "probe_output")
    for name in ("train", "test"):
        words = [
            line.split("\t")[0].strip("@").replace("_", " ")
            for line in (folder / f"{name}.tsv").read_text().splitlines()
        ]
        folder.write(f"{name}.tsv", "\n".join(words) + "\n")
    again = valid(folder.run("probe", "classes", "made.zarr", *ASK, "--json"), "probe_output")
    own, other = ([row for row in rows if row["metric"] != "frequency_f1"] for rows in (again, listed))
    assert own == other
    assert {row["item"] for row in again} > {row["item"] for row in own}, "frequencies are those of the rows then"


def test_sites_and_models_of_stores_are_named(work: Work) -> None:
    rows = [{"text": [f"a{number}", f"b{number}"], "class": ["a", "b"]} for number in range(8)]
    work.write("c.jsonl", "\n".join(map(json.dumps, rows)) + "\n")
    for store, options in (("s", ("--sites", "query,key")), ("last", ("--sites", "query", "--pooling", "last"))):
        ran = work.run("extract", "c.jsonl", f"{store}.zarr", "-m", "model", "--layers", "2", *options)
        assert ran.status == 0, ran.err
    for name, numbers in (("train.tsv", range(6)), ("test.tsv", (6, 7))):
        write_list(work / name, {f"{kind}{number}": [kind] for kind in "ab" for number in numbers})
    ran = work.run("probe", "classes", "s.zarr#query", "s.zarr#key", *ASK, "--save", "saved")
    assert ran.status == 0, ran.err
    assert [line.split()[0] for line in ran.out.splitlines()[2:]] == ["s#query", "s#key"]
    for store, note in (
        ("s.zarr#key", ""),
        ("s.zarr#query", "site key (now query)"),
        ("last.zarr#query", "site key (now query), pooling mean (now last)"),
    ):
        ran = work.run("probe", "apply", "saved/s#key", store)
        assert ran.status == 0, ran.err
        noted = [line.rpartition(": ")[2] for line in ran.err.splitlines() if "otherwise" in line]
        assert noted == ([note] if note else [])


def test_what_is_left_out_is_reported_on_standard_error(folder: Work) -> None:
    ran = folder.run(
        "probe", "classes", "made.zarr", "--train", "lonely.tsv", *ASK[2:], "--json", *settings(level="type")
    )
    assert ran.status == 0
    assert json.loads(ran.out)
    assert ran.err.splitlines()[0] == ("embstore: made: classes of fewer than two train words have no probe (1): place")


def test_bad_input_is_one_line(folder: Work) -> None:
    assert folder.run("probe", "classes", "made.zarr", *ASK, "--save", "bank").status == 0
    for arguments, message in (
        (("classes", "made.zarr", "--train", "none.tsv", "--test", "test.tsv"), "none.tsv"),
        (("classes", "made.zarr", *ASK, *settings(splits="all")), "--set splits=all is not allowed"),
        (("classes", "made.zarr", *ASK, "--kind", "deep"), "deep"),
        (("classes", "made.zarr", *ASK, "--save", "model"), "model exists and is not a file of saved probes"),
        (
            ("classes", "made.zarr", *ASK, *settings(dev_share=0)),
            "--set splits=dev,test needs dev words: give --set dev",
        ),
        (("apply", "bank", "made.zarr", *settings(splits="all")), "--set splits=all is not allowed"),
        (("classes", "made.zarr"), "Missing option '--train'"),
    ):
        folder.refuses(" ".join(("probe", *map(str, arguments))), message)
