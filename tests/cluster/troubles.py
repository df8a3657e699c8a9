"""An encoder without a model for workers, and executors whose workers meet what may go wrong."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from embstore.executor import Executor, Outcome
from embstore.extraction.encoder_recipe import EncoderRecipe
from embstore.extraction.job import ExtractionJob, Written
from embstore.extraction.options import Options
from embstore.extraction.piece import Piece
from tests.cluster.jobs import first
from tests.extraction.fake import FakeEncoder


@dataclass(frozen=True)
class FakeRecipe(EncoderRecipe):
    """Makes the encoder of tests/extraction in any process; the piece `poison` gives NaN."""

    poison: str | None = None

    def load(self, layers: Any, options: Options) -> FakeEncoder:
        encoder = FakeEncoder()
        encoder.poison = self.poison
        return encoder


@dataclass(frozen=True)
class Troubles:
    """What the workers of an extraction meet, each once; the full disk is that of the worker that begins first.

    `seconds`: what every partition takes at least.
    """

    folder: Path
    poison: str | None = None
    killed_at: int | None = None
    full_disk: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class TroubledJob:
    """An extraction job that goes wrong as it is told."""

    job: ExtractionJob
    troubles: Troubles

    @property
    def pieces_at_a_time(self) -> int:
        return self.job.pieces_at_a_time

    def begin(self) -> Callable[[Piece], Written]:
        work = self.job.begin()
        full = self.troubles.full_disk and first(self.troubles.folder / "full")
        if full:
            fill_the_disk()

        def do(piece: Piece) -> Written:
            time.sleep(self.troubles.seconds)
            dies = piece.partition == self.troubles.killed_at and not full
            if dies and first(self.troubles.folder / "killed"):
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(60)
            return work(piece)

        return do


def fill_the_disk() -> None:
    """Let this process find the disk full from now on."""

    def refused(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    os.pwrite = refused  # type: ignore[assignment]


class Troubled:
    """An executor whose workers meet troubles."""

    def __init__(self, executor: Executor, troubles: Troubles) -> None:
        self._executor = executor
        self._troubles = troubles

    @property
    def workers(self) -> int:
        return self._executor.workers

    def run(self, job: ExtractionJob, pieces: Iterable[Piece]) -> Iterator[Outcome[Piece, Written]]:
        recipe = FakeRecipe(**{**vars(job.recipe), "poison": self._troubles.poison})
        return self._executor.run(TroubledJob(replace(job, recipe=recipe), self._troubles), pieces)


@pytest.fixture
def quick_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers load no model, only what tests/extraction has instead."""
    monkeypatch.setattr("embstore.extraction.distribution.EncoderRecipe", FakeRecipe)
