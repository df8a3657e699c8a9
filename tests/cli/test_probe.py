"""`embstore probe`: what its commands print, write, draw and refuse."""

from __future__ import annotations

import json
import re
from pathlib import Path

import polars as pl
import pytest

import embstore as es
from embstore.probes import load
from embstore.probes.result import SCHEMA
from tests.cli.conftest import Ran, Work, settings
from tests.cli.test_output import valid
from tests.drawn import svg_texts
from tests.probes import class_store, edge_store, tree_store

WORDS = ("--train", "train.tsv", "--test", "test.tsv")
CLASSES = (*WORDS, *settings(epochs=3, learning_rate=0.05, patience=0))
EDGES = settings(epochs=2, hidden_size=8, patience=0)
TREES = ("--train", "train.conllu", "--dev", "dev.conllu", "--test", "test.conllu")
STRUCTURE = (*TREES, *settings(epochs=2, rank=3, patience=0))


def write_list(path: Path, words: dict[str, list[str]]) -> None:
    """A list as Wiki-PSE writes it."""
    lines = (
        f"@{word.replace(' ', '_')}@\t" + " ".join(f"-{name}=1" for name in names) for word, names in words.items()
    )
    path.write_text("\n".join(lines) + "\n")


def stores(folder: Work) -> None:
    made = class_store.make(folder / "made.zarr")
    class_store.make(folder / "other.h5", planted=4)
    train, test = made.lists
    write_list(folder / "train.tsv", train)
    write_list(folder / "test.tsv", test)
    write_list(folder / "lonely.tsv", {word: ["food"] for word in train} | {"word 0": ["place"]})
    edges = edge_store.make(folder / "edges.zarr", sentences=60, layers=(0, 1, 3), planted=1)
    edges.write(folder / "colours")
    trees = tree_store.make(folder / "trees.zarr", sentences=40)
    tree_store.make(folder / "narrow.zarr", sentences=40, width=16)
    for name, part in (("train", slice(0, 20)), ("dev", slice(20, 30)), ("test", slice(30, 40))):
        folder.write(f"{name}.conllu", tree_store.conllu(trees.trees[part]))


@pytest.fixture
def folder(work: Work) -> Work:
    return work.put(stores)


def test_probes_are_trained_and_saved(folder: Work) -> None:
    ran = folder.does("probe", "classes", "made.zarr", *CLASSES, "--save", "bank", "--out", "scores.csv", "--control")
    lines = ran.out.splitlines()
    assert lines[0] == "linear probes of class, context level"
    assert lines[1].split("  ")[0] == "layer"
    for column in ("dev F1", "test F1", "by contexts", "control", "selectivity"):
        assert column in lines[1]
    assert [line.split()[0] for line in lines[2:]] == ["0", "1", "4"]
    frame = pl.read_csv(folder / "scores.csv")
    applied = es.probes.load(folder / "bank").score(splits=("test",), data=es.open(folder / "made.zarr")).frame
    assert applied["value"].to_list() == frame.filter(pl.col("split") != "dev")["value"].to_list()


def test_added_labels_are_queried_and_probed(folder: Work) -> None:
    """A copy of a column, added by `label`, answers in SQL and in a probe as the column does."""
    count = "select {0}, count(*) n from occurrences group by all order by all"
    store = es.open(folder / "made.zarr")
    expected = json.loads(folder.run("sql", "made.zarr", count.format("class"), "--json").out)
    assert len(expected) > 2
    store.table(columns=["occurrence", "class"]).rename({"class": "kind"}).write_parquet(folder / "tags.parquet")
    ran = folder.does("label", "made.zarr", "tags.parquet", "--on", "occurrence")
    ran = folder.does("sql", "made.zarr", count.format("kind"), "--json")
    assert json.loads(ran.out) == [{"kind": row["class"], "n": row["n"]} for row in expected]
    ask = ("probe", "classes", "made.zarr", *CLASSES, "--layers", "1", "--json")
    of_class, of_kind = (valid(folder.run(*ask, "--label", label), "probe_output") for label in ("class", "kind"))
    assert of_kind == [row | {"task": "kind"} for row in of_class] != []


