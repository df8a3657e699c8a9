"""`embstore probe edges`: what it prints, writes and refuses."""

from __future__ import annotations

import json

import polars as pl
import pytest

from embstore.probes.result import SCHEMA
from tests.cli.conftest import Work, settings
from tests.cli.test_output import valid
from tests.drawn import svg_texts
from tests.probes.edge_store import make

ASK = ("--device", "cpu", *settings(epochs=2, batch_size=8, hidden_size=8, projection=8, patience=0))


def tasks(folder: Work) -> None:
    made = make(folder / "made.zarr", sentences=40, layers=(0, 1, 3), planted=1)
    made.write(folder / "colours")
    make(folder / "other.zarr", sentences=40, layers=(0, 1, 3), several=True).write(folder / "hues")


@pytest.fixture
def folder(work: Work) -> Work:
    return work.put(tasks)


@pytest.mark.slow
def test_tasks_by_folder_and_by_file(folder: Work) -> None:
    ran = folder.run(
        "probe", "edges", "made.zarr", "colours", *ASK, "--out", "scores.csv", "--plot", "layers.svg",
        "--seeds", "0,1", "--control", *settings(layerwise="true", resamples=50),
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
        "95 % intervals: 50 resamples",
        " to ",
    ):
        assert text in ran.out
    assert {"layer", "mixing weight", "share over the layers"} <= svg_texts(folder / "layers.svg")
    frame = pl.read_csv(folder / "scores.csv")
    assert frame.columns == list(SCHEMA)
    train, dev, test = (f"colours/{name}.jsonl" for name in ("train", "dev", "test"))
    ran = folder.run("probe", "edges", "made.zarr", train, *settings(dev=dev, test=test), *ASK, "--json", "--control")
    printed = valid(ran, "probe_output")
    assert {row["task"] for row in printed} == {"colours"}
    assert {row["split"] for row in printed} == {"train", "dev", "test"}


def test_linear_probes_are_shown_by_layer(folder: Work) -> None:
    ran = folder.run("probe", "edges", "made.zarr", "colours", *settings(epochs=2, patience=0), "--kind", "linear")
    assert (ran.status, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0] == "linear probes: F1 of each layer alone"
    assert lines[1].split() == ["task", "best", "layer", "its", "interval", "0", "1", "3"]
    assert lines[2].split()[0] == "colours"
    assert "alone" in ran.out


@pytest.mark.slow
def test_a_training_is_resumed(folder: Work) -> None:
    ask = ("probe", "edges", "made.zarr", "colours", *ASK, "--json")
    whole = folder.run(*ask)
    assert folder.run(*ask, "--checkpoints", "saved") == whole
    before = (folder / "saved" / "colours.checkpoint").stat().st_mtime_ns
    assert folder.run(*ask, "--checkpoints", "saved") == whole
    assert (folder / "saved" / "colours.checkpoint").stat().st_mtime_ns == before, "nothing was left to train"
    ran = folder.run(*ask, "--checkpoints", "saved", "--seeds", "1")
    assert (ran.status, ran.out) == (2, "")
    assert "saved/colours.checkpoint is of another training" in ran.err


def test_samples_are_reported_on_standard_error(folder: Work) -> None:
    ran = folder.run("probe", "edges", "made.zarr", "colours", *ASK, "--sentences", 6)
    assert ran.status == 0
    assert ran.err.splitlines() == [
        "embstore: colours: train: 6 of 24 sentences, drawn with seed 0",
        "embstore: colours: dev: 6 of 8 sentences, drawn with seed 0",
        "embstore: colours: test: 6 of 8 sentences, drawn with seed 0",
    ]


def test_bad_input_is_one_line(folder: Work) -> None:
    (folder / "empty").mkdir()
    dev = settings(dev="colours/dev.jsonl")
    for arguments, message in (
        (("made.zarr", "empty"), "empty has no train.jsonl"),
        (("made.zarr", "none.jsonl", *dev), "no targets at none.jsonl"),
        (("made.zarr", "colours", "--seeds", "a"), "--seeds 'a' is not allowed"),
        (("made.zarr", "colours", "hues", *dev), "--set dev=colours/dev.jsonl goes with one file of train targets"),
        (("made.zarr", "colours", "colours"), "two tasks are called colours"),
        (("made.zarr", "colours", "--plot", "a.txt"), "--plot a.txt has no known suffix"),
        (("made.zarr", "colours", *settings(resamples=-1)), "resamples=-1 is not allowed"),
    ):
        folder.refuses(" ".join(("probe", "edges", *arguments)), message)


@pytest.mark.slow
def test_probes_that_do_not_fit_together_are_trained_one_after_the_other(folder: Work) -> None:
    ask = ("probe", "edges", "made.zarr", "colours", *ASK, "--json", "--layers", "0,1")
    whole = folder.run(*ask)
    parts = folder.run(*ask, *settings(memory="100kB"), "--checkpoints", "saved")
    assert (whole.status, parts.status, parts.err) == (0, 0, "")
    assert sorted(path.name for path in (folder / "saved").iterdir()) == [
        "colours.0-0.checkpoint",
        "colours.1-1.checkpoint",
    ]
    for one, other in zip(json.loads(whole.out), json.loads(parts.out), strict=True):
        assert one.keys() == other.keys()
        assert one["value"] == pytest.approx(other["value"], abs=1e-4)
    for memory, message in (("20kB", "one probe takes"), ("much", "'much' is not a size")):
        folder.refuses(" ".join((*map(str, ask), *settings(memory=memory))), message)


@pytest.mark.slow
def test_settings_come_from_a_file(folder: Work) -> None:
    folder.write("probe.toml", "epochs = 2\nbatch_size = 8\nhidden_size = 8\nprojection = 8\npatience = 0\n")
    ask = ("probe", "edges", "made.zarr", "colours", "--device", "cpu", "--json")
    assert folder.run(*ask, "--config", "probe.toml").out == folder.run(*ask, *ASK[2:]).out
    for text, message in (
        ("epochs = 'two'", "probe.toml: epochs=two is not allowed: give a whole number"),
        ("epoch = 2", "probe.toml: epoch is not a setting of this command: choose hidden_size"),
        ("epochs = ", "probe.toml is not TOML"),
    ):
        folder.write("probe.toml", text)
        folder.refuses(" ".join((*ask, "--config", "probe.toml")), message)
    folder.refuses(" ".join((*ask, "--config", "gone.toml")), "--config gone.toml cannot be read")
    folder.refuses(" ".join((*ask, "--set", "epochs")), "--set epochs is not KEY=VALUE")
