"""Executors for extraction: processes of this machine, one a device.

Wherever embstore takes an executor, any `concurrent.futures.Executor` will do, such as Dask's `client.get_executor()`,
`mpi4py.futures.MPIPoolExecutor`, or that of examples/ray_cluster.py. Nothing is retried here: what fails is named, and
the same command resumes.
"""

from __future__ import annotations

import os
import pickle
import re
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from itertools import chain
from multiprocessing import connection, get_context, parent_process
from types import TracebackType
from typing import Annotated, Any, TypeVar

from embstore.arguments import Range, checked
from embstore.config import settings
from embstore.devices import n_cores
from embstore.errors import EmbstoreError, ExecutorError, InvalidValueError

__all__ = ["Processes"]

T = TypeVar("T")

DEVICE_VARIABLE = "EMBSTORE_WORKER_DEVICE"  # "cpu" or "cuda" in a worker process
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
DEFAULT_WORKERS = 8  # of an executor that does not say how many it has


class Processes(ProcessPoolExecutor):
    """Run tasks in processes of this machine, each of which sees one device alone.

    A script that uses it must guard its own code with `if __name__ == "__main__":`, as for any process pool that
    starts its processes afresh. Leaving the `with` block because of an error ends the processes at once.

    Parameters
    ----------
    n_workers:
        The number of processes; by default one for each device, or one for each core.
    devices:
        The device of each process: "cpu", or the number of a GPU (`1` or "cuda:1"); one may be named several times.
        By default all processes use the CPU. All processes share its cores, unless OMP_NUM_THREADS says how many
        threads each has.

    Raises
    ------
    InvalidValueError
        For an unknown device, or numbers of workers and devices that differ.
    """

    @checked
    def __init__(
        self, n_workers: Annotated[int, Range(1, 100_000)] | None = None, *, devices: Iterable[str | int] | None = None
    ) -> None:
        names = ("cpu",) * (n_workers or n_cores()) if devices is None else tuple(map(device_name, devices))
        if not names:
            raise InvalidValueError("no device is given: name one or more, such as 0,1 or cpu")
        if n_workers not in (None, len(names)):
            raise InvalidValueError(f"{n_workers} workers do not fit {len(names)} devices: give one device a worker")
        self.devices = names
        context = get_context("spawn")
        environments = context.SimpleQueue()
        for name in names:
            environments.put(worker_environment(name, names, os.environ))
        super().__init__(len(names), mp_context=context, initializer=_begin_process, initargs=(environments,))

    @property
    def n_workers(self) -> int:
        return len(self.devices)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            for process in list((self._processes or {}).values()):
                process.kill()
        self.shutdown(wait=True, cancel_futures=True)


def device_name(device: str | int) -> str:
    """Return "cpu" or "cuda:N" for the name or number of a device."""
    name = str(device).strip()
    if name == "cpu":
        return name
    match = re.fullmatch(r"(?:cuda:)?([0-9]{1,3})", name)
    if match is None:
        raise InvalidValueError(f"unknown device {name!r}: give numbers of GPUs such as 0,1, or cpu")
    return f"cuda:{int(match[1])}"


def worker_environment(device: str, devices: Sequence[str], base: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which a process sees its device alone and uses its share of the cores."""
    share = str(settings().threads or max(1, n_cores() // len(devices)))
    threads = {} if any(name in base for name in THREAD_VARIABLES) else dict.fromkeys(THREAD_VARIABLES, share)
    if device == "cpu":
        return {DEVICE_VARIABLE: "cpu", "CUDA_VISIBLE_DEVICES": "", **threads}
    number = int(device.removeprefix("cuda:"))
    visible = [name.strip() for name in base.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if "CUDA_VISIBLE_DEVICES" in base and number >= len(visible):
        raise InvalidValueError(f"device {device} does not exist: CUDA_VISIBLE_DEVICES shows {len(visible)} GPUs")
    return {DEVICE_VARIABLE: "cuda", "CUDA_VISIBLE_DEVICES": visible[number] if visible else str(number), **threads}


def worker_device() -> str:
    """Return the device that this worker was given: "cpu", "cuda", or "auto" in any other process."""
    return os.environ.get(DEVICE_VARIABLE, "auto")


def _begin_process(environments: Any) -> None:
    """Prepare a worker process: its device and threads, no Ctrl-C of its own, and its end with the coordinator."""
    os.environ.update(environments.get())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the coordinator to handle
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch

    if (threads := os.environ.get("OMP_NUM_THREADS", "")).isdecimal():
        torch.set_num_threads(int(threads))


def _end_with_parent() -> None:
    """End this process when the coordinator is gone, so that nothing more is written."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def n_workers_of(executor: Executor) -> int:
    """Return how many tasks an executor runs at a time, as far as it says so."""
    count = getattr(executor, "n_workers", None) or getattr(executor, "_max_workers", None)
    return count if isinstance(count, int) else DEFAULT_WORKERS


def iter_results(
    executor: Executor, calls: Iterable[Callable[[], T]], *, in_flight: int | None = None, in_order: bool = True
) -> Generator[T]:
    """Run calls without arguments on an executor and yield their results, `in_order` of the calls or as they complete.

    At most `in_flight` calls (by default two a worker) are submitted and not yet yielded, so that few results wait in
    memory. Raises the error of the first call that fails, and ExecutorError if workers are lost; closing the iterator
    cancels what has not begun.
    """
    most = in_flight or 2 * n_workers_of(executor)
    futures: list[Future[T]] = []
    try:
        for call in chain(calls, [None]):
            while len(futures) >= (most if call is not None else 1):
                done = futures[:1] if in_order else list(wait(futures, return_when=FIRST_COMPLETED).done)
                futures = [future for future in futures if future not in done]
                yield from map(Future.result, done)
            if call is not None:
                futures.append(executor.submit(call))
    except BrokenExecutor as error:
        raise ExecutorError(
            "a worker process ended abruptly; the system ends processes so if memory is short. Use fewer workers, or "
            "start the work again"
        ) from error
    finally:
        for future in futures:
            future.cancel()


def portable(error: Exception) -> Exception:
    """Return an error that survives pickling."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return ExecutorError(one_line(error))
    return error


def one_line(error: BaseException) -> str:
    """Format an exception as one line, prefixed with its type unless it is an EmbstoreError."""
    text = " ".join(str(error).split())
    if isinstance(error, EmbstoreError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