def test_rows_are_probed_by_any_label(folder: Work) -> None:
    ask = ("probe", "rows", "made.zarr", "--label", "class")
    ran = folder.does(*ask, "--kind", "difference", "--save", "rows", "--plot", "rows.svg")
    lines = ran.out.splitlines()
    assert lines[0] == "difference probes of class: test rows, 95 % intervals"
    assert lines[1].split() == ["layer", "accuracy", "macro", "F1", "selectivity", "control"]
    assert [line.split()[0] for line in lines[2:]] == ["0", "1", "4", "most"]
    assert {"Probes: accuracy by layer", "accuracy (test)"} <= svg_texts(folder / "rows.svg")
    frame = es.probes.load(folder / "rows").score(es.open(folder / "made.zarr"), name="made").frame
    printed = valid(folder.run(*ask, "--kind", "difference", "--json"), "probe_output")
    assert pl.DataFrame(printed, schema=SCHEMA).equals(frame)
    folder.refuses(" ".join((*ask, "--split", "kind")), "there is no label column 'kind': the store has class")


@pytest.mark.slow
def test_several_stores_seeds_and_figures(folder: Work) -> None:
    ran = folder.does(
        "probe", "classes", "made.zarr", "other.h5", *CLASSES, "--seeds", "0,5", "--plot", "layers.svg",
        "--save", "banks",
    )  # fmt: skip
    assert "±" in ran.out
    assert {"Probes: f1 by layer", "layer", "f1 (test)"} <= svg_texts(folder / "layers.svg")
    assert sorted(path.name for path in (folder / "banks").iterdir()) == ["made", "other"]
    alone = settings(level="type", patience=0, epochs=2)
    printed = valid(folder.run("probe", "classes", "made.zarr", *WORDS, "--json", *alone), "probe_output")
    assert {row["split"] for row in printed} == {"train", "dev", "test"}
    ran = folder.run("probe", "classes", "made.zarr", *WORDS, *settings(patience=3, epochs=2))
    assert ran.err == (
        "embstore: made: the last epoch (2) ended the training of 9 of 9 probes before early stopping did: they "
        "have not converged, give more epochs\n"
    )


def test_sites_and_models_of_stores_are_named(work: Work) -> None:
    rows = [{"text": [f"a{number}", f"b{number}"], "class": ["a", "b"]} for number in range(8)]
    work.write("c.jsonl", "\n".join(map(json.dumps, rows)) + "\n")
    for store, pooling, sites in (("s", "mean", "query,key"), ("last", "last", "query")):
        command = f"extract c.jsonl {store}.zarr -m model --layers 2 --pooling {pooling} --sites {sites}"
        ran = work.run(*command.split())
        assert ran.status == 0, ran.err
    for name, numbers in (("train.tsv", range(6)), ("test.tsv", (6, 7))):
        write_list(work / name, {f"{kind}{number}": [kind] for kind in "ab" for number in numbers})
    ran = work.run("probe", "classes", "s.zarr#query", "s.zarr#key", *CLASSES, "--save", "saved")
    assert ran.status == 0, ran.err
    assert [line.split()[0] for line in ran.out.splitlines()[2:]] == ["s#query", "s#key"]
    for store, note in (
        ("s.zarr#key", ""),
        ("s.zarr#query", "site key (now query)"),
        ("last.zarr#query", "site key (now query), pooling mean (now last)"),
    ):
        notes = es.probes.load(work / "saved/s#key").score(splits=("test",), data=es.open(f"{work / store}")).notes
        noted = [line.rpartition(": ")[2] for line in notes if "otherwise" in line]
        assert noted == ([note] if note else [])


