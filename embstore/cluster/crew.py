"""Workers that may fail, and pieces that may be poisoned: who does what next, whatever the workers run on."""

from __future__ import annotations

import pickle
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeVar

from embstore.cluster.hands import Answer
from embstore.errors import EmbstoreError, ExecutorError, WorkerWarning
from embstore.executor import Job, Outcome, in_one_line, pieces_at_a_time

P = TypeVar("P")
R = TypeVar("R")

PLACED_WITHIN = 300.0  # seconds until the first worker has a place to run
AWAITED_FOR = 30.0  # seconds that a piece which one worker failed at waits for another that has no place yet
BLAMED_MOST = 3  # pieces in a row that a worker failed at and another then did


@dataclass(frozen=True)
class Event:
    """What a worker reports: its process is there, it is ready or cannot be, a task's answer, or that it is lost.

    `text`: the worker's name where it is placed, and why it is lost.
    """

    kind: Literal["placed", "begun", "done", "lost"]
    worker: int
    task: int = -1
    answer: Answer | None = None
    text: str = ""


class Crew(Protocol):
    """Workers by number, each with one job, begun when it is hired."""

    def hire(self, worker: int) -> None:
        """Begin to start a worker, also in the place of a lost one; events tell how that goes."""
        ...

    def give(self, worker: int, task: int, piece: bytes) -> None: ...

    def events(self, timeout: float) -> list[Event]:
        """Wait for what comes next, [] after `timeout` seconds; raises ExecutorError where all is gone."""
        ...

    def waiting_for(self) -> str:
        """Say what keeps workers from being placed."""
        ...


@dataclass
class _Task(Generic[P]):
    piece: P
    attempts: int = 0
    failures: list[str] = field(default_factory=list)
    tried_by: list[int] = field(default_factory=list)


@dataclass
class _Worker:
    name: str
    state: Literal["hired", "starting", "ready", "out"] = "hired"
    tasks: set[int] = field(default_factory=set)
    alone: bool = False  # it does a piece that has failed before, and nothing beside it
    lost_at_start: int = 0
    blamed: int = 0
    hired_at: float = 0.0

    def may_work(self) -> bool:
        """Tell whether it works, or is soon to."""
        if self.state == "hired":
            return time.monotonic() - self.hired_at < AWAITED_FOR
        return self.state != "out"


