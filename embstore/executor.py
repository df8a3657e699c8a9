"""Where independent pieces of work are done, one after the other here or on many machines: one face for all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, runtime_checkable

from embstore.errors import EmbstoreError

P = TypeVar("P")
R = TypeVar("R")
Piece = TypeVar("Piece", contravariant=True)
Result = TypeVar("Result", covariant=True)


class Job(Protocol[Piece, Result]):
    """What is done with each piece; it travels to the workers, so it and all that it holds can be pickled."""

    def begin(self) -> Callable[[Piece], Result]:
        """Make ready what all pieces need (a model, an open store), once a worker; returns what does a piece."""
        ...


@runtime_checkable
class Overlapping(Protocol):
    """A job whose pieces may be done by a worker so many at a time, in threads (one writes as another computes)."""

    @property
    def pieces_at_a_time(self) -> int: ...


def pieces_at_a_time(job: object) -> int:
    """Return how many pieces of a job a worker may have in hand."""
    return job.pieces_at_a_time if isinstance(job, Overlapping) else 1


@dataclass(frozen=True)
class Outcome(Generic[P, R]):
    """What came of a piece: a `result`, or the `error` of the last of its `attempts`.

    `worker`: who made the last attempt, "" for this process. `failures`: a line for each attempt that failed.
    """

    piece: P
    result: R | None = None
    error: Exception | None = None
    attempts: int = 1
    worker: str = ""
    failures: tuple[str, ...] = ()


def in_one_line(error: BaseException) -> str:
    """Return what an error says, with its kind where it is none of embstore's."""
    said = " ".join(str(error).split())
    if isinstance(error, EmbstoreError):
        return said
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


class Executor(Protocol):
    """Does pieces that need nothing of each other."""

    @property
    def workers(self) -> int:
        """Return how many pieces are done at a time."""
        ...

    def run(self, job: Job[P, R], pieces: Iterable[P]) -> Iterator[Outcome[P, R]]:
        """Yield what came of each piece, in the order in which they end.

        A piece whose worker was lost, or that failed, is tried again, by another worker where there is one, and then
        reported, and the rest are done. Pieces are taken as workers become free. A worker that cannot begin is left
        out with a WorkerWarning; where none can, its error is raised. Raises ExecutorError where the workers as a
        whole are gone. Closing the iterator ends them.
        """
        ...


class InProcess:
    """The executor that does pieces here, one after the other, each `attempts` times at most."""

    def __init__(self, *, attempts: int = 1) -> None:
        self._attempts = attempts

    @property
    def workers(self) -> int:
        return 1

    def run(self, job: Job[P, R], pieces: Iterable[P]) -> Iterator[Outcome[P, R]]:
        work = job.begin()
        for piece in pieces:
            yield self._done(work, piece)

    def _done(self, work: Callable[[P], R], piece: P) -> Outcome[P, R]:
        error: Exception | None = None
        failures: list[str] = []
        for attempt in range(1, self._attempts + 1):
            try:
                return Outcome(piece, work(piece), attempts=attempt, failures=tuple(failures))
            except Exception as raised:
                error = raised
                failures.append(in_one_line(raised))
        return Outcome(piece, error=error, attempts=self._attempts, failures=tuple(failures))
