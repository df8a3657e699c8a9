"""`embstore lookup`: the occurrences of a word."""

from __future__ import annotations

import json

import embstore as es
from tests.cli.conftest import Work


def test_a_condition_chooses_occurrences(work: Work) -> None:
    rows = es.open(work / "store.zarr").select(words="bank", where="position > 2").rows.tolist()
    ran = work.run("lookup", "store.zarr", "bank", "--json", "--where", "position > 2")
    assert [row["occurrence"] for row in json.loads(ran.out)] == rows
    assert len(rows) == 1
    none = work.run("lookup", "store.zarr", "bank", "--where", "position > 99")
    assert (none.status, none.out.splitlines()[0]) == (0, "bank: 0 occurrences")
