"""Scenes in processes of their own, which are killed at a call that changes the disk, or at a moment."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import embstore as es
from embstore import executors
from embstore.extraction.encoder_spec import EncoderSpec
from tests.resilience.calls import Steps, watched
from tests.resilience.scenes import ALL_SCENES

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.resilience.warmed"])


class Running:
    """A scene in a process of its own, and in those that it starts.

    `kill_at`: the call before which the process that makes it kills itself, with `kill_all` all of them. `kill_after`:
    seconds after which it is killed. `held`: it waits whenever it reports progress, until `go_on` or `release`. Its
    messages: "progress" with each report where it waits, then "ended" with the names of the calls, or "failed" with
    the error.
    """

    def __init__(
        self,
        scene: str,
        folder: Path,
        *,
        kill_at: int | None = None,
        kill_all: bool = False,
        kill_after: float = 0,
        held: bool = False,
    ) -> None:
        self._messages, theirs = _context.Pipe()
        self._temporary = tempfile.TemporaryDirectory()
        log, self._plans = Path(self._temporary.name, "calls"), Path(self._temporary.name, "plans")
        log.touch()
        self._plans.mkdir()
        steps = Steps(str(log), kill_at, kill_all=kill_all)
        settings = _Settings(scene, str(self._plans), steps, kill_after, held, dict(os.environ))
        self._process = _context.Process(target=_run, args=(theirs, folder, settings), daemon=held)
        self._process.start()
        theirs.close()

    def wait_for(self, name: str) -> Any:
        """Wait for a message of a name; returns what it says, None where the process is gone before."""
        while True:
            try:
                found, value = self._messages.recv()
            except EOFError:
                return None
            if found == name:
                return value
            if found == "failed":
                raise AssertionError(value)

    def go_on(self) -> int | None:
        """Let it run to its next report; returns how much is done by then, None at its end."""
        self._messages.send("go on")
        done: int | None = self.wait_for("progress")
        return done

    def release(self) -> None:
        """Let it run to its end."""
        self._messages.send("to the end")

    def failure(self) -> str | None:
        """The error that it ended with, after its end."""
        try:
            self.wait_for("ended")
        except AssertionError as error:
            return str(error)
        return None

    def kill(self) -> None:
        self._process.kill()
        self.join()

    def join(self) -> int | None:
        """Wait for the end; returns the exit status, negative for a signal."""
        self._process.join(600)
        assert self._process.exitcode is not None
        if self._plans.exists():
            assert list(self._plans.iterdir()) == []
            self._temporary.cleanup()
        return self._process.exitcode

    def join_workers(self) -> None:
        """Wait until the processes that it had started are gone too: they end by themselves."""
        assert self._process.pid is not None
        limit = time.monotonic() + 600
        with suppress(ProcessLookupError):
            while True:
                os.killpg(self._process.pid, 0)
                assert time.monotonic() < limit, "a worker process goes on without its coordinator"
                time.sleep(0.002)


def steps_of(scene: str, folder: Path) -> tuple[list[str], float]:
    """Run to the end; returns the name of every call that changed the disk, and the seconds that it took."""
    running = Running(scene, folder)
    names, seconds = running.wait_for("ended")
    assert running.join() == 0
    return names, seconds


@dataclass(frozen=True)
class _Settings:
    scene: str
    temporary: str
    steps: Steps
    kill_after: float
    held: bool
    environment: dict[str, str]


def _run(messages: Connection, folder: Path, settings: _Settings) -> None:
    os.setpgid(0, 0)
    os.environ.update(settings.environment)
    tempfile.tempdir = settings.temporary
    held = settings.held

    def progress(done: int, total: int | None) -> None:
        nonlocal held
        if held:
            messages.send(("progress", done))
            held = messages.recv() == "go on"

    begin = partial(_begin_worker, settings, os.getpid())
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, settings.kill_after)
    began = time.perf_counter()
    try:
        with (
            mock.patch.object(executors, "get_context", return_value=_context),
            mock.patch("multiprocessing.forkserver._forkserver.ensure_running"),  # workers come from the same server
            mock.patch.object(executors, "_begin_process", begin),
            watched(settings.steps),
            es.config(progress=progress),
        ):
            ALL_SCENES[settings.scene].work(folder)
    except BaseException as error:
        messages.send(("failed", repr(error)))
        raise
    messages.send(("ended", (settings.steps.names, time.perf_counter() - began)))


_watching = ExitStack()


def _begin_worker(settings: _Settings, group: int, environments: Any) -> None:
    """Begin a worker process as usual, with its calls among those that are counted."""
    os.setpgid(0, group)
    os.environ.update(settings.environment)
    encoder = ALL_SCENES[settings.scene].encoder()
    _watching.enter_context(mock.patch.object(EncoderSpec, "load", return_value=encoder))
    executors._begin_process(environments)
    _watching.enter_context(watched(settings.steps))