def test_what_is_left_out_is_reported_on_standard_error(folder: Work) -> None:
    ran = folder.run(
        "probe", "classes", "made.zarr", "--train", "lonely.tsv", *WORDS[2:], *settings(epochs=1), "--json"
    )
    assert ran.status == 0
    assert json.loads(ran.out)
    assert ran.err.splitlines()[0] == "embstore: made: classes of fewer than two train words have no probe (1): place"


@pytest.mark.slow
def test_edges_by_task_and_layer(folder: Work) -> None:
    ran = folder.does(
        "probe", "edges", "edges.zarr", "colours", "--out", "scores.csv", "--plot", "layers.svg", "--seeds", "0,1",
        "--control", "--save", "saved", *settings(epochs=2, patience=0, layerwise=True, hidden_size=8),
    )  # fmt: skip
    assert ran.out.splitlines()[0] == "edge probes: P(0) sees layer 0, P(L) mixes all; 95 % intervals"
    for text in (
        *("gravity", "expected", "majority", "±", "alone", "test F1", "selectivity"),
        *("its selectivity", "selectivity P(L)", "["),
    ):
        assert text in ran.out
    assert {"layer", "mixing weight", "share over the layers"} <= svg_texts(folder / "layers.svg")
    assert pl.read_csv(folder / "scores.csv").columns == list(SCHEMA)
    assert load(folder / "saved").fitted_.labels.name == "colours"
    printed = valid(folder.run("probe", "edges", "edges.zarr", "colours", *EDGES, "--json"), "probe_output")
    assert {row["split"] for row in printed} == {"train", "dev", "test"}


def test_linear_probes_are_shown_by_layer(folder: Work) -> None:
    ran = folder.does("probe", "edges", "edges.zarr", "colours", *EDGES, "--kind", "linear")
    lines = ran.out.splitlines()
    place = lines.index("F1 of P(l) by layer, and of each layer alone")
    assert [line.split()[0] for line in lines[place + 2 :]] == ["0", "1", "3"]
    assert "alone" in lines[place + 1]
    edge_store.make(folder / "few.zarr", sentences=40, layers=(0, 1), planted=1).write(folder / "few")
    ran = folder.run("probe", "edges", "few.zarr", "few", *EDGES)
    few = r"the expected layer is not determined: only [1-8] sentences differ between P\(0\) and P\(1\)"
    assert ran.status == 0
    assert re.fullmatch(f"embstore: few: dev: {few}\nembstore: few: test: {few}\n", ran.err)


@pytest.mark.slow
def test_probes_that_do_not_fit_together_are_trained_one_after_the_other(folder: Work) -> None:
    ask = ("probe", "edges", "edges.zarr", "colours", *EDGES, "--json", "--layers", "0,1")
    whole, parts = folder.run(*ask), folder.run("--memory", "200kB", *ask)
    assert (whole.status, parts.status, parts.err) == (0, 0, "")
    for one, other in zip(json.loads(whole.out), json.loads(parts.out), strict=True):
        assert one.keys() == other.keys()
        assert one["value"] == pytest.approx(other["value"], abs=1e-4)
    for memory, message in (("5kB", "one probe, with the vectors of a batch, takes"), ("much", "'much' is not a size")):
        folder.refuses(" ".join(("--memory", memory, *map(str, ask))), message)


