"""The GPU benchmark and the simulation of 10^9 occurrences run from end to end, in a small size."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

pytestmark = pytest.mark.slow


def ran(script: str, *options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / script), *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


STEPS = ("rates", "forward, base", "storing, base", "zhao", "correctness", "baselines", "sanitizer", "busy", "lengths",
         "decoder", "forward, large", "storing, large", "means", "trace", "bank", "neighbors", "geometry", "halving",
         "probes", "devices")  # fmt: skip


def test_the_steps_run_without_a_gpu(tmp_path: Path) -> None:
    out = tmp_path / "cpu.json"
    done = ran("gpu/run.py", "--device", "cpu", "--tiny", "--tmp", tmp_path, "--out", out, "--seconds", 6000)
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
    trace = figures["trace"]["packed"]
    assert "attention" in trace["attention"]
    assert trace["kernels"] > len(trace["longest"]) > 3
    assert figures["sanitizer"]["rows"] == 1400
    assert figures["halving"]["parts_of_at_most"] < figures["halving"]["batch_subwords"]
    assert figures["devices"]["relative difference"] < 3e-3
    assert figures["means"]["largest_difference"] == 0
    assert figures["decoder"]["causal"]
    assert {case["batching"] for case in figures["decoder"]["cases"]} == {"varlen", "packed", "padded", "equal"}
    zhao = figures["zhao"]
    assert zhao["hours_if_stages_overlap"] == zhao["hours_by_stage"][zhao["binds"]]
    targets = {target["what"].split(":")[0]: target for target in result["targets"]}
    assert targets["float16 compared with CPU float32"]["holds"]
    assert len(result["targets"]) == 8
    text = out.with_suffix(".md").read_text()
    assert all(f"## {name}: done" in text for name in statuses)
    assert not list(tmp_path.glob("embstore-bench-*"))


def test_a_step_is_skipped_or_fails_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (BENCHMARKS.parent, BENCHMARKS, BENCHMARKS / "gpu"):
        monkeypatch.syspath_prepend(str(folder))
    import run
    from setting import TINY, Setting, SkipError

    def give(value: dict[str, Any] | Exception) -> Any:
        def call(setting: object) -> dict[str, Any]:
            if isinstance(value, Exception):
                raise value
            return value

        return call

    def fails_in_part(setting: Any) -> dict[str, Any]:
        case: dict[str, Any] = {}
        with setting.noting(case):
            raise RuntimeError("no kernel")
        return case

    results = [{"rate": 2.0}, SkipError("needs a store"), RuntimeError("CUDA error\nmore"), ImportError("no polars")]
    steps = [run.Step(str(at), 10, give(value)) for at, value in enumerate(results)]
    monkeypatch.setattr(run, "STEPS", [*steps, run.Step("4", 10, fails_in_part)])
    setting = Setting(torch.device("cpu"), tmp_path, TINY, 0, None)
    result: dict[str, Any] = {"gpu": "none", "steps": {}, "targets": []}
    arguments = argparse.Namespace(seconds=60.0, steps=None, out=str(tmp_path / "out.json"))
    run.run_steps(setting, arguments, result)
    outcomes = [(step["status"], step.get("reason")) for step in result["steps"].values()]
    assert outcomes == [
        ("done", None),
        ("skipped", "SkipError: needs a store"),
        ("failed", "RuntimeError: CUDA error"),
        ("failed", "ImportError: no polars"),
        ("failed", "some cases"),
    ]
    assert result["steps"]["4"]["figures"] == {"failed": "RuntimeError: no kernel"}
    kept = json.loads((tmp_path / "out.json").read_text())["steps"]
    assert all("Traceback" in kept[name]["traceback"] for name in "234")
    assert "raise value\nImportError: no polars" in (tmp_path / "out.md").read_text()
    assert run.exit_status(result["steps"]) == 1
    assert run.exit_status({"1": kept["1"]}) == 3
    assert run.exit_status({"0": kept["0"]}) == 0
    arguments.seconds, result["steps"] = 1.0, {}
    run.run_steps(setting, arguments, result)
    assert {step["reason"] for step in result["steps"].values()} == {"the time of the whole run is over"}


def test_a_step_that_takes_too_long_keeps_what_it_has_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (BENCHMARKS.parent, BENCHMARKS, BENCHMARKS / "gpu"):
        monkeypatch.syspath_prepend(str(folder))
    import run
    from setting import TINY, Setting

    out = tmp_path / "out.json"

    def slow(setting: Any) -> dict[str, Any]:
        for number in range(1000):
            case = {"number": number}
            setting.found.setdefault("cases", []).append(case)
            with setting.noting(case):
                time.sleep(0.05)
        raise AssertionError("was not stopped")

    monkeypatch.setattr(run, "GRACE", 1.0)
    monkeypatch.setattr(run, "STEPS", [run.Step("slow", 0.5, slow), run.Step("next", 1, lambda setting: {"rate": 1})])
    result: dict[str, Any] = {"gpu": "none", "steps": {}}
    arguments = argparse.Namespace(seconds=60.0, steps=None, out=str(out))
    run.run_steps(Setting(torch.device("cpu"), tmp_path, TINY, 0, None), arguments, result)
    kept = json.loads(out.read_text())["steps"]
    assert kept["slow"]["reason"].startswith("stopped after 0 s; the figures")
    assert [case["number"] for case in kept["slow"]["figures"]["cases"]][:2] == [0, 1]
    assert [step["status"] for step in kept.values()] == ["skipped", "done"]


def test_another_process_goes_on_where_one_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The results of a process that was killed in a step are kept, and the other steps follow, with what they need."""
    for folder in (BENCHMARKS.parent, BENCHMARKS, BENCHMARKS / "gpu"):
        monkeypatch.syspath_prepend(str(folder))
    import run

    def first(setting: Any) -> dict[str, Any]:
        setting.figures["rate"] = 3.0
        setting.targets.append(run.Target("a rate", 3.0, 2.0, True))
        return {"rate": 3.0}

    def killed(setting: Any) -> dict[str, Any]:
        setting.found["case"] = 1
        setting.save()
        os.kill(os.getpid(), signal.SIGKILL)
        return {}

    def broken(setting: Any) -> dict[str, Any]:
        monkeypatch.setattr(run, "free", lambda *_: (_ for _ in ()).throw(run.Broken("illegal memory access")))
        raise RuntimeError("illegal memory access")

    made = {
        "first": first,
        "killed": killed,
        "broken": broken,
        "last": lambda setting: {"twice": 2 * setting.need("rate")},
    }
    monkeypatch.setattr(run, "STEPS", [run.Step(name, 10, call) for name, call in made.items()])
    out = tmp_path / "out.json"
    arguments = argparse.Namespace(
        seconds=600.0, steps=None, out=str(out), device="cpu", tiny=True, seed=0, data=None, tmp=None
    )
    result = run.run_all(arguments, tmp_path)
    outcomes = {
        name: (step["status"], step.get("reason"), step.get("figures")) for name, step in result["steps"].items()
    }
    assert outcomes == {
        "first": ("done", None, {"rate": 3.0}),
        "killed": ("failed", "its process ended with status -9", {"case": 1}),
        "broken": ("failed", "RuntimeError: illegal memory access", None),
        "last": ("done", None, {"twice": 6.0}),
    }
    assert [target["what"] for target in result["targets"]] == ["a rate"]


def test_what_a_machine_does_not_have_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (BENCHMARKS.parent, BENCHMARKS, BENCHMARKS / "gpu"):
        monkeypatch.syspath_prepend(str(folder))
    import run
    from model_steps import devices
    from setting import TINY, Setting

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    entry = run.done(run.Step("devices", 1, devices), Setting(torch.device("cuda"), tmp_path, TINY, 0, None), 9)
    assert entry == {"status": "skipped", "reason": "SkipError: this machine has one GPU: cuda:1 and two workers were "
                     "not run"}  # fmt: skip
    assert run.exit_status({"devices": entry}) == 3


def test_differences_are_relative(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (BENCHMARKS.parent, BENCHMARKS, BENCHMARKS / "gpu"):
        monkeypatch.syspath_prepend(str(folder))
    from query_steps import different

    right = np.array([1000.0, 20.0, 0.0, np.nan])
    assert different(right + np.array([0, 0.02, 0, 0]), right) == pytest.approx(1e-3)
    assert different(right + np.array([0, 0, 0.02, 0]), right) == pytest.approx(2e-3), "of a hundredth of the largest"
    assert different(np.array([np.nan, 20.0, 0.0, 1.0]), right) == float("inf")


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
