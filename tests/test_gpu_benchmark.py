"""The benchmark of a GPU runs from end to end without one, in a small size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu" / "run.py"


@pytest.mark.slow
def test_the_steps_run_without_a_gpu(tmp_path: Path) -> None:
    out = tmp_path / "cpu.json"
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--tiny", "--seconds", "600", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    steps = json.loads(out.read_text())["steps"]
    assert list(steps) == ["rates", "correctness", "storing", "baseline", "decoder", "queries", "probes"]
    compared = [case for name, case in steps["correctness"].items() if name != "took_s"]
    assert all(case["holds"] and case["relative"] > 0 for case in compared), "0: compared with itself"
    assert steps["queries"]["geometry, holds"]
    assert steps["queries"]["neighbors, holds"]
    assert steps["storing"]["binds"] in steps["storing"]["limits_s"]
