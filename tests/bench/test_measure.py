"""What the table of a benchmark is made of: cases in turn, medians, the best rival, and rivals that are missing."""

from __future__ import annotations

import os
from types import ModuleType, SimpleNamespace

import pytest

from embstore.bench import measure
from embstore.bench.measure import Row, Spent, Times, interleaved, row_of, shown_seconds, spent, watched_load
from embstore.bench.rivals import Rival, made


def test_the_best_rival_is_the_fastest_that_is_installed() -> None:
    row = Row("gather", 2.0, {"slow": 8.0, "fast": 4.0, "absent": None}, limit=0.5)
    assert (row.best_rival, row.to_rival, row.to_limit) == ("fast", 0.5, 4.0)
    alone = Row("open", 2.0, {"absent": None})
    assert (alone.best_rival, alone.to_rival, alone.to_limit) == (None, None, None)
    assert Row.of_json(row.as_json()) == row
    shown = row.table_row()
    assert (shown["ours"], shown["best rival"], shown["ours/rival"]) == ("2.00 s", "4.00 s fast", 0.5)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(1.0, "1.00 s"), (123.4, "123 s"), (0.0999, "99.9 ms"), (1.234e-5, "12.3 µs"), (1e-3, "1.00 ms"), (None, "-")],
)
def test_times_have_units(seconds: float | None, shown: str) -> None:
    assert shown_seconds(seconds) == shown


def test_cases_run_in_turn_and_warm_rounds_do_not_count() -> None:
    ran: list[tuple[str, int]] = []

    def case(name: str, number: int) -> float:
        ran.append((name, number))
        return 1.0 + number

    times = interleaved({"a": lambda n: case("a", n), "b": lambda n: case("b", n)}, repeats=2, warm=1)
    assert ran == [("a", -1), ("b", -1), ("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert times["a"].seconds == [1.0, 2.0]
    assert times["a"].median == 1.5


def test_a_case_over_its_budget_runs_once_and_sits_out() -> None:
    ran: list[int] = []
    times = interleaved({"slow": ran.append, "other": lambda number: 1.0}, repeats=4, warm=1, budget=-1.0)
    assert ran == [-1]
    assert len(times["slow"].seconds) == 1


def test_a_row_takes_the_clock_asked_for_and_the_limit_is_no_rival() -> None:
    times = {"ours": Times([4.0, 6.0], [1.0, 1.0]), "numpy": Times([5.0], [2.0]), "limit": Times([1.0], [0.5])}
    row = row_of("gather", times, missing={"Lance": None})
    assert (row.ours, row.rivals, row.limit) == (5.0, {"Lance": None, "numpy": 5.0}, 1.0)
    row = row_of("gather", times, clock="processor")
    assert (row.ours, row.rivals, row.limit) == (1.0, {"numpy": 2.0}, 0.5)


def test_work_is_scaled_on_both_clocks() -> None:
    assert Spent(2.0, 3.0).scaled(0.5) == Spent(1.0, 1.5)
    found = spent(lambda: sum(range(100)))
    assert 0 < found.processor < 10


def test_a_rival_that_is_not_installed_is_reported() -> None:
    def make(module: ModuleType, data: str) -> str:
        return f"{module.__name__} {data}"

    ready, missing = made({"numpy": Rival("numpy", make), "a rival": Rival("not_a_package", make)}, "x")
    assert ready == {"numpy": "numpy x"}
    assert missing == {"a rival (not_a_package)": None}


def test_other_processes_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What all processes used without what this one used, by the time that passed."""
    with watched_load() as load:
        pass
    assert (load["cores_of_others"] is None) == (not os.path.exists("/proc/stat"))
    for busy, cores, quiet in (([10.0, 17.0], 1.5, False), ([10.0, 11.0], 0.0, True), ([None], None, None)):
        monkeypatch.setattr(measure, "_busy_seconds", iter(busy).__next__)
        monkeypatch.setattr(measure, "_own_seconds", iter([5.0, 6.0]).__next__)
        clock = SimpleNamespace(perf_counter=iter([100.0, 104.0]).__next__)
        monkeypatch.setattr(measure, "time", clock)
        with watched_load() as load:
            pass
        assert (load["cores_of_others"], load["quiet"]) == (cores, quiet)
