"""Extractions in processes of their own, killed with SIGKILL at a moment or at a call that changes the disk."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import embstore as es
from tests.resilience.scene import make_plan

WRITING = ("open", "mkdir", "pwrite", "fsync", "rename", "replace", "link", "unlink", "rmdir")
RECORD_NBYTES = 16

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.resilience.warmed"])


class Steps:
    """Counts the calls that change the disk; the process kills itself before number `kill_at`, counted from 0.

    Writing data counts twice: nothing of it written, and half of it (a record of 16 bytes is never split by a kill).
    Where it is to be killed at a step, fsync is a step but does not wait: what is written outlasts a kill anyway.
    """

    def __init__(self, kill_at: int | None) -> None:
        self.names: list[str] = []
        self._kill_at = kill_at
        self._thread = threading.Lock()

    def pass_by(self, name: str, half: Callable[[], object] | None = None) -> None:
        with self._thread:
            if len(self.names) == self._kill_at:
                if half is not None:
                    half()
                os.kill(os.getpid(), signal.SIGKILL)
            self.names.append(name)

    @contextmanager
    def counted(self) -> Iterator[None]:
        originals = {name: getattr(os, name) for name in WRITING}
        for name, original in originals.items():
            setattr(os, name, self._counting(name, original))
        try:
            yield
        finally:
            for name, original in originals.items():
                setattr(os, name, original)

    def _counting(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if name == "open" and not args[1] & os.O_CREAT:
                return original(*args, **options)
            target = args[1] if name in ("rename", "replace", "link") else args[0]
            place = Path(target).name if isinstance(target, str | os.PathLike) else ""
            self.pass_by(f"{name} {place}".strip())
            if name == "pwrite":
                descriptor, data, offset = args
                part = bytes(data)[: len(data) // 2 if len(data) > RECORD_NBYTES else 0]
                self.pass_by("half a pwrite", lambda: original(descriptor, part, offset))
            if name == "fsync" and self._kill_at is not None:
                return os.fstat(args[0])
            return original(*args, **options)

        return call


class Running:
    """An extraction in a process of its own.

    `pause`: seconds that the encoder sleeps a batch. `kill_at`: the step before which it kills itself. Messages of
    the process come as (name, seconds since it began).
    """

    def __init__(
        self, path: Path, *, dtype: str = "float32", repair: bool = False, pause: float = 0, kill_at: int | None = None
    ) -> None:
        self._messages, theirs = _context.Pipe(duplex=False)
        self.temporary = path.parent.with_name(f"{path.parent.name}-temporary")
        self.temporary.mkdir(exist_ok=True)
        self._process = _context.Process(
            target=_extract, args=(theirs, str(path), str(self.temporary), dtype, repair, pause, kill_at)
        )
        self._process.start()
        theirs.close()

    def next(self) -> tuple[str, Any]:
        """Wait for a message; ("killed", None) where the process is gone."""
        try:
            message: tuple[str, Any] = self._messages.recv()
        except EOFError:
            return "killed", None
        return message

    def wait_for(self, name: str) -> Any:
        """Wait for a message of a name; returns what it says, None where the process is gone before."""
        while True:
            found, value = self.next()
            if found in (name, "killed"):
                return value
            if found == "failed":
                raise AssertionError(value)

    def wait(self, seconds: float) -> None:
        """Let it run that long, or to its end."""
        self._process.join(seconds)

    def failure(self) -> str | None:
        """The error that it ended with, after its end."""
        while True:
            name, value = self.next()
            if name == "failed":
                return str(value)
            if name in ("ended", "killed"):
                return None

    def kill(self) -> None:
        self._process.kill()
        self.join()

    def join(self) -> int | None:
        """Wait for the end; returns the exit status, negative for a signal."""
        self._process.join(60)
        assert list(self.temporary.iterdir()) == []  # nothing of the plan is left
        assert self._process.exitcode is not None
        return self._process.exitcode


def steps_of(path: Path, **options: Any) -> list[str]:
    """Run to the end; returns the name of every step that changed the disk."""
    running = Running(path, **options)
    names: list[str] = running.wait_for("ended")
    assert running.join() == 0
    return names


def _extract(
    messages: Connection, path: str, temporary: str, dtype: str, repair: bool, pause: float, kill_at: int | None
) -> None:
    import embstore.store.layout

    embstore.store.layout.SHARD_NBYTES = 1
    tempfile.tempdir = temporary
    plan = make_plan(dtype=dtype)
    began = time.perf_counter()
    sent = set()

    def progress(done: int, total: int | None) -> None:
        if "created" not in sent:
            sent.add("created")
            messages.send(("created", time.perf_counter() - began))
        if done == total and "encoded" not in sent:
            sent.add("encoded")
            messages.send(("encoded", time.perf_counter() - began))
        time.sleep(pause)

    messages.send(("begun", 0.0))
    steps = Steps(kill_at)
    try:
        with steps.counted():
            es.extract(plan, path, repair=repair, progress=progress)
    except BaseException as error:
        messages.send(("failed", repr(error)))
        raise
    messages.send(("seconds", time.perf_counter() - began))
    messages.send(("ended", steps.names))
