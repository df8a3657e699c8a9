"""Executors of this machine: in this process, and processes beside it."""

from __future__ import annotations

import pytest

from embstore.cluster.processes import Processes, device_name, environment
from embstore.errors import InvalidValueError
from embstore.executor import Executor, InProcess
from tests.cluster.conformance import ATTEMPTS, ExecutorTests, SeveralWorkerTests, WorkerTests


class TestInProcess(ExecutorTests):
    @pytest.fixture
    def executor(self) -> Executor:
        return InProcess(attempts=ATTEMPTS)


@pytest.mark.slow
class TestOneProcess(WorkerTests):
    @pytest.fixture
    def executor(self) -> Executor:
        return Processes(["cpu"], attempts=ATTEMPTS)


class TestTwoProcesses(SeveralWorkerTests):
    @pytest.fixture
    def executor(self) -> Executor:
        return Processes(["cpu", "cpu"], attempts=ATTEMPTS)


def test_a_device_is_the_only_one_that_its_process_sees() -> None:
    devices = ["cuda:0", "cuda:1", "cpu", "cpu"]
    assert environment("cuda:1", devices, {})["CUDA_VISIBLE_DEVICES"] == "1"
    assert environment("cuda:1", devices, {"CUDA_VISIBLE_DEVICES": "4, GPU-abc"})["CUDA_VISIBLE_DEVICES"] == "GPU-abc"
    assert environment("cpu", devices, {"OMP_NUM_THREADS": "3"}) | {"OMP_NUM_THREADS": "3"} == environment(
        "cpu", devices, {"OMP_NUM_THREADS": "3"}
    )
    assert environment("cpu", devices, {})["CUDA_VISIBLE_DEVICES"] == ""
    with pytest.raises(InvalidValueError, match="CUDA_VISIBLE_DEVICES shows 1 GPUs"):
        environment("cuda:1", devices, {"CUDA_VISIBLE_DEVICES": "4"})


@pytest.mark.parametrize(("given", "name"), [("cpu", "cpu"), (0, "cuda:0"), ("1", "cuda:1"), ("cuda:12", "cuda:12")])
def test_devices_by_name(given: str | int, name: str) -> None:
    assert device_name(given) == name


@pytest.mark.parametrize("given", ["", "tpu", "-1", "cuda", "1.5"])
def test_a_device_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(InvalidValueError, match="give numbers of GPUs"):
        device_name(given)
