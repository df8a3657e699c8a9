"""Over a thousand files with one defect each: refused in one line that names the file, and never read as others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.documents import ROOT
from tests.hostile_files.defects import Defect
from tests.hostile_files.reading import Outcome, judge, prepared
from tests.hostile_files.table import KINDS, defects

SECONDS = 1.0
NBYTES = 200 * 2**20
LONGEST = 700  # characters of a message
BY_NAME = {str(defect): defect for defect in defects()}
QUICK = [
    "zarr: metadata, n_rows is 2^62",
    "zarr: the index of a shard exchanges two layers",
    "zarr: a pipe in the place of hidden_states/zarr.json",
    "hdf5: hidden_states is external",
    "study: a record of lists 200,000 deep",
    "record: a pipe in the place of it",
    "trees: a cycle",
]


def faults(outcome: Outcome) -> list[str]:
    """Return what is wrong with what came of a defect, by the table."""
    defect = BY_NAME[outcome.defect]
    found = []
    for name, what in outcome.calls.items():
        message = outcome.messages.get(name, "")
        reads = defect.reads if name == "read" or defect.harmless else "refused"
        allowed = {"either": {"refused", "same"}, "other": {"other"}}.get(reads, {reads})
        if name == "lazy" and defect.reads == "same":
            allowed = {"same", "refused"}  # what is wrong is not read
        if what not in allowed:
            found.append(f"{name}: {what} instead of {reads}: {message[-400:]}")
        elif what == "refused" and ("\n" in message or len(message) > LONGEST):
            found.append(f"{name}: not one line: {message[:400]}")
    return [f"{defect}: {each}" for each in found]


def run(*parts: str) -> list[Outcome]:
    """Judge the defects whose names have one of the parts in a process that loads everything once."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile_files.reading", *parts],
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [Outcome(**json.loads(line)) for line in done.stdout.splitlines()]


def test_the_table_has_each_defect_once_and_two_hundred_of_stores_on_each_backend() -> None:
    kinds = Counter(defect.kind for defect in defects())
    assert len(BY_NAME) == len(defects()) > 1000
    assert kinds["zarr"] > 200
    assert kinds["hdf5"] > 200
    assert set(kinds) == set(KINDS)


@pytest.mark.parametrize("name", QUICK)
def test_some_files_with_a_defect(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    defect: Defect = BY_NAME[name]
    kind = KINDS[defect.kind]
    path, expected = prepared(kind, tmp_path / "good")
    outcome = judge(defect, kind, Path(path), expected, tmp_path / "bad")
    assert faults(outcome) == []
    assert outcome.calls


@pytest.mark.slow
def test_some_files_of_each_kind_with_a_defect() -> None:
    names = [name for kind in KINDS for name in [each for each in BY_NAME if each.startswith(f"{kind}:")][::23]]
    outcomes = run(*names)
    assert {outcome.defect for outcome in outcomes} >= set(names)
    assert [fault for outcome in outcomes for fault in faults(outcome)] == []


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("EMBSTORE_CAMPAIGN") != "full", reason="1,100 processes: EMBSTORE_CAMPAIGN=full")
def test_all_files_with_a_defect() -> None:
    """Each in less than a second of the processor and 200 MB."""
    outcomes = run()
    assert len(outcomes) == len(BY_NAME)
    print(Counter((BY_NAME[each.defect].kind, *each.calls.values()) for each in outcomes))
    print("slowest", max((each.seconds, each.defect) for each in outcomes))
    print("largest", max((each.nbytes, each.defect) for each in outcomes))
    assert [fault for outcome in outcomes for fault in faults(outcome)] == []
    assert [each for each in outcomes if each.seconds > SECONDS or each.nbytes > NBYTES] == []