class Foreman(Generic[P, R]):
    """Hands the pieces of a job to a crew and yields what came of each.

    A piece that failed, or whose worker was lost, is tried `attempts` times: next by a worker that has not had it,
    where there is one, and with nothing beside it, so that it can take no other down.
    """

    def __init__(self, crew: Crew, job: Job[P, R], pieces: Iterable[P], *, workers: int, attempts: int) -> None:
        self._crew = crew
        self._pieces = iter(pieces)
        self._exhausted = False
        self._attempts = attempts
        self._at_a_time = pieces_at_a_time(job)
        self._workers = [_Worker(f"worker {number}") for number in range(workers)]
        self._tasks: dict[int, _Task[P]] = {}
        self._again: deque[int] = deque()
        self._next = 0
        self._began = time.monotonic()
        self._placed = False
        self._reason: Exception | None = None
        self._unsaid: list[str] = []

    def run(self) -> Iterator[Outcome[P, R]]:
        if not self._take():
            return
        for number in range(len(self._workers)):
            self._hire(number)
        while self._tasks or self._take():
            self._hand_out()
            if all(worker.state == "out" for worker in self._workers):
                raise self._reason or ExecutorError("no worker is left")
            for event in self._crew.events(self._patience()):
                yield from self._handle(event)
            self._check_placed()

    def _take(self) -> bool:
        """Take the next piece into hand, to be given to whoever is free."""
        if self._exhausted:
            return False
        for piece in self._pieces:
            self._tasks[self._next] = _Task(piece)
            self._again.append(self._next)
            self._next += 1
            return True
        self._exhausted = True
        return False

    def _hand_out(self) -> None:
        """Give work to every worker that has room for it."""
        progress = True
        while progress:
            progress = False
            for number, worker in enumerate(self._workers):
                if worker.state == "ready" and not worker.alone and len(worker.tasks) < self._at_a_time:
                    task = self._choose(number, worker)
                    if task is not None:
                        self._give(number, worker, task)
                        progress = True

    def _choose(self, number: int, worker: _Worker) -> int | None:
        for task in self._again:
            if self._suits(task, number, worker):
                return task
        if len(self._again) < 2 * len(self._workers) and self._take():
            return self._again[-1]
        return None

    def _suits(self, task: int, number: int, worker: _Worker) -> bool:
        record = self._tasks[task]
        if not record.attempts:
            return True
        others = {other for other, one in enumerate(self._workers) if one.may_work()}
        return not worker.tasks and (number not in record.tried_by or others <= set(record.tried_by))

    def _give(self, number: int, worker: _Worker, task: int) -> None:
        record = self._tasks[task]
        self._again.remove(task)
        worker.alone = record.attempts > 0
        record.attempts += 1
        record.tried_by.append(number)
        worker.tasks.add(task)
        self._crew.give(number, task, pickle.dumps(record.piece, pickle.HIGHEST_PROTOCOL))

    def _handle(self, event: Event) -> Iterator[Outcome[P, R]]:
        worker = self._workers[event.worker]
        if event.kind == "placed":
            worker.name, worker.state, self._placed = event.text, "starting", True
        elif event.kind == "begun":
            assert event.answer is not None
            self._begun(worker, event.answer)
        elif event.kind == "done":
            assert event.answer is not None
            self._let_go(worker, event.task)
            yield from self._answered(event.task, worker, event.answer)
        else:
            yield from self._lost(event.worker, worker, event.text)

    def _begun(self, worker: _Worker, answer: Answer) -> None:
        for note in answer.notes:
            warnings.warn(f"{worker.name}: {note}", WorkerWarning, stacklevel=2)
        if answer.error is None:
            worker.state, worker.lost_at_start = "ready", 0
            self._tell_of_those_left_out()
            return
        self._leave_out(worker, pickle.loads(answer.error))

    def _leave_out(self, worker: _Worker, error: Exception) -> None:
        """Go on without a worker; the first such reason is raised where none is left."""
        worker.state = "out"
        kind = type(error) if isinstance(error, EmbstoreError) else ExecutorError
        reason = kind(f"{worker.name}: {in_one_line(error)}")
        reason.__cause__ = error
        self._reason = self._reason or reason
        self._unsaid.append(str(reason))
        self._tell_of_those_left_out()

    def _tell_of_those_left_out(self) -> None:
        """Say who is left out once it is certain that there is another."""
        if any(worker.state == "ready" for worker in self._workers):
            for reason in self._unsaid:
                warnings.warn(f"{reason}; the work goes on without it", WorkerWarning, stacklevel=2)
            self._unsaid.clear()

    def _answered(self, task: int, worker: _Worker, answer: Answer) -> Iterator[Outcome[P, R]]:
        if answer.error is not None:
            yield from self._failed(task, worker, pickle.loads(answer.error))
            return
        assert answer.result is not None
        record = self._tasks.pop(task)
        self._blame(record, worker)
        yield Outcome(
            record.piece,
            pickle.loads(answer.result),
            attempts=record.attempts,
            worker=worker.name,
            failures=tuple(record.failures),
        )

    def _blame(self, record: _Task[P], by: _Worker) -> None:
        """Leave workers out that fail again and again at what another can do: a full disk, a broken card."""
        by.blamed = 0
        for number in set(record.tried_by[:-1]):
            worker = self._workers[number]
            if worker is not by and worker.state == "ready":
                worker.blamed += 1
                if worker.blamed >= BLAMED_MOST:
                    self._leave_out(worker, ExecutorError(f"failed {worker.blamed} times at what others could do"))

    def _failed(self, task: int, worker: _Worker, error: Exception) -> Iterator[Outcome[P, R]]:
        record = self._tasks[task]
        record.failures.append(f"{worker.name}: {in_one_line(error)}")
        if record.attempts < self._attempts:
            self._again.append(task)
            return
        del self._tasks[task]
        yield Outcome(
            record.piece,
            error=error,
            attempts=record.attempts,
            worker=worker.name,
            failures=tuple(record.failures),
        )

    def _lost(self, number: int, worker: _Worker, why: str) -> Iterator[Outcome[P, R]]:
        """Take back what a lost worker had in hand and start another in its place."""
        if worker.state in ("hired", "starting"):
            worker.lost_at_start += 1
        for task in sorted(worker.tasks):
            self._let_go(worker, task)
            record = self._tasks[task]
            record.tried_by = [one for one in record.tried_by if one != number]  # the next of this number is another
            yield from self._failed(task, worker, ExecutorError(f"the worker was lost: {why}"))
        if worker.state == "out":
            return
        if worker.lost_at_start >= self._attempts:
            self._leave_out(worker, ExecutorError(f"lost as it began, {worker.lost_at_start} times: {why}"))
            return
        self._hire(number)

    def _hire(self, number: int) -> None:
        worker = self._workers[number]
        worker.state, worker.hired_at = "hired", time.monotonic()
        self._crew.hire(number)

    def _let_go(self, worker: _Worker, task: int) -> None:
        worker.tasks.discard(task)
        if not worker.tasks:
            worker.alone = False

    def _patience(self) -> float:
        """How long to wait for an event: less where time alone may change who does what."""
        return 1.0 if any(worker.state == "hired" for worker in self._workers) else 3600.0

    def _check_placed(self) -> None:
        if not self._placed and time.monotonic() - self._began >= PLACED_WITHIN:
            raise ExecutorError(f"no worker was placed within {PLACED_WITHIN:.0f} s: {self._crew.waiting_for()}")
