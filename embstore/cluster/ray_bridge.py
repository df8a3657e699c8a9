"""The process between an executor and a Ray cluster: `python -m embstore.cluster.ray_bridge FILE_DESCRIPTOR`."""

from __future__ import annotations

import logging
import os
import pickle
import socket
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import Any

import ray
import ray.cloudpickle

from embstore.cluster import ray_worker
from embstore.cluster.crew import Event
from embstore.cluster.hands import Answer
from embstore.cluster.ray import AUTO, LOCAL, Settings
from embstore.errors import ExecutorError

OBJECT_STORE_NBYTES = 128 * 2**20  # of a cluster that is started here: pieces are small
HEAD_SECONDS = 3.0
api: Any = ray  # which is typed in part only
NOISE = ("class_name:", "actor_id:", "namespace:", "pid:", "ip:", "name:")


def connect(settings: Settings) -> None:
    """Connect to the cluster, or start one; raises ExecutorError in one line."""
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if settings.address == LOCAL:
            _start(settings, quiet)
        elif settings.address is None and "RAY_ADDRESS" not in os.environ:
            try:
                ray.init(address=AUTO, **quiet)
            except ConnectionError:
                _start(settings, quiet)
        else:
            ray.init(address=settings.address, **quiet)
    except Exception as error:
        named = "" if settings.address is None else f" at {settings.address}"
        raise ExecutorError(f"cannot connect to a Ray cluster{named}: {line(error)}") from error


def _start(settings: Settings, quiet: dict[str, Any]) -> None:
    cores = os.cpu_count() or 1
    wanted = 0 if settings.workers is None else settings.workers * settings.cpus
    ray.init(
        address=LOCAL,
        num_cpus=max(cores, int(wanted)),
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_NBYTES,
        **quiet,
    )


class Bridge:
    """Actors by the number of their worker, and the pipe over which their answers go."""

    def __init__(self, pipe: Connection[Any, Any], settings: Settings, job: bytes) -> None:
        self._pipe = pipe
        resources = api.cluster_resources()
        gpus = settings.gpus if settings.gpus is not None else float(resources.get("GPU", 0) > 0)
        self.workers = settings.workers or _fitting(resources, settings.cpus, gpus)
        self._job = ray.put(job)
        self._arguments = (settings.embstore, gpus > 0)
        api.cloudpickle.register_pickle_by_value(ray_worker)
        self._kind: Any = ray.remote(ray_worker.RayWorker).options(
            num_cpus=settings.cpus,
            num_gpus=gpus,
            max_concurrency=settings.threads,
            max_restarts=0,
            scheduling_strategy="SPREAD",
        )
        self._actors: dict[int, Any] = {}
        self.calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._head = _head(settings)

    def hire(self, worker: int) -> None:
        """Start an actor; it says its name when it has a place, then begins."""
        self._dismiss(worker)
        actor = self._kind.remote(*self._arguments)
        self._actors[worker] = actor

        def begin(name: str) -> None:
            self._tell(Event("placed", worker, text=name))
            self._when_done(actor, worker, actor.begin.remote(self._job), self._begun(worker))

        self._when_done(actor, worker, actor.name.remote(), begin)

    def give(self, worker: int, task: int, piece: bytes) -> None:
        actor = self._actors[worker]

        def done(said: ray_worker.Said) -> None:
            self._tell(Event("done", worker, task, Answer(*said)))

        self._when_done(actor, worker, actor.do.remote(piece), done)

    def _begun(self, worker: int) -> Callable[[Any], None]:
        def begun(said: str | ray_worker.Said) -> None:
            answer = Answer(error=pickle.dumps(ExecutorError(said))) if isinstance(said, str) else Answer(*said)
            self._tell(Event("begun", worker, answer=answer))

        return begun

    def _when_done(self, actor: Any, worker: int, reference: Any, then: Callable[[Any], None]) -> None:
        """Call `then` with a result; whatever comes instead of it means that the actor is lost."""

        def arrived(future: Any) -> None:
            if self._actors.get(worker) is not actor:
                return  # one of several answers that a lost actor does not give
            error = future.exception()
            if error is None:
                then(future.result())
            else:
                self._lost(worker, error)

        # the thread that ends a future is Ray's own, in which nothing may be asked of Ray
        reference.future().add_done_callback(lambda future: self.calls.put(lambda: arrived(future)))

    def listen(self) -> None:
        """Note down what the pipe asks for, until its other end is closed."""
        asked: dict[str, Callable[..., None]] = {"hire": self.hire, "give": self.give}
        while True:
            try:
                kind, *arguments = self._pipe.recv()
            except (EOFError, OSError):
                self.calls.put(None)
                return
            self.calls.put(partial(asked[kind], *arguments))

    def serve(self) -> None:
        """Do what is asked for and hand on what arrives, in this one thread."""
        Thread(target=self.listen, daemon=True).start()
        while (work := self.calls.get()) is not None:
            work()

    def _lost(self, worker: int, error: BaseException) -> None:
        self._dismiss(worker)
        if self._head is not None and not _listens(self._head):
            self.gone("it does not answer any more")
        self._tell(Event("lost", worker, text=line(error)))

    def _dismiss(self, worker: int) -> None:
        actor = self._actors.pop(worker, None)
        if actor is not None:
            ray.kill(actor)

    def _tell(self, event: Event) -> None:
        self.send("event", event)

    def send(self, kind: str, content: object) -> None:
        try:
            self._pipe.send((kind, content))
        except OSError:
            os._exit(1)

    def gone(self, why: str) -> None:
        """Say that the cluster is lost, and end before Ray does so."""
        self.send("gone", why)
        os._exit(1)


def _fitting(resources: dict[str, float], cpus: float, gpus: float) -> int:
    fits = [resources.get(name, 0) / each for name, each in (("CPU", cpus), ("GPU", gpus)) if each > 0]
    return max(1, int(min(fits, default=1)))


def _head(settings: Settings) -> tuple[str, int] | None:
    address = settings.address or ""
    if not address.startswith("ray://"):
        address = ray.get_runtime_context().gcs_address
    host, _, port = address.removeprefix("ray://").rpartition(":")
    return (host, int(port)) if port.isdecimal() else None


def _listens(head: tuple[str, int]) -> bool:
    try:
        socket.create_connection(head, timeout=HEAD_SECONDS).close()
    except OSError:
        return False
    return True


def line(error: BaseException) -> str:
    """Return what one of Ray's errors says, without the names that it lists."""
    said = [part.strip() for part in str(error).splitlines()]
    told = " ".join(part for part in said if part and not part.startswith(NOISE)) or type(error).__name__
    return told if len(told) <= 240 else told[:237] + "..."


def serve(pipe: Connection[Any, Any]) -> None:
    """Do what the pipe asks for until its other end is closed."""
    _, settings, job = pipe.recv()
    try:
        connect(settings)
        bridge = Bridge(pipe, settings, job)
    except ExecutorError as error:
        pipe.send(("refused", str(error)))
        return
    bridge.send("connected", bridge.workers)
    bridge.serve()
    ray.shutdown()


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
