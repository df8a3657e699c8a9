"""The worker's end of a pipe: `python -m embstore.cluster.process FILE_DESCRIPTOR THREADS DEVICE`."""

from __future__ import annotations

import os
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from threading import Lock
from typing import Any

from embstore.cluster.hands import Answer, Hands


def serve(pipe: Connection[Any, Any], threads: int, *, gpu: bool) -> None:
    """Do what the pipe asks for until its other end is closed; then end at once, whatever is in work."""
    hands, sending = Hands(gpu=gpu), Lock()

    def answer(kind: str, task: int, said: Answer) -> None:
        with sending:
            pipe.send((kind, task, said))

    def begin(job: bytes) -> None:
        answer("begun", -1, hands.begin(job))

    def do(task: int, piece: bytes) -> None:
        answer("done", task, hands.do(piece))

    with ThreadPoolExecutor(threads, "embstore-work") as pool:
        while True:
            try:
                kind, task, data = pipe.recv()
            except (EOFError, OSError):
                os._exit(1)  # the coordinator is gone: nothing more may be written
            work = pool.submit(begin, data) if kind == "begin" else pool.submit(do, task, data)
            work.add_done_callback(_end_where_broken)


def _end_where_broken(work: Future[None]) -> None:
    """End where a thread was stopped by more than an error (SystemExit ...), so that its piece counts as lost."""
    if (error := work.exception()) is not None:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), int(sys.argv[2]), gpu=sys.argv[3] != "cpu")
