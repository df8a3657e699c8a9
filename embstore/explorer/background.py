"""Work in a process of its own, so that it blocks nobody and can be ended at any time."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from embstore.errors import ExecutorError

POLL_SECONDS = 0.2


def in_process(function: Callable[..., Any], *args: Any, report: Callable[[int, int | None], object]) -> Any:
    """Return function(*args, progress=...) as a new process computes it; what it raises is raised here.

    `report(done, total)` is called a few times a second; whatever it raises ends the process at once.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(theirs, function, args), daemon=True)
    process.start()
    theirs.close()
    done: tuple[int, int | None] = (0, None)
    try:
        while True:
            report(*done)
            if not ours.poll(POLL_SECONDS):
                continue
            kind, value = ours.recv()
            if kind == "result":
                return value
            if kind == "error":
                raise value
            done = value
    except EOFError:
        raise ExecutorError("the process that computes the map has ended: is there enough memory?") from None
    finally:
        process.terminate()
        process.join()
        ours.close()


def _work(connection: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        value = function(*args, progress=lambda done, total: connection.send(("progress", (done, total))))
        connection.send(("result", value))
    except Exception as error:
        connection.send(("error", error))
