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
from tests.hostile_files.reading import Outcome, judge, prepared
from tests.hostile_files.table import KINDS, defects

SECONDS = 1.0
NBYTES = 200 * 2**20
LONGEST = 700  # characters of a message
BY_NAME = {str(defect): defect for defect in defects()}
QUICK = [
    "study: a record of lists 200,000 deep",
    "record: a pipe in the place of it",
    "trees: a cycle",
]
STORES = ("zarr", "hdf5")
SLOWEST = "zarr: metadata, 10^6 layers"


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
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "2"},
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


def judged(names: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Judge defects of one kind in this process; returns what is wrong with what came of them."""
    monkeypatch.chdir(folder)
    kind = KINDS[BY_NAME[names[0]].kind]
    path, expected = prepared(kind, folder / "good")
    found: list[str] = []
    for number, name in enumerate(names):
        outcome = judge(BY_NAME[name], kind, Path(path), expected, folder / str(number))
        assert outcome.calls
        found += faults(outcome)
    return found


@pytest.mark.parametrize("name", QUICK)
def test_a_file_with_a_defect(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged([name], tmp_path, monkeypatch) == []


SIXTHS = [pytest.param((first, 6), marks=pytest.mark.slow) for first in range(6)]


@pytest.mark.parametrize("which", [(2, 24), *SIXTHS])
@pytest.mark.parametrize("kind", STORES)
@pytest.mark.quick(1)
def test_stores_with_a_defect(
    kind: str, which: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every defect of stores, one of 24 of them and other files' data in a quick run."""
    first, every = which
    names = [each for each in BY_NAME if each.startswith(f"{kind}:") and "permission" not in each and each != SLOWEST]
    outside = [each for each in names if "external" in each or "another file" in each] if every == 24 else []
    assert judged(names[first::every] + outside, tmp_path, monkeypatch) == []


@pytest.mark.slow
def test_some_files_of_each_kind_with_a_defect() -> None:
    """In processes of their own, which end where reading hangs, and without permission."""
    names = [name for kind in KINDS for name in [each for each in BY_NAME if each.startswith(f"{kind}:")][::23]]
    names += [each for each in BY_NAME if each.startswith(STORES) and "permission" in each]
    outcomes = run(*names, SLOWEST)
    assert {outcome.defect for outcome in outcomes} >= {*names, SLOWEST}
    assert [fault for outcome in outcomes for fault in faults(outcome)] == []
    assert [each for each in outcomes if each.nbytes > NBYTES] == []


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
