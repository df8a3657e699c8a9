"""What a plan spends on the time of an extraction, and on the check of the batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import embstore as es
from embstore import devices
from embstore.extraction import estimate
from embstore.models.encoder import Spans, Tokenized
from tests.extraction.fake import FakeEncoder


class Recording(FakeEncoder):
    """Records the sentences of each call of `encode`, in subwords, and what the self-check was asked for."""

    def __init__(self) -> None:
        super().__init__(max_subwords=60)
        self.runs: list[np.ndarray] = []
        self.spans: list[Spans] = []
        self.checked: dict[str, Any] = {}

    def encode(self, tokenized: Tokenized, spans: Spans, **options: Any) -> Iterator[Any]:
        self.runs.append(np.diff(tokenized.sentence_bounds))
        self.spans.append(spans)
        return super().encode(tokenized, spans, **options)

    def self_check(self, tokenized: Tokenized, **options: Any) -> float:
        self.checked = {**options, "n_sentences": len(tokenized.sentence_indptr) - 1}
        return 0.0


def sentences(count: int) -> list[list[str]]:
    rng = np.random.default_rng(count)
    return [["word"] * int(rng.integers(1, 20)) for _ in range(count)]


def the_run(encoder: Recording) -> np.ndarray:
    """Return what was run; it is run again where that takes little time, and then a short sentence of it."""
    several = [run for run in encoder.runs if len(run) > 1]
    assert 1 <= len(several) <= 3
    assert all(np.array_equal(run, encoder.runs[0]) for run in several)
    assert all(run.item() == encoder.runs[0].min() for run in encoder.runs[len(several) :])
    return encoder.runs[0]


@pytest.mark.parametrize(
    ("seconds", "median", "runs"), [([0.1, 0.01, 0.02], 0.02, 3), ([0.2, 0.15], 0.175, 2), ([9], 9, 1)]
)
def test_a_short_calibration_is_run_again_for_its_median(
    seconds: list[float], median: float, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = timed(monkeypatch, lambda number, n_positions: seconds[number])
    options = es.ExtractionOptions(batch_subwords=64)  # as the batches of the extraction
    plan = es.plan(sentences(3000), model=encoder, options=options)
    run, positions = encoder.runs[0], plan.n_subwords + plan.n_sentences * encoder.n_specials
    share = (run.sum() + len(run) * encoder.n_specials) / positions
    assert len(encoder.runs) == runs
    assert plan.estimate.seconds == pytest.approx(median / share)


def timed(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[int, int], float]) -> Recording:
    """An encoder whose runs take some seconds each, given the number of the run and its positions."""
    clock = 0.0

    class Timed(Recording):
        def encode(self, tokenized: Tokenized, *given: Any, **options: Any) -> Iterator[Any]:
            nonlocal clock
            n_sentences = len(tokenized.sentence_indptr) - 1
            clock += seconds(len(self.runs), len(tokenized.ids) + n_sentences * self.n_specials)
            return super().encode(tokenized, *given, **options)

    def perf_counter() -> float:
        nonlocal clock
        clock += 1e-9  # a disk takes some time
        return clock

    monkeypatch.setattr(estimate, "time", SimpleNamespace(perf_counter=perf_counter))
    return Timed()


@pytest.mark.parametrize(("batch", "each"), [(0.02, 3e-5), (0.0, 1e-4), (0.3, 0.0)])
def test_what_a_batch_takes_is_counted_once_a_batch(batch: float, each: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A calibration is smaller than a batch of the extraction: its rate alone is that of small batches."""
    encoder = timed(monkeypatch, lambda number, n_positions: batch + each * n_positions)
    options = es.ExtractionOptions(batch_subwords=4096)
    plan = es.plan(sentences(3000), model=encoder, options=options)
    run, positions = the_run(encoder), plan.n_subwords + plan.n_sentences * encoder.n_specials
    each = max(each, batch / 2 / (run.sum() - run.min() + (len(run) - 1) * encoder.n_specials))
    assert plan.estimate.seconds == pytest.approx(positions * each + positions / 4096 * batch, rel=0.02)


@pytest.mark.parametrize("count", [600, 3000])
def test_a_calibration_runs_a_small_share_of_the_corpus(count: int) -> None:
    encoder = Recording()
    plan = es.plan(sentences(count), model=encoder, options=es.ExtractionOptions(batch_subwords=2048))
    run = the_run(encoder)
    positions = plan.n_subwords + plan.n_sentences * encoder.n_specials
    assert 0.005 < (run.sum() + len(run) * encoder.n_specials) / positions < 0.045
    assert run.max() > 1.5 * run.min()  # short sentences and long ones
    assert plan.estimate.seconds is not None
    assert plan.estimate.subwords_per_second is not None
    assert plan.estimate.seconds == pytest.approx(plan.n_subwords / plan.estimate.subwords_per_second)


def test_few_sentences_are_not_timed() -> None:
    encoder = Recording()
    plan = es.plan(sentences(20), model=encoder)
    assert not encoder.runs
    assert plan.estimate.seconds is None
    assert "not measured" in str(plan)
    assert plan.as_json()["seconds"] is None


def test_the_self_check_knows_the_longest_sentence() -> None:
    encoder = Recording()
    plan = es.plan([["abc"] * 50, *sentences(40)], model=encoder)
    assert encoder.checked["longest"] == 50
    assert plan.encoder_spec.longest == 50
    assert encoder.checked["n_sentences"] == 4
    es.plan([["abc"] * 90, ["abc"] * 7], model=encoder)
    assert encoder.checked["longest"] == 60  # more than the model accepts


def test_a_plan_and_an_extraction_keep_to_the_cpu_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    class Counting(FakeEncoder):
        def encode(self, *given: Any, **options: Any) -> Iterator[Any]:
            seen.append(torch.get_num_threads())
            return super().encode(*given, **options)

        def self_check(self, *given: Any, **options: Any) -> float:
            seen.append(torch.get_num_threads())
            return 0.0

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(devices, "cpu_quota", lambda: 2)
    with devices.torch_threads(3):
        encoder = Counting()
        plan = es.plan(sentences(8), model=encoder)
        es.extract(plan, tmp_path / "x.zarr")
        es.extraction.plan_windows(sentences(8), model=encoder, context_windows=[1, None])
        assert torch.get_num_threads() == 3
    assert len(seen) >= 3
    assert set(seen) == {2}
