"""Hostile input ends in one line that names the value, whatever the command or function: no traceback, no hang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests import hostile
from tests.documents import ROOT

SEED = 15
SAMPLE = 16
CAMPAIGN = 600


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    hostile.prepare(folder)
    return folder


def run(template: Path, count: int) -> list[dict[str, Any]]:
    """Run cases in a process of their own, which loads everything once and forks for each."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile", template, str(SEED), str(count)],
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


# Calls that refuse another argument first, as what the bad one names needs it.
OTHERS_FIRST = (
    "bench all",
    "probe edges",
    "probe mdl",
    "reproduce",
    "probe_scores",
    "sentence_similarity",
)


def is_named(case: dict[str, Any]) -> bool:
    """Return whether the message names the bad value or, where that is empty, long or unreadable, what it was for."""
    value, err, name = case["value"], case["err"], case["argument"].removeprefix("--set ").lstrip("-")
    names = {name, name.replace("-", "_"), name.replace("_", " "), name.replace("-", " "), name.rstrip("s")}
    if case["kind"] == "function":
        given = hostile.python_values()[value]
        names.add(name.rpartition("_")[2])
        shown = {value, str(given)[:20], repr(given)[:20], *map(str, given if isinstance(given, list | set) else ())}
    else:
        shown = {value, repr(value), f"{Path(value)}:", repr(value)[1:-1], value[:40], *value.split(",")}
    return case["call"] in OTHERS_FIRST or any(each.strip(" ,") and each in err for each in shown | names)


def fault(case: dict[str, Any]) -> str:
    """Return what is wrong with the outcome of a case; empty if nothing is."""
    status, lines = case["status"], case["err"].splitlines()
    if status not in (0, 1, 2):
        return "it hangs" if status == -14 else f"it ends with {status}"
    if "EMBSTORE_DEBUG" in case["err"] or "Traceback" in case["out"]:
        return "an error that was not foreseen"
    if max(map(len, lines), default=0) > 1200:
        return "a line without end"
    if not status or (status == 1 and case["out"]):
        return ""  # accepted; or a report of what is wrong, as that of verify
    if not is_named(case):
        return "the bad value is not named"
    if case["kind"] == "function":
        return "" if len(lines) == 1 else "not one line"
    if status == 1 and "not finite" not in case["err"] and "or give a smaller" not in case["err"]:
        return "a bad value that ends with status 1"
    return (
        "" if lines and all(line.startswith(("embstore: ", "... ")) for line in lines) else "not one line of embstore"
    )


def check(cases: list[dict[str, Any]]) -> None:
    wrong = [
        f"{case['call']} {case['argument']} {case['value'][:80]}: {found}: {case['err'][-200:]}"
        for case in cases
        if (found := fault(case))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_a_sample_of_hostile_input(template: Path) -> None:
    cases = run(template, SAMPLE)
    assert len(cases) == SAMPLE
    check(cases)


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("EMBSTORE_CAMPAIGN") != "full", reason="600 processes: EMBSTORE_CAMPAIGN=full")
def test_hostile_input_of_every_command_and_function(template: Path) -> None:
    cases = run(template, CAMPAIGN)
    assert len(cases) == CAMPAIGN
    print(Counter((case["kind"], case["status"]) for case in cases))
    check(cases)


def test_every_command_and_argument_has_its_turn() -> None:
    from tests.test_public_names import commands

    leaves = {name.removeprefix("embstore ") for name, each in commands().items() if not hasattr(each, "commands")}
    assert set(hostile.BASES) == leaves
    assert len(list(hostile.command_cases())) > 5000
    assert len(list(hostile.python_cases())) > 8000
