"""What a worker does with its messages, in whatever process: begin a job once, then piece after piece, all as bytes."""

from __future__ import annotations

import os
import pickle
import socket
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from embstore.errors import ExecutorError, WorkerWarning
from embstore.executor import in_one_line


@dataclass(frozen=True)
class Answer:
    """What a worker says: a pickled `result`, or a pickled `error`; `notes`: lines that its machine's user must see."""

    result: bytes | None = None
    error: bytes | None = None
    notes: tuple[str, ...] = ()


class Hands:
    """One worker's side of a job; `gpu`: whether it was given one."""

    def __init__(self, *, gpu: bool = False) -> None:
        self._gpu = gpu
        self._work: Callable[[Any], Any] | None = None

    def begin(self, job: bytes) -> Answer:
        """Make ready for a pickled job."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", WorkerWarning)
            try:
                if self._gpu:
                    require_gpu()
                self._work = pickle.loads(job).begin()
            except Exception as error:
                return Answer(error=portable(error))
        notes = [str(one.message) for one in caught if issubclass(one.category, WorkerWarning)]
        return Answer(result=pickle.dumps(None), notes=tuple(notes))

    def do(self, piece: bytes) -> Answer:
        """Do a pickled piece; may be called from as many threads as the job bears."""
        assert self._work is not None
        try:
            return Answer(result=pickle.dumps(self._work(pickle.loads(piece)), pickle.HIGHEST_PROTOCOL))
        except Exception as error:
            return Answer(error=portable(error))


def require_gpu() -> None:
    """Raise ExecutorError where torch sees no GPU, lest the work be done on the CPU unsaid."""
    import torch

    if not torch.cuda.is_available():
        raise ExecutorError("there is no such GPU here, or torch is built without CUDA")


def portable(error: Exception) -> bytes:
    """Pickle an error; one that cannot be made again elsewhere becomes a ExecutorError that says the same."""
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:
        return pickle.dumps(ExecutorError(in_one_line(error)))
    return data


def who_am_i() -> str:
    """Return the name of this worker for messages: its machine and process."""
    return f"{socket.gethostname()} (process {os.getpid()})"
