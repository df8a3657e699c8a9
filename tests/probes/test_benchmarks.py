"""The benchmarks of probes run on tiny data, without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore as es
from tests.cli.test_probe import write_list
from tests.probes import edge_store
from tests.probes.class_store import make

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def ran(script: str, *arguments: object, out: Path) -> dict[str, object]:
    command = [sys.executable, str(BENCHMARKS / script), *map(str, arguments), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    held: dict[str, object] = json.loads(out.read_text())
    return held


@pytest.mark.slow
def test_the_gpu_benchmark_of_class_probes_runs_on_a_cpu(tmp_path: Path) -> None:
    sizes = {"layers": 2, "classes": 3, "width": 8, "hidden": 4, "batch": 16, "steps": 60, "looped": 2, "square": 64}
    options = [part for name, value in sizes.items() for part in (f"--{name}", value)]
    held = ran("gpu/bank.py", "--device", "cpu", "--repeats", 3, *options, out=tmp_path / "out.json")
    assert [(each["kind"], each["probes"]) for each in held["found"]] == [("linear", 6), ("mlp", 6)]  # type: ignore[attr-defined]
    assert all(np.isfinite(each["loop_over_bank"]) for each in held["found"])  # type: ignore[attr-defined]


@pytest.mark.slow
def test_the_bank_is_compared_with_a_loop(tmp_path: Path) -> None:
    made = make(tmp_path / "made.zarr")
    for name, words in zip(("train", "test"), made.lists, strict=True):
        write_list(tmp_path / f"{name}.tsv", words)
    lists = ("--train", tmp_path / "train.tsv", "--test", tmp_path / "test.tsv")
    sizes = ("--batch", 16, "--batch-mlp", 16, "--hidden", 4, "--steps", 2, "--repeats", 1)
    held = ran("bank.py", tmp_path / "made.zarr", *lists, *sizes, out=tmp_path / "out.json")
    assert held["data"] == {"contexts": held["data"]["contexts"], "layers": 3, "width": 8, "classes": 3}  # type: ignore[index]
    assert [len(row["rivals"]) for row in held["rows"]] == [5, 0]  # type: ignore[attr-defined]


@pytest.mark.slow
def test_linear_probes_score_as_logistic_regression_does(data: Path, minilm: Path, tmp_path: Path) -> None:
    """The bound is more than twice the greatest difference measured; unconverged probes were .05 lower in layer 6."""
    pytest.importorskip("sklearn")
    lines = (data / "semcor-pse" / "corpus.txt").read_text().splitlines()
    (tmp_path / "some.txt").write_text("\n".join(lines[::17]) + "\n")
    corpus = es.open_corpus(tmp_path / "some.txt", format="pse")
    options = es.ExtractionOptions(layers="0,6", keep=es.corpus.Keep(labelled=True))
    es.extract(es.plan(corpus, model=minilm, options=options, calibrate=False), tmp_path / "some.zarr")
    lists = [part for name in ("train", "test") for part in (f"--{name}", data / "semcor-pse" / f"{name}.tsv")]
    held = ran("class_probes.py", tmp_path / "some.zarr", *lists, out=tmp_path / "out.json")
    for row in held["rows"]:  # type: ignore[attr-defined]
        assert abs(row["difference"]) < 0.025
        assert row["converged"] > 0.9


@pytest.mark.slow
def test_edge_probes_together_are_compared_with_one_after_another(tmp_path: Path) -> None:
    made = edge_store.make(tmp_path / "made.zarr", sentences=40, pairs=True, layers=(0, 1), planted=1, dtype="float16")
    made.write(tmp_path / "colours")
    sizes = ("--batch", 8, "--threads", 1, "--repeats", 1, "--square", 64)
    held = ran("probe.py", tmp_path / "made.zarr", tmp_path / "colours", *sizes, out=tmp_path / "out.json")
    rows: list[dict[str, Any]] = held["rows"]  # type: ignore[assignment]
    what = [f"{each} {name}" for name in ("colours", "all tasks") for each in ("P(0) to P(1) together,", "stream of")]
    assert [row["what"] for row in rows] == what
    assert [sorted(row["rivals"]) for row in rows] == [["one by one, by hand", "one by one, same code"], []] * 2
    assert rows[0]["ours"] == rows[2]["ours"]
    assert all(row["limit"] > 0 for row in rows)
