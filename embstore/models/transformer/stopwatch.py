"""Times of stages, by the clock on a CPU and by events in the stream on CUDA."""

from __future__ import annotations

from time import perf_counter
from typing import Any, Protocol

import torch


class Stopwatch(Protocol):
    """Marks moments without waiting for the device; `seconds` waits for the later of two."""

    def mark(self) -> Any: ...

    def seconds(self, earlier: Any, later: Any) -> float: ...


class _HostClock:
    def mark(self) -> float:
        return perf_counter()

    def seconds(self, earlier: float, later: float) -> float:
        return later - earlier


class _CudaEvents:
    """Events in whatever stream is current on one card, which need not be the current card."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, earlier: torch.cuda.Event, later: torch.cuda.Event) -> float:
        later.synchronize()
        return float(earlier.elapsed_time(later)) / 1000


def stopwatch(device: torch.device) -> Stopwatch:
    """Return the stopwatch that fits a device."""
    return _CudaEvents(device) if device.type == "cuda" else _HostClock()
