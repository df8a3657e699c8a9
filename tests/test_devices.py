"""The device, the dtype and the CPU threads that computations use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from embstore import devices
from embstore.devices import choose_device, choose_dtype, cpu_quota, n_cores, thread_count, torch_threads
from embstore.errors import InvalidValueError


def machine(monkeypatch: pytest.MonkeyPatch, kind: str | None, count: int = 1) -> None:
    """Pretend that the machine has `count` accelerators of a kind, with the functions of torch 2.6."""

    def current_accelerator() -> torch.device:
        if kind is None:
            raise RuntimeError("Cannot access accelerator device when none is available.")
        return torch.device(kind)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: kind == "cuda")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: kind is not None)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", current_accelerator)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 0 if kind is None else count)


@pytest.mark.parametrize(
    ("kind", "device", "chosen"),
    [
        (None, "auto", "cpu"), (None, "cpu", "cpu"), ("cuda", "auto", "cuda"), ("cuda", "cuda:1", "cuda:1"),
        ("mps", "auto", "cpu"), ("mps", "mps", "mps"), ("xpu", "xpu:1", "xpu:1"),
    ],
)  # fmt: skip
def test_devices(kind: str | None, device: str, chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, kind, 2)
    assert choose_device(device) == torch.device(chosen)


@pytest.mark.parametrize(
    ("kind", "device", "message"),
    [
        (None, "cuda", "device 'cuda' is not available here; choose one of auto, cpu"),
        ("cuda", "cuda:2", "device 'cuda:2' is not available here; choose one of auto, cpu, cuda"),
        (None, "gpu", "unknown device 'gpu'; allowed are auto, cpu, cuda, cuda:N, mps, xpu"),
        (None, "meta", "device 'meta' is not supported"),
    ],
)
def test_a_device_that_does_not_exist_is_refused_in_one_line(
    kind: str | None, device: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch, kind, 2)
    with pytest.raises(InvalidValueError, match=message):
        choose_device(device)


def test_apple_gpus_are_refused_for_what_needs_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, "mps")
    with pytest.raises(InvalidValueError, match="device 'mps' has no float64, which analyses and probes need"):
        choose_device("mps", float64=True)


def test_dtypes() -> None:
    assert choose_dtype("auto", torch.device("cpu")) == choose_dtype("float32", torch.device("cuda")) == torch.float32
    assert choose_dtype("auto", torch.device("cuda")) == torch.float16
    with pytest.raises(InvalidValueError, match="unknown compute dtype 'int8'"):
        choose_dtype("int8", torch.device("cpu"))


def test_the_number_of_threads_is_restored() -> None:
    before = torch.get_num_threads()
    with torch_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    with torch_threads(None):
        assert torch.get_num_threads() == before
    with pytest.raises(InvalidValueError, match="threads 0 is not allowed: give 1 to 1,024"), torch_threads(0):
        pass


def cgroups(folder: Path, named: str, files: dict[str, str]) -> int | None:
    """Return the quota that these files of cgroups, and the names of those of a process, mean."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "process").write_text(named)
    return cpu_quota(folder, folder / "process")


@pytest.mark.parametrize(
    ("named", "files", "cores"),
    [
        ("0::/", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/", {}, None),
        ("0::/", {"cpu.max": "150000 100000\n"}, 2),
        ("0::/", {"cpu.max": "10000 100000\n"}, 1),
        ("0::/a/b", {"cpu.max": "max 100000", "a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}, 3),
    ],
)
def test_the_cpu_quota_of_a_container(tmp_path: Path, named: str, files: dict[str, str], cores: int | None) -> None:
    assert cgroups(tmp_path, named, files) == cores


def test_the_quota_limits_the_default_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr(devices, "cpu_quota", lambda: None)
    assert n_cores() == thread_count() == 8
    monkeypatch.setattr(devices, "cpu_quota", lambda: 3)
    assert n_cores() == thread_count() == 3
    assert thread_count(5) == 5
    before = torch.get_num_threads()
    try:
        for given, allowed in ((6, 3), (2, 2)):
            torch.set_num_threads(given)
            with torch_threads(None):
                assert torch.get_num_threads() == allowed
            assert torch.get_num_threads() == given
        torch.set_num_threads(6)
        monkeypatch.setenv("OMP_NUM_THREADS", "6")
        with torch_threads(None):
            assert torch.get_num_threads() == 6
    finally:
        torch.set_num_threads(before)
