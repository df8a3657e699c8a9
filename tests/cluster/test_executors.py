"""The executors of this machine, and how results are taken from any executor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from embstore.devices import n_cores
from embstore.errors import ExecutorError, InvalidValueError
from embstore.executors import (
    Processes,
    device_name,
    iter_results,
    n_workers_of,
    one_line,
    portable,
    worker_device,
    worker_environment,
)


def square(number: int) -> tuple[int, int]:
    if number == 13:
        raise ValueError("13 is refused")
    return number * number, os.getpid()


class UnpicklableError(Exception):
    """An error that cannot be made again from its message."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def fail_in_the_block_of(executor: Executor) -> None:
    with executor:
        raise KeyboardInterrupt


@pytest.fixture(scope="module", autouse=True)
def torch_of_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A torch that takes no time to import, which is most of the start of a process; no worker here runs a model."""
    import torch  # noqa: F401  (this process keeps the real one)

    folder = tmp_path_factory.mktemp("torch")
    (folder / "torch.py").write_text("def set_num_threads(number): print('threads', number, flush=True)\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)  # processes that are started afresh get the path of this one
        yield folder


@pytest.fixture(scope="module")
def processes() -> Iterator[Executor]:
    with Processes(2) as executor:
        yield executor


class TestProcesses:
    def test_tasks_run_in_other_processes_and_in_order(self, processes: Executor) -> None:
        results = list(iter_results(processes, (partial(square, number) for number in range(9))))
        assert [result for result, _ in results] == [number * number for number in range(9)]
        assert os.getpid() not in {process for _, process in results}

    def test_a_worker_sees_its_device(self, processes: Executor) -> None:
        assert processes.submit(worker_device).result() == "cpu"
        assert processes.submit(os.getenv, "CUDA_VISIBLE_DEVICES").result() == ""
        assert worker_device() == "auto"

    def test_a_killed_worker_is_reported_in_one_line(self) -> None:
        with Processes(1) as executor:
            calls = [partial(square, 1), kill_this_process, partial(square, 2)]
            results = iter_results(executor, calls, in_flight=1)
            assert next(results)[0] == 1
            with pytest.raises(ExecutorError, match="a worker process ended abruptly"):
                list(results)

    def test_an_error_in_the_block_ends_the_processes(self) -> None:
        executor = Processes(1)
        _, number = executor.submit(square, 1).result()
        asleep = executor.submit(time.sleep, 600)
        with pytest.raises(KeyboardInterrupt):
            fail_in_the_block_of(executor)
        assert asleep.cancelled() or asleep.exception() is not None
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)


SCRIPT = """
import os, time
from embstore.executors import Processes
if __name__ == "__main__":
    with Processes(1) as executor:
        print(executor.submit(os.getpid).result(), flush=True)
        executor.submit(time.sleep, 600).result()
"""


def test_workers_end_with_the_coordinator(tmp_path: Path, torch_of_workers: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    env = {**os.environ, "PYTHONPATH": str(torch_of_workers), "OMP_NUM_THREADS": "3"}
    coordinator = subprocess.Popen([sys.executable, str(script)], env=env, stdout=subprocess.PIPE, text=True)
    assert coordinator.stdout is not None
    assert coordinator.stdout.readline() == "threads 3\n", "torch is given its threads before any task"
    number = int(coordinator.stdout.readline())
    coordinator.kill()
    coordinator.wait()
    limit = time.monotonic() + 600
    while _runs(number):
        assert time.monotonic() < limit, "the worker still runs"
        time.sleep(0.02)


def _runs(number: int) -> bool:
    """Return whether a process has not ended; one that nobody has collected has."""
    try:
        os.kill(number, 0)
        return ") Z " not in Path(f"/proc/{number}/stat").read_text()
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # no /proc here, or it has just ended
        return not Path("/proc/self/stat").exists()


def test_results_of_threads() -> None:
    with ThreadPoolExecutor(3) as executor:
        calls = [partial(square, number) for number in (3, 1, 2)]
        assert [result for result, _ in iter_results(executor, calls)] == [9, 1, 4]
        assert sorted(result for result, _ in iter_results(executor, calls, in_order=False)) == [1, 4, 9]
        with pytest.raises(ValueError, match="13 is refused"):
            list(iter_results(executor, [partial(square, number) for number in range(20)], in_order=False))


@pytest.mark.parametrize("in_order", [True, False])
def test_calls_are_taken_as_workers_are_free(in_order: bool) -> None:
    taken: list[int] = []

    def calls() -> Iterator[partial[tuple[int, int]]]:
        for number in range(14, 1000):
            taken.append(number)
            yield partial(square, number)

    with ThreadPoolExecutor(3) as executor:
        assert n_workers_of(executor) == 3
        results = iter_results(executor, calls(), in_order=in_order)
        for _ in range(5):
            next(results)
        results.close()
    assert len(taken) <= 5 + 2 * 3 + 1


def test_a_device_is_the_only_one_that_its_process_sees() -> None:
    devices = ["cuda:0", "cuda:1", "cpu", "cpu"]
    assert worker_environment("cuda:1", devices, {})["CUDA_VISIBLE_DEVICES"] == "1"
    visible = worker_environment("cuda:1", devices, {"CUDA_VISIBLE_DEVICES": "4, GPU-abc"})
    assert visible["CUDA_VISIBLE_DEVICES"] == "GPU-abc"
    assert "OMP_NUM_THREADS" not in worker_environment("cpu", devices, {"OMP_NUM_THREADS": "3"})
    for device in devices:
        share = int(worker_environment(device, devices, {})["OMP_NUM_THREADS"])
        assert share == max(1, n_cores() // len(devices))
    with pytest.raises(InvalidValueError, match="CUDA_VISIBLE_DEVICES shows 1 GPUs"):
        worker_environment("cuda:1", devices, {"CUDA_VISIBLE_DEVICES": "4"})


@pytest.mark.parametrize(("given", "name"), [("cpu", "cpu"), (0, "cuda:0"), ("1", "cuda:1"), ("cuda:12", "cuda:12")])
def test_devices_by_name(given: str | int, name: str) -> None:
    assert device_name(given) == name


@pytest.mark.parametrize("given", ["", "tpu", "-1", "cuda", "1.5"])
def test_an_unknown_device_is_refused(given: str) -> None:
    with pytest.raises(InvalidValueError, match="give numbers of GPUs"):
        device_name(given)


def test_workers_and_devices_that_do_not_fit() -> None:
    for count, devices, message in (
        (3, ["cpu", "cpu"], "3 workers do not fit 2 devices"),
        (0, None, "n_workers 0 is not allowed"),
        (None, [], "no device is given"),
    ):
        with pytest.raises(InvalidValueError, match=message):
            Processes(count, devices=devices)


def test_an_error_in_one_line() -> None:
    assert str(portable(UnpicklableError("this", "that"))) == "UnpicklableError: this and that"
    assert one_line(ValueError("a\nb")) == "ValueError: a b"
    assert one_line(InvalidValueError("a")) == "a"
    assert one_line(KeyError()) == "KeyError"
