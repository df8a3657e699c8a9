"""`embstore probe edges`: what it prints, writes and refuses."""

from __future__ import annotations

import json
from importlib import resources

import jsonschema
import polars as pl
import pytest

from embstore.probes.result import SCHEMA
from tests.cli.conftest import Work
from tests.probes.edge_store import make

ASK = ("--epochs", 2, "--batch", 8, "--hidden", 8, "--device", "cpu")


@pytest.fixture
def folder(work: Work) -> Work:
    made = make(work / "made.zarr", sentences=40, layers=(0, 1, 3), planted=1)
    made.write(work / "colours")
    make(work / "other.zarr", sentences=40, layers=(0, 1, 3), several=True).write(work / "hues")
    return work


def test_tasks_by_folder_and_by_file(folder: Work) -> None:
    ran = folder.run(
        "probe", "edges", "made.zarr", "colours", *ASK, "--out", "scores.csv", "--plot", "layers.svg",
        "--layerwise", "--seeds", "0,1", "--control", "--resamples", 50,
    )  # fmt: skip
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.splitlines()[0] == "edge probes: P(0) sees layer 0, P(L) mixes all"
    for text in (
        "center of gravity",
        "expected layer",
        "majority",
        "±",
        "alone",
        "test F1",
        "selectivity",
        "its selectivity",
        "95 % intervals: 50 draws",
        " to ",
    ):
        assert text in ran.out
    assert (folder / "layers.svg").stat().st_size > 1000
    frame = pl.read_csv(folder / "scores.csv")
    assert frame.columns == list(SCHEMA)
    train, dev, test = (f"colours/{name}.jsonl" for name in ("train", "dev", "test"))
    ran = folder.run("probe", "edges", "made.zarr", train, "--dev", dev, "--test", test, *ASK, "--json", "--control")
    assert (ran.status, ran.err) == (0, "")
    printed = json.loads(ran.out)
    schema = json.loads(resources.files("embstore.schemas").joinpath("probe_output.schema.json").read_text("utf-8"))
    jsonschema.validate(printed, schema)
    assert {row["task"] for row in printed} == {"colours"}
    assert {row["split"] for row in printed} == {"train", "dev", "test"}


def test_linear_probes_are_told_by_layer(folder: Work) -> None:
    ran = folder.run("probe", "edges", "made.zarr", "colours", *ASK, "--kind", "linear")
    assert (ran.status, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0] == "linear probes: F1 of each layer by itself"
    assert lines[1].split() == ["task", "best", "layer", "its", "interval", "0", "1", "3"]
    assert lines[2].split()[0] == "colours"
    assert "alone" in ran.out


def test_checkpoints_are_gone_on_from(folder: Work) -> None:
    ask = ("probe", "edges", "made.zarr", "colours", *ASK, "--json")
    whole = folder.run(*ask)
    assert folder.run(*ask, "--checkpoints", "kept") == whole
    before = (folder / "kept" / "colours.pt").stat().st_mtime_ns
    assert folder.run(*ask, "--checkpoints", "kept") == whole
    assert (folder / "kept" / "colours.pt").stat().st_mtime_ns == before, "nothing was left to train"
    ran = folder.run(*ask, "--checkpoints", "kept", "--seeds", "1")
    assert (ran.status, ran.out) == (2, "")
    assert "kept/colours.pt is of another training" in ran.err


def test_samples_are_told_on_standard_error(folder: Work) -> None:
    ran = folder.run("probe", "edges", "made.zarr", "colours", *ASK, "--sentences", 6)
    assert ran.status == 0
    assert ran.err.splitlines() == [
        "embstore: colours: train: 6 of 24 sentences, drawn with seed 0",
        "embstore: colours: dev: 6 of 8 sentences, drawn with seed 0",
        "embstore: colours: test: 6 of 8 sentences, drawn with seed 0",
    ]


def test_bad_input_is_one_line(folder: Work) -> None:
    folder.write("broken.jsonl", '{"text": "a b", "targets": [{"span1": [0, 3], "label": "x"}]}\n')
    folder.write("strange.jsonl", '{"text": "a b", "targets": [{"span1": [0, 1], "label": "x"}]}\n')
    (folder / "empty").mkdir()
    before = folder.contents()
    dev = ("--dev", "colours/dev.jsonl")
    for arguments, message in (
        (("none.zarr", "colours"), "there is no store at none.zarr"),
        (("made.zarr", "empty"), "empty has no train.jsonl"),
        (("made.zarr", "none.jsonl", *dev), "no corpus at none.jsonl"),
        (("made.zarr", "broken.jsonl", *dev), "broken.jsonl:1: span1: [0, 3] is not within the 2 words"),
        (("made.zarr", "strange.jsonl", *dev), "'a b' is not a sentence of made.zarr, where the nearest is"),
        (("made.zarr", "colours", "--layers", "2"), "layer 2 is not stored"),
        (("made.zarr", "colours", "--seeds", "a"), "--seeds 'a' is not allowed"),
        (("made.zarr", "colours", "hues", *dev), "--dev goes with one file of train targets"),
        (("made.zarr", "colours", "colours"), "two tasks are called colours"),
        (("made.zarr", "colours/train.jsonl"), "patience 3 needs dev targets"),
        (("made.zarr", "colours", "--plot", "a.txt"), "--plot a.txt has no known suffix"),
        (("made.zarr", "colours", "--dropout", "1"), "dropout 1.0 is not allowed"),
        (("made.zarr", "colours", "--resamples", "-1"), "resamples -1 is not allowed"),
    ):
        ran = folder.run("probe", "edges", *arguments)
        assert (ran.status, ran.out) == (2, ""), arguments
        assert message in " ".join(ran.err.split()), arguments
        assert len(ran.err.splitlines()) == 1, ran.err
    assert folder.contents() == before