@pytest.mark.slow
def test_code_lengths_by_task_and_layer(folder: Work) -> None:
    ask = ("probe", "mdl", "edges.zarr", "colours", "--layers", "0,3", "--control")
    ask += settings(epochs=2, hidden_size=8)
    ran = folder.run(*ask, "--seeds", "0,1", "--plot", "bits.svg", "--out", "bits.csv")
    assert ran.status == 0
    drawn, first, second, written = ran.err.splitlines()
    assert (drawn, written) == ("embstore: bits.svg is written", "embstore: bits.csv is written")
    assert first == "embstore: colours: train: blocks end at 1, 2, 4, 9, 18, 36 sentences"
    assert "all blocks: the last epoch (2) ended the training of 40 of 40 probes" in second
    lines = ran.out.splitlines()
    assert lines[0] == "code lengths in kbit, and how many times shorter than the uniform code"
    assert [line.split()[0] for line in lines[2:]] == ["0", "3", "uniform", "label"]
    for text in ("times", "label frequencies", "control kbit", "±"):
        assert text in ran.out
    assert {"layer", "code length (kbit)", "label frequencies"} <= svg_texts(folder / "bits.svg")
    frame = pl.read_csv(folder / "bits.csv")
    ran = folder.run(*ask, "--json")
    printed = valid(Ran(ran.status, ran.out, ""), "probe_output")
    assert set(frame["metric"]) == {row["metric"] for row in printed}
    assert len(set(frame["metric"])) == 6
    assert {row["layer"] for row in printed} == {0, 3, None}


def test_trees_by_layer_are_shown_drawn_and_saved(folder: Work) -> None:
    ran = folder.does(
        "probe", "structure", "trees.zarr", *STRUCTURE, "--out", "scores.csv", "--plot", "layers.svg",
        "--save", "probes", "--seeds", "0,1",
    )  # fmt: skip
    lines = ran.out.splitlines()
    assert lines[0] == "structural probes of rank 3"
    assert lines[1].split() == ["layer", "test", "UUAS", "test", "DSpr", "test", "root", "test", "NSpr"]
    assert [line.split()[0] for line in lines[2:]] == ["0", "3", "4", "linear"]
    assert "±" in lines[2]
    assert pl.read_csv(folder / "scores.csv").columns == list(SCHEMA)
    assert {"edges found (UUAS)", "layer", "linear order"} <= svg_texts(folder / "layers.svg")
    assert load(folder / "probes").fitted_.shape.layers == (0, 3, 4)
    few = settings(epochs=1, patience=0)
    ran = folder.run("probe", "structure", "trees.zarr", "narrow.zarr", *TREES, *few, "--layers", "3", "--json")
    printed = valid(Ran(ran.status, ran.out, ""), "probe_output")
    assert {row["store"] for row in printed} == {"trees", "narrow", "trees: linear order", "narrow: linear order"}


def test_bad_input_is_one_line(folder: Work) -> None:
    assert folder.run("probe", "classes", "made.zarr", *CLASSES, "--save", "bank").status == 0
    (folder / "empty").mkdir()
    for arguments, message in (
        (("classes", "made.zarr", "--train", "none.tsv", "--test", "test.tsv"), "none.tsv"),
        (("classes", "made.zarr", *CLASSES, "--kind", "deep"), "deep"),
        (("classes", "made.zarr", *CLASSES, "--save", "model"), "model exists and is not a file of saved probes"),
        (("classes", "made.zarr"), "Missing option '--train'"),
        (("edges", "edges.zarr", "empty"), "empty has no train.jsonl"),
        (("edges", "edges.zarr", "gone"), "no targets at gone: give an existing folder"),
        (("edges", "edges.zarr", "colours", "--seeds", "a"), "--seeds 'a' is not allowed"),
        (("edges", "edges.zarr", "colours", "colours"), "two tasks are called colours"),
        (("edges", "edges.zarr", "colours", "--plot", "a.txt"), "--plot a.txt has no known suffix"),
        (("edges", "edges.zarr", "colours", *settings(hidden_size=-1)), "hidden_size -1 is not allowed"),
        (("mdl", "edges.zarr", "colours", *settings(epochs="ten")), "epochs 'ten' is not allowed"),
        (("structure", "trees.zarr", *STRUCTURE, "--save", "."), "is not a file of saved probes"),
    ):
        folder.refuses(" ".join(("probe", *map(str, arguments))), message)
