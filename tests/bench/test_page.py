"""The page of benchmarks is made of the result files, and each figure has its best rival, its run and its machine."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from embstore.bench.measure import Row
from tests.json_schemas import validator_of

ROOT = Path(__file__).parents[2]


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module("page")


def test_the_page_is_made_of_the_result_files(page: ModuleType) -> None:
    assert page.PAGE.read_text() == page.page(), "run python benchmarks/page.py"
    assert page.SPEED.search(page.README.read_text())
    assert page.README.read_text() == page.readme(), "run python benchmarks/page.py"


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks" / "results").glob("*.json")), ids=lambda path: path.name)
@pytest.mark.quick(3)
def test_result_files_are_valid(path: Path) -> None:
    validator_of("bench").validate(json.loads(path.read_text()))


def test_a_row_names_the_best_rival_the_run_and_what_misses_its_target(page: ModuleType, tmp_path: Path) -> None:
    rivals = {"numpy": 2e-3, "torch": 4e-3, "Lance": None}
    rows = [
        Row("gather", 3e-3, rivals, limit=1e-3, limit_name="take", targets={"to_rival": 1.0, "to_limit": 4.0}),
        Row("open", 5e-4, clock="processor", targets={"seconds": 1e-4}),
    ]
    load = {"start": 1.0, "end": 1.0, "cores_of_others": 0.5, "quiet": False}
    machine = {"cpu": "a processor", "cores": 2, "memory_gib": 8.0, "versions": {}}
    result = {"benchmark": "query", "date": "2026-01-02", "commit": "abc1234", "machine": machine, "load": load}
    result["rows"] = [row.as_json() for row in rows]
    growth = {"operation": "scan", "rows": [10, 100], "seconds": [0.1, 1.0], "own_nbytes": [0, 2**20], "exponent": 1.0}
    (tmp_path / "a.json").write_text(json.dumps({**result, "growth": [growth]}))
    (tmp_path / "b.json").write_text(json.dumps({**result, "benchmark": "static"}))
    text = page.page(tmp_path)
    assert "2026-01-02, commit abc1234: a processor, 2 cores, 8 GiB" in text
    assert "**not a quiet run**" in text
    assert "| gather | 1, wall | 3.00 ms | 2.00 ms numpy | 1.00 ms take | **1.50** (<= 1) | 3.00 |" in text
    assert "torch 4.00 ms; Lance not installed" in text
    assert "| open | 1, processor | **500 µs** (<= 0.0001 s) |" in text
    assert "| scan | 100 ms | 1.00 s | 1.00 | 0 / 1 |" in text
    assert text.count("\n## ") == 1, "scores are not speed"
