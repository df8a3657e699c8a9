"""Scenes in processes of their own, which are killed at a call that changes the disk, or at a moment."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.resilience.calls import Steps, watched
from tests.resilience.scenes import SCENES

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.resilience.warmed"])


class Running:
    """A scene in a process of its own.

    `kill_at`: the call before which it kills itself. `kill_after`: seconds after which it is killed. `pause`: seconds
    that it sleeps whenever it reports progress. Its messages: "created" with the first report, then "ended" with the
    names of its calls, or "failed" with the error.
    """

    def __init__(
        self, scene: str, folder: Path, *, kill_at: int | None = None, kill_after: float = 0, pause: float = 0
    ) -> None:
        self._messages, theirs = _context.Pipe(duplex=False)
        self._temporary = tempfile.TemporaryDirectory()
        arguments = (theirs, scene, str(folder), self._temporary.name, kill_at, kill_after, pause)
        self._process = _context.Process(target=_run, args=arguments)
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

    def wait(self, seconds: float) -> None:
        """Let it run that long, or to its end."""
        self._process.join(seconds)

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
        self._process.join(60)
        assert self._process.exitcode is not None
        if os.path.exists(self._temporary.name):
            assert os.listdir(self._temporary.name) == []  # nothing of the plan is left
            self._temporary.cleanup()
        return self._process.exitcode


def steps_of(scene: str, folder: Path) -> tuple[list[str], float]:
    """Run to the end; returns the name of every call that changed the disk, and the seconds that it took."""
    running = Running(scene, folder)
    names, seconds = running.wait_for("ended")
    assert running.join() == 0
    return names, seconds


def _run(
    messages: Connection, scene: str, folder: str, temporary: str, kill_at: int | None, kill_after: float, pause: float
) -> None:
    tempfile.tempdir = temporary
    sent = []

    def progress(done: int, total: int | None) -> None:
        if not sent:
            sent.append("created")
            messages.send(("created", None))
        time.sleep(pause)

    steps = Steps(kill_at)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, kill_after)
    began = time.perf_counter()
    try:
        with watched(steps):
            SCENES[scene].work(Path(folder), progress)
    except BaseException as error:
        messages.send(("failed", repr(error)))
        raise
    messages.send(("ended", (steps.names, time.perf_counter() - began)))
