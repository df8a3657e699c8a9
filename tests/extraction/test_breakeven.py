"""After how many passes storing is cheaper than computing again."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources
from pathlib import Path

import jsonschema
import pytest

import embstore as es
from embstore.extraction import estimate
from embstore.extraction.breakeven import _beyond
from embstore.extraction.estimate import BreakEven, disk_rates, format_duration, format_nbytes
from tests.models import tiny

HOUR, GB_MONTH = 3.6, 2.0  # 0.001 a second


def test_passes_are_where_the_sums_cross() -> None:
    found = BreakEven(n_rows=1000, nbytes=10**9, compute_seconds=5.0, read_seconds=1.0, store_seconds=10.0)
    assert found.passes is not None
    stored, again = (10 + found.passes * 1, found.passes * 5)
    assert stored == pytest.approx(again)
    assert "more than 2.5 times: vectors are read at 1,000 MB/s" in found.verdict
    assert "or computed at 200 words/s" in found.verdict
    passes = found.passes_at(hour=HOUR, gb_month=GB_MONTH, months=3)
    assert passes is not None
    assert 3 * GB_MONTH + 0.001 * (10 + passes) == pytest.approx(0.001 * 5 * passes)
    assert found.passes_at(hour=0, gb_month=GB_MONTH, months=1) is None


def test_reading_that_is_slower_never_pays() -> None:
    never = BreakEven(n_rows=1000, nbytes=10**9, compute_seconds=1.0, read_seconds=1.0, store_seconds=10.0)
    assert never.passes is None
    assert never.verdict.startswith("computing at each reading always takes less time than storing")
    sometimes = BreakEven.of([never, BreakEven(1000, 10**9, 3.0, 1.0, 4.0)])
    assert (sometimes.passes, sometimes.passes_between) == (7, None)
    assert "more than 7 times (undetermined: never in one of its parts)" in sometimes.verdict


def test_parts_say_how_far_they_are_apart() -> None:
    parts = [BreakEven(1000, 10**9, compute, 1.0, 4.0) for compute in (5.0, 4.5, 5.5)]
    found = BreakEven.of(parts)
    assert (found.n_rows, found.nbytes, found.store_seconds) == (3000, 3 * 10**9, 12)
    assert (found.passes, found.passes_between) == (1, (4 / 4.5, 4 / 3.5))
    assert "more than once (0.89 to 1.1 in its parts): vectors" in found.verdict
    few = BreakEven(100, 10**8, 0.6, 0.05, 3.9)
    beyond = _beyond(few, parts[0])
    assert (beyond.compute_seconds, beyond.store_seconds) == pytest.approx((4.4 / 0.9, 0.4 / 0.9))
    apart = BreakEven.of([*parts, BreakEven(1000, 10**9, 2.0, 1.0, 4.0)])
    assert "(undetermined: 0.89 to 4 in its parts)" in apart.verdict


def test_a_plan_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "disk_rates", lambda folder, nbytes: (1e6, 4e6))
    monkeypatch.setattr(estimate, "calibrated_rate", lambda *_, **__: 1e4)
    made = es.plan(tiny.SENTENCES * 30, model=tiny.save("bert", tmp_path / "model"), progress=False)
    found = made.estimate.break_even
    assert found is not None
    assert found.nbytes == made.layout.n_rows * 4 * 32 * 2
    write, seconds = found.nbytes / 1e6, made.estimate.seconds
    assert seconds is not None
    assert (found.store_seconds, found.read_seconds) == (max(seconds, write), found.nbytes / 4e6)
    assert found.compute_seconds == seconds + write + found.read_seconds
    assert "saves time if all is read once or more; if less, see --virtual" in repr(made)
    for compute, said in (
        (5.0, "saves time if all is read 3 times or more; if less, see --virtual"),
        (1.0, "saves no time, see --virtual"),
    ):
        other = BreakEven(n_rows=1000, nbytes=10**9, compute_seconds=compute, read_seconds=1.0, store_seconds=10.0)
        assert ("storing", said) in replace(made.estimate, break_even=other).lines()
    schema = json.loads(resources.files("embstore.schemas").joinpath("plan.schema.json").read_text())
    jsonschema.validate(json.loads(json.dumps(made.as_json())), schema)


def test_a_disk_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    assert min(disk_rates(tmp_path, 2**20)) > 0
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_sample_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBSTORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("embstore.extraction.breakeven.PART_SENTENCES", 5)
    (tmp_path / "place").mkdir()
    found = es.extraction.bench_breakeven(
        tiny.SENTENCES * 30, model=tiny.save("bert", tmp_path / "model"), n_sentences=16, folder=tmp_path / "place"
    )
    words = sum(map(len, tiny.SENTENCES)) * 2
    assert (found.n_rows, found.nbytes) == (words, words * 4 * 32 * 2)
    assert [len(found.parts), sum(part.n_rows for part in found.parts)] == [3, words]
    assert min(found.compute_seconds, found.read_seconds, found.store_seconds) > 0
    assert not list((tmp_path / "place").iterdir())


def test_figures_have_the_largest_unit_below_them() -> None:
    assert [format_nbytes(n) for n in (1023, 1024, 150 * 2**20)] == ["1,023 B", "1.0 KiB", "150 MiB"]
    assert [format_duration(n) for n in (89, 90, 89 * 60, 90 * 60)] == ["89 s", "2 min", "89 min", "1.5 h"]
