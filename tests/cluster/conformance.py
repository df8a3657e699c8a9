"""What every executor must do; the tests of each inherit from these classes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from embstore.errors import ExecutorError, WorkerWarning
from embstore.executor import Executor
from tests.cluster import jobs

ATTEMPTS = 3


class ExecutorTests:
    """Of any executor; `executor` is a fixture that gives one with three attempts."""

    def test_every_piece_is_done_once(self, executor: Executor) -> None:
        outcomes = list(executor.run(jobs.Squares(), range(20)))
        assert sorted(outcome.piece for outcome in outcomes) == list(range(20))
        for outcome in outcomes:
            assert outcome.result is not None
            assert outcome.result[0] == outcome.piece**2
            assert (outcome.error, outcome.attempts, outcome.failures) == (None, 1, ())

    def test_nothing_to_do(self, executor: Executor) -> None:
        assert list(executor.run(jobs.Squares(), iter(()))) == []

    def test_a_poisoned_piece_is_tried_and_reported_and_the_rest_is_done(self, executor: Executor) -> None:
        outcomes = {outcome.piece: outcome for outcome in executor.run(jobs.Squares(poisoned=(0, 7)), range(12))}
        assert set(outcomes) == set(range(12))
        for piece in (0, 7):
            failed = outcomes[piece]
            assert isinstance(failed.error, ValueError)
            assert str(failed.error) == f"{piece} is poisoned"
            assert failed.result is None
            assert failed.attempts == ATTEMPTS
            assert len(failed.failures) == ATTEMPTS
            assert all(f"ValueError: {piece} is poisoned" in line for line in failed.failures)
        assert all(outcomes[piece].result for piece in set(outcomes) - {0, 7})

    def test_pieces_are_taken_as_workers_are_free(self, executor: Executor) -> None:
        taken: list[int] = []

        def pieces() -> Iterator[int]:
            for piece in range(1000):
                taken.append(piece)
                yield piece

        outcomes = executor.run(jobs.Squares(), pieces())
        for _ in range(5):
            next(outcomes)
        assert len(taken) <= 5 + 4 * executor.workers
        outcomes.close()  # type: ignore[attr-defined]

    def test_an_executor_runs_again(self, executor: Executor) -> None:
        for _ in range(2):
            assert sorted(outcome.result[0] for outcome in executor.run(jobs.Squares(), range(4))) == [0, 1, 4, 9]  # type: ignore[index]

    def test_no_worker_can_begin(self, executor: Executor) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(ExecutorError, match="the model is not here"):
                list(executor.run(jobs.CannotBegin(), range(4)))


class WorkerTests(ExecutorTests):
    """Of executors whose workers are processes of their own and may be lost."""

    def test_a_killed_workers_piece_is_done_again(self, executor: Executor, tmp_path: Path) -> None:
        job = jobs.KilledOnce((2, 5), tmp_path)
        outcomes = {outcome.piece: outcome for outcome in executor.run(job, range(10))}
        assert {piece: outcome.result and outcome.result[0] for piece, outcome in outcomes.items()} == {
            piece: piece**2 for piece in range(10)
        }
        for piece in (2, 5):
            assert outcomes[piece].attempts == 2
            assert "the worker was lost" in outcomes[piece].failures[0]

    def test_a_piece_that_kills_every_worker_is_reported(self, executor: Executor) -> None:
        outcomes = {outcome.piece: outcome for outcome in executor.run(jobs.KillsAlways(3), range(6))}
        assert set(outcomes) == set(range(6))
        assert isinstance(outcomes[3].error, ExecutorError)
        assert outcomes[3].attempts == ATTEMPTS
        assert all(outcomes[piece].result for piece in (0, 1, 2, 4, 5))

    def test_an_error_that_cannot_travel_is_told_all_the_same(self, executor: Executor) -> None:
        (outcome,) = executor.run(jobs.RaisesUnpicklable(), [0])
        assert isinstance(outcome.error, ExecutorError)
        assert str(outcome.error) == "Unpicklable: this and that"


class SeveralWorkerTests(WorkerTests):
    """Of executors with two workers or more."""

    def test_what_one_worker_cannot_do_another_does(self, executor: Executor, tmp_path: Path) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            outcomes = list(executor.run(jobs.OneBrokenWorker(tmp_path), range(30)))
        assert sorted(outcome.piece for outcome in outcomes if outcome.result) == list(range(30))
        again = [outcome for outcome in outcomes if outcome.attempts > 1]
        assert len(again) >= 1
        assert all("the disk is full" in failure for outcome in again for failure in outcome.failures)
        assert all(outcome.worker not in outcome.failures[0] for outcome in again)
        assert len(again) < 15, "a worker that fails again and again is left out"
        told = [str(one.message) for one in caught if issubclass(one.category, WorkerWarning)]
        assert len(again) < 3 or any("the work goes on without it" in line for line in told)

    def test_a_worker_that_cannot_begin_is_left_out_and_told(self, executor: Executor, tmp_path: Path) -> None:
        with pytest.warns(WorkerWarning) as caught:
            outcomes = list(executor.run(jobs.CannotBegin(tmp_path), range(6)))
        assert sorted(outcome.result[0] for outcome in outcomes if outcome.result) == [0, 1, 4, 9, 16, 25]
        told = [str(one.message) for one in caught]
        assert any("the model is not here; the work goes on without it" in line for line in told)
        assert any("torch 1.0 is here" in line for line in told)


class AllAtOnceTests:
    """Of executors that take seconds to begin: all that may go wrong in one run, of two workers or more."""

    def test_all_at_once(self, executor: Executor, tmp_path: Path) -> None:
        taken: list[int] = []

        def pieces() -> Iterator[int]:
            for piece in range(24):
                taken.append(piece)
                yield piece

        job = jobs.AllAtOnce(tmp_path, killing=5, poisoned=3)
        outcomes = {}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for outcome in executor.run(job, pieces()):
                assert outcome.piece not in outcomes
                outcomes[outcome.piece] = outcome
                assert len(taken) <= len(outcomes) + 4 * executor.workers
        assert any("the work goes on without it" in str(one.message) for one in caught)
        assert {piece: one.result[0] for piece, one in outcomes.items() if one.result} == {
            piece: piece**2 for piece in range(24) if piece != 3
        }
        assert outcomes[3].attempts == ATTEMPTS
        assert any("ValueError: 3 is poisoned" in line for line in outcomes[3].failures)
        assert any("the worker was lost" in line for line in outcomes[5].failures)
        assert any("the disk is full" in line for one in outcomes.values() for line in one.failures)
