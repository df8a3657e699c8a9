"""Jobs that go well, fail and kill their workers, for the tests of every executor."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from embstore.errors import ExecutorError, StorageError, WorkerWarning

Work = Callable[[int], tuple[int, int]]


@dataclass(frozen=True)
class Squares:
    """Squares numbers and says which process did; those of `poisoned` fail wherever they are done."""

    poisoned: tuple[int, ...] = ()

    def begin(self) -> Work:
        def work(piece: int) -> tuple[int, int]:
            if piece in self.poisoned:
                raise ValueError(f"{piece} is poisoned")
            return piece * piece, os.getpid()

        return work


@dataclass(frozen=True)
class KilledOnce:
    """The first worker that comes to one of `pieces` is killed, as the system kills where memory is short."""

    pieces: tuple[int, ...]
    folder: Path

    def begin(self) -> Work:
        def work(piece: int) -> tuple[int, int]:
            if piece in self.pieces and first(self.folder / str(piece)):
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(60)
            return piece * piece, os.getpid()

        return work


@dataclass(frozen=True)
class KillsAlways:
    """Every worker that does `piece` is killed."""

    piece: int

    def begin(self) -> Work:
        def work(piece: int) -> tuple[int, int]:
            if piece == self.piece:
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(60)
            return piece * piece, os.getpid()

        return work


@dataclass(frozen=True)
class OneBrokenWorker:
    """The worker that begins first fails at whatever it does, as one with a full disk would."""

    folder: Path

    def begin(self) -> Work:
        broken = first(self.folder / "broken")

        def work(piece: int) -> tuple[int, int]:
            if broken:
                raise StorageError("cannot write: the disk is full")
            time.sleep(0.02)
            return piece * piece, os.getpid()

        return work


@dataclass(frozen=True)
class CannotBegin:
    """Cannot begin: no worker where `folder` is None, else not the first one."""

    folder: Path | None = None

    def begin(self) -> Work:
        if self.folder is None or first(self.folder / "begun"):
            raise ExecutorError("the model is not here")
        warnings.warn("torch 1.0 is here", WorkerWarning, stacklevel=1)
        return Squares().begin()


class Unpicklable(Exception):
    """An error that cannot be made again from its message."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


@dataclass(frozen=True)
class RaisesUnpicklable:
    def begin(self) -> Work:
        def work(piece: int) -> tuple[int, int]:
            raise Unpicklable("this", "that")

        return work


def first(path: Path) -> bool:
    """Tell whether nobody has asked this of the path before."""
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@dataclass(frozen=True)
class AllAtOnce:
    """One worker fails at everything, one is killed at `killing`, and `poisoned` fails wherever it is done."""

    folder: Path
    killing: int
    poisoned: int

    def begin(self) -> Work:
        broken = OneBrokenWorker(self.folder).begin()

        def work(piece: int) -> tuple[int, int]:
            result = broken(piece)
            if piece == self.poisoned:
                raise ValueError(f"{piece} is poisoned")
            if piece == self.killing and first(self.folder / "killed"):
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(60)
            return result

        return work
