"""Workers of a Ray cluster, reached through a process of their own that has Ray loaded, so that this one has not.

Ray ends the process that it is loaded in where the head of its cluster is lost; here that is the bridge's, and what
called gets an error.
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from itertools import chain, islice
from multiprocessing.connection import Connection, Pipe
from typing import Any, TypeVar

from embstore.cluster.crew import Event, Foreman
from embstore.cluster.processes import last_line
from embstore.errors import ExecutorError, InvalidValueError, MissingPackageError
from embstore.executor import Job, Outcome, pieces_at_a_time

P = TypeVar("P")
R = TypeVar("R")

LOCAL = "local"
AUTO = "auto"
PORT_SECONDS = 5.0
CONNECT_SECONDS = 15.0
START_SECONDS = 60.0  # a cluster of this machine alone is started first
CLOSE_SECONDS = 10.0


@dataclass(frozen=True)
class Settings:
    """What the bridge is told before all else; `workers` and `gpus` None: as many as the cluster has."""

    address: str | None
    workers: int | None
    cpus: float
    gpus: float | None
    threads: int
    embstore: str


class RayExecutor:
    """The executor that does pieces on a Ray cluster.

    `address`: "host:port" of its head, "ray://host:port", "auto" for the one that runs on this machine, "local" to
    start one here and end it after; None: that of RAY_ADDRESS, else "auto" where one runs, else "local". `workers`:
    how many, None for as many as the cluster has GPUs, or CPUs where it has none; each takes `gpus_per_worker`
    (None: 1 where there are GPUs) and `cpus_per_worker`. A piece is tried `attempts` times at most.

    embstore of the same version must be installed on all machines; nothing of this one's files is sent there. Raises
    MissingPackageError without Ray, ExecutorError, when it runs, where no cluster answers or its head is gone.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        workers: int | None = None,
        gpus_per_worker: float | None = None,
        cpus_per_worker: float = 1,
        attempts: int = 3,
    ) -> None:
        for name, value in (("workers", workers), ("attempts", attempts)):
            if value is not None and value < 1:
                raise InvalidValueError(f"{name} {value} is not allowed: give 1 or more")
        for name, amount in (("gpus_per_worker", gpus_per_worker), ("cpus_per_worker", cpus_per_worker)):
            if amount is not None and amount < 0:
                raise InvalidValueError(f"{name} {amount} is not allowed: give 0 or more")
        if find_spec("ray") is None:
            raise MissingPackageError("a Ray cluster needs the package ray: pip install 'embstore[ray]'")
        self.address = _checked(address)
        self._workers = workers
        self._cpus, self._gpus = cpus_per_worker, gpus_per_worker
        self._attempts = attempts
        self._found = workers or 1

    @property
    def workers(self) -> int:
        """How many pieces are done at a time; known once it has run where the cluster decides."""
        return self._found

    def reach(self) -> None:
        """Raise ExecutorError where nothing listens at the address; says nothing where there is none to ask."""
        host_and_port = (self.address or "").removeprefix("ray://")
        if host_and_port in ("", AUTO, LOCAL):
            return
        host, _, port = host_and_port.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=PORT_SECONDS).close()
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise ExecutorError(
                f"no Ray cluster answers at {self.address}: {reason}; give the address that `ray start --head` shows"
            ) from error

    def run(self, job: Job[P, R], pieces: Iterable[P]) -> Iterator[Outcome[P, R]]:
        waiting = iter(pieces)
        first = list(islice(waiting, 1))
        if not first:
            return
        self.reach()
        settings = Settings(
            self.address, self._workers, self._cpus, self._gpus, pieces_at_a_time(job), version("embstore")
        )
        bridge = _Bridge(settings, pickle.dumps(job))
        try:
            self._found = bridge.connect()
            yield from Foreman(bridge, job, chain(first, waiting), workers=self._found, attempts=self._attempts).run()
        finally:
            bridge.close()


def _checked(address: str | None) -> str | None:
    if address is None or address in (AUTO, LOCAL):
        return address
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536 or "/" in host:
        raise InvalidValueError(
            f"address {address!r} is none of a Ray cluster: give host:port, ray://host:port, auto or local"
        )
    return address


class _Bridge:
    """The process that has Ray loaded, as a crew: messages go over a pipe, and its end is the cluster's."""

    def __init__(self, settings: Settings, job: bytes) -> None:
        self._settings = settings
        self._job = job
        self._connected = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._pipe: Connection[Any, Any]
        self._pipe, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "embstore.cluster.ray_bridge", str(theirs.fileno())],
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
                    "RAY_USAGE_STATS_ENABLED": "0",
                    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # which would send the working folder to the workers
                },
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                start_new_session=True,
            )

    @property
    def _where(self) -> str:
        named = self._settings.address
        return "the Ray cluster" if named in (None, AUTO, LOCAL) else f"the Ray cluster at {named}"

    def connect(self) -> int:
        """Have the bridge connect; returns how many workers there will be."""
        self._send("connect", self._settings, self._job)
        patience = START_SECONDS if self._settings.address in (None, LOCAL) else CONNECT_SECONDS
        if not self._pipe.poll(patience):
            raise ExecutorError(f"{self._where} does not answer within {patience:.0f} s: is its head running?")
        kind, found = self._receive()
        if kind == "refused":
            raise ExecutorError(str(found))
        self._connected = True
        return int(found)

    def hire(self, worker: int) -> None:
        self._send("hire", worker)

    def give(self, worker: int, task: int, piece: bytes) -> None:
        self._send("give", worker, task, piece)

    def events(self, timeout: float) -> list[Event]:
        if not self._pipe.poll(timeout):
            return []
        kind, event = self._receive()
        if kind == "gone":
            raise self._gone(str(event))
        return [event]

    def waiting_for(self) -> str:
        asked = self._settings
        gpus = f" and {asked.gpus:g} GPUs" if asked.gpus else ""
        return f"{self._where} has no room for a worker that takes {asked.cpus:g} CPUs{gpus}"

    def close(self) -> None:
        """End the bridge, and with it the workers and what it has started."""
        self._pipe.close()
        try:
            self._process.wait(CLOSE_SECONDS if self._connected else 0.1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _send(self, *message: Any) -> None:
        with suppress(OSError):  # a bridge that is gone is found as its answer is waited for
            self._pipe.send(message)

    def _receive(self) -> tuple[str, Any]:
        try:
            kind, content = self._pipe.recv()
        except (EOFError, OSError):
            raise self._gone(last_line(self._errors)) from None
        return kind, content

    def _gone(self, why: str) -> ExecutorError:
        because = f" ({why})" if why else ""
        return ExecutorError(f"{self._where} is gone, its head was stopped or restarted{because}")
