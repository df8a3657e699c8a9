"""The GPU benchmark and the simulation of 10^9 occurrences run from end to end, in a small size."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

pytestmark = pytest.mark.slow


def ran(script: str, *options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / script), *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


STEPS = [
    *("rates", "correctness", "forward, base", "storing, base", "baselines", "geometry", "neighbors"),
    *("forward, large", "storing, large"),
]  # all but the bank of probes, which would start a process of its own


def test_the_steps_run_without_a_gpu(tmp_path: Path) -> None:
    out = tmp_path / "cpu.json"
    done = ran("gpu/run.py", "--device", "cpu", "--tiny", "--tmp", tmp_path, "--out", out, "--steps", *STEPS)
    result = json.loads(out.read_text())
    assert done.returncode == 0, done.stderr[-2000:] or result["steps"]
    statuses = {name: step["status"] for name, step in result["steps"].items()}
    assert statuses == dict.fromkeys(STEPS, "done"), statuses
    figures = {name: step["figures"] for name, step in result["steps"].items()}
    compared = {(c["dtype"], c["batching"]): c["relative"] for c in figures["correctness"]["cases"] if "relative" in c}
    assert {("float16", "padded"), ("float16", "packed"), ("bfloat16", "padded")} <= set(compared)
    assert all(relative < (3e-3 if dtype == "float16" else 3e-2) for (dtype, _), relative in compared.items())
    assert all(relative > 0 for relative in compared.values())  # else the same thing was compared with itself
    best = max(case["words_per_second"] for case in figures["forward, base"]["cases"] if case.get("layers") == "last")
    assert figures["storing, base"]["limits_words_per_second"]["forward pass"] == best
    assert figures["geometry"]["rows"] == figures["neighbors"]["rows"] == figures["storing, base"]["words"]
    assert set(figures["baselines"]) == {
        "plain script, float32",
        "plain script, float16",
        "a sentence a pass, float32",
    }
    targets = {target["what"].split(":")[0]: target for target in result["targets"]}
    assert targets["float16 compared with CPU float32"]["holds"]
    assert len(result["targets"]) == 7
    text = out.with_suffix(".md").read_text()
    assert all(f"## {name}: done" in text for name in statuses)
    assert not list(tmp_path.glob("embstore-bench-*"))


def test_a_step_is_skipped_or_fails_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (BENCHMARKS.parent, BENCHMARKS, BENCHMARKS / "gpu"):
        monkeypatch.syspath_prepend(str(folder))
    import run
    from setting import SkipError

    def give(value: dict[str, Any] | Exception) -> Any:
        def call(setting: object) -> dict[str, Any]:
            if isinstance(value, Exception):
                raise value
            return value

        return call

    results = [{"rate": 2.0}, SkipError("needs a store"), RuntimeError("CUDA error\nmore"), ImportError("no polars")]
    monkeypatch.setattr(run, "STEPS", [run.Step(str(at), 10, give(value)) for at, value in enumerate(results)])
    setting = SimpleNamespace(device=SimpleNamespace(type="cpu"), targets=[])
    result: dict[str, Any] = {"gpu": "none", "steps": {}, "targets": []}
    arguments = argparse.Namespace(seconds=60.0, steps=None, out=str(tmp_path / "out.json"))
    run.run_steps(setting, arguments, result)
    outcomes = [(step["status"], step.get("reason")) for step in result["steps"].values()]
    assert outcomes == [
        ("done", None),
        ("skipped", "SkipError: needs a store"),
        ("failed", "RuntimeError: CUDA error"),
        ("skipped", "ImportError: no polars"),
    ]
    assert json.loads((tmp_path / "out.json").read_text())["steps"]["2"]["status"] == "failed"
    arguments.seconds = 1.0
    run.run_steps(setting, arguments, result)
    assert {step["reason"] for step in result["steps"].values()} == {"the time of the whole run is over"}


def test_a_job_of_many_partitions_is_killed_resumed_and_loses_some(tmp_path: Path) -> None:
    out = tmp_path / "scale.json"
    sizes = ("--occurrences", "1e5", "3e5", "--columns-to", "1e5", "--types", "2e3", "--width", "64")
    done = ran("scale.py", *sizes, "--tmp", tmp_path, "--out", out)
    assert done.returncode == 0, done.stderr[-2000:]
    small, large = json.loads(out.read_text())["runs"]
    assert small["columns_written"]
    assert not large["columns_written"]
    assert small["phases"]["plan"]["seconds"] > 0
    assert "plan" not in large["phases"]
    assert (small["partitions"], large["partitions"]) == (4, 10)
    assert large["index_nbytes"] > 3e5 * (4 + 8 + 4 + 2 + 8) > large["index_on_disk_nbytes"]
    for run in (small, large):
        assert {"commit 70 %", "commit 30 %", "finish", "discard 30 % of it", "commit these again"} <= set(
            run["phases"]
        )
    assert not list(tmp_path.glob("embstore-bench-*"))
