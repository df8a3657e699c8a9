"""An encoder without a model for worker processes, and faults that meet a worker."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from embstore.extraction.encoder_spec import EncoderSpec
from embstore.models.encoder import Encoder, Pooled
from tests.extraction.fake import FakeEncoder


class FaultyEncoder(FakeEncoder):
    """The encoder of tests/extraction, which meets a fault when a sentence has the word `word`.

    `fault`: "killed" or "full disk", the first time in any process, which then leaves a file in `folder`.
    """

    word = fault = ""
    folder = Path()

    def encode(self, tokenized: Any, spans: Any, **options: Any) -> Iterator[Pooled]:
        if self.word and self.word in self.spellings(tokenized.ids.tolist()) and first(self.folder / self.fault):
            if self.fault == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(60)
            fill_the_disk()
        yield from super().encode(tokenized, spans, **options)


@dataclass(frozen=True)
class FakeSpec(EncoderSpec):
    """Makes a fake encoder in any process; the piece `poison` has NaN."""

    poison: str | None = None
    word: str = ""
    fault: str = ""
    folder: Path = Path()

    def load(self) -> Encoder:
        encoder = FaultyEncoder()
        for name in ("poison", "word", "fault", "folder"):
            setattr(encoder, name, getattr(self, name))
        return encoder


def use_fake_specs(monkeypatch: pytest.MonkeyPatch, **faults: Any) -> None:
    """Let workers load the fake encoder, which meets `faults`."""
    monkeypatch.setattr("embstore.extraction.plan.EncoderSpec", partial(FakeSpec, **faults))


def fill_the_disk() -> None:
    """Let this process find the disk full from now on."""

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    os.pwrite = refuse  # type: ignore[assignment]
    os.write = refuse  # type: ignore[assignment]
    os.fsync = refuse  # type: ignore[assignment]


def first(path: Path) -> bool:
    """Return whether this is the first call for the path."""
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
