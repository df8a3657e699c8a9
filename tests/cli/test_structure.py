"""`embstore probe structure`: what it prints, writes, draws and refuses."""

from __future__ import annotations

import polars as pl
import pytest

from embstore.probes import load
from tests.cli.conftest import Ran, Work, settings
from tests.cli.test_output import valid
from tests.drawn import svg_texts
from tests.probes.tree_store import conllu, make

FILES = ("--train", "train.conllu", "--dev", "dev.conllu", "--test", "test.conllu")
ASK = (*FILES, *settings(epochs=2, rank=3, patience=0))


def stores(folder: Work) -> None:
    made = make(folder / "made.zarr", sentences=40)
    make(folder / "other.zarr", sentences=40, width=16)
    for name, part in (("train", slice(0, 20)), ("dev", slice(20, 30)), ("test", slice(30, 40))):
        folder.write(f"{name}.conllu", conllu(made.trees[part]))


@pytest.fixture
def folder(work: Work) -> Work:
    return work.put(stores)


def test_probes_are_trained_shown_drawn_and_saved(folder: Work) -> None:
    ran = folder.run(
        "probe", "structure", "made.zarr", *ASK, "--out", "scores.csv", "--plot", "layers.svg", "--save", "probes",
        "--seeds", "0,1",
    )  # fmt: skip
    assert (ran.status, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0] == "structural probes of rank 3"
    assert lines[1].split() == ["layer", "test", "UUAS", "test", "DSpr", "test", "root", "test", "NSpr"]
    assert [line.split()[0] for line in lines[2:]] == ["0", "3", "4", "linear"]
    assert "±" in lines[2]
    frame = pl.read_csv(folder / "scores.csv")
    assert frame.columns == [
        "store",
        "task",
        "layer",
        "split",
        "metric",
        "item",
        "value",
        "low",
        "high",
        "count",
        "seed",
    ]
    assert {"edges found (UUAS)", "layer", "linear order"} <= svg_texts(folder / "layers.svg")
    assert load(folder / "probes").fitted_.shape.layers == (0, 3, 4)


def test_a_training_is_resumed(folder: Work) -> None:
    once = folder.run("probe", "structure", "made.zarr", *ASK, "--checkpoints", "saved/here", "--json")
    assert (once.status, once.err) == (0, "")
    file = folder / "saved" / "here" / "made.checkpoint"
    before = file.stat().st_mtime_ns
    again = folder.run("probe", "structure", "made.zarr", *ASK, "--checkpoints", "saved/here", "--json")
    assert again.out == once.out
    assert file.stat().st_mtime_ns == before, "nothing was left to train"
    other = folder.run("probe", "structure", "made.zarr", *ASK, "--seeds", 1, "--checkpoints", "saved/here")
    assert other.status == 2
    assert other.err.startswith("embstore: checkpoint saved/here/made.checkpoint is of another training")


@pytest.mark.slow
def test_several_stores_and_a_tree(folder: Work) -> None:
    ran = folder.run(
        "probe", "structure", "made.zarr", "other.zarr", *ASK, "--json", "--sentences", 8, "--layers", "3",
        "--plot", "tree.svg", "--sentence", 1, "--save", "probes",
    )  # fmt: skip
    assert ran.status == 0
    assert ran.err.splitlines()[0] == "embstore: train: 8 of 20 sentences, drawn at random"
    printed = valid(Ran(ran.status, ran.out, ""), "probe_output")
    assert {row["store"] for row in printed} == {"made", "other", "made: linear order", "other: linear order"}
    assert {"gold tree", "blue: in both trees   orange, dashed: in one"} <= svg_texts(folder / "tree.svg")
    assert sorted(path.name for path in (folder / "probes").iterdir()) == ["made", "other"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("made.zarr", *ASK, "--sentence", 1, "--plot", "a.svg", *settings(tasks="depth")), "tasks=depth"),
        (
            ("made.zarr", *ASK, "--sentence", 99, "--plot", "a.svg"),
            "there is no test sentence 99: give --sentence 0 to 9",
        ),
        (("made.zarr", *ASK, "--sentence", 1, "--plot", "a.svg"), "patience=0: give one layer, such as --layers 4"),
        (("made.zarr", *ASK, "--save", "."), "is not a file of saved probes"),
    ],
)
@pytest.mark.quick(4)
def test_what_is_refused(folder: Work, options: tuple[object, ...], message: str) -> None:
    folder.refuses(" ".join(("probe", "structure", *map(str, options))), message)
