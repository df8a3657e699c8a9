"""Work in a process of its own, so that it blocks nobody and can be ended at any time."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from embstore.errors import ExecutorError

POLL_SECONDS = 0.2
_idle: list[tuple[BaseProcess, Connection]] = []  # a process that has loaded and compiled what it needs; at most one


def in_process(function: Callable[..., Any], *args: Any, report: Callable[[int, int | None], object]) -> Any:
    """Return function(*args, progress=...) as another process computes it; what it raises is raised here.

    `report(done, total)` is called a few times a second; whatever it raises ends the process at once. A process that
    has finished is used again.
    """
    try:
        process, pipe = _idle.pop()
    except IndexError:
        process, pipe = _started()
    done: tuple[int, int | None] = (0, None)
    try:
        pipe.send((function, args))
        while True:
            report(*done)
            if not pipe.poll(POLL_SECONDS):
                continue
            kind, value = pipe.recv()
            if kind == "progress":
                done = value
                continue
            if not _idle:
                _idle.append((process, pipe))
            if kind == "error":
                raise value
            return value
    except (EOFError, OSError):
        raise ExecutorError("the process that computes the map has ended: is there enough memory?") from None
    finally:
        if (process, pipe) not in _idle:
            process.terminate()
            process.join()
            pipe.close()


def _started() -> tuple[BaseProcess, Connection]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _work(pipe: Connection) -> None:
    """Do what is sent, one after the other, until the other end is closed."""
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            return
        try:
            value = function(*args, progress=lambda done, total: pipe.send(("progress", (done, total))))
            pipe.send(("result", value))
        except Exception as error:
            pipe.send(("error", error))
