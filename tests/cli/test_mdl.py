"""`embstore probe mdl`: what it prints, draws and refuses."""

from __future__ import annotations

import polars as pl
import pytest

import embstore as es
from embstore.errors import InvalidValueError
from tests.cli.conftest import Ran, Work, settings
from tests.cli.test_output import valid
from tests.drawn import svg_texts
from tests.probes.edge_store import make

ASK = ("--device", "cpu", *settings(epochs=2, hidden_size=8, projection=8, fractions="10,40,100"))


def tasks(folder: Work) -> None:
    make(folder / "made.zarr", sentences=30, layers=(0, 3), planted=3).write(folder / "colours")


@pytest.fixture
def folder(work: Work) -> Work:
    return work.put(tasks)


@pytest.mark.slow
def test_code_lengths_by_task_and_layer(folder: Work) -> None:
    ran = folder.run(
        "probe", "mdl", "made.zarr", "colours", *ASK, "--control", "--seeds", "0,1",
        "--plot", "bits.svg", "--out", "bits.csv",
    )  # fmt: skip
    assert ran.status == 0
    first, second = ran.err.splitlines()
    assert first == "embstore: colours: train: blocks end at 2, 7, 18 sentences"
    assert "all blocks: the last epoch (2) ended the training of 16 of 16 probes" in second
    assert ran.out.splitlines()[0] == "code lengths in kbit"
    for text in ("compression", "frequencies", "control kbit", "±"):
        assert text in ran.out
    assert {"layer", "code length (kbit)", "label frequencies"} <= svg_texts(folder / "bits.svg")
    frame = pl.read_csv(folder / "bits.csv")
    ran = folder.run("probe", "mdl", "made.zarr", "colours", *ASK, "--control", "--json")
    printed = valid(Ran(ran.status, ran.out, ""), "probe_output")
    assert set(frame["metric"]) == {row["metric"] for row in printed}
    assert len(set(frame["metric"])) == 6
    assert {row["layer"] for row in printed} == {0, 3, None}


def test_bad_input_is_one_line(folder: Work) -> None:
    for arguments, message in (
        (("made.zarr", "colours", *settings(fractions="ten")), "fractions=ten is not allowed"),
        (("made.zarr", "gone"), "no targets at gone: give an existing file or folder"),
    ):
        folder.refuses(" ".join(("probe", "mdl", *arguments)), message)


def test_a_frame_without_code_lengths_is_not_drawn() -> None:
    with pytest.raises(InvalidValueError, match="there are no code lengths to draw"):
        es.plot.code_lengths(pl.DataFrame({"task": ["a"], "layer": [0], "metric": ["f1"], "value": [1.0]}))
