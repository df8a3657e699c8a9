"""Pieces of a query over an executor: sent with what they need, and their results given in the order of the pieces."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any, NoReturn, Protocol

from embstore.errors import ClusterError, EmbstoreError
from embstore.executor import Executor
from embstore.store import Store


class Task(Protocol):
    """What is done with an open store by whoever is free; it is pickled, and so is what it gives.

    `rows`: how many occurrences it reads.
    """

    @property
    def rows(self) -> int: ...
    def do(self, store: Store, /) -> Any: ...


@dataclass(frozen=True)
class Piece:
    """A task and its place among all of a query."""

    number: int
    task: Task


@dataclass
class QueryJob:
    """Opens the store of a query once a worker; each piece gives what its task does, pickled."""

    store: Store | bytes
    path: str
    recipe: str

    @classmethod
    def over(cls, store: Store) -> QueryJob:
        return cls(store, str(store.path), store.metadata.recipe_sha256)

    def __getstate__(self) -> dict[str, Any]:
        sent = self.store if isinstance(self.store, bytes) else pickle.dumps(self.store)
        return vars(self) | {"store": sent}  # which is opened where the job begins

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def begin(self) -> Callable[[Piece], bytes]:
        """Open the store; raises what opening does, and ClusterError where another one stands there."""
        store = pickle.loads(self.store) if isinstance(self.store, bytes) else self.store
        if store.metadata.recipe_sha256 != self.recipe:
            raise ClusterError(
                f"{self.path} is another store on the worker than here: give a path that leads to one store on every "
                "machine"
            )
        return lambda piece: pickle.dumps(piece.task.do(store), pickle.HIGHEST_PROTOCOL)


def spread(
    store: Store,
    tasks: Iterable[Task],
    executor: Executor,
    *,
    count: int,
    memory: int,
    progress: Callable[[int], object],
) -> Iterator[Any]:
    """Yield what each of `count` tasks gave, in their order, whichever ends first.

    `memory`: bytes of results that may wait for their turn; more go to a temporary file. After a failure no task is
    begun any more, and when those under way have ended it is raised: the error of the first, if embstore's, and else
    a ClusterError.
    """
    failures: list[tuple[int, Exception]] = []

    def pieces() -> Iterator[Piece]:
        for number, task in enumerate(tasks):
            if failures:
                return
            yield Piece(number, task)

    waiting = Waiting(memory)
    done = following = 0
    try:
        for outcome in executor.run(QueryJob.over(store), pieces()):
            piece = outcome.piece
            if outcome.error is not None:
                failures.append((piece.number, outcome.error))
            if failures or outcome.result is None:
                continue
            done += piece.task.rows
            waiting.put(piece.number, outcome.result)
            del outcome
            progress(done)
            while following in waiting:
                yield pickle.loads(waiting.take(following))
                following += 1
    finally:
        waiting.close()
    if failures:
        _raise_first(failures, count)
    if following < count:
        raise ClusterError(f"the workers ended with {following} of {count} pieces of the work done: try again")


def _raise_first(failures: list[tuple[int, Exception]], count: int) -> NoReturn:
    error = min(failures, key=lambda failure: failure[0])[1]
    lines = str(error).strip().splitlines()
    reason = lines[0] if lines else "no reason given"
    pieces = f"{len(failures)} of {count} pieces of the work failed"
    if isinstance(error, EmbstoreError):
        raise type(error)(f"{reason} ({pieces})") from error
    raise ClusterError(f"{pieces}, the first with {type(error).__name__}: {reason}") from error


class Waiting:
    """Results whose turn has not come: `most` bytes of them in memory, the others in a temporary file."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[int, bytes] = {}
        self._nbytes = 0
        self._stored: dict[int, tuple[int, int]] = {}
        self._file: IO[bytes] | None = None

    def __contains__(self, number: int) -> bool:
        return number in self._held or number in self._stored

    def put(self, number: int, result: bytes) -> None:
        if not self._held or self._nbytes + len(result) <= self._most:
            self._held[number] = result
            self._nbytes += len(result)
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="embstore-")  # noqa: SIM115
        self._stored[number] = self._file.seek(0, 2), len(result)
        self._file.write(result)

    def take(self, number: int) -> bytes:
        if number in self._held:
            result = self._held.pop(number)
            self._nbytes -= len(result)
            return result
        assert self._file is not None
        start, size = self._stored.pop(number)
        self._file.seek(start)
        result = self._file.read(size)
        if not self._stored:
            self._file.truncate(0)
        return result

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
