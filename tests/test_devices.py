"""The device, the dtype and the CPU threads that computations use."""

from __future__ import annotations

import pytest
import torch

from embstore.analysis.words import Resources
from embstore.devices import choose_device, choose_dtype, torch_threads
from embstore.errors import InvalidValueError
from embstore.probes import ClassProbe


def machine(monkeypatch: pytest.MonkeyPatch, kind: str | None, count: int = 1) -> None:
    """Pretend that the machine has `count` accelerators of a kind."""
    accelerator = None if kind is None else torch.device(kind)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: kind == "cuda")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: accelerator)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 0 if kind is None else count)


@pytest.mark.parametrize(
    ("kind", "device", "chosen"),
    [
        (None, "auto", "cpu"),
        (None, "cpu", "cpu"),
        ("cuda", "auto", "cuda"),
        ("cuda", "cuda:1", "cuda:1"),
        ("mps", "auto", "cpu"),
        ("mps", "mps", "mps"),
        ("xpu", "xpu:1", "xpu:1"),
    ],
)
def test_devices(kind: str | None, device: str, chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, kind, 2)
    assert choose_device(device) == torch.device(chosen)


@pytest.mark.parametrize(
    ("kind", "device", "message"),
    [
        (None, "cuda", "device 'cuda' is not available here; choose one of auto, cpu"),
        (None, "mps", "device 'mps' is not available here"),
        ("cuda", "cuda:2", "device 'cuda:2' is not available here; choose one of auto, cpu, cuda"),
        ("mps", "cuda", "choose one of auto, cpu, mps"),
        (None, "gpu", "unknown device 'gpu'; allowed are auto, cpu, cuda, cuda:N, mps, xpu"),
        (None, "meta", "device 'meta' is not supported"),
    ],
)
def test_a_device_that_does_not_exist_is_refused_in_one_line(
    kind: str | None, device: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch, kind, 2)
    with pytest.raises(InvalidValueError, match=message) as error:
        choose_device(device)
    assert "\n" not in str(error.value)


def test_apple_gpus_are_refused_for_what_needs_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, "mps")
    for use in (Resources.of, lambda **options: ClassProbe(label="upos", **options).schedule()):
        with pytest.raises(InvalidValueError, match="device 'mps' has no float64, which analyses and probes need"):
            use(device="mps")


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
