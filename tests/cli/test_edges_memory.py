"""`embstore probe edges --memory`."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Work
from tests.probes.edge_store import make

ASK = ("--epochs", 1, "--hidden", 8, "--json")


@pytest.fixture
def folder(work: Work) -> Work:
    made = make(work / "made.zarr", sentences=30, layers=(0, 1), planted=1)
    made.write(work / "colours")
    return work


def test_probes_that_do_not_fit_together_are_trained_after_each_other(folder: Work) -> None:
    whole = folder.run("probe", "edges", "made.zarr", "colours", *ASK)
    parts = folder.run("probe", "edges", "made.zarr", "colours", *ASK, "--memory", "100kB", "--checkpoints", "kept")
    assert (whole.status, parts.status, parts.err) == (0, 0, "")
    assert sorted(path.name for path in (folder / "kept").iterdir()) == ["colours.0-0.pt", "colours.1-1.pt"]
    for one, other in zip(json.loads(whole.out), json.loads(parts.out), strict=True):
        assert one.keys() == other.keys()
        assert one["value"] == pytest.approx(other["value"], abs=1e-4)


@pytest.mark.parametrize(
    ("memory", "message"),
    [("70kB", "memory 70.0 kB is not enough: one probe takes 95.0 kB"), ("much", "--memory 'much' is not a size")],
)
def test_memory_that_is_none_or_too_little(folder: Work, memory: str, message: str) -> None:
    ran = folder.run("probe", "edges", "made.zarr", "colours", *ASK, "--memory", memory)
    assert (ran.status, ran.out) == (2, "")
    assert message in ran.err
    assert len(ran.err.splitlines()) == 1
