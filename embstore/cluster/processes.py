"""Workers that are processes of this machine, one a device."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from typing import IO, Any, TypeVar

from embstore.cluster.crew import Event, Foreman
from embstore.errors import InvalidValueError
from embstore.executor import Job, Outcome, pieces_at_a_time

P = TypeVar("P")
R = TypeVar("R")

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
GRACE_SECONDS = 5.0


class Processes:
    """The executor that does pieces in processes of this machine, one for each of `devices`.

    A device is "cpu", or the number of a GPU ("1" or "cuda:1"), which is then the only one that its process sees;
    one may be named several times. The processes of a CPU share its cores, unless OMP_NUM_THREADS says how many
    threads each has. A piece is tried `attempts` times at most. Raises InvalidValueError for other devices.
    """

    def __init__(self, devices: Iterable[str | int] = ("cpu",), *, attempts: int = 3) -> None:
        self.devices = tuple(device_name(device) for device in devices)
        if not self.devices:
            raise InvalidValueError("no device is given: name one or more, such as 0,1 or cpu")
        if attempts < 1:
            raise InvalidValueError(f"attempts {attempts} is not allowed: give 1 or more")
        self._attempts = attempts

    @property
    def workers(self) -> int:
        return len(self.devices)

    def run(self, job: Job[P, R], pieces: Iterable[P]) -> Iterator[Outcome[P, R]]:
        crew = _ProcessCrew(self.devices, pickle.dumps(job), pieces_at_a_time(job))
        try:
            yield from Foreman(crew, job, pieces, workers=self.workers, attempts=self._attempts).run()
        finally:
            crew.close()


def device_name(device: str | int) -> str:
    """Return "cpu" or "cuda:N" for what a user calls a device."""
    name = str(device).strip()
    if name == "cpu":
        return name
    found = re.fullmatch(r"(?:cuda:)?([0-9]{1,3})", name)
    if found is None:
        raise InvalidValueError(f"device {name!r} is not known: give numbers of GPUs such as 0,1, or cpu")
    return f"cuda:{int(found[1])}"


def environment(device: str, devices: Sequence[str], base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which a process sees its device alone and has its share of the cores."""
    own = {**base, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    if device == "cpu":
        own["CUDA_VISIBLE_DEVICES"] = ""
        share = max(1, _cores() // devices.count("cpu"))
        if not any(name in base for name in THREADS):
            own |= {name: str(share) for name in THREADS}
        return own
    number = int(device.removeprefix("cuda:"))
    visible = [name.strip() for name in base.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if "CUDA_VISIBLE_DEVICES" in base and number >= len(visible):
        raise InvalidValueError(f"device {device} is not there: CUDA_VISIBLE_DEVICES shows {len(visible)} GPUs")
    own["CUDA_VISIBLE_DEVICES"] = visible[number] if visible else str(number)
    return own


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _ProcessCrew:
    """The processes, each with a pipe of its own; what one writes to its error stream is kept for its last words."""

    def __init__(self, devices: Sequence[str], job: bytes, threads: int) -> None:
        self._devices = devices
        self._job = job
        self._threads = threads
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._pipes: dict[int, Connection[Any, Any]] = {}
        self._errors: dict[int, IO[bytes]] = {}
        self._broken: list[Event] = []

    def hire(self, worker: int) -> None:
        ours, theirs = Pipe()
        errors = tempfile.TemporaryFile()  # noqa: SIM115
        device = self._devices[worker]
        arguments = [str(theirs.fileno()), str(self._threads), device]
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "embstore.cluster.process", *arguments],
                env=environment(device, self._devices, os.environ),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is this process's to handle
            )
        self._processes[worker], self._pipes[worker], self._errors[worker] = process, ours, errors
        self._broken.append(Event("placed", worker, text=f"worker {worker} on {device} (process {process.pid})"))
        self._send(worker, ("begin", -1, self._job))

    def give(self, worker: int, task: int, piece: bytes) -> None:
        self._send(worker, ("do", task, piece))

    def _send(self, worker: int, message: tuple[str, int, bytes]) -> None:
        with suppress(OSError):  # a process that is gone is found at the other end of its pipe
            self._pipes[worker].send(message)

    def events(self, timeout: float) -> list[Event]:
        if self._broken:
            known, self._broken = self._broken, []
            return known
        workers = {id(pipe): worker for worker, pipe in self._pipes.items()}
        return [
            self._received(workers[id(pipe)], pipe)
            for pipe in wait(list(self._pipes.values()), timeout)
            if isinstance(pipe, Connection)
        ]

    def _received(self, worker: int, pipe: Connection[Any, Any]) -> Event:
        try:
            kind, task, answer = pipe.recv()
        except (EOFError, OSError):
            return Event("lost", worker, text=self._end(worker))
        return Event(kind, worker, task, answer)

    def _end(self, worker: int) -> str:
        """Let a process go that has closed its pipe; returns what is known of its end."""
        self._pipes.pop(worker).close()
        process, errors = self._processes.pop(worker), self._errors.pop(worker)
        try:
            status = process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        with errors:
            return _ending(status, last_line(errors))

    def waiting_for(self) -> str:
        return "the processes do not start"

    def close(self) -> None:
        """End all processes, whatever they are doing."""
        for process in self._processes.values():
            process.kill()
        for worker in list(self._processes):
            self._end(worker)


def _ending(status: int, last_line: str) -> str:
    if status < 0:
        name = signal.Signals(-status).name if -status in set(signal.Signals) else str(-status)
        hint = " (the system ends processes so when memory is short)" if -status == signal.SIGKILL else ""
        return f"killed by {name}{hint}"
    return f"ended with status {status}" + (f": {last_line}" if last_line else "")


def last_line(errors: IO[bytes]) -> str:
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - 4096))
    lines = [line.strip() for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
